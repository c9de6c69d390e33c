"""The settings of a training run: the options of ``minisbert train``, and the keys of config.json.

This file imports no torch, so that ``--help`` answers at once.
"""

import argparse
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from minisbert.core import InputError, read_json
from minisbert.system.console import Parser, bounded, check_usage, command_parser
from minisbert.system.reading import reading
from minisbert.training import MODEL, RESULTS, RUN_CONFIG, RUN_LOG, STATE
from minisbert.training.recipes import RECIPES

# what a row of the training data is, and when to use the loss; the classes are in table.py
LOSSES = {
    "cosine": ("two texts, score", "the cosine is the score that people gave (the default)"),
    "cosent": ("two texts, score", "the cosines of a batch have the order of its scores"),
    "ranking": ("anchor, positive, negatives", "find the positive in the batch: for search"),
    "triplet": ("anchor, positive, negative", "the positive is closer, by a margin"),
    "simcse": ("text", "texts alone: dropout makes the pair"),
    "softmax": ("two texts, class", "tell classes from two vectors, as SBERT does NLI"),
    "mse": ("two texts, score", "a head's score is that of people; needs --head (its default)"),
    "binary": ("two texts, 0 or 1", "duplicates, or relevant documents; needs --head"),
    "mlm": ("text", "guess hidden words: a new domain"),
    "distillation": ("text(s)", "learn a teacher's vectors or scores; needs --teacher"),
}
HEADS = {
    "cross-encoder": "the encoder reads both texts as one",
    "siamese": "a small network compares two vectors: |u - v|, u * v, u",
    "cross-attention": "the tokens of one text attend to those of the other",
    "concat": "one layer over u, v, |u - v|, as SBERT has it",
    "classifier": "the cross-encoder's as sentence-transformers saves it",
}
WITH_HEAD = ("mse", "binary", "ranking", "softmax")
NEED_HEAD = ("mse", "binary")

# names that minisbert had before, and what to write instead
OLD_OBJECTIVES = {
    "cosine": "--loss cosine",
    "cosent": "--loss cosent",
    "cross-encoder": "--head cross-encoder",
    "siamese": "--head siamese",
    "cross-attention": "--head cross-attention",
    "softmax": "--loss softmax --head concat",
    "binary": "--loss binary --head concat",
    "cross-encoder-binary": "--loss binary --head cross-encoder",
    "cross-encoder-ranking": "--loss ranking --head cross-encoder",
    "triplet": "--loss triplet",
    "mnr": "--loss ranking",
    "simcse": "--loss simcse",
    "simcse-supervised": "--loss ranking",
    "distillation": "--teacher MODEL",
    "mlm": "--loss mlm",
}
OLD_OPTIONS = {
    "--pooler-head": "it is --head classifier now",
    "--graphs": "steps are not replayed as CUDA graphs any more",
    "--help-all": "--help shows all options",
    "--from-nothing": "--recipe from-nothing trains a new model; from Python, new_model makes one",
    "--symmetric": "from Python: train(..., loss=Ranking(symmetric=True))",
    "--projection": "from Python: train(..., loss=SimCSE(projection=True))",
    "--margin": "from Python: train(..., loss=Triplet(margin=0.5))",
    "--schedule": 'from Python: train(..., schedule="cosine")',
    "--weight-decay": "from Python: train(..., weight_decay=0.01)",
    "--clip": "from Python: train(..., clip=0.5)",
    "--freeze-embeddings": "from Python: encoder.bert.embeddings.requires_grad_(False)",
}

# -----------------------------------------------------------------------------
# the settings


@dataclass
class Settings:
    """All settings of a run; ``make_parser`` says what each means."""

    recipe: str | None = None
    loss: str = "cosine"
    head: str | None = None
    model: str = "all-MiniLM-L6-v2"
    pooling: str | None = None
    data: str | None = None
    dev: str | None = None
    test: str | None = None
    retrieval: str | None = None
    columns: str | None = None
    scale: float | None = None
    quotes: bool = True
    limit: int | None = None
    max_length: int | None = None
    out: str | None = None
    overwrite: bool = False
    resume: str | None = None

    epochs: int = 1
    max_steps: int | None = None
    eval_every: int | None = None
    patience: int | None = None

    batch_size: int = 32
    micro_tokens: int | None = None
    lr: float = 2e-5
    head_lr: float | None = None
    warmup: float = 0.1
    dropout: float | None = None
    seed: int = 42

    temperature: float = 0.05
    matryoshka: str | None = None
    teacher: str | None = None
    student_layers: int | None = None

    save_every: int = 100
    log_every: int = 10
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None

    # set by recipes, and without an option
    from_nothing: str | None = None  # 3x256x6000: layers, width and words of a new model
    freeze_embeddings: bool = False
    projection: bool = False
    schedule: str = "linear"
    weight_decay: float = 0.0
    clip: float = 1.0


# what may differ in a resumed run
FREE = ("resume", "overwrite", "out", "log_every", "save_every")

# -----------------------------------------------------------------------------
# the command line


def warmup_length(text: str) -> float:
    """Read a fraction of the steps, or from 1 on a whole number of steps."""
    value = bounded(float, 0)(text)
    if value >= 1 and not value.is_integer():
        raise ValueError
    return value


def prefix_widths(text: str) -> str:
    """Check numbers of columns, each smaller than the one before: ``256,128,64``."""
    widths = list(map(int, text.split(",")))
    if widths != sorted(set(widths), reverse=True) or widths[-1] < 1:
        raise ValueError
    return ",".join(map(str, widths))


# argparse names the type in its message
warmup_length.__name__ = "fraction below 1 or whole number of steps"
prefix_widths.__name__ = "descending widths"


class Refused(argparse.Action):
    """An option of before: an error that says what to write instead."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        if option_string == "--objective":
            advice = f"it is {OLD_OBJECTIVES.get(str(values), '--loss or --head')} now"
        else:
            advice = OLD_OPTIONS[str(option_string)]
        value = "" if values in (None, []) else f" {values}"
        raise InputError(f"{option_string}{value}: {advice}")


EXAMPLES = """examples:
  minisbert train                                            all-MiniLM-L6-v2 on the STS Benchmark
  minisbert train --loss ranking --data pairs.csv --epochs 4
  minisbert train --head siamese --epochs 2 --lr 5e-5 --head-lr 1e-3
  minisbert train --resume runs/ranking-all-MiniLM-L6-v2
  torchrun --nproc_per_node=2 -m minisbert train"""


def make_parser(prog: str = "minisbert train") -> Parser:
    """Return the parser. It returns the options that are on the command line, without defaults."""
    lines = ["losses, with what a row of their data holds:"]
    for name, (rows, purpose) in LOSSES.items():
        lines.append(f"  {name:<13} {rows:<28} {purpose}")
    lines += ["", "heads, for pairs of texts:"]
    for name, purpose in HEADS.items():
        lines.append(f"  {name:<16} {purpose}")
    # an option that is absent must not override a recipe, so it has no default here
    parser = command_parser(
        "train",
        "Fine-tune a sentence encoder, by default on the STS Benchmark.",
        usage="%(prog)s [options]",
        epilog="\n".join([*lines, "", EXAMPLES]),
        argument_default=argparse.SUPPRESS,
    )
    parser.prog = prog
    count = bounded(int, 1)
    rate = bounded(float, 0)

    add = parser.add_argument_group("model and loss").add_argument
    add("--loss", metavar="NAME", help="the formula, as listed below (default: cosine)")
    add("--head", metavar="NAME", help="put a head around the encoder, as listed below")
    add("--model", help="name, folder, or owner/name on the Hub (default: all-MiniLM-L6-v2)")
    add("--pooling", help="override the model's: mean, cls, max, attention, pooler")
    add("--teacher", metavar="MODEL", help="learn its vectors, or a cross-encoder's scores")
    add("--student-layers", type=count, metavar="N", help="keep N layers of --model")
    add("--recipe", metavar="NAME", help="settings of a published run; list shows them all")

    add = parser.add_argument_group("data and output").add_argument
    add("--data", help="a file, a folder of datasets, or stsb, snli, multinli, quora")
    add("--dev", metavar="FILE", help="chooses the best step: FILE, a share of --data, none")
    add("--test", metavar="FILE", help="scored before and after: FILE, a share of --data, none")
    add("--columns", metavar="A,B", help="the columns to read: texts, then score or class")
    add("--scale", type=float, metavar="S", help="the highest score (default: 1, 5, 10 or 100)")
    add("--no-quotes", action="store_false", dest="quotes", help="quotation marks are text")
    add("--limit", type=count, metavar="ROWS", help="read only the first ROWS training rows")
    add("--retrieval", metavar="DIR", help="a folder in BEIR's layout; its nDCG@10 is dev")
    add("--max-length", type=count, metavar="N", help="cut texts to N tokens")
    add("--out", help="folder of the run (default: in runs/, after the loss and the model)")
    add("--overwrite", action="store_true", help="delete the run in that folder")
    add("--resume", metavar="RUN", help="continue a stopped run, to the same numbers")

    add = parser.add_argument_group("steps").add_argument
    add("--epochs", type=count, help="passes over the training rows (default: 1)")
    add("--max-steps", type=count, metavar="N", help="stop after N steps (default: all of them)")
    add("--batch-size", type=count, help="rows of a step (default: 32)")
    add("--micro-tokens", type=count, metavar="N", help="compute a batch in parts of N tokens")
    add("--lr", type=rate, help="peak learning rate (default: 2e-5)")
    add("--head-lr", type=rate, help="peak learning rate of the head (default: --lr)")
    add("--warmup", type=warmup_length, help="share of the steps, or steps (default: 0.1)")
    add("--dropout", type=bounded(float, 0, 1), metavar="P", help="of the encoder")
    add("--temperature", type=bounded(float, 1e-4), help="of in-batch losses (default: 0.05)")
    add("--matryoshka", type=prefix_widths, metavar="N,N", help="also train the first N columns")
    add("--eval-every", type=count, metavar="N", help="score dev every N steps (default: epochs)")
    add("--patience", type=count, metavar="N", help="stop after N scores without a better one")
    add("--seed", type=bounded(int, 0, 2**64), help="of dropout and batches (default: 42)")

    add = parser.add_argument_group("the machine").add_argument
    add("--device", help="auto, cpu, cuda or mps (default: auto)")
    add("--dtype", choices=("auto", "float32", "bfloat16"), help="of matrix products")
    add("--threads", type=bounded(int, 1, 1025), metavar="N", help="CPU threads")
    add("--save-every", type=count, metavar="N", help="save the state every N steps (default: 100)")
    add("--log-every", type=count, metavar="N", help="log every N steps (default: 10)")

    for option in ("--objective", *OLD_OPTIONS):
        parser.add_argument(option, action=Refused, nargs="?", help=argparse.SUPPRESS)
    return parser


def parse(arguments: list[str] | None = None, prog: str = "minisbert train") -> Settings:
    """Return the settings of a run: the command line's, then a recipe's or a resumed run's, then
    the defaults.

    Raises ``InputError`` for an unknown recipe, options that exclude each other, and a run that
    cannot be resumed to the same numbers.
    """
    explicit = vars(make_parser(prog).parse_args(arguments))
    if "resume" in explicit:
        return resumed(explicit, Path(explicit["resume"]))
    preset: dict[str, Any] = {}
    if explicit.get("recipe", "list") != "list":
        preset = recipe_settings(explicit["recipe"])
    # what is not said follows from what is
    if "teacher" in explicit and "loss" not in preset:
        preset["loss"] = "distillation"
    elif "head" in explicit and "loss" not in preset:
        preset["loss"] = "mse"
    settings = Settings(**preset | explicit)
    check(settings, explicit)
    return settings


def check(settings: Settings, explicit: dict[str, Any]) -> None:
    """Raise ``InputError`` for settings that do not go together."""
    loss = settings.loss
    if loss not in LOSSES:
        advice = f"choose from {', '.join(LOSSES)}"
        if loss in OLD_OBJECTIVES:
            advice = f"it is {OLD_OBJECTIVES[loss]} now"
        raise InputError(f"--loss {loss}: {advice}")
    if settings.head is not None and settings.head not in HEADS:
        raise InputError(f"--head {settings.head}: choose from {', '.join(HEADS)}")
    heads = ", ".join(HEADS)
    comparing = ("cosent", "ranking", "simcse")
    check_usage(
        (
            settings.head and loss not in WITH_HEAD,
            f"--loss {loss} trains the encoder alone, without --head {settings.head}; "
            f"a head takes {', '.join(WITH_HEAD)}",
        ),
        (
            settings.head is None and loss in NEED_HEAD,
            f"--loss {loss} needs --head, one of {heads}",
        ),
        (
            settings.teacher and loss != "distillation",
            f"--teacher is for --loss distillation, not {loss}",
        ),
        (
            loss == "distillation" and not settings.teacher,
            "--loss distillation needs --teacher MODEL",
        ),
        (
            settings.student_layers and not settings.teacher,
            "--student-layers is for a student: it needs --teacher",
        ),
        (
            "temperature" in explicit and (settings.head or loss not in comparing),
            f"--temperature is for --loss {', '.join(comparing)}, without a head",
        ),
        (
            settings.matryoshka
            and (settings.head or loss not in (*comparing, "cosine", "triplet")),
            f"--matryoshka is for the vectors of an encoder, not for --loss {loss}",
        ),
        (
            settings.matryoshka and settings.projection,
            # the saved vectors would be cut, but others, after the projection, be trained
            f"--matryoshka does not go with the projection of --recipe {settings.recipe}",
        ),
        (
            settings.batch_size < 2 and not settings.head and loss in comparing,
            f"--loss {loss} compares the rows of a batch: --batch-size must be at least 2",
        ),
        (
            settings.patience and settings.dev == "none" and not settings.retrieval,
            "--patience needs dev rows, and --dev none has none",
        ),
        ("" in (settings.data, settings.dev, settings.test), "--data, --dev or --test is empty"),
    )


# -----------------------------------------------------------------------------
# recipes and resumed runs


def recipe_settings(name: str) -> dict[str, Any]:
    """Return the settings of a recipe."""
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name!r}; choose from {', '.join(RECIPES)}")
    return dict(RECIPES[name].settings)


def command_of(settings: Settings) -> list[str]:
    """Write the command of a run: the options that decide its result and are not the default."""
    usual = asdict(Settings())
    if settings.recipe:
        usual |= recipe_settings(settings.recipe)
    words = ["minisbert", "train"]
    for name, value in asdict(settings).items():
        if value == usual[name] or name in FREE or value is None:
            continue
        option = "--" + name.replace("_", "-")
        if value is False:
            words.append(option.replace("--", "--no-", 1))
        elif value is True:
            words.append(option)
        else:
            words += [option, str(value)]
    return words


def resumed(explicit: dict[str, Any], run: Path) -> Settings:
    """Return the settings of a stopped run; ``InputError`` if it is finished, or if an option would
    change its result.
    """
    if (run / RESULTS).is_file():
        where = f"its model is in {run / MODEL}, its scores are in {RESULTS}"
        raise InputError(f"{run} is finished: {where}")
    check_usage(
        (
            run.is_dir() and not (run / RUN_LOG).is_file(),
            f"{run} is not the folder of a run (it has no {RUN_LOG})",
        ),
        (
            explicit.get("overwrite"),
            "--resume continues a run, --overwrite begins it anew: give one of them",
        ),
    )
    config = read_config(run / RUN_CONFIG)
    if not (run / f"{STATE}.json").is_file():
        raise InputError(
            f"{run} was stopped before its state was saved (--save-every): start it again, "
            "--overwrite"
        )
    for name, value in explicit.items():
        before = config[name]
        same = value == before or name in FREE
        if name == "out":
            same = os.path.realpath(value) == os.path.realpath(run)
            before = run
        if not same:
            option = "--" + name.replace("_", "-")
            how = f"with {before}" if before is not None else "without it"
            raise InputError(f"{option} {value}: {run} was started {how} and continues so")
    settings = Settings(**config | explicit)
    settings.out = str(run)
    settings.threads = None  # the number in the state
    return settings


def read_config(path: Path) -> dict[str, Any]:
    """Read the settings in a run's ``config.json``; ``InputError`` names one that cannot be."""
    config = read_json(path)
    found = {}
    with reading(path):
        for item in fields(Settings):
            found[item.name] = config[item.name]
    for name, value in asdict(Settings()).items():
        kind = type(found[name])
        if (
            value is not None
            and kind is not type(value)
            and not (kind is int and type(value) is float)
        ):
            raise InputError(f"{path}: {name} is {found[name]!r}")
    return found
