"""Two stages: a cheap search finds candidates, and a cross-encoder, which reads both texts at once, sorts them."""

from collections.abc import Callable, Sequence

import numpy as np

from minisbert.core import InputError
from minisbert.models.pair_model import PairModel

Search = Callable[..., tuple[np.ndarray, np.ndarray]]  # queries, corpus, k, progress -> scores and indices, (Q, k) each


def rerank(
    model: PairModel, queries: Sequence[str], texts: Sequence[str], indices: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The candidates (Q, C) sorted by the model's scores of query and text, ties as they were: scores and indices.

    Raises ``InputError`` for a model of classes, which has no score for a pair.
    """
    firsts = [query for query, row in zip(queries, indices, strict=True) for _ in row]
    scores = model.scores(firsts, [texts[i] for i in indices.flatten()], show_progress_bar=True)
    if scores.ndim > 1:
        raise InputError("reranking needs a model with one score for a pair, not one of classes")
    scores = scores.reshape(indices.shape)
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(indices, order, axis=1)


def two_stage_search(
    search: Search, model: PairModel, queries: Sequence[str], texts: Sequence[str], candidates: int
) -> Search:
    """A search by vectors whose best ``candidates`` texts for each query are sorted by ``model``; the others follow."""

    def both(query_vectors: np.ndarray, corpus: np.ndarray, k: int, progress: bool) -> tuple[np.ndarray, np.ndarray]:
        scores, indices = search(query_vectors, corpus, k, progress)
        scores[:, :candidates], indices[:, :candidates] = rerank(model, queries, texts, indices[:, :candidates])
        return scores, indices

    return both
