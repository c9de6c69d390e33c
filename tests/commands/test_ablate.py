"""Ablations: the runs of a table, what is reused, what a failure leaves, and numbers checked by hand."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from minisbert.commands import ablate
from minisbert.commands.ablate import main
from minisbert.core import InputError, losses
from minisbert.data.scored_pairs import ScoredPair
from minisbert.system.console import run_command
from minisbert.training import train
from minisbert.training.ablation import PAPERS, TABLES, Cell, dev_scores, folder_name
from minisbert.training.command_line import parse
from tests import toys

STSB = [ScoredPair("the cat", "a cat", 5), ScoredPair("the cat", "music", 1), ScoredPair("the moon", "the sun", 2)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return toys.write_all(tmp_path_factory.mktemp("toys"))


@pytest.fixture
def command(tiny: Path, files: dict[str, str], tmp_path: Path, monkeypatch):
    """``command("pooling", "--json", seeds="1,2")``: the arguments for a table on toy rows with the tiny model."""
    monkeypatch.setattr("minisbert.training.objectives.pairs.load_scored_pairs", lambda name, split: STSB)
    forms = dict.fromkeys(TABLES, "sentences") | {"pooling": "scored", "concat": "nli"}

    def build(table: str, *flags: str, more: tuple[str, ...] = (), seeds: str = "1,2") -> list[str]:
        data = ["--data", files[forms[table]]]
        dev = [] if table == "concat" else ["--dev", files["dev"], "--test", files["test"]]
        here = ["--model", str(tiny), "--out", str(tmp_path / "out"), "--seeds", seeds, "--epochs", "1", *flags]
        if table == "pooling":  # its first half trains on STS-B, so the toy pairs are passed to training
            return [table, *here, "--", *data, *dev, "--lr", "1e-2", *more]
        return [table, *data, *here, "--", *dev, *more]

    return build


@pytest.fixture
def runs(monkeypatch) -> list[list[str]]:
    """The arguments of every run started."""
    started, start = [], train.main
    monkeypatch.setattr(train, "main", lambda arguments: started.append(arguments) or start(arguments))
    return started


def printed(capsys) -> dict[str, list[str]]:
    """The table on stdout: the name of each row to its other cells."""
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert {len(row) for row in rows} == {6}
    return {row[0].strip("`").replace(r"\|", "|"): row[1:] for row in rows[:1] + rows[2:]}


def folder_of(tmp_path: Path, row: str, seed: int | str) -> Path:
    return tmp_path / "out" / f"{folder_name(row)}-seed{seed}"


# ---------------------------------------------------------------------------------- the papers' tables

PUBLISHED = {
    "pooling": {"STSb mean": 87.44, "STSb max": 69.92, "STSb cls": 86.62}
    | {"NLI mean": 80.78, "NLI max": 79.07, "NLI cls": 79.80},
    "concat": {"u,v": 66.04, "|u-v|": 69.78, "u*v": 70.54, "|u-v|,u*v": 78.37}
    | {"u,v,u*v": 77.44, "u,v,|u-v|": 80.78, "u,v,|u-v|,u*v": 80.44},
    "dropout": {"0": 71.1, "0.01": 72.6, "0.05": 81.1, "0.1": 82.5, "0.15": 81.4, "0.2": 80.5, "0.5": 71.0}
    | {"same mask twice": 43.6},
    "temperature": {"0.001": 84.9, "0.01": 85.4, "0.05": 86.2, "0.1": 82.0, "1": 64.0},
    "augmentation": {"none": 82.5, "crop:0.1": 77.8, "crop:0.2": 71.4, "crop:0.3": 63.6}
    | {"delete:0.1": 75.9, "delete:0.2": 72.2, "delete:0.3": 68.2, "delete-one": 75.9}
    | {"synonym:FILE": 77.4, "delete-one, no dropout": 74.2},
}


def test_the_papers_scores():
    assert {name: {row.name: row.published for row in rows} for name, rows in TABLES.items()} == PUBLISHED
    assert "the supervised model's" in PAPERS["temperature"], "86.2 is not comparable with the runs of this table"


@pytest.mark.parametrize("table", TABLES)
def test_a_row_is_a_recipe_with_the_setting_in_its_name(table):
    names = [folder_name(row.name) for row in TABLES[table]]
    assert len({*names}) == len(names)
    assert all(re.fullmatch(r"[\w.-]+", name) for name in names)  # valid on every file system
    special = {"same mask twice": {"dropout": 0.1, "same_mask": True}, "0": {"dropout": 0, "allow_no_dropout": True}}
    special |= {"none": {}, "delete-one, no dropout": {"augment": "delete-one", "dropout": 0}}
    for row in TABLES[table]:
        options, value = vars(parse(row.flags.split())), row.name.split()[-1]
        recipe = vars(parse(["--recipe", options["recipe"]]))
        if row.name in special:
            expected = special[row.name]
        else:
            name = {"augmentation": "augment"}.get(table, table)
            expected = {name: float(value) if table in ("dropout", "temperature") else value}
        changed = {name for name in options if options[name] != recipe[name]}
        assert {name: options[name] for name in changed | {*expected}} == expected


# --------------------------------------------------------------------------------------- whole tables


def test_a_table_equals_single_runs(command, tiny, files, tmp_path, capsys):
    """Train each cell again by hand; mean and spread from numpy. Only the results of a cell are kept."""
    main(command("pooling"))
    captured = capsys.readouterr()
    assert captured.out.startswith("Spearman x 100 on dev, ")
    assert "trained" not in captured.out
    cells = [f"cell {i} of 6: STSb {p}, seed {s}" for i, (s, p) in enumerate(CELLS, start=1)]
    assert re.findall(r"cell \d of 6: STSb \w+, seed \d", captured.err) == cells
    assert re.search(r"cell 6 of 6: STSb cls, seed 2; about \d+:\d\d left", captured.err)
    main(command("pooling", "--json"))
    found = json.loads(capsys.readouterr().out)
    assert (found["table"], found["scale"], found["failed"]) == ("pooling", "x 100", {})
    for row, pooling in zip(found["rows"], ("mean", "max", "cls"), strict=True):
        before, after = [], []
        for seed in ("1", "2"):
            kept = folder_of(tmp_path, row["name"], seed)
            assert sorted(path.name for path in kept.iterdir()) == ["config.json", "metrics.jsonl", "results.json"]
            out = tmp_path / "single" / pooling / seed
            flags = ["--model", str(tiny), "--pooling", pooling, "--seed", seed, "--batch-size", "16", "--lr", "1e-2"]
            train.main([*toys.flags(files, "cosine", *flags), "--out", str(out)])
            scores = toys.dev_scores(out)
            before.append(100 * scores[0])
            after.append(100 * scores[1])
        assert np.std(after) > 0.01  # the seeds differ
        assert row["name"] == f"STSb {pooling}"
        assert list(row["seeds"].values()) == pytest.approx(after, abs=1e-12)
        statistics = (before[0], np.mean(after), np.std(after, ddof=1), min(after), max(after))
        assert [row[name] for name in ("before", "mean", "sd", "min", "max")] == pytest.approx(statistics, abs=1e-12)


CELLS = [(seed, pooling) for seed in (1, 2) for pooling in ("mean", "max", "cls")]


@pytest.mark.parametrize("table", ["concat", "dropout", "temperature", "augmentation"])
def test_every_row_has_a_number(command, table, tmp_path, runs, capsys, monkeypatch):
    if table == "augmentation":  # none, delete:0.1 and synonyms, for time
        monkeypatch.setitem(TABLES, table, TABLES[table][::4])
    (tmp_path / "words.txt").write_text("happy, sad\n")
    synonyms = ["--synonyms", str(tmp_path / "words.txt")] if table == "augmentation" else []
    main(command(table, *synonyms, "--max-steps", "1", seeds="5"))
    shown = printed(capsys)
    assert list(shown)[1:] == [row.name for row in TABLES[table]]
    metric = "stsb_spearman" if table == "concat" else "spearman"
    for row in TABLES[table]:
        score = toys.dev_scores(folder_of(tmp_path, row.name, 5), metric)[-1]
        assert shown[row.name][1] == f"{100 * score:.2f}"
        assert shown[row.name][3:] == ["1", f"{row.published:.2f}"]
    assert len(runs) == len(TABLES[table])


def cells_of(table: str, *flags: str, more: tuple[str, ...] = ()) -> list[Cell]:
    """The cells that the command would run."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablate, "run_cells", lambda cells, done: seen.extend(cells) or {None: "not run"})
        with pytest.raises(InputError, match="not run"):
            main([table, *flags, *(["--", *more] if more else [])])
    return seen


def test_which_rows_need_a_file(files, tmp_path):
    (tmp_path / "my words.txt").write_text("happy, sad\n")
    cells = cells_of("pooling", "--data", files["nli"], "--seeds", "1")
    assert [(cell.row.name, "--data" in cell.arguments) for cell in cells] == [
        (f"{data} {pooling}", data == "NLI") for data in ("STSb", "NLI") for pooling in ("mean", "max", "cls")
    ]
    options = ["--data", files["sentences"], "--seeds", "1"]
    names = [row.name for row in TABLES["augmentation"]]
    assert [cell.row.name for cell in cells_of("augmentation", *options)] == [n for n in names if n != "synonym:FILE"]
    cells = cells_of("augmentation", *options, "--synonyms", str(tmp_path / "my words.txt"))
    assert [cell.row.name for cell in cells] == names
    (cell,) = (cell for cell in cells if cell.row.name == "synonym:FILE")
    assert parse(cell.arguments).augment == f"synonym:{tmp_path / 'my words.txt'}"


def test_flags_reach_train(tiny, files, tmp_path):
    flags = ["--model", str(tiny), "--data", files["sentences"], "--seeds", "7,8", "--limit", "30", "--max-steps", "2"]
    flags += ["--epochs", "4", "--out", str(tmp_path / "out")]
    cells = cells_of("dropout", *flags, more=("--batch-size", "4", "--lr", "1e-3", "--no-projection"))
    assert [cell.seed for cell in cells] == [7] * 8 + [8] * 8
    for cell in cells:
        options = parse(cell.arguments)
        assert (options.limit, options.max_steps, options.epochs, options.seed) == (30, 2, 4, cell.seed)
        assert (options.batch_size, options.lr, options.projection, options.model) == (4, 1e-3, False, str(tiny))
        assert (options.recipe, options.pooling) == ("simcse-unsupervised", "cls")
        assert Path(options.out) == cell.folder == folder_of(tmp_path, cell.row.name, cell.seed)


# ------------------------------------------------------------------------------------ numbers by hand


def test_the_last_evaluation_counts_and_not_the_best(tmp_path, monkeypatch, capsys):
    """80, 82 and 87: mean 83, variance (9 + 1 + 16) / 2 = 13. A row that failed says so; one seed has no spread."""
    curves = {f"STSb-mean-seed{seed}": [0.5, 0.9, last] for seed, last in ((1, 0.80), (2, 0.82), (3, 0.87))}
    curves |= {f"STSb-max-seed{seed}": [0.25, 0.75] for seed in (1, 2, 3)}

    def start(arguments: list[str]) -> None:
        options = parse(arguments)
        folder = Path(options.out)
        folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for value in curves[folder.name]:
            lines += [{"loss": 0.5}, {"dev": {"pearson": 0.1, "spearman": value}}]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "config.json").write_text(json.dumps(vars(options)))
        (folder / "results.json").write_text("{}")

    monkeypatch.setattr(train, "main", start)
    monkeypatch.setattr(train, "prepare", lambda *_: None)
    with pytest.raises(InputError, match="3 of 9 cells failed; run the same command to retry them"):
        main(["pooling", "--seeds", "1,2,3", "--out", str(tmp_path)])
    assert printed(capsys) == {
        "pooling": ["before", "minisbert", "min..max", "seeds", "published"],
        "STSb mean": ["50.00", "83.00 ± 3.61", "80.00..87.00", "3", "87.44"],
        "STSb max": ["25.00", "75.00 ± 0.00", "75.00..75.00", "3", "69.92"],
        "STSb cls": ["", "no result", "", "0", "86.62"],
    }
    with pytest.raises(InputError, match="1 of 3 cells failed"):
        main(["pooling", "--seeds", "2", "--out", str(tmp_path), "--json"])
    row = json.loads(capsys.readouterr().out)["rows"][0]
    expected = {"mean": 82, "sd": None, "min": 82, "max": 82, "before": 50, "theirs": 87.44, "seeds": {"2": 82}}
    assert row == {"name": "STSb mean"} | expected


# ------------------------------------------------------------------- what is reused, stopped and broken


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{}\n", b'"dev"\n', b"null\n", b"NaN\n", b"hello\n\n", b"\x00\n", b"9" * 5000 + b"\n",
        b"[" * 100_000 + b"\n", b'{"dev": "\xe9"}\n', b'{"dev": null}\n', b'{"dev": [1]}\n', b'{"dev": "spearman"}\n',
        b'{"dev": {"f1": 1}}\n', b'{"dev": {"spearman": "x"}}\n', b'{"dev": {"spearman": NaN}}\n',
        b'{"dev": {"spearman": 1e308}}\n',
    ],
)  # fmt: skip
def test_broken_metrics_are_an_error_that_names_the_file(tmp_path, content):
    (tmp_path / "metrics.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=r"metrics\.jsonl"):
        dev_scores(Cell(TABLES["pooling"][0], 1, tmp_path, []))


def test_done_cells_are_neither_run_again_nor_mixed_with_other_settings(command, runs, tmp_path, capsys):
    main(command("pooling", seeds="1"))
    first = printed(capsys)
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.json")}
    with pytest.raises(InputError, match=r"-seed1 was run with limit None instead of 24: choose another --out"):
        main(command("pooling", "--limit", "24", seeds="1"))
    with pytest.raises(InputError, match=r"was run with weight_decay 0\.0 instead of 0\.5"):
        main(command("pooling", more=("--weight-decay", "0.5")))
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.json")} == before
    main(command("pooling", seeds="1"))
    assert printed(capsys) == first
    assert len(runs) == 3
    main(command("pooling", seeds="1,2"))
    assert "3 of 6 cells are already done" in capsys.readouterr().err
    assert [parse(arguments).seed for arguments in runs[3:]] == [2, 2, 2]
    for _ in range(2):  # the second time nothing is left to replace
        main(command("pooling", "--limit", "24", "--overwrite", seeds="1"))
        assert len(runs) == 9


def test_a_cell_that_fails_does_not_lose_the_others(command, monkeypatch, capsys):
    start = train.main

    def fails(arguments: list[str]) -> None:
        if parse(arguments).pooling in broken:
            raise RuntimeError("out of memory")
        start(arguments)

    monkeypatch.setattr(train, "main", fails)
    broken = ("mean", "max", "cls")
    with pytest.raises(InputError, match="all 3 cells failed: RuntimeError: out of memory"):
        main(command("pooling", seeds="1"))
    assert capsys.readouterr().out == ""
    broken = ("max",)
    with pytest.raises(SystemExit, match="2"):
        run_command(lambda: main(command("pooling", seeds="1")))
    captured = capsys.readouterr()
    assert "cell 2 of 3: STSb max, seed 1 failed: RuntimeError: out of memory" in captured.err
    assert captured.err.endswith("error: 1 of 3 cells failed; run the same command to retry them\n")
    assert [line.split("|")[5].strip() for line in captured.out.splitlines() if "STSb" in line] == ["1", "0", "1"]
    broken = ()
    main(command("pooling", seeds="1"))
    captured = capsys.readouterr()
    assert "2 of 3 cells are already done" in captured.err
    assert [line.split("|")[5].strip() for line in captured.out.splitlines() if "STSb" in line] == ["1", "1", "1"]


def test_ctrl_c_ends_the_table_and_the_same_command_continues(command, runs, monkeypatch, tmp_path, capsys):
    """During the third cell, which is then trained again; the table is the same as without the interrupt."""
    with monkeypatch.context() as patch:
        patch.setattr(losses, "cosine_mse_loss", toys.interrupt_at(8, losses.cosine_mse_loss))  # a cell has three steps
        with pytest.raises(SystemExit, match="130"):
            run_command(lambda: main(command("pooling", seeds="1")))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("2 of 3 cells are done; run the same command to continue\nstopped\n")
    assert len(runs) == 3
    main(command("pooling", seeds="1"))
    assert len(runs) == 4
    continued = printed(capsys)
    main([part.replace(str(tmp_path / "out"), str(tmp_path / "whole")) for part in command("pooling", seeds="1")])
    assert printed(capsys) == continued


# ----------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("concat", "concat needs --data FILE: NLI rows .*; or --data snli, fetched from https://nlp.stanford.edu/"),
        ("dropout", "dropout needs --data FILE: plain sentences, one a line"),
        ("pooling -- --pooling cls", "--pooling cannot follow --: the table sets it"),
        ("pooling --limit 5 -- --limit 6", "--limit cannot follow --: .* it belongs before --"),
        ("pooling --synonyms words.txt", "--synonyms is for the table augmentation, not for pooling"),
        ("augmentation --data x.txt --synonyms no.txt", "no.txt does not exist"),
        ("pooling -- --margin 1", "--margin is not for objective cosine"),
        # what would fail in every cell
        ("dropout --data {sentences} --model nosuch", "no model 'nosuch'"),
        ("dropout --data {sentences} --model {tiny} -- --device tpu", "device 'tpu' cannot be used"),
        ("dropout --data {sentences} --model {tiny} -- --freeze-layers 9", "--freeze-layers: "),
        ("dropout --data nosuch.txt --model {tiny}", "nosuch.txt does not exist"),
        # argparse's own
        ("layers", "invalid choice: 'layers'"),
        ("pooling --seeds 1,1", "argument --seeds: invalid"),
        ("pooling --seeds 1,x", "argument --seeds: invalid"),
        ("pooling --seeds=-1", "argument --seeds: invalid"),
        ("pooling --epochs 0", "argument --epochs: invalid"),
        ("pooling --limit many", "argument --limit: invalid"),
        ("pooling -- --layers 2", "unrecognized arguments: --layers"),
    ],
)
def test_an_invalid_table_is_an_error_before_anything_runs(arguments, message, files, tiny, monkeypatch, capsys):
    monkeypatch.setattr(train, "main", lambda arguments: pytest.fail("a run was started"))
    with pytest.raises(SystemExit, match="2"):
        run_command(lambda: main(arguments.format(tiny=tiny, **files).split()))
    err = capsys.readouterr().err
    assert re.search(message, err)
    assert "cell" not in err


def test_several_processes_are_refused(command, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="torchrun started 2 processes, an ablation runs in one: "):
        main(command("pooling"))
