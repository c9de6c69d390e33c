"""Writes the pages of ``--help`` from the commands' parsers: ``python -m tests.help_pages``."""

import io
import os
from contextlib import redirect_stdout, suppress
from importlib import import_module
from unittest import mock

from minisbert.__main__ import files
from minisbert.system.help_pages import FOLDER

WIDTH = "100"  # columns


def page(command: str, option: str) -> str:
    """What a command's own parser prints."""
    module = "minisbert.train" if command == "train" else f"minisbert.commands.{files()[command].stem}"
    printed = io.StringIO()
    module_main = import_module(module).main
    with mock.patch.dict(os.environ, COLUMNS=WIDTH), redirect_stdout(printed), suppress(SystemExit):
        module_main([option])
    return "".join(f"{line.rstrip()}\n" for line in printed.getvalue().splitlines())


def pages() -> dict[str, tuple[str, str]]:
    """The command and the option of each page by its file's name."""
    named = {f"{command}.txt": (command, "--help") for command in files()}
    return named | {"train-all.txt": ("train", "--help-all")}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, asked in pages().items():
        (FOLDER / name).write_text(page(*asked), encoding="utf-8")


if __name__ == "__main__":
    main()
