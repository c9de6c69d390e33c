"""The measured tables: pages as their data has them, one value for a figure wherever it is quoted, and measuring."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from benchmarks import figures, machine
from minisbert.core import InputError
from tests.conftest import ROOT

DOCS = ROOT / "docs"
PAGES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted(DOCS.glob("*.md")))}
FILES = [path.stem for path in sorted((DOCS / "figures").glob("*.toml"))]
SHOWN = [(names.split(), table) for text in PAGES.values() for names, table in figures.PLACE.findall(text)]


def cell(file: str, table: str, row: str, column: int | str = 1) -> str:
    heading, *rows = figures.read(file)["tables"][table]["rows"]
    place = heading.index(column) if isinstance(column, str) else column
    return next(cells[place] for cells in rows if cells[0] == row)


def number(*place: str | int) -> float:
    return float(cell(*place).replace(",", ""))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_tables_of_a_page_are_those_of_the_data(page):
    assert figures.render(PAGES[page]) == PAGES[page], "python -m benchmarks.figures writes it anew"


def test_each_table_of_the_data_is_shown_once():
    shown = sorted((name, table) for names, table in SHOWN for name in names)
    assert shown == sorted((name, table) for name in FILES for table in figures.read(name)["tables"])
    comments = sum(text.count("<!-- figures:") for text in PAGES.values())
    assert comments == len(SHOWN)  # each has a table below it


def test_files_are_written_as_they_are_read(tmp_path, monkeypatch):
    for name in FILES:
        text, content = (DOCS / "figures" / f"{name}.toml").read_text(encoding="utf-8"), figures.read(name)
        with monkeypatch.context() as patch:
            (tmp_path / "figures").mkdir(exist_ok=True)
            patch.setattr(figures, "DOCS", tmp_path)
            figures.write(name, content)
            assert figures.read(name) == tomllib.loads(text)
            assert (tmp_path / "figures" / f"{name}.toml").read_text(encoding="utf-8") == text


@pytest.mark.parametrize("name", FILES)
def test_a_table_has_as_many_cells_in_every_row_and_each_row_once(name):
    for table, about in figures.read(name)["tables"].items():
        assert {len(row) for row in about["rows"]} == {len(about["rows"][0])}, table
        assert len({tuple(row[:3]) for row in about["rows"]}) == len(about["rows"]), table
        assert about.get("command", "python -m ").startswith("python -m "), table


# --------------------------------------------------------------------------------- quoted elsewhere

LIBRARIES = ("minisbert", "minisbert compiled", "sentence-transformers", "onnxruntime", "openvino")
LOWER = {"onnxruntime": "int8"}  # lower precision than float32; bfloat16 for the others
LABELS = [
    ("sentences encoded per second, float32", "sentences", "texts a second", "float32", 0),
    ("the same at lower precision (bfloat16, ONNX Runtime int8)", "sentences", "texts a second", "lower", 0),
    ("one sentence, ms, float32", "few-two-peers", "1", "float32", 1),
    ("16 sentences, ms, float32", "few-two-peers", "16", "float32", 0),
    ("seconds from process start to first vector", "start", "seconds", "", 1),
]


@pytest.mark.parametrize(("label", "table", "column", "precision", "digits"), LABELS)
def test_the_readme_has_the_same_figures(label, table, column, precision, digits):
    line = next(line for line in PAGES[ROOT / "README.md"].splitlines() if line.startswith(f"| {label} |"))
    for name, shown in zip(LIBRARIES, (part.strip() for part in line.split("|")[2:-1]), strict=True):
        row = f"{name} {LOWER.get(name, 'bfloat16') if precision == 'lower' else precision}".strip()
        if shown != "-":
            assert shown == f"{number('zen4', table, row, column):,.{digits}f}", row
        else:
            assert all(row != cells[0] for cells in figures.read("zen4")["tables"][table]["rows"])


def ahead(precision: str) -> str:
    """By how much OpenVINO is faster than the compiled encoder."""
    theirs, ours = (number("zen4", "sentences", f"{name} {precision}") for name in ("openvino", "minisbert compiled"))
    return f"{100 * (theirs / ours - 1):.0f} % in {precision}"


CLAIMS = {  # page: sentences with figures that follow from tables
    "speed": [
        f"OpenVINO is ahead of the compiled encoder by {ahead('float32')} and by {ahead('bfloat16')}",
        f"{cell('zen4', 'sentences', 'sentence-transformers float32')} to 362 sentences a second",
        f"took 12.1 in float32 and 9.1 in bfloat16: {25.6 / 12.1:.1f} and {25.6 / 9.1:.1f} times as fast",
    ],
    "scale": [
        f"encoding in float32, sentences a second | {cell('xeon', 'earlier-sentences', 'minisbert, float32')} |",
        f"encoding in bfloat16, sentences a second | {cell('xeon', 'earlier-sentences', 'minisbert, bfloat16')} |",
        f"{number('xeon', 'indexes-10000', 'minisbert, exact', 'one, ms'):.0f} ms with 10,000 vectors, "
        f"{number('xeon', 'indexes-100000', 'minisbert, exact', 'one, ms'):.0f} ms with 100,000",
    ],
}


@pytest.mark.parametrize("page", CLAIMS)
def test_what_a_page_says_follows_from_its_tables(page):
    text = re.sub(r"\s+", " ", PAGES[DOCS / f"{page}.md"])
    for sentence in CLAIMS[page]:
        assert sentence in text


def test_the_readmes_training_is_that_of_the_page_on_speed():
    quoted = re.search(r"training, times as fast: float32, bfloat16 \| ([\d.]+), ([\d.]+) ", PAGES[ROOT / "README.md"])
    assert " and ".join(quoted.groups()) + " times as fast" in PAGES[DOCS / "speed.md"]


# ---------------------------------------------------------------------------------------- measuring

PRINTED = "a warning\n| | seconds | MiB |\n|---|---|---|\n| minisbert | 1.00 | 300 |\n"


@pytest.fixture
def own_docs(tmp_path: Path, monkeypatch):
    """Docs of one page with one table, of this machine."""
    monkeypatch.setattr(figures, "DOCS", tmp_path)
    (tmp_path / "figures").mkdir()
    here = machine.identity(machine.cpu())
    rows = [["", "seconds", "MiB"], ["minisbert", "2.00", "400"]]
    tables = {"start": {"command": "python -m benchmarks.start", "machine": ["old", "old"], "rows": rows}}
    figures.write("mine", {"cpu": here, "tables": tables | {"by-hand": {"rows": rows}}})
    (tmp_path / "page.md").write_text(figures.rendered(["mine"], "start") + "\nText.\n")
    return tmp_path


def test_a_table_is_measured_anew_and_its_page_written(own_docs, monkeypatch, capsys):
    here = machine.identity(machine.cpu())
    printed = f"{here}\ntorch; GFLOP/s: MKL float32 1\n\n{PRINTED}"
    done = subprocess.CompletedProcess([], 0, stdout=printed)
    monkeypatch.setattr(figures.subprocess, "run", lambda command, **_: done)
    figures.main(["--measure", "mine", "start"])
    page = (own_docs / "page.md").read_text()
    assert "| minisbert | 1.00 | 300 |" in page
    assert f"```\n{here}\ntorch; GFLOP/s: MKL float32 1\n```" in page
    assert page.endswith("\nText.\n")
    assert "page.md written anew" in capsys.readouterr().out


def test_what_cannot_be_measured(own_docs, monkeypatch):
    with pytest.raises(InputError, match="has no command for by-hand"):
        figures.main(["--measure", "mine", "by-hand"])
    before = (own_docs / "figures" / "mine.toml").read_text()
    for code, printed, message in ((1, PRINTED, "ended with 1; the figures are as they were"), (0, "", "no table")):
        done = subprocess.CompletedProcess([], code, stdout=printed)
        monkeypatch.setattr(figures.subprocess, "run", lambda command, done=done, **_: done)
        with pytest.raises(InputError, match=message):
            figures.main(["--measure", "mine", "start"])
    assert (own_docs / "figures" / "mine.toml").read_text() == before
    figures.write("mine", figures.read("mine") | {"cpu": "another CPU"})
    with pytest.raises(InputError, match=r"mine\.toml is of another CPU; this is"):
        figures.main(["--measure", "mine", "start"])
    figures.write("other", {"cpu": "x", "tables": {"start": {"rows": [["", "MiB"], ["another row", "1"]]}}})
    with pytest.raises(InputError, match="have different rows"):
        figures.joined(["mine", "other"], "start")
