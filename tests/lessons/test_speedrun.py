"""The speedrun's judge: a score and CPU seconds, and what is refused."""

import io
import json
import re

import pytest

from lessons.search import docstrings
from lessons.speedrun import judge, plot, steps, verify
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
    monkeypatch.setattr(docstrings, "read_entries", lambda: entries)
    monkeypatch.setattr(verify, "read_corpus", lambda captions: steps.Corpus(captions, ["a name"], ["a sentence"]))
    monkeypatch.setattr(ModelFolder, "__init__", ModelFolder.__init__)  # which a judged submission replaces


@pytest.mark.weights
@pytest.mark.parametrize(("text", "message"), [(LOADS, "begins from random weights"), (SHORT, "must return finite")])
def test_a_pretrained_model_and_a_wrong_shape_are_refused(text, message, stsb, few_docstrings, tmp_path):
    (tmp_path / "wrong.py").write_text(text)
    with pytest.raises(InputError, match=message):
        verify.main([str(tmp_path / "wrong.py"), "--seed", "0"])


@pytest.mark.weights
def test_the_fastest_record_is_that_of_the_table(stsb, few_docstrings, capsys):
    score = float(TABLE.partition("| idf_bag | ")[2][:5])  # of the old table: STS-B's dev pairs
    verify.main([str(FOLDER / "idf_bag.py"), "--seed", "0"])
    result = json.loads(capsys.readouterr().out)
    assert result["sts_dev"] == pytest.approx(score, abs=0.01)
    assert 0 < result["seconds"] < 60


def test_every_submission_has_a_row_and_every_row_a_submission():
    rows = [line.split("|")[3].strip() for line in TABLE.splitlines() if line.startswith("| 20")]
    assert sorted(rows) == sorted(path.stem for path in FOLDER.glob("*.py") if "\ndef train(data, " in path.read_text())


def test_the_plot_in_git_is_that_of_the_table():
    assert plot.draw() == (FOLDER / "records.svg").read_text(encoding="utf-8")
    assert "| trained_table | 79.27 ± 0.18 | 38 |" in TABLE
    # 9.27 of 10 points above the axis, and ln 38 / ln 1000 of the way to the right
    assert plot.place(79.27, 38) == pytest.approx((60 + 440 * 0.526595, 270 - 240 * 0.927), abs=1e-3)
    dots = re.findall(r'<circle class="lit" cx="([\d.]+)" cy="([\d.]+)"', plot.draw())
    assert tuple(map(float, dots[-1])) == pytest.approx(plot.place(79.27, 38), abs=1e-3)


@pytest.mark.weights
def test_a_short_run_goes_from_nothing_to_a_search_box(
    stsb, minilm, entries, few_docstrings, tmp_path, monkeypatch, capsys
):
    corpus = steps.Corpus([e.document for e in entries], [e.query for e in entries], [e.document for e in entries])
    pairs = judge.load_scored_pairs("stsb", "dev")[:40]
    monkeypatch.setattr(judge, "load_scored_pairs", lambda *_: pairs)
    monkeypatch.setattr(command, "load_scored_pairs", lambda *_: pairs)
    monkeypatch.setattr(steps, "read_corpus", lambda _: corpus)
    monkeypatch.setattr(steps, "LAYERS", 1)
    monkeypatch.setattr(steps, "WIDTH", 64)
    monkeypatch.setattr("sys.stdin", io.StringIO(entries[5].document + "\n\n"))
    command.main(["--minutes", "0.1", "--out", str(tmp_path)])
    report = (tmp_path / "report.md").read_text()
    assert len(re.findall(r"^\| (?:random|the same|after).* \| \d+ \| [\d.-]+ \| ", report, re.MULTILINE)) == 5
    curves = json.loads((tmp_path / "curves.json").read_text())
    assert curves["reading"][0] > curves["reading"][-1]
    capsys.readouterr()
    command.main(["--search", "--out", str(tmp_path)])
    shown = re.findall(r"^    (\S+) ", capsys.readouterr().out, re.MULTILINE)
    assert len(shown) == 9, "three answers of BM25, of this model and of MiniLM"
    assert [shown[0], shown[6]] == [entries[5].name[:40]] * 2, "a document is its own best answer"
