"""What the parsers of several commands share. Imports neither torch nor NumPy."""

import argparse

from minisbert.system.console import bounded


def command_parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """The parser of ``minisbert NAME``; ``--help`` shows its file's docstring above the options."""
    about, layout = (doc or "").replace("``", ""), argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=f"minisbert {name}", description=about, formatter_class=layout)


def add_threads_option(parser: argparse._ActionsContainer) -> None:
    """``--threads N``, for ``use_threads``."""
    about = "CPU threads (default: OMP_NUM_THREADS, or one per core)"
    parser.add_argument("--threads", metavar="N", type=bounded(int, 1, 1025), help=about)
