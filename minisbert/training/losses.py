"""Compute losses beyond the book's: cross-entropies, CoSENT, masked words, two-way ranking.

Pure functions like those of ``core/losses.py``: tensors in, a scalar out, the mean over the batch
unless stated otherwise; ``ValueError`` for shapes that do not fit, an empty batch, or an argument
outside its range. The second half is for students: which layers they keep, and what they learn from
a teacher.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, pad

from minisbert.architectures.modern import Encoder
from minisbert.core import one_line
from minisbert.core.checks import check_number, check_shape
from minisbert.core.encoder import cosine, cosine_matrix, normalize
from minisbert.core.losses import check_candidates, check_vectors, softmax_cross_entropy_loss

__all__ = [
    "binary_cross_entropy_loss",
    "cosent_loss",
    "distillation_loss",
    "keep_layers",
    "kl_divergence_loss",
    "margin_mse_loss",
    "matryoshka_loss",
    "mlm_losses",
    "principal_columns",
    "spread_layers",
    "symmetric_ranking_loss",
]


def check_probabilities(name: str, x: Tensor, count: int) -> None:
    """Raise ``ValueError`` unless there are ``count`` numbers in 0..1."""
    check_shape(name, x, count)
    if not ((x >= 0) & (x <= 1)).all():
        raise ValueError(f"{name} must be in 0..1, not {one_line(x)}")


def binary_cross_entropy_loss(logits: Tensor, target: Tensor, pos_weight: float = 1.0) -> Tensor:
    """Mean of -(pos_weight * y * log s(z) + (1 - y) * log s(-z)), with s the sigmoid.

    1 - s(z) is s(-z). Logits z and targets y in 0..1, both (B,). ``pos_weight`` above 1 raises
    recall. log s(z) is computed in one step, because s(z) itself rounds to 0 or 1 for large logits.
    ``z = [0, 2], y = [1, 0], pos_weight = 2`` gives (2 * 0.69315 + 2.12693) / 2 = 1.75661. Equals
    torch's ``BCEWithLogitsLoss``. An infinite logit gives infinity or NaN in both; ``fit`` makes no
    step from either.
    """
    check_shape("logits", logits, None)
    check_probabilities("target", target, len(logits))
    check_number("pos_weight", pos_weight, 0, math.inf, above=True)
    y = target.to(logits.dtype)
    return -(pos_weight * y * logsigmoid(logits) + (1 - y) * logsigmoid(-logits)).mean()


def mlm_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """log(sum over v of exp z_v) - z_target = -log softmax(z)[target] for each of N hidden words.

    logits z (N, V), targets (N,), the words' ids -> (N,). BERT, section 3.1.
    ``z = [0, 0, log 2], target = 2`` gives log 4 - log 2 = 0.69315.
    """
    check_shape("logits", logits, None, None)
    check_shape("targets", targets, len(logits))
    if targets.is_floating_point():
        raise ValueError(f"targets must be whole numbers, not {targets.dtype}")
    # Of log softmax only the targets' column is computed, not a second (N, V): V is 30,000.
    return logits.logsumexp(dim=1) - logits.gather(1, targets.unsqueeze(1)).squeeze(1)


def cosent_loss(u: Tensor, v: Tensor, target: Tensor, scale: float = 20.0) -> Tensor:
    """log(1 + sum of exp(scale * (cos_j - cos_i)) over all i, j with target_i > target_j).

    CoSENT (Huang et al. 2024). Only the order of the targets matters, as in Spearman's correlation.
    u and v (B, D), target (B,); one value for the batch, not a mean. Equal targets define no order:
    the loss is 0 if all are equal. Cosines 1 and 0 for targets 0 and 1 at scale 1 give log(1 + e) =
    1.31326.
    """
    check_vectors(u=u, v=v)
    check_shape("target", target, len(u))
    if not target.isfinite().all():
        raise ValueError("target must be finite")
    check_number("scale", scale, 0, math.inf, above=True)
    cosines = cosine(u, v)
    # Every pair of rows whose order the targets decide: row i should have the higher cosine.
    higher = target[:, None] > target[None, :]  # (B, B)
    gaps = scale * (cosines[None, :] - cosines[:, None])  # (B, B), positive for a wrong order
    return torch.cat([gaps.new_zeros(1), gaps[higher]]).logsumexp(dim=0)  # exp(0) is the 1


def symmetric_ranking_loss(
    anchors: Tensor,
    positives: Tensor,
    hard_negatives: Tensor | None = None,
    scale: float = 20.0,
) -> Tensor:
    """Average ``multiple_negatives_ranking_loss`` over both directions (CLIP, figure 3).

    Each anchor picks its positive, and each positive its anchor. Hard negatives are the positive of
    no anchor, so they are left out of the other direction. Shapes as in the one direction. At scale
    1 ``anchors = [[1, 0], [0, 1]], positives = [[1, 0], [1, 1]]``, with cosines [[1, 0.70711],
    [0, 0.70711]], give (0.47911 + 0.50320) / 2 = 0.49116.
    *Use it when* both sides are searched with the other, as two languages are.
    """
    check_candidates(anchors, positives, hard_negatives)
    check_number("scale", scale, 0, math.inf, above=True)
    logits = scale * cosine_matrix(anchors, positives)  # (B, B)
    backward = logits.T  # (B, B)
    if hard_negatives is not None:
        more = scale * cosine_matrix(anchors, hard_negatives)  # (B, N)
        logits = torch.cat([logits, more], dim=1)  # (B, B + N)
    labels = torch.arange(len(anchors), device=anchors.device)  # row i's answer is column i
    loss = softmax_cross_entropy_loss(logits, labels)
    return (loss + softmax_cross_entropy_loss(backward, labels)) / 2


def spread_layers(total: int, keep: int) -> list[int]:
    """Choose the layers of ``total`` to keep: the first, the last, and evenly between them.

    If one is kept, it is the last. Layer i of the student is i (total - 1) / (keep - 1), rounded
    half up, where Python's ``round`` would take a half to the even number. ``spread_layers(12, 6)``
    gives 0, 2, 4, 7, 9, 11, the layers with which DistilBERT began (Sanh et al. 2019; the list is
    in its extract_distilbert.py).
    """
    if not 1 <= keep <= total:
        raise ValueError(f"{keep} of {total} layers cannot be kept: give 1 to {total}")
    if keep == 1:
        return [total - 1]
    gaps = keep - 1
    return [(2 * i * (total - 1) + gaps) // (2 * gaps) for i in range(keep)]


def keep_layers(bert: Encoder, layers: Sequence[int]) -> Encoder:
    """Copy an encoder with some of its layers, in that order, and all its embeddings.

    The copy shares no tensor with it.
    """
    student = copy.deepcopy(bert)
    student.layers = nn.ModuleList(student.layers[i] for i in layers)
    changes: dict = {"num_hidden_layers": len(layers)}
    # Encoders whose layers differ list what kind each is.
    kinds = getattr(bert.config, "layer_types", None)
    if kinds:
        changes["layer_types"] = tuple(kinds[i] for i in layers)
    student.config = replace(bert.config, **changes)
    return student


def distillation_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean of (student - teacher)^2 over rows and columns, both (B, D).

    The teacher gets no gradient. The student learns the vectors themselves, not only their scores
    (Reimers and Gurevych 2020, *Making monolingual sentence embeddings multilingual*, section 1).
    ``[[1, 2]]`` for ``[[0, 4]]`` gives (1 + 4) / 2 = 2.5.
    """
    check_vectors(student=student, teacher=teacher)
    return (student - teacher.detach()).pow(2).mean()


def margin_mse_loss(scores: Tensor, teacher: Tensor) -> Tensor:
    """Mean of ((s_0 - s_j) - (t_0 - t_j))^2 over rows and j > 0.

    Margin-MSE (Hofstätter et al. 2020). Scores (B, C) of a query with a positive, column 0, and
    negatives. Only differences count, so a constant offset of the teacher does not matter.
    ``[[1, 0]]`` for ``[[5, 2]]`` gives (1 - 3)^2 = 4.
    """
    check_vectors(scores=scores, teacher=teacher)
    margins = scores[:, :1] - scores[:, 1:]  # (B, C - 1)
    expected = teacher[:, :1] - teacher[:, 1:]
    return (margins - expected.detach()).pow(2).mean()


def kl_divergence_loss(scores: Tensor, teacher: Tensor) -> Tensor:
    """Mean over rows of sum_j p_j (log p_j - log q_j).

    p is the softmax of the teacher's scores, q that of the student's. Both (B, C), the scores of a
    query with C texts: the student learns the distribution that the teacher gives them.
    ``[[0, 0]]`` for ``[[log 3, 0]]`` gives .75 log 1.5 + .25 log .5 = 0.13081.
    """
    check_vectors(scores=scores, teacher=teacher)
    log_p = teacher.detach().log_softmax(dim=1)
    log_q = scores.log_softmax(dim=1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=1).mean()


def principal_columns(vectors: Tensor, width: int) -> Tensor:
    """Give vectors (N, D) ``width`` columns: by their principal axes, or with zeros for more.

    The axes are those of lesson 17 without centring, which keep lengths and dot products as well as
    so few columns can.
    """
    if vectors.shape[1] <= width:
        return pad(vectors, (0, width - vectors.shape[1]))
    x = vectors.double()
    # eigh sorts from the shortest axis to the longest.
    axes = torch.linalg.eigh(x.T @ x).eigenvectors.flip(1)  # (D, D), the longest first
    axes = axes[:, :width]  # (D, width)
    # subtle: the sign of an axis is free, and a resumed run must find the same
    largest = axes.gather(0, axes.abs().argmax(dim=0, keepdim=True))  # (1, width)
    axes = axes * largest.sign()
    return (x @ axes).to(vectors.dtype)


def matryoshka_loss(
    loss: Callable[..., Tensor],
    *vectors: Tensor,
    dims: Sequence[int],
    weights: Sequence[float] | None = None,
) -> Tensor:
    """Sum over ``dims`` of weight * loss(the first dim columns of the vectors, scaled to length 1).

    Matryoshka Representation Learning (Kusupati et al. 2022): what matters most moves to the front,
    and every prefix can be used alone. vectors (B, D) each; ``dims`` should include D; weights are
    1 unless given. ``matryoshka_loss(lambda u, v: cosine_mse_loss(u, v, target), u, v, dims=(64,
    128, 384))``.
    """
    for x in vectors:
        check_shape("vectors", x, None, None)
    width = min(x.shape[1] for x in vectors)
    if not dims or not all(1 <= dim <= width for dim in dims):
        raise ValueError(
            f"dims {list(dims)} must be numbers from 1 to {width}, the width of the vectors"
        )
    if weights is None:
        weights = [1.0] * len(dims)
    total = vectors[0].new_zeros(())
    for dim, weight in zip(dims, weights, strict=True):
        # subtle: cut first, then scale; a prefix of a vector of length 1 is shorter than 1
        prefixes = [normalize(x[:, :dim]) for x in vectors]
        total = total + weight * loss(*prefixes)
    return total
