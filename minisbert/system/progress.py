"""Progress of long work on stderr, by tqdm: a bar on a terminal, a line every ten seconds in a
file.
"""

import shutil
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tqdm import tqdm

from minisbert.system.console import say


class Messages:
    """stderr for tqdm by ``say``: a full disk or a closed pipe must not end hours of work."""

    def __init__(self) -> None:
        self.encoding = getattr(sys.stderr, "encoding", "ascii")  # with UTF-8 a bar is of blocks

    def write(self, text: str) -> None:
        say(text, end="")

    def flush(self) -> None:
        pass


class Bar(tqdm):
    """tqdm with the settings of every bar here; short work shows none.

    >>> for block in Bar(blocks, desc="comparing", unit=" blocks"):
    """

    monitor_interval = 0  # no thread beside the work

    def __init__(
        self, items: Any = None, *, total: float | None = None, shown: bool = True, **options: Any
    ):
        seconds = 0.1 if sys.stderr.isatty() else 10
        # unit_scale: 12.3k texts; a caller that counts little, such as steps, switches it off
        options = {"unit_scale": True} | options
        options |= {"mininterval": seconds, "delay": seconds, "leave": False}
        options |= {"file": Messages(), "ncols": shutil.get_terminal_size().columns - 1}
        super().__init__(items, total=total, disable=not shown, **options)


def bar_of(
    shown: bool | Bar | None, total: int | None, unit: str = " texts"
) -> AbstractContextManager[Bar | None]:
    """Return the bar of an ``encode``: a new one, the caller's, which stays open, or None if none
    is shown.
    """
    if isinstance(shown, Bar):
        return nullcontext(shown)
    return (
        Bar(total=total, unit=unit) if shown else nullcontext()
    )  # a hidden bar would cost a short text time
