"""What the tests of the grader share: an empty folder for the learner's files, and what the learner
types.
"""

import builtins
import sys

import pytest

from lessons import predictions
from lessons.grader.result import Progress


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder for the learner's files, in this process and in those that it starts."""
    monkeypatch.setenv("MINISBERT_MINE", str(tmp_path))
    for module in ("grader.pieces", "grader.result", "check"):
        monkeypatch.setattr(f"lessons.{module}.MINE", tmp_path)
    monkeypatch.setattr(Progress.__init__, "__defaults__", (tmp_path,))
    return tmp_path


@pytest.fixture
def replies(monkeypatch, tmp_path):
    """What the learner types, one line per question; guesses are kept in an empty folder."""
    lines: list[str] = []
    monkeypatch.setattr(predictions, "FILE", tmp_path / "mine" / "guesses.json")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(builtins, "input", lambda _: lines.pop(0))
    return lines
