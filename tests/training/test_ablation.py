"""benchmarks/ablation.py: its tables are what it says, and their numbers those of single runs."""

import json

import numpy as np
import pytest

from benchmarks.ablation import TABLES, folder_name, main
from minisbert.core import InputError
from minisbert.training import train
from minisbert.training.run_options import parse
from tests import toys


@pytest.mark.parametrize("table", TABLES)
def test_a_row_is_a_recipe_with_the_setting_in_its_name(table):
    assert len({folder_name(row.name) for row in TABLES[table]}) == len(TABLES[table])
    special = {"same mask twice": {"dropout": 0.1, "same_mask": True}, "none": {}}
    special["delete-one, no dropout"] = {"augment": "delete-one", "dropout": 0}
    for row in TABLES[table]:
        recipe = vars(parse(["--recipe", row.recipe]))
        options, value = vars(parse(["--recipe", row.recipe, *row.flags.split()])), row.name.split()[-1]
        expected = special.get(row.name)
        if expected is None:
            number = table in ("dropout", "temperature")
            expected = {{"augmentation": "augment"}.get(table, table): float(value) if number else value}
        changed = {name for name in options if options[name] != recipe[name]}
        assert {name: options[name] for name in changed | {*expected}} == expected


def test_a_table_equals_single_runs_and_continues(tiny, files, tmp_path, monkeypatch, capsys):
    """Train each cell again by hand; mean and spread from numpy. Only the results of a cell are kept."""
    out, runs = tmp_path / "out", []
    data = [*toys.flags(files, "cosine"), "--lr", "1e-2"][2:]
    command = ["pooling", "--model", str(tiny), "--out", str(out), "--epochs", "1", "--seeds", "1,2"]
    command += ["--json", "--", *data]
    start = train.main

    def first_max_fails(arguments: list[str]) -> None:
        runs.append(parse(arguments))
        if runs[-1].pooling == "max" and len(runs) < 6:
            raise RuntimeError("out of memory")
        start(arguments)

    monkeypatch.setattr(train, "main", first_max_fails)
    with pytest.raises(InputError, match="2 of 6 cells failed"):
        main(command)
    assert "STSb max, seed 1 failed: RuntimeError: out of memory" in capsys.readouterr().err
    main(command)
    assert [(run.pooling, run.seed) for run in runs[6:]] == [("max", 1), ("max", 2)]
    rows = json.loads(capsys.readouterr().out)["rows"]
    for row, pooling in zip(rows, ("mean", "max", "cls"), strict=True):
        before, after = [], []
        for seed in (1, 2):
            cell = out / f"STSb-{pooling}-seed{seed}"
            assert sorted(path.name for path in cell.iterdir()) == ["config.json", "metrics.jsonl", "results.json"]
            single = ["--model", str(tiny), "--pooling", pooling, "--seed", str(seed), "--batch-size", "16"]
            start([*single, *data, "--out", str(tmp_path / "single" / pooling / str(seed))])
            scores = toys.dev_scores(tmp_path / "single" / pooling / str(seed))
            before.append(100 * scores[0])
            after.append(100 * scores[-1])
        assert row["name"] == f"STSb {pooling}"
        statistics = (before[0], np.mean(after), np.std(after, ddof=1))
        assert [row[name] for name in ("before", "mean", "sd")] == pytest.approx(statistics, abs=1e-12)
    with pytest.raises(InputError, match=r"-seed1 was run with limit None instead of 24: choose another --out"):
        main([*command[: -len(data) - 1], "--limit", "24", "--", *data])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("concat", "concat needs --data FILE: NLI rows"),
        ("augmentation --data x.txt --synonyms no.txt", "no.txt does not exist"),
        ("pooling -- --margin 1", "--margin is not for objective cosine"),
        ("pooling --epochs 0", "argument --epochs: invalid"),
    ],
)
def test_an_invalid_table_is_an_error_before_anything_runs(arguments, message, monkeypatch):
    monkeypatch.setattr(train, "main", lambda arguments: pytest.fail("a run was started"))
    with pytest.raises(InputError, match=message):
        main(arguments.split())
