"""The texts of lessons 17 and 27, and what a saving costs: Spearman and neighbours."""

from collections.abc import Callable

import numpy as np

from minisbert.core import metrics
from minisbert.data.rows import load_scored_pairs
from minisbert.search.dense import top_k

pairs = load_scored_pairs("stsb", "test")[::2]
texts = []
for pair in pairs:
    texts += [pair.sentence1, pair.sentence2]
corpus = list(dict.fromkeys(texts))
queries = list(dict.fromkeys(pair.sentence1 for pair in load_scored_pairs("stsb", "dev")))[:300]
row = {text: i for i, text in enumerate(corpus)}
first = np.array([row[pair.sentence1] for pair in pairs])  # rows of the corpus
second = np.array([row[pair.sentence2] for pair in pairs])
people = np.array([pair.score for pair in pairs])  # their scores


def recall_of(exact: np.ndarray) -> Callable[[np.ndarray], float]:
    """A function of found (Q, 10): the share of the exact ten nearest, (Q, 10), that are found."""

    def recall(found: np.ndarray) -> float:
        shares = [len({*a} & {*b}) / 10 for a, b in zip(found, exact, strict=True)]
        return np.mean(shares)

    return recall


def spearman(c: np.ndarray) -> float:
    """Of the pairs' cosines with the scores people gave, times 100: c (N, any)."""
    c = c / np.linalg.norm(c, axis=1, keepdims=True)
    return 100 * metrics.spearman((c[first] * c[second]).sum(1), people)


def ten_nearest(q: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The rows of the ten nearest of a corpus c (N, D) for each query of q (Q, D): (Q, 10)."""
    return top_k(q, c, 10)[1]
