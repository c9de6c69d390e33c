"""``inspect``: faults are named with their lines, and training reads what inspect finds usable."""

import gzip
import json
import shlex
from pathlib import Path

import pytest
from minisbert.training.settings import parse

from minisbert.checkpoints.tokenizer_files import read_tokenizer
from minisbert.core import InputError
from minisbert.diagnosis.inspection import inspect, overlap, training_command
from tests import toys

SCORED = [
    "score\tsentence1\tsentence2",
    *(f"{i % 6}\ta cat is {i}\ta dog is {i}" for i in range(60)),
]
TRIPLETS = [
    "anchor\tpositive\tnegative",
    *(f"a cat is {i}\tthe cat is {i}\ta dog is {i}" for i in range(60)),
]
TUPLES = [
    json.dumps({"anchor": f"cat {i}", "positive": f"the cat {i}", "negative": f"dog {i}"})
    for i in range(60)
]
NLI_ROW = '{{"gold_label": "{}", "sentence1": "a cat {}", "sentence2": "a dog {}"}}'
NLI = [NLI_ROW.format(toys.NLI_LABELS[i % 3], i, i) for i in range(60)]


def put(lines: list[str], number: int, line: str) -> bytes:
    """The lines with another one in the place of the ``number``-th, counted from 1."""
    return joined([*lines[: number - 1], line, *lines[number:]])


def joined(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


REFUSED = {  # what training refuses as a whole, or in a row
    "archive": ("a.jsonl.gz", gzip.compress(joined(TUPLES))[:-12], "a.jsonl.gz"),
    "score": ("a.tsv", put(SCORED, 14, "3,5\ta cat\ta dog"), "line 14: the score '3,5'"),
    "low scores": (
        "a.tsv",
        joined([SCORED[0], *(f"0.{i}\ta cat\ta dog {i}" for i in range(9))]),
        "no score is above 1",
    ),
    "header": ("a.tsv", joined(["rating\tleft\tright", *SCORED]), "'rating', 'left', 'right'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_training_refuses_is_a_problem_with_its_place(name, tmp_path):
    file, content, place = REFUSED[name]
    found = inspect(write(tmp_path, file, content))
    assert len(found.problems) == 1
    assert place in found.problems[0]
    assert training_command([found], None, None) is None


def test_reading_goes_on_after_a_refused_row(tmp_path):
    found = inspect(write(tmp_path, "a.tsv", put(SCORED, 5, "3,5\ta cat\ta dog") + b"9\ta\tb\n"))
    assert [problem.split(":")[0] for problem in found.problems] == ["line 5", "line 62"]
    assert len(found.rows) == 59


def test_counts(tiny, tmp_path):
    nli = inspect(write(tmp_path, "a.jsonl", put(NLI, 17, NLI_ROW.format("-", 16, 16))))
    assert (nli.skipped, nli.problems) == (["line 17"], [])
    assert nli.summary()["labels"] == {"contradiction": 19, "entailment": 20, "neutral": 20}
    assert inspect(write(tmp_path, "b.tsv", put(TRIPLETS, 25, TRIPLETS[2]))).repeated == [
        "line 25, as line 3"
    ]
    texts = write(
        tmp_path, "a.txt", b"the cat and the dog\nthe cat\n" + b"the cat and " * 9 + b"\nthe cat\n"
    )
    found = inspect(texts, read_tokenizer(tiny)).summary()
    assert (found["rows"], found["texts"], found["distinct_texts"]) == (4, 4, 3)
    assert found["tokens"] == {"median": 7.0, "p95": 29.0, "longest": 29, "limit": 16, "cut": 1}


def test_scores_on_another_scale(tmp_path):
    found = inspect(
        write(tmp_path, "a.tsv", joined([SCORED[0], "-1\ta\tb", "0.7\tc\td", "0.3\te\tf"])),
        scale=-1.0,
    )
    assert found.summary()["scores"] == {"min": -1.0, "max": 0.7, "mean": pytest.approx(0)}
    line = training_command([found], "weights/tiny", 16)
    assert line.endswith("--scale -1 --model weights/tiny --max-length 16")


def test_rows_of_a_file_that_are_also_in_another(tmp_path):
    """Two copies, one of them the other way round; another case and punctuation make another
    text.
    """
    train = inspect(write(tmp_path, "a.tsv", joined(SCORED[:31])))
    other = [
        SCORED[0],
        "1\ta dog is 3\ta cat is 3",
        SCORED[9],
        "2\tA cat, is 8!\ta dog is 8",
        *SCORED[40:],
    ]
    dev = inspect(write(tmp_path, "b.tsv", joined(other)))
    assert overlap(train, dev) == {"file": str(dev.path), "with": str(train.path), "rows": 2}
    line = f"minisbert train --objective cosine --data {train.path} --dev {dev.path} --epochs 8"
    assert training_command([train, dev], None, None) == line


@pytest.mark.parametrize(
    ("file", "content", "objective"),
    [
        ("a.tsv", joined(SCORED), "cosine"),
        ("a.csv", b"is_duplicate,question1,question2\n1,a,b\n0,c,d\n", "binary"),
        ("a.jsonl", joined(NLI), "softmax"),
        ("a.tsv", joined(TRIPLETS), "mnr"),
        ("a.txt.gz", gzip.compress(b"a cat\na dog\n"), "simcse"),
    ],
)
def test_the_objective_of_each_format(file, content, objective, tmp_path):
    found = inspect(write(tmp_path, file, content))
    line = training_command([found], None, None)
    options = parse(shlex.split(line)[2:])
    assert (options.objective, options.data) == (objective, str(found.path))


def test_a_file_that_is_missing_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"missing\.tsv"):
        inspect(tmp_path / "missing.tsv")
