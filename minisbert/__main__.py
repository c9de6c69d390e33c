"""The command ``minisbert``: ``minisbert NAME`` runs a function of ``commands/``.

The function has its own parser for the arguments behind NAME.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from minisbert import __version__
from minisbert.core import InputError, one_line
from minisbert.system.console import run_command


class Command(NamedTuple):
    """A command: a function in ``commands/FILE.py``, and its line in ``--help``."""

    file: str
    function: str
    summary: str


# The commands under their headings in --help.
GROUPS = {
    "encode and search": {
        "encode": Command(
            "encode", "main", "similarities of a few texts, or the vectors of many in a file"
        ),
        "search": Command("search", "main", "the texts of a file that are closest to a query"),
        "pairs": Command(
            "pairs", "main", "the closest pairs in a file: near-duplicates, paraphrases"
        ),
        "mine": Command("mine", "main", "hard negatives for pairs, as triplets to train on"),
    },
    "train and evaluate": {
        "train": Command("train", "main", "fine-tune a model on your data or on STS-B"),
        "plot": Command("train", "plot", "draw the curves of one run, or of several"),
        "inspect": Command(
            "inspect_",
            "main",
            "what a data file contains, what is wrong with it, and how to train on it",
        ),
        "evaluate": Command(
            "evaluate",
            "main",
            "correlation with human scores, labels, triplets, retrieval, the STS suite",
        ),
        "score": Command(
            "score", "main", "score pairs of texts by a cross-encoder or another trained head"
        ),
    },
    "serve": {
        "serve": Command("serve", "main", "OpenAI-compatible embeddings and reranking over HTTP"),
        "compile": Command(
            "convert", "to_native_code", "compile a model to native code that is twice as fast"
        ),
        "export-onnx": Command(
            "convert", "to_onnx", "write a model as ONNX, for programs without PyTorch"
        ),
        "distill-static": Command(
            "convert",
            "distill_static",
            "make a table of one vector per token: far faster, less accurate",
        ),
    },
    "check": {
        "certify": Command(
            "certify", "main", "whether another engine's vectors are right, and if not, why"
        ),
        "trace": Command("trace_", "main", "where another implementation first differs"),
    },
}

# All commands by name. The last two are not listed, but named below the list.
COMMANDS: dict[str, Command] = {}
for group in GROUPS.values():
    COMMANDS.update(group)
COMMANDS["assets"] = Command("assets", "main", "fetch weights and data sets")
COMMANDS["version"] = Command("assets", "version", "what this CPU multiplies with")

CLOSING_LINES = """
minisbert COMMAND --help shows a command's options and examples. minisbert assets fetches weights
and data sets, minisbert version says what this CPU multiplies with, minisbert --version prints the
version.
"""


def command(name: str) -> Callable[[list[str] | None], None]:
    """Return the function that runs a command.

    It takes the command's arguments; with None it reads those of ``sys.argv``.
    """
    entry = COMMANDS[name]
    module = import_module(f"minisbert.commands.{entry.file}")
    function: Callable[[list[str] | None], None] = getattr(module, entry.function)
    return function


def print_help() -> None:
    print("usage: minisbert COMMAND ...")
    for title, group in GROUPS.items():
        print(f"\n{title}:")
        for name, entry in group.items():
            print(f"  {name:<16}{entry.summary}")
    print(CLOSING_LINES.rstrip("\n"))


def dispatch() -> None:
    """Run the command that ``sys.argv`` names."""
    # "minisbert help train" is "minisbert train --help".
    if len(sys.argv) > 1 and sys.argv[1] == "help":
        topic = sys.argv[2:3]
        sys.argv[1:] = [*topic, "--help"]

    name = "--help"
    if len(sys.argv) > 1:
        name = sys.argv[1]
    if name in ("-h", "--help"):
        print_help()
        return
    if name == "--version":
        print(f"minisbert {__version__}")
        return

    name = name.replace("_", "-")
    if name not in COMMANDS:
        raise InputError(
            f"minisbert has no command {one_line(name)}; minisbert alone lists the commands"
        )
    del sys.argv[1]  # the command's own parser reads what is left
    command(name)(None)


def main() -> None:
    """Run ``dispatch``; what the user can mend is one line on stderr and an exit code."""
    run_command(dispatch)


if __name__ == "__main__":
    main()
