"""The pages of ``--help``: what the parsers print, without importing torch."""

import subprocess
import sys

import pytest

from minisbert.system.help_pages import FOLDER, print_page
from tests.help_pages import page, pages

OLD_STYLE = pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse prints options in another way since 3.13")


@OLD_STYLE
@pytest.mark.parametrize("name", pages())
def test_a_page_is_what_the_parser_prints(name):
    """If it is not: ``python -m tests.help_pages``."""
    assert (FOLDER / name).read_text(encoding="utf-8") == page(*pages()[name])


def test_there_is_a_page_for_each_command_and_no_other():
    assert {path.name for path in FOLDER.iterdir()} == {*pages()}


@pytest.mark.parametrize(
    ("arguments", "usage"),
    [
        (["-m", "minisbert", "encode", "--help"], "usage: python -m minisbert encode [-h]"),
        (["-m", "minisbert", "help", "train"], "usage: python -m minisbert train [-h]"),
        (["-m", "minisbert.train", "--help-all"], "usage: python -m minisbert.train [-h]"),
    ],
)
def test_help_imports_no_torch_and_says_what_was_typed(arguments, usage):
    done = subprocess.run([sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(usage)
    assert " torch" not in done.stderr


@pytest.mark.parametrize("arguments", [["--help", "--json"], ["shards", "--help"], ["--help-all"], []])
def test_anything_else_is_left_to_the_parser(arguments, capsys):
    print_page("encode", arguments)
    assert capsys.readouterr().out == ""
