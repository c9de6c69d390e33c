"""The table of pieces is complete: master, hints, checks, hand example and traps of each card."""

import re

import pytest

from lessons.grader import ladder  # noqa: F401 (it imports all cases and checks)
from lessons.grader.cases import CASES
from lessons.grader.pieces import LESSONS, PIECES, lesson_file, mine, pieces_of
from lessons.grader.slips import known_mistakes
from minisbert.core import InputError
from tests.parity import ROOT
from tests.parity.checks import CHECKS


def test_every_piece_has_a_card_and_cases():
    """A piece without cases could not be graded."""
    assert PIECES.keys() == CASES.keys()


@pytest.mark.parametrize("name", PIECES)
def test_every_card_is_complete(name):
    """The grader, the hints and the lesson's text rely on each of these."""
    piece = PIECES[name]
    assert callable(piece.original)
    assert piece.original.__module__ == piece.home, "the card must name the defining module"
    assert {case.rung for case in CASES[name]()} == {"example", "traps"}
    assert piece.hints
    assert piece.checks
    assert set(piece.checks) <= CHECKS.keys()

    targets = {mistake.target for mistake in known_mistakes().values()}
    assert set(piece.parts) <= targets | PIECES.keys() - {name}
    assert targets & {name, *piece.parts}, "no known mistake"

    lesson = lesson_file(piece.lesson).read_text(encoding="utf-8")
    assert re.search(rf"\b({'|'.join(piece.path)})\b", lesson)
    assert any(piece.printed in line for line in lesson.splitlines()), "it is not printed"


def test_lessons_in_order():
    """The course shows the pieces in the order of the table."""
    lessons = [piece.lesson for piece in PIECES.values()]
    assert lessons == sorted(lessons)


@pytest.mark.parametrize(
    ("lesson", "message"),
    [(0, "no pieces"), (99, f"run from 0 to {max(LESSONS)}$"), (14, "no pieces")],
)
def test_a_lesson_without_pieces(lesson, message):
    """The error says whether the lesson exists."""
    with pytest.raises(InputError, match=message):
        pieces_of(lesson)


def test_git_ignores_what_learners_write():
    """Their files lie in the checkout."""
    assert mine(5).name == "lesson_05.py"
    assert "/lessons/mine/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
