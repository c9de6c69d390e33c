"""The papers' tables on what is at hand: one setting is varied, each value trained with several seeds.

    python -m minisbert.ablate pooling                                    SBERT, table 6: mean, max, cls on STS-B
    python -m minisbert.ablate concat --data snli.jsonl --limit 10000     SBERT, table 6: what the classifier reads
    python -m minisbert.ablate dropout --data sentences.txt --epochs 2    SimCSE: how much dropout makes two views
    python -m minisbert.ablate temperature --data sentences.txt --seeds 1,2,3,4,5 -- --batch-size 128

Each cell is a run of ``python -m minisbert.train``: a recipe, one flag, a seed. A cell that is done is not run again,
so a table that was stopped goes on where it was. The numbers are those of the last evaluation on dev, not of the best
one: a setting that ruins a model must show it.
"""

import argparse
import io
import json
import shutil
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from minisbert.core import InputError, read_json, read_text
from minisbert.core.heads import CONCATS
from minisbert.objectives.datasets import NLI, SENTENCES, Form
from minisbert.run import training as train
from minisbert.run.options import given, parse
from minisbert.system.assets import asset
from minisbert.system.console import duration, run_command, say

# ------------------------------------------------------------------------------------- the tables


@dataclass(frozen=True)
class Row:
    """A value of the setting that is varied: its flags, and the paper's score x 100 where we know it."""

    name: str
    flags: str
    theirs: float | None = None

    @property
    def data(self) -> Form | None:
        """What --data must hold; None: the run reads the STS Benchmark."""
        return {"sbert-nli": NLI, "simcse-unsupervised": SENTENCES}.get(self.flags.split()[1])


CONCAT = dict(zip(CONCATS, (66.04, 69.78, 70.54, 78.37, 77.44, 80.78, 80.44), strict=True))
DROPOUT = {"0.01": 72.6, "0.05": 81.1, "0.1": 82.5, "0.15": 81.4, "0.2": 80.5, "0.5": 71.0}
TEMPERATURE = ("0.001", "0.01", "0.05", "0.1", "1")

TABLES = {
    "pooling": [
        Row("STSb mean", "--recipe sbert-regression --pooling mean", 87.44),
        Row("STSb max", "--recipe sbert-regression --pooling max", 69.92),
        Row("STSb cls", "--recipe sbert-regression --pooling cls", 86.62),
        Row("NLI mean", "--recipe sbert-nli --pooling mean", 80.78),
        Row("NLI max", "--recipe sbert-nli --pooling max", 79.07),
        Row("NLI cls", "--recipe sbert-nli --pooling cls", 79.80),
    ],
    "concat": [Row(name, f"--recipe sbert-nli --concat {name}", theirs) for name, theirs in CONCAT.items()],
    "dropout": [
        Row("0", "--recipe simcse-unsupervised --dropout 0 --allow-no-dropout", 71.1),
        *(Row(rate, f"--recipe simcse-unsupervised --dropout {rate}", theirs) for rate, theirs in DROPOUT.items()),
        Row("same mask twice", "--recipe simcse-unsupervised --dropout 0.1 --same-mask", 43.6),
    ],
    "temperature": [Row(value, f"--recipe simcse-unsupervised --temperature {value}") for value in TEMPERATURE],
}
SBERT = "SBERT (Reimers & Gurevych 2019), table 6: BERT-base, STS-B dev"
SIMCSE = "SimCSE (Gao et al. 2021): BERT-base, a million sentences, STS-B dev"
SOURCES = {"pooling": SBERT, "concat": SBERT, "dropout": SIMCSE, "temperature": f"{SIMCSE}, not at hand"}

# -------------------------------------------------------------------------------------- the cells


@dataclass(frozen=True)
class Cell:
    """One run: a row of the table with a seed, the folder of the run and its arguments."""

    row: Row
    seed: int
    folder: Path
    arguments: list[str]


def make_cells(options: argparse.Namespace, more: list[str]) -> list[Cell]:
    """Seed by seed, so that a table that is stopped has something in each row. ``more`` goes to train as it is."""
    rows = [row for row in TABLES[options.table] if row.data is None or options.data]
    if not rows:
        form = TABLES[options.table][0].data
        own = f"; or --data {form.own}, fetched from {asset(form.own).sources[0]['url']}" if form.own else ""
        raise InputError(f"{options.table} needs --data FILE: {form.file}{own}")
    cells = []
    for seed in options.seeds:
        for row in rows:
            folder = Path(options.out or f"runs/ablate/{options.table}") / f"{file_name(row.name)}-seed{seed}"
            flags = [*row.flags.split(), "--model", options.model, "--seed", str(seed)]
            flags += ["--out", str(folder), "--overwrite", *(["--data", options.data] if row.data else [])]
            for flag in ("limit", "epochs", "max_steps"):
                if getattr(options, flag) is not None:
                    flags += [f"--{flag.replace('_', '-')}", getattr(options, flag)]
            if twice := given(more).keys() & given(flags).keys():
                raise InputError(f"--{min(twice).replace('_', '-')} behind --: the table sets it, or give it before --")
            cells.append(Cell(row, seed, folder, [*flags, *more]))
            parse(cells[-1].arguments)  # what train refuses is told before anything runs
    return cells


def file_name(row: str) -> str:
    """``u,v,|u-v|`` and ``u*v`` as names that every file system takes: ``u_v_u-v``, ``uxv``."""
    return row.translate(str.maketrans({"|": "", "*": "x", ",": "_", " ": "-"}))


def is_done(cell: Cell, overwrite: bool) -> bool:
    """Does the cell's folder hold its results? ``InputError`` where they are of other settings, unless told so."""
    if not (cell.folder / "results.json").is_file():
        return False
    config = read_json(cell.folder / "config.json")
    wanted = vars(parse(cell.arguments))
    where = ("out", "overwrite", "device")  # config.json has the device that was found
    other = [name for name, value in wanted.items() if config.get(name) != value and name not in where]
    if other and not overwrite:
        values = ", ".join(f"{name} {config.get(name)} and not {wanted[name]}" for name in other)
        raise InputError(f"{cell.folder} was run with {values}: choose another --out, or --overwrite to replace it")
    return not other


def scores(cell: Cell) -> tuple[float, float]:
    """Dev x 100 before training and at its end, from the run's metrics."""
    lines = map(json.loads, read_text(cell.folder / "metrics.jsonl").splitlines())
    dev = [line["dev"] for line in lines if "dev" in line]
    metric = "stsb_spearman" if "stsb_spearman" in dev[0] else "spearman"
    return 100 * dev[0][metric], 100 * dev[-1][metric]


def run_cells(cells: list[Cell], done: set[Path]) -> dict[Path, str]:
    """Train the cells that are not done. What ended a cell, by its folder, for those that failed."""
    failed, seconds = {}, []
    todo = [cell for cell in cells if cell.folder not in done]
    if done:
        say(f"{len(done)} of {len(cells)} cells were done before")
    for i, cell in enumerate(todo):
        about = f"cell {len(cells) - len(todo) + i + 1} of {len(cells)}: {cell.row.name}, seed {cell.seed}"
        say(f"{about}{f'; about {duration(mean(seconds) * (len(todo) - i))} left' if seconds else ''}")
        started = time.monotonic()
        try:
            with redirect_stdout(io.StringIO()):  # its own table
                train.main(cell.arguments)
        except Exception as error:  # whatever it is: the other cells may be sound
            failed[cell.folder] = f"{type(error).__name__}: {error}"
            say(f"{about} failed: {failed[cell.folder]}")
        else:
            done.add(cell.folder)
            say("{:.2f} -> {:.2f}\n".format(*scores(cell)))
            shutil.rmtree(cell.folder / "model", ignore_errors=True)  # the table needs the numbers, not 90 MB a cell
            seconds.append(time.monotonic() - started)
    return failed


# ------------------------------------------------------------------------------------- the report


def summarize(cells: list[Cell], done: set[Path]) -> list[dict[str, Any]]:
    """Per row: each seed's score, mean, sample standard deviation (of two or more), least and most; theirs. x 100."""
    found = []
    for row in dict.fromkeys(cell.row for cell in cells):
        runs = {cell.seed: scores(cell) for cell in cells if cell.row == row and cell.folder in done}
        summary = dict.fromkeys(("before", "mean", "sd", "min", "max"))
        if runs:
            before, after = zip(*runs.values(), strict=True)
            summary |= {"before": mean(before), "mean": mean(after), "min": min(after), "max": max(after)}
            summary["sd"] = stdev(after) if len(after) > 1 else None
        seeds = {seed: after for seed, (_, after) in runs.items()}
        found.append({"name": row.name, "theirs": row.theirs, "seeds": seeds} | summary)
    return found


def markdown(table: str, summaries: list[dict[str, Any]]) -> str:
    """The summaries as a table."""
    lines = [f"| {table} | before | ours | min..max | seeds | theirs |", "|---|---|---|---|---|---|"]
    for row in summaries:
        name = row["name"].replace("|", r"\|")
        cells = ["", "no result", ""]
        if row["seeds"]:
            spread = "" if row["sd"] is None else f" ± {row['sd']:.2f}"
            cells = [f"{row['before']:.2f}", f"{row['mean']:.2f}{spread}", f"{row['min']:.2f}..{row['max']:.2f}"]
        theirs = "" if row["theirs"] is None else f"{row['theirs']:.2f}"
        lines.append(" | ".join([f"| `{name}`", *cells, str(len(row["seeds"])), f"{theirs} |"]))
    return "\n".join(lines)


def seed_list(text: str) -> list[int]:
    """An argparse type: ``42,43,44``."""
    found = [int(part) for part in text.split(",")]
    if len({*found}) < len(found) or min(found) < 0:
        raise ValueError
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m minisbert.ablate",
        description="Repeat a table of SBERT or SimCSE: ours (mean and standard deviation over seeds) beside theirs.",
        usage="%(prog)s TABLE [options] [-- flags of minisbert.train]",
        epilog="Example: python -m minisbert.ablate dropout --data sentences.txt --max-steps 200 -- --batch-size 128\n"
        "Each cell is a run in its folder under --out, without the model's weights. Done cells are not run again.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("table", choices=TABLES, metavar="TABLE", help="pooling, concat, dropout or temperature")
    parser.add_argument(
        "--data", metavar="FILE", help="NLI rows for concat and pooling's second half, plain sentences for the others"
    )
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="name or folder (default: %(default)s)")
    parser.add_argument("--seeds", type=seed_list, default=[42, 43, 44], help="default: 42,43,44")
    parser.add_argument("--limit", metavar="ROWS", help="read only so many training rows")
    parser.add_argument("--epochs", help="default: by recipe, see minisbert.train --recipe list")
    parser.add_argument("--max-steps", help="stop each run after so many steps")
    parser.add_argument("--out", metavar="FOLDER", help="of the runs (default: runs/ablate/TABLE)")
    parser.add_argument("--overwrite", action="store_true", help="replace cells that were run with other settings")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, full precision")
    arguments = sys.argv[1:] if arguments is None else arguments
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:cut])

    cells = make_cells(options, arguments[cut + 1 :])
    done = {cell.folder for cell in cells if is_done(cell, options.overwrite)}
    try:
        failed = run_cells(cells, done)
    except KeyboardInterrupt:
        say(f"{len(done)} of {len(cells)} cells are done; the same command goes on from there")
        raise
    if not done:
        raise InputError(f"none of {len(cells)} cells has a result: {next(iter(failed.values()))}")
    source, summaries = SOURCES[options.table], summarize(cells, done)
    if options.json:
        about = {"table": options.table, "model": options.model, "scale": "x 100", "source": source}
        print(json.dumps(about | {"rows": summaries, "failed": {str(key): value for key, value in failed.items()}}))
    else:
        print(f"Spearman x 100 on dev, {options.model}, before and at the end of training: mean ± sd over seeds\n")
        print(markdown(options.table, summaries))
        print(f"\ntheirs: {source}")
    if failed:
        raise InputError(f"{len(failed)} of {len(cells)} cells failed; the same command runs them again")


if __name__ == "__main__":
    run_command(main)
