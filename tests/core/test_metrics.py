"""Ranges and bad input of correlations.

Their numbers are in the grader's cases and ``test_parity.py``.
"""

import math

import numpy as np
import pytest

from minisbert.core.metrics import pearson, spearman


@pytest.mark.parametrize("other", [[1e4, 1e4 + 0.01, 1e4 + 0.02, 1e4 + 0.05], [1, 2, 3, 4]])
def test_float32_is_computed_in_float64(other):
    """In float32 the mean of these is off by a hundredth of what differs."""
    x = np.float32([1000, 1000.001, 1000.003, 1000.002])
    y = np.float32(other)
    expected = np.corrcoef(x.astype(float), y.astype(float))[0, 1]
    assert pearson(x, y) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("scale", [1e-70, 1e-30, 1.0, 1e30, 1e70])
@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_scale_and_shift_change_nothing(scale, shift):
    """Scores of 0 to 5 and cosines of -1 to 1 are compared as they are."""
    x = np.array([1.0, 2.0, 3.0, 3.0])
    y = np.array([1.0, 2.0, 4.0, 0.5])
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
    """NumPy would give NaN and a warning, and a table would show it."""
    with pytest.raises(ValueError, match=f"{name} must"):
        metric(x, y)


def test_numbers_beyond_numpys_integers():
    """Only their order counts."""
    assert spearman([2**70, 1, 2], [2**80, 3, 4]) == 1.0
