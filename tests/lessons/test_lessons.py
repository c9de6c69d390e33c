"""Every lesson runs, its claims hold, and it has the parts that a lesson has."""

import ast
import io
import os
import re
import runpy
import subprocess
import sys
import tokenize
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from minisbert.core import bert
from tests.conftest import ROOT

FOLDER = ROOT / "lessons"
LESSONS = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
SECTIONS = ["The question", "The formula", "The real function", "The figure", "Predict, then run", "Break it"]
SECTIONS += ["Exercises", "Sources"]
each_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)


def header(path: Path) -> str:
    """The first cell: title, file, minutes."""
    return path.read_text(encoding="utf-8").split("\n# %%\n")[0]


def reading_minutes(path: Path) -> float:
    """150 words and 3.5 statements a minute, and ten minutes to run it; exercises come on top."""
    text = path.read_text(encoding="utf-8").partition("\n# ## Exercises")[0]
    text = re.sub(r"^# \*\*Exercise \d.*(?:\n# .+)*", "", text, flags=re.MULTILINE)
    prose = [line for line in text.splitlines() if line.startswith("# ") and not line.startswith("#     ")]
    words = sum(len(re.findall(r"\w+", line)) for line in prose)
    code = re.sub(r"^def draw\(plt\).*?^figure\(", "figure(", text, flags=re.MULTILINE | re.DOTALL)
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    statements = sum(token.type == tokenize.NEWLINE for token in tokens)
    return words / 150 + statements / 3.5 + 10


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


@each_lesson
def test_it_has_every_part_in_order_and_asserts_its_claims(path):
    source = path.read_text(encoding="utf-8")
    places = [source.find(f"\n# ## {section}\n") for section in SECTIONS]
    assert -1 not in places, f"{path.name} lacks {SECTIONS[places.index(-1)]}"
    assert places == sorted(places)
    assert f"](figures/{path.stem}.png)" in source
    assert f"lessons.check start {path.stem[:2]}" in source
    assert "with planted(" in source
    assert ".step()" not in source, "it trains with fit alone"
    assert sum(line[:1] not in ("", "#") for line in source[: places[0]].splitlines()) <= 8
    claims = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]
    assert len(claims) >= 10
    assert [f"line {claim.lineno}: no message" for claim in claims if claim.msg is None] == []
    assert 0 < (FOLDER / "figures" / f"{path.stem}.png").stat().st_size < 60_000


@each_lesson
def test_it_names_the_file_it_steps_through_as_the_readme_does(path):
    files = re.findall(r"`minisbert/([\w/]+\.py)`", header(path))
    minutes = re.search(r"About (\d+) minutes", header(path).replace("\n# ", " ")).group(1)
    assert {(ROOT / "minisbert" / name).is_file() for name in files} == {True}
    row = next(line for line in (FOLDER / "README.md").read_text().splitlines() if f"({path.name})" in line)
    assert [cell.strip() for cell in row.split("|")][2:4] == [", ".join(f"`{name}`" for name in files), minutes]
    assert abs(int(minutes) - reading_minutes(path)) <= 2.5
    assert f'"figures/{path.stem}.png"' in row


def test_they_are_numbered_without_a_gap_and_none_is_a_notebook():
    assert [int(path.stem[:2]) for path in LESSONS] == list(range(len(LESSONS)))
    assert [path for path in FOLDER.rglob("*.ipynb") if "mine" not in path.parts] == []


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
    assert course.largest_difference([0.1, 2.0], torch.tensor([0.1, 2.5], dtype=torch.float64)) == 0.5
    assert course.largest_difference(np.array([1.0]), [1.0 + 1e-12]) == pytest.approx(1e-12, rel=1e-3)
    with pytest.raises(ValueError, match=r"\(2,\) and \(1, 2\)"):
        course.largest_difference([1.0, 2.0], [[1.0, 2.0]])
