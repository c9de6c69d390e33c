"""A run's folder and what it tells people. How a whole run uses them is in test_train.py."""

import pytest

from minisbert.core import InputError
from minisbert.evaluation import plots as plot
from minisbert.training.folder import print_table
from minisbert.training.training import main
from tests import toys


def test_the_table_shows_what_only_dev_has_under_dev(capsys):
    before = {"dev": {"f1": 0.5, "loss": 2.0, "alignment": 1.0}, "test": {"f1": 0.25, "loss": 2.0}}
    after = {"dev": {"f1": 0.75, "loss": 1.0, "alignment": 0.5}, "test": {"f1": 1.0, "loss": 1.0}}
    print_table(before, after)
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["x", "100", "dev", "test"]
    assert [row.split() for row in rows] == [
        ["f1", "50.00", "->", "75.00", "25.00", "->", "100.00"],
        ["alignment", "100.00", "->", "50.00"],
    ]


def flags(tiny, tmp_path) -> list[str]:
    files = toys.write_all(tmp_path)
    data = ["--data", files["scored"], "--dev", files["dev"], "--test", files["test"]]
    return ["--model", str(tiny), *data, "--max-steps", "2", "--log-every", "1", "--out", str(tmp_path / "run")]


def test_plots_are_drawn_of_this_run(tiny, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    drawn = {}
    monkeypatch.setattr(plot, "curves", lambda runs, target: drawn.update(curves=(runs, target)))
    monkeypatch.setattr(plot, "lengths", lambda tokens, limit, target: drawn.update(lengths=(tokens, limit, target)))
    main([*flags(tiny, tmp_path), "--plots"])
    run = tmp_path / "run"
    assert drawn["curves"] == ([run], run / "curves.png")
    tokens, limit, target = drawn["lengths"]
    assert (len(tokens), limit, target) == (80, 16, run / "lengths.png")  # both texts of 40 pairs
    first = (tmp_path / "scored.tsv").read_text().split("\n")[0].split("\t")[1]
    assert tokens[0] == len(first.split()) + 2  # every toy word is one token; [CLS] and [SEP]


def test_plots_without_matplotlib_are_refused_before_the_training(tiny, tmp_path, monkeypatch):
    def missing() -> None:
        raise InputError("plots need matplotlib")

    monkeypatch.setattr(plot, "require", missing)
    with pytest.raises(InputError, match="plots need matplotlib"):
        main([*flags(tiny, tmp_path), "--plots"])
    assert not (tmp_path / "run").exists()
