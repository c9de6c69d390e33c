"""Every command's parser: one line for a mistake, the name as typed, the version, completion in a shell."""

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec

import pytest

from minisbert import __version__
from minisbert.core import InputError
from minisbert.system.command_line import command_parser, typed_name
from tests.conftest import ROOT


@pytest.fixture
def parser():
    parser = command_parser("paint", "Paint a wall.")
    parser.add_argument("--colour", choices=["red", "blue"])
    parser.add_argument("--coats", type=int)
    return parser


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (["--color", "red"], r"--color red; did you mean --colour\?"),
        (["--colour", "blu"], r"--colour: invalid choice: 'blu' .*; did you mean blue\?"),
        (["--goats", "2"], r"--goats 2; did you mean --coats\?"),
        (["--votes"], "--votes; minisbert paint --help"),  # no neighbour, only as long
        (["--zzz"], "--zzz; minisbert paint --help lists the options"),
        (["--coats", "two"], "--coats: invalid int value: 'two'; minisbert paint --help"),
    ],
)
def test_a_mistake_is_one_line_with_advice(parser, given, advice):
    with pytest.raises(InputError, match=advice) as error:
        parser.parse_args(given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (None, "minisbert paint"),  # a script
        ("minisbert.__main__", "python -m minisbert paint"),
        ("minisbert.train", "python -m minisbert.train"),
        ("pytest.__main__", "minisbert paint"),
    ],
)
def test_usage_has_the_name_that_was_typed(monkeypatch, module, name):
    specification = None if module is None else ModuleSpec(module, None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", specification)
    assert typed_name("paint") == name


def command(*words: str, **environment: str) -> subprocess.CompletedProcess:
    code = "import sys; from minisbert.__main__ import main; sys.argv[0] = 'minisbert'; main()"
    given = os.environ | environment
    return subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, env=given, capture_output=True, text=True)


def test_help_and_version_of_a_command():
    shown = command("help", "assets")
    assert (shown.returncode, shown.stdout[:23]) == (0, "usage: minisbert assets")
    assert command("assets", "--version").stdout == f"minisbert {__version__}\n"


@pytest.mark.skipif(not find_spec("argcomplete"), reason="needs the completion extra: pip install '.[completion]'")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("minisbert ass", {"assets"}),
        ("minisbert encode --quan", {"--quantize"}),
        ("minisbert encode --device c", {"cpu", "cuda"}),
        ("minisbert encode --dtype b", {"bfloat16"}),
        ("minisbert encode --model all", {"all-MiniLM-L6-v2"}),
        ("minisbert encode --model lessons/grad", {"lessons/grader/"}),
        ("minisbert train --objective cross-encoder-r", {"cross-encoder-ranking"}),
        ("minisbert train --recipe li", {"list"}),
        ("minisbert train --recipe quora-", {"quora-1", "quora-2", "quora-3"}),
    ],
)
def test_a_shell_completes_without_torch(tmp_path, line, expected):
    """As bash asks: the line so far in the environment, the answers in a file in place of descriptor 8."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    answers = tmp_path / "answers"
    asked = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1", "COMP_TYPE": "9"}
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    command(**asked, PYTHONPATH=path, _ARGCOMPLETE_STDOUT_FILENAME=str(answers), _ARGCOMPLETE_IFS="\n")
    assert {word.strip() for word in answers.read_text().split("\n")} == expected
