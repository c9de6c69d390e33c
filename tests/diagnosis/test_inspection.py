"""``inspect``: every planted fault is named with its line, and training reads what inspect finds usable."""

import gzip
import json
import shlex
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minisbert.core import InputError
from minisbert.data import datasets
from minisbert.diagnosis.inspection import (
    FAULTS,
    PROBLEM,
    InspectedFile,
    compare_files,
    inspect,
    normalised,
    text_hash,
    training_command,
)
from minisbert.models.tokenizer import read_tokenizer
from minisbert.training.objectives.base import sources_of
from minisbert.training.run_options import parse
from tests import toys
from tests.conftest import ROOT

SCORED = ["score\tsentence1\tsentence2", *(f"{i % 6}\ta cat is {i}\ta dog is {i}" for i in range(60))]
CSV = [line.replace("\t", ",") for line in SCORED]
LABELLED = ["label\tsentence1\tsentence2", *(f"{i % 2}\ta cat is {i}\ta dog is {i}" for i in range(60))]
TRIPLETS = ["anchor\tpositive\tnegative", *(f"a cat is {i}\tthe cat is {i}\ta dog is {i}" for i in range(60))]
TUPLES = [json.dumps({"anchor": f"cat {i}", "positive": f"the cat {i}", "negative": f"dog {i}"}) for i in range(60)]
NLI_ROW = '{{"gold_label": "{}", "sentence1": "a cat {}", "sentence2": "a dog {}"}}'
NLI = [NLI_ROW.format(toys.NLI_LABELS[i % 3], i, i) for i in range(60)]
SENTENCES = [f"a cat is {i}" for i in range(60)]


def put(lines: list[str], number: int, line: str) -> bytes:
    """The lines with another one in the place of the ``number``-th, counted from 1."""
    return ("\n".join([*lines[: number - 1], line, *lines[number:]]) + "\n").encode(errors="surrogatepass")


def joined(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def scores(values: list[float]) -> bytes:
    return joined([SCORED[0], *(f"{value}\tcat {i}\tdog {i}" for i, value in enumerate(values))])


# name of the fault: a file that has it, its content, where the report says that it is
PLANTED = {
    "unreadable": ("a.jsonl.gz", gzip.compress(joined(TUPLES))[:-12], "a.jsonl.gz: Compressed file ended"),
    "refused": ("a.tsv", put(SCORED, 14, "3,5\ta cat\ta dog"), "line 14: the score '3,5'"),
    "skipped": ("a.jsonl", put(NLI, 17, NLI_ROW.format("-", 16, 16)), "line 17"),
    "unread-columns": ("a.csv", joined(["genre,query,answer", *(f"x,cat {i},cat {i}" for i in range(9))]), "genre"),
    "off-scale": ("a.tsv", put(SCORED, 15, "45\ta cat\ta dog"), "line 15: '45'"),
    "other-scale": ("a.tsv", scores([i % 11 for i in range(60)]), "0 to 10"),
    "constant-label": ("a.tsv", scores([3] * 9), "line 2: '3'"),
    "duplicates": ("a.tsv", put(TRIPLETS, 25, TRIPLETS[2]), "line 25, as line 3"),
    "too-long": ("a.txt", put(SENTENCES, 29, "the cat and " * 9), "line 29"),
}
REFUSED = {  # what training refuses as a whole, or in a row
    "not UTF-8": ("a.tsv", put(SCORED, 7, "3\tcafX\tmilk").replace(b"X", b"\xe9"), "line 7: not UTF-8"),
    "quotes": ("a.csv", put(CSV, 9, '3,"a "small" cat",a dog'), "line 9: not comma-separated"),
    "JSON": ("a.jsonl", put(TUPLES, 12, '{"anchor": "a cat",'), "line 12: not valid JSON"),
    "semicolons": ("a.csv", joined(SCORED).replace(b"\t", b";"), "score;sentence1;sentence2"),
    "header": ("a.tsv", joined(["rating\tleft\tright", *SCORED]), "'rating', 'left', 'right'"),
    "no header": ("a.csv", joined([f"a cat {i},{'sports' if i % 2 else 'news'}" for i in range(60)]), "'a cat 0'"),
    "no rows": ("a.tsv", b"\n\n", "no usable rows"),
    "columns": ("a.csv", put(CSV, 10, "3,a cat, or two,a dog"), "line 10: 4 columns"),
    "key": ("a.jsonl", put(NLI, 13, '{"gold_label": "neutral", "sentence1": "a cat"}'), "line 13: the keys"),
    "item": ("a.json", b'[{"anchor": "a", "positive": "b"}, {"anchor": "c"}]', "item 2: the keys"),
    "class": ("a.jsonl", put(NLI, 20, NLI_ROW.format("Neutral", 1, 2)), "'Neutral'"),
    "one label": ("a.jsonl", joined(['{"labels": ["x"], "sentence1": "a", "sentence2": "b"}']), "line 1: 'x'"),
}
READERS = {
    "cosine": datasets.scored_rows,
    "contrastive": datasets.duplicate_rows,
    "softmax": datasets.class_rows,
    "cross-encoder-multilabel": datasets.multilabel_rows,
    "mnr": datasets.triplet_rows,
    "simcse": datasets.sentence_rows,
}


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def train_on(line: str) -> None:
    """Read the rows as the command that is printed would, which are dev and test as well."""
    options = parse(shlex.split(line)[2:])
    options.dev = options.test = options.data  # instead of stsb, or of a few rows held out
    given = [options.scale] if options.objective == "cosine" else []
    READERS[options.objective](sources_of(options), *given)


def places(found: InspectedFile) -> list[str]:
    return [place for finding in found.findings.values() for place in finding["places"]]


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named_with_its_line_and_is_as_bad_as_training_finds_it(name, tiny, tmp_path):
    file, content, place = PLANTED[name]
    found = inspect(write(tmp_path, file, content), read_tokenizer(tiny) if name == "too-long" else None)
    assert place in found.findings[name]["places"][0]
    problems = {key for key, finding in found.findings.items() if finding["level"] == PROBLEM}
    assert problems <= {name}
    line = training_command([found])
    if line is None:  # not even the first row can be read
        assert problems
    elif problems:
        with pytest.raises(InputError):
            train_on(line)
    else:
        train_on(line)


@pytest.mark.parametrize("name", REFUSED)
def test_what_training_refuses_is_a_problem_with_its_place(name, tmp_path):
    file, content, place = REFUSED[name]
    found = inspect(write(tmp_path, file, content))
    assert any(place in one for one in places(found))
    assert not found.usable


def test_every_fault_is_planted_and_in_the_docs():
    assert {*PLANTED, "overlap"} == FAULTS.keys()
    page = (ROOT / "docs" / "inspect.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in FAULTS)


def test_the_scale_of_scores(tmp_path):
    path = write(tmp_path, "a.tsv", scores([i / 59 for i in range(60)]))
    assert "no score is above 1" in places(inspect(path, scale=5.0))[0]
    assert "off-scale" not in inspect(path, scale=1.0).findings
    path = write(tmp_path, "b.tsv", scores([i / 30 - 1 for i in range(60)]))
    assert places(inspect(path)) == ["-1 to 1"]
    line = training_command([inspect(path)], "weights/tiny", 16)
    assert line.endswith("--scale -1 --model weights/tiny --max-length 16")
    train_on(line)


def test_rows_of_a_file_that_are_also_in_another(tmp_path):
    """Two exact copies, one of them the other way round, and one but for case and punctuation."""
    train = inspect(write(tmp_path, "a.tsv", joined(SCORED[:31])))
    other = [SCORED[0], "1\ta dog is 3\ta cat is 3", SCORED[9], "2\tA cat, is 8!\ta dog is 8", *SCORED[40:]]
    dev = inspect(write(tmp_path, "b.tsv", joined(other)))
    (shared,) = compare_files([train, dev])
    assert shared == {"file": str(dev.path), "with": str(train.path), "exact": 2, "normalised": 1, "texts": 4}
    assert "overlap" not in train.findings
    assert dev.findings["overlap"]["count"] == 3
    assert "3 of 24 rows, the first in line 2" in dev.findings["overlap"]["places"][0]
    assert training_command([train, dev]).endswith(f"--objective cosine --data {train.path} --dev {dev.path}")


def test_pieces():
    assert normalised("It's  5! ÉCOLE") == "its5école"
    assert text_hash("a", "bc") != text_hash("ab", "c")


def test_texts_are_not_in_memory(tmp_path):
    """1,000 texts of 4,000 characters need the memory of their hashes, 100 KB, not of 4 MB."""
    path = write(tmp_path, "a.txt", b"".join(b"%d%s\n" % (i, b"word" * 1000) for i in range(1000)))
    tracemalloc.start()
    try:
        found = inspect(path)
        assert tracemalloc.get_traced_memory()[1] < 1_500_000
    finally:
        tracemalloc.stop()
    assert len(found.lines) == 1000


# ------------------------------------------------------------------------------------- random files

HEADERS = ("", "score,sentence1,sentence2", "label,sentence1,sentence2", "id,question1,question2,is_duplicate")
HEADERS += ("labels,sentence1,sentence2", "anchor,positive", "query,answer", "anchor,positive,negative")
HEADERS += ("text1,text2,similarity", "rating,left,right")
WORD = st.sampled_from('cat|a dog|the "old" house|"|7|3.5|| |a, b|a;b|{|nan|é|-'.split("|"))
TEXT = st.lists(WORD, min_size=1, max_size=3).map(" ".join)
LABEL = st.sampled_from(["0", "1", "2", "5", "0.5", "1.0", "-1", "100", "nan", "neutral", "-", "1,5", "high", ""])
GOOD_LABELS = st.sampled_from([("0", "1"), ("0", "2.5", "5"), ("0.1", "0.9"), ("0", "100"), ("1",), ("neutral", "-")])
STRAY = ("", " ", "\t", ",", "x", '"', '{"a"', "[]", "null", '{"anchor": "a"}', '["a"]', '["a", "b"]', "1\ta\tb")


@st.composite
def tables(draw) -> list[str]:
    mark = draw(st.sampled_from("\t\t\t\t,,,,,;"))
    header = draw(st.sampled_from(HEADERS))
    names = header.split(",") if header else ["", "", ""]
    labels, plain = draw(GOOD_LABELS), draw(st.booleans())
    if "label" in names or "is_duplicate" in names:
        labels = draw(st.sampled_from([("0", "1"), labels]))
    lines = [header.replace(",", mark)] if header else []
    for i in range(draw(st.integers(1, 25))):
        cells = [f"cat {i} {j}" if plain else draw(TEXT) for j in range(len(names))]
        for place, name in enumerate(names):
            if name in ("score", "label", "labels", "is_duplicate", "similarity"):
                cells[place] = draw(LABEL) if draw(st.integers(0, 60)) == 0 else labels[i % len(labels)]
        if mark == "," and draw(st.booleans()):
            cells = ['"' + cell.replace('"', '""') + '"' for cell in cells]
        lines.append(mark.join(cells))
    return lines


@st.composite
def json_rows(draw) -> list[str]:
    keys = draw(st.sampled_from([HEADERS[1], *HEADERS[4:8:2], "gold_label,sentence1,sentence2", "text"]))
    plain = draw(st.booleans())
    lines = []
    for i in range(draw(st.integers(1, 25))):
        texts = [f"cat {i} {j}" if plain else draw(TEXT) for j in range(9)]
        if keys.startswith("gold"):
            texts[0] = ("neutral", "entailment", "contradiction", "-")[i % 4]
        if keys.startswith("labels"):
            labels = [["x"], ["x", "y"], [], [1, 0], "x", 1, {}]
            texts[0] = draw(st.sampled_from(labels[:2] if plain else labels))
        lines.append(json.dumps(dict(zip(keys.split(","), texts, strict=False))))
    return lines


@st.composite
def files(draw) -> tuple[str, bytes]:
    sentences = st.lists(TEXT, min_size=1, max_size=10)
    lines = list(draw(st.one_of(tables(), tables(), json_rows(), sentences)))
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 1, 2]))):
        at = draw(st.integers(0, len(lines)))
        lines.insert(at, draw(st.sampled_from([*STRAY, lines[0] if lines else ""])))
    end = draw(st.sampled_from(["\n", "\n", "\n", "\r\n", "\r", "\n\n"]))
    mark, last = draw(st.sampled_from(["", "", "", "\ufeff"])), draw(st.sampled_from([end, ""]))
    content = (mark + end.join(lines) + last).encode()
    if lines and lines[0][:1] in "{[" and draw(st.booleans()):
        content = f"[{','.join(lines)}]".encode()
    content += draw(st.sampled_from([b"", b"", b"", b"caf\xe9\n", b'["\\ud800", "b"]\n']))
    name = "a" + draw(st.sampled_from([".tsv", ".csv", ".txt", ".jsonl", ".json"]))
    if draw(st.integers(0, 5)) == 0:
        content, name = gzip.compress(content)[: draw(st.sampled_from([None, None, -9]))], name + ".gz"
    return name, content


@pytest.mark.filterwarnings("ignore")
def test_what_inspect_recommends_training_reads(tmp_path):
    verdicts: list[bool] = []

    @settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(file=files(), scale=st.sampled_from([None, None, None, 1.0, 5.0, 10.0]))
    def judge(file: tuple[str, bytes], scale: float | None) -> None:
        found = inspect(write(tmp_path, *file), scale=scale)
        verdicts.append(found.usable)
        line = training_command([found])
        assert line or not found.usable
        if found.usable:
            train_on(line)

    judge()
    assert 40 < sum(verdicts) < len(verdicts) - 40  # neither verdict is rare, so that the comparison means something
