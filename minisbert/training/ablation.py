"""Ablations: repeat a table of SBERT or SimCSE with minisbert and compare.

One setting varies; each value, a row, is trained with several seeds. A cell is one run of training: a recipe, one
flag, a seed. Finished cells are not run again, so an interrupted table continues. The numbers are those of the last
evaluation on dev, not of the best one: a setting that ruins the model must be visible. On the command line:
``minisbert ablate``.
"""

import argparse
import io
import shutil
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from minisbert.core import InputError, reading
from minisbert.core.checks import check
from minisbert.core.heads import CONCATS
from minisbert.data.augmentation import read_synonyms
from minisbert.data.formats import NLI, SENTENCES, Format
from minisbert.evaluation.plots import number_in, read_lines
from minisbert.system.assets import asset
from minisbert.system.console import clipped, duration, say
from minisbert.system.devices import choose_device, choose_precision
from minisbert.training import train
from minisbert.training.command_line import flag, given, parse, read_settings

# ------------------------------------------------------------------------------------- the tables


@dataclass(frozen=True)
class TableRow:
    """A value of the setting that varies: its flags, and the paper's score x 100."""

    name: str
    flags: str
    published: float

    @property
    def data(self) -> Format | None:
        """What --data must contain; None if the row trains on the STS Benchmark."""
        return {"sbert-nli": NLI, "simcse-unsupervised": SENTENCES}.get(self.flags.split()[1])


def rows_of(recipe: str, scores: dict[str, float], option: str, prefix: str = "") -> list[TableRow]:
    """A row for each value of ``option``."""
    return [TableRow(prefix + name, f"--recipe {recipe} {option} {name}", score) for name, score in scores.items()]


SYNONYMS = "synonym:FILE"  # a row with this needs --synonyms, whose file takes the place of FILE
SIMCSE = "--recipe simcse-unsupervised"
CONCAT = dict(zip(CONCATS, (66.04, 69.78, 70.54, 78.37, 77.44, 80.78, 80.44), strict=True))
DROPOUT = {"0.01": 72.6, "0.05": 81.1, "0.1": 82.5, "0.15": 81.4, "0.2": 80.5, "0.5": 71.0}
TEMPERATURE = {"0.001": 84.9, "0.01": 85.4, "0.05": 86.2, "0.1": 82.0, "1": 64.0}
AUGMENTATIONS = {"crop:0.1": 77.8, "crop:0.2": 71.4, "crop:0.3": 63.6}
AUGMENTATIONS |= {"delete:0.1": 75.9, "delete:0.2": 72.2, "delete:0.3": 68.2, "delete-one": 75.9, SYNONYMS: 77.4}

TABLES = {
    "pooling": [
        *rows_of("sbert-regression", {"mean": 87.44, "max": 69.92, "cls": 86.62}, "--pooling", "STSb "),
        *rows_of("sbert-nli", {"mean": 80.78, "max": 79.07, "cls": 79.80}, "--pooling", "NLI "),
    ],
    "concat": rows_of("sbert-nli", CONCAT, "--concat"),
    "dropout": [
        TableRow("0", f"{SIMCSE} --dropout 0 --allow-no-dropout", 71.1),
        *rows_of("simcse-unsupervised", DROPOUT, "--dropout"),
        TableRow("same mask twice", f"{SIMCSE} --dropout 0.1 --same-mask", 43.6),
    ],
    "temperature": rows_of("simcse-unsupervised", TEMPERATURE, "--temperature"),
    "augmentation": [
        TableRow("none", SIMCSE, 82.5),
        *rows_of("simcse-unsupervised", AUGMENTATIONS, "--augment"),
        TableRow("delete-one, no dropout", f"{SIMCSE} --augment delete-one --dropout 0", 74.2),
    ],
}
PAPERS = dict.fromkeys(("pooling", "concat"), "SBERT (Reimers & Gurevych 2019), table 6: BERT-base, STS-B dev")
PAPERS |= {
    "dropout": "SimCSE (Gao et al. 2021), table 3: unsupervised, BERT-base, a million sentences, STS-B dev",
    "augmentation": "SimCSE (Gao et al. 2021), table 1: unsupervised, BERT-base, a million sentences, STS-B dev; "
    "MLM 15 % (62.2) left out",
    "temperature": "SimCSE (Gao et al. 2021), table D.1: BERT-base, STS-B dev; with dot products 85.9. Its 86.2 is the "
    "supervised model's score (tables 4 and 6; the unsupervised one has 82.5), so compare the order of the rows only",
}

# -------------------------------------------------------------------------------------- the cells


@dataclass(frozen=True)
class Cell:
    """One run: a row of the table and a seed, with the folder of the run and the arguments of training."""

    row: TableRow
    seed: int
    folder: Path
    arguments: list[str]


def make_cells(options: argparse.Namespace, train_flags: list[str]) -> list[Cell]:
    """Every run of the table, seed by seed, so that an interrupted table has something in each row.

    ``train_flags`` are passed on to training. Raises ``InputError`` for settings that training would refuse.
    """
    if options.synonyms:
        if options.table != "augmentation":
            raise InputError(f"--synonyms is for the table augmentation, not for {options.table}")
        read_synonyms(options.synonyms)  # now, not after hours
    rows = [row for row in TABLES[options.table] if row.data is None or options.data]
    if not rows:
        form = TABLES[options.table][0].data
        own = form.dataset and f"; or --data {form.dataset}, fetched from {asset(form.dataset).sources[0]['url']}"
        raise InputError(f"{options.table} needs --data FILE: {form.file}{own or ''}")
    rows = [row for row in rows if SYNONYMS not in row.flags or options.synonyms]
    cells = []
    for seed in options.seeds:
        for row in rows:
            folder = Path(options.out or f"runs/ablate/{options.table}") / f"{folder_name(row.name)}-seed{seed}"
            flags = cell_flags(row, seed, folder, options)
            if twice := given(train_flags).keys() & given(flags).keys():
                raise InputError(f"{flag(min(twice))} cannot follow --: the table sets it, or it belongs before --")
            cells.append(Cell(row, seed, folder, [*flags, *train_flags]))
            parse(cells[-1].arguments)  # raises now what training would raise after hours
    return cells


def cell_flags(row: TableRow, seed: int, folder: Path, options: argparse.Namespace) -> list[str]:
    """The arguments of training that the table sets."""
    flags = [part.replace(SYNONYMS, f"synonym:{options.synonyms}") for part in row.flags.split()]
    flags += ["--model", options.model, "--seed", str(seed)]
    flags += ["--out", str(folder), "--overwrite", *(["--data", options.data] if row.data else [])]
    for name in ("limit", "epochs", "max_steps"):
        if getattr(options, name) is not None:
            flags += [flag(name), getattr(options, name)]
    return flags


def folder_name(row: str) -> str:
    """A name valid on every file system: ``u,v,|u-v|`` becomes ``u_v_u-v``, ``u*v`` becomes ``uxv``."""
    return row.translate(str.maketrans({"|": "", "*": "x", ",": "_", " ": "-", ":": "-"}))


def is_done(cell: Cell, overwrite: bool) -> bool:
    """Whether the cell has its results; ``InputError`` if they are of other settings, unless ``overwrite``."""
    if not (cell.folder / "results.json").is_file():
        return False
    found, wanted = vars(read_settings(cell.folder / "config.json")), vars(parse(cell.arguments))
    ignored = ("out", "overwrite", "threads", "device")  # config.json has the device that auto resolved to
    other = [name for name, value in wanted.items() if found[name] != value and name not in ignored]
    if other and not overwrite:
        values = ", ".join(f"{name} {found[name]} instead of {wanted[name]}" for name in other)
        raise InputError(f"{cell.folder} was run with {values}: choose another --out, or --overwrite to replace it")
    return not other


def dev_scores(cell: Cell) -> tuple[float, float]:
    """The dev score x 100 before training and at its end; ``InputError`` if the run's metrics do not hold them."""
    log = cell.folder / "metrics.jsonl"
    with reading(log):
        dev = [entry["dev"] for entry in read_lines(log) if "dev" in entry]
        if not dev:
            raise InputError(f"{log} holds no dev scores: remove {cell.folder} to run it again")
        metric = "stsb_spearman" if "stsb_spearman" in dev[0] else "spearman"
        before, after = 100 * number_in(dev[0], metric), 100 * number_in(dev[-1], metric)
        check(f"{metric} finite, {metric} finite", before, after)
        return before, after


def run_cells(cells: list[Cell], done: set[Path]) -> dict[Path, str]:
    """Train the cells that are not done, adding them to ``done``; the errors of those that failed, by folder."""
    failed, seconds = {}, []
    todo = [cell for cell in cells if cell.folder not in done]
    for cell in {cell.row.flags.split()[1]: cell for cell in reversed(todo)}.values():  # the first of each recipe
        options = parse(cell.arguments)
        device = choose_device(options.device)
        train.prepare(options, device, choose_precision(options.precision, device)[0])  # raises now what it can
    if done:
        say(f"{len(done)} of {len(cells)} cells are already done")
    for i, cell in enumerate(todo):
        about = f"cell {len(cells) - len(todo) + i + 1} of {len(cells)}: {cell.row.name}, seed {cell.seed}"
        say(f"{about}{f'; about {duration(mean(seconds) * (len(todo) - i))} left' if seconds else ''}")
        started = time.monotonic()
        try:
            with redirect_stdout(io.StringIO()):  # hide the table that training prints
                train.main(cell.arguments)
        except Exception as error:  # the other cells may still succeed
            failed[cell.folder] = clipped(f"{type(error).__name__}: {error}")
            say(f"{about} failed: {failed[cell.folder]}")
        else:
            done.add(cell.folder)
            say("{:.2f} -> {:.2f}\n".format(*dev_scores(cell)))
            shutil.rmtree(cell.folder / "model", ignore_errors=True)  # the table needs numbers, not 90 MB per cell
            seconds.append(time.monotonic() - started)
    return failed


# ------------------------------------------------------------------------------------- the report


def summarize(cells: list[Cell], done: set[Path]) -> list[dict[str, Any]]:
    """Per row, x 100: the score of each seed, mean, sample standard deviation, min, max; and the published score."""
    found = []
    for row in dict.fromkeys(cell.row for cell in cells):
        runs = {cell.seed: dev_scores(cell) for cell in cells if cell.row == row and cell.folder in done}
        before, after = [before for before, _ in runs.values()], [after for _, after in runs.values()]
        summary = {"name": row.name, "theirs": row.published, "seeds": dict(zip(runs, after, strict=True))}
        for name, statistic in {"before": mean, "mean": mean, "sd": stdev, "min": min, "max": max}.items():
            values = before if name == "before" else after
            summary[name] = statistic(values) if len(values) > (name == "sd") else None
        found.append(summary)
    return found


def markdown(table: str, summaries: list[dict[str, Any]]) -> str:
    """The summaries as a Markdown table."""
    lines = [f"| {table} | before | minisbert | min..max | seeds | published |", "|---|---|---|---|---|---|"]
    for row in summaries:
        name = row["name"].replace("|", r"\|")
        cells = ["", "no result", ""]
        if row["seeds"]:
            spread = "" if row["sd"] is None else f" ± {row['sd']:.2f}"
            cells = [f"{row['before']:.2f}", f"{row['mean']:.2f}{spread}", f"{row['min']:.2f}..{row['max']:.2f}"]
        lines.append(" | ".join([f"| `{name}`", *cells, str(len(row["seeds"])), f"{row['theirs']:.2f} |"]))
    return "\n".join(lines)
