"""The parser of every command: errors of one line with a suggestion, the name as it was typed, ``--version``.

Imports neither torch nor NumPy.
"""

import argparse
import os
import re
from difflib import get_close_matches
from typing import Any, NoReturn

from minisbert.core import InputError
from minisbert.system.console import bounded
from minisbert.system.help_pages import typed
from minisbert.system.version import __version__

CHOICE = re.compile(r"invalid choice: '(?P<given>.*)' \(choose from (?P<choices>.*)\)")
UNKNOWN = re.compile(r"unrecognized arguments: (?P<given>--[\w-]+)")


class Parser(argparse.ArgumentParser):
    """A wrong option is an ``InputError`` of one line, without the usage of all options before it."""

    def error(self, message: str) -> NoReturn:
        found, names = UNKNOWN.search(message), [*self._option_string_actions]
        if found is None:
            found = CHOICE.search(message)
            names = re.findall(r"[\w.-]+", found["choices"]) if found else []
        advice = f"{self.prog} --help lists the options"
        near = get_close_matches(found["given"], names, n=1) if found else []
        if near:
            advice = f"did you mean {near[0]}?"
        raise InputError(f"{message}; {advice}")

    def parse_args(self, *arguments: Any, **options: Any) -> Any:
        if "_ARGCOMPLETE" in os.environ:  # the shell asks what may follow; docs/commands.md says how to switch it on
            import argcomplete

            argcomplete.autocomplete(self)
        return super().parse_args(*arguments, **options)


def command_parser(name: str, doc: str | None, **options: Any) -> Parser:
    """The parser of ``minisbert NAME``; ``--help`` shows its file's docstring above the options."""
    about, layout = (doc or "").replace("``", ""), argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=typed(name), description=about, formatter_class=layout, **options)
    parser.add_argument("--version", action="version", version=f"minisbert {__version__}")
    return parser


def add_threads_option(parser: argparse._ActionsContainer) -> None:
    """``--threads N``, for ``use_threads``."""
    about = "CPU threads (default: OMP_NUM_THREADS, or one per core)"
    parser.add_argument("--threads", metavar="N", type=bounded(int, 1, 1025), help=about)
