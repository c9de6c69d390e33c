"""Progress of long work on stderr, by tqdm.

On a terminal it is a bar, in a file a line every ten seconds.
"""

import shutil
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tqdm import tqdm

from minisbert.system.console import write_stderr


class Messages:
    """stderr for tqdm, by ``write_stderr``: a bar that cannot be written must not end the work."""

    def __init__(self) -> None:
        # tqdm draws a bar of blocks if the encoding has them, else of #.
        self.encoding = getattr(sys.stderr, "encoding", "ascii")

    def write(self, text: str) -> None:
        write_stderr(text)

    def flush(self) -> None:
        pass


class Bar(tqdm):
    """tqdm with the settings of every bar here; short work shows none.

    >>> for block in Bar(blocks, desc="comparing", unit=" blocks"):

    Counts are written in full ("3/180 steps") unless ``unit_scale`` is True ("1.05M/2.00M texts").
    """

    monitor_interval = 0  # no thread beside the work

    def __init__(
        self, items: Any = None, *, total: float | None = None, shown: bool = True, **options: Any
    ):
        # A terminal gets a live line, a file a line every ten seconds.
        seconds = 0.1 if sys.stderr.isatty() else 10
        super().__init__(
            items,
            total=total,
            disable=not shown,
            mininterval=seconds,
            delay=seconds,
            leave=False,
            file=Messages(),
            ncols=shutil.get_terminal_size().columns - 1,
            **options,
        )

    @staticmethod
    def format_meter(*numbers: Any, **options: Any) -> str:
        """Write tqdm's line, with "3.40s/steps" where it has "3.40s/ steps".

        The unit begins with a space because "5 steps" needs one.
        """
        return tqdm.format_meter(*numbers, **options).replace("s/ ", "s/")


def bar_of(
    shown: bool | Bar | None, total: int | None, unit: str = " texts"
) -> AbstractContextManager[Bar | None]:
    """Return the bar of an ``encode``: a new one, the caller's, which stays open, or None."""
    if isinstance(shown, Bar):
        return nullcontext(shown)
    if shown:
        return Bar(total=total, unit=unit, unit_scale=True)
    # A hidden bar would cost time that one short text can feel.
    return nullcontext()
