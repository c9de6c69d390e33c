"""Two methods, run in pairs: what the gain is, and how sure."""

import numpy as np
from numpy.typing import ArrayLike

from minisbert.core.checks import check_shape


def paired_gain(a: ArrayLike, b: ArrayLike) -> tuple[float, float, float, float]:
    """How much better a is than b, of which run i shares its chances: gain, standard error, and an
    interval's ends.

    a and b (n,), n at least 2. The gain is the mean of the differences d = a - b, its error their
    standard deviation (by n - 1) over sqrt(n), and the interval reaches two errors to each side.
    ``paired_gain([70, 74, 72, 76], [69, 72, 71, 74]) = (1.5, 0.28868, 0.92265, 2.07735)``.
    """
    a = np.asarray(a, dtype=np.float64)
    b = np.asarray(b, dtype=np.float64)
    check_shape("a", a, None)
    check_shape("b", b, len(a))
    if len(a) < 2:
        raise ValueError("one pair has no spread: give at least two")
    d = a - b  # what both share is gone from it
    gain = d.mean()
    error = d.std(ddof=1) / np.sqrt(len(d))
    return float(gain), float(error), float(gain - 2 * error), float(gain + 2 * error)
