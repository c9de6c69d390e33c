"""How the commands talk to a person: one kind of error, one live line, one exit code per outcome.

Exit codes: 0 done, 2 bad input (one line on stderr, no traceback), 130 stopped by Ctrl-C.
"""

import os
import sys
import time
from collections.abc import Callable

from minisbert.core import InputError


def run_command(main: Callable[[], None]) -> None:
    """Run a command's ``main`` and turn bad input, a full disk or Ctrl-C into one line and an exit code.

    ``MINISBERT_TRACEBACK=1`` shows the traceback as well. Errors that are our own fault keep theirs always.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character gets its code
    try:
        main()
        sys.stdout.flush()  # now, while a full disk or a closed pipe can still be told
    except (InputError, OSError) as error:
        settle_output()
        if isinstance(error, BrokenPipeError):  # the reader of our output (head, less) has gone: not an error
            sys.exit(0)
        if os.environ.get("MINISBERT_TRACEBACK"):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


def settle_output() -> None:
    """Write out what is still held back; where that cannot be, drop it, or Python complains again at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(text: str) -> None:
    """One line for the person at the terminal; stderr, so that stdout stays clean for results."""
    print(text, file=sys.stderr, flush=True)


class LiveLine:
    """A progress line on stderr: rewritten in place on a terminal, every ``seconds`` a new line in a log file.

    >>> with LiveLine() as line:
    ...     line.show("step 1 of 180")
    """

    def __init__(self, seconds: float = 10.0):
        self.terminal = sys.stderr.isatty()
        self.interval = 0.1 if self.terminal else seconds
        self.last = time.monotonic() if not self.terminal else 0.0  # a log file needs no line for short work
        self.width = 0

    def __enter__(self) -> "LiveLine":
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Show ``text`` unless the line was shown a moment ago."""
        now = time.monotonic()
        if now - self.last < self.interval:
            return
        self.last = now
        if self.terminal:
            sys.stderr.write("\r" + text.ljust(self.width))
            sys.stderr.flush()
            self.width = len(text)
        else:
            say(text)

    def clear(self) -> None:
        """Make room for an ordinary line."""
        if self.terminal and self.width:
            sys.stderr.write("\r" + " " * self.width + "\r")
            sys.stderr.flush()
            self.width = 0


class Progress(LiveLine):
    """How far a long computation over texts is, with its rate and the time left.

    Both go by tokens: texts come longest first, and by texts the time left would be far off. Where not all texts
    have been tokenized yet, those that have speak for the others. ``total`` texts; None where nobody knows.

    >>> with Progress(total=2) as line:
    ...     line.expect(texts=2, tokens=30)
    ...     line.done(tokens=18)
    """

    def __init__(self, total: int | None, shown: bool = True):
        super().__init__()
        self.total = total
        self.shown = shown
        self.started = time.monotonic()
        self.texts = self.tokens = self.finished = 0

    def expect(self, texts: int, tokens: int) -> None:
        """So many texts more have been tokenized, and hold so many tokens that must be computed."""
        self.texts += texts
        self.tokens += tokens

    def done(self, tokens: int) -> None:
        self.finished += tokens
        if self.shown:
            rate = self.finished / max(time.monotonic() - self.started, 1e-9)
            left = "" if self.total is None else f", {duration(self.ahead() / rate)} left"
            share = "" if self.total is None else f" of {self.finished + self.ahead():,.0f}"
            self.show(f"{self.finished:,}{share} tokens, {rate:,.0f} a second{left}")

    def ahead(self) -> float:
        """Tokens still to be computed, those of texts not yet tokenized estimated."""
        return self.tokens * self.total / self.texts - self.finished


def duration(seconds: float) -> str:
    """``duration(75) = '1:15'``, ``duration(4000) = '1:06:40'``."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
