"""Training that ends when it no longer helps, and keeps the best weights that it has seen."""

from collections.abc import Callable, Iterable

from torch import nn


def train_with_patience(
    model: nn.Module,
    steps: Iterable,
    score: Callable[[nn.Module], float],
    every: int,
    patience: int,
) -> list[float]:
    """Let ``fit`` train a model, look at its score, and stop in time.

    ``steps`` is what ``fit`` returns. ``score(model)``, larger is better, is asked before the first
    step and after every ``every`` steps, with the model in eval mode; while it is trained it is in
    train mode. After ``patience`` looks in a row without a score above the best so far, no further
    step is made. At the end the model has the weights of its best look, and is in eval mode.
    Returns the scores, the first one of the untrained model.
    """
    model.eval()
    scores = [score(model)]
    best = scores[0]
    # subtle: state_dict() gives the tensors themselves, which the next step changes
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    waited = 0

    model.train()
    for number, _ in enumerate(steps, start=1):
        if number % every != 0:
            continue
        model.eval()
        scores.append(score(model))
        model.train()
        if scores[-1] > best:
            best = scores[-1]
            kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            waited = 0
        else:
            waited += 1
        if waited == patience:
            break

    model.load_state_dict(kept)
    model.eval()
    return scores
