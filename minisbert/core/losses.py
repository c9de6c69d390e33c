"""Losses: pure functions, tensors in, a scalar out, each the mean over its batch.

First losses of scores and logits, then of vectors with a target, then those whose negatives are the
rest of the batch. All raise ``ValueError`` for shapes that do not fit, an empty batch, or an
argument outside its range.

What the library runs: all of this chapter, each loss where it is asked for, except

- ``contrastive_loss``: only the lessons run it. Equal to that of sentence-transformers by the
  parity check ``contrastive_loss``.
"""

import math

import torch
from torch import Tensor

from .checks import check_number, check_shape, one_line
from .encoder import cosine, cosine_matrix

__all__ = [
    "contrastive_loss",
    "cosine_mse_loss",
    "mse_loss",
    "multiple_negatives_ranking_loss",
    "simcse_loss",
    "softmax_cross_entropy_loss",
    "triplet_loss",
]


def check_vectors(**vectors: Tensor) -> None:
    """Raise ``ValueError`` unless all are matrices (B, D) of one shape."""
    # The first matrix may have any shape, and the others must have the same.
    rows: int | None = None
    columns: int | None = None
    for name, x in vectors.items():
        check_shape(name, x, rows, columns)
        rows, columns = x.shape


def check_candidates(
    anchors: Tensor, positives: Tensor, hard_negatives: Tensor | None = None
) -> None:
    """Raise ``ValueError`` unless each anchor has a positive and at least one negative."""
    check_vectors(anchors=anchors, positives=positives)
    if hard_negatives is not None:
        check_shape("hard_negatives", hard_negatives, None, anchors.shape[1])
    elif len(anchors) < 2:
        raise ValueError(
            "a batch of one has no negatives, so its loss is always 0: give 2 rows or more"
        )


# ----------------------------------------------------------------------------- scores and logits


def mse_loss(scores: Tensor, target: Tensor) -> Tensor:
    """Mean of (score - target)^2 (SBERT, section 3, regression).

    Both (B,): ``0.5`` for ``0.1`` gives 0.16.
    *Use it when* a head gives a score and people have given one too.
    """
    # Scores (B, 1) minus a target (B,) would be (B, B), without an error.
    check_shape("scores", scores, None)
    check_shape("target", target, len(scores))
    return (scores - target).pow(2).mean()


def softmax_cross_entropy_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of -log softmax(logits)[label] (SBERT, section 3, classification).

    That is log(sum over c of exp z_c) - z_label. logits (B, C), labels (B,) whole numbers in
    0..C-1. A logit of -inf is a class ruled out. ``z = [0, 0, log 2], label = 2`` gives
    log 4 - log 2 = 0.69315.
    *Use it when* each row has one class, as entailment, neutral and contradiction in NLI. With the
    rows of the batch as the classes it is the base of the ranking losses below.
    """
    check_shape("logits", logits, None, None)
    check_shape("labels", labels, len(logits))
    if labels.is_floating_point():
        raise ValueError(f"labels must be whole numbers, not {labels.dtype}")

    # ``chosen`` is each row's logit in the column that its label names.
    columns = labels.long().unsqueeze(1)  # (B, 1)
    chosen = logits.gather(1, columns).squeeze(1)  # (B,)
    return (logits.logsumexp(dim=1) - chosen).mean()


# ------------------------------------------------------------------------- vectors with a target


def cosine_mse_loss(u: Tensor, v: Tensor, target: Tensor) -> Tensor:
    """Mean of (cos(u, v) - target)^2 over the batch (SBERT, section 3: the regression objective).

    u and v (B, D), target (B,) in -1..1 -> scalar. ``u = [1, 0], v = [1, 1], target = 0.5`` gives
    (0.70711 - 0.5)^2 = 0.04289.
    *Use it when* people have scored how similar two sentences are, as in the STS Benchmark.
    """
    check_vectors(u=u, v=v)
    check_shape("target", target, len(u))
    if not (target.abs() <= 1).all():
        raise ValueError(f"target must be in -1..1, not {one_line(target)}")
    return mse_loss(cosine(u, v), target)


def contrastive_loss(u: Tensor, v: Tensor, labels: Tensor, margin: float = 0.5) -> Tensor:
    """Mean of (y * d^2 + (1 - y) * max(margin - d, 0)^2) / 2 with d = 1 - cos(u, v).

    Hadsell et al. 2006, eq. 4. u and v (B, D), labels y (B,): 1 for pairs that belong together, 0
    for others. (The paper has 0 for those that belong together, and Euclidean distances. Labels and
    distances here are those of sentence-transformers.) For ``u = [1, 0], v = [1, 1]``, so
    d = 0.29289, label 1 gives 0.04289 and label 0 gives (0.5 - 0.29289)^2 / 2 = 0.02145.
    *Use it when* each pair is labelled as belonging together or not, as duplicates are.
    """
    check_vectors(u=u, v=v)
    check_shape("labels", labels, len(u))
    if not ((labels == 0) | (labels == 1)).all():
        raise ValueError(f"labels must be 0 or 1, not {one_line(labels)}")
    if not 0 < margin <= 2:
        raise ValueError(f"margin must be above 0 and at most 2, not {margin}")

    y = labels.to(u.dtype)
    d = 1 - cosine(u, v)  # (B,)
    together = y * d.pow(2)  # 0 for pairs that do not belong together
    apart = (1 - y) * (margin - d).clamp_min(0).pow(2)  # 0 for those that do
    return (together + apart).mean() / 2


def triplet_loss(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0) -> Tensor:
    """Mean of max(d(a, p) - d(a, n) + margin, 0), d Euclidean (SBERT, section 3, with margin 1).

    All (B, D). ``a = [0, 0], p = [3, 4], n = [0, 4.5]`` gives 5 - 4.5 + 1 = 1.5.
    *Use it when* each row has a negative that was chosen for it, and batches must be small: the
    other rows play no part. With larger ones a ranking loss compares each anchor with all of them.
    """
    check_vectors(anchor=anchor, positive=positive, negative=negative)
    check_number("margin", margin, least=0, below=math.inf, above=True)
    to_positive = torch.linalg.vector_norm(anchor - positive, dim=1)  # (B,)
    to_negative = torch.linalg.vector_norm(anchor - negative, dim=1)  # (B,)
    return (to_positive - to_negative + margin).clamp_min(0).mean()


# --------------------------------------------------------- the rest of the batch as the negatives


def multiple_negatives_ranking_loss(
    anchors: Tensor,
    positives: Tensor,
    hard_negatives: Tensor | None = None,
    scale: float = 20.0,
) -> Tensor:
    """Cross-entropy of picking each anchor's positive by s = scale * cos.

    The mean of -log(exp(s_ii) / (sum over j of exp(s_ij))), where j runs over all positives and
    ``hard_negatives`` of the batch. Henderson et al. 2017, section 4.4, take plain dot products for
    s; cosine and scale are those of sentence-transformers. Scale 20 is temperature 0.05.

    anchors, positives (B, D), hard_negatives (N, D). At scale 1 ``anchors = [[1, 0], [0, 1]],
    positives = [[1, 0], [1, 1]]``, with cosines [[1, 0.70711], [0, 0.70711]], give 0.47911.
    *Use it when* you have pairs that belong together, such as questions and answers, and no labels.
    No text may be in a batch twice: it would be its own negative.
    """
    check_candidates(anchors, positives, hard_negatives)
    check_number("scale", scale, least=0, below=math.inf, above=True)
    logits = scale * cosine_matrix(anchors, positives)  # (B, B)
    if hard_negatives is not None:
        # subtle: they are wrong for every anchor, not only for the one that they were found for
        negative_logits = scale * cosine_matrix(anchors, hard_negatives)  # (B, N)
        logits = torch.cat([logits, negative_logits], dim=1)  # (B, B + N)
    labels = torch.arange(len(anchors), device=anchors.device)  # row i's answer is column i
    return softmax_cross_entropy_loss(logits, labels)


def simcse_loss(
    u: Tensor, v: Tensor, hard_negatives: Tensor | None = None, temperature: float = 0.05
) -> Tensor:
    """Cross-entropy of picking row i of ``v`` for row i of ``u`` by cos / temperature.

    SimCSE (Gao et al. 2021), eq. 4 and 5. All (B, D). The formula is that of the ranking loss with
    temperature = 1 / scale; what is new is where the rows come from. Unsupervised, u and v are the
    same texts under two dropout masks. Supervised, v is entailed by u in each row, and its hard
    negative contradicts u. The hard negatives of all rows count for each row.

    ``u = v = [[1, 0], [0, 1]]`` at temperature 1 gives log(1 + 1/e) = 0.31326; with
    ``hard_negatives = [[0, 1], [1, 0]]`` it is log(2e + 2) - 1 = 1.00641.
    *Use it when* you have nothing but sentences (with dropout on), or NLI's three sentences a row.
    """
    check_candidates(u, v, hard_negatives)
    check_number("temperature", temperature, least=0, below=math.inf, above=True)
    logits = cosine_matrix(u, v) / temperature  # (B, B)
    if hard_negatives is not None:
        # Unlike in the ranking loss, each row has exactly one.
        check_vectors(u=u, hard_negatives=hard_negatives)
        negative_logits = cosine_matrix(u, hard_negatives) / temperature  # (B, B)
        logits = torch.cat([logits, negative_logits], dim=1)  # (B, 2 B)
    labels = torch.arange(len(u), device=u.device)  # row i's answer is column i
    return softmax_cross_entropy_loss(logits, labels)
