"""``inspect``: faults are named with their lines, and training reads what inspect finds usable."""

import gzip
import json
import os
from pathlib import Path

import pytest

from minisbert.checkpoints.tokenizer_files import read_tokenizer
from minisbert.core import InputError
from minisbert.diagnosis.inspection import inspect, overlap, training_command
from tests.diagnosis.files import NLI, NLI_ROW, SCORED, TRIPLETS, joined, put, write

TUPLES = [
    json.dumps({"anchor": f"cat {i}", "positive": f"the cat {i}", "negative": f"dog {i}"})
    for i in range(60)
]


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("a.jsonl.gz", gzip.compress(joined(TUPLES))[:-12], "a.jsonl.gz"),
        ("a.tsv", put(SCORED, 14, "3,5\ta cat\ta dog"), "line 14: the score '3,5'"),
        ("a.tsv", put(SCORED, 14, "250\ta cat\ta dog"), "a scale above 100 must be given"),
        ("a.tsv", joined(["rating\tleft\tright", *SCORED[1:]]), "--columns left,right,rating"),
        ("a.tsv", b"", "a.tsv is empty"),
        ("a.csv", b"anchor,positive\ncat,x\ncat,y\n", "all rows share the text 'cat'"),
        ("a.csv", b"anchor,positive\ncat,x\n", "one row is too few"),
        ("a.csv", b"sentence1,sentence2,score\na,b,1\nc,d,1\n", "all rows have the score 1"),
    ],
)
def test_what_training_refuses_is_a_problem_with_its_place(tmp_path, file, content, problem):
    found = inspect(write(tmp_path, file, content))
    assert len(found.problems) == 1
    assert problem in found.problems[0]
    assert training_command([found], None, None) is None


def test_a_file_of_nothing_but_refused_rows_is_not_read_to_its_end(tmp_path):
    """Millions of findings would fill the memory."""
    found = inspect(write(tmp_path, "a.jsonl", b'{"text": "a"}\n' + b"[]\n" * 20_000))
    assert len(found.problems) == 10_001
    assert "10,000 rows cannot be read" in found.problems[-1]


def test_reading_goes_on_after_a_refused_row(tmp_path):
    """All that is wrong with a file is told at once: a score, and a row with too few cells."""
    content = put(SCORED, 5, "3,5\ta cat\ta dog") + b"9\ta\n"
    found = inspect(write(tmp_path, "a.tsv", content))
    places = [problem.split(":")[0] for problem in found.problems]
    assert sorted(places) == ["line 5", "line 62"]
    assert len(found.rows) == 59


def test_rows_without_a_label_are_skipped_and_counted(tmp_path):
    nli = inspect(write(tmp_path, "a.jsonl", put(NLI, 17, NLI_ROW.format("-", 16, 16))))
    summary = nli.summary()
    assert (summary["skipped"], summary["problems"]) == (["line 17"], [])
    assert summary["labels"] == {"contradiction": 19, "entailment": 20, "neutral": 20}


def test_a_row_that_occurs_twice(tmp_path):
    found = inspect(write(tmp_path, "b.tsv", put(TRIPLETS, 25, TRIPLETS[2])))
    assert found.repeated == ["line 25, as line 3"]


def test_tokens_are_counted_before_texts_are_cut(tiny, tmp_path):
    content = b"the cat and the dog\nthe cat\n" + b"the cat and " * 9 + b"\nthe cat\n"
    found = inspect(write(tmp_path, "a.txt", content), read_tokenizer(tiny)).summary()
    assert (found["rows"], found["texts"], found["distinct_texts"]) == (4, 4, 3)
    assert found["tokens"] == {"median": 7.0, "p95": 29.0, "longest": 29, "limit": 16, "cut": 1}


def test_scores_on_another_scale(tmp_path):
    path = write(tmp_path, "a.tsv", joined([SCORED[0], "-1\ta\tb", "0.7\tc\td", "0.3\te\tf"]))
    found = inspect(path, scale=10)
    assert found.summary()["scores"] == {"min": -1.0, "max": 0.7, "mean": pytest.approx(0)}
    line = training_command([found], "weights/tiny", 16)
    assert line.endswith("--scale 10 --model weights/tiny --max-length 16")


def test_the_line_says_what_the_rule_makes_of_a_file(tmp_path):
    path = write(tmp_path, "a.csv", b"id,score,sentence1,sentence2\n1,0.5,a,b\n2,0.9,c,d\n")
    assert inspect(path).summary()["read"] == (
        f"{path}: 2 rows; sentence1, sentence2, score / 1; not read: id"
    )


def test_columns_are_part_of_the_command(tmp_path):
    path = write(tmp_path, "a.csv", b"Match (0-10),left,right\n5.4,a,b\n0.1,c,d\n")
    found = inspect(path, columns="left,right,Match (0-10)")
    assert found.problems == []
    assert "--columns 'left,right,Match (0-10)'" in training_command([found], None, None)


def test_marks_that_are_text_are_text_in_training_too(tmp_path):
    """Without the option the command would stop at the mark that is never closed."""
    path = write(tmp_path, "a.tsv", b'anchor\tpositive\n"a\tb\nc\td\n')
    found = inspect(path, quotes=False)
    assert found.problems == []
    assert "--no-quotes" in training_command([found], None, None)


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
    dev = inspect(write(tmp_path, "b.tsv", joined(other)), role="dev")
    assert overlap(train, dev) == {"file": str(dev.path), "with": str(train.path), "rows": 2}
    line = f"minisbert train --loss cosine --data {train.path} --dev {dev.path} --epochs 8"
    assert training_command([train, dev], None, None) == line


@pytest.mark.parametrize(
    ("file", "content", "options"),
    [
        ("a.tsv", joined(SCORED), "--loss cosine"),
        ("a.txt", joined(SCORED), "--loss cosine"),
        ("a.csv", b"sentence1,sentence2,label\na,b,3.8\nc,d,0\n", "--loss cosine"),
        (
            "a.csv",
            b"is_duplicate,question1,question2\n1,a,b\n0,c,d\n",
            "--loss binary --head concat",
        ),
        (
            "a.jsonl",
            b'{"sentence1": "a", "sentence2": "b", "label": true}\n'
            b'{"sentence1": "c", "sentence2": "d", "label": false}\n',
            "--loss binary --head concat",
        ),
        ("a.jsonl", joined(NLI), "--loss softmax"),
        ("a.tsv", joined(TRIPLETS), "--loss ranking"),
        ("a.txt.gz", gzip.compress(b"a cat\na dog\n"), "--loss simcse"),
        ("a.csv", b"id,text\n1,a cat\n2,a dog\n", "--loss simcse"),
    ],
)
def test_the_loss_of_each_kind_of_rows(tmp_path, file, content, options):
    found = inspect(write(tmp_path, file, content))
    line = training_command([found], None, None)
    assert line == f"minisbert train {options} --data {found.path} --epochs 8"


def test_a_file_that_is_missing_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"missing\.tsv does not exist"):
        inspect(Path(tmp_path / "missing.tsv"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes with names")
def test_a_pipe_is_refused(tmp_path):
    """It is read twice: the second time there would be nothing in it."""
    os.mkfifo(tmp_path / "a.csv")
    with pytest.raises(InputError, match=r"a\.csv is a pipe"):
        inspect(tmp_path / "a.csv")
