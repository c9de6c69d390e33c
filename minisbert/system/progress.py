"""Progress of long work, on stderr: a line that is rewritten on a terminal, and a line every ten seconds in a file."""

import shutil
import sys
import time
from collections.abc import Iterator, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Self

from tqdm import tqdm

from minisbert.system.console import say


class LiveLine:
    """A line about work in progress, rewritten on a terminal and erased at the end; every ten seconds in a log file.

    >>> with LiveLine() as line:
    ...     line.show("step 1 of 180")
    """

    def __init__(self, shown: bool = True) -> None:
        self.shown, self.width = shown, 0
        self.started = self.next = time.monotonic()
        # ten times a second is smooth on a terminal; in a log file each update is a line that somebody scrolls past
        self.terminal, self.wait = sys.stderr.isatty(), 0.1
        if not self.terminal:
            self.wait = 10.0
            self.next += self.wait

    def show(self, text: str) -> None:
        if self.is_due():
            self.write(text)

    def is_due(self) -> bool:
        return self.shown and time.monotonic() >= self.next

    def write(self, text: str) -> None:
        self.next = time.monotonic() + self.wait
        if self.terminal:
            say("\r" + text.ljust(self.width), end="")  # blanks erase what a longer line left
            self.width = len(text)
        else:
            say(text)

    def clear(self) -> None:
        if self.width:
            say("\r" + " " * self.width + "\r", end="")
            self.width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


_purpose: ContextVar[str] = ContextVar("_purpose", default="")


@contextmanager
def naming_bars(purpose: str) -> Iterator[None]:
    """Bars without a description of their own get this one: ``with naming_bars("scores on dev"):``."""
    token = _purpose.set(purpose)
    try:
        yield
    finally:
        _purpose.reset(token)


class Bar(LiveLine):
    """Progress of long work, counted.

    >>> for block in Bar(blocks, desc="comparing", unit=" blocks"):
    """

    def __init__(self, items: Any = None, total: int | None = None, desc: str = "", unit: str = "", shown: bool = True):
        super().__init__(shown)
        self.items, self.total, self.unit, self.n = items, total, unit, 0
        self.desc = desc or _purpose.get()
        if total is None and isinstance(items, Sized):
            self.total = len(items)
        self.next = self.started + self.wait  # short work shows nothing

    def __iter__(self) -> Iterator[Any]:
        with self:
            for item in self.items:
                yield item
                self.update()

    def update(self, count: int = 1) -> None:
        self.n += count
        if self.is_due():
            elapsed = time.monotonic() - self.started
            columns = shutil.get_terminal_size().columns - 1  # COLUMNS, or 80, in a log file
            style: dict[str, Any] = {"ascii": True, "unit_scale": True, "ncols": columns}
            self.write(tqdm.format_meter(self.n, self.total, elapsed, prefix=self.desc, unit=self.unit, **style))


class Progress(Bar):
    """Progress of computing vectors, in tokens: texts come longest first, so counting texts would mislead.

    Texts not yet tokenized are assumed to be as long as the average so far. ``texts`` is their number, None if unknown.

    >>> with Progress(texts=2) as line:
    ...     line.expect(texts=2, tokens=30)
    ...     line.update(18)
    """

    def __init__(self, texts: int | None, shown: bool = True):
        super().__init__(unit=" tokens", shown=shown)
        self.all_texts, self.texts, self.tokens = texts, 0, 0

    def expect(self, texts: int, tokens: int) -> None:
        """Add newly tokenized texts and the number of tokens to compute for them."""
        self.texts += texts
        self.tokens += tokens
        if self.all_texts is not None:
            self.total = round(self.tokens * self.all_texts / max(self.texts, 1))


def duration(seconds: float) -> str:
    """``duration(75) = '1:15'``, ``duration(4000) = '1:06:40'``."""
    return str(tqdm.format_interval(round(seconds))).removeprefix("0")


def as_progress(progress: bool | Progress | None, total: int) -> AbstractContextManager[Progress]:
    """Return the progress line of an ``encode``: a new one, or the caller's, which stays open."""
    if isinstance(progress, Progress):
        return nullcontext(progress)
    return Progress(total, bool(progress))
