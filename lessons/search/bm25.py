"""BM25: a search engine by words alone, the baseline that every vector has to beat."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np


def bm25_scores(
    queries: Sequence[Sequence[str]],
    documents: Sequence[Sequence[str]],
    k1: float = 1.2,
    b: float = 0.75,
) -> np.ndarray:
    """How well each document fits each query: both lists of words -> (Q, N) float64.

    The sum over the words of the query, one that occurs twice counting twice, of

        idf * tf / (tf + k1 * (1 - b + b * length / mean length))
        idf = ln(1 + (N - n + 0.5) / (n + 0.5))

    where tf is how often the document has the word and n the number of documents that have it
    (Robertson & Zaragoza 2009, equations 3.3 and 3.15, with Lucene's 1 + inside the logarithm). A
    word that no document has adds nothing. ``bm25_scores([["cat"]], [["cat"], ["a", "dog"]])`` is
    ``[[0.36481, 0]]``: ln 2 / (1 + 0.9), and nothing.
    """
    counts = [Counter(document) for document in documents]
    lengths = np.array([len(document) for document in documents], dtype=np.float64)  # (N,)
    norms = k1 * (1 - b + b * lengths / lengths.mean())  # (N,), k1 for a document of average length
    added = {}
    for word in set().union(*queries):
        tf = np.array([count[word] for count in counts])  # (N,)
        n = int((tf > 0).sum())
        # subtle: with the 1 + a word that most documents have still adds a little; without it, it
        # would count against them
        idf = math.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
        added[word] = idf * tf / (tf + norms)  # (N,)
    scores = np.zeros((len(queries), len(documents)))  # (Q, N)
    for row, query in zip(scores, queries, strict=True):
        for word in query:
            row += added[word]
    return scores
