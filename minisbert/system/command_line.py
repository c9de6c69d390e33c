"""The parser of every command: its errors are one line.

Imports neither torch nor NumPy, and no command imports torch before its options are parsed: ``--help`` answers at once.
"""

import argparse
import sys
from typing import Any, NoReturn

from minisbert import __version__
from minisbert.core import InputError
from minisbert.system.console import bounded


class Parser(argparse.ArgumentParser):
    """A parser whose errors are an ``InputError`` of one line, without the usage of all options before it."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; {self.prog} --help lists the options")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        sys.stdout.flush()  # of --help: now, while ``run_command`` can still report a full disk or a closed pipe
        super().exit(status, message)


def command_parser(name: str, doc: str | None, **options: Any) -> Parser:
    """Return the parser of ``minisbert NAME``; ``--help`` shows its file's docstring above the options."""
    about, layout = (doc or "").replace("``", ""), argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=f"minisbert {name}", description=about, formatter_class=layout, **options)
    parser.add_argument("--version", action="version", version=f"minisbert {__version__}")
    return parser


def add_threads_option(parser: argparse._ActionsContainer) -> None:
    """Add ``--threads N``, for ``use_threads``."""
    about = "CPU threads (default: OMP_NUM_THREADS, or one per core)"
    parser.add_argument("--threads", metavar="N", type=bounded(int, 1, 1025), help=about)
