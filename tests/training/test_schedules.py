"""The learning-rate schedules by hand."""

import pytest

from lessons.mistakes import MISTAKES
from minisbert.core.loop import linear_schedule
from minisbert.training.schedules import SCHEDULES, constant_schedule, cosine_schedule


@pytest.mark.parametrize(
    ("warmup", "total", "shares"),
    [
        (2, 6, [0, 0.5, 1, 0.75, 0.5, 0.25, 0]),
        (0, 4, [1, 0.75, 0.5, 0.25, 0]),
        (3, 3, [0, 1 / 3, 2 / 3, 0]),
        (1, 1, [0, 0]),
    ],
)
def test_linear_schedule_by_hand(warmup, total, shares):
    assert [linear_schedule(step, warmup, total) for step in range(total + 1)] == pytest.approx(shares, abs=1e-15)


def test_a_published_schedule_rests_for_the_last_tenth():
    """``num_training_steps=total - warmup``: a hundred steps with ten of warm-up are over after ninety."""
    published = MISTAKES["schedule cut short"].stand_in
    idle = [step for step in range(100) if published(step, 10, 100) == 0]
    assert idle == [0, *range(90, 100)]
    assert [step for step in range(100) if linear_schedule(step, 10, 100) == 0] == [0]


def test_cosine_schedule_by_hand():
    """A quarter, half and three quarters of the way down: (1 + cos 45 degrees) / 2 = (2 + sqrt 2) / 4, and so on."""
    down = [1, (2 + 2**0.5) / 4, 0.5, (2 - 2**0.5) / 4, 0]
    assert [cosine_schedule(step, 2, 6) for step in range(7)] == pytest.approx([0, 0.5, *down], abs=1e-15)
    assert [cosine_schedule(step, 0, 4) for step in range(5)] == pytest.approx(down, abs=1e-15)


def test_a_cosine_schedule_that_only_warms_up():
    assert [cosine_schedule(step, 3, 3) for step in range(5)] == pytest.approx([0, 1 / 3, 2 / 3, 1, 0], abs=1e-15)


def test_constant_schedule_by_hand():
    assert [constant_schedule(step, 2, 4) for step in range(5)] == [0, 0.5, 1, 1, 1]
    assert [constant_schedule(step, 0, 2) for step in range(3)] == [1, 1, 1]


def test_the_schedules_stay_after_the_end():
    assert (linear_schedule(9, 2, 6), cosine_schedule(9, 2, 6), constant_schedule(9, 2, 6)) == (0, 0, 1)


def test_the_schedules_by_name():
    assert {"linear": linear_schedule, "cosine": cosine_schedule, "constant": constant_schedule} == SCHEDULES
