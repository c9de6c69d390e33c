"""Metrics of retrieval: how well a ranking puts the relevant documents of a query first.

Q queries. ``ranked`` (Q, R) holds the grades of the documents that were retrieved, the best first: 0 for a document
that is not relevant or was not judged. ``judged`` (Q, J) holds the grades of all judged documents of each query, in
any order, filled up with 0. A grade above 0 means relevant; only nDCG reads how large it is. All functions look at the
first ``k`` documents, take lists, arrays or tensors, and return the mean over the queries as a Python float. They raise
``ValueError`` for input for which the metric is not defined, such as a query without a relevant document.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from minisbert.core.checks import check


def accuracy_at_k(ranked: ArrayLike, judged: ArrayLike, k: int) -> float:
    """Share of the queries with a relevant document among the first k.

    ``accuracy_at_k([[0, 1], [0, 0]], [[1], [1]], 2) = 1/2``.
    """
    ranked, _ = _check(ranked, judged, k)
    return float((ranked > 0).any(axis=1).mean())


def precision_at_k(ranked: ArrayLike, judged: ArrayLike, k: int) -> float:
    """Share of the first k that is relevant; a ranking shorter than k is filled up with documents that are not.

    ``precision_at_k([[1, 0, 1]], [[1, 1, 1]], 3) = 2/3``.
    """
    ranked, _ = _check(ranked, judged, k)
    return float(((ranked > 0).sum(axis=1) / k).mean())


def recall_at_k(ranked: ArrayLike, judged: ArrayLike, k: int) -> float:
    """Share of the relevant documents that is among the first k.

    ``recall_at_k([[1, 0, 1]], [[1, 1, 1, 1]], 3) = 2/4``.
    """
    ranked, judged = _check(ranked, judged, k)
    return float(((ranked > 0).sum(axis=1) / (judged > 0).sum(axis=1)).mean())


def mrr_at_k(ranked: ArrayLike, judged: ArrayLike, k: int) -> float:
    """Mean reciprocal rank: 1 / rank of the first relevant document, 0 if there is none among the first k.

    ``mrr_at_k([[0, 1, 1], [0, 0, 0]], [[1, 1], [1, 0]], 3) = (1/2 + 0) / 2``.
    """
    ranked, _ = _check(ranked, judged, k)
    relevant = ranked > 0
    # subtle: argmax is 0 for a query without a relevant document too; it counts as 0 and stays in the mean
    return float(np.where(relevant.any(axis=1), 1 / (1 + relevant.argmax(axis=1)), 0.0).mean())


def ndcg_at_k(ranked: ArrayLike, judged: ArrayLike, k: int) -> float:
    """Normalised discounted cumulative gain: the DCG of the first k, divided by that of the best possible ranking.

    Järvelin & Kekäläinen 2002 with the grade itself as gain, as trec_eval and BEIR have it (not 2^grade - 1).
    ``ndcg_at_k([[1, 0, 2]], [[2, 1]], 3) = (1 + 2/2) / (2 + 1/1.58496) = 0.76019``.
    """
    ranked, judged = _check(ranked, judged, k)
    best = -np.sort(-judged, axis=1)[:, :k]  # subtle: of all judged documents, retrieved or not
    return float((dcg(ranked) / dcg(best)).mean())


def dcg(grades: ArrayLike) -> np.ndarray:
    """Discounted cumulative gain: the sum of grade / log2(rank + 1), ranks from 1. grades (Q, R) -> (Q,).

    ``dcg([[1, 0, 2]]) = [1/1 + 0 + 2/2] = [2]``.
    """
    grades = np.asarray(grades, dtype=np.float64)
    return (grades / np.log2(np.arange(grades.shape[1]) + 2)).sum(axis=1)


def map_at_k(ranked: ArrayLike, judged: ArrayLike, k: int) -> float:
    """Mean average precision: the precision at the rank of each relevant document, summed, divided by their number.

    A relevant document that is not among the first k adds 0, as in trec_eval's map_cut. sentence-transformers divides
    by ``min(k, relevant)``, which differs only for queries with more than k relevant documents.
    ``map_at_k([[1, 0, 1]], [[1, 1, 1]], 3) = (1/1 + 2/3 + 0) / 3 = 0.55556``.
    """
    ranked, judged = _check(ranked, judged, k)
    relevant = ranked > 0
    precisions = relevant.cumsum(axis=1) / (1 + np.arange(ranked.shape[1]))  # (Q, R), at every rank
    return float(((relevant * precisions).sum(axis=1) / (judged > 0).sum(axis=1)).mean())


METRICS: dict[str, Callable[[ArrayLike, ArrayLike, int], float]] = {
    "accuracy": accuracy_at_k,
    "precision": precision_at_k,
    "recall": recall_at_k,
    "mrr": mrr_at_k,
    "ndcg": ndcg_at_k,
    "map": map_at_k,
}


def _check(ranked: ArrayLike, judged: ArrayLike, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The first k of ``ranked`` (Q, R), and ``judged`` (Q, J): grades in float64, those below 0 as 0."""
    ranked, judged = np.asarray(ranked, dtype=np.float64), np.asarray(judged, dtype=np.float64)
    check("ranked (Q, R) finite, judged (Q, J) finite, k an integer from 1", ranked, judged, k)
    found, relevant = (ranked > 0).sum(axis=1), (judged > 0).sum(axis=1)
    if (wrong := (found > relevant) | (relevant == 0)).any():
        query = int(np.argmax(wrong))
        raise ValueError(f"query {query}: {found[query]} relevant documents ranked, {relevant[query]} judged")
    return np.maximum(ranked[:, :k], 0.0), np.maximum(judged, 0.0)
