"""Where vectors lie on the sphere: alignment, uniformity, mean cosine; lists or tensors."""

import numpy as np
import torch
from numpy.typing import ArrayLike

from minisbert.core.checks import check_integer, check_shape
from minisbert.core.encoder import normalize


def alignment(u: ArrayLike, v: ArrayLike) -> float:
    """Measure how close positive pairs are: mean of ||u - v||^2 on the unit sphere (Wang & Isola
    2020, section 4.1).

    u and v (N, D), each row scaled to length 1 first. 0 is best, 4 is worst; it is 2 - 2 * the mean
    cosine. ``u = [[1, 0], [0, 2]], v = [[1, 0], [1, 1]]`` gives (0 + 0.58579) / 2 = 0.29289.
    """
    u = _directions("u", u)
    v = _directions("v", v)
    check_shape("u", u, None, None)
    check_shape("v", v, *u.shape)
    return float(((u - v) ** 2).sum(1).mean())


def uniformity(x: ArrayLike) -> float:
    """Measure how evenly vectors are spread: log of the mean of exp(-2 ||x - y||^2) over all pairs
    of different rows.

    Wang & Isola 2020, section 4.1, with t = 2. x (N, D), N >= 2, each row scaled to length 1 first.
    Lower is better: 0 if all directions are the same, about -4 for an even spread over a sphere of
    many dimensions. ``[[1, 0], [0, 1], [-1, 0]]`` gives log((2 exp(-4) + exp(-8)) / 3) = -4.39635.
    """
    x = _directions("x", x)
    check_integer("pairs", len(x) * (len(x) - 1) // 2)
    # above the diagonal each pair occurs once, and no row meets itself
    cosines = (x @ x.T)[np.triu_indices(len(x), k=1)]  # (N (N - 1) / 2,)
    return float(np.log(np.exp(4 * cosines - 4).mean()))  # -2 ||x - y||^2 = -2 (2 - 2 cos)


def mean_off_diagonal_cosine(x: ArrayLike) -> float:
    """Mean cosine of all pairs of different rows, N >= 2: x (N, D). Near 0: all directions are
    used; near 1: one cone.

    For unit vectors the sum over all pairs is ||sum of x||^2, of which each row with itself
    contributes 1. ``[[1, 0], [0, 1], [1, 1]]`` gives (0 + 0.70711 + 0.70711) / 3 = 0.47140.
    """
    x = _directions("x", x)
    check_integer("pairs", len(x) * (len(x) - 1) // 2)
    total = x.sum(0)  # (D,)
    return float((total @ total - (x * x).sum()) / (len(x) * (len(x) - 1)))


def _directions(name: str, values: ArrayLike) -> np.ndarray:
    """(N, D) -> float64 rows of length 1."""
    rows = np.asarray(values, dtype=np.float64)
    check_shape(name, rows, None, None)
    rows = normalize(torch.from_numpy(rows)).numpy()
    without = ~((rows * rows).sum(1) > 0.5)
    if without.any():
        row = int(np.argmax(without))
        reason = f"row {row} is zero, or not finite when it is squared"
        raise ValueError(f"{name} has a row without a direction: {reason}")
    return rows
