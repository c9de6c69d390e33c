"""What a lesson prints is enough: each piece typed from it, line by line, passes
(``formulas.toml``).
"""

import tomllib

import pytest

from lessons.grader.pieces import PIECES, lesson_file
from lessons.grader.result import place
from lessons.grader.stubs import stub
from tests.conftest import ROOT
from tests.lessons.answers import graded

pytestmark = [
    pytest.mark.usefixtures("folder"),
    pytest.mark.exact("answers are graded at the rounding of their numbers"),
]
FORMULAS = tomllib.loads(
    (ROOT / "tests" / "lessons" / "formulas.toml").read_text(encoding="utf-8")
)["formula"]


def plain(text: str) -> str:
    """One line without comment signs: a sentence may run over two lines of a lesson."""
    return " ".join(" ".join(line.strip().lstrip("#") for line in text.splitlines()).split())


def test_every_piece_is_typed():
    assert {formula["piece"] for formula in FORMULAS} == PIECES.keys()


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: formula["piece"])
def test_what_the_page_prints_passes(formula):
    piece = PIECES[formula["piece"]]
    pages = [plain(lesson_file(piece.lesson).read_text(encoding="utf-8")), plain(stub(piece))]
    for line in formula["page"].strip().splitlines():
        assert any(plain(line) in page for page in pages), line
    result = graded(piece.master, formula["body"])
    assert result.status == "passed", result.rungs[-1]


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: formula["piece"])
def test_read_again_points_to_a_line_of_the_formula(formula):
    """A learner who is sent back to the page must find there what the piece is typed from."""
    piece = PIECES[formula["piece"]]
    if piece.lesson > 14:
        pytest.skip("of the core and what comes with it")
    line = plain(place(piece).partition('": ')[2])
    lines = [plain(each) for each in formula["page"].strip().splitlines()]
    assert any(each in line or line in each or plain(piece.printed) in each for each in lines), line
