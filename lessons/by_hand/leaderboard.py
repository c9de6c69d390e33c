"""Two ways to make one number for each model of a board: what sheet 32 takes apart."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike


def mean_by_type(scores: ArrayLike, types: Sequence[str]) -> np.ndarray:
    """The mean over types of the mean over a type's tasks, for each model: (M, T) -> (M,) float64.

    ``types`` (T,) names the type of each task. A type of one task counts as much as one of twenty.
    ``mean_by_type([[80, 70, 40]], ["sts", "sts", "search"])`` is ``[57.5]``: 75 and 40.
    """
    scores = np.asarray(scores, dtype=np.float64)
    means = []
    for name in dict.fromkeys(types):
        tasks = [column for column, of_task in enumerate(types) if of_task == name]
        means.append(scores[:, tasks].mean(axis=1))
    return np.mean(means, axis=0)


def borda_counts(scores: ArrayLike) -> np.ndarray:
    """How many models each one is above, added up over all tasks: (M, T) -> (M,) int64.

    Equal scores give neither a point. ``borda_counts([[80, 40], [70, 40], [60, 50]])`` is ``[2, 1,
    2]``: the first is above two models in one task and above none in the other.
    """
    scores = np.asarray(scores)
    above = scores[:, None, :] > scores[None, :, :]  # (M, M, T), row above column
    return above.sum(axis=(1, 2))
