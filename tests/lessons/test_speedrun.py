"""The speedrun: its judge, what a submission may not do, and a run from nothing to a search box."""

import io
import json
import os
import pickle
import re

import numpy as np
import pytest

from lessons.search import docstrings
from lessons.search.docstrings import Entry
from lessons.search.measure import interval_over_groups
from lessons.speedrun import guard, paired_table, verify
from lessons.speedrun import run as command
from lessons.speedrun.data import Data, without_leaks
from lessons.speedrun.judge import Judge
from minisbert.core import InputError
from tests.conftest import ROOT

FOLDER = ROOT / "lessons" / "speedrun"
TABLE = (ROOT / "lessons" / "SPEEDRUN.md").read_text(encoding="utf-8")
LOADS = """
from minisbert import SentenceEncoder

def train(data, seed):
    return SentenceEncoder.load("all-MiniLM-L6-v2").encode
"""
BOOK = """
from minisbert.core.encoder import SentenceEncoder
from minisbert.checkpoints.layout import find_model

def train(data, seed):
    return SentenceEncoder.load(find_model("all-MiniLM-L6-v2")).encode
"""
TORCH = """
import torch

def train(data, seed):
    return torch.load("vectors.pt")
"""
UNSEEN = """
from safetensors.torch import load_file

def train(data, seed):
    return load_file("model.safetensors")
"""
PROGRAM = """
import subprocess

def train(data, seed):
    subprocess.run(["true"])
"""
SHORT = """
import numpy as np

def train(data, seed):
    return lambda texts: np.ones((3, 2))
"""
LEAVES = """
import os
import time
import numpy as np

def train(data, seed):
    if os.fork() == 0:
        time.sleep(300)
        os._exit(0)
    return lambda texts: np.ones((len(texts), 2))
"""
CHILD = """
import os

def train(data, seed):
    if os.fork() == 0:
        total = 0
        for i in range(20_000_000):
            total += i
        os._exit(0)
    os.wait()
    return None
"""


@pytest.fixture(scope="module")
def entries():
    """A fortieth of the search, whose reading takes longer than the rest."""
    return docstrings.read_entries()[::40]


@pytest.fixture
def few_docstrings(entries, monkeypatch):
    monkeypatch.setattr(docstrings, "read_entries", lambda folder=None: entries)


@pytest.mark.weights
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LOADS, "begins from random weights"),
        (BOOK, "begins from random weights"),
        (TORCH, "begins from random weights"),
        (UNSEEN, "line 2: load_file"),
        (PROGRAM, "starts no program"),
        (SHORT, "must return finite"),
    ],
)
def test_what_a_submission_may_not_do(text, message, minilm, few_docstrings, tmp_path):
    """The package's loader, the book's, torch's, one that opens files unseen, another program."""
    (tmp_path / "wrong.py").write_text(text)
    with pytest.raises(InputError, match=message):
        verify.main([str(tmp_path / "wrong.py"), "--seed", "0"])


def test_files_may_be_opened_after_a_submission(tmp_path):
    """The guard ends with the submission: the log is written after it."""
    with pytest.raises(InputError, match="Python's code alone"), guard.only_code_is_read():
        (tmp_path / "a.txt").write_text("a")
    (tmp_path / "a.txt").write_text("a")


def test_no_name_and_no_sentence_of_dev_and_test_is_learned_from():
    """PyTorch brings copies of Python's importlib and pickle, which are modules of the test."""
    asked = [Entry("pickle", "pickle.dumps", "dumps", "Return the pickled bytes.")]
    copy = Entry("torch", "torch.package.dump", "pack dump", "Return the pickled bytes")
    same_name = Entry("torch", "torch.dumps", "dumps", "Something else entirely is said.")
    other = Entry("torch", "torch.add", "add", "Add two tensors.")
    assert without_leaks([copy, same_name, other], asked) == [other]


@pytest.mark.skipif(os.name != "posix", reason="processes are forked")
def test_the_seconds_of_children_count(tmp_path):
    """A second process made the work free."""
    before = verify.cpu_seconds()
    space = {}
    exec(CHILD, space)
    space["train"](None, 0)
    assert verify.cpu_seconds() - before > 0.2


@pytest.mark.skipif(os.name != "posix", reason="processes are forked")
def test_a_process_that_is_left_running_is_ended_and_refused(few_docstrings, tmp_path):
    """Its seconds could not be counted."""
    file = tmp_path / "leaves.py"
    file.write_text(LEAVES)
    material = tmp_path / "material.pickle"
    names = ["read a file", "close it"] * 4
    material.write_bytes(pickle.dumps((Data(names, names), Judge())))
    with pytest.raises(InputError, match="left running"):
        verify.run_in_process(file, 0, material)


def test_a_record_needs_a_mean_that_is_surely_above_the_target(monkeypatch, tmp_path, capsys):
    """By hand: ten seeds of 42 and 43 in turn have the mean 42.5, the deviation .527, t 5.4."""
    file = tmp_path / "mine.py"
    file.write_text("")
    scores = [42.0, 43.0] * 5

    def fake(path, seed, material):
        about = {"seconds": 10.0 + seed, "rate": 50.0, "digest": "0", "each": [0.0]}
        return {"seed": seed, "dev": 44.0, "test": scores[seed], **about}

    monkeypatch.setattr(verify, "run_in_process", fake)
    monkeypatch.setattr(verify, "read_data", list)
    monkeypatch.setattr(verify, "Judge", list)
    monkeypatch.setattr(verify, "gain_over_minilm", lambda results: None)
    verify.main([str(file), "--log", str(tmp_path)])
    printed = capsys.readouterr()
    assert "| mine | 14.5 ± 3.0 | 42.50 ± 0.53 | 5.4 |" in printed.out
    assert "no record" not in printed.err
    (log,) = tmp_path.glob("*_race_mine.json")
    found = json.loads(log.read_text())
    assert found["t"] == 5.4
    assert found["versions"]["numpy"] == np.__version__
    assert len(found["seeds"]) == 10
    scores[:] = [41.7, 41.8] * 5
    verify.main([str(file)])
    assert "no record" not in capsys.readouterr().err, "41.75, and the seeds hardly differ"
    scores[:] = [40.0, 43.5] * 5
    verify.main([str(file)])
    assert "no record" in capsys.readouterr().err, "41.75, by luck"


def test_every_record_has_a_log_with_its_numbers():
    """A row of the race's table is what its log says."""
    rows = [line for line in TABLE.splitlines() if line.startswith("| 20") and "log](" in line]
    assert rows
    for line in rows:
        log = json.loads((ROOT / "lessons" / re.search(r"\(([^)]*json)\)", line)[1]).read_text())
        assert f"{log['seconds']:.1f} ± {log['seconds_deviation']:.1f}" in line
        assert f"{log['test']:.2f} ± {log['test_deviation']:.2f}" in line
        assert (FOLDER / f"{log['submission']}.py").is_file()
        assert log["t"] >= verify.LEAST_T


def test_whole_modules_are_drawn_again():
    """By hand: a module of 0, 0 and one of 10, 10; half of the draws have both."""
    values = np.array([0.0, 0.0, 10.0, 10.0])
    assert interval_over_groups(values, ["a", "a", "b", "b"]) == (0.0, 10.0)
    low, high = interval_over_groups(values, ["a", "b", "a", "b"])
    assert low == high == 5.0, "modules that are alike leave no doubt"


def test_a_table_that_has_learned_from_names_beats_the_bag(few_docstrings, capsys):
    """On a fortieth, and judged by what it was trained on."""
    scores = []
    for name in ("idf_bag", "paired_table", "sparse_tables"):
        verify.main([str(FOLDER / f"{name}.py"), "--seed", "0"])
        scores.append(json.loads(capsys.readouterr().out))
    assert scores[0]["dev"] < scores[1]["dev"]
    assert scores[0]["dev"] < scores[2]["dev"]


@pytest.mark.weights
def test_a_run_goes_from_nothing_to_a_search_box(
    minilm, few_docstrings, entries, tmp_path, monkeypatch, capsys
):
    command.main(["--out", str(tmp_path)])
    report = (tmp_path / "report.md").read_text()
    assert report in capsys.readouterr().out
    scores = re.findall(r"^\| ([^|]+) \| ([\d.]+) \| ([\d.]+) \|$", report, re.MULTILINE)
    assert [name for name, *_ in scores] == [
        "BM25",
        "MiniLM",
        "yours",
        "yours and BM25, reciprocal ranks",
        "yours and MiniLM, reciprocal ranks",
        "yours and MiniLM, cosines added",
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO(entries[5].document + "\n\n"))
    command.main(["--search", "--out", str(tmp_path)])
    first = re.search(r"^[\d.]+  (\S+)", capsys.readouterr().out, re.MULTILINE)
    assert first[1] == entries[5].name, "a document is its own best answer"
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "key.md").write_text("The spare key is under the third flower pot.")
    monkeypatch.setattr(
        "sys.stdin", io.StringIO("where is the key?\n")
    )  # ended by the end of the file
    command.main(["--search", str(tmp_path / "notes"), "--out", str(tmp_path)])
    assert "key.md:1" in capsys.readouterr().out
    with pytest.raises(InputError, match="has no table"):
        command.main(["--search", "--out", str(tmp_path / "notes")])


def test_ctrl_c_keeps_what_the_table_has_learned(few_docstrings, monkeypatch):
    judge = command.Judge()
    steps = paired_table.fit

    def interrupted(*about):
        yield from list(steps(*about))[:2]
        raise KeyboardInterrupt

    monkeypatch.setattr(paired_table, "fit", interrupted)
    tables, likeness, _ = command.train(judge, 2, seed=0)
    assert len(tables.tables) == 1
    np.testing.assert_allclose(
        likeness["dev"], judge.cosines(tables)["dev"], atol=1e-5
    )  # float32 products
