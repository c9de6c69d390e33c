"""Decisions and geometry against hand-worked values and slow independent versions."""

import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from minisbert.evaluation import metrics as more_metrics
from minisbert.evaluation.metrics import (
    accuracy,
    alignment,
    average_precision,
    best_threshold,
    mean_off_diagonal_cosine,
    precision_recall_f1,
    uniformity,
)
from tests.core.test_metrics import few_values, numbers

# ----------------------------------------------------------------------------------------- decisions


zeros_and_ones = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40)


@given(zeros_and_ones)
def test_f1_is_the_harmonic_mean_of_shares_counted_one_by_one(rows):
    predicted, labels = zip(*rows, strict=True)
    assume(any(labels))
    assert accuracy(predicted, torch.tensor(labels)) == sum(a == b for a, b in rows) / len(rows)
    precision, recall, f1 = precision_recall_f1(predicted, labels)
    among_predicted = [label for call, label in rows if call]
    among_labels = [call for call, label in rows if label]
    assert precision == (sum(among_predicted) / len(among_predicted) if among_predicted else 0)
    assert recall == sum(among_labels) / len(among_labels)
    assert f1 == pytest.approx(2 / (1 / precision + 1 / recall) if precision and recall else 0, abs=1e-15)


@pytest.mark.parametrize(
    ("scores", "labels", "metric", "expected"),
    [
        ([0.9, 0.8, 0.8, 0.1], [1, 1, 0, 0], "f1", (0.45, 0.8)),  # 2 of 3 are right: 4 / 5
        ([0.9, 0.8, 0.8, 0.1], [1, 1, 0, 0], "accuracy", (0.85, 0.75)),  # as good as 0.45; the higher one wins
        ([5, 5, 5], [0, 1, 1], "f1", (5, 0.8)),  # the only cuts are all and nothing
        ([4, 3, 2, 1], [0, 0, 0, 1], "accuracy", (math.nextafter(4, 5), 0.75)),  # best to call nothing 1
        ([7], [0], "accuracy", (math.nextafter(7, 8), 1.0)),
        ([2.0**1023, 1.5 * 2.0**1023], [0, 1], "f1", (1.25 * 2.0**1023, 1.0)),  # the middle does not overflow
    ],
)
def test_best_threshold_by_hand(scores, labels, metric, expected):
    assert best_threshold(scores, labels, metric) == pytest.approx(expected, abs=1e-15)


def slow_f1(predicted: list[bool], labels: list[int]) -> float:
    both = sum(a and b for a, b in zip(predicted, labels, strict=True))
    return 2 * both / (sum(predicted) + sum(labels))


def slow_accuracy(predicted: list[bool], labels: list[int]) -> float:
    return sum(a == b for a, b in zip(predicted, labels, strict=True)) / len(labels)


@given(
    rows=st.lists(st.tuples(few_values | numbers, st.integers(0, 1)), min_size=1, max_size=30),
    metric=st.sampled_from(["f1", "accuracy"]),
    shift=st.integers(0, 29),
)
def test_no_threshold_is_better_than_the_best(rows, metric, shift):
    scores, labels = map(list, zip(*rows, strict=True))
    assume(metric == "accuracy" or any(labels))
    slow = slow_f1 if metric == "f1" else slow_accuracy
    threshold, value = best_threshold(scores, labels, metric)
    assert slow([score >= threshold for score in scores], labels) == pytest.approx(value, abs=1e-15)
    for cut in [*scores, max(scores) + 1]:  # one for each possible cut
        found = slow([score >= cut for score in scores], labels)
        assert found <= value + 1e-15
        higher = any(threshold <= score < cut for score in scores)  # calls fewer rows 1 than the threshold does
        assert not higher or found < value - 1e-15
    order = [(i + shift) % len(rows) for i in range(len(rows))]
    assert best_threshold([scores[i] for i in order], [labels[i] for i in order], metric) == (threshold, value)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("upper_label", [0, 1])
def test_a_threshold_between_adjacent_floats(dtype, upper_label):
    """Scores compared in their own precision or in double fall on the same side."""
    low = dtype(0.7)
    scores, labels = np.array([low, np.nextafter(low, dtype(1))]), np.array([1 - upper_label, upper_label])
    threshold, value = best_threshold(scores, labels, "accuracy")
    for called in (scores >= threshold, scores.astype(np.float64) >= threshold, scores >= dtype(threshold)):
        assert (called == labels).mean() == value
    assert value == (1.0 if upper_label else 0.5)


ONES = np.ones((3, 2))


@pytest.mark.parametrize(
    ("metric", "values", "message"),
    [
        (accuracy, ([1, 0], [1]), "labels"),
        (accuracy, ([1, 0.7], [1, 0]), "predicted"),
        (precision_recall_f1, ([1, 2], [1, 0]), "predicted"),
        (precision_recall_f1, ([1, 0], [0, 0]), "label"),
        (average_precision, ([0.5, math.nan], [0, 1]), "scores"),
        (best_threshold, ([0.1, 0.2], [0, 0]), "label"),
        (best_threshold, ([0.1, 0.2], [0, 1], "recall"), "recall"),
        (alignment, ([[1, 0]], [[0, 0]]), "row 0"),
        (alignment, (ONES[:1], np.ones((1, 3))), "v"),
        (uniformity, (ONES[:1],), "pairs"),
        (mean_off_diagonal_cosine, (ONES[:1],), "pairs"),
    ],
)
def test_input_without_a_defined_score_is_refused(metric, values, message):
    with pytest.raises(ValueError, match=message):
        metric(*values)


# ------------------------------------------------------------------------------------------ geometry

vectors = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).normal(size=(2, 9, 4)))


def slow_cosine(x: np.ndarray, y: np.ndarray) -> float:
    lengths = math.sqrt(math.fsum(a * a for a in x)) * math.sqrt(math.fsum(a * a for a in y))
    return math.fsum(a * b for a, b in zip(x, y, strict=True)) / lengths


@given(vectors, st.integers(2, 9), st.sampled_from([1, 2, 5, 256]))
def test_geometry_equals_the_slow_versions(two, count, block):
    a, p = two[:, :count]
    cosines = [slow_cosine(x, y) for i, x in enumerate(a) for j, y in enumerate(a) if i != j]
    spread = math.log(math.fsum(math.exp(-2 * (2 - 2 * c)) for c in cosines) / len(cosines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(more_metrics, "CHUNK", block)
        assert uniformity(a) == pytest.approx(spread, abs=1e-13)
    assert mean_off_diagonal_cosine(a) == pytest.approx(math.fsum(cosines) / len(cosines), abs=1e-14)
    near = [slow_cosine(x, y) for x, y in zip(a, p, strict=True)]
    assert alignment(a, p) == pytest.approx(2 - 2 * math.fsum(near) / count, abs=1e-14)


def test_uniformity_needs_little_memory():
    """4,000 rows: the matrix of all pairs would take 128 MB, and their differences 64 times that."""
    x = torch.nn.functional.normalize(torch.randn(4000, 64, generator=torch.Generator().manual_seed(0)), dim=1)
    tracemalloc.start()
    found = uniformity(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6
    assert found == pytest.approx(-4 + 8 / 64, abs=0.02)  # log E exp(4 cos - 4), cos of variance 1 / 64
    assert mean_off_diagonal_cosine(x) == pytest.approx(0.0, abs=0.001)
