"""Hand examples and traps of the sheets' pieces: limits, leaderboards, prompts, passages."""

import math

import numpy as np

from lessons.by_hand import leaderboard, limits, prompts
from lessons.grader.cases import cases, d, example, t, trap
from lessons.search import passages


def board(*rows: list[float]) -> np.ndarray:
    """A row for each model, a column for each task."""
    return np.array(rows)


@cases("limits.query_for_two")
def _():
    query = limits.query_for_two
    yield example(
        "angles 0 and pi: where cos 2t is largest",
        d([0.0, 0.0, 1.0, 0.0]),
        query,
        d(0.0),
        d(math.pi),
    )
    # (1 + 0, 0 + 1, 0, -1/2), of length 3/2
    yield example(
        "angles 0 and pi/2", d([2 / 3, 2 / 3, 0.0, -1 / 3]), query, d(0.0), d(math.pi / 2)
    )
    both = d([2 / 3, 2 / 3, 0.0, -1 / 3], [0.0, 0.0, 1.0, 0.0])
    yield trap("two pairs at once", both, query, d(math.pi / 2, math.pi), d(0.0, 0.0))
    # (2, 0, -1/2, 0), of length sqrt(17) / 2
    yield trap("twice the same document", d([4.0, 0.0, -1.0, 0.0]) / 17**0.5, query, d(0.0), d(0.0))


@cases("leaderboard.mean_by_type")
def _():
    mean = leaderboard.mean_by_type
    types = ["sts", "sts", "search"]
    yield example("80 70 | 40", np.array([57.5]), mean, board([80.0, 70.0, 40.0]), types)
    yield example(
        "two models",
        np.array([57.5, 45.0]),
        mean,
        board([80.0, 70.0, 40.0], [50.0, 30.0, 50.0]),
        types,
    )
    yield trap(
        "types that are not side by side",
        np.array([57.5]),
        mean,
        board([80.0, 40.0, 70.0]),
        ["sts", "search", "sts"],
    )
    yield trap("one type: the mean", np.array([3.0]), mean, board([2.0, 4.0]), ["sts", "sts"])


@cases("leaderboard.borda_counts")
def _():
    count = leaderboard.borda_counts
    scores = board([80.0, 40.0], [70.0, 40.0], [60.0, 50.0])
    yield example("three models, two tasks", np.array([2, 1, 2]), count, scores)
    yield example("ahead by any amount", np.array([1, 0]), count, board([1000.0], [999.0]))
    yield trap("equal scores: no point", np.array([0, 0]), count, board([5.0, 5.0], [5.0, 5.0]))
    yield trap("below 0", np.array([0, 1]), count, board([-2.0], [-1.0]))


@cases("prompts.mean_after_prompt")
def _():
    mean = prompts.mean_after_prompt
    states = t([[9.0, 90.0], [1.0, 10.0], [3.0, 30.0]])
    yield example("states 9, 1, 3: (1 + 3) / 2", t([2.0, 20.0]), mean, states, t([True] * 3), 1)
    yield example("nothing to leave out", t([13 / 3, 130 / 3]), mean, states, t([True] * 3), 0)
    two = t([[9.0], [1.0], [3.0]], [[9.0], [5.0], [7.0]])
    mask = t([True, True, True], [True, True, False])
    yield trap("a shorter text: its pad is left out", t([2.0], [5.0]), mean, two, mask, 1)
    poisoned = t([[9.0], [1.0], [3.0]], [[9.0], [5.0], [math.nan]])
    yield trap("a pad holds NaN", t([2.0], [5.0]), mean, poisoned, mask, 1)
    yield trap("a mask of 0 and 1", t([2.0], [5.0]), mean, two, mask.long(), 1)


@cases("passages.recall_in_budget")
def _():
    recall = passages.recall_in_budget
    holds = np.array([[False, True]])
    lengths = np.array([[60, 50]])
    yield example("60 and 50 tokens, budget 100", np.array([0.0]), recall, holds, lengths, 100)
    yield example("the same, budget 110", np.array([1.0]), recall, holds, lengths, 110)
    # the second does not fit, and ends the prompt, although the third would fit
    third = np.array([[False, False, True]])
    lengths = np.array([[60, 50, 10]])
    yield trap("a passage that does not fit ends it", np.array([0.0]), recall, third, lengths, 100)
    yield trap("no limit", np.array([1.0]), recall, third, lengths, math.inf)
    tens = np.array([[10, 10, 10]])
    yield trap("three passages fill it", np.array([1.0]), recall, third, tens, 30)
    several = np.array([[True, False, True], [False, False, False]])
    tens = np.array([[10, 10, 10], [10, 10, 10]])
    yield trap("twice there, and nowhere", np.array([1.0, 0.0]), recall, several, tens, 25)
