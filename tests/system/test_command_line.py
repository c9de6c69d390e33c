"""Every command's parser: one line for a mistake, and the version."""

import pytest

from minisbert import __version__
from minisbert.core import InputError
from minisbert.system.command_line import command_parser


@pytest.fixture
def parser():
    parser = command_parser("paint", "Paint a wall.")
    parser.add_argument("--colour", choices=["red", "blue"])
    parser.add_argument("--coats", type=int)
    return parser


@pytest.mark.parametrize("given", [["--votes"], ["--colour", "blu"], ["--coats", "two"]])
def test_a_mistake_is_one_line_that_names_the_option(parser, given):
    with pytest.raises(InputError, match=given[0]) as error:
        parser.parse_args(given)
    assert "\n" not in str(error.value)


def test_the_version_of_a_command(parser, capsys):
    with pytest.raises(SystemExit, match="0"):
        parser.parse_args(["--version"])
    assert capsys.readouterr().out == f"minisbert {__version__}\n"
