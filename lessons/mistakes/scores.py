"""Mistakes in metrics."""

from typing import Any

import numpy as np

from lessons.by_hand import geometry
from lessons.mistakes.planting import mistake
from minisbert.core import metrics

# the right versions, kept from before anything is planted: a stand-in may call what it replaces
_pearson = metrics.pearson

# ------------------------------------------------------------------------------------------ metrics


@mistake(
    metrics,
    "ranks",
    "Spearman without tie handling",
    "equal values get different ranks, in order of appearance",
)
def _(x: Any) -> np.ndarray:
    return np.argsort(np.argsort(np.asarray(x), kind="stable")).astype(np.float64) + 1


@mistake(
    metrics, "pearson", "Pearson not centred", "the means are not subtracted: that is a cosine"
)
def _(x: Any, y: Any) -> float:
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


@mistake(
    metrics,
    "ranks",
    "first place of a value",
    "equal values all get the first of their ranks, not the mean",
)
def _(x: Any) -> np.ndarray:
    return np.searchsorted(np.sort(x), x) + 1.0


@mistake(
    metrics,
    "ranks",
    "argsort for ranks",
    "argsort says which value comes first, second, ..., not who is where",
)
def _(x: Any) -> np.ndarray:
    return np.argsort(x) + 1.0


@mistake(
    metrics,
    "spearman",
    "1 - 6 sum of d^2",
    "that short form is right only if no two values are equal",
)
def _(x: Any, y: Any) -> float:
    d, n = metrics.ranks(x) - metrics.ranks(y), len(x)
    return float(1 - 6 * (d**2).sum() / (n * (n**2 - 1)))


@mistake(
    metrics,
    "pearson",
    "two divisors",
    "the covariance divides by n, the deviations (ddof=1) by n - 1",
)
def _(x: Any, y: Any) -> float:
    return _pearson(x, y) * (1 - 1 / len(x))


@mistake(
    geometry, "alignment", "alignment not squared", "the distances are averaged, not their squares"
)
def _(u: Any, v: Any) -> float:
    return float(np.linalg.norm(_unit(u) - _unit(v), axis=1).mean())


@mistake(
    geometry, "alignment", "alignment off the sphere", "the vectors are not scaled to length 1"
)
def _(u: Any, v: Any) -> float:
    return float(((np.asarray(u, dtype=np.float64) - np.asarray(v)) ** 2).sum(1).mean())


def _closeness(x: np.ndarray, t: float = 2.0) -> np.ndarray:
    """exp(-t ||x - y||^2) of all pairs of rows: x (N, D) -> (N, N)."""
    return np.exp(-t * ((x[:, None] - x) ** 2).sum(-1))


@mistake(
    geometry,
    "uniformity",
    "uniformity with the diagonal",
    "each vector is paired with itself, at distance 0",
)
def _(x: Any) -> float:
    return float(np.log(_closeness(_unit(x)).mean()))


@mistake(
    geometry,
    "uniformity",
    "uniformity with t = 1",
    "the squared distance is not doubled in the exponent",
)
def _(x: Any) -> float:
    return float(np.log(_closeness(_unit(x), t=1.0)[~np.eye(len(x), dtype=bool)].mean()))


@mistake(geometry, "uniformity", "mean of logs", "the log is taken of each pair, not of the mean")
def _(x: Any) -> float:
    return float(np.log(_closeness(_unit(x)))[~np.eye(len(x), dtype=bool)].mean())


@mistake(
    geometry,
    "mean_off_diagonal_cosine",
    "cosine with the diagonal",
    "each row's cosine with itself counts",
)
def _(x: Any) -> float:
    return float((_unit(x) @ _unit(x).T).mean())


def _unit(x: Any) -> np.ndarray:
    """Rows scaled to length 1: (N, D)."""
    x = np.asarray(x, dtype=np.float64)
    return x / np.linalg.norm(x, axis=1, keepdims=True)
