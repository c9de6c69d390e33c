"""The parser of every command: errors of one line with a suggestion, the name as it was typed, completion in a shell.

Imports neither torch nor NumPy, and no command imports torch before its options are parsed: ``--help`` and the TAB key
answer at once.
"""

import argparse
import os
import re
import sys
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from minisbert import __version__
from minisbert.core import InputError
from minisbert.system.assets import assets
from minisbert.system.console import bounded

CHOICE = re.compile(r"invalid choice: '(?P<typed>.*)' \(choose from (?P<choices>.*)\)")
UNKNOWN = re.compile(r"unrecognized arguments: (?P<typed>--[\w-]+)")
VALUES = {  # behind options that take others, too, which the TAB key offers
    "device": ("auto", "cpu", "cuda", "mps"),
    "dtype": ("auto", "float32", "bfloat16", "int8"),
    "model": (),
    "recipe": (),
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are an ``InputError`` of one line, without the usage of all options before it."""

    def error(self, message: str) -> NoReturn:
        advice = f"{self.prog} --help lists the options"
        wrong, candidates = UNKNOWN.search(message), list(self._option_string_actions)
        if wrong is None:
            wrong = CHOICE.search(message)
            if wrong:
                candidates = re.findall(r"[\w.-]+", wrong["choices"])
        if wrong:
            near = get_close_matches(wrong["typed"], candidates, n=1, cutoff=0.75)
            if near:
                advice = f"did you mean {near[0]}?"
        raise InputError(f"{message}; {advice}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        sys.stdout.flush()  # of --help: now, while ``run_command`` can still report a full disk or a closed pipe
        super().exit(status, message)

    def parse_args(self, *arguments: Any, **options: Any) -> Any:
        # the shell asks what may follow; docs/commands.md says how to switch it on
        if "_ARGCOMPLETE" in os.environ:
            import argcomplete

            for action in self._actions:
                if action.dest in VALUES and not action.choices:
                    action.completer = complete_value  # type: ignore[attr-defined]
            argcomplete.autocomplete(self)
        return super().parse_args(*arguments, **options)


def complete_value(prefix: str, action: argparse.Action, **_: Any) -> list[str]:
    """List what may follow an option for the TAB key; behind ``--model`` names of models, and folders."""
    if action.dest == "recipe":  # from the file: this room imports no training
        recipes = Path(__file__).parents[1] / "training" / "recipes.toml"
        return ["list", *tomllib.loads(recipes.read_text(encoding="utf-8"))]
    if action.dest != "model":
        return [*VALUES[action.dest]]
    from argcomplete.completers import DirectoriesCompleter

    names = [name for name, asset in assets().items() if asset.kind == "weights"]
    return [*names, *DirectoriesCompleter()(prefix)]


def command_parser(name: str, doc: str | None, **options: Any) -> Parser:
    """Return the parser of ``minisbert NAME``; ``--help`` shows its file's docstring above the options."""
    about, layout = (doc or "").replace("``", ""), argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=typed_name(name), description=about, formatter_class=layout, **options)
    parser.add_argument("--version", action="version", version=f"minisbert {__version__}")
    return parser


def typed_name(name: str) -> str:
    """Return a command as it was typed: ``minisbert train``, or the same behind ``python -m``."""
    # Python's own record of -m, which needs no parsing of its options: None for a script
    specification = getattr(sys.modules["__main__"], "__spec__", None)
    module = ""
    if specification is not None:
        module = specification.name.removesuffix(".__main__")
    if module.startswith("minisbert."):
        return f"python -m {module}"
    if module == "minisbert":
        return f"python -m minisbert {name}"
    return f"minisbert {name}"


def add_threads_option(parser: argparse._ActionsContainer) -> None:
    """Add ``--threads N``, for ``use_threads``."""
    about = "CPU threads (default: OMP_NUM_THREADS, or one per core)"
    parser.add_argument("--threads", metavar="N", type=bounded(int, 1, 1025), help=about)
