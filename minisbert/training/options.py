"""The settings of a training run: the options of ``minisbert train``, and the keys of config.json.

This file imports no torch, so that ``--help`` answers at once.
"""

import argparse
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from minisbert.core import InputError, read_json
from minisbert.system.console import Parser, bounded, command_parser, score_scale
from minisbert.system.reading import reading
from minisbert.training import MODEL, RESULTS, RUN_CONFIG, RUN_LOG, STATE
from minisbert.training.recipes import RECIPES

# What --help says of each loss: a row of its training data, and when to use it. Its class is in
# table.py.
LOSS_HELP = {
    "cosine": ("two texts, score", "cosine = people's score (default)"),
    "cosent": ("two texts, score", "cosines in the order of the scores"),
    "ranking": ("anchor, positive, negatives", "for search: find the positive"),
    "triplet": ("anchor, positive, negative", "the positive is closer, by a margin"),
    "simcse": ("text", "texts alone: dropout makes the pair"),
    "softmax": ("two texts, class", "classes from two vectors, as in NLI"),
    "mse": ("two texts, score", "the default of --head; needs it"),
    "binary": ("two texts, 0 or 1", "duplicates, relevance; needs --head"),
    "mlm": ("text", "guess hidden words: a new domain"),
    "distillation": ("text, or several", "learn from a model; needs --teacher"),
}
# What --help says of each head, which named_heads.py makes.
HEAD_HELP = {
    "cross-encoder": "the encoder reads both texts as one",
    "siamese": "a small network compares two vectors: |u - v|, u * v, u",
    "cross-attention": "the tokens of one text attend to those of the other",
    "concat": "one layer over u, v, |u - v|, as SBERT has it",
    "classifier": "the cross-encoder's as sentence-transformers saves it",
}
# The losses that train a head, those that train nothing else, and those whose formula compares the
# rows of a batch. The classes know it too, but importing them would import torch.
WITH_HEAD = ("mse", "binary", "ranking", "softmax")
NEED_HEAD = ("mse", "binary")
COMPARE_ROWS = ("cosent", "ranking", "simcse")

# Names that minisbert had before, and what to write instead.
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

    # These are set by recipes and have no option.
    from_nothing: str | None = None  # 3x256x6000: layers, width and words of a new model
    freeze_embeddings: bool = False
    projection: bool = False
    schedule: str = "linear"
    weight_decay: float = 0.0
    clip: float = 1.0


# The settings that do not decide the numbers of a run: they may differ when it is resumed.
MAY_DIFFER = ("resume", "overwrite", "out", "log_every", "save_every")

# -----------------------------------------------------------------------------
# the command line


def warmup_length(text: str) -> float:
    """Read a fraction of the steps, or from 1 on a whole number of steps."""
    read = bounded(float, 0)
    value = read(text)
    if value >= 1 and not value.is_integer():
        raise ValueError
    return value


def prefix_widths(text: str) -> str:
    """Check numbers of columns, each smaller than the one before: ``256,128,64``."""
    widths = [int(width) for width in text.split(",")]
    if widths != sorted(set(widths), reverse=True) or widths[-1] < 1:
        raise ValueError
    return ",".join(str(width) for width in widths)


# argparse shows the name of the function in its error.
warmup_length.__name__ = "fraction below 1 or whole number of steps"
prefix_widths.__name__ = "descending widths"


class Refused(argparse.Action):
    """An option that minisbert had before: an error that says what to write instead."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        if option_string == "--objective":
            new_words = OLD_OBJECTIVES.get(str(values), "--loss or --head")
            advice = f"it is {new_words} now"
        else:
            advice = OLD_OPTIONS[str(option_string)]
        written = str(option_string)
        if values is not None:
            written += f" {values}"
        raise InputError(f"{written}: {advice}")


EXAMPLES = """examples:
  minisbert train         # all-MiniLM-L6-v2 on the STS Benchmark
  minisbert train --loss ranking --data pairs.csv --epochs 4
  minisbert train --head siamese --epochs 2 --lr 5e-5 --head-lr 1e-3
  minisbert train --resume runs/pairs-ranking-all-MiniLM-L6-v2
  torchrun --nproc_per_node=2 -m minisbert train"""


def make_parser() -> Parser:
    """Return the parser. It returns the options that are on the command line, without defaults."""
    lines = ["losses, with what a row of their data holds:"]
    for name, (row, purpose) in LOSS_HELP.items():
        lines.append(f"  {name:<13}{row:<29}{purpose}")
    lines += ["", "heads, for pairs of texts:"]
    for name, purpose in HEAD_HELP.items():
        lines.append(f"  {name:<16} {purpose}")
    lines += ["", EXAMPLES]

    # An option that is absent must not override a recipe, so it has no default here.
    parser = command_parser(
        "train",
        "Fine-tune a sentence encoder, by default on the STS Benchmark.",
        usage="%(prog)s [options]",
        epilog="\n".join(lines),
        argument_default=argparse.SUPPRESS,
    )
    count = bounded(int, 1)
    rate = bounded(float, 0)

    add = parser.add_argument_group("model and loss").add_argument
    add("--loss", metavar="NAME", help="the formula, as listed below (default: cosine)")
    add("--head", metavar="NAME", help="put a head around the encoder, as listed below")
    add("--model", help="a folder, or a name on the Hub (default: all-MiniLM-L6-v2)")
    add("--pooling", metavar="P", help="overrides the model's: mean, cls, max, attention, pooler")
    add("--teacher", metavar="MODEL", help="learn its vectors, or a cross-encoder's scores")
    add("--student-layers", type=count, metavar="N", help="keep N layers of --model")
    add("--recipe", metavar="NAME", help="settings of a published run; list shows them all")

    add = parser.add_argument_group("data and output").add_argument
    add("--data", help="file, folder of datasets, stsb, snli, multinli or quora")
    add("--dev", metavar="FILE", help="chooses the best step: FILE, a share of --data, none")
    add("--test", metavar="FILE", help="scored before and after: FILE, a share of --data, none")
    add("--columns", metavar="A,B", help="the columns to read: texts, then score or class")
    add(
        "--scale",
        type=score_scale,
        metavar="S",
        help="highest score (default: 1, 5, 10 or 100, as it fits)",
    )
    add("--no-quotes", action="store_false", dest="quotes", help="quotation marks are text")
    add("--limit", type=count, metavar="ROWS", help="read only the first ROWS training rows")
    add("--retrieval", metavar="DIR", help="a folder in BEIR's layout; its nDCG@10 is dev")
    add("--max-length", type=count, metavar="N", help="cut texts to N tokens")
    add("--out", help="the run's folder (default: runs/DATA-LOSS-MODEL)")
    add("--overwrite", action="store_true", help="delete the run in that folder")
    add("--resume", metavar="RUN", help="continue a stopped run, to the same numbers")

    add = parser.add_argument_group("steps").add_argument
    add("--epochs", type=count, metavar="N", help="passes over the training rows (default: 1)")
    add("--max-steps", type=count, metavar="N", help="stop after N steps (default: all of them)")
    add("--batch-size", type=count, metavar="N", help="rows of a step (default: 32)")
    add("--micro-tokens", type=count, metavar="N", help="compute a batch in parts of N tokens")
    add("--lr", type=rate, help="peak learning rate (default: 2e-5)")
    add("--head-lr", type=rate, help="peak learning rate of the head (default: --lr)")
    add("--warmup", type=warmup_length, help="share of the steps, or their number (default: 0.1)")
    add(
        "--dropout",
        type=bounded(float, 0, 1),
        metavar="P",
        help="overrides the model's own rate",
    )
    temperature = bounded(float, 1e-4)
    add("--temperature", type=temperature, metavar="T", help="of in-batch losses (default: 0.05)")
    add("--matryoshka", type=prefix_widths, metavar="N,N", help="also train the first N columns")
    add("--eval-every", type=count, metavar="N", help="score dev every N steps, not every epoch")
    add("--patience", type=count, metavar="N", help="stop after N scores without a better one")
    add("--seed", type=bounded(int, 0, 2**64), help="of dropout and batches (default: 42)")

    add = parser.add_argument_group("the machine").add_argument
    add("--device", help="auto, cpu, cuda or mps (default: auto)")
    dtypes = ("auto", "float32", "bfloat16")
    add("--dtype", choices=dtypes, metavar="TYPE", help="of products: auto, float32, bfloat16")
    add("--threads", type=bounded(int, 1, 1025), metavar="N", help="CPU threads")
    add("--save-every", type=count, metavar="N", help="save a state every N steps (default: 100)")
    add("--log-every", type=count, metavar="N", help="log every N steps (default: 10)")

    # Old options are known, so that each is refused with what to write instead.
    parser.add_argument("--objective", action=Refused, nargs="?", help=argparse.SUPPRESS)
    for option in OLD_OPTIONS:
        parser.add_argument(option, action=Refused, nargs="?", help=argparse.SUPPRESS)
    return parser


def parse(arguments: list[str] | None = None) -> Settings:
    """Return the settings of a run.

    The command line's come first, then a recipe's or a resumed run's, then the defaults. Raises
    ``InputError`` for an unknown recipe, options that exclude each other, and a run that cannot be
    resumed to the same numbers.
    """
    explicit = vars(make_parser().parse_args(arguments))
    if "resume" in explicit:
        return resumed(explicit, Path(explicit["resume"]))

    preset: dict[str, Any] = {}
    recipe = explicit.get("recipe")
    if recipe is not None and recipe != "list":
        preset = recipe_settings(recipe)
    # A teacher or a head without --loss implies the loss.
    if "loss" not in preset:
        if "teacher" in explicit:
            preset["loss"] = "distillation"
        elif "head" in explicit:
            preset["loss"] = "mse"

    values = preset | explicit  # the command line overrides the preset
    settings = Settings(**values)
    check(settings, explicit)
    return settings


def check(settings: Settings, explicit: dict[str, Any]) -> None:
    """Raise ``InputError`` for settings that do not go together."""
    check_names(settings)
    check_head(settings)
    check_teacher(settings)
    check_vector_options(settings, explicit)
    compares_rows = settings.loss in COMPARE_ROWS and not settings.head
    if settings.batch_size < 2 and compares_rows:
        raise InputError(
            f"--loss {settings.loss} compares the rows of a batch: --batch-size must be at least 2"
        )
    if settings.patience and settings.dev == "none" and not settings.retrieval:
        raise InputError("--patience needs dev rows, and --dev none has none")
    if "" in (settings.data, settings.dev, settings.test):
        raise InputError("--data, --dev or --test is empty")


def check_names(settings: Settings) -> None:
    """Raise ``InputError`` for an unknown loss or head; an old name is answered with the new."""
    loss = settings.loss
    if loss not in LOSS_HELP:
        advice = f"choose from {', '.join(LOSS_HELP)}"
        if loss in OLD_OBJECTIVES:
            advice = f"it is {OLD_OBJECTIVES[loss]} now"
        raise InputError(f"--loss {loss}: {advice}")
    if settings.head is not None and settings.head not in HEAD_HELP:
        raise InputError(f"--head {settings.head}: choose from {', '.join(HEAD_HELP)}")


def check_head(settings: Settings) -> None:
    """Raise ``InputError`` for a head that the loss does not train, or lacks."""
    loss = settings.loss
    if settings.head and loss not in WITH_HEAD:
        raise InputError(
            f"--loss {loss} trains the encoder alone, without --head {settings.head}; "
            f"a head takes {', '.join(WITH_HEAD)}"
        )
    if settings.head is None and loss in NEED_HEAD:
        raise InputError(f"--loss {loss} needs --head, one of {', '.join(HEAD_HELP)}")


def check_teacher(settings: Settings) -> None:
    """Raise ``InputError`` unless distillation has a teacher, and nothing else has one."""
    loss = settings.loss
    if settings.teacher and loss != "distillation":
        raise InputError(f"--teacher is for --loss distillation, not {loss}")
    if loss == "distillation" and not settings.teacher:
        raise InputError("--loss distillation needs --teacher MODEL")
    if settings.student_layers and not settings.teacher:
        raise InputError("--student-layers is for a student: it needs --teacher")


def check_vector_options(settings: Settings, explicit: dict[str, Any]) -> None:
    """Raise ``InputError`` for --temperature and --matryoshka where the loss has neither."""
    loss = settings.loss
    if "temperature" in explicit and (settings.head or loss not in COMPARE_ROWS):
        losses = ", ".join(COMPARE_ROWS)
        raise InputError(f"--temperature is for --loss {losses}, without a head")
    if not settings.matryoshka:
        return
    if settings.head or loss not in (*COMPARE_ROWS, "cosine", "triplet"):
        raise InputError(f"--matryoshka is for the vectors of an encoder, not for --loss {loss}")
    # The training would make prefixes good behind the projection, but what is saved and cut are
    # the vectors in front of it.
    if settings.projection:
        raise InputError(
            f"--matryoshka does not go with the projection of --recipe {settings.recipe}"
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
    defaults = asdict(Settings())
    if settings.recipe:
        defaults |= recipe_settings(settings.recipe)
    words = ["minisbert", "train"]
    for name, value in asdict(settings).items():
        if value == defaults[name] or name in MAY_DIFFER or value is None:
            continue
        option = option_of(name)
        if value is False:
            words.append(option.replace("--", "--no-", 1))
        elif value is True:
            words.append(option)
        else:
            words += [option, str(value)]
    return words


def option_of(name: str) -> str:
    """Return the option of a setting: ``--batch-size`` of ``batch_size``."""
    return "--" + name.replace("_", "-")


def resumed(explicit: dict[str, Any], run: Path) -> Settings:
    """Return the settings of a stopped run.

    Raises ``InputError`` if it is finished, or if an option would change its result.
    """
    check_stopped(explicit, run)
    config = read_config(run / RUN_CONFIG)
    if not (run / f"{STATE}.json").is_file():
        raise InputError(
            f"{run} was stopped before its state was saved (--save-every): start it again, "
            "--overwrite"
        )
    check_unchanged(explicit, config, run)
    values = config | explicit
    settings = Settings(**values)
    settings.out = str(run)
    settings.threads = None  # the state has the number
    return settings


def check_stopped(explicit: dict[str, Any], run: Path) -> None:
    """Raise ``InputError`` unless a folder is that of a run which can be continued."""
    if (run / RESULTS).is_file():
        where = f"its model is in {run / MODEL}, its scores are in {RESULTS}"
        raise InputError(f"{run} is finished: {where}")
    if run.is_dir() and not (run / RUN_LOG).is_file():
        raise InputError(f"{run} is not the folder of a run (it has no {RUN_LOG})")
    if explicit.get("overwrite"):
        raise InputError("--resume continues a run, --overwrite begins it anew: give one of them")


def check_unchanged(explicit: dict[str, Any], config: dict[str, Any], run: Path) -> None:
    """Raise ``InputError`` for an option that is not the one that a run was started with."""
    for name, value in explicit.items():
        if name == "out":
            before = run
            same = os.path.realpath(value) == os.path.realpath(run)
        else:
            before = config[name]
            same = value == before or name in MAY_DIFFER
        if not same:
            how = "without it"
            if before is not None:
                how = f"with {before}"
            raise InputError(f"{option_of(name)} {value}: {run} was started {how} and continues so")


def read_config(path: Path) -> dict[str, Any]:
    """Read the settings in a run's ``config.json``; ``InputError`` for one of another type."""
    stored = read_json(path)
    config = {}
    with reading(path):
        for item in fields(Settings):
            config[item.name] = stored[item.name]
    for name, default in asdict(Settings()).items():
        if default is not None and not has_type_of(config[name], default):
            raise InputError(f"{path}: {name} is {config[name]!r}")
    return config


def has_type_of(value: Any, default: Any) -> bool:
    """Return whether a setting has the type of its default; 1 may stand for 1.0."""
    if type(default) is float:
        return type(value) in (float, int)
    return type(value) is type(default)
