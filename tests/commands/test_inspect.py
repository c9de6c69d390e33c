"""``minisbert inspect``: every planted fault is named with its line, and the command it prints runs."""

import gzip
import json
import re
import shlex
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from minisbert.commands.inspect_ import draw_inspection, main
from minisbert.core import InputError
from minisbert.data import datasets
from minisbert.diagnosis.inspection import (
    FAULTS,
    NOTE,
    PROBLEM,
    WARNING,
    compare_files,
    inspect,
    normalised,
    repeats,
    text_hash,
    training_command,
)
from minisbert.models.tokenizer import Tokenizer
from minisbert.training.run_options import parse
from minisbert.training.settings import sources_of
from tests import toys
from tests.conftest import ROOT, exit_code_without_a_reader

SCORED = [f"{i % 6}\ta cat is {i}\ta dog is {i}" for i in range(60)]
CSV = [line.replace("\t", ",") for line in SCORED]
LABELLED = [f"{i % 2}\ta cat is {i}\ta dog is {i}" for i in range(60)]
TRIPLETS = [f"a cat is {i}\tthe cat is {i}\ta dog is {i}" for i in range(60)]
TUPLES = [json.dumps({"anchor": f"cat {i}", "positive": f"the cat {i}", "negative": f"dog {i}"}) for i in range(60)]
NLI_ROW = '{{"gold_label": "{}", "sentence1": "a cat {}", "sentence2": "a dog {}"}}'
NLI = [NLI_ROW.format(toys.NLI_LABELS[i % 3], i, i) for i in range(60)]
HEADER = "label\tsentence1\tsentence2"
SENTENCES = [f"a cat is {i}" for i in range(60)]


def put(lines: list[str], number: int, line: str) -> bytes:
    """The lines with another one in the place of the ``number``-th, counted from 1."""
    return ("\n".join([*lines[: number - 1], line, *lines[number:]]) + "\n").encode(errors="surrogatepass")


def joined(lines: list[str], end: str = "\n") -> bytes:
    return "".join(line + end for line in lines).encode()


# name of the fault: a file that has it, its content, where the report says that it is
PLANTED = {
    "unreadable": ("a.jsonl.gz", gzip.compress(joined(TUPLES))[:-12], "a.jsonl.gz: Compressed file ended"),
    "refused": ("a.tsv", put(SCORED, 14, "3,5\ta cat\ta dog"), "line 14: the score '3,5' is not a number"),
    "skipped": ("a.jsonl", put(NLI, 17, NLI_ROW.format("-", 16, 16)), "line 17"),
    "unread-columns": (
        "a.csv",
        joined(["genre,query,answer", *(f"x,cat {i},the cat {i}" for i in range(60))]),
        "genre",
    ),
    "off-scale": ("a.tsv", put(SCORED, 15, "45\ta cat\ta dog"), "line 15: '45'"),
    "other-scale": ("a.tsv", joined([f"{i % 11}\tcat {i}\tdog {i}" for i in range(60)]), "0 to 10"),
    "constant-label": ("a.tsv", joined(["3\t" + line.split("\t", 1)[1] for line in SCORED]), "line 1: '3'"),
    "duplicates": ("a.tsv", put(TRIPLETS, 25, TRIPLETS[2]), "line 25, as line 3"),
    "too-long": ("a.txt", put(SENTENCES, 29, "the cat and " * 9), "line 29"),
}
# what stops a run before its first row is read
UNREADABLE = {
    "not UTF-8": ("a.tsv", put(SCORED, 7, "3\tcafX\tmilk").replace(b"X", b"\xe9"), "line 7: not UTF-8"),
    "quotes": ("a.csv", put(CSV, 9, '3,"a "small" cat",a dog'), "line 9: not comma-separated values"),
    "JSON": ("a.jsonl", put(TUPLES, 12, '{"anchor": "a cat",'), "line 12: not valid JSON"),
    "surrogate": ("a.jsonl", put(TUPLES, 24, '["a \\ud83d", "b", "c"]'), "line 24: not valid Unicode"),
    "delimiter": ("a.csv", joined(SCORED).replace(b"\t", b";"), "rows of two columns or more are needed"),
    "header": ("a.tsv", joined(["rating\tleft\tright", *SCORED]), "'rating', 'left', 'right' are not known"),
    "order": ("a.tsv", joined([f"cat {i}\ta dog {i}\t{i % 6}" for i in range(60)]), "column 3 holds numbers"),
    "index": ("a.csv", joined([f"{i},a cat {i},the cat {i}" for i in range(60)]), "column 1 counts the rows"),
    "no rows": ("a.tsv", b"\n\n", "holds no usable rows"),
}
REFUSED = {
    "columns": ("a.csv", put(CSV, 10, "3,a cat, or two,a dog"), "line 10: 4 columns; 3 are needed"),
    "header again": ("a.tsv", put([HEADER, *LABELLED], 11, HEADER), "line 11: the header again"),
    "key": ("a.jsonl", put(NLI, 13, '{"gold_label": "neutral", "sentence1": "a cat"}'), "line 13: the keys are"),
    "empty": ("a.tsv", put(SCORED, 20, "1\ta cat\t "), "line 20: an empty sentence"),
    "class": ("a.jsonl", put(NLI, 20, NLI_ROW.format("Neutral", 1, 2)), "the label 'Neutral' is not contradiction"),
}
OVERLAP = [*SCORED[30:33], "1\tA cat, is 8!\ta dog is 8", *SCORED[34:]]
PLANTED_BETWEEN = {
    # the first file's rows, the second file and its content, where the report says that it is
    "other-form": (SCORED, "b.txt", joined(SENTENCES), "sentences; as --dev cosine reads scored pairs"),
    "scale-differs": (SCORED, "b.tsv", PLANTED["other-scale"][1], "ends at 10, not 5"),
    "overlap": (SCORED[:30], "b.tsv", joined(SCORED[28:]), "2 of 32 rows, the first in line 1, are in"),
}
READERS = {
    "cosine": datasets.scored_rows,
    "contrastive": datasets.duplicate_rows,
    "softmax": datasets.class_rows,
    "cross-encoder-multilabel": datasets.multilabel_rows,
    "mnr": datasets.triplet_rows,
    "simcse": datasets.sentence_rows,
}


@pytest.fixture(scope="module")
def tokenizer(tiny) -> Tokenizer:
    return Tokenizer.load(tiny)


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def train_on(line: str, own: tuple[str, ...] = ("cosine",)) -> None:
    """Read the rows as the command that is printed would; for objectives of ``own`` they are dev and test as well."""
    options = parse(shlex.split(line)[3:])
    if options.objective in own:
        options.dev = options.test = options.data  # instead of stsb, or of a few rows held out
    given = [options.scale] if options.objective == "cosine" else []
    READERS[options.objective](sources_of(options), *given)


# ------------------------------------------------------------------------------------- planted faults


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named_with_its_line_and_is_as_bad_as_training_finds_it(name, tmp_path, tokenizer):
    file, content, place = PLANTED[name]
    path = write(tmp_path, file, content)
    found = inspect(path, tokenizer if name == "too-long" else None)
    assert place in found.findings[name].places[0]
    problems = {key for key, finding in found.findings.items() if finding.level == PROBLEM}
    assert problems <= {name}
    line = training_command([found])
    if line is None:
        assert problems
    elif problems:
        with pytest.raises(InputError):
            train_on(line, ("cosine", "contrastive"))
    else:
        train_on(line, ("cosine", "contrastive"))


@pytest.mark.parametrize(
    ("fault", "name"), [("unreadable", name) for name in UNREADABLE] + [("refused", name) for name in REFUSED]
)
def test_what_a_reader_refuses_is_a_problem_with_its_place(fault, name, tmp_path):
    file, content, place = (UNREADABLE if fault == "unreadable" else REFUSED)[name]
    found = inspect(write(tmp_path, file, content))
    places = [place for finding in found.findings.values() for place in finding.places]
    assert any(re.search(place, one) for one in places)
    assert not found.findings.usable


def test_scores_of_0_to_1_on_a_scale_of_5(tmp_path):
    path = write(tmp_path, "a.tsv", joined([f"{i / 59}\tcat {i}\tdog {i}" for i in range(60)]))
    assert inspect(path, scale=5.0).findings["off-scale"].places == ["no score is above 1 on a scale of 0 to 5"]
    assert "off-scale" not in inspect(path, scale=1.0).findings
    path = write(tmp_path, "b.tsv", joined([f"{i / 30 - 1:.3f}\tcat {i}\tdog {i}" for i in range(60)]))
    assert inspect(path).findings["other-scale"].places == ["-1 to 1"]
    assert "--scale -1" in training_command([inspect(path)])
    train_on(training_command([inspect(path)]))


@pytest.mark.parametrize("name", PLANTED_BETWEEN)
def test_a_planted_fault_between_files_is_named(name, tmp_path):
    first, second, content, place = PLANTED_BETWEEN[name]
    files = [inspect(write(tmp_path, "a.tsv", joined(first))), inspect(write(tmp_path, second, content))]
    compare_files(files)
    assert place in files[1].findings[name].places[0]
    assert name not in files[0].findings


def test_every_fault_is_planted():
    assert set(PLANTED) | set(PLANTED_BETWEEN) | {"too-few"} == set(FAULTS)
    assert {level for level, _, _ in FAULTS.values()} == {PROBLEM, WARNING, NOTE}
    page = (ROOT / "docs" / "inspect.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in FAULTS)


# ---------------------------------------------------------------------------------------- good files


QUORA = ["id,question1,question2,is_duplicate", *(f"{i},cat {i},dog {i},{i % 2}" for i in range(60))]
WIDE = [f"g\tf\t2012\t{i}\t{i % 6}\tcat {i}\tdog {i}" + "\tx" * (i % 3) for i in range(60)]  # as in STS-B
NEGATIVES = [json.dumps([f"{word} {i}" for word in ("cat", "kitten", "dog", "sun")]) for i in range(60)]
GOOD = {
    "stsb.csv": (joined(WIDE), "cosine"),
    "scored.csv": (joined(["score,sentence1,sentence2", *CSV, '2,"a cat, or two","on\ntwo lines"']), "cosine"),
    "unit.tsv": (joined([f"{i / 60}\tcat {i}\tdog {i}" for i in range(60)]), "cosine"),
    "labelled.csv": (joined(QUORA), "contrastive"),
    "labelled.tsv.gz": (gzip.compress(joined(LABELLED)), "contrastive"),
    "nli.jsonl": (joined(NLI), "softmax"),
    "pairs.csv": (joined(["query,answer", *(f"a cat {i},the cat {i}" for i in range(60))]), "mnr"),
    "triplets.jsonl.gz": (gzip.compress(joined(TUPLES)), "mnr"),
    "negatives.jsonl": (joined(NEGATIVES), "mnr"),
    "sentences.txt": (joined([f"a cat, {i}; or, well, a dog" for i in range(60)]), "simcse"),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_file_has_no_fault_and_the_command_for_its_form(name, tmp_path):
    content, objective = GOOD[name]
    path = write(tmp_path, name, content)
    found = inspect(path)
    assert set(found.findings) <= {"other-scale", "unread-columns"}
    line = training_command([found], "weights/tiny", 16)
    scale = " --scale 1" if name == "unit.tsv" else ""
    start = f"python -m minisbert.train --objective {objective} --data {path}"
    assert line == f"{start}{scale} --model weights/tiny --max-length 16"
    assert len(found.lines) == 60 + (name == "scored.csv")
    train_on(line)


def test_dev_and_test_are_in_the_command(tmp_path):
    files = toys.write_all(tmp_path)
    found = [inspect(Path(files[name])) for name in ("triplets", "dev", "test")]
    compare_files(found)
    assert all(one.findings.usable for one in found)
    assert training_command(found).endswith(
        f"--objective mnr --data {files['triplets']} --dev {files['dev']} --test {files['test']}"
    )


# ------------------------------------------------------------------------------------------- pieces


def test_pieces():
    assert list(repeats([7, 8, 7, 9, 8, 7])) == [(2, 0), (4, 1), (5, 0)]
    assert normalised("It's  5! ÉCOLE") == "its5école"
    assert text_hash("a", "bc") != text_hash("ab", "c")


def test_texts_are_not_kept(tmp_path):
    """1,000 texts of 4,000 characters need the memory of their hashes, 100 KB, not of 4 MB."""
    path = write(tmp_path, "a.txt", b"".join(b"%d%s\n" % (i, b"word" * 1000) for i in range(1000)))
    tracemalloc.start()
    try:
        found = inspect(path)
        assert tracemalloc.get_traced_memory()[1] < 1_500_000
    finally:
        tracemalloc.stop()
    assert len(found.lines) == 1000


# ------------------------------------------------------------------------------------------- command


def test_the_report(tiny, tmp_path, capsys):
    path = write(tmp_path, "a.tsv", put(LABELLED, 16, "1\ta cat\tthe 猫 " + "cat " * 20))
    main([str(path), "--model", str(tiny)])
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"{path}: labelled pairs"
    assert out[1:3] == ["  rows     60", "  texts    120, 120 distinct"]
    assert "the limit of 16 cuts 1 of the texts (0.8 %)" in "\n".join(out)
    assert "note     too-long: texts longer than the model's limit" in "\n".join(out)
    train = f"python -m minisbert.train --objective contrastive --data {path} --model {tiny}"
    reranker = train.replace("contrastive", "cross-encoder-binary")
    assert out[-4:-2] + out[-1:] == ["Train with:", f"  {train}", f"  {reranker}"]


def test_many_scores_are_counted_in_ranges_and_what_files_share(tiny, tmp_path, capsys):
    content = joined([f"{(i + 0.5) / 60}\tcat {i}\tdog {i}" for i in range(60)])
    files = [str(write(tmp_path, name, content)) for name in ("a.tsv", "b.tsv")]
    main([*files, "--model", str(tiny)])
    out = capsys.readouterr().out
    bars = [line.split("  ") for line in out.splitlines() if line.endswith("#")]
    assert len(bars) == 20
    assert [cell.strip() for cell in bars[9] if cell] == ["0.9 to 1", "6", "#" * 24]
    assert f"shared by {files[0]} and {files[1]}:\n  60 rows, 0 more but for case and punctuation; 120 texts\n" in out
    assert "warning  overlap (60): rows that are also in another file\n" in out


def test_the_exit_code_survives_a_closed_pipe(tiny, tmp_path):
    file = write(tmp_path, "a.tsv", put(SCORED, 14, "high\ta cat\ta dog"))
    assert exit_code_without_a_reader("minisbert", "inspect", str(file), "--model", str(tiny)) == 1


def test_json_and_the_exit_code_of_a_problem(tiny, tmp_path, capsys):
    train = write(tmp_path, "a.tsv", put(SCORED, 14, "high\ta cat\ta dog"))
    dev = write(tmp_path, "b.tsv", joined(SCORED[50:]))
    with pytest.raises(SystemExit) as end:
        main([str(train), str(dev), "--model", str(tiny), "--json"])
    assert end.value.code == 1
    content = json.loads(capsys.readouterr().out)
    first, second = content["files"]
    assert (first["rows"], first["form"], first["usable"], second["usable"]) == (59, "scored pairs", False, True)
    assert first["tokens"]["limit"] == 16
    assert first["labels"]["counts"] == {"0": 10, "1": 9, "2": 10, "3": 10, "4": 10, "5": 10}
    assert [finding["name"] for finding in first["findings"] if finding["level"] == PROBLEM] == ["refused"]
    assert content["shared"] == [{"file": str(dev), "with": str(train), "exact": 10, "normalised": 0, "texts": 20}]


def test_without_a_model_lengths_are_skipped_in_words(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINISBERT_HOME", str(tmp_path))
    main([str(write(tmp_path, "a.txt", joined(SENTENCES)))])
    captured = capsys.readouterr()
    assert "lengths in tokens are not counted because all-MiniLM-L6-v2 is missing" in captured.err
    assert "tokens" not in captured.out
    assert "--objective simcse" in captured.out


def test_bad_calls_are_refused(tiny, tmp_path):
    with pytest.raises(InputError, match=r"missing\.tsv does not exist"):
        main([str(tmp_path / "missing.tsv"), "--model", str(tiny)])
    path = str(write(tmp_path, "a.txt", joined(SENTENCES)))
    with pytest.raises(InputError, match="no model 'nowhere'"):
        main([path, "--model", "nowhere"])


def test_the_picture(tiny, tokenizer, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    files = [write(tmp_path, "a.tsv", joined(SCORED)), write(tmp_path, "b.txt", joined(SENTENCES))]
    figure = draw_inspection([inspect(path, tokenizer) for path in files])
    (tokens, characters), _ = np.array(figure.axes).reshape(2, 2)
    found, edges = (getattr(characters.patches[0].get_data(), name) for name in ("values", "edges"))
    texts = [text for line in SCORED for text in line.split("\t")[1:]]
    assert found.tolist() == np.histogram([len(text) for text in texts], edges)[0].tolist()
    assert edges[-1] > max(map(len, texts))
    assert tokens.patches[0].get_data().values.sum() == 120
    main([str(files[1]), "--model", str(tiny), "--plots", str(tmp_path / "new")])
    assert (tmp_path / "new" / "inspection.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_matplotlib_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"plots need matplotlib .*: pip install 'minisbert\[plots\]'"):
        main([str(tmp_path / "missing.tsv"), "--plots", str(tmp_path)])
