"""The measured tables: pages as their data has them, and measuring."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from benchmarks import closest_pair, encode_speed, figures, machine, search_speed, serve_speed, server_load
from minisbert.core import InputError
from tests.conftest import ROOT

DOCS = ROOT / "docs"
PAGES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted(DOCS.glob("*.md")))}
FILES = [path.stem for path in sorted((DOCS / "figures").glob("*.toml"))]
SHOWN = [(names.split(), table) for text in PAGES.values() for names, table in figures.PLACE.findall(text)]


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


NUMBER = re.compile(r"[^A-Za-z]*\d[^A-Za-z]*")
NOT_MEASURED = {  # tables of numbers that are not in the data, by page and first heading
    ("README.md", "chapter"): "lines of files, which test_readme.py counts",
    ("README.md", ""): "what it quotes is compared in test_quoted_figures.py",
    ("parity-pieces.md", "check"): "written by tests/parity_report.py",
    ("sources.md", "text"): "counts, written by docs/make_sources.py",
    ("sources.md", "item"): "the same",
    ("recipes.md", "setting"): "settings",
    ("recipes.md", "recipe"): "published elsewhere, not measured",
    ("retrieval.md", "task"): "published by MTEB",
    ("scale.md", ""): "arithmetic, which test_quoted_figures.py does again",
}


def test_every_other_table_of_numbers_is_of_something_else():
    found = set()
    for path, text in PAGES.items():
        for table in figures.TABLE.findall(figures.PLACE.sub("", text)):
            first, _, *rows = [[cell.strip() for cell in figures.BAR.split(line[1:-1])] for line in table.splitlines()]
            if sum(bool(NUMBER.fullmatch(cell)) for row in rows for cell in row[1:]) > 1:
                found.add((path.name, first[0]))
    assert found == set(NOT_MEASURED)


@pytest.mark.parametrize("name", FILES)
def test_a_table_has_as_many_cells_in_every_row_and_each_row_once(name):
    for table, about in figures.read(name)["tables"].items():
        assert {len(row) for row in about["rows"]} == {len(about["rows"][0])}, table
        assert len({tuple(row[:3]) for row in about["rows"]}) == len(about["rows"]), table
        assert about.get("command", "python -m ").startswith("python -m "), table


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


MACHINE = {"cpu": "a CPU", "family": None, "cores": 2, "flags": [], "torch": "2", "threads": 2, "gflop_per_second": {}}
FOUND = {"seconds": 0.5, "gemm_share": 0.5, "mebibytes": 1234.0, "same": 1.0}
SIDE = {"texts_per_second": 484.2, "gemm_share": 0.68, "difference": 2e-7, "spearman": 0.82032}
RATES = {"texts": 2, "tokens": 9, "longest": 5, "machine": MACHINE, "sides": {"minisbert float32": SIDE}}
LATENCY = {"machine": MACHINE, "milliseconds": {"minisbert float32": {1: 2.0, 4: 3.0, 16: 4.0}}}
SERVED = {"machine": MACHINE, "sides": {"minisbert": {"one": 1, "few": 2, "rate": 3, "mebibytes": 4, "start": 5}}}
LOADED = dict(zip(("one", "one99", "few", "rate", "many", "many99", "mebibytes"), range(1, 8), strict=True))
SEARCHED = {n: {"machine": MACHINE, "sides": {"minisbert": FOUND}} for n in (1000, 2000)}
CLOSEST = {
    "model": "m", "threads": 2, "sentences": 10, "pairs": 45,
    "found": {"minisbert": {"score": 1.0, "pair": ["a", "b"]}},
    "medians": {"minisbert": {"encode": 9.4, "search": 0.5, "total": 9.9}},
    "joint": {"pairs_per_second": 218.0, "seconds": 230400.0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("show", "results", "place", "row"),
    [
        (encode_speed.show, [{"rates": {"stsb": RATES}}], "xeon sentences",
         "minisbert float32 | 484 | 1.00 | 68% | 2e-07 | 82.032"),
        (encode_speed.show, [{"latency": LATENCY}], "xeon few", "minisbert float32 | 2.00 | 3.00 | 4.00"),
        (serve_speed.show, [SERVED], "zen4 servers", "minisbert | 1.0 | 2.0 | 3 | 4 | 5.0"),
        (server_load.show, [{"machine": MACHINE, "sides": {"minisbert": LOADED}}], "zen4 load",
         "minisbert | 1.0 | 2.0 | 3.0 | 4 | 5 | 6 | 7"),
        (search_speed.show, [SEARCHED, 20, 10], "xeon faiss", "2,000 | minisbert | 0.50 | 1.00 | 50% | 1,234 | 100.0%"),
        (closest_pair.show, [CLOSEST], "zen5 closest-pair", "minisbert, vectors | 9.4 s | 0.5 s | 9.9 s"),
    ],
)  # fmt: skip
def test_a_benchmark_prints_the_table_of_its_page(show, results, place, row, capsys):
    show(*results)
    file, table = place.split()
    assert row.split(" | ") in figures.cells(capsys.readouterr().out, figures.read(file)["tables"][table]["rows"][0])
