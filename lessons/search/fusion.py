"""Two rankings as one: what lesson 20 adds up."""

import numpy as np


def reciprocal_ranks(scores: np.ndarray, k: int = 60) -> np.ndarray:
    """1 / (k + rank) of each document for each query: scores (Q, N) -> (Q, N) float64.

    The highest score of a row has rank 1, equal ones are ranked by column. The sum over several
    engines is reciprocal rank fusion (Cormack, Clarke and Büttcher 2009), which needs no common
    unit of their scores. ``reciprocal_ranks([[9, 5, 1]])`` is ``[[1/61, 1/62, 1/63]]``.
    """
    # subtle: the order of the columns is not their ranks: the ranks are its inverse
    falling = -np.asarray(scores)
    order = np.argsort(falling, axis=1, kind="stable")  # (Q, N), columns from the best on
    ranks = np.empty(order.shape)
    np.put_along_axis(ranks, order, np.arange(1, order.shape[1] + 1)[None], axis=1)
    return 1 / (k + ranks)
