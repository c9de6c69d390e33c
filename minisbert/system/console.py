"""How commands talk to the user: one-line errors, a progress line, exit codes.

Exit codes: 0 success, 2 bad input (one line on stderr, no traceback), 130 interrupted by Ctrl-C.
"""

import math
import os
import re
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, Self, TextIO

from tqdm import tqdm

from minisbert.core import InputError
from minisbert.system.interrupts import Interrupts

ERROR_LINES, ERROR_CHARACTERS = 20, 4000  # of an error message, at most


def run_command(main: Callable[[], None]) -> None:
    """Run a command's ``main``; bad input, a full disk or memory, or Ctrl-C become one line on stderr and an exit code.

    ``MINISBERT_TRACEBACK=1`` shows the traceback instead. Programming errors always keep theirs.
    """
    open_streams()
    try:
        with Interrupts():
            check_values(sys.argv[1:])
            main()
            sys.stdout.flush()  # now, while a full disk or a closed pipe can still be reported
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(130)
    except Exception as error:
        settle_output()
        if isinstance(error, BrokenPipeError):  # the reader (head, less) has closed the pipe: not an error
            sys.exit(0)
        message = str(error) if isinstance(error, InputError | OSError) else out_of_memory(error)
        if message is None or os.environ.get("MINISBERT_TRACEBACK"):
            raise
        say(f"error: {clipped(message)}")
        sys.exit(2)


def check_values(arguments: Sequence[str]) -> None:
    """Raise ``InputError`` for an option with an empty value, as of an unset shell variable; a prompt may be empty."""
    for option, value in pairwise([*arguments, "--"]):
        name, equals, attached = option.partition("=")
        if equals:
            value = attached
        if name.startswith("--") and not value and not name.endswith("prompt"):
            raise InputError(f"{name}: an empty value; omit the option")


def bounded(kind: type, least: float, below: float = math.inf) -> Callable[[str], Any]:
    """The type of an option for argparse: an int or float in [least, below)."""

    def convert(text: str) -> Any:
        value = kind(text)
        if not least <= value < below:
            raise ValueError
        return value

    convert.__name__ = f"{kind.__name__} in [{least:g}, {below:g})"  # argparse shows it
    return convert


def check_usage(*cases: tuple[object, str]) -> None:
    """Raise ``InputError`` with the message of the first case that is true."""
    for wrong, message in cases:
        if wrong:
            raise InputError(message)


@contextmanager
def exiting(code: int) -> Iterator[None]:
    """Print a verdict in this block, then exit with ``code``, even if the reader of stdout (head, less) has gone."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
    if code:
        sys.exit(code)


def open_streams() -> None:
    """Replace closed streams with the null device; escape what the terminal cannot encode."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (open until the process ends)
        if mode == "w":
            getattr(sys, name).reconfigure(errors="backslashreplace")


def out_of_memory(error: Exception) -> str | None:
    """If Python, numpy or torch ran out of memory: the function that did, and how much it asked for."""
    text = str(error)
    if not isinstance(error, MemoryError) and not re.search("out of memory|can't allocate memory", text):
        return None
    message = "not enough memory"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)[1:] if "minisbert" in frame.filename]
    if frames:
        message += f" in {frames[-1].name} ({os.path.basename(frames[-1].filename)})"
    amount = re.search(r"allocate (\d[\d.,]* ?\w*)", text)  # "you tried to allocate 4000 bytes", "allocate 2.00 GiB"
    if amount:
        message += f": {amount[1]} more were needed"
    return f"{message}; use less data or a smaller batch"


def clipped(message: str) -> str:
    """The beginning of a message: at most 20 lines and 4,000 characters."""
    lines = message[:ERROR_CHARACTERS].splitlines()
    start = "\n".join(lines[:ERROR_LINES])
    if len(message) > ERROR_CHARACTERS or len(lines) > ERROR_LINES:
        start += f"... ({len(message):,} characters)"
    return start


def settle_output() -> None:
    """Flush both streams; discard what cannot be written, or Python reports the failure again at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            discard(stream)


def discard(stream: TextIO) -> None:
    """Send what a stream holds, and what is written to it later, to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(text: str, end: str = "\n") -> None:
    """Print a message to stderr, which leaves stdout to the results; dropped if stderr cannot be written."""
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except OSError:  # a full disk or a closed pipe must not end hours of work
        discard(sys.stderr)


class LiveLine:
    """A line about work in progress, rewritten on a terminal and erased at the end; every ten seconds in a log file.

    >>> with LiveLine() as line:
    ...     line.show("step 1 of 180")
    """

    def __init__(self, shown: bool = True) -> None:
        self.shown, self.width = shown, 0
        self.started = self.next = time.monotonic()
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
            say("\r" + text.ljust(self.width), end="")
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
