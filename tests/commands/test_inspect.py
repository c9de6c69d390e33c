"""``minisbert inspect``: the report, its JSON, the exit codes and the picture."""

import json
import sys

import pytest

from minisbert.commands.inspect_ import main
from minisbert.core import InputError
from tests.diagnosis.files import NLI, SCORED, joined, put, write


def test_the_report(tiny, tmp_path, capsys):
    """What is read, counted and shared by two files, and the command that trains."""
    long_row = NLI[15].replace("a cat", "a 猫" + " cat" * 20)
    path = write(tmp_path, "a.jsonl", put(NLI, 16, long_row))
    again = write(tmp_path, "b.jsonl", joined(NLI[50:]))
    main([str(path), str(again), "--model", str(tiny)])
    out = capsys.readouterr().out
    read = (
        "60 rows; sentence1, sentence2, gold_label; 3 classes: contradiction, entailment, neutral"
    )
    assert out.startswith(f"{path}: {read}\n  texts    120, 120 distinct\n")
    assert "the limit of 16 cuts 1 of the texts (0.8 %)" in out
    assert "  label    neutral: 20\n" in out
    assert f"{again}: 10 rows are also in {path}\n" in out
    command = out.rpartition("Train with:\n  ")[2]
    assert command.startswith(f"minisbert train --loss softmax --data {path} --dev {again} ")
    assert command.endswith(f" --model {tiny}\n")


def test_json_and_the_exit_code_of_a_problem(tiny, tmp_path, capsys):
    """A script can stop before a run that would fail."""
    train = write(tmp_path, "a.tsv", put(SCORED, 15, "high\ta cat\ta dog"))
    dev = write(tmp_path, "b.tsv", joined([SCORED[0], *SCORED[51:]]))
    with pytest.raises(SystemExit) as end:
        main([str(train), str(dev), "--model", str(tiny), "--json"])
    assert end.value.code == 1
    content = json.loads(capsys.readouterr().out)
    first, second = content["files"]
    assert first["rows"] == 59
    assert len(first["problems"]) == 1
    assert second["problems"] == []
    assert first["read"] == f"{train}: 59 rows; sentence1, sentence2, score"
    assert first["scores"]["min"] == 0
    assert first["scores"]["max"] == 5
    assert content["shared"] == [{"file": str(dev), "with": str(train), "rows": 10}]
    assert content["command"] is None


def test_scores_of_dev_have_the_scale_of_the_training_rows(tiny, tmp_path, capsys):
    """Training would refuse them, so the report does, too."""
    rows = "sentence1,sentence2,score\na cat,a dog,{}\na bus,snow,0\n"
    for name, highest in (("train", "0.9"), ("dev", "7")):
        (tmp_path / f"{name}.csv").write_text(rows.format(highest))
    with pytest.raises(SystemExit) as done:
        main([str(tmp_path / "train.csv"), str(tmp_path / "dev.csv"), "--model", str(tiny)])
    assert done.value.code == 1
    assert "beyond the scale of 1" in capsys.readouterr().out


def test_many_labels_do_not_hide_the_problems(tiny, tmp_path, capsys):
    """The lines of a file with hundreds of classes fit a screen; --json has them all."""
    lines = ["sentence1\tsentence2\tlabel"]
    for row in range(60):
        lines.append(f"a cat {row}\ta dog {row}\tclass {row // 4:02}")
    path = write(tmp_path, "classes.tsv", joined(lines))
    main([str(path), "--model", str(tiny)])
    out = capsys.readouterr().out
    assert "label    class 09: 4" in out
    assert "class 10" not in out.replace("15 classes", "")
    assert "label    and 5 more" in out


def test_without_a_model_tokens_are_not_counted(tmp_path, monkeypatch, capsys):
    """Nothing is fetched for a report, which says what it lacks."""
    monkeypatch.setenv("MINISBERT_HOME", str(tmp_path))
    main([str(write(tmp_path, "a.tsv", joined(SCORED)))])
    captured = capsys.readouterr()
    assert "all-MiniLM-L6-v2" in captured.err
    assert "median" not in captured.out


def test_the_picture(tiny, tmp_path):
    """Lengths and scores, in a folder that is made."""
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    path = write(tmp_path, "b.tsv", joined(SCORED))
    main([str(path), "--model", str(tiny), "--plots", str(tmp_path / "new")])
    assert (tmp_path / "new" / "inspection.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_is_not_written_through_a_link(tiny, tmp_path):
    """In a folder of somebody else's it may lead to a file of yours."""
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    path = write(tmp_path, "b.tsv", joined(SCORED))
    (tmp_path / "inspection.png").symlink_to(tmp_path / "mine")
    with pytest.raises(InputError, match="link"):
        main([str(path), "--model", str(tiny), "--plots", str(tmp_path)])
    assert not (tmp_path / "mine").exists()


def test_a_missing_extra_is_told_before_the_work(tmp_path, monkeypatch):
    """Reading a large file takes minutes."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"\.\[plots\]"):
        main([str(tmp_path / "missing.tsv"), "--plots", str(tmp_path)])
