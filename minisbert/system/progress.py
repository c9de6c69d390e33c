"""Progress of long work on stderr, by tqdm: a bar on a terminal, a line every ten seconds in a file."""

import shutil
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

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

    def __init__(self, items: Any = None, *, total: float | None = None, shown: bool = True, **options: Any):
        seconds = 0.1 if sys.stderr.isatty() else 10
        options |= {"mininterval": seconds, "delay": seconds, "leave": False, "unit_scale": True}
        options |= {"file": Messages(), "ncols": shutil.get_terminal_size().columns - 1}
        super().__init__(items, total=total, disable=not shown, **options)


class Progress:
    """Progress of computing vectors, in tokens: texts come longest first, so counting texts would mislead.

    Texts not yet tokenized are assumed to be as long as the average so far. ``texts`` is their number, None if unknown.

    >>> with Progress(texts=2) as line:
    ...     line.expect(texts=2, tokens=30)
    ...     line.update(18)
    """

    def __init__(self, texts: int | None, shown: bool = True):
        self.bar = Bar(unit=" tokens") if shown else None  # a hidden bar would cost a tenth of a short text's time
        self.all_texts, self.texts, self.tokens = texts, 0, 0

    def expect(self, texts: int, tokens: int) -> None:
        """Add newly tokenized texts and the number of tokens to compute for them."""
        self.texts += texts
        self.tokens += tokens
        if self.bar is not None and self.all_texts is not None:
            self.bar.total = round(self.tokens * self.all_texts / max(self.texts, 1))

    def update(self, tokens: int) -> None:
        if self.bar is not None:
            self.bar.update(tokens)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()


def as_progress(progress: bool | Progress | None, total: int) -> AbstractContextManager[Progress]:
    """Return the progress line of an ``encode``: a new one, or the caller's, which stays open."""
    if isinstance(progress, Progress):
        return nullcontext(progress)
    return Progress(total, bool(progress))
