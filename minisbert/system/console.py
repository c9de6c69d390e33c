"""How commands talk to the user: options, messages, exit codes; Ctrl-C waits for a step.

What the library has to say goes to ``logging.getLogger("minisbert")``, by ``say`` and ``warn``.
Only a command prints it as it is: in a Python program the levels and handlers are the program's.

Exit codes: 0 success, 2 bad input (one line on stderr, no traceback), 130 interrupted by Ctrl-C.
Imports neither torch nor NumPy, and no command imports torch before its options are parsed:
``--help`` answers at once.
"""

import argparse
import errno
import inspect
import io
import json
import logging
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

LOGGER = logging.getLogger("minisbert")
MOST_CHARACTERS = 4000  # of an error message; what follows is cut off
# How long OpenMP's threads spin before they sleep, in a command: 3,000 iterations in libgomp, about
# .15 ms (default: 300,000); 1 ms in libomp and Intel's (default: 200). A spinning thread keeps its
# core from other processes.
SPINNING = {"GOMP_SPINCOUNT": "3000", "KMP_BLOCKTIME": "1"}


def control_characters() -> dict[int, str]:
    """Return the control characters and what is printed for them, but not a tab and a line's end.

    A terminal obeys them, and they may come from the names in a file that somebody else wrote: a
    new title for the window, a line that overwrites the one before.
    """
    escapes = {}
    for code in [*range(0x20), *range(0x7F, 0xA0)]:
        escapes[code] = f"\\x{code:02x}"
    del escapes[ord("\t")]
    del escapes[ord("\n")]
    return escapes


CONTROL_CHARACTERS = control_characters()

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
    print_every_character()
    interrupts = Interrupts()
    try:
        with interrupts, messages_on_stderr():
            main()
            sys.stdout.flush()  # now, while a full disk or a closed pipe can still be reported
    except (KeyboardInterrupt, Exception) as error:
        # subtle: Ctrl-C during the import of native code arrives as an ImportError
        if interrupts.raised and isinstance(error, ImportError):
            error = KeyboardInterrupt()
        code = report_error(error)
        if code is None:
            raise
        sys.exit(code)


def report_error(error: BaseException) -> int | None:
    """Print what the user should know of an error, and return the exit code.

    None stands for an error of the program, whose traceback is to be shown.
    """
    settle_output()
    if isinstance(error, KeyboardInterrupt):
        write_stderr("stopped\n")
        return 130
    # The reader of stdout (head, less) has closed the pipe, which is not an error.
    if isinstance(error, BrokenPipeError):
        return 0
    message = user_message(error)
    if message is None or os.environ.get("MINISBERT_TRACEBACK"):
        return None
    write_stderr(f"error: {escaped(message[:MOST_CHARACTERS])}\n")
    return 2


def shorten_spinning() -> None:
    """Let OpenMP's threads sleep soon, unless the user has said how they wait.

    OpenMP reads the variables when torch is imported, so a program that has imported torch keeps
    what it has.
    """
    user_chose = any(name in os.environ for name in ("OMP_WAIT_POLICY", *SPINNING))
    if "torch" not in sys.modules and not user_chose:
        os.environ.update(SPINNING)


def print_every_character() -> None:
    """Let stdout escape what its encoding lacks, as stderr does.

    A Windows console in cp1252 has no Chinese, and a ``print`` of it would end the command.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def user_message(error: BaseException) -> str | None:
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
    advice = ""
    if error.errno in FILE_ADVICE:
        advice = FILE_ADVICE[error.errno]
    return f"{error.filename}: {error.strerror}{advice}"


def memory_message(error: BaseException) -> str | None:
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

    def print_help(self, file: Any = None) -> None:
        """Print the help; argparse's own method says nothing of a full disk."""
        print(self.format_help(), end="", file=file or sys.stdout)

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


def write_stderr(text: str) -> None:
    """Write to stderr, which leaves stdout to the results.

    What cannot be written is dropped: a full disk or a closed pipe must not end hours of work.
    """
    try:
        print(text, end="", file=sys.stderr, flush=True)
    except OSError:
        settle_output()


def escaped(text: str) -> str:
    """Return the text with control characters escaped, but not tabs and the ends of lines.

    Bytes of a file's name that are not UTF-8 are escaped too: a log file or a socket would refuse
    the half of a character that Python makes of each.
    """
    printable = text.translate(CONTROL_CHARACTERS)
    return printable.encode("utf-8", "backslashreplace").decode("utf-8")


def say(text: str) -> None:
    """Log what is done, at the level INFO: a command prints it, Python shows it if it is asked to.

    ``logging.basicConfig(level=logging.INFO)`` asks for it.
    """
    LOGGER.info(escaped(text), stacklevel=2)


def warn(text: str) -> None:
    """Log what the user should know, at the level WARNING, which Python shows on stderr by itself.

    That is: a result may not be the one that was wanted, or nothing will be seen for minutes.
    """
    LOGGER.warning(escaped(text), stacklevel=2)


class StderrHandler(logging.Handler):
    """Print messages as they are, without level, time or name."""

    def emit(self, record: logging.LogRecord) -> None:
        write_stderr(f"{record.getMessage()}\n")


@contextmanager
def messages_on_stderr() -> Iterator[None]:
    """Print all messages of the library on stderr, as a command does.

    A program that prints them already may run a command: then nothing changes.
    """
    if any(isinstance(handler, StderrHandler) for handler in LOGGER.handlers):
        yield
        return
    handler = StderrHandler()
    level = LOGGER.level
    propagate = LOGGER.propagate
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False  # a library that configures the root logger would print them again
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)
        LOGGER.propagate = propagate


def print_json(content: object) -> None:
    """Print one JSON object on stdout; what its encoding lacks is escaped as JSON escapes it."""
    text = json.dumps(content, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        # Python would write \U0001f600 for a character, which no JSON reader takes.
        text = json.dumps(content)
    print(text)


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
