"""What a lesson prints is enough: each piece typed from it, line by line, passes
(``formulas.toml``).
"""

import tomllib

import pytest

from lessons.grader.pieces import PIECES, lesson_file
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
