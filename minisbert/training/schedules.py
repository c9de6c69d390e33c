"""How the learning rate goes: the book's line, and two that papers use."""

import math
from collections.abc import Callable

from minisbert.core.checks import check_one_of
from minisbert.core.loop import linear_schedule
from minisbert.training.distributed import warn_once


def cosine_schedule(step: int, warmup: int, total: int) -> float:
    """Warm up linearly, then decay to 0 along half a cosine (Loshchilov & Hutter 2017).

    Halfway down the multiplier is .5.
    """
    if step < warmup:
        return step / warmup
    done = (step - warmup) / max(1, total - warmup)  # the part of the way down, from 0 to 1
    return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def constant_schedule(step: int, warmup: int, total: int) -> float:
    """Warm up linearly, then stay at 1."""
    if step < warmup:
        return step / warmup
    return 1.0


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
    if warmup < 1:
        warmup = warmup * total
    warmup_steps = math.ceil(warmup)
    if warmup >= total:
        reason = f"the run has {total} steps, so the learning rate never reaches its peak"
        warn_once(f"--warmup {warmup_steps}: {reason}")

    def multiplier(step: int) -> float:
        return SCHEDULES[schedule](step, warmup_steps, total)

    return multiplier
