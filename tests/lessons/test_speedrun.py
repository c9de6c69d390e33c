"""The speedrun: its judge, what a submission may not do, and a run from nothing to a search box."""

import io
import json
import re

import numpy as np
import pytest

from lessons.search import docstrings
from lessons.speedrun import paired_table, verify
from lessons.speedrun import run as command
from minisbert.checkpoints.layout import ModelFolder
from minisbert.core import InputError
from tests.conftest import ROOT

FOLDER = ROOT / "lessons" / "speedrun"
TABLE = (ROOT / "lessons" / "SPEEDRUN.md").read_text(encoding="utf-8")
LOADS = """
from minisbert import SentenceEncoder

def train(data, seed):
    return SentenceEncoder.load("all-MiniLM-L6-v2").encode
"""
SHORT = """
import numpy as np

def train(data, seed):
    return lambda texts: np.ones((3, 2))
"""


@pytest.fixture(scope="module")
def entries():
    """A fortieth of the search, whose reading takes longer than the rest."""
    return docstrings.read_entries()[::40]


@pytest.fixture
def few_docstrings(entries, monkeypatch):
    monkeypatch.setattr(docstrings, "read_entries", lambda folder=None: entries)
    monkeypatch.setattr(
        ModelFolder, "__init__", ModelFolder.__init__
    )  # which a judged submission replaces


@pytest.mark.weights
@pytest.mark.parametrize(
    ("text", "message"), [(LOADS, "begins from random weights"), (SHORT, "must return finite")]
)
def test_a_pretrained_model_and_a_wrong_shape_are_refused(text, message, few_docstrings, tmp_path):
    (tmp_path / "wrong.py").write_text(text)
    with pytest.raises(InputError, match=message):
        verify.main([str(tmp_path / "wrong.py"), "--seed", "0"])


def test_every_submission_has_a_row_and_every_row_a_submission():
    rows = [line.split("|")[3].strip() for line in TABLE.splitlines() if line.startswith("| 20")]
    assert sorted(rows) == sorted(
        path.stem for path in FOLDER.glob("*.py") if "\ndef train(data, " in path.read_text()
    )


def test_a_table_that_has_learned_from_names_beats_the_bag(few_docstrings, capsys):
    """On a fortieth, and judged by what it was trained on."""
    scores = []
    for name in ("idf_bag", "paired_table"):
        verify.main([str(FOLDER / f"{name}.py"), "--seed", "0"])
        scores.append(json.loads(capsys.readouterr().out))
    assert scores[0]["dev"] < scores[1]["dev"]


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
