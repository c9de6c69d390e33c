"""Types of options for argparse: a text to a value, ``ValueError`` if it is out of range."""

import math
from typing import Any


def number(kind: type, smallest: float, below: float = math.inf) -> Any:
    """An argparse type: a number in [smallest, below)."""

    def convert(text: str) -> Any:
        value = kind(text)
        if not smallest <= value < below:
            raise ValueError
        return value

    convert.__name__ = f"{kind.__name__} in [{smallest:g}, {below:g})"
    return convert


COUNT, LAYERS = number(int, 1), number(int, 0)
RATE, POSITIVE, FRACTION = number(float, 0), number(float, 1e-4), number(float, 0, 1)


def warmup_length(text: str) -> float:
    """An argparse type: a fraction of the steps, or from 1 on a whole number of steps."""
    value = float(text)
    if not (0 <= value < 1 or (value >= 1 and value.is_integer())):
        raise ValueError
    return value


warmup_length.__name__ = "fraction below 1 or whole number of steps"


def prefix_widths(text: str) -> str:
    """An argparse type: numbers of columns, each smaller than the one before: ``256,128,64``."""
    widths = [int(part) for part in text.split(",")]
    if widths != sorted(set(widths), reverse=True) or widths[-1] < 1:
        raise ValueError
    return ",".join(map(str, widths))


prefix_widths.__name__ = "descending widths"
