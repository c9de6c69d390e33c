"""Where messages go: a command prints them, in a Python program ``logging`` decides."""

import json
import logging
import os
import subprocess
import sys
from argparse import Namespace

import numpy as np
import pytest

from minisbert.commands.shared import print_result
from minisbert.core import InputError
from minisbert.search.quantized import calibrate
from minisbert.system.console import LOGGER, messages_on_stderr, run_command, warn
from tests.conftest import ROOT

IMPORT = "import logging; from minisbert.system.console import *\n"
BOTH = "say('done'); warn('careful')"


def python(code: str, encoding: str = "utf-8") -> tuple[int, bytes, bytes]:
    """Return the exit code and the output of another Python whose streams have this encoding."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT + code],
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("", b"careful\n"),
        ("logging.basicConfig(level=logging.INFO)", b"INFO:minisbert:done\n"),
        ("logging.basicConfig(level=logging.INFO)", b"WARNING:minisbert:careful\n"),
        ("logging.basicConfig(format='app %(message)s')", b"app careful\n"),
    ],
)
def test_a_python_program_shows_what_it_has_configured(setting, shown):
    """Without any configuration it shows warnings, as Python does for every library."""
    code, out, err = python(f"{setting}\n{BOTH}")
    assert (code, out) == (0, b"")
    assert shown in err
    assert (b"done" in err) == ("INFO" in setting)


@pytest.mark.parametrize(
    "setting",
    [
        "logging.disable()",
        "logging.getLogger('minisbert').setLevel(logging.ERROR)",
        "logging.getLogger('minisbert').addHandler(logging.NullHandler())",
    ],
)
def test_a_python_program_can_silence_the_library(setting):
    assert python(f"{setting}\n{BOTH}") == (0, b"", b"")


def test_a_command_prints_messages_as_they_are():
    """Once, even if another library has configured the root logger."""
    main = f"def main(): logging.basicConfig(level=logging.INFO); {BOTH}\nrun_command(main)"
    assert python(main) == (0, b"", b"done\ncareful\n")


def test_a_commands_handler_goes_with_it(monkeypatch):
    """A program that calls a command keeps its own handlers and levels."""
    own = logging.NullHandler()
    monkeypatch.setattr(LOGGER, "handlers", [own])
    monkeypatch.setattr(LOGGER, "level", logging.ERROR)
    with messages_on_stderr():
        assert len(LOGGER.handlers) == 2
    assert (LOGGER.handlers, LOGGER.level) == ([own], logging.ERROR)


def test_a_record_names_the_module_that_warns(monkeypatch):
    """Ranges of int8 from a few vectors are a warning of ``search/quantized.py``."""
    records = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", records.append)
    monkeypatch.setattr(LOGGER, "handlers", [handler])
    calibrate(np.eye(3))
    assert [(record.levelname, record.module) for record in records] == [("WARNING", "quantized")]


NAME = "a\x1b]0;title\x07b\x9bc\rd\te"
ESCAPED = "a\\x1b]0;title\\x07b\\x9bc\\x0dd\te\n"


def test_control_characters_of_a_strangers_names_are_escaped_on_stderr(capsys):
    """A terminal would obey them: they come from the names of tensors, modules and files."""
    warn(NAME)
    assert capsys.readouterr().err == ESCAPED


def test_a_message_can_be_written_in_utf_8(caplog):
    """Python reads the bytes of a name that are not UTF-8 as halves of characters."""
    warn("caf\udce9.csv")
    assert caplog.messages == ["caf\\udce9.csv"]


def test_control_characters_in_an_error_are_escaped(capsys):
    def main():
        raise InputError(NAME)

    with pytest.raises(SystemExit):
        run_command(main)
    assert capsys.readouterr().err == f"error: {ESCAPED}"


def test_control_characters_in_lines_for_people_are_escaped(capsys):
    print_result(Namespace(json=False), {}, [NAME])
    assert capsys.readouterr().out == ESCAPED


def test_a_character_that_stdout_lacks_is_escaped():
    """A Windows console may be in cp1252, which has no Chinese; the command goes on."""
    main = "def main(): print('\\u732b caf\\xe9')\nrun_command(main)"
    assert python(main, "cp1252") == (0, b"\\u732b caf\xe9\n", b"")


def test_json_stays_json_where_stdout_lacks_a_character():
    """Python's own escape of an emoji, with eight digits, is none of JSON's."""
    main = "def main(): print_json({'text': '\\U0001f63a caf\\xe9'})\nrun_command(main)"
    code, out, _ = python(main, "cp1252")
    assert code == 0
    assert json.loads(out.decode("cp1252")) == {"text": "\U0001f63a caf\xe9"}


def test_a_command_within_a_command_prints_a_message_once():
    """``minisbert train`` runs the trainer's own command."""
    code, out, err = python("run_command(lambda: run_command(lambda: say('done')))")
    assert (code, out, err) == (0, b"", b"done\n")
