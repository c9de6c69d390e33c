"""The learner's pieces and the book as one file."""

import ast
import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from lessons import check
from lessons.course import TINY, largest_difference
from lessons.grader import your_model
from lessons.grader.assembly import BOOK, FILE, IN_THE_BOOK, assemble, owners
from lessons.grader.pieces import mine, pieces_of
from lessons.grader.result import Result
from lessons.grader.stubs import lesson_stubs
from minisbert.core.encoder import SentenceEncoder
from tests.lessons.answers import ANSWERS, filled

TEXTS = ["A cat sits.", "It rains, and it rains, and it does not stop.", ""]
ALONE = """
import sys
import my_minisbert, numpy
encoder = my_minisbert.SentenceEncoder.load(sys.argv[1]).double()
texts = ["A cat sits.", "It rains, and it rains, and it does not stop.", ""]
numpy.save("vectors.npy", encoder.encode(texts))
assert not [name for name in sys.modules if name.split(".")[0] == "minisbert"]
"""
GELU = """
import torch
from torch import erf as error_function
ROOT = []
ROOT.append(2.0)
ROOT[0] = ROOT[0] ** 0.5
def scaled(x):
    return x / ROOT[0]
def gelu(x):
    return x * (1 + error_function(scaled(x))) / 2
print(gelu(torch.ones(1)))
class FeedForward:
  HALF = 0.5
  def forward(self, x):
    return self.narrowed(gelu(self.up(x)))
# a comment at the margin
  def narrowed(self, x):
    return (self.HALF + self.HALF) * self.down(x)
"""


@pytest.fixture(autouse=True)
def _folder(folder, monkeypatch):
    monkeypatch.setattr(your_model, "MINE", folder)


def write_answers() -> list[str]:
    """The right answers of the tests in the lessons' stubs; returns their pieces, all of the
    book.
    """
    bare = [
        answer
        for answer in ANSWERS["right"]
        if not {"top", "before", "beside", "change"} & answer.keys()
    ]
    found = {
        answer["piece"]: answer["body"]
        for answer in reversed(bare)
        if answer["piece"] in IN_THE_BOOK
    }
    files: dict[int, str] = {}
    for master, body in found.items():
        lesson = IN_THE_BOOK[master].lesson
        files[lesson] = filled(files.get(lesson) or lesson_stubs(lesson), master, body)
    for lesson, text in files.items():
        mine(lesson).write_text(text, encoding="utf-8")
    return [master for master in IN_THE_BOOK if master in found]


def passing(monkeypatch, *masters: str) -> None:
    """Let these pieces pass, without the grader."""
    monkeypatch.setattr(your_model, "verdicts", lambda: ([*masters], {}))


def test_a_file_of_all_right_pieces_runs_alone_and_equals_the_book(folder):
    masters = write_answers()
    found = assemble(masters)
    assert not found.left_out
    assert {*owners(found.text)} == {*masters, "", "-"}
    assert "Not to be called" not in found.text, "a comment of the stubs"
    (folder / FILE).write_text(found.text, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [sys.executable, "-c", ALONE, str(TINY)], cwd=folder, env=environment, check=True
    )
    book = SentenceEncoder.load(TINY).double()
    assert largest_difference(np.load(folder / "vectors.npy"), book.encode(TEXTS)) < 1e-10


def test_without_a_piece_everything_is_the_books():
    text = assemble([]).text
    assert {*owners(text)} == {"", "-"}
    definitions = [
        node for source in BOOK.values() for node in source.tree.body if hasattr(node, "name")
    ]
    assert text.count("# the book's: core/") >= len(definitions)
    assert {node.name for node in ast.parse(text).body if hasattr(node, "name")} == {
        node.name for node in definitions
    }


def test_a_table_below_a_learners_function_is_the_books():
    write_answers()
    text = assemble(["pooling.attention_pool"]).text
    lines = dict(zip(text.splitlines(), owners(text), strict=True))
    assert "pooling.attention_pool" in lines.values()
    tables = [line for line in lines if line.startswith(("POOLINGS", "POOLING_MODES"))]
    assert tables
    assert not any(lines[line] for line in tables)


def test_a_piece_brings_along_what_it_uses_and_nothing_else():
    mine(6).write_text(GELU)
    text = assemble(["bert.gelu", "bert.FeedForward.forward"]).text
    space: dict = {"__name__": "file"}
    exec(text, space)
    assert space["gelu"](1.0 * space["torch"].ones(1)).item() == pytest.approx(0.84134, abs=1e-5)
    assert "print(" not in ast.unparse(ast.parse(text)), "without comments"
    config = space["BertConfig"](9, 4, 1, 2, 8, 9)
    assert space["FeedForward"](config)(space["torch"].zeros(1, 1, 4)).shape == (1, 1, 4)
    assert owners(text).count("bert.FeedForward.forward") == 5


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("scaled", "cosine", "cosine in lesson_06.py is also something else"),
        ("error_function", "nn", "nn in lesson_06.py is also"),
        ("ROOT", "max", "max in lesson_06.py is also"),
        ("def scaled", "def other", "uses scaled, which is neither"),
        ("def gelu(x):\n    return", "gelu = lambda x:", "no line that begins with def gelu"),
    ],
)
def test_a_name_with_two_meanings_leaves_the_piece_out(before, after, says):
    mine(6).write_text(GELU.replace(before, after))
    found = assemble(["bert.gelu"])
    assert says in found.left_out["bert.gelu"]
    assert {*owners(found.text)} == {"", "-"}


def test_pieces_that_the_grader_does_not_pass_are_named_and_the_books_are_used(
    monkeypatch, capsys, folder
):
    mine(6).write_text(GELU.replace("    return (self", "    import os\n    return (self"))
    mine(11).write_text("def mse_loss(scores, target:\n")
    graded: list[int] = []
    states = {
        "bert.gelu": "passed",
        "bert.FeedForward.forward": "refused",
        "bert.Layer.forward": "unwritten",
    }

    def grade(lesson: int) -> list[Result]:
        graded.append(lesson)
        found = [(piece.master, states.get(piece.master, "failed")) for piece in pieces_of(lesson)]
        return [Result(master, state, [("runs", False, "line 1: no")]) for master, state in found]

    monkeypatch.setattr(your_model, "graded_lesson", grade)
    check.main(["mine", "11"])
    out, err = capsys.readouterr()
    assert graded == [6, 11]
    assert (
        "bert.FeedForward.forward: the book's is used instead of yours: refused, line 1: no" in err
    )
    assert "losses.mse_loss: the book's is used instead of yours: failed, line 1: no" in err
    assert "bert.Layer.forward" not in err
    assert "ok    10 losses" in out
    assert "7 of " in out
    assert "lines are yours; what they score: python -m lessons.check mine 09" in out
    written = (folder / FILE).read_text(encoding="utf-8")
    assert (
        "    # the book's: core/bert.py\n    # instead of yours: refused, line 1: no\n    def "
        "forward(" in written
    )
    assert (
        "# the book's: core/losses.py\n# instead of yours: failed, line 1: no\ndef mse_loss("
        in written
    )
    check.main(["mine", "--diff", "bert"])
    assert graded == [6, 11], "the files are as they were"
    out = capsys.readouterr().out
    assert "+def scaled(x):" in out
    assert "-    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))" in out
    assert "+++ my_minisbert.py" in out
    check.main(["mine", "--diff"])
    assert "+++ my_minisbert.py" in capsys.readouterr().out


def test_a_piece_that_fails_in_the_model_is_named_and_a_wrong_one_shows(monkeypatch, capsys):
    passing(monkeypatch, "bert.gelu", "loop.linear_schedule")
    mine(6).write_text(GELU)
    mine(11).write_text("def linear_schedule(step, warmup, total):\n    return [1, 0.5][step]\n")
    assert your_model.your_model(11, [], None)
    assert (
        "loop.linear_schedule: the book's is used instead of yours: IndexError"
        in capsys.readouterr().err
    )
    mine(6).write_text(GELU.replace("/ 2\n", "/ 3\n"))
    passing(monkeypatch, "bert.gelu")
    with pytest.raises(SystemExit):
        check.main(["mine", "11"])
    assert "FAIL  10 losses" in capsys.readouterr().out


@pytest.mark.weights
def test_the_real_model_of_right_pieces(monkeypatch, capsys, folder, minilm, stsb):
    monkeypatch.setenv("MINISBERT_FIGURES", str(folder))
    passing(monkeypatch, *write_answers())
    for lesson, says in (
        (1, "0.67"),
        (5, "0.69 animal"),
        (7, "ok    layer 6"),
        (8, "ok    yours and MiniLM's"),
        (10, "ok    SimCSE"),
    ):
        assert your_model.your_model(lesson, [], None)
        assert says in capsys.readouterr().out
    check.main(["mine", "It rains.", "Rain falls."])
    assert "  1  1.00 " in capsys.readouterr().out, "without a number: what lesson 01 shows"
    if find_spec("matplotlib"):
        assert (folder / "your_attention.png").stat().st_size > 10_000
    assert your_model.your_model(9, [], None)
    assert "they score 82.03" in capsys.readouterr().out
