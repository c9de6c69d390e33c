"""Correlations against slow independent versions; their worked values are in the grader's cases."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from minisbert.core.metrics import pearson, ranks, spearman

numbers = st.floats(-1e3, 1e3).map(lambda x: round(x, 3))
few_values = st.integers(-2, 2).map(float)  # mostly ties


def two_lists(values):
    pairs = st.lists(st.tuples(values, values), min_size=2, max_size=30)
    return pairs.map(lambda rows: tuple(map(list, zip(*rows, strict=True)))).filter(
        lambda lists: all(len(set(one)) > 1 for one in lists)
    )


def slow_pearson(x: list[float], y: list[float]) -> float:
    """From sums over all pairs of rows, without a mean: sum (xi - xj)(yi - yj) divided by the two norms."""
    pairs = [(i, j) for i in range(len(x)) for j in range(i)]

    def products(x: list[float], y: list[float]) -> float:
        return math.fsum((x[i] - x[j]) * (y[i] - y[j]) for i, j in pairs)

    return products(x, y) / math.sqrt(products(x, x)) / math.sqrt(products(y, y))


def slow_ranks(x: list[float]) -> list[float]:
    """A value's rank: 1, plus 1 for each smaller, plus 1/2 for each other equal value."""
    return [1 + sum(b < a for b in x) + (sum(b == a for b in x) - 1) / 2 for a in x]


@given(st.lists(few_values | numbers, min_size=1, max_size=40))
def test_ranks_equal_pairwise_counting(x):
    assert ranks(x).tolist() == slow_ranks(x)  # halves of small integers are exact


@given(two_lists(numbers))
def test_pearson_equals_the_slow_version(lists):
    assume(all(max(one) - min(one) > 0.1 for one in lists))  # or rounding loses the digits that differ
    assert pearson(*lists) == pytest.approx(slow_pearson(*lists), abs=1e-9)


def test_float32_is_computed_in_float64():
    """In float32 the mean of these is off by a hundredth of what differs."""
    x, y = np.float32([1000, 1000.001, 1000.003, 1000.002]), np.float32([1e4, 1e4 + 0.01, 1e4 + 0.02, 1e4 + 0.05])
    for other in (y, np.array([1, 2, 3, 4])):
        assert pearson(x, other) == pytest.approx(slow_pearson(x.tolist(), other.tolist()), abs=1e-9)


@given(two_lists(few_values) | two_lists(numbers))
def test_spearman_equals_the_slow_version(lists):
    x, y = lists
    assert spearman(x, y) == pytest.approx(slow_pearson(slow_ranks(x), slow_ranks(y)), abs=1e-13)


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e-30, 1.0, 1e30, 1e200, 3e307])
@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_scale_and_shift_change_nothing(scale, shift):
    x, y = np.array([1.0, 2.0, 3.0, 3.0]), np.array([1.0, 2.0, 4.0, 0.5])
    assert pearson((x + shift) * scale, y) == pytest.approx(pearson(x, y), abs=1e-14)
    assert pearson(x, (y - shift) * scale) == pytest.approx(pearson(x, y), abs=1e-14)
    assert spearman(x * scale, y * scale) == pytest.approx(spearman(x, y), abs=1e-15)


@pytest.mark.parametrize(("x", "factor"), [([5, 3, 3], 7), ([18, 28, 0], 5), ([25, 22, 12], 5)])
def test_rounding_does_not_leave_the_range(x, factor):
    """The sums divided by each other are 1 + 2.2e-16."""
    y = [factor * value for value in x]
    assert pearson(x, y) == 1.0
    assert pearson(x, [-value for value in y]) == -1.0


@pytest.mark.parametrize("metric", [pearson, spearman])
@pytest.mark.parametrize(
    ("x", "y", "name"),
    [
        ([2, 2, 2], [1, 2, 3], "x"),
        ([1, 2, 3], [0.1, 0.1, 0.1], "y"),
        ([], [], "x"),
        ([1, math.nan, 3], [1, 2, 3], "x"),
        ([1, 2, 3], [1, 2, math.inf], "y"),
        ([1, 2], [1, 2, 3], "y"),
        ([[1, 2]], [[1, 3]], "x"),
        (1, 2, "x"),
    ],
)
def test_input_without_a_correlation_is_refused(metric, x, y, name):
    with pytest.raises(ValueError, match=f"{name} must"):
        metric(x, y)


def test_numbers_beyond_numpys_integers():
    assert spearman([2**70, 1, 2], [2**80, 3, 4]) == 1.0
