"""Rankings by scores of float32: an order is asserted only where neighbours differ by more than the
tolerance.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise


def check_ranking(
    hits: Sequence[tuple[int, float]],
    scores: Mapping[int, float],
    count: int,
    tolerance: float = 1e-5,
) -> None:
    """Assert that ``hits``, pairs of index and score, are the ``count`` best of ``scores``, best
    first.

    Two candidates whose scores differ by at most ``tolerance`` may come in either order, also
    across the last place: which of them is the higher one is decided by the CPU's rounding.
    """
    indices = [index for index, _ in hits]
    assert len(indices) == len({*indices}) == min(count, len(scores))
    for index, score in hits:
        assert abs(score - scores[index]) <= tolerance, (
            f"{index} has the score {score}, not {scores[index]}"
        )
    for better, worse in pairwise(indices):
        assert scores[better] >= scores[worse] - tolerance, f"{worse} should come before {better}"
    left_out = scores.keys() - {*indices}
    if indices and left_out:
        best_left_out = max(left_out, key=scores.__getitem__)
        assert scores[indices[-1]] >= scores[best_left_out] - tolerance, (
            f"{best_left_out} is missing"
        )
