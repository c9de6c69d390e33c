"""The command ``minisbert``: ``minisbert NAME`` runs a function of ``commands/``, whose parser
reads the rest.
"""

import sys
from collections.abc import Callable
from importlib import import_module

from minisbert import __version__
from minisbert.core import InputError, one_line
from minisbert.system.console import run_command

# the groups of --help: each command with its file and function in commands/, and a line for --help
GROUPS = {
    "encode and search": {
        "encode": ("encode:main", "similarities of a few texts, or the vectors of many in a file"),
        "search": ("search:main", "the texts of a file that are closest to a query"),
        "pairs": ("pairs:main", "the closest pairs in a file: near-duplicates, paraphrases"),
        "mine": ("mine:main", "hard negatives for pairs, as triplets to train on"),
    },
    "train and evaluate": {
        "train": ("train:main", "fine-tune a model on your data or on STS-B"),
        "plot": ("train:plot", "draw the curves of one run, or of several"),
        "inspect": (
            "inspect_:main",
            "what is in a data file, what is wrong with it, and the command that trains",
        ),
        "evaluate": (
            "evaluate:main",
            "correlation with human scores, labels, triplets, retrieval, the STS suite",
        ),
        "score": ("score:main", "score pairs of texts by a cross-encoder or another trained head"),
    },
    "serve": {
        "serve": (
            "serve:main",
            "vectors and reranking over HTTP, in the protocol of OpenAI's embeddings",
        ),
        "compile": (
            "convert:to_native_code",
            "compile a model to native code that is twice as fast",
        ),
        "export-onnx": ("convert:to_onnx", "write a model as ONNX, for programs without PyTorch"),
        "distill-static": (
            "convert:distill_static",
            "a table of one vector per token: far faster, at a loss",
        ),
    },
    "check": {
        "certify": ("certify:main", "whether another engine's vectors are right, and if not, why"),
        "trace": ("trace_:main", "where another implementation first differs"),
    },
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}
COMMANDS |= {
    "assets": ("assets:main", "weights and data sets"),
    "version": ("assets:version", "of what this is"),
}


def command(name: str) -> Callable[[list[str] | None], None]:
    """Return the function that runs a command with its arguments, by default those of
    ``sys.argv``.
    """
    file, _, function = COMMANDS[name][0].partition(":")
    main: Callable[[list[str] | None], None] = getattr(
        import_module(f"minisbert.commands.{file}"), function
    )
    return main


def dispatch() -> None:
    """Run the command that ``sys.argv`` names."""
    if sys.argv[1:2] == ["help"]:  # help train: train --help
        sys.argv[1:] = [*sys.argv[2:3], "--help"]
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print("usage: minisbert COMMAND ...")
        for title, group in GROUPS.items():
            print(f"\n{title}:")
            for command_name, (_, about) in group.items():
                print(f"  {command_name:<16}{about}")
        print(
            "\nminisbert COMMAND --help shows a command's options and examples. minisbert assets "
            "fetches weights"
        )
        print(
            "and data sets, minisbert version says what this CPU multiplies by, minisbert "
            "--version the version."
        )
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
    run_command(dispatch)


if __name__ == "__main__":
    main()
