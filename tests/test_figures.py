"""Figures: pages have the measured tables as the data has them, and figures that say the same have one value.

Also in what follows from tables and on the front pages; and a table can be measured anew.
"""

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
SHOWN = [place for text in PAGES.values() for place in figures.PLACE.findall(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_tables_of_a_page_are_those_of_the_data(page):
    assert figures.render(PAGES[page]) == PAGES[page], "python -m benchmarks.figures writes it anew"


def test_each_table_of_the_data_is_shown_once():
    assert sorted(SHOWN) == sorted((name, table) for name in FILES for table in figures.read(name)["tables"])
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
    ("README.md", ""): "what it quotes is compared below",
    ("parity-pieces.md", "check"): "written by tests/parity_report.py",
    ("results-notebooks.md", "setting"): "settings",
    ("results-notebooks.md", "recipe"): "published elsewhere, not measured",
    ("retrieval.md", "task"): "published by MTEB",
    ("which-model.md", "model"): "sizes, as their authors publish them",
    ("scale.md", ""): "arithmetic, done again below",
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


# -------------------------------------------------------------------------------------- quoted figures


def cell(file: str, table: str, row: str, column: int | str = 1) -> str:
    heading, *rows = figures.read(file)["tables"][table]["rows"]
    place = heading.index(column) if isinstance(column, str) else column
    return next(cells[place] for cells in rows if cells[0] == row)


def number(*place: str | int) -> float:
    return float(cell(*place).replace(",", ""))


RATIOS = [  # table, column of the ratio, of its numerator, of its denominator, and its row if that is one for all
    ("xeon sentences", 2, 1, 1, "sentence-transformers float32"),
    ("xeon long", 2, 1, 1, "sentence-transformers float32"),
    ("zen4 architectures", 5, 3, 4, None),
]


def bounds(shown: str) -> tuple[float, float]:
    """Between what a rounded number may have been."""
    half = 0.5 * 10.0 ** -len(shown.partition(".")[2])
    return float(shown.replace(",", "")) - half, float(shown.replace(",", "")) + half


@pytest.mark.parametrize(("table", "ratio", "above", "below", "base"), RATIOS)
def test_ratios_are_those_of_their_columns(table, ratio, above, below, base):
    file, name = table.split()
    for row in figures.read(file)["tables"][name]["rows"][1:]:
        (low, high), (least, most) = bounds(row[above]), bounds(cell(file, name, base, below) if base else row[below])
        found = bounds(row[ratio])
        assert low / most <= found[1], row
        assert found[0] <= high / least, row


LIBRARIES = ("minisbert", "minisbert compiled", "sentence-transformers", "onnxruntime", "openvino", "ctranslate2")
KINDS = ("float32", "bfloat16")
SPLITS = ("test", "dev")
LABELS = [  # a row of README: its file and table, the column, what stands behind a library's name, digits
    ("sentences encoded per second, float32", "xeon", "sentences", "texts a second", " float32", 0),
    ("the same in bfloat16", "xeon", "sentences", "texts a second", " bfloat16", 0),
    ("one sentence, ms, float32", "xeon", "few", "1", " float32", 1),
    ("sentences encoded per second, float32, AVX2", "zen3", "avx2", "STS-B sentences a second", "", 0),
]


@pytest.mark.parametrize(("label", "file", "table", "column", "ending", "digits"), LABELS)
def test_the_readme_has_the_same_figures(label, file, table, column, ending, digits):
    line = next(line for line in PAGES[ROOT / "README.md"].splitlines() if line.startswith(f"| {label} |"))
    for name, shown in zip(LIBRARIES, (part.strip() for part in line.split("|")[2:-1]), strict=True):
        row = name + ending
        if shown != "-":
            assert shown == f"{number(file, table, row, column):,.{digits}f}", row
        else:
            assert all(row != cells[0] for cells in figures.read(file)["tables"][table]["rows"])


RATE, RATE_BFLOAT16 = (number("xeon", "scale-rates", f"encoding in {kind}, sentences a second", 1) for kind in KINDS)
SCAN = float(cell("xeon", "scale-rates", "first pass over the text, plain or `.gz`, seconds a GB").split(",")[0])
MERGE = float(cell("xeon", "scale-rates", "merging, MB a second; a copy of the same files").split(",")[0])
SEARCH = number("xeon", "faiss", "1,000,000", "seconds")  # for 1,000 queries, by minisbert, whose row is the first

CLAIMS = {  # page: sentences with figures that follow from tables
    "scale": [
        f"| {1e6 / RATE / 60:.0f} minutes | {1e8 / RATE / 3600:.0f} hours | {1e10 / RATE / 86400:.0f} days |",
        f"| {1e6 / RATE_BFLOAT16 / 60:.0f} minutes | {1e8 / RATE_BFLOAT16 / 3600:.0f} hours | "
        f"{1e10 / RATE_BFLOAT16 / 86400:.0f} days |",
        f"560 times {SCAN:.0f} seconds | {0.056 * SCAN:.1f} seconds | {5.6 * SCAN / 60:.1f} minutes | "
        f"{560 * SCAN / 3600:.1f} hours |",
        f"at {MERGE:.0f} MB a second | {1536 / MERGE:.1f} seconds | {153_600 / MERGE / 60:.1f} minutes |",
        f"16 processes, {1e8 / RATE / 3600 / 16:.1f} hours | 1,000 processes, {1e7 / RATE / 3600:.1f} hours",
        f"{RATE * 1536 / 1e6:.1f} MB, a second, so 1,000 of them write {RATE * 1536 / 1e6:.1f} GB",
        f"whose vectors are float32 too, {RATE_BFLOAT16 * 1536 / 1e6:.1f} GB",
        f"of width 384 took {SEARCH:.1f} seconds",
        f"{SEARCH:.1f} nanoseconds for each pair",
        f"{10 * number('xeon', 'indexes-100000', 'minisbert, exact', '1,000 queries, s'):.1f} nanoseconds for each",
        f"| 1 million | {SEARCH:.1f} seconds |",
        f"| 100 million | {SEARCH * 100 / 60:.1f} minutes |",
        f"| 10 billion | {SEARCH * 10_000 / 3600:.0f} hours |",
        f"{number('xeon', 'indexes-10000', 'minisbert, exact', 'one, ms'):.0f} ms with 10,000 vectors, "
        f"{number('xeon', 'indexes-100000', 'minisbert, exact', 'one, ms'):.0f} ms with 100,000",
    ],
    "recipes": [
        f"max pooling falls from {cell('unnamed', 'ablate-pooling', 'max', 'before')} to "
        f"{cell('unnamed', 'ablate-pooling', 'max', 2).split(' ')[0]} (SBERT reports "
        f"{cell('unnamed', 'ablate-pooling', 'max', 3)} against "
        f"{cell('unnamed', 'ablate-pooling', 'trained on STS-B: mean', 3)} for mean)",
    ],
}

TEST, DEV = (cell("unnamed", "zero-shot", f"STS Benchmark {x}, `minisbert evaluate --split {x}`") for x in SPLITS)
CLS = " / ".join(cell("zen5", "simcse", "before", column) for column in (1, 2))
HEADS = {row[0]: f"{row[2]} / {row[3]}" for row in figures.read("zen5")["tables"]["heads"]["rows"]}
SAME = {  # cells that say the same: what they say, and where
    f"{DEV} / {TEST}": [
        ("zen5", "nli", "all-MiniLM-L6-v2 as it is", 3),
        ("zen4", "whitening", "as it is", "mean"),
        ("zen4", "columns", "384", 1),
        ("zen4", "before-transformers", "all-MiniLM-L6-v2", 1),
    ],
    DEV: [
        ("zen4", "static-table", "STS-B dev, Spearman"),
        ("zen4", "students", "all-MiniLM-L6-v2, the teacher", "dev"),
        ("unnamed", "ablate-pooling", "trained on STS-B: mean"),
        ("unnamed", "ablate-concat", "(u, v)"),
        ("zen4", "snli-notebook", "zero-shot", 4),
    ],
    TEST: [
        ("zen4", "static-table", "STS-B test, Spearman"),
        ("zen4", "students", "all-MiniLM-L6-v2, the teacher", "test"),
        ("unnamed", "retrieval", "before", "STS-B test, Spearman"),
        ("zen4", "snli-notebook", "zero-shot", 5),
    ],
    CLS: [("zen5", "nli", "all-MiniLM-L6-v2 as it is", 4), ("zen4", "whitening", "as it is", "[CLS]")],
    CLS.split()[0]: [
        ("unnamed", "ablate-pooling", "CLS"),
        ("unnamed", "ablate-dropout", ".1"),
        ("unnamed", "ablate-temperature", ".05"),
        ("unnamed", "ablate-augmentation", "none: dropout alone"),
    ],
    cell("xeon", "sentences", "minisbert float32"): [
        ("xeon", "scale-rates", "encoding in float32, sentences a second")
    ],
    cell("xeon", "sentences", "minisbert bfloat16"): [
        ("xeon", "scale-rates", "encoding in bfloat16, sentences a second")
    ],
    HEADS["`sts-cross-encoder`"]: [("zen5", "notebook", "`sts-cross-encoder-published`", 4)],
    HEADS["`sts-siamese`"]: [("zen5", "notebook", "`sts-siamese-published`", 4)],
    cell("unnamed", "retrieval", "before", "nDCG@10"): [
        ("zen4", "static-table", "search among 4,822 sentences, nDCG@10"),
    ],
}


@pytest.mark.parametrize("figure", SAME)
def test_one_figure_has_one_value(figure):
    assert {place: cell(*place) for place in SAME[figure]} == dict.fromkeys(SAME[figure], figure)


UNIT = r"(?:\w+/s|\w+ (?:a|per) second|[KMG]i?B|ms|times|%|(?:milli|nano)?seconds|minutes|hours|GFLOP/s)(?![\w/])"
UNMEASURED = {  # figures of the front pages that no table has, and why
    "92 MB": "the file of the weights, as assets.md lists it",
    "1.4 MB": "the file of the data, as assets.md lists it",
    "90 seconds": "of the first command with its downloads; its output below has the 45 of training",
    "60 minutes": "how long the longest lesson takes a reader",
}


def test_the_front_pages_have_no_other_figures():
    """The rows of README's table, and every number with a unit."""
    rows = re.findall(r"^\| ([^|]*\S) \|(?: [-\d.,]+ \|)", PAGES[ROOT / "README.md"], re.MULTILINE)
    trained = "STS-B test after one epoch of fine-tuning"
    assert {*rows} == {trained, *(label for label, *_ in LABELS)}
    text = " ".join(PAGES[ROOT / "README.md"].split() + PAGES[DOCS / "index.md"].split())
    assert set(re.findall(rf"\b\d[\d.,]* {UNIT}", text)) == set(UNMEASURED)
    scored = cell("zen4", "columns", "384", "default").split(" / ")
    assert f"| {trained} | {scored[1]} |" in text
    assert f"spearman {DEV} -> {scored[0]} {TEST} -> {scored[1]}" in text


@pytest.mark.parametrize("page", CLAIMS)
def test_what_a_page_says_follows_from_its_tables(page):
    text = re.sub(r"\s+", " ", PAGES[DOCS / f"{page}.md"])
    for sentence in CLAIMS[page]:
        assert sentence in text


def test_the_readmes_claims_of_speed():
    """Faster than sentence-transformers in float32 and in bfloat16, for sentences."""
    for kind in KINDS:
        ours = number("xeon", "sentences", f"minisbert {kind}")
        assert ours > number("xeon", "sentences", f"sentence-transformers {kind}")


# ------------------------------------------------------------------------------- measuring a table anew

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
    (tmp_path / "page.md").write_text(figures.rendered("mine", "start") + "\nText.\n")
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
