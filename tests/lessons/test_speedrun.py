"""The speedrun's judge: a score and CPU seconds, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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


def judged(path: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "lessons.speedrun.verify", str(path), "--seed", "0"]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.weights
@pytest.mark.parametrize(("text", "message"), [(LOADS, "begins from random weights"), (SHORT, "must return finite")])
def test_a_pretrained_model_and_a_wrong_shape_are_refused(text, message, stsb, tmp_path):
    (tmp_path / "wrong.py").write_text(text)
    done = judged(tmp_path / "wrong.py")
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.weights
def test_the_fastest_record_is_that_of_the_table(stsb):
    score = float(TABLE.partition("| idf_bag | ")[2][:5])
    result = json.loads(judged(FOLDER / "idf_bag.py").stdout)
    assert result["score"] == pytest.approx(score, abs=0.01)
    assert 0 < result["seconds"] < 60


def test_every_submission_has_a_row_and_every_row_a_submission():
    rows = [line.split("|")[3].strip() for line in TABLE.splitlines() if line.startswith("| 20")]
    assert sorted(rows) == sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "verify"))
