"""Thresholds and bad input of decisions; ``parity/metrics.py`` has their values."""

import math

import numpy as np
import pytest

from minisbert.evaluation.metrics import average_precision, best_threshold, precision_recall_f1


def test_nothing_predicted_has_precision_0():
    assert precision_recall_f1([0, 0], [1, 0]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("scores", "labels", "metric", "expected"),
    [
        ([0.9, 0.8, 0.8, 0.1], [1, 1, 0, 0], "f1", (0.45, 0.8)),  # 2 of 3 are right: 4 / 5
        # It is as good as 0.45; the higher one wins.
        ([0.9, 0.8, 0.8, 0.1], [1, 1, 0, 0], "accuracy", (0.85, 0.75)),
        # The only cuts are below and above all.
        ([5, 5, 5], [0, 1, 1], "f1", (5, 0.8)),
        # It is best to call nothing 1.
        ([4, 3, 2, 1], [0, 0, 0, 1], "accuracy", (math.nextafter(4, 5), 0.75)),
        ([7], [0], "accuracy", (math.nextafter(7, 8), 1.0)),
        # The middle must not overflow.
        ([2.0**1023, 1.5 * 2.0**1023], [0, 1], "f1", (1.25 * 2.0**1023, 1.0)),
    ],
)
def test_best_threshold_by_hand(scores, labels, metric, expected):
    assert best_threshold(scores, labels, metric) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("upper_label", [0, 1])
def test_a_threshold_between_adjacent_floats(dtype, upper_label):
    """Scores compared in their own precision or in double fall on the same side."""
    low = dtype(0.7)
    scores = np.array([low, np.nextafter(low, dtype(1))])
    labels = np.array([1 - upper_label, upper_label])
    threshold, value = best_threshold(scores, labels, "accuracy")
    assert value == (1.0 if upper_label else 0.5)
    assert ((scores >= threshold) == labels).mean() == value
    assert ((scores.astype(np.float64) >= threshold) == labels).mean() == value
    assert ((scores >= dtype(threshold)) == labels).mean() == value


@pytest.mark.parametrize(
    ("metric", "values", "message"),
    [
        (precision_recall_f1, ([1, 2], [1, 0]), "predicted"),
        (precision_recall_f1, ([1, 0], [0, 0]), "label"),
        (average_precision, ([0.5, math.nan], [0, 1]), "scores"),
        (best_threshold, ([0.1, 0.2], [0, 0]), "label"),
        (best_threshold, ([0.1, 0.2], [0, 1], "recall"), "recall"),
    ],
)
def test_input_without_a_defined_score_is_refused(metric, values, message):
    with pytest.raises(ValueError, match=message):
        metric(*values)
