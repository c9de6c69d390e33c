"""The table of pieces is complete: every card has its master, hints, checks, hand example and traps."""

import pytest

from lessons.grader import ladder  # noqa: F401 (it imports all cases and checks)
from lessons.grader.cases import EXAMPLES, TRAPS
from lessons.grader.pieces import LESSONS, PIECES, lesson_file, mine, pieces_of
from lessons.mistakes import MISTAKES
from minisbert.core import InputError
from tests import formula_checks, head_checks, loss_checks, metric_checks, pipeline_checks  # noqa: F401  (their checks)
from tests.checks import CHECKS
from tests.parity import ROOT


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
def test_a_card_is_complete(piece):
    assert callable(piece.original)
    assert piece.original.__module__ == piece.home, "the card must name the module that defines the function"
    assert piece.lesson in LESSONS
    assert piece.level in (1, 2, 3)
    assert 1 <= piece.minutes <= 60
    assert piece.what_for.endswith((".", "?"))
    assert len(piece.hints) >= 3
    assert len(set(piece.hints)) == len(piece.hints)
    assert piece.checks
    assert set(piece.checks) <= CHECKS.keys()
    assert set(piece.parts) <= {mistake.target for mistake in MISTAKES.values()} | PIECES.keys()
    assert piece.master not in piece.parts


def test_every_piece_has_examples_and_traps_and_nothing_else_has():
    assert PIECES.keys() == EXAMPLES.keys() == TRAPS.keys()


def test_every_piece_has_a_known_mistake():
    targets = {mistake.target for mistake in MISTAKES.values()}
    assert [p.master for p in PIECES.values() if not targets & {p.master, *p.parts}] == []


def test_lessons_in_order():
    lessons = [piece.lesson for piece in PIECES.values()]
    assert lessons == sorted(lessons)
    assert list(LESSONS) == list(range(len(LESSONS)))
    assert len(PIECES) >= 30


@pytest.mark.parametrize(
    ("lesson", "says"), [(0, "no pieces"), (99, f"run from 0 to {max(LESSONS)}$"), (15, "no pieces")]
)
def test_a_lesson_without_pieces(lesson, says):
    with pytest.raises(InputError, match=says):
        pieces_of(lesson)


def test_where_files_are():
    assert mine(5).name == "lesson_05.py"
    assert lesson_file(5) is None or lesson_file(5).name.startswith("05_")
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert "/lessons/mine/" in ignored
