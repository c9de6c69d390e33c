"""How commands talk to the user: options, one-line errors, exit codes; Ctrl-C waits for a step.

Exit codes: 0 success, 2 bad input (one line on stderr, no traceback), 130 interrupted by Ctrl-C.
Imports neither torch nor NumPy, and no command imports torch before its options are parsed:
``--help`` answers at once.
"""

import argparse
import errno
import inspect
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from minisbert import __version__
from minisbert.core import InputError

MOST_CHARACTERS = 4000  # of an error message; what follows is cut off
# How long OpenMP's threads spin before they sleep, in a command: 3,000 iterations in libgomp, about
# .15 ms (default: 300,000); 1 ms in libomp and Intel's (default: 200). A spinning thread keeps its
# core from other processes.
SPINNING = {"GOMP_SPINCOUNT": "3000", "KMP_BLOCKTIME": "1"}

CHECK_PLACE = "; check its permissions, or name another place (--out, MINISBERT_HOME)"
# What the user can do about the error of a file, by its number.
FILE_ADVICE = {
    errno.EROFS: CHECK_PLACE,
    errno.EACCES: CHECK_PLACE,
    errno.EPERM: CHECK_PLACE,
    errno.ENOSPC: "; free some space, or name another disk",
}


def run_command(main: Callable[[], None]) -> None:
    """Run a command's ``main``; what the user can mend is one line on stderr and an exit code.

    They can mend bad input and a full disk or memory; Ctrl-C ends in one line, too.
    ``MINISBERT_TRACEBACK=1`` shows the traceback instead. Programming errors always keep theirs.
    """
    shorten_spinning()
    interrupts = Interrupts()
    try:
        with interrupts:
            main()
            sys.stdout.flush()  # now, while a full disk or a closed pipe can still be reported
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(130)
    except Exception as error:
        settle_output()
        # The reader of stdout (head, less) has closed the pipe, which is not an error.
        if isinstance(error, BrokenPipeError):
            sys.exit(0)
        # subtle: Ctrl-C during the import of native code arrives as an ImportError
        if interrupts.raised and isinstance(error, ImportError):
            say("stopped")
            sys.exit(130)
        message = user_message(error)
        if message is None or os.environ.get("MINISBERT_TRACEBACK"):
            raise
        say(f"error: {message[:MOST_CHARACTERS]}")
        sys.exit(2)


def shorten_spinning() -> None:
    """Let OpenMP's threads sleep soon, unless the user has said how they wait.

    OpenMP reads the variables when torch is imported, so a program that has imported torch keeps
    what it has.
    """
    user_chose = any(name in os.environ for name in ("OMP_WAIT_POLICY", *SPINNING))
    if "torch" not in sys.modules and not user_chose:
        os.environ.update(SPINNING)


def user_message(error: Exception) -> str | None:
    """Return what to tell the user about an error that they can mend; None for a bug."""
    if isinstance(error, OSError):
        return file_message(error)
    if isinstance(error, InputError):
        return str(error)
    return memory_message(error)


def file_message(error: OSError) -> str:
    """Return the file, what the system says about it, and what to do."""
    if not error.strerror:
        return str(error)
    if not error.filename:
        return error.strerror
    return f"{error.filename}: {error.strerror}{FILE_ADVICE.get(error.errno or 0, '')}"


def memory_message(error: Exception) -> str | None:
    """Return how much memory was asked for, if Python, NumPy or torch ran out of it; else None."""
    text = str(error)
    ran_out = re.search("out of memory|can't allocate memory", text)
    if not isinstance(error, MemoryError) and not ran_out:
        return None
    message = "not enough memory"
    # "you tried to allocate 4000 bytes", "allocate 2.00 GiB"
    amount = re.search(r"allocate (\d[\d.,]* ?\w*)", text)
    if amount:
        message += f": {amount[1]} more were needed"
    return f"{message}; use less data or a smaller batch"


class Parser(argparse.ArgumentParser):
    """A parser whose errors are an ``InputError`` of one line, without the usage of all options."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; {self.prog} --help lists the options")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        # The text of --help is written now, while ``run_command`` can still report a full disk or a
        # closed pipe.
        sys.stdout.flush()
        super().exit(status, message)


def command_parser(name: str, doc: str | None, **options: Any) -> Parser:
    """Return the parser of ``minisbert NAME``.

    ``--help`` shows ``doc``, a docstring, with its examples below the options.
    """
    text = inspect.cleandoc(doc or "").replace("``", "")
    description, _, examples = text.partition("\n\nExamples:")
    if examples:
        options.setdefault("epilog", f"Examples:{examples}")
    parser = Parser(
        prog=f"minisbert {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,
    )
    parser.add_argument("--version", action="version", version=f"minisbert {__version__}")
    return parser


def add_threads_option(parser: argparse._ActionsContainer) -> None:
    """Add ``--threads N``, for ``use_threads``."""
    parser.add_argument(
        "--threads",
        metavar="N",
        type=bounded(int, 1, 1025),
        help="CPU threads (default: OMP_NUM_THREADS, or one per core)",
    )


def cut_message(limit: int, truncated: int, total: int) -> str:
    """Return a message: ``3 of 2,758 texts were longer than 256 tokens and were cut``."""
    return f"{truncated:,} of {total:,} texts were longer than {limit} tokens and were cut"


def bounded(kind: type, least: float, below: float = math.inf) -> Callable[[str], Any]:
    """Return the type of an option for argparse: an int or float from ``least``, below ``below``.

    ``kind`` is ``int`` or ``float``.
    """

    def convert(text: str) -> Any:
        value = kind(text)
        if not least <= value < below:
            raise ValueError
        return value

    # argparse shows the name of the function in its error.
    noun = "integer" if kind is int else "number"
    convert.__name__ = f"{noun} from {least:g}"
    if below < math.inf:
        convert.__name__ += f", below {below:g}"
    return convert


def score_scale(text: str) -> float:
    """Convert the value of ``--scale``, the highest score."""
    scale = float(text)
    if not 1e-4 <= scale < math.inf:
        raise ValueError
    return scale


score_scale.__name__ = "scale, such as 1 or 5"  # argparse shows this in its error


def check_usage(*cases: tuple[object, str]) -> None:
    """Raise ``InputError`` for the first of the cases (is it wrong?, message) that is wrong."""
    for is_wrong, message in cases:
        if is_wrong:
            raise InputError(message)


@contextmanager
def exiting(code: int) -> Iterator[None]:
    """Exit with ``code`` after a block that prints a verdict; if it is 0, go on.

    This holds even if the reader of stdout (head, less) has gone.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        settle_output()
    if code:
        sys.exit(code)


def settle_output() -> None:
    """Flush both streams; send what cannot be written to the null device.

    Otherwise Python would report it again at exit.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(text: str, end: str = "\n") -> None:
    """Print a message to stderr, which leaves stdout to the results.

    It is dropped if stderr cannot be written.
    """
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except OSError:  # a full disk or a closed pipe must not end hours of work
        settle_output()


class Interrupts:
    """Ctrl-C and SIGTERM as ``KeyboardInterrupt``, deferred to the end of a ``defer`` block.

    >>> with Interrupts() as interrupts:
    ...     with interrupts.defer():
    ...         ...  # a step

    An interrupt in the step is raised at its end; a second one ends the process immediately.
    """

    def __init__(self) -> None:
        self.deferring = False
        self.waiting = False  # a signal has arrived in a deferred block
        self.raised = False  # a signal has arrived outside one, and has become an exception
        self.replaced: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        # Only the main thread can set signal handlers.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # A shell's background job ignores Ctrl-C, and goes on ignoring it. None stands for
                # a handler in C, which Python could not put back.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self.replaced[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.replaced.items():
            signal.signal(number, handler)

    def _handle(self, *_: object) -> None:
        if not self.deferring:
            self.raised = True
            raise KeyboardInterrupt
        if self.waiting:
            raise SystemExit(130)  # a second signal does not wait, not even for a save
        self.waiting = True

    @contextmanager
    def defer(self) -> Iterator[None]:
        """Raise an interrupt that arrives inside this block at its end.

        Of nested blocks, the end of the outermost one counts.
        """
        if self.deferring:
            yield
            return
        self.deferring = True
        interrupted = False
        try:
            yield
        finally:
            self.deferring = False
            interrupted = self.waiting
            self.waiting = False
        if interrupted:
            raise KeyboardInterrupt
