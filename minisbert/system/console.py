"""How commands talk to the user: one-line errors, a progress line, exit codes.

Exit codes: 0 success, 2 bad input (one line on stderr, no traceback), 130 interrupted by Ctrl-C.
"""

import argparse
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TextIO

from tqdm import tqdm

from minisbert.core import InputError, reading
from minisbert.core.checks import check
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
        name = option.removesuffix("=")
        empty = value == "" or option.endswith("=")
        if empty and option.startswith("--") and "=" not in name and not name.endswith("prompt"):
            raise InputError(f"{name}: an empty value; omit the option")


def command_parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """The parser of ``minisbert NAME``; ``--help`` shows its file's docstring above the options."""
    about, layout = (doc or "").replace("``", ""), argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=f"minisbert {name}", description=about, formatter_class=layout)


def check_options(options: argparse.Namespace, **rules: str) -> None:
    """Raise ``InputError`` unless each option, if given, keeps its rule: ``check_options(options, top="finite")``."""
    for name, rule in rules.items():
        with reading(f"--{name.replace('_', '-')}"):
            check(f"value {rule}", getattr(options, name))


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
    amount = re.search(r"allocate (\d[\d.,]* ?\w*)", text)  # "you tried to allocate 4000 bytes", "allocate 2.00 GiB"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)[1:] if "minisbert" in frame.filename]
    place = f" in {frames[-1].name} ({os.path.basename(frames[-1].filename)})" if frames else ""
    wanted = f": {amount[1]} more were needed" if amount else ""
    return f"not enough memory{place}{wanted}; use less data or a smaller batch"


def clipped(message: str) -> str:
    """The beginning of a message: at most 20 lines and 4,000 characters."""
    lines = message[:ERROR_CHARACTERS].splitlines()
    cut = len(message) > ERROR_CHARACTERS or len(lines) > ERROR_LINES
    return "\n".join(lines[:ERROR_LINES]) + (f"... ({len(message):,} characters)" if cut else "")


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


class Bar(tqdm):
    """Progress of long work: a bar on a terminal, a line every ten seconds in a log file; short work logs nothing.

    >>> for block in Bar(blocks, desc="comparing", unit=" blocks"):
    """

    monitor_interval = 0  # no thread that watches the bar

    def __init__(self, *arguments: Any, shown: bool = True, **options: Any):
        wait = 0.1 if sys.stderr.isatty() else 10.0
        fixed = {"leave": False, "disable": not shown, "mininterval": wait, "file": Terminal(), "position": 0}
        super().__init__(*arguments, **{"delay": wait, "unit_scale": True} | options | fixed)

    @staticmethod
    def status_printer(file: Any) -> Callable[[str], None]:
        """The function by which tqdm shows its line."""
        return tqdm.status_printer(file) if sys.stderr.isatty() else lambda text: say(text) if text else None


Bar.set_lock(threading.RLock())  # tqdm's own would start a process


class LiveLine(Bar):
    """A line of text instead of the bar.

    >>> with LiveLine() as line:
    ...     line.show("step 1 of 180")
    """

    def __init__(self) -> None:
        super().__init__(bar_format="{desc}", miniters=1, delay=0.0 if sys.stderr.isatty() else 10.0)

    def show(self, text: str) -> None:
        self.set_description_str(text, refresh=sys.stderr.isatty())
        if not sys.stderr.isatty():
            self.update()  # every ten seconds


class Progress(Bar):
    """Progress of computing vectors, in tokens: texts come longest first, so counting texts would mislead.

    Texts not yet tokenized are assumed to be as long as the average so far. ``total`` is the number of texts, None if
    unknown.

    >>> with Progress(total=2) as line:
    ...     line.expect(texts=2, tokens=30)
    ...     line.done(tokens=18)
    """

    def __init__(self, total: int | None, shown: bool = True):
        super().__init__(unit=" tokens", shown=shown)
        self.all_texts, self.texts, self.tokens = total, 0, 0

    def expect(self, texts: int, tokens: int) -> None:
        """Add newly tokenized texts and the number of tokens to compute for them."""
        self.texts += texts
        self.tokens += tokens
        if self.all_texts is not None:
            self.total = round(self.tokens * self.all_texts / max(self.texts, 1))

    def done(self, tokens: int) -> None:
        self.update(tokens)


class Terminal:
    """stderr as a file for tqdm that never raises; a log file gets no control characters."""

    def write(self, text: str) -> None:
        if sys.stderr.isatty():
            say(text, end="")

    def flush(self) -> None:
        """``say`` has flushed it."""


def duration(seconds: float) -> str:
    """``duration(75) = '1:15'``, ``duration(4000) = '1:06:40'``."""
    return str(tqdm.format_interval(round(seconds))).removeprefix("0")
