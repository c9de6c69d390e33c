"""What a difference looks like is said without a list of mistakes: a ratio, float32, axes."""

import math

import numpy as np
import pytest
import torch

from lessons.grader.cases import describe, form_problem

REFERENCE = torch.tensor([[1.0, -2.0, 0.0], [3.0, 0.5, 4.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (2.0, "yours is twice the reference everywhere"),
        (0.5, "yours is half the reference everywhere"),
        (-1.0, "yours is minus the reference everywhere"),
        (7.0, "yours is 7 times the reference everywhere"),
        (1 / 3, "yours is 1/3 of the reference everywhere"),
        (math.sqrt(3), "yours is 1.732 = sqrt(3) times the reference everywhere"),
        (1.2345, "yours is 1.2345 times the reference everywhere"),
    ],
)
def test_a_constant_ratio(factor, says):
    """A forgotten half, a sum for a mean, a sign: the learner knows at once where to look."""
    assert describe(factor * REFERENCE, REFERENCE, 1e-9).endswith(says)


def test_no_ratio_where_there_is_none():
    """A wrong clue is worse than none."""
    other = REFERENCE.clone()
    other[1, 2] = 5.0
    assert "reference everywhere" not in describe(other, REFERENCE, 1e-9)
    not_zero = 2 * REFERENCE
    not_zero[0, 2] = 1.0  # the reference is 0 there
    assert "reference everywhere" not in describe(not_zero, REFERENCE, 1e-9)
    assert "times" not in describe(1.7, 1.3, 1e-9), "one number always has a ratio"


def test_one_number_that_is_a_simple_multiple():
    """A loss is one number: a sum over six rows in place of a mean."""
    assert describe(6 * 0.7321, 0.7321, 1e-9).endswith("yours is 6 times the reference")


def test_one_number_of_five_digits_has_a_sign_too():
    """The expected values of hand examples are rounded: -0.693147 is minus 0.69315."""
    assert describe(-0.693147, 0.69315, 6e-5).endswith("yours is minus the reference")
    assert "times" not in describe(3 * 0.693147, 0.69315, 6e-5), "a coincidence is likelier"


def test_rounding_to_float32_is_said_of_one_number_too():
    """Pearson's r computed in float32 is off by 1e-8, and looks right."""
    rounded = float(torch.tensor(0.8203))
    assert "computed in float32?" in describe(rounded, 0.8203, 1e-10)
    assert "computed in float32?" in describe(REFERENCE.sin().float().double(), REFERENCE.sin(), 0)


def test_exchanged_axes():
    """The right numbers in the wrong places, of one shape and of another."""
    square = torch.arange(9.0, dtype=torch.float64).view(3, 3)
    assert describe(square.T, square, 1e-9).endswith("equal once axes 0 and 1 are exchanged")
    assert form_problem(REFERENCE.T, REFERENCE).endswith("equal once axes 0 and 1 are exchanged")
    counts = np.array([[1, 2, 3]])
    assert form_problem(counts.T, counts).endswith("equal once axes 0 and 1 are exchanged")


def test_the_parts_of_a_result_have_names():
    """``fit`` has no three results; the case has."""
    ours, expected = ([1], [2.0]), ([1], [3.0])
    names = ("the steps", "the weight after each step")
    assert describe(ours, expected, 1e-9, names).startswith("the weight after each step: ")
    assert describe(ours, expected, 1e-9).startswith("the second of its 2 results: ")
