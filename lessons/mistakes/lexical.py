"""Mistakes in BM25."""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from lessons.search import bm25, fusion
from minisbert.diagnosis.mistakes import mistake

Words = Sequence[Sequence[str]]


def _scores(
    queries: Words,
    documents: Words,
    k1: float,
    b: float,
    idf: Callable[[int, int], float] = lambda total, n: math.log(1 + (total - n + 0.5) / (n + 0.5)),
    holders: Callable[[np.ndarray], float] = lambda tf: int((tf > 0).sum()),
    part: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda tf, norms: tf / (tf + norms),
    words: Callable[[Sequence[str]], Sequence[str]] = list,
) -> np.ndarray:
    """BM25 with one of its parts replaced."""
    counts = [Counter(document) for document in documents]
    lengths = np.array([len(document) for document in documents], dtype=np.float64)
    norms = k1 * (1 - b + b * lengths / lengths.mean())
    scores = np.zeros((len(queries), len(documents)))
    for row, query in enumerate(queries):
        for word in words(query):
            tf = np.array([count[word] for count in counts], dtype=np.float64)
            scores[row] += idf(len(documents), holders(tf)) * part(tf, norms)
    return scores


@mistake(bm25, "bm25_scores", "idf without the 1 +", "a word that most documents have counts against a document")
def _(queries: Words, documents: Words, k1: float = 1.2, b: float = 0.75) -> np.ndarray:
    return _scores(queries, documents, k1, b, idf=lambda total, n: math.log((total - n + 0.5) / (n + 0.5)))


@mistake(bm25, "bm25_scores", "ln(N / n)", "the idf is the plain ln(N / n), without the halves")
def _(queries: Words, documents: Words, k1: float = 1.2, b: float = 0.75) -> np.ndarray:
    return _scores(queries, documents, k1, b, idf=lambda total, n: math.log(total / max(n, 1)))


@mistake(bm25, "bm25_scores", "no idf", "a rare word counts no more than a common one")
def _(queries: Words, documents: Words, k1: float = 1.2, b: float = 0.75) -> np.ndarray:
    return _scores(queries, documents, k1, b, idf=lambda total, n: 1.0)


@mistake(bm25, "bm25_scores", "length ignored", "the length of a document plays no part")
def _(queries: Words, documents: Words, k1: float = 1.2, b: float = 0.75) -> np.ndarray:
    return _scores(queries, documents, k1, 0.0)


@mistake(bm25, "bm25_scores", "length in full", "the document's length counts in full: b is not used")
def _(queries: Words, documents: Words, k1: float = 1.2, b: float = 0.75) -> np.ndarray:
    return _scores(queries, documents, k1, 1.0)


@mistake(bm25, "bm25_scores", "k1 and b swapped", "k1 and b have changed places")
def _(queries: Words, documents: Words, k1: float = 1.2, b: float = 0.75) -> np.ndarray:
    return _scores(queries, documents, b, k1)


@mistake(bm25, "bm25_scores", "occurrences counted as documents", "n counts how often the word occurs, not in how many")
def _(queries: Words, documents: Words, k1: float = 1.2, b: float = 0.75) -> np.ndarray:
    # with more occurrences than documents the logarithm would fall below 0: as students write it, it may
    idf = lambda total, n: math.log(max(1 + (total - n + 0.5) / (n + 0.5), 1e-12))  # noqa: E731
    return _scores(queries, documents, k1, b, idf=idf, holders=lambda tf: float(tf.sum()))


@mistake(
    bm25, "bm25_scores", "(k1 + 1) in the numerator", "every score is k1 + 1 times as large: the order is the same"
)
def _(queries: Words, documents: Words, k1: float = 1.2, b: float = 0.75) -> np.ndarray:
    return _scores(queries, documents, k1, b, part=lambda tf, norms: (k1 + 1) * tf / (tf + norms))


@mistake(
    bm25, "bm25_scores", "tf not saturated", "tf is not divided by tf + ...: a word that is repeated counts in full"
)
def _(queries: Words, documents: Words, k1: float = 1.2, b: float = 0.75) -> np.ndarray:
    return _scores(queries, documents, k1, b, part=lambda tf, norms: tf / norms)


@mistake(bm25, "bm25_scores", "query words once", "a word that the query has twice counts once")
def _(queries: Words, documents: Words, k1: float = 1.2, b: float = 0.75) -> np.ndarray:
    return _scores(queries, documents, k1, b, words=lambda query: list(dict.fromkeys(query)))


@mistake(bm25, "bm25_scores", "logarithm of base 10", "the idf is in base 10")
def _(queries: Words, documents: Words, k1: float = 1.2, b: float = 0.75) -> np.ndarray:
    return _scores(queries, documents, k1, b, idf=lambda total, n: math.log10(1 + (total - n + 0.5) / (n + 0.5)))


# ------------------------------------------------------------------------------------- lesson 20


def _places(scores: np.ndarray) -> np.ndarray:
    """Each column's place from 0 on, ties by column: (Q, N)."""
    return np.argsort(-np.asarray(scores), axis=1, kind="stable").argsort(axis=1)


@mistake(fusion, "reciprocal_ranks", "order taken for ranks", "the columns from the best on are not the columns' ranks")
def _(scores: np.ndarray, k: int = 60) -> np.ndarray:
    return 1 / (k + 1 + np.argsort(-np.asarray(scores), axis=1, kind="stable"))


@mistake(fusion, "reciprocal_ranks", "reciprocal ranks from 0", "the best document has rank 0 in place of 1")
def _(scores: np.ndarray, k: int = 60) -> np.ndarray:
    return 1 / np.maximum(k + _places(scores), 1e-3)


@mistake(fusion, "reciprocal_ranks", "lowest score ranked first", "the lowest score has rank 1")
def _(scores: np.ndarray, k: int = 60) -> np.ndarray:
    return 1 / (k + 1 + _places(-np.asarray(scores)))


@mistake(fusion, "reciprocal_ranks", "ranked over all queries", "the documents of all queries are in one ranking")
def _(scores: np.ndarray, k: int = 60) -> np.ndarray:
    scores = np.asarray(scores)
    return (1 / (k + 1 + _places(scores.reshape(1, -1)))).reshape(scores.shape)


@mistake(fusion, "reciprocal_ranks", "k fixed at 60", "the k that was given is not used")
def _(scores: np.ndarray, k: int = 60) -> np.ndarray:
    return 1 / (61 + _places(scores))


@mistake(fusion, "reciprocal_ranks", "equal scores share a rank", "equal scores have one rank, the best of them")
def _(scores: np.ndarray, k: int = 60) -> np.ndarray:
    scores = np.asarray(scores)
    better = (scores[:, None, :] > scores[:, :, None]).sum(axis=2)  # (Q, N)
    return 1 / (k + 1 + better)


@mistake(fusion, "reciprocal_ranks", "ties by the last column", "of equal scores the last column is first")
def _(scores: np.ndarray, k: int = 60) -> np.ndarray:
    return 1 / (k + 1 + _places(np.asarray(scores)[:, ::-1])[:, ::-1])
