"""Repeat a table of SBERT or SimCSE: vary one setting, train with several seeds, print both scores.

    pooling         SBERT, table 6: mean, max and cls on STS-B
    concat          SBERT, table 6: the classifier's input
    dropout         SimCSE: the dropout that makes two views
    temperature     SimCSE: the temperature of the loss
    augmentation    SimCSE, table 1: other ways to make two views

    python -m benchmarks.ablation pooling
    python -m benchmarks.ablation concat --data snli.jsonl --limit 10000
    python -m benchmarks.ablation dropout --data sentences.txt --epochs 2
    python -m benchmarks.ablation temperature --data sentences.txt --seeds 1,2,3 -- --batch-size 128
    python -m benchmarks.ablation augmentation --data sentences.txt --synonyms words.txt

Flags after ``--`` go to ``minisbert train``. What no option of it sets, such as the input of the
softmax classifier, is set here: a row has a loss of its own. Each cell is a run
in its own folder under --out, without the weights. Finished cells are not run again, so an
interrupted table continues where it stopped. The numbers are those of the last evaluation on dev,
not of the best one: a setting that ruins the model must be visible.
"""

import argparse
import io
import json
import random
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean, stdev

from torch import Tensor

from minisbert import train
from minisbert.core import InputError, losses
from minisbert.core.heads import ConcatHead
from minisbert.models.pair_heads import Head
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import run_command, say
from minisbert.system.files import read_text
from minisbert.system.reading import reading
from minisbert.training import MODEL, RESULTS, RUN_CONFIG, RUN_LOG
from minisbert.training.base_loss import Loss
from minisbert.training.encoder_losses import SimCSE
from minisbert.training.head_losses import Softmax
from minisbert.training.options import parse, read_config

SYNONYMS = "synonym:FILE"  # a row with this needs --synonyms, whose file takes the place of FILE
REGRESSION = "--recipe sbert-regression"
NLI = "--loss softmax --batch-size 32 --lr 5e-5 --head-lr 1e-3"  # judged by STS-B, as in the paper
SIMCSE = "--recipe simcse-unsupervised"
NEEDED_DATA = {NLI: "NLI rows", SIMCSE: "plain sentences"}  # of rows that need --data


# ------------------------------------------------------------------------------ what no option sets


def crop(text: str, share: float, generator: random.Random) -> str:
    """Drop a ``share`` of the words at the ends: 10 % of ten words leaves 1 to 9 or 2 to 10."""
    words = text.split()
    left = max(1, round((1 - share) * len(words)))
    start = generator.randint(0, len(words) - left)
    return " ".join(words[start : start + left])


def delete(text: str, count: int, generator: random.Random) -> str:
    """Drop ``count`` random words, but not all: ``"a b c"`` may become ``"b c"``."""
    words = text.split()
    gone = set(generator.sample(range(len(words)), min(count, len(words) - 1)))
    return " ".join(word for i, word in enumerate(words) if i not in gone)


def replace_word(text: str, synonyms: dict[str, list[str]], generator: random.Random) -> str:
    """Replace one word: with ``{"big": ["large"]}`` ``"A big dog."`` becomes ``"A large dog."``."""
    parts = re.findall(r"\w+|\W+", text)
    places = [i for i, part in enumerate(parts) if part.lower() in synonyms]
    if places:
        place = generator.choice(places)
        parts[place] = generator.choice(synonyms[parts[place].lower()])
    return "".join(parts)


def read_synonyms(path: str) -> dict[str, list[str]]:
    """Read each word, in lower case, and its synonyms, from lines such as ``big, large, huge``.

    Commas or tabs separate the words. Raises ``InputError`` for a line with one word and for a file
    without any.
    """
    synonyms: dict[str, list[str]] = {}
    with reading(path) as at:
        for at.line, line in enumerate(read_text(path).splitlines(), start=1):
            words = [word.strip() for word in re.split("[,\t]", line) if word.strip()]
            if len(words) == 1:
                raise ValueError(
                    "one word; expected several of one meaning, as in: big, large, huge"
                )
            for word in words:
                others = [other for other in words if other.lower() != word.lower()]
                if others:
                    synonyms.setdefault(word.lower(), []).extend(others)
    if not synonyms:
        raise InputError(f"{path} holds no synonyms")
    return synonyms


def change(text: str, form: str, generator: random.Random) -> str:
    """Change a text as a row says: ``crop:0.1``, ``delete:0.1`` or ``delete-one``."""
    name, _, share = form.partition(":")
    if name == "crop":
        return crop(text, float(share), generator)
    if name == "delete":
        return delete(text, round(float(share) * len(text.split())), generator)
    return delete(text, 1, generator)


class Augmented(SimCSE):
    """SimCSE whose second view is the sentence changed as ``form`` says, once per run."""

    def __init__(self, form: str, seed: int, synonyms: dict[str, list[str]]):
        super().__init__()
        self.form = form
        self.seed = seed
        self.synonyms = synonyms

    def views(self, columns: list[list[str]]) -> list[list[str]]:
        generator = random.Random(self.seed)
        changed = []
        for text in columns[0]:
            if self.form == SYNONYMS:
                changed.append(replace_word(text, self.synonyms, generator))
            else:
                changed.append(change(text, self.form, generator))
        return [columns[0], changed]


class SameMask(SimCSE):
    """SimCSE with one dropout mask: one column is enough, since both views are one vector."""

    def views(self, columns: list[list[str]]) -> list[list[str]]:
        return [columns[0]]

    def formula(self, u: Tensor) -> Tensor:
        return losses.simcse_loss(u, u, temperature=self.temperature)


class OtherConcat(Softmax):
    """SBERT's softmax classifier over other features of the two vectors, such as u and v alone."""

    def __init__(self, features: tuple[str, ...]):
        super().__init__()
        self.features = features

    def make_head(self, name: str, encoder: SentenceEncoder, outputs: int) -> Head:
        return ConcatHead(encoder.width, self.features, outputs=outputs)


# --------------------------------------------------------------------------------------- the tables


@dataclass(frozen=True)
class Row:
    """A value of the setting that varies: the options of its run, and the paper's score x 100."""

    name: str
    options: str
    flags: str
    published: float
    augment: str = ""  # a form of ``change``, or SYNONYMS
    loss: Callable[[], Loss] | None = None  # in the place of the options' one


def rows(options: str, option: str, scores: dict[str, float], prefix: str = "") -> list[Row]:
    """A row for each value of ``option``."""
    found = []
    for value, score in scores.items():
        found.append(Row(prefix + value, options, f"{option} {value}", score))
    return found


POOLING = rows(REGRESSION, "--pooling", {"mean": 87.44, "max": 69.92, "cls": 86.62}, "STSb ")
POOLING += rows(NLI, "--pooling", {"mean": 80.78, "max": 79.07, "cls": 79.80}, "NLI ")
CONCAT = {
    ("u", "v"): 66.04,
    ("|u-v|",): 69.78,
    ("u*v",): 70.54,
    ("|u-v|", "u*v"): 78.37,
    ("u", "v", "u*v"): 77.44,
    ("u", "v", "|u-v|"): 80.78,
    ("u", "v", "|u-v|", "u*v"): 80.44,
}
DROPOUT = {
    "0": 71.1,
    "0.01": 72.6,
    "0.05": 81.1,
    "0.1": 82.5,
    "0.15": 81.4,
    "0.2": 80.5,
    "0.5": 71.0,
}
TEMPERATURE = {"0.001": 84.9, "0.01": 85.4, "0.05": 86.2, "0.1": 82.0, "1": 64.0}
AUGMENT = {
    "crop:0.1": 77.8,
    "crop:0.2": 71.4,
    "crop:0.3": 63.6,
    "delete:0.1": 75.9,
    "delete:0.2": 72.2,
    "delete:0.3": 68.2,
    "delete-one": 75.9,
    SYNONYMS: 77.4,
}
AUGMENTATION = [Row("none", SIMCSE, "", 82.5)]
AUGMENTATION += [Row(form, SIMCSE, "", score, augment=form) for form, score in AUGMENT.items()]
AUGMENTATION.append(
    Row("delete-one, no dropout", SIMCSE, "--dropout 0", 74.2, augment="delete-one")
)
SAME_MASK = Row("same mask twice", SIMCSE, "--dropout 0.1", 43.6, loss=SameMask)
CONCATENATIONS = []
for features, published in CONCAT.items():
    loss = partial(OtherConcat, features)
    CONCATENATIONS.append(Row(",".join(features), NLI, "", published, loss=loss))

TABLES = {
    "pooling": POOLING,
    "concat": CONCATENATIONS,
    "dropout": [*rows(SIMCSE, "--dropout", DROPOUT), SAME_MASK],
    "temperature": rows(SIMCSE, "--temperature", TEMPERATURE),
    "augmentation": AUGMENTATION,
}
SBERT_6 = "SBERT (Reimers & Gurevych 2019), table 6: BERT-base, STS-B dev"
PAPERS = {
    "pooling": SBERT_6,
    "concat": SBERT_6,
    "dropout": (
        "SimCSE (Gao et al. 2021), table 3: unsupervised, BERT-base, a million sentences, STS-B dev"
    ),
    "augmentation": (
        "SimCSE (Gao et al. 2021), table 1: unsupervised, BERT-base, a million sentences, "
        "STS-B dev; MLM 15 % (62.2) left out"
    ),
    "temperature": (
        "SimCSE (Gao et al. 2021), table D.1: BERT-base, STS-B dev; with dot products 85.9. Its "
        "86.2 is the supervised model's score (tables 4 and 6; the unsupervised one has 82.5), "
        "so compare the order of the rows only"
    ),
}


@dataclass(frozen=True)
class Cell:
    """One run: a row of the table and a seed."""

    row: Row
    seed: int
    folder: Path
    arguments: list[str]  # of training
    loss: Loss | None  # in the place of the options' one


def make_cells(options: argparse.Namespace, train_flags: list[str]) -> list[Cell]:
    """Every run of the table, seed by seed, so that an interrupted table has something in each row.

    Raises ``InputError`` for settings that training would refuse.
    """
    synonyms = {}
    if options.synonyms:
        synonyms = read_synonyms(options.synonyms)
    cells = []
    for seed in options.seeds:
        for row in TABLES[options.table]:
            lacks_data = row.options in NEEDED_DATA and not options.data
            if lacks_data or (row.augment == SYNONYMS and not options.synonyms):
                continue
            runs = Path(options.out or f"runs/ablation/{options.table}")
            folder = runs / f"{folder_name(row.name)}-seed{seed}"
            arguments = [*row.options.split(), *row.flags.split()]
            arguments += ["--model", options.model, "--seed", str(seed)]
            arguments += ["--out", str(folder), "--overwrite"]
            if row.options in NEEDED_DATA:
                arguments += ["--data", options.data]
            for name in ("limit", "epochs", "max_steps"):
                if getattr(options, name) is not None:
                    arguments += ["--" + name.replace("_", "-"), getattr(options, name)]
            parse([*arguments, *train_flags])  # raises now what training would raise after hours
            loss = row.loss() if row.loss else None
            if row.augment:
                loss = Augmented(row.augment, seed, synonyms)
            cells.append(Cell(row, seed, folder, [*arguments, *train_flags], loss))
    if not cells:
        first = TABLES[options.table][0]
        raise InputError(f"{options.table} needs --data FILE: {NEEDED_DATA[first.options]}")
    return cells


def folder_name(row: str) -> str:
    """A name for every file system: ``u,v,|u-v|`` becomes ``u_v_u-v``, ``u*v`` becomes ``uxv``."""
    return row.translate(str.maketrans({"|": "", "*": "x", ",": "_", " ": "-", ":": "-"}))


def is_done(cell: Cell, overwrite: bool) -> bool:
    """Whether the cell has its results.

    ``InputError`` if they are of other settings, unless ``overwrite``.
    """
    if not (cell.folder / RESULTS).is_file():
        return False
    found = read_config(cell.folder / RUN_CONFIG)
    wanted = asdict(parse(cell.arguments))
    for name, value in wanted.items():
        if name in ("out", "overwrite", "threads", "device") or found[name] == value:
            continue
        if overwrite:
            return False
        raise InputError(
            f"{cell.folder} was run with {name} {found[name]} instead of {value}: choose another "
            "--out, or --overwrite to replace it"
        )
    return True


def dev_scores(cell: Cell) -> tuple[float, float]:
    """The dev score x 100 before training and at its end."""
    dev = []
    for line in (cell.folder / RUN_LOG).read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if "dev" in entry:
            dev.append(entry["dev"])
    return 100 * dev[0]["spearman"], 100 * dev[-1]["spearman"]


def run_cells(cells: list[Cell], overwrite: bool) -> set[Path]:
    """Train the cells that are not done; return the folders of all that are.

    A failed cell does not end the table.
    """
    done = {cell.folder for cell in cells if is_done(cell, overwrite)}
    say(f"{len(done)} of {len(cells)} cells are already done")
    for i, cell in enumerate(cells, 1):
        if cell.folder in done:
            continue
        about = f"cell {i} of {len(cells)}: {cell.row.name}, seed {cell.seed}"
        say(about)
        try:
            with redirect_stdout(io.StringIO()):  # hide the table that training prints
                train.main(cell.arguments, cell.loss)
        except Exception as error:  # the other cells may still succeed
            say(f"{about} failed: {type(error).__name__}: {error}")
            continue
        before, after = dev_scores(cell)
        say(f"{before:.2f} -> {after:.2f}\n")
        shutil.rmtree(cell.folder / MODEL, ignore_errors=True)  # the table needs numbers
        done.add(cell.folder)
    return done


def summarize(cells: list[Cell], done: set[Path]) -> list[dict]:
    """Per row, x 100: its seeds' scores, their mean and deviation, and the published score."""
    summaries = []
    for row in dict.fromkeys(cell.row for cell in cells):
        before = []
        scores = {}
        for cell in cells:
            if cell.row == row and cell.folder in done:
                untrained, scores[cell.seed] = dev_scores(cell)
                before.append(untrained)
        summary = {"name": row.name, "published": row.published, "seeds": scores}
        if scores:
            summary["before"] = mean(before)
            summary["mean"] = mean(scores.values())
            summary["sd"] = stdev(scores.values()) if len(scores) > 1 else None
        summaries.append(summary)
    return summaries


def markdown(table: str, summaries: list[dict]) -> str:
    """The summaries as a Markdown table."""
    lines = [
        f"| {table} | before | minisbert | min..max | seeds | published |",
        "|---|---|---|---|---|---|",
    ]
    for row in summaries:
        name = row["name"].replace("|", r"\|")
        before = ""
        score = "no result"
        spread = ""
        scores = list(row["seeds"].values())
        if scores:
            before = f"{row['before']:.2f}"
            score = f"{row['mean']:.2f}"
            spread = f"{min(scores):.2f}..{max(scores):.2f}"
        if len(scores) > 1:
            score += f" ± {row['sd']:.2f}"
        lines.append(
            f"| `{name}` | {before} | {score} | {spread} | {len(scores)} | {row['published']:.2f} |"
        )
    return "\n".join(lines)


def seed_list(text: str) -> list[int]:
    """An argparse type: ``42,43,44``."""
    return [int(part) for part in text.split(",")]


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks.ablation", description=__doc__, formatter_class=layout
    )
    parser.add_argument("table", choices=TABLES, metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="NLI rows for concat and half of pooling, else plain sentences",
    )
    parser.add_argument(
        "--synonyms", metavar="FILE", help="for augmentation: lines of words with one meaning"
    )
    parser.add_argument(
        "--model", default="all-MiniLM-L6-v2", help="name or folder (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=seed_list, default=[42, 43, 44], help="default: 42,43,44")
    parser.add_argument("--limit", metavar="ROWS", help="read only the first ROWS training rows")
    parser.add_argument(
        "--epochs", help="default: from the recipe, see minisbert train --recipe list"
    )
    parser.add_argument("--max-steps", metavar="STEPS", help="stop each run after STEPS steps")
    parser.add_argument(
        "--out", metavar="FOLDER", help="folder of the runs (default: runs/ablation/TABLE)"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace cells that were run with other settings"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object at full precision"
    )
    options = parser.parse_args(arguments[:cut])
    cells = make_cells(options, arguments[cut + 1 :])
    done = run_cells(cells, options.overwrite)
    source = PAPERS[options.table]
    summaries = summarize(cells, done)
    if options.json:
        result = {"table": options.table, "model": options.model, "source": source}
        print(json.dumps(result | {"rows": summaries}))
    else:
        about = "before and after training: mean ± sd over seeds"
        print(f"Spearman x 100 on dev, {options.model}, {about}\n")
        print(markdown(options.table, summaries))
        print(f"\npublished: {source}")
    if len(done) < len(cells):
        failed = len(cells) - len(done)
        raise InputError(
            f"{failed} of {len(cells)} cells failed; run the same command to retry them"
        )


if __name__ == "__main__":
    run_command(main)
