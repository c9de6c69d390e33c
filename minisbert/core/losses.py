"""Losses: pure functions, tensors in, a scalar out, each the mean over its batch unless it says otherwise.

First losses of scores and logits, then of vectors with a target, then those whose negatives are the rest of the batch.
All raise ``ValueError`` for shapes that do not fit, an empty batch, or an argument outside its range.
"""

import torch
from torch import Tensor

from .checks import check, check_negatives
from .encoder import cosine, cosine_matrix


def mse_loss(scores: Tensor, target: Tensor) -> Tensor:
    """Mean of (score - target)^2 (SBERT, section 3, regression). Both (B,): ``0.5`` for ``0.1`` gives 0.16."""
    check("scores (B), target (B)", scores, target)  # (B, 1) with (B,) would become (B, B)
    return (scores - target).pow(2).mean()


def cosine_mse_loss(u: Tensor, v: Tensor, target: Tensor) -> Tensor:
    """Mean of (cos(u, v) - target)^2 over the batch (SBERT, section 3: the regression objective).

    u and v (B, D), target (B,) in -1..1 -> scalar. ``u = [1, 0], v = [1, 1], target = 0.5`` gives
    (0.70711 - 0.5)^2 = 0.04289.
    """
    check("u (B, D), v (B, D), target (B) in -1..1", u, v, target)
    return mse_loss(cosine(u, v), target)


def softmax_cross_entropy_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of -log softmax(logits)[label] = log(sum over c of exp z_c) - z_label (SBERT, section 3, classification).

    logits (B, C), labels (B,) whole numbers in 0..C-1. A logit of -inf is a class ruled out.
    ``z = [0, 0, log 2], label = 2`` gives log 4 - log 2 = 0.69315.
    """
    check("logits (B, C), labels (B) whole", logits, labels)
    chosen = logits.gather(1, labels.long().unsqueeze(1)).squeeze(1)  # (B,)
    return (logits.logsumexp(dim=1) - chosen).mean()


def contrastive_loss(u: Tensor, v: Tensor, labels: Tensor, margin: float = 0.5) -> Tensor:
    """Mean of (y * d^2 + (1 - y) * max(margin - d, 0)^2) / 2 with d = 1 - cos(u, v) (Hadsell et al. 2006, eq. 4).

    u and v (B, D), labels y (B,): 1 for pairs that belong together, 0 for others (in the paper it is the reverse, and
    d Euclidean; sentence-transformers has it as here). For ``u = [1, 0], v = [1, 1]``, so d = 0.29289, label 1 gives
    0.04289 and label 0 gives (0.5 - 0.29289)^2 / 2 = 0.02145.
    """
    check("u (B, D), v (B, D), labels (B) 0 or 1, margin above 0 and at most 2", u, v, labels, margin)
    y = labels.to(u.dtype)
    d = 1 - cosine(u, v)  # (B,)
    return (y * d.pow(2) + (1 - y) * (margin - d).clamp_min(0).pow(2)).mean() / 2


def triplet_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, distance: str = "euclidean"
) -> Tensor:
    """Mean of max(d(a, p) - d(a, n) + margin, 0) (SBERT, section 3, with ||x - y|| and margin 1).

    All (B, D); ``distance`` is "euclidean" or "cosine" (1 - cos).
    ``a = [0, 0], p = [3, 4], n = [0, 4.5]`` gives 5 - 4.5 + 1 = 1.5.
    """
    check("anchor (B, D), positive (B, D), negative (B, D)", anchor, positive, negative)
    check("distance euclidean|cosine", distance)
    check(f"margin above 0 and {'at most 2' if distance == 'cosine' else 'finite'}", margin)  # 1 - cos lies in 0..2
    if distance == "cosine":
        closer, further = 1 - cosine(anchor, positive), 1 - cosine(anchor, negative)  # (B,)
    else:
        closer, further = (torch.linalg.vector_norm(anchor - other, dim=1) for other in (positive, negative))  # (B,)
    return (closer - further + margin).clamp_min(0).mean()


def multiple_negatives_ranking_loss(
    anchors: Tensor,
    positives: Tensor,
    hard_negatives: Tensor | None = None,
    scale: float = 20.0,
    symmetric: bool = False,
    duplicates: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of picking each anchor's positive by scale * cos: -log(exp(s_ii) / (sum over j of exp(s_ij))).

    j runs over all positives and ``hard_negatives`` of the batch (Henderson et al. 2017, section 4.4, with plain dot
    products; scale and cosine are sentence-transformers'). anchors, positives (B, D), hard_negatives (N, D).
    ``symmetric``: mean with the other direction, each positive picking its anchor (CLIP, figure 3). ``duplicates``
    (B, B), True at [i, j] if positive j is right for anchor i too and does not count as wrong (the diagonal needs no
    entry). Scale 20 is temperature 0.05. At scale 1 ``anchors = [[1, 0], [0, 1]], positives = [[1, 0], [1, 1]]``, with
    cosines [[1, 0.70711], [0, 0.70711]], give 0.47911, symmetric 0.49116.
    """
    rules = "anchors (B, D), positives (B, D), hard_negatives (N, D), duplicates (B, B), scale above 0 and finite"
    check(rules, anchors, positives, hard_negatives, duplicates, scale)
    check_negatives(anchors, hard_negatives)
    logits = scale * cosine_matrix(anchors, positives)  # (B, B)
    labels = torch.arange(len(anchors), device=anchors.device)  # row i's answer is column i
    if duplicates is not None:
        own = torch.eye(len(anchors), dtype=torch.bool, device=anchors.device)
        logits = logits.masked_fill(duplicates & ~own, -torch.inf)
    backward = logits.T  # (B, B): hard negatives are the positive of no anchor, so this direction leaves them out
    if hard_negatives is not None:
        logits = torch.cat([logits, scale * cosine_matrix(anchors, hard_negatives)], dim=1)  # (B, B + N)
    loss = softmax_cross_entropy_loss(logits, labels)
    return (loss + softmax_cross_entropy_loss(backward, labels)) / 2 if symmetric else loss


def simcse_loss(
    u: Tensor,
    v: Tensor,
    hard_negatives: Tensor | None = None,
    temperature: float = 0.05,
    hard_negative_weight: float = 0.0,
) -> Tensor:
    """Cross-entropy of picking row i of ``v`` for row i of ``u`` by cos / temperature (SimCSE, eq. 4 and 5).

    All (B, D). Unsupervised: u and v are the same texts under two dropout masks. Supervised: v entailed by u,
    ``hard_negatives`` contradicting it; all count for all rows. ``hard_negative_weight`` is added to the logit of a
    row's own one: the paper's alpha (ablation of hard negatives) is its exp. ``u = v = [[1, 0], [0, 1]]`` at
    temperature 1 gives log(1 + 1/e) = 0.31326; with ``hard_negatives = [[0, 1], [1, 0]]`` log(2e + 2) - 1 = 1.00641;
    with weight log 2 besides log(2e + 3) - 1 = 1.13258.
    """
    check("u (B, D), v (B, D), hard_negatives (B, D)", u, v, hard_negatives)
    check("temperature above 0 and finite", temperature)
    check(f"hard_negative_weight {'0' if hard_negatives is None else 'finite'}", hard_negative_weight)
    check_negatives(u, hard_negatives)
    logits = cosine_matrix(u, v) / temperature  # (B, B)
    if hard_negatives is not None:
        weight = hard_negative_weight * torch.eye(len(u), dtype=u.dtype, device=u.device)  # subtle: log space
        logits = torch.cat([logits, cosine_matrix(u, hard_negatives) / temperature + weight], dim=1)  # (B, 2 B)
    return softmax_cross_entropy_loss(logits, torch.arange(len(u), device=u.device))
