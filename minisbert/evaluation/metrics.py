"""Metrics beyond the book: decisions against labels, and rankings.

All take lists, arrays or tensors on the CPU, return Python floats, and raise ``ValueError`` for
input for which the metric is not defined.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from minisbert.core import one_line
from minisbert.core.checks import check_integer, check_one_of, check_shape

# --------------------------------------------------------------------------------------- decisions


def check_binary(name: str, values: np.ndarray | Tensor) -> None:
    """Raise ``ValueError`` unless all values are 0 or 1."""
    if not ((values == 0) | (values == 1)).all():
        raise ValueError(f"{name} must be 0 or 1, not {one_line(values)}")


def precision_recall_f1(predicted: ArrayLike, labels: ArrayLike) -> tuple[float, float, float]:
    """Precision, recall and F1 of predictions (N,) and labels (N,), both of 0 and 1.

    With TP true positives, FP false positives and FN false negatives: precision TP / (TP + FP),
    recall TP / (TP + FN), F1 = 2 P R / (P + R) = 2 TP / (2 TP + FP + FN). If nothing is predicted
    to be 1, precision is 0. ``precision_recall_f1([1, 1, 1, 0, 0], [1, 0, 0, 1, 0]) = (1/3, 1/2,
    2/5)``.
    """
    predicted = np.asarray(predicted)
    labels = np.asarray(labels)
    check_shape("predicted", predicted, None)
    check_binary("predicted", predicted)
    check_shape("labels", labels, len(predicted))
    check_binary("labels", labels)
    predicted = predicted == 1
    labels = labels == 1
    called = predicted.sum()  # TP + FP
    positives = _positives(labels)  # TP + FN
    true_positives = (predicted & labels).sum()
    precision = true_positives / max(called, 1)
    recall = true_positives / positives
    f1 = 2 * true_positives / (called + positives)
    return float(precision), float(recall), float(f1)


def best_threshold(scores: ArrayLike, labels: ArrayLike, metric: str = "f1") -> tuple[float, float]:
    """Find the threshold with the highest F1 or ``"accuracy"``, and that value.

    ``score >= threshold`` means 1; scores (N,), labels (N,) of 0 and 1. Every cut is tried: between
    two adjacent different scores (the threshold is their midpoint), below all (the lowest score)
    and above all (just above the highest). Of equally good cuts the highest threshold wins.
    ``best_threshold([0.9, 0.8, 0.8, 0.1], [1, 1, 0, 0]) = (0.45, 0.8)``; by accuracy (0.85, 0.75).
    On the rows it was chosen on, a threshold looks too good: choose it on dev.
    """
    check_one_of("metric", metric, ["f1", "accuracy"])
    scores, labels, last, called, true_positives = _cuts(scores, labels)
    # (G + 1,) each, with the cut above all scores as the first.
    called = np.append(0, called)
    true_positives = np.append(0, true_positives)
    if metric == "f1":
        values = 2 * true_positives / (called + _positives(labels))
    else:
        true_negatives = (~labels).sum() - (called - true_positives)
        values = (true_positives + true_negatives) / len(labels)
    above = scores[last[:-1]]  # (G - 1,), the scores on either side of a cut
    below = scores[last[1:]]
    middle = above / 2 + below / 2
    # subtle: two adjacent floats have no midpoint; the upper one gives the same cut. All in the
    # dtype of the scores, or a float32 score could fall on the other side of a float64 threshold
    middle = np.where((below < middle) & (middle <= above), middle, above)
    above_all = np.nextafter(scores[0], np.inf, dtype=scores.dtype)
    cuts = np.concatenate([[above_all], middle, scores[-1:]])  # (G + 1,)
    best = int(np.argmax(values))  # the first of the best
    return float(cuts[best]), float(values[best])


def average_precision(scores: ArrayLike, labels: ArrayLike) -> float:
    """Precision averaged over recall.

    It is the sum of (R_g - R_(g-1)) P_g over the cuts g, from the highest score down; scores (N,),
    labels (N,) of 0 and 1. Equal scores share a cut, as in scikit-learn's
    ``average_precision_score``, so constant scores give the share of ones. 1 is best: every 1 is
    above every 0. ``average_precision([0.9, 0.8, 0.8, 0.1], [1, 1, 0, 0]) = 1/2 * 1 + 1/2 * 2/3 =
    5/6``.
    """
    _, labels, _, called, true_positives = _cuts(scores, labels)
    gained = np.diff(true_positives, prepend=0)  # (G,) ones that each cut adds
    return float((gained * true_positives / called).sum() / _positives(labels))


def _cuts(
    scores: ArrayLike, labels: ArrayLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Scores and labels from the highest score down, and a cut after each of G different scores.

    A cut is its last row's index, how many rows it calls 1, and how many of these are 1: (G,) each.
    """
    scores = np.asarray(scores)
    labels = np.asarray(labels)
    check_shape("scores", scores, None)
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite")
    check_shape("labels", labels, len(scores))
    check_binary("labels", labels)
    if scores.dtype.kind != "f":
        scores = scores.astype(np.float64)
    order = np.argsort(-scores, kind="stable")
    scores = scores[order]
    labels = labels[order] == 1
    # subtle: no threshold can split a group of equal scores, so a cut only comes after the last row
    # of a group
    ends = np.flatnonzero(scores[1:] < scores[:-1])
    last = np.append(ends, len(scores) - 1)  # (G,)
    return scores, labels, last, last + 1, np.cumsum(labels)[last]


def _positives(labels: np.ndarray) -> int:
    """Count the labels that are 1; ``ValueError`` if there are none."""
    if not labels.any():
        raise ValueError("no label is 1: recall and F1 are not defined")
    return int(labels.sum())


# --------------------------------------------------------------------------------------- retrieval


def accuracy_at_k(ranked: ArrayLike, judged: ArrayLike, k: int) -> float:
    """Share of the queries with a relevant document among the first k.

    ``accuracy_at_k([[0, 1], [0, 0]], [[1], [1]], 2) = 1/2``.
    """
    ranked, _ = _check(ranked, judged, k)
    return float((ranked > 0).any(axis=1).mean())


def precision_at_k(ranked: ArrayLike, judged: ArrayLike, k: int) -> float:
    """Share of the first k that is relevant.

    A ranking shorter than k is filled up with documents that are not. ``precision_at_k([[1, 0, 1]],
    [[1, 1, 1]], 3) = 2/3``.
    """
    ranked, _ = _check(ranked, judged, k)
    return float(((ranked > 0).sum(axis=1) / k).mean())


def recall_at_k(ranked: ArrayLike, judged: ArrayLike, k: int) -> float:
    """Share of the relevant documents that is among the first k.

    ``recall_at_k([[1, 0, 1]], [[1, 1, 1, 1]], 3) = 2/4``.
    """
    ranked, judged = _check(ranked, judged, k)
    found = (ranked > 0).sum(axis=1)  # (Q,)
    relevant = (judged > 0).sum(axis=1)  # (Q,)
    return float((found / relevant).mean())


def mrr_at_k(ranked: ArrayLike, judged: ArrayLike, k: int) -> float:
    """Mean reciprocal rank: 1 / rank of the first relevant document, 0 if it is not in the first k.

    ``mrr_at_k([[0, 1, 1], [0, 0, 0]], [[1, 1], [1, 0]], 3) = (1/2 + 0) / 2``.
    """
    ranked, _ = _check(ranked, judged, k)
    relevant = ranked > 0
    # subtle: argmax is 0 for a query without a relevant document too; it counts as 0 and stays in
    # the mean
    reciprocals = 1 / (1 + relevant.argmax(axis=1))  # (Q,)
    return float(np.where(relevant.any(axis=1), reciprocals, 0.0).mean())


def ndcg_at_k(ranked: ArrayLike, judged: ArrayLike, k: int) -> float:
    """Normalised discounted cumulative gain: DCG of the first k, divided by the highest possible.

    Järvelin & Kekäläinen 2002 with the grade itself as gain, as trec_eval and BEIR have it (not
    2^grade - 1). ``ndcg_at_k([[1, 0, 2]], [[2, 1]], 3) = (1 + 2/2) / (2 + 1/1.58496) = 0.76019``.
    """
    ranked, judged = _check(ranked, judged, k)
    best = -np.sort(-judged, axis=1)[:, :k]  # subtle: of all judged documents, retrieved or not
    return float((dcg(ranked) / dcg(best)).mean())


def dcg(grades: ArrayLike) -> np.ndarray:
    """Discounted cumulative gain: the sum of grade / log2(rank + 1), ranks from 1.

    grades (Q, R) -> (Q,). ``dcg([[1, 0, 2]]) = [1/1 + 0 + 2/2] = [2]``.
    """
    grades = np.asarray(grades, dtype=np.float64)
    ranks = 1 + np.arange(grades.shape[1])  # (R,)
    return (grades / np.log2(ranks + 1)).sum(axis=1)


def map_at_k(ranked: ArrayLike, judged: ArrayLike, k: int) -> float:
    """Mean average precision: the mean of the precisions at the ranks of all relevant documents.

    A relevant document that is not among the first k adds 0, as in trec_eval's map_cut.
    sentence-transformers divides by ``min(k, relevant)``, which differs only for queries with more
    than k relevant documents. ``map_at_k([[1, 0, 1]], [[1, 1, 1]], 3) = (1/1 + 2/3 + 0) / 3 =
    0.55556``.
    """
    ranked, judged = _check(ranked, judged, k)
    relevant = ranked > 0
    precisions = relevant.cumsum(axis=1) / (1 + np.arange(ranked.shape[1]))  # (Q, R), at every rank
    sums = (relevant * precisions).sum(axis=1)  # (Q,)
    return float((sums / (judged > 0).sum(axis=1)).mean())


METRICS: dict[str, Callable[[ArrayLike, ArrayLike, int], float]] = {
    "accuracy": accuracy_at_k,
    "precision": precision_at_k,
    "recall": recall_at_k,
    "mrr": mrr_at_k,
    "ndcg": ndcg_at_k,
    "map": map_at_k,
}


def _check(ranked: ArrayLike, judged: ArrayLike, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first k of ``ranked`` (Q, R), and ``judged`` (Q, J).

    They are grades in float64, those below 0 as 0.
    """
    ranked = np.asarray(ranked, dtype=np.float64)
    judged = np.asarray(judged, dtype=np.float64)
    for name, values in (("ranked", ranked), ("judged", judged)):
        check_shape(name, values, len(ranked), None)
        if not np.isfinite(values).all():
            raise ValueError(f"{name} must be finite")
    check_integer("k", k)
    found = (ranked > 0).sum(axis=1)
    relevant = (judged > 0).sum(axis=1)
    wrong = (found > relevant) | (relevant == 0)
    if wrong.any():
        query = int(np.argmax(wrong))
        raise ValueError(
            f"query {query}: {found[query]} relevant documents ranked, {relevant[query]} judged"
        )
    return np.maximum(ranked[:, :k], 0.0), np.maximum(judged, 0.0)
