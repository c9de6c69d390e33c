"""Ablations: the runs of a table, what is reused, what a failure leaves, and numbers checked by hand."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minisbert import ablate
from minisbert.ablate import main
from minisbert.core import InputError, losses
from minisbert.data.scored_pairs import ScoredPair
from minisbert.system.console import run_command
from minisbert.training import training
from minisbert.training.ablation import SOURCES, TABLES, Cell, dev_scores, folder_name, markdown
from minisbert.training.options import parse
from tests import toys
from tests.conftest import ROOT

STSB = [ScoredPair("the cat", "a cat", 5), ScoredPair("the cat", "music", 1), ScoredPair("the moon", "the sun", 2)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return toys.write_all(tmp_path_factory.mktemp("toys"))


@pytest.fixture
def command(tiny: Path, files: dict[str, str], tmp_path: Path, monkeypatch):
    """``command("pooling", "--json", seeds="1,2")``: the arguments for a table on toy rows with the tiny model."""
    monkeypatch.setattr("minisbert.training.pair_objectives.load_scored_pairs", lambda name, split: STSB)
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
    started, start = [], training.main
    monkeypatch.setattr(training, "main", lambda arguments: started.append(arguments) or start(arguments))
    return started


def printed(capsys) -> dict[str, list[str]]:
    """The table on stdout: the name of each row to its other cells."""
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert {len(row) for row in rows} == {6}
    return {row[0].strip("`").replace(r"\|", "|"): row[1:] for row in rows[:1] + rows[2:]}


# ---------------------------------------------------------------------------------- the papers' tables


def published(table: str) -> dict[str, float | None]:
    return {row.name: row.published for row in TABLES[table]}


def test_the_papers_scores():
    assert published("pooling") == {
        "STSb mean": 87.44,
        "STSb max": 69.92,
        "STSb cls": 86.62,
        "NLI mean": 80.78,
        "NLI max": 79.07,
        "NLI cls": 79.80,
    }
    assert published("concat") == {
        "u,v": 66.04,
        "|u-v|": 69.78,
        "u*v": 70.54,
        "|u-v|,u*v": 78.37,
        "u,v,u*v": 77.44,
        "u,v,|u-v|": 80.78,
        "u,v,|u-v|,u*v": 80.44,
    }
    rates = {"0": 71.1, "0.01": 72.6, "0.05": 81.1, "0.1": 82.5, "0.15": 81.4, "0.2": 80.5, "0.5": 71.0}
    assert published("dropout") == rates | {"same mask twice": 43.6}
    assert published("temperature") == {"0.001": 84.9, "0.01": 85.4, "0.05": 86.2, "0.1": 82.0, "1": 64.0}
    crops = {"crop:0.1": 77.8, "crop:0.2": 71.4, "crop:0.3": 63.6}
    deletions = {"delete:0.1": 75.9, "delete:0.2": 72.2, "delete:0.3": 68.2, "delete-one": 75.9}
    others = {"none": 82.5, "synonym:FILE": 77.4, "delete-one, no dropout": 74.2}
    assert published("augmentation") == crops | deletions | others
    assert "the supervised model's" in SOURCES["temperature"], "86.2 is not comparable with the runs of this table"


@pytest.mark.parametrize("table", TABLES)
def test_a_row_is_a_recipe_with_the_setting_in_its_name(table):
    for row in TABLES[table]:
        options, value = vars(parse(row.flags.split())), row.name.split()[-1]
        recipe = vars(parse(["--recipe", options["recipe"]]))
        changed = {name for name in options if options[name] != recipe[name]} | {table}
        if row.name == "same mask twice":
            assert (options["dropout"], options["same_mask"]) == (0.1, True)
            assert changed == {"dropout", "same_mask"}
        elif row.name == "0":
            assert (options["dropout"], options["allow_no_dropout"]) == (0, True)
            assert changed == {"dropout", "allow_no_dropout"}
        elif table == "augmentation":
            expected = {"none": (None, None), "dropout": ("delete-one", 0)}.get(value, (value, None))
            assert (options["augment"], options["dropout"]) == expected
            assert changed - {"augmentation", "augment", "dropout"} == set()
        else:
            assert options[table] == (value if table in ("pooling", "concat") else float(value))
            assert changed == {table}


def test_folder_names_are_unique_and_portable():
    for rows in TABLES.values():
        names = [folder_name(row.name) for row in rows]
        assert len({*names}) == len(names)
        assert all(re.fullmatch(r"[\w.-]+", name) for name in names)


# --------------------------------------------------------------------------------------- whole tables


def test_a_table_equals_single_runs(command, tiny, files, tmp_path, capsys):
    """Train each cell again by hand; mean and spread from numpy."""
    main(command("pooling"))
    table = printed(capsys)
    assert list(table) == ["pooling", "STSb mean", "STSb max", "STSb cls"]
    for pooling in ("mean", "max", "cls"):
        before, after = [], []
        for seed in ("1", "2"):
            out = tmp_path / "single" / pooling / seed
            flags = ["--model", str(tiny), "--pooling", pooling, "--seed", seed, "--batch-size", "16", "--lr", "1e-2"]
            flags += ["--data", files["scored"], "--dev", files["dev"], "--test", files["test"], "--out", str(out)]
            training.main(flags)
            lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
            dev = [100 * line["dev"]["spearman"] for line in lines if "dev" in line]
            before.append(dev[0])
            after.append(dev[1])
        assert np.std(after) > 0.01  # the seeds differ
        shown = f"{np.mean(after):.2f} ± {np.std(after, ddof=1):.2f}", f"{min(after):.2f}..{max(after):.2f}"
        paper = f"{published('pooling')[f'STSb {pooling}']:.2f}"
        assert table[f"STSb {pooling}"] == [f"{before[0]:.2f}", *shown, "2", paper]


@pytest.mark.parametrize("table", ["concat", "dropout", "temperature", "augmentation"])
def test_every_row_has_a_number(command, table, tmp_path, runs, capsys, monkeypatch):
    if table == "augmentation":  # none, delete:0.1 and synonyms, for time
        monkeypatch.setitem(TABLES, table, TABLES[table][::4])
    (tmp_path / "words.txt").write_text("happy, sad\n")
    synonyms = ["--synonyms", str(tmp_path / "words.txt")] if table == "augmentation" else []
    main(command(table, *synonyms, seeds="5"))
    shown = printed(capsys)
    assert list(shown)[1:] == [row.name for row in TABLES[table]]
    for row in TABLES[table]:
        assert -100 <= float(shown[row.name][1]) <= 100
        assert shown[row.name][3:] == ["1", "" if row.published is None else f"{row.published:.2f}"]
    assert len(runs) == len(TABLES[table])


def test_pooling_has_a_second_half_on_nli(tiny, files):
    options = ["--model", str(tiny), "--data", files["nli"], "--seeds", "1"]
    cells = cells_of("pooling", *options)
    assert [(cell.row.name, "--data" in cell.arguments) for cell in cells] == [
        (f"{data} {pooling}", data == "NLI") for data in ("STSb", "NLI") for pooling in ("mean", "max", "cls")
    ]


def test_synonyms_are_a_row_only_with_their_file(tiny, files, tmp_path):
    (tmp_path / "my words.txt").write_text("happy, sad\n")
    options = ["--model", str(tiny), "--data", files["sentences"], "--seeds", "1"]
    names = [row.name for row in TABLES["augmentation"]]
    assert [cell.row.name for cell in cells_of("augmentation", *options)] == [n for n in names if n != "synonym:FILE"]
    cells = cells_of("augmentation", *options, "--synonyms", str(tmp_path / "my words.txt"))
    assert [cell.row.name for cell in cells] == names
    (cell,) = (cell for cell in cells if cell.row.name == "synonym:FILE")
    assert parse(cell.arguments).augment == f"synonym:{tmp_path / 'my words.txt'}"


def cells_of(table: str, *flags: str, more: tuple[str, ...] = ()) -> list[Cell]:
    """The cells that the command would run."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablate, "run_cells", lambda cells, done: seen.extend(cells) or {None: "not run"})
        with pytest.raises(InputError, match="not run"):
            main([table, *flags, *(["--", *more] if more else [])])
    return seen


def test_nli_rows_report_the_correlation_on_stsb(command, tmp_path, capsys):
    main(command("concat", seeds="1"))
    shown = printed(capsys)
    for row in TABLES["concat"]:
        lines = (tmp_path / "out" / f"{folder_name(row.name)}-seed1" / "metrics.jsonl").read_text().splitlines()
        last = [json.loads(line)["dev"] for line in lines if "dev" in json.loads(line)][-1]
        assert shown[row.name][1] == f"{100 * last['stsb_spearman']:.2f}"


def test_flags_reach_train(tiny, files, tmp_path):
    flags = ["--model", str(tiny), "--data", files["sentences"], "--seeds", "7,8", "--limit", "30", "--max-steps", "2"]
    flags += ["--epochs", "4", "--out", str(tmp_path)]
    cells = cells_of("dropout", *flags, more=("--batch-size", "4", "--lr", "1e-3", "--no-projection"))
    assert [cell.seed for cell in cells] == [7] * 8 + [8] * 8
    for cell in cells:
        options = parse(cell.arguments)
        assert (options.limit, options.max_steps, options.epochs, options.seed) == (30, 2, 4, cell.seed)
        assert (options.batch_size, options.lr, options.projection, options.model) == (4, 1e-3, False, str(tiny))
        assert (options.recipe, options.pooling) == ("simcse-unsupervised", "cls")
        assert Path(options.out) == cell.folder == tmp_path / f"{folder_name(cell.row.name)}-seed{cell.seed}"


def test_only_the_results_of_a_cell_are_kept(command, tmp_path, capsys):
    main(command("pooling", seeds="1"))
    for folder in (tmp_path / "out").iterdir():
        assert sorted(path.name for path in folder.iterdir()) == ["config.json", "metrics.jsonl", "results.json"]
    captured = capsys.readouterr()
    assert captured.out.startswith("Spearman x 100 on dev, ")
    assert "trained" not in captured.out
    assert re.findall(r"cell \d of 3: STSb \w+, seed 1", captured.err) == [
        f"cell {i} of 3: STSb {name}, seed 1" for i, name in enumerate(("mean", "max", "cls"), start=1)
    ]
    assert re.search(r"cell 3 of 3: STSb cls, seed 1; about \d+:\d\d left", captured.err)


def test_json_has_every_seed_and_no_rounding(command, tmp_path, capsys):
    main(command("pooling", "--json"))
    found = json.loads(capsys.readouterr().out)
    assert (found["table"], found["scale"], found["failed"]) == ("pooling", "x 100", {})
    assert [row["name"] for row in found["rows"]] == ["STSb mean", "STSb max", "STSb cls"]
    for row in found["rows"]:
        for seed, value in row["seeds"].items():
            lines = (tmp_path / "out" / f"{folder_name(row['name'])}-seed{seed}" / "metrics.jsonl").read_text()
            last = json.loads(lines.splitlines()[-1])
            assert value == pytest.approx(100 * last["dev"]["spearman"], abs=1e-12)
        one, two = row["seeds"].values()
        assert row["mean"] == pytest.approx((one + two) / 2, abs=1e-12)
        assert row["sd"] == pytest.approx(abs(one - two) / 2**0.5, abs=1e-12)
        assert (row["min"], row["max"]) == (min(one, two), max(one, two))


# ------------------------------------------------------------------------------------ numbers by hand


@pytest.fixture
def by_hand(tmp_path, monkeypatch):
    """``by_hand({("STSb mean", 1): [.5, .9, .8]})``: fake runs with these dev scores."""

    def prepare(curves: dict[tuple[str, int], list[float]]) -> None:
        def start(arguments: list[str]) -> None:
            options = parse(arguments)
            folder = Path(options.out)
            name, _, seed = folder.name.replace("STSb-", "STSb ").rpartition("-seed")
            if (name, int(seed)) not in curves:
                raise RuntimeError(f"no curve for {name}, {seed}")
            folder.mkdir(parents=True, exist_ok=True)
            lines = []
            for epoch, value in enumerate(curves[name, int(seed)]):
                lines += [{"step": epoch, "loss": 0.5}, {"step": epoch, "dev": {"pearson": 0.1, "spearman": value}}]
            (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            (folder / "config.json").write_text(json.dumps(vars(options)))
            (folder / "results.json").write_text("{}")

        monkeypatch.setattr(training, "main", start)
        monkeypatch.setattr(training, "set_up", lambda *_: None)

    return prepare


CURVES = {
    ("STSb mean", 1): [0.5, 0.9, 0.80],
    ("STSb mean", 2): [0.5, 0.6, 0.82],
    ("STSb mean", 3): [0.5, 0.7, 0.87],
    ("STSb max", 1): [0.25, 0.75],
    ("STSb max", 2): [0.25, 0.75],
    ("STSb max", 3): [0.25, 0.75],
}


def test_the_last_evaluation_counts_and_not_the_best(by_hand, tmp_path, capsys):
    """80, 82 and 87: mean 83, variance (9 + 1 + 16) / 2 = 13. A row that failed says so."""
    by_hand(CURVES)
    with pytest.raises(InputError, match="3 of 9 cells failed; run the same command to retry them"):
        main(["pooling", "--seeds", "1,2,3", "--out", str(tmp_path)])
    assert printed(capsys) == {
        "pooling": ["before", "minisbert", "min..max", "seeds", "published"],
        "STSb mean": ["50.00", "83.00 ± 3.61", "80.00..87.00", "3", "87.44"],
        "STSb max": ["25.00", "75.00 ± 0.00", "75.00..75.00", "3", "69.92"],
        "STSb cls": ["", "no result", "", "0", "86.62"],
    }


def test_one_seed_has_no_spread(by_hand, tmp_path, capsys):
    by_hand({(f"STSb {name}", 1): [0.5, 0.75] for name in ("mean", "max", "cls")})
    main(["pooling", "--seeds", "1", "--out", str(tmp_path), "--json"])
    for row in json.loads(capsys.readouterr().out)["rows"]:
        assert (row["mean"], row["sd"], row["min"], row["max"], row["before"]) == (75, None, 75, 75, 50)


def test_pipes_in_a_name_do_not_end_a_cell_of_the_table():
    row = dict.fromkeys(("before", "mean", "sd", "min", "max", "theirs")) | {"name": "u,v,|u-v|", "seeds": {}}
    assert markdown("concat", [row]).splitlines()[2] == r"| `u,v,\|u-v\|` |  | no result |  | 0 |  |"


# ------------------------------------------------------------------- what is reused, stopped and broken


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{}\n", b'"dev"\n', b"null\n", b"5\n", b"[1]\n", b"NaN\n", b"hello\n\n", b"\x00\n", b"9" * 5000 + b"\n",
        b"[" * 100_000 + b"\n", b'{"dev": "\xe9"}\n', b'{"dev": null}\n', b'{"dev": [1]}\n', b'{"dev": "spearman"}\n',
        b'{"dev": {}}\n', b'{"dev": {"f1": 1}}\n', b'{"dev": {"spearman": null}}\n', b'{"dev": {"spearman": "x"}}\n',
        b'{"dev": {"spearman": NaN}}\n', b'{"dev": {"spearman": Infinity}}\n', b'{"dev": {"spearman": 1e308}}\n',
    ],
)  # fmt: skip
def test_broken_metrics_are_an_error_that_names_the_file(tmp_path, content):
    (tmp_path / "metrics.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=r"metrics\.jsonl"):
        dev_scores(Cell(TABLES["pooling"][0], 1, tmp_path, []))


def test_done_cells_are_not_run_again(command, runs, capsys):
    main(command("pooling", seeds="1"))
    first = printed(capsys)
    main(command("pooling", seeds="1"))
    assert len(runs) == 3
    assert printed(capsys) == first
    main(command("pooling", seeds="1,2"))
    assert "3 of 6 cells are already done" in capsys.readouterr().err
    assert [parse(arguments).seed for arguments in runs[3:]] == [2, 2, 2]


def test_runs_with_other_settings_are_neither_mixed_nor_overwritten(command, runs, tmp_path):
    main(command("pooling", seeds="1"))
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.json")}
    with pytest.raises(InputError, match=r"-seed1 was run with limit None instead of 24: choose another --out"):
        main(command("pooling", "--limit", "24", seeds="1"))
    with pytest.raises(InputError, match=r"was run with weight_decay 0\.0 instead of 0\.5"):
        main(command("pooling", more=("--weight-decay", "0.5")))
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.json")} == before
    main(command("pooling", "--limit", "24", "--overwrite", seeds="1"))
    assert len(runs) == 6
    main(command("pooling", "--limit", "24", "--overwrite", seeds="1"))  # nothing is left to replace
    assert len(runs) == 6


def test_a_cell_that_fails_does_not_lose_the_others(command, monkeypatch, capsys):
    start = training.main

    def fails(arguments: list[str]) -> None:
        if parse(arguments).pooling == "max" and broken:
            raise RuntimeError("out of memory")
        start(arguments)

    broken = True
    monkeypatch.setattr(training, "main", fails)
    with pytest.raises(SystemExit, match="2"):
        run_command(lambda: main(command("pooling")))
    captured = capsys.readouterr()
    assert "cell 2 of 6: STSb max, seed 1 failed: RuntimeError: out of memory" in captured.err
    assert captured.err.endswith("error: 2 of 6 cells failed; run the same command to retry them\n")
    assert [line.split("|")[5].strip() for line in captured.out.splitlines() if "STSb" in line] == ["2", "0", "2"]
    broken = False
    main(command("pooling"))
    captured = capsys.readouterr()
    assert "4 of 6 cells are already done" in captured.err
    assert [line.split("|")[5].strip() for line in captured.out.splitlines() if "STSb" in line] == ["2", "2", "2"]


def test_if_all_cells_fail_there_is_no_table(command, monkeypatch, capsys):
    monkeypatch.setattr(training, "main", lambda arguments: 1 / 0)
    with pytest.raises(InputError, match="none of 6 cells has a result: ZeroDivisionError: division by zero"):
        main(command("pooling"))
    assert capsys.readouterr().out == ""


def test_ctrl_c_ends_the_table_and_the_same_command_continues(command, monkeypatch, tmp_path, capsys):
    """During the third cell, which is then trained again; the table is the same as without the interrupt."""
    start, count = training.main, 0
    formula = losses.cosine_mse_loss

    def interrupted(arguments: list[str]) -> None:
        nonlocal count
        count += 1
        if count == 3:
            monkeypatch.setattr(losses, "cosine_mse_loss", stop)
        start(arguments)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "main", interrupted)
    with pytest.raises(SystemExit, match="130"):
        run_command(lambda: main(command("pooling")))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("2 of 6 cells are done; run the same command to continue\nstopped\n")
    assert count == 3

    monkeypatch.setattr(losses, "cosine_mse_loss", formula)
    main(command("pooling"))
    assert count == 3 + 4
    went_on = printed(capsys)
    main([part.replace(str(tmp_path / "out"), str(tmp_path / "whole")) for part in command("pooling")])
    assert printed(capsys) == went_on


# ----------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["concat"], r"concat needs --data FILE: NLI rows .*; or --data snli, fetched from https://nlp.stanford.edu/"),
        (["dropout"], "dropout needs --data FILE: plain sentences, one a line"),
        (["temperature"], "temperature needs --data FILE: plain sentences, one a line"),
        (["pooling", "--", "--pooling", "cls"], "--pooling cannot follow --: the table sets it"),
        (["pooling", "--", "--seed", "1"], "--seed cannot follow --: the table sets it"),
        (
            ["pooling", "--limit", "5", "--", "--limit", "6"],
            "--limit cannot follow --: .* it belongs before --",
        ),
        (["pooling", "--synonyms", "words.txt"], "--synonyms is for the table augmentation, not for pooling"),
        (["augmentation", "--data", "x.txt", "--synonyms", "no.txt"], "no.txt does not exist"),
        (["pooling", "--", "--margin", "1"], "--margin is not for objective cosine"),
    ],
)
def test_an_invalid_table_is_an_error_before_anything_runs(arguments, message, monkeypatch):
    monkeypatch.setattr(training, "main", lambda arguments: pytest.fail("a run was started"))
    with pytest.raises(InputError, match=message):
        main(arguments)


@pytest.mark.parametrize(
    ("flags", "more", "message"),
    [
        (["--model", "nosuch"], [], "no model 'nosuch'"),
        ([], ["--device", "tpu"], "device 'tpu' cannot be used"),
        ([], ["--freeze-layers", "9"], "--freeze-layers: "),
        (["--data", "nosuch.txt"], [], "nosuch.txt does not exist"),
    ],
)
def test_what_would_fail_in_every_cell_fails_before_the_first(command, flags, more, message, monkeypatch, capsys):
    monkeypatch.setattr(training, "main", lambda arguments: pytest.fail("a run was started"))
    with pytest.raises(InputError, match=message):
        main(command("dropout", *flags, more=tuple(more)))
    assert "cell" not in capsys.readouterr().err


def test_several_processes_are_refused(command, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="torchrun started 2 processes, an ablation runs in one: python -m"):
        main(command("pooling"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["layers"], "invalid choice: 'layers'"),
        (["pooling", "--seeds", "1,1"], "argument --seeds: invalid"),
        (["pooling", "--seeds", "1,x"], "argument --seeds: invalid"),
        (["pooling", "--seeds", "-1"], "argument --seeds"),
        (["pooling", "--epochs", "0"], "argument --epochs: invalid"),
        (["pooling", "--limit", "many"], "argument --limit: invalid"),
        (["pooling", "--", "--batch-size", "0"], "argument --batch-size: invalid"),
        (["pooling", "--", "--layers", "2"], "unrecognized arguments: --layers"),
    ],
)
def test_arguments_out_of_range_exit_2(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(training, "main", lambda arguments: pytest.fail("a run was started"))
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err


def test_the_command_exits_2_with_one_line():
    done = subprocess.run(
        [sys.executable, "-m", "minisbert.ablate", "dropout"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: dropout needs --data FILE: plain sentences, one a line (.txt or .txt.gz)\n"
