"""Figures that say the same have one value: in tables, in what follows from them, and on the front pages."""

import re

import pytest

from benchmarks import figures
from tests.test_figures import DOCS, PAGES, ROOT


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
LABELS = [
    ("sentences encoded per second, float32", "sentences", "texts a second", "float32", 0),
    ("the same in bfloat16", "sentences", "texts a second", "bfloat16", 0),
    ("the same in int8", "sentences", "texts a second", "int8", 0),
    ("long texts (256 tokens) per second, bfloat16", "long", "texts a second", "bfloat16", 0),
    ("one sentence, ms, float32", "few", "1", "float32", 1),
    ("16 sentences, ms, float32", "few", "16", "float32", 0),
    ("seconds from process start to first vector", "start", "seconds", "", 1),
]


@pytest.mark.parametrize(("label", "table", "column", "precision", "digits"), LABELS)
def test_the_readme_has_the_same_figures(label, table, column, precision, digits):
    line = next(line for line in PAGES[ROOT / "README.md"].splitlines() if line.startswith(f"| {label} |"))
    for name, shown in zip(LIBRARIES, (part.strip() for part in line.split("|")[2:-1]), strict=True):
        row = f"{name} {precision}".strip()
        if shown != "-":
            assert shown == f"{number('xeon', table, row, column):,.{digits}f}", row
        else:
            assert all(row != cells[0] for cells in figures.read("xeon")["tables"][table]["rows"])


RATE, RATE_BFLOAT16 = (number("xeon", "scale-rates", f"encoding in {kind}, sentences a second", 1) for kind in KINDS)
SCAN = float(cell("xeon", "scale-rates", "first pass over the text, plain or `.gz`, seconds a GB").split(",")[0])
MERGE = float(cell("xeon", "scale-rates", "merging, MB a second; a copy of the same files").split(",")[0])
SEARCH = number("xeon", "faiss", "1,000,000", "seconds")  # for 1,000 queries, by minisbert, whose row is the first

CLAIMS = {  # page: sentences with figures that follow from tables
    "speed": [
        f"took 12.1 in float32 and 9.1 in bfloat16: {25.6 / 12.1:.1f} and {25.6 / 9.1:.1f} times as fast",
    ],
    "scale": [
        f"| {1e6 / RATE / 60:.0f} minutes | {1e8 / RATE / 3600:.0f} hours | {1e10 / RATE / 86400:.0f} days |",
        f"| {1e6 / RATE_BFLOAT16 / 60:.0f} minutes | {1e8 / RATE_BFLOAT16 / 3600:.0f} hours | "
        f"{1e10 / RATE_BFLOAT16 / 86400:.0f} days |",
        f"| {2e6 / RATE / 3600:.1f} | {2e8 / RATE / 3600:.0f} | {round(2e10 / RATE / 3600, -2):,.0f} |",
        f"| {2e6 / RATE_BFLOAT16 / 3600:.1f} | {2e8 / RATE_BFLOAT16 / 3600:.0f} | "
        f"{round(2e10 / RATE_BFLOAT16 / 3600, -1):,.0f} |",
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
    cell("xeon", "earlier-sentences", "minisbert, float32"): [
        ("xeon", "scale-rates", "encoding in float32, sentences a second")
    ],
    cell("xeon", "earlier-sentences", "minisbert, bfloat16"): [
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
    "2,896 tokens/s": "in the output of that command, which somebody else's will not equal",
    "100 minutes": "how long the longest lesson takes a reader",
}


def test_the_front_pages_have_no_other_figures():
    """The rows of README's table, and every number with a unit."""
    rows = re.findall(r"^\| ([^|]*\S) \|(?: [-\d.,]+ \|)", PAGES[ROOT / "README.md"], re.MULTILINE)
    scores = ["STS-B test, zero-shot Spearman x 100", "STS-B test after one epoch of fine-tuning"]
    trained = "training (Zen 4), times as fast: float32, bfloat16"
    assert {*rows, trained} == {*scores, *(label for label, *_ in LABELS), trained}
    text = " ".join(PAGES[ROOT / "README.md"].split() + PAGES[DOCS / "index.md"].split())
    assert set(re.findall(rf"\b\d[\d.,]* {UNIT}", text)) == set(UNMEASURED)
    scored = cell("zen4", "columns", "384", "default").split(" / ")
    assert f"| {scores[1]} | {scored[1]} |" in text
    assert f"spearman {DEV} -> {scored[0]} {TEST} -> {scored[1]}" in text


@pytest.mark.parametrize("page", CLAIMS)
def test_what_a_page_says_follows_from_its_tables(page):
    text = re.sub(r"\s+", " ", PAGES[DOCS / f"{page}.md"])
    for sentence in CLAIMS[page]:
        assert sentence in text


def test_the_readmes_claims_of_speed():
    """In float32 and in bfloat16, for sentences; training on the page on speed."""
    for kind in KINDS:
        ours = number("xeon", "sentences", f"minisbert {kind}")
        assert ours > number("xeon", "sentences", f"sentence-transformers {kind}")
    quoted = re.search(r"\(Zen 4\), times as fast: float32, bfloat16 \| ([\d.]+), ([\d.]+) ", PAGES[ROOT / "README.md"])
    assert " and ".join(quoted.groups()) + " times as fast" in PAGES[DOCS / "speed.md"]
