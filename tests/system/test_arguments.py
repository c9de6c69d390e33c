"""Every command's parser: one line for a mistake, the name as typed, the version, completion in a shell."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from minisbert import __version__
from minisbert.core import InputError
from minisbert.system import command_line as arguments
from minisbert.system.help_pages import typed
from tests.conftest import ROOT


@pytest.fixture
def parser():
    parser = arguments.command_parser("paint", "Paint a wall.")
    parser.add_argument("--colour", choices=["red", "blue"])
    parser.add_argument("--coats", type=int)
    return parser


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--color", "red"], "unrecognized arguments: --color red; did you mean --colour?"),
        (["--colour", "blu"], "argument --colour: invalid choice: 'blu' .*; did you mean blue?"),
        (["--zzz"], "unrecognized arguments: --zzz; minisbert paint --help lists the options"),
        (["--coats", "two"], "argument --coats: invalid int value: 'two'; minisbert paint --help lists the options"),
    ],
)
def test_a_mistake_is_one_line_with_advice(parser, given, message):
    with pytest.raises(InputError, match=message.replace("?", r"\?")) as found:
        parser.parse_args(given)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["minisbert", "paint"], "minisbert paint"),
        (["python", "-m", "minisbert", "paint"], "python -m minisbert paint"),
        (["python", "-m", "minisbert.train", "--epochs", "4"], "python -m minisbert.train"),
        (["python", "-m", "pytest"], "minisbert paint"),
    ],
)
def test_usage_has_the_name_that_was_typed(monkeypatch, words, name):
    monkeypatch.setattr(sys, "orig_argv", words)
    assert typed("paint") == name


def command(*words: str, **environment: str) -> subprocess.CompletedProcess:
    code = "import sys; from minisbert.__main__ import main; sys.argv[0] = 'minisbert'; main()"
    given = os.environ | environment
    return subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, env=given, capture_output=True, text=True)


def test_help_and_version_of_a_command():
    shown = command("help", "assets")
    assert (shown.returncode, shown.stdout[:23]) == (0, "usage: minisbert assets")
    assert shown.stdout == command("assets", "--help").stdout
    assert command("assets", "--version").stdout == f"minisbert {__version__}\n"
    assert "usage: minisbert COMMAND" in command("help").stdout


@pytest.mark.skipif(not find_spec("argcomplete"), reason="needs the completion extra: pip install '.[completion]'")
@pytest.mark.parametrize(
    ("line", "expected"), [("minisbert ass", {"assets"}), ("minisbert assets --ver", {"--version"})]
)
def test_a_shell_completes(tmp_path, line, expected):
    """As bash asks: the line so far in the environment, the answers in a file in place of descriptor 8."""
    answers = tmp_path / "answers"
    asked = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1", "COMP_TYPE": "9"}
    command(**asked, _ARGCOMPLETE_STDOUT_FILENAME=str(answers), _ARGCOMPLETE_IFS="\n")
    assert {word.strip() for word in answers.read_text().split("\n")} == expected
