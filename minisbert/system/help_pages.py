"""``--help`` as pages that are ready to print: a parser needs its command's imports, and torch takes over a second.

``python -m tests.help_pages`` writes the pages from the parsers, and a test compares the two.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent / "help"
# arguments -> the end of the page's name
ENDINGS: dict[tuple[str, ...], str] = {("-h",): "", ("--help",): "", ("--help-all",): "-all"}


def print_page(command: str, arguments: Sequence[str]) -> None:
    """Print a command's page and end the process, if there is one and the arguments ask for nothing else."""
    ending = ENDINGS.get(tuple(arguments))
    page = FOLDER / f"{command}{ending}.txt"
    if ending is not None and page.is_file():
        text = page.read_text(encoding="utf-8")
        print(text.replace(f"minisbert {command}", typed(command), 1), end="")
        sys.exit(0)


def typed(name: str) -> str:
    """A command as it was typed: ``minisbert train``, or the same behind ``python -m``."""
    module = ""
    if "-m" in sys.orig_argv[:-1]:
        module = sys.orig_argv[sys.orig_argv.index("-m") + 1]
    if module.startswith("minisbert."):
        return f"python -m {module}"
    if module == "minisbert":
        return f"python -m minisbert {name}"
    return f"minisbert {name}"
