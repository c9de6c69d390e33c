"""A smaller model from a larger one: fewer layers, losses against a teacher, prefixes that serve alone.

    student = copy.deepcopy(encoder)
    student.bert = keep_layers(encoder.bert, spread_layers(6, 3))  # layers 0, 3 and 5
    loss = distillation_loss(student(ids, mask), teacher_vectors)

``matryoshka_loss`` makes a loss of the first columns of the vectors as well, so that they can be cut later.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

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
    """A copy of a ``Bert`` with some of its layers, in that order; the embeddings are kept, and nothing is shared."""
    student = copy.deepcopy(bert)
    student.layers = nn.ModuleList(student.layers[i] for i in layers)
    kinds = getattr(bert.config, "layer_types", None)  # of encoders whose layers differ
    changes = {"layer_types": tuple(kinds[i] for i in layers)} if kinds else {}
    student.config = replace(bert.config, num_hidden_layers=len(layers), **changes)
    return student


def distillation_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean of (student - teacher)^2 over rows and columns, both (B, D); the teacher gets no gradient.

    The student learns the vectors themselves, not only their scores (Reimers and Gurevych 2020, *Making monolingual
    sentence embeddings multilingual*, section 1). ``[[1, 2]]`` for ``[[0, 4]]`` gives (1 + 4) / 2 = 2.5.
    """
    check("student (B, D), teacher (B, D)", student, teacher)
    return (student - teacher.detach()).pow(2).mean()


def margin_mse_loss(scores: Tensor, teacher: Tensor) -> Tensor:
    """Mean of ((s_0 - s_j) - (t_0 - t_j))^2 over rows and j > 0 (Hofstätter et al. 2020: Margin-MSE).

    Scores (B, C) of a query with a positive, column 0, and negatives. Only differences count, so a constant offset of
    the teacher does not matter. ``[[1, 0]]`` for ``[[5, 2]]`` gives (1 - 3)^2 = 4.
    """
    check("scores (B, C), teacher (B, C)", scores, teacher)
    margins, expected = (x[:, :1] - x[:, 1:] for x in (scores, teacher.detach()))  # (B, C - 1)
    return (margins - expected).pow(2).mean()


def kl_divergence_loss(scores: Tensor, teacher: Tensor) -> Tensor:
    """Mean over rows of sum_j p_j (log p_j - log q_j), p the softmax of the teacher's scores, q of the student's.

    Both (B, C), the scores of a query with C texts: the student learns the distribution that the teacher gives them.
    ``[[0, 0]]`` for ``[[log 3, 0]]`` gives .75 log 1.5 + .25 log .5 = 0.13081.
    """
    check("scores (B, C), teacher (B, C)", scores, teacher)
    log_p, log_q = teacher.detach().log_softmax(dim=1), scores.log_softmax(dim=1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=1).mean()


def principal_columns(vectors: Tensor, width: int) -> Tensor:
    """Vectors (N, D) in ``width`` columns: turned onto their principal axes if that is fewer, else zeros appended.

    As in lesson 16 without centring, which keeps lengths and dot products as well as so few columns can.
    """
    if vectors.shape[1] <= width:
        return pad(vectors, (0, width - vectors.shape[1]))
    x = vectors.double()
    axes = torch.linalg.eigh(x.T @ x).eigenvectors.flip(1)[:, :width]  # (D, width), the longest first
    # subtle: the sign of an axis is free, and a resumed run must find the same
    largest = axes.gather(0, axes.abs().argmax(dim=0, keepdim=True))  # (1, width)
    return (x @ (axes * largest.sign())).to(vectors.dtype)


def matryoshka_loss(
    loss: Callable[..., Tensor], *vectors: Tensor, dims: Sequence[int], weights: Sequence[float] | None = None
) -> Tensor:
    """Sum over ``dims`` of weight * loss(the first dim columns of each of the vectors, scaled to length 1).

    Matryoshka Representation Learning (Kusupati et al. 2022): what matters most moves to the front, and every prefix
    can be used alone. vectors (B, D) each; ``dims`` should include D; weights are 1 unless given.
    ``matryoshka_loss(lambda u, v: cosine_mse_loss(u, v, target), u, v, dims=(64, 128, 384))``.
    """
    for x in vectors:
        check("vectors (B, D)", x)
    width = min(x.shape[1] for x in vectors)
    if not dims or not all(1 <= dim <= width for dim in dims):
        raise ValueError(f"dims {list(dims)} must be numbers from 1 to {width}, the width of the vectors")
    total = vectors[0].new_zeros(())
    for dim, weight in zip(dims, [1.0] * len(dims) if weights is None else weights, strict=True):
        # subtle: cut first, then scale; a prefix of a vector of length 1 is shorter than 1
        total = total + weight * loss(*(normalize(x[:, :dim]) for x in vectors))
    return total
