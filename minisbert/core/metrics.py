"""Metrics: how well scores agree with people's. Pearson's and Spearman's correlation, by hand.

Both take lists, arrays or tensors on the CPU and return a Python float. They raise ``ValueError``
where no correlation is defined: fewer than 2 values, lengths that differ, NaN or infinity, or
values that are all equal.

What the library runs: all of this chapter.
"""

import numpy as np
from numpy.typing import ArrayLike

from .checks import check_shape

__all__ = [
    "pearson",
    "ranks",
    "spearman",
]


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Pearson's r, the covariance over both standard deviations: x and y (N,) -> -1..1.

    ``pearson([1, 2, 3], [1, 2, 4]) = 0.98198``.
    """
    x, y = as_columns(x, y)
    # The factor 1 / N of the covariance and of both variances cancels.
    x = x - x.mean()
    y = y - y.mean()
    r = x @ y / np.sqrt((x @ x) * (y @ y))
    return float(np.clip(r, -1.0, 1.0))  # rounding may give 1 + 2e-16


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's rho: Pearson's r of the ranks; equal values share the mean of their ranks.

    ``spearman([1, 2, 3], [1, 2, 400]) = 1.0``, ``spearman([1, 1, 2], [1, 2, 3]) = 0.86603``.
    """
    x, y = as_columns(x, y)
    return pearson(ranks(x), ranks(y))


def as_columns(x: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Both as float64 arrays (N,), of which a correlation is defined."""
    x = np.asarray(x, dtype=np.float64)
    y = np.asarray(y, dtype=np.float64)
    check_shape("x", x, None)  # one dimension, of any size but 0
    check_shape("y", y, len(x))
    # A single value is refused, too: it is its own smallest and largest.
    for name, values in (("x", x), ("y", y)):
        if not np.isfinite(values).all() or values.min() == values.max():
            raise ValueError(f"{name} must be finite and not constant")
    return x, y


def ranks(x: ArrayLike) -> np.ndarray:
    """Ranks from 1, equal values share the mean of theirs: x (N,) -> (N,) float64.

    ``ranks([30, 10, 10, 20]) = [4, 1.5, 1.5, 3]``.
    """
    # Equal values are a group, and the groups are numbered from the smallest value on.
    # ``group`` (N,) is the group of each value, ``count`` the size of each group.
    _, group, count = np.unique(np.asarray(x), return_inverse=True, return_counts=True)
    last = np.cumsum(count)  # rank of the last member of each group of equal values
    middle = last - (count - 1) / 2.0  # subtle: the middle of a group's ranks, not its first
    return middle[group]
