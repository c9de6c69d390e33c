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
    """Raise ``ValueError`` unless all values are 0 or 1; messages call them by ``name``."""
    if not ((values == 0) | (values == 1)).all():
        raise ValueError(f"{name} must be 0 or 1, not {one_line(values)}")


def precision_recall_f1(predicted: ArrayLike, labels: ArrayLike) -> tuple[float, float, float]:
    """Precision, recall and F1 of predictions (N,) and labels (N,), both of 0 and 1.

    With TP true positives, FP false positives and FN false negatives: precision TP / (TP + FP),
    recall TP / (TP + FN), F1 = 2 P R / (P + R) = 2 TP / (2 TP + FP + FN). If nothing is predicted
    to be 1, precision is 0.
    ``precision_recall_f1([1, 1, 1, 0, 0], [1, 0, 0, 1, 0]) = (1/3, 1/2, 2/5)``.
    """
    predicted = np.asarray(predicted)
    labels = np.asarray(labels)
    check_shape("predicted", predicted, None)
    check_binary("predicted", predicted)
    check_shape("labels", labels, len(predicted))
    check_binary("labels", labels)
    predicted = predicted == 1
    labels = labels == 1
    predicted_ones = predicted.sum()  # TP + FP
    label_ones = _count_ones(labels)  # TP + FN
    true_positives = (predicted & labels).sum()
    precision = true_positives / max(predicted_ones, 1)
    recall = true_positives / label_ones
    f1 = 2 * true_positives / (predicted_ones + label_ones)
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
    scores, labels, last = _cuts(scores, labels)
    # For each cut, how many rows are above it, and how many of these have label 1. ``last`` (G,)
    # has a cut below each of the G different scores; here the cut above all scores comes first.
    predicted_ones = np.append(0, last + 1)  # (G + 1,)
    true_positives = np.append(0, labels.cumsum()[last])  # (G + 1,)
    if metric == "f1":
        values = 2 * true_positives / (predicted_ones + _count_ones(labels))
    else:
        false_positives = predicted_ones - true_positives
        true_negatives = (~labels).sum() - false_positives
        values = (true_positives + true_negatives) / len(labels)

    # The threshold of a cut between two scores is the middle of them, (G - 1,). Each is halved
    # before the sum, which could overflow.
    above = scores[last[:-1]]
    below = scores[last[1:]]
    middle = above / 2 + below / 2
    # subtle: two adjacent floats have no midpoint; the upper one gives the same cut. Thresholds
    # keep the dtype of the scores: a float32 score could fall on the other side of a float64 one
    middle = np.where((below < middle) & (middle <= above), middle, above)
    above_all = np.nextafter(scores[0], np.inf, dtype=scores.dtype)
    thresholds = np.concatenate([[above_all], middle, scores[-1:]])  # (G + 1,)
    best = int(np.argmax(values))  # the first of the best
    return float(thresholds[best]), float(values[best])


def average_precision(scores: ArrayLike, labels: ArrayLike) -> float:
    """Precision averaged over recall.

    It is the sum of (R_g - R_(g-1)) P_g over the cuts g, from the highest score down; scores (N,),
    labels (N,) of 0 and 1. Equal scores share a cut, as in scikit-learn's
    ``average_precision_score``, so constant scores give the share of ones. 1 is best: every 1 is
    above every 0.
    ``average_precision([0.9, 0.8, 0.8, 0.1], [1, 1, 0, 0]) = 1/2 * 1 + 1/2 * 2/3 = 5/6``.
    """
    _, labels, last = _cuts(scores, labels)
    predicted_ones = last + 1  # (G,)
    true_positives = labels.cumsum()[last]  # (G,)
    gained = np.diff(true_positives, prepend=0)  # (G,) ones that each cut adds
    total = (gained * true_positives / predicted_ones).sum()
    return float(total / _count_ones(labels))


def _cuts(scores: ArrayLike, labels: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scores (N,) and labels (N,) from the highest score down, and where to cut, (G,).

    A cut comes after each of G different scores. It is given as the index of the last row above it:
    this row and all before it are called 1. Labels are booleans.
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
    return scores, labels, last


def _count_ones(labels: np.ndarray) -> int:
    """Count the labels that are 1; ``ValueError`` if there are none."""
    if not labels.any():
        raise ValueError("no label is 1: recall and F1 are not defined")
    return int(labels.sum())


# ---------------------------------------------------------------------------------------- rankings

# For each of Q queries, ``ranked`` (Q, R) are the grades of the documents that were found, in the
# order of their ranks, and ``judged`` (Q, J) the grades of all documents that people have judged. A
# document is relevant if its grade is above 0.


def accuracy_at_k(ranked: ArrayLike, judged: ArrayLike, k: int) -> float:
    """Share of the queries with a relevant document among the first k.

    ``accuracy_at_k([[0, 1], [0, 0]], [[1], [1]], 2) = 1/2``.
    """
    ranked, _ = _check_grades(ranked, judged, k)
    return float((ranked > 0).any(axis=1).mean())


def precision_at_k(ranked: ArrayLike, judged: ArrayLike, k: int) -> float:
    """Share of the first k that is relevant.

    A ranking shorter than k is filled up with documents that are not.
    ``precision_at_k([[1, 0, 1]], [[1, 1, 1]], 3) = 2/3``.
    """
    ranked, _ = _check_grades(ranked, judged, k)
    return float(((ranked > 0).sum(axis=1) / k).mean())


def recall_at_k(ranked: ArrayLike, judged: ArrayLike, k: int) -> float:
    """Share of the relevant documents that is among the first k.

    ``recall_at_k([[1, 0, 1]], [[1, 1, 1, 1]], 3) = 2/4``.
    """
    ranked, judged = _check_grades(ranked, judged, k)
    relevant_ranked = (ranked > 0).sum(axis=1)  # (Q,)
    relevant_judged = (judged > 0).sum(axis=1)  # (Q,)
    return float((relevant_ranked / relevant_judged).mean())


def mrr_at_k(ranked: ArrayLike, judged: ArrayLike, k: int) -> float:
    """Mean reciprocal rank: 1 / rank of the first relevant document, 0 if it is not in the first k.

    ``mrr_at_k([[0, 1, 1], [0, 0, 0]], [[1, 1], [1, 0]], 3) = (1/2 + 0) / 2``.
    """
    ranked, _ = _check_grades(ranked, judged, k)
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
    ranked, judged = _check_grades(ranked, judged, k)
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
    than k relevant documents.
    ``map_at_k([[1, 0, 1]], [[1, 1, 1]], 3) = (1/1 + 2/3 + 0) / 3 = 0.55556``.
    """
    ranked, judged = _check_grades(ranked, judged, k)
    relevant = ranked > 0
    ranks = 1 + np.arange(ranked.shape[1])  # (R,)
    precisions = relevant.cumsum(axis=1) / ranks  # (Q, R)
    sums = np.where(relevant, precisions, 0.0).sum(axis=1)  # (Q,)
    relevant_judged = (judged > 0).sum(axis=1)  # (Q,)
    return float((sums / relevant_judged).mean())


METRICS: dict[str, Callable[[ArrayLike, ArrayLike, int], float]] = {
    "accuracy": accuracy_at_k,
    "precision": precision_at_k,
    "recall": recall_at_k,
    "mrr": mrr_at_k,
    "ndcg": ndcg_at_k,
    "map": map_at_k,
}


def _check_grades(ranked: ArrayLike, judged: ArrayLike, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first k of ``ranked`` (Q, R), and ``judged`` (Q, J), as float64.

    Grades below 0 become 0. ``ValueError`` for numbers that are not finite, for a query without a
    relevant document, and for one with more of them ranked than judged.
    """
    ranked = np.asarray(ranked, dtype=np.float64)
    judged = np.asarray(judged, dtype=np.float64)
    for name, values in (("ranked", ranked), ("judged", judged)):
        check_shape(name, values, len(ranked), None)
        if not np.isfinite(values).all():
            raise ValueError(f"{name} must be finite")
    check_integer("k", k)
    relevant_ranked = (ranked > 0).sum(axis=1)  # (Q,)
    relevant_judged = (judged > 0).sum(axis=1)  # (Q,)
    wrong = (relevant_ranked > relevant_judged) | (relevant_judged == 0)
    if wrong.any():
        query = int(np.argmax(wrong))  # the first of them
        raise ValueError(
            f"query {query}: {relevant_ranked[query]} relevant documents ranked, "
            f"{relevant_judged[query]} judged"
        )
    return np.maximum(ranked[:, :k], 0.0), np.maximum(judged, 0.0)
