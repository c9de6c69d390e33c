"""A smaller model from a larger one: fewer layers, a loss against the teacher's vectors, prefixes that serve alone.

    student = copy.deepcopy(encoder)
    student.bert = keep_layers(encoder.bert, spread_layers(6, 3))  # layers 0, 3 and 5
    loss = distillation_loss(student(ids, mask), teacher_vectors)

``matryoshka_loss`` makes a loss of the first columns of the vectors as well, so that they can be cut later.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor, nn

from minisbert.core.checks import check
from minisbert.core.encoder import normalize


def spread_layers(total: int, keep: int) -> list[int]:
    """Which layers of ``total`` to keep: the first, the last, and the others evenly between them; of one, the last.

    Layer i of the student is i (total - 1) / (keep - 1), rounded half up. ``spread_layers(12, 6)`` gives 0, 2, 4, 7,
    9, 11, the layers with which DistilBERT began (Sanh et al. 2019; the list is in its extract_distilbert.py).
    """
    if not 1 <= keep <= total:
        raise ValueError(f"{keep} of {total} layers cannot be kept: give 1 to {total}")
    if keep == 1:
        return [total - 1]
    gaps = keep - 1
    return [(2 * i * (total - 1) + gaps) // (2 * gaps) for i in range(keep)]


def keep_layers(bert: nn.Module, layers: Sequence[int]) -> nn.Module:
    """A copy of a ``Bert`` with some of its layers, in order; the embeddings are kept, and nothing is shared."""
    if not layers or list(layers) != sorted(set(layers)) or not 0 <= min(layers) <= max(layers) < len(bert.layers):
        raise ValueError(f"layers {list(layers)} must be some of 0 to {len(bert.layers) - 1}, ascending, each once")
    student = copy.deepcopy(bert)
    student.layers = nn.ModuleList(student.layers[i] for i in layers)
    student.config = replace(bert.config, num_hidden_layers=len(layers))
    return student


def distillation_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean of (student - teacher)^2 over rows and columns, both (B, D); the teacher gets no gradient.

    The student learns the vectors themselves, not only their scores (Reimers and Gurevych 2020, *Making monolingual
    sentence embeddings multilingual*, section 1). ``[[1, 2]]`` for ``[[0, 4]]`` gives (1 + 4) / 2 = 2.5.
    """
    check("student (B, D), teacher (B, D)", student, teacher)
    return (student - teacher.detach()).pow(2).mean()


def matryoshka_loss(
    loss: Callable[..., Tensor], *vectors: Tensor, dims: Sequence[int], weights: Sequence[float] | None = None
) -> Tensor:
    """Sum over ``dims`` of weight * loss(the first dim columns of each of the vectors, scaled to length 1).

    Matryoshka Representation Learning (Kusupati et al. 2022): what matters most moves to the front, and every prefix
    is a vector of its own. vectors (B, D) each; ``dims`` should include D; weights are 1 unless given.
    ``matryoshka_loss(lambda u, v: cosine_mse_loss(u, v, target), u, v, dims=(64, 128, 384))``.
    """
    weights = [1.0] * len(dims) if weights is None else weights
    check_prefixes(vectors, dims, weights)
    total = vectors[0].new_zeros(())
    for dim, weight in zip(dims, weights, strict=True):
        # subtle: cut first, then scale; a prefix of a vector of length 1 is shorter than 1
        total = total + weight * loss(*(normalize(x[:, :dim]) for x in vectors))
    return total


def check_prefixes(vectors: Sequence[Tensor], dims: Sequence[int], weights: Sequence[float]) -> None:
    if not vectors or any(x.ndim != 2 or len(x) == 0 for x in vectors):
        raise ValueError(f"vectors must be (B, D), not {', '.join(str(tuple(x.shape)) for x in vectors) or 'none'}")
    width = min(x.shape[1] for x in vectors)
    if not dims or not all(1 <= dim <= width for dim in dims):
        raise ValueError(f"dims {list(dims)} must be numbers from 1 to {width}, the width of the vectors")
    if len(weights) != len(dims):
        raise ValueError(f"{len(weights)} weights for {len(dims)} dims: give one for each, or none")
