"""Golden values of metrics beyond correlation, in float64: decisions against labels, and the
geometry of vectors.

scikit-learn computes the former, at every threshold; slow loops, one pair at a time, compute the
rest by the papers' equations. This file imports nothing of minisbert.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    f1_score,
    precision_score,
    recall_score,
)
from torch import Tensor

ROWS, WIDTH = 41, 7


def inputs() -> dict[str, Tensor]:
    """Labels with more zeros than ones; scores with few ties, with many, and reversed, so that no 1
    is predicted.
    """
    generator = torch.Generator().manual_seed(11)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    labels = (torch.rand(ROWS, generator=generator) < 0.4).long()
    scores = labels + 0.8 * normal(ROWS)
    lengths = torch.linspace(0.3, 2.0, ROWS, dtype=torch.float64)[:, None]
    anchor = normal(ROWS, WIDTH) * lengths
    positive, negative = anchor + 1.5 * normal(ROWS, WIDTH), anchor + 2.5 * normal(ROWS, WIDTH)
    negative[[3, 8]] = positive[[3, 8]]  # as close as the positive
    return {
        "labels": labels,
        "predicted": (scores > 0.8).long(),
        "few_ties": (10 * scores).round() / 10,
        "many_ties": (2 * scores).round() / 2,
        "reversed": -scores,
        "anchor": anchor,
        "positive": positive,
        "negative": negative,
        # a cone: all vectors share a direction, so the mean cosine is far from 0
        "narrow": normal(ROWS, WIDTH) * lengths
        + 2 * lengths * torch.ones(WIDTH, dtype=torch.float64),
    }


def slow_threshold(
    scores: list[float], labels: list[int], score: Callable[..., float]
) -> tuple[float, float]:
    """The best cut, trying all from the highest score down; a threshold is the middle of two
    scores.
    """
    steps = sorted(set(scores), reverse=True)
    cuts = [math.nextafter(steps[0], math.inf)]
    cuts += [(above + below) / 2 for above, below in pairwise(steps)]
    cuts.append(steps[-1])
    values = [score(labels, [int(x >= cut) for x in scores]) for cut in cuts]
    return cuts[values.index(max(values))], max(values)


def unit(row: Tensor) -> list[float]:
    length = math.sqrt(math.fsum(x * x for x in row.tolist()))
    return [x / length for x in row.tolist()]


def dot(x: list[float], y: list[float]) -> float:
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def square_distance(x: list[float], y: list[float]) -> float:
    return math.fsum((a - b) ** 2 for a, b in zip(x, y, strict=True))


def more_metrics_golden() -> dict[str, Tensor]:
    """The inputs, and each metric as ``value.NAME``, the list of its numbers."""
    given = inputs()
    labels, predicted = given["labels"].tolist(), given["predicted"].tolist()
    values: dict[str, list[float]] = {
        "precision_recall_f1": [
            score(labels, predicted) for score in (precision_score, recall_score, f1_score)
        ],
    }
    for name in ("few_ties", "many_ties", "reversed"):
        for metric, score in (("f1", f1_score), ("accuracy", accuracy_score)):
            values[f"threshold.{metric}.{name}"] = list(
                slow_threshold(given[name].tolist(), labels, score)
            )
        values[f"average_precision.{name}"] = [
            average_precision_score(labels, given[name].tolist())
        ]
    anchor, positive, narrow = (
        [unit(row) for row in given[name]] for name in ("anchor", "positive", "narrow")
    )
    values["alignment"] = [
        math.fsum(square_distance(a, p) for a, p in zip(anchor, positive, strict=True)) / ROWS
    ]
    for name, vectors in (("anchor", anchor), ("narrow", narrow)):
        pairs = [(x, y) for i, x in enumerate(vectors) for j, y in enumerate(vectors) if i != j]
        closeness = math.fsum(math.exp(-2 * square_distance(x, y)) for x, y in pairs)
        values[f"uniformity.{name}"] = [math.log(closeness / len(pairs))]
        values[f"mean_cosine.{name}"] = [math.fsum(dot(x, y) for x, y in pairs) / len(pairs)]
    return given | {
        f"value.{name}": torch.tensor(value, dtype=torch.float64) for name, value in values.items()
    }
