"""Every lesson runs and its claims hold."""

import ast
import os
import runpy
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from lessons.grader.pieces import mine
from lessons.parts import APPENDIX, CORE, NEEDS, PARTS, chosen_units, needed
from minisbert.core import bert
from tests.conftest import ROOT

FOLDER = ROOT / "lessons"
LESSONS = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
each_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)


@pytest.fixture
def course(monkeypatch):
    """``lessons/course.py``, as a lesson imports it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = np.get_printoptions()
    import course

    monkeypatch.setattr(bert, "FUSED", False)  # as the first import does; the module stays imported
    yield course
    np.set_printoptions(**before)
    torch.set_printoptions(profile="default")


# In this process, where torch is already imported; below, one of them in a separate process.
@pytest.mark.lesson
@pytest.mark.weights
@each_lesson
def test_it_runs_and_every_claim_holds(path, course, minilm, stsb, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINISBERT_FIGURES", str(tmp_path / "figures"))
    monkeypatch.setattr("lessons.grader.pieces.MINE", tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
    if find_spec("matplotlib"):
        assert [file.name for file in (tmp_path / "figures").iterdir()] == [f"{path.stem}.png"]


@pytest.mark.weights
def test_one_runs_as_a_script_from_any_folder(minilm, tmp_path):
    environment = os.environ | {"MINISBERT_FIGURES": str(tmp_path)}
    command = [sys.executable, FOLDER / "01_first_embedding.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Mars" in done.stdout


def test_the_parts_have_every_lesson_once_after_what_it_needs():
    order = [lesson for part in PARTS.values() for lesson in part.lessons]
    assert sorted(order) == [int(path.stem[:2]) for path in LESSONS] == sorted(NEEDS)
    assert [lesson for i, lesson in enumerate(order) if not needed(lesson) <= {*order[:i]}] == []
    assert [lesson for lesson in CORE if not needed(lesson) - {0} <= {*CORE}] == []


def stations(path) -> list[tuple[str, ...]]:
    """What a lesson prints of the book: the arguments of its calls of ``chapter``."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "chapter":
            found.append(tuple(argument.value for argument in node.args))
    return found


def test_the_lessons_and_the_appendix_read_every_line_of_the_book_once():
    """Nothing of the book is left for a reader to stumble over, and nothing is printed twice."""
    read = []
    for path in LESSONS:
        for chapter, *names in stations(path):
            read += [(chapter, unit) for unit in chosen_units(chapter, names)]
    for chapter, names in APPENDIX.items():
        read += [(chapter, unit) for unit in chosen_units(chapter, names)]

    lines = []
    for chapter, unit in read:
        lines += [(chapter, line) for line in range(unit.first, unit.last + 1)]
    book = []
    for path in (ROOT / "minisbert" / "core").glob("*.py"):
        count = len(path.read_text(encoding="utf-8").splitlines())
        book += [(path.stem, line) for line in range(1, count + 1)]
    assert sorted(lines) == sorted(book)


def test_your_own_version_stands_below_the_books(course, folder, monkeypatch, capsys):
    """A reader compares the two; a file that is not Python is one line."""
    mine(6).write_text("def gelu(x):\n    return x / 2 * (1 + erf(x))\n", encoding="utf-8")
    course.chapter("bert", "gelu")
    assert "yours: lesson_06.py, lines 1 to 2\n\ndef gelu(x):" in capsys.readouterr().out
    mine(6).write_text("def gelu(x):\n    return (\n", encoding="utf-8")
    course.chapter("bert", "gelu")
    assert "yours: lesson_06.py, line 2: not Python" in capsys.readouterr().out
    with pytest.raises(ValueError, match="has no relu"):
        course.chapter("bert", "relu")


def test_figures_go_to_a_folder_that_git_ignores(course, monkeypatch, tmp_path, capsys):
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.delenv("MINISBERT_FIGURES", raising=False)
    monkeypatch.setattr(course, "ROOT", tmp_path)
    course.figure("some", lambda plt: plt.figure())
    assert (tmp_path / "lessons" / "mine" / "figures" / "some.png").is_file()
    drawn, axes = plt.subplots()
    course.heatmap(axes, [[1.0, 0.25]], ["a"], ["x", "y"], ".2f")
    assert [text.get_text() for text in axes.texts] == ["1.00", "0.25"]
    plt.close(drawn)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    course.figure("05_attention", lambda plt: pytest.fail("nothing can be drawn"))
    assert "lessons/figures/05_attention.png" in capsys.readouterr().out


def test_differences_are_taken_in_float64_and_shapes_must_agree(course):
    assert (
        course.largest_difference([0.1, 2.0], torch.tensor([0.1, 2.5], dtype=torch.float64)) == 0.5
    )
    assert course.largest_difference(np.array([1.0]), [1.0 + 1e-12]) == pytest.approx(
        1e-12, rel=1e-3
    )
    with pytest.raises(ValueError, match=r"\(2,\) and \(1, 2\)"):
        course.largest_difference([1.0, 2.0], [[1.0, 2.0]])
