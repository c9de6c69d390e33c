"""How good a ranking is if each query has one right document, and how sure that is."""

from collections.abc import Sequence

import numpy as np

from minisbert.evaluation.metrics import dcg

DRAWS = 1000


def grades(found: np.ndarray, right: np.ndarray) -> np.ndarray:
    """1 where a query found its document: rows of documents (Q, R), right (Q,) -> (Q, R)."""
    return (found == right[:, None]).astype(np.int64)


def ndcg_of_each(found: np.ndarray, right: np.ndarray, k: int = 10) -> np.ndarray:
    """The nDCG@k of each query, (Q,): 1 / log2(rank + 1), for the best possible DCG of one document
    is 1.

    Its mean is that of ``ndcg_at_k``. ``found = [[7, 3], [4, 5]]``, ``right = [3, 9]`` gives 1 /
    log2(3) and 0.
    """
    return dcg(grades(found, right)[:, :k])


def interval(values: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """95 % of the means of (Q,) values lie in it, if the queries are drawn again with replacement
    (lesson 09).
    """
    rows = np.random.default_rng(seed).integers(len(values), size=(DRAWS, len(values)))
    low, high = np.percentile(values[rows].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def interval_over_groups(
    values: np.ndarray, groups: Sequence[str], seed: int = 0
) -> tuple[float, float]:
    """The same if whole groups of queries are drawn again: ``groups`` (Q,) names each one's.

    Queries of one module are hard or easy together, so this interval is the wider one (lesson 18).
    """
    _, group = np.unique(groups, return_inverse=True)  # (Q,), numbers from 0
    sums = np.bincount(group, weights=values)
    counts = np.bincount(group)
    draws = np.random.default_rng(seed).integers(len(sums), size=(DRAWS, len(sums)))
    means = sums[draws].sum(axis=1) / counts[draws].sum(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
