"""The learning-rate schedules by hand."""

import pytest

from lessons.mistakes import MISTAKES
from minisbert.core.loop import linear_schedule
from minisbert.training.schedules import SCHEDULES, constant_schedule, cosine_schedule

# Along half a cosine: (1 + cos 0) / 2, (1 + cos 45 degrees) / 2, and so on.
DOWN = [1, (2 + 2**0.5) / 4, 0.5, (2 - 2**0.5) / 4, 0]


@pytest.mark.parametrize(
    ("schedule", "warmup", "total", "multipliers"),
    [
        (linear_schedule, 3, 3, [0, 1 / 3, 2 / 3, 0]),
        (cosine_schedule, 2, 6, [0, 0.5, *DOWN, 0]),
        (cosine_schedule, 0, 4, DOWN),
        (cosine_schedule, 3, 3, [0, 1 / 3, 2 / 3, 1, 0]),
        (constant_schedule, 2, 4, [0, 0.5, 1, 1, 1, 1]),
        (constant_schedule, 0, 2, [1, 1, 1]),
    ],
)
def test_schedules_by_hand(schedule, warmup, total, multipliers):
    found = [schedule(step, warmup, total) for step in range(len(multipliers))]
    assert found == pytest.approx(multipliers, abs=1e-15)
    assert SCHEDULES[schedule.__name__.removesuffix("_schedule")] is schedule


def test_a_published_schedule_rests_for_the_last_tenth():
    """``num_training_steps=total - warmup``: of a hundred steps, ten of warm-up, ninety count."""
    published = MISTAKES["schedule cut short"].stand_in
    assert [step for step in range(100) if published(step, 10, 100) == 0] == [0, *range(90, 100)]
    assert [step for step in range(100) if linear_schedule(step, 10, 100) == 0] == [0]
