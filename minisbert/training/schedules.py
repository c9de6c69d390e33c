"""The learning-rate schedules of ``--schedule``: the book's linear one and two more."""

import math

from minisbert.core.loop import linear_schedule


def cosine_schedule(step: int, warmup: int, total: int) -> float:
    """The same warm-up, then down to 0 along half a cosine (Loshchilov & Hutter 2017); .5 halfway down."""
    if step < warmup:
        return step / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup))))


def constant_schedule(step: int, warmup: int, total: int) -> float:
    """The same warm-up, then 1."""
    return min(1.0, step / warmup) if warmup else 1.0


SCHEDULES = {"linear": linear_schedule, "cosine": cosine_schedule, "constant": constant_schedule}
