"""``minisbert inspect``: the report, its JSON, the exit codes and the picture."""

import json
import sys

import numpy as np
import pytest

from minisbert.commands.inspect_ import main
from minisbert.core import InputError
from minisbert.evaluation.plots import draw_lengths
from tests.conftest import exit_code_without_a_reader
from tests.diagnosis.test_inspection import LABELLED, SCORED, SENTENCES, joined, put, write


def test_the_report(tiny, tmp_path, capsys):
    path = write(tmp_path, "a.tsv", put(LABELLED, 16, "1\ta cat\tthe 猫 " + "cat " * 20))
    again = write(tmp_path, "b.tsv", joined([*LABELLED[:1], *LABELLED[50:]]))
    main([str(path), str(again), "--model", str(tiny)])
    out = capsys.readouterr().out
    assert out.startswith(f"{path}: labelled pairs\n  rows     60\n  texts    120, 120 distinct\n")
    for part in (
        "the limit of 16 cuts 1 of the texts (0.8 %)",
        "label    0: 29\n  label    1: 31\n",
        "note     too-long (1): ",
        "line 16\n",
        "warning  overlap (11): ",
        f"shared by {path} and {again}:\n  11 rows, 0 more",
    ):
        assert part in out
    train = f"minisbert train --objective contrastive --data {path} --dev {again} --model {tiny}"
    assert out.endswith(f"Train with:\n  {train}\n")


def test_json_and_the_exit_code_of_a_problem(tiny, tmp_path, capsys):
    train = write(tmp_path, "a.tsv", put(SCORED, 15, "high\ta cat\ta dog"))
    dev = write(tmp_path, "b.tsv", joined([SCORED[0], *SCORED[51:]]))
    with pytest.raises(SystemExit) as end:
        main([str(train), str(dev), "--model", str(tiny), "--json"])
    assert end.value.code == 1
    content = json.loads(capsys.readouterr().out)
    first, second = content["files"]
    assert (first["rows"], first["form"], first["usable"], second["usable"]) == (59, "scored pairs", False, True)
    assert first["tokens"]["limit"] == 16
    assert first["labels"]["counts"] == {"0": 10, "1": 9, "2": 10, "3": 10, "4": 10, "5": 10}
    assert [finding["name"] for finding in first["findings"]] == ["refused"]
    assert content["shared"] == [{"file": str(dev), "with": str(train), "exact": 10, "normalised": 0, "texts": 20}]
    assert exit_code_without_a_reader("minisbert", "inspect", str(train), "--model", str(tiny)) == 1


def test_without_a_model_lengths_are_skipped_in_words(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINISBERT_HOME", str(tmp_path))
    main([str(write(tmp_path, "a.txt", joined(SENTENCES)))])
    captured = capsys.readouterr()
    assert "all-MiniLM-L6-v2 is missing" in captured.err
    assert "tokens" not in captured.out
    assert "--objective simcse" in captured.out


def test_a_file_that_is_missing_is_refused(tiny, tmp_path):
    with pytest.raises(InputError, match=r"missing\.tsv does not exist"):
        main([str(tmp_path / "missing.tsv"), "--model", str(tiny)])


def test_the_picture(tiny, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    figure = draw_lengths([("a.tsv", [3, 4, 4], [9, 12, 12], 16), ("b.txt", [], [], 0)])
    (tokens, characters), _ = np.array(figure.axes).reshape(2, 2)
    found = characters.patches[0].get_data()
    assert found.values.tolist() == np.histogram([9, 12, 12], found.edges)[0].tolist()
    assert found.edges[-1] > 12
    assert tokens.patches[0].get_data().values.sum() == 3
    path = write(tmp_path, "b.txt", joined(SENTENCES))
    main([str(path), "--model", str(tiny), "--plots", str(tmp_path / "new")])
    main([str(path), "--plots", str(tmp_path / "by-default")])  # of the default model, or in characters
    assert (tmp_path / "by-default" / "inspection.png").is_file()
    assert (tmp_path / "new" / "inspection.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"minisbert\[plots\]"):  # before the work
        main([str(tmp_path / "missing.tsv"), "--plots", str(tmp_path)])
