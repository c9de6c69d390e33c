"""Bad input of the lessons' geometry; ``parity/metrics.py`` has its values."""

import pytest

from lessons.by_hand.geometry import alignment, mean_off_diagonal_cosine, uniformity


@pytest.mark.parametrize(
    ("measure", "values", "message"),
    [
        (alignment, ([[1, 0]], [[0, 0]]), "row 0"),
        (alignment, ([[1, 1]], [[1, 1, 1]]), "v"),
        (uniformity, ([[1, 1]],), "pairs"),
        (mean_off_diagonal_cosine, ([[1, 1]],), "pairs"),
    ],
)
def test_input_without_a_defined_measure_is_refused(measure, values, message):
    with pytest.raises(ValueError, match=message):
        measure(*values)
