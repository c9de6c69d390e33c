"""The table of pieces is complete: every card has its master, hints, checks, hand example and
traps.
"""

import re

import pytest

from lessons.grader import ladder  # noqa: F401 (it imports all cases and checks)
from lessons.grader.cases import CASES
from lessons.grader.pieces import LESSONS, PIECES, lesson_file, mine, pieces_of
from lessons.mistakes import MISTAKES
from minisbert.core import InputError
from tests.parity import ROOT
from tests.parity.checks import CHECKS


def test_every_card_is_complete():
    targets = {mistake.target for mistake in MISTAKES.values()}
    assert PIECES.keys() == CASES.keys()
    for name, piece in PIECES.items():
        assert callable(piece.original), name
        assert piece.original.__module__ == piece.home, (
            "the card must name the module that defines the function"
        )
        assert {case.rung for case in CASES[name]()} == {"example", "traps"}, name
        assert piece.hints, name
        assert piece.checks, name
        assert set(piece.checks) <= CHECKS.keys(), name
        assert set(piece.parts) <= targets | PIECES.keys() - {name}, name
        assert targets & {name, *piece.parts}, f"{name} has no known mistake"
        lesson = lesson_file(piece.lesson).read_text(encoding="utf-8")
        assert re.search(rf"\b({'|'.join(piece.path)})\b", lesson), name
        assert any(piece.printed in line for line in lesson.splitlines()), (
            f"{name}: {piece.printed!r} is not printed"
        )


def test_lessons_in_order():
    lessons = [piece.lesson for piece in PIECES.values()]
    assert lessons == sorted(lessons)
    for lesson, says in (
        (0, "no pieces"),
        (99, f"run from 0 to {max(LESSONS)}$"),
        (14, "no pieces"),
    ):
        with pytest.raises(InputError, match=says):
            pieces_of(lesson)
    assert mine(5).name == "lesson_05.py"
    assert "/lessons/mine/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
