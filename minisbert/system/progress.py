"""Progress of long work, by tqdm: a bar on a terminal and in a notebook, lines in a file.

The bar of a terminal and the lines, one every ten seconds, are on stderr. ``TQDM_DISABLE=1`` in the
environment turns all of them off.
"""

import os
import shutil
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tqdm.asyncio import tqdm_asyncio
from tqdm.auto import tqdm

from minisbert.system.console import write_stderr

# tqdm.auto's class is a widget in a notebook that has ipywidgets, and tqdm.asyncio's elsewhere.
IN_NOTEBOOK = tqdm is not tqdm_asyncio


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
        # What somebody watches is live; a file gets a line every ten seconds.
        seconds = 0.1 if is_watched() else 10
        if not IN_NOTEBOOK:
            options["file"] = Messages()
            options["ncols"] = shutil.get_terminal_size().columns - 1
        super().__init__(
            items,
            total=total,
            disable=is_disabled() or not shown,
            mininterval=seconds,
            delay=seconds,
            leave=False,
            **options,
        )

    @staticmethod
    def format_meter(*numbers: Any, **options: Any) -> str:
        """Write tqdm's line, with "3.40s/steps" where it has "3.40s/ steps".

        The unit begins with a space because "5 steps" needs one.
        """
        return tqdm.format_meter(*numbers, **options).replace("s/ ", "s/")


def is_watched() -> bool:
    """Return whether a bar is seen while it moves: on a terminal or in a notebook."""
    return IN_NOTEBOOK or sys.stderr.isatty()


def is_disabled() -> bool:
    """Return whether the user wants no bar of tqdm; 0 and nothing stand for the usual ones.

    tqdm itself reads the variable once, when it is imported, and not at all in a notebook.
    """
    return os.environ.get("TQDM_DISABLE", "") not in ("", "0")


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
