"""Losses that the package does not train with.

Weighted squares, masked words as one number, NT-Xent, and variants of lesson 10's losses: the
triplet loss of cosines, SimCSE with a weight on hard negatives, ranking among equal texts.
"""

import math

import torch
from torch import Tensor

from minisbert.core.checks import check_number, check_shape
from minisbert.core.encoder import cosine, cosine_matrix
from minisbert.core.losses import (
    check_candidates,
    check_vectors,
    softmax_cross_entropy_loss,
)
from minisbert.training.losses import check_probabilities, mlm_losses


def weighted_mse_loss(
    scores: Tensor, target: Tensor, threshold: float = 0.2, weight: float = 2.0
) -> Tensor:
    """Mean of w * (score - target)^2, w = ``weight`` if target < threshold, else 1; divided by B,
    not by sum w.

    15 % of STS-B's training pairs are below 1 of 5 (an even spread: 20 %); these count twice. Both
    (B,) on the 0 to 1 scale. The STS-B notebook writes ``target < 1`` on that scale, which is
    ``threshold=1.0``, and never calls it. ``scores = [0.5, 0.5], target = [0.1, 0.9]`` gives (2 *
    0.16 + 0.16) / 2 = 0.24.
    """
    check_shape("scores", scores, None)
    check_probabilities("target", target, len(scores))
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold must be in 0..1, not {threshold}")
    check_number("weight", weight, 0, math.inf, above=True)
    weights = torch.ones_like(scores).masked_fill(target < threshold, weight)  # (B,)
    return (weights * (scores - target).pow(2)).mean()


def mlm_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Average ``mlm_losses``: BERT's loss, besides the next sentence's."""
    return mlm_losses(logits, targets).mean()


def nt_xent_loss(u: Tensor, v: Tensor, temperature: float = 0.05) -> Tensor:
    """SimCLR, eq. 1: each of the 2B rows of u and v picks its other view among the other 2B - 1
    rows.

    u and v (B, D). Unlike in ``simcse_loss``, the rows of u are negatives for each other too.
    Published notes on SimCSE give this as its loss; the paper's eq. 4 is ``simcse_loss``. ``u = v =
    [[1, 0], [0, 1]]`` at temperature 1 gives log(e + 2) - 1 = 0.55144.
    """
    check_candidates(u, v)
    check_number("temperature", temperature, 0, math.inf, above=True)
    z = torch.cat([u, v])  # (2 B, D)
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    logits = (cosine_matrix(z, z) / temperature).masked_fill(itself, -torch.inf)  # (2 B, 2 B)
    # the other view of row i is row i + B of the first half, and i - B of the second
    other_view = torch.arange(len(z), device=z.device).roll(len(u))
    return softmax_cross_entropy_loss(logits, other_view)


def cosine_triplet_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 0.2
) -> Tensor:
    """Mean of max(d(a, p) - d(a, n) + margin, 0) with d = 1 - cos, which lies in 0..2.

    All (B, D). ``a = [1, 0], p = [1, 1], n = [0, 1]`` gives 0.29289 - 1 + margin: with margin 1,
    0.29289. Unlike the Euclidean one it does not change if vectors become longer.
    """
    check_vectors(anchor=anchor, positive=positive, negative=negative)
    if not 0 < margin <= 2:
        raise ValueError(f"margin must be above 0 and at most 2, not {margin}")
    to_positive = 1 - cosine(anchor, positive)  # (B,)
    to_negative = 1 - cosine(anchor, negative)  # (B,)
    return (to_positive - to_negative + margin).clamp_min(0).mean()


def weighted_simcse_loss(
    u: Tensor,
    v: Tensor,
    hard_negatives: Tensor,
    temperature: float = 0.05,
    hard_negative_weight: float = 0.0,
) -> Tensor:
    """SimCSE's supervised loss with a weight on each row's own hard negative.

    All (B, D). ``hard_negative_weight`` is added to the logit of a row's own hard negative, not to
    those of other rows: the paper's alpha (ablation of hard negatives) is its exp. Weight 0 is
    ``simcse_loss``. ``u = v = [[1, 0], [0, 1]], hard_negatives = [[0, 1], [1, 0]]`` at temperature
    1 with weight log 2 give log(2e + 3) - 1 = 1.13258.
    """
    check_candidates(u, v)
    check_shape("hard_negatives", hard_negatives, *u.shape)
    check_number("temperature", temperature, 0, math.inf, above=True)
    if not math.isfinite(hard_negative_weight):
        raise ValueError(f"hard_negative_weight must be finite, not {hard_negative_weight}")
    own = torch.eye(len(u), dtype=u.dtype, device=u.device)  # (B, B)
    logits = cosine_matrix(u, v) / temperature  # (B, B)
    # subtle: added to a logit, so a factor of its exp
    more = cosine_matrix(u, hard_negatives) / temperature + hard_negative_weight * own  # (B, B)
    logits = torch.cat([logits, more], dim=1)  # (B, 2 B)
    return softmax_cross_entropy_loss(logits, torch.arange(len(u), device=u.device))


def ranking_among_duplicates_loss(
    anchors: Tensor,
    positives: Tensor,
    hard_negatives: Tensor,
    duplicates: Tensor,
    scale: float = 20.0,
) -> Tensor:
    """``symmetric_ranking_loss`` of a batch in which some texts are equal.

    anchors, positives (B, D), hard_negatives (N, D), ``duplicates`` (B, B): True at [i, j] if
    positive j is right for anchor i too, so that it does not count as wrong, in either direction
    (the diagonal needs no entry). The package draws batches without such rows instead.
    """
    check_candidates(anchors, positives, hard_negatives)
    check_shape("duplicates", duplicates, len(anchors), len(anchors))
    check_number("scale", scale, 0, math.inf, above=True)
    own = torch.eye(len(anchors), dtype=torch.bool, device=anchors.device)
    logits = scale * cosine_matrix(anchors, positives)  # (B, B)
    logits = logits.masked_fill(duplicates & ~own, -torch.inf)
    more = scale * cosine_matrix(anchors, hard_negatives)  # (B, N)
    labels = torch.arange(len(anchors), device=anchors.device)
    forward = softmax_cross_entropy_loss(torch.cat([logits, more], dim=1), labels)
    backward = softmax_cross_entropy_loss(logits.T, labels)
    return (forward + backward) / 2
