"""How the learning rate goes: the book's line, and two that papers use."""

import math
from collections.abc import Callable

from minisbert.core.checks import check_one_of
from minisbert.core.loop import linear_schedule
from minisbert.training.distributed import say_once


def cosine_schedule(step: int, warmup: int, total: int) -> float:
    """Warm up linearly, then decay to 0 along half a cosine (Loshchilov & Hutter 2017); .5 halfway
    down.
    """
    if step < warmup:
        return step / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup))))


def constant_schedule(step: int, warmup: int, total: int) -> float:
    """Warm up linearly, then stay at 1."""
    return step / warmup if step < warmup else 1.0


SCHEDULES: dict[str, Callable[[int, int, int], float]] = {
    "linear": linear_schedule,
    "cosine": cosine_schedule,
    "constant": constant_schedule,
}


def learning_rate(schedule: str, warmup: float, total: int) -> Callable[[int], float]:
    """Return the multiplier of the learning rate by the step, counted from 0.

    ``warmup`` is a share of the ``total`` steps, or from 1 on a number of steps.
    """
    check_one_of("schedule", schedule, list(SCHEDULES))
    steps = math.ceil(warmup * total if warmup < 1 else warmup)
    if warmup >= total:
        say_once(
            f"--warmup {steps}: the run has {total} steps, so the learning rate never reaches its "
            "peak"
        )

    def multiplier(step: int) -> float:
        return SCHEDULES[schedule](step, steps, total)

    return multiplier
