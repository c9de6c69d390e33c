"""Metrics: correlations, decisions, geometry and retrieval, beside golden files and sums by hand.

The golden values come from ``reference/make_reference.py`` and ``reference/metrics_reference.py``.
"""

from collections.abc import Callable, Iterator
from functools import partial
from math import log2

import numpy as np
import torch

from lessons.by_hand import geometry as sphere
from minisbert.core import metrics
from minisbert.evaluation import metrics as more_metrics
from tests.parity import PIECE, Comparison, compare, golden
from tests.parity.comparison import double, normal

# ------------------------------------------------------------------------------------- correlations


def correlations() -> Iterator[Comparison]:
    """Pearson and Spearman with many ties, few ties and none."""
    reference = golden("metrics")
    for name in ("ties", "few_ties", "no_ties"):
        x = reference[f"{name}.x"].numpy()
        y = reference[f"{name}.y"].numpy()
        for kind, metric in (("pearson", metrics.pearson), ("spearman", metrics.spearman)):
            value = double([metric(x, y)])
            yield compare(f"{kind}, {name}", value, reference[f"{name}.{kind}"], PIECE)


def ranks() -> Iterator[Comparison]:
    """1 plus the number of smaller values, plus half a rank for each other equal value.

    The ranks in order, and the mean rank of equal values: together they are right only if every
    rank is, and neither depends on how a sort orders equal values.
    """
    for name, x in (
        ("ties", normal(40, scale=2.0).detach().round()),
        ("no ties", normal(9, seed=1).detach()),
    ):
        smaller = (x < x[:, None]).sum(1)
        equal = (x == x[:, None]).double()
        expected = 1 + smaller + (equal.sum(1) - 1) / 2
        found = torch.tensor(np.array(metrics.ranks(x.numpy())))
        yield compare(f"ranks, {name}, sorted", found.sort().values, expected.sort().values, PIECE)
        mean = equal.to(found.dtype) @ found / equal.sum(1).to(found.dtype)
        yield compare(f"ranks, {name}, mean of equal values", mean, expected, PIECE)


# --------------------------------------------------------------------------- decisions and geometry


def with_golden(
    name: str, metric: Callable[..., float | tuple[float, ...]], *inputs: str
) -> Comparison:
    """One metric of the named golden inputs against its golden value or values."""
    reference = golden("classification_metrics")
    found = metric(*(reference[key].numpy() for key in inputs))
    if not isinstance(found, tuple):
        found = (found,)
    return compare(name, double(found), reference[f"value.{name}"], PIECE)


def decisions() -> Iterator[Comparison]:
    """Precision, recall and F1."""
    metric = more_metrics.precision_recall_f1
    yield with_golden("precision_recall_f1", metric, "predicted", "labels")


def thresholds() -> Iterator[Comparison]:
    """The best threshold and its value, and average precision.

    With few ties, with many, and where no 1 at all is best.
    """
    for name in ("few_ties", "many_ties", "reversed"):
        average = more_metrics.average_precision
        yield with_golden(f"average_precision.{name}", average, name, "labels")
        for metric in ("f1", "accuracy"):
            best = partial(more_metrics.best_threshold, metric=metric)
            yield with_golden(f"threshold.{metric}.{name}", best, name, "labels")


def geometry() -> Iterator[Comparison]:
    """Alignment, uniformity and mean cosine of vectors with many different norms."""
    yield with_golden("alignment", sphere.alignment, "anchor", "positive")
    for name in ("anchor", "narrow"):
        yield with_golden(f"uniformity.{name}", sphere.uniformity, name)
        yield with_golden(f"mean_cosine.{name}", sphere.mean_off_diagonal_cosine, name)


# ---------------------------------------------------------------------------------------- retrieval

# Four queries: with 3, 1, 1 and 4 relevant documents. Nothing is among the first three for the
# third one.
RANKED = [[0, 1, 0, 2, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 2], [3, 0, 1, 1, 0]]
# in the order of a file, filled up with 0
JUDGED = [[1, 2, 0, 3], [1, 0, 0, 0], [0, 2, 0, 0], [1, 1, 1, 3]]
FIRST = 3 + 2 / log2(3) + 1 / 2  # the best DCG at 3: of 3, 2, 1
LAST = 3 + 1 / log2(3) + 1 / 2  # and of 3, 1, 1
BY_HAND = {  # a term for each query, at k = 3, and at k = 6, beyond the end of the rankings
    "accuracy": ([1, 1, 0, 1], [1, 1, 1, 1]),
    "precision": ([1 / 3, 1 / 3, 0, 2 / 3], [2 / 6, 1 / 6, 1 / 6, 3 / 6]),
    "recall": ([1 / 3, 1, 0, 2 / 4], [2 / 3, 1, 1, 3 / 4]),
    "mrr": ([1 / 2, 1, 0, 1], [1 / 2, 1, 1 / 5, 1]),
    "ndcg": (
        [1 / log2(3) / FIRST, 1, 0, (3 + 1 / 2) / LAST],
        [
            (1 / log2(3) + 2 / log2(5)) / FIRST,
            1,
            1 / log2(6),
            (3 + 1 / 2 + 1 / log2(5)) / (LAST + 1 / log2(5)),
        ],
    ),
    "map": (
        [1 / 2 / 3, 1, 0, (1 + 2 / 3) / 4],
        [(1 / 2 + 2 / 4) / 3, 1, 1 / 5, (1 + 2 / 3 + 3 / 4) / 4],
    ),
}


def retrieval() -> Iterator[Comparison]:
    """Accuracy, precision, recall, MRR, nDCG and MAP at k, worked by hand."""
    for name, (at_3, at_6) in BY_HAND.items():
        for k, terms in ((3, at_3), (6, at_6)):
            found = double(more_metrics.METRICS[name](RANKED, JUDGED, k))
            yield compare(f"{name}@{k}", found, double(sum(terms) / 4), PIECE)
