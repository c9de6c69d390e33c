"""How the learning rate goes: the book's line, and two that papers use."""

import math
from collections.abc import Callable

from minisbert.core.loop import linear_schedule


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
