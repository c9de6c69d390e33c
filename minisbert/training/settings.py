"""The settings of a training run: each is an option of ``minisbert train`` and a key of the run's
config.json.

``OBJECTIVES`` is the table of what can be trained; which options an objective reads follows from
its columns. The second half reads settings: the command line's, those of a recipe, and those of a
run that is resumed.
"""

import argparse
import os
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from minisbert.core import InputError
from minisbert.system.console import Parser, bounded, check_usage, command_parser, score_scale
from minisbert.system.reading import read_json, reading
from minisbert.training import MODEL, RESULTS, RUN_CONFIG, RUN_LOG, STATE

# ----------------------------------------------------------------------------------------- the
# objectives


@dataclass(frozen=True)
class Traits:
    """A row of ``OBJECTIVES``."""

    maker: str  # the file in objectives/ and the class, or a function that chooses one
    rows: str  # what a training row is: scores, labels, candidates, triplets or texts
    # what the loss reads: the pooled vector of each text, the states of a pair's tokens, or those
    # at masked words
    reads: str = "pooled"
    head: str = ""  # joint: over one input of both texts; cross, siamese, concat: over two
    # what a loss compares the rows of a batch for: the order of their scores, or as negatives of
    # each other
    in_batch: str = ""
    nested: bool = (
        False  # it compares vectors of any width, so it also works on their first columns
    )
    taught: bool = False  # it has a teacher


OBJECTIVES = {
    "cosine": Traits("encoders:CosineRegression", "scores", nested=True),
    "cosent": Traits("encoders:CoSENT", "scores", in_batch="order", nested=True),
    "cross-encoder": Traits("pairs:ScoreRegression", "scores", reads="tokens", head="joint"),
    "siamese": Traits("pairs:ScoreRegression", "scores", head="siamese"),
    "cross-attention": Traits("pairs:ScoreRegression", "scores", reads="tokens", head="cross"),
    "softmax": Traits("pairs:Softmax", "labels", head="concat"),
    "binary": Traits("pairs:Duplicates", "labels", head="concat"),
    "cross-encoder-binary": Traits("pairs:BinaryReranker", "labels", reads="tokens", head="joint"),
    "cross-encoder-ranking": Traits(
        "pairs:RankingReranker", "candidates", reads="tokens", head="joint"
    ),
    "triplet": Traits("encoders:TripletMargin", "triplets", nested=True),
    "mnr": Traits("encoders:Ranking", "triplets", in_batch="negatives", nested=True),
    "simcse": Traits("encoders:SimCSE", "texts", in_batch="negatives", nested=True),
    "simcse-supervised": Traits(
        "encoders:SupervisedSimCSE", "triplets", in_batch="negatives", nested=True
    ),
    "distillation": Traits("encoders:distillation", "texts", taught=True),
    "mlm": Traits("masked:MaskedWords", "texts", reads="masked"),
}

PURPOSES = {  # in --help
    "cosine": "the cosine of two vectors is the score of the pair",
    "cosent": "the cosines of a batch have the order of its scores",
    "cross-encoder": "score a pair that the model reads as one text",
    "siamese": "score a pair from two vectors, by a small network",
    "cross-attention": "score a pair from attention between two texts",
    "softmax": "classify pairs from two vectors, as SBERT does NLI",
    "binary": "tell duplicates from other pairs, from two vectors",
    "cross-encoder-binary": "tell relevant from irrelevant, as a reranker",
    "cross-encoder-ranking": "put the positive before its negatives",
    "triplet": "the positive is closer than the negative, by a margin",
    "mnr": "find the positive among a batch's: for search, and pairs alone will do",
    "simcse": "texts alone: dropout makes the pair",
    "simcse-supervised": "mnr as SimCSE trains it on NLI",
    "distillation": "learn a teacher's vectors or scores",
    "mlm": "guess hidden words: a new domain, or a model from nothing",
}


def where(condition: Callable[[Traits], Any]) -> tuple[str, ...]:
    """Return the objectives whose row of the table meets a condition."""
    return tuple(name for name, traits in OBJECTIVES.items() if condition(traits))


POOLED = where(lambda row: row.reads == "pooled")
# labels have no scale; the others have scores, or are evaluated on scored pairs
SCALED = where(lambda row: row.rows in ("scores", "triplets", "texts"))
JOINT = where(lambda row: row.head == "joint")
RANKING = where(lambda row: row.reads == "pooled" and row.in_batch == "negatives")
SINGLE = where(lambda row: row.reads != "tokens")  # vectors of single texts, which a search needs
NESTED, TAUGHT = where(lambda row: row.nested), where(lambda row: row.taught)
COMPARING = where(lambda row: row.in_batch and row.nested)

# ----------------------------------------------------------- types of options: a text to a value,
# for argparse


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


def model_size(text: str) -> str:
    """Check ``3x256x6000``: layers, width and size of the vocabulary; the width is a multiple of
    64.
    """
    layers, width, words = map(int, text.split("x"))
    if layers < 1 or width < 1 or width % 64 or words < 100:
        raise ValueError
    return f"{layers}x{width}x{words}"


# argparse names the type in its message
warmup_length.__name__ = "fraction below 1 or whole number of steps"
prefix_widths.__name__ = "descending widths"
model_size.__name__ = "LAYERSxWIDTHxWORDS, the width a multiple of 64"
COUNT = bounded(int, 1)
RATE, POSITIVE, FRACTION = bounded(float, 0), bounded(float, 1e-4), bounded(float, 0, 1)
THREADS = bounded(int, 1, 1025)
DTYPES = ("auto", "float32", "bfloat16")

# ------------------------------------------------------------------------------------------- the
# settings


def option(
    help: str,
    default: Any = None,
    read: Callable[[str], Any] = str,
    metavar: str | None = None,
    only: Sequence[str] = tuple(OBJECTIVES),
    choices: Sequence[str] | None = None,
) -> Any:
    """Define a field that is also an option. ``read`` parses its text; ``only``: the objectives
    that read it.
    """
    about = {"help": help, "read": read, "metavar": metavar, "only": only, "choices": choices}
    return field(default=default, metadata=about)


GROUPS = {  # the first setting of each group of options, and the group's title
    "recipe": "objective, model, data and output",
    "epochs": "duration and evaluation",
    "batch_size": "training",
    "pooler_head": "heads, losses and teachers",
    "save_every": "more about the run",
    "schedule": "more about training",
    "symmetric": "more about losses between vectors",
}


@dataclass
class RunSettings:
    """All settings of a run."""

    recipe: str | None = option(
        "a named recipe, which other options override; list shows all", metavar="NAME"
    )
    objective: str = option(
        "as listed below (default: cosine)", "cosine", metavar="NAME", choices=tuple(OBJECTIVES)
    )
    model: str = option(
        "name, folder, or owner/name on the Hub (default: all-MiniLM-L6-v2)", "all-MiniLM-L6-v2"
    )
    pooling: str | None = option(
        "override the model's: mean, cls, max, attention, pooler", only=POOLED
    )
    data: str | None = option(
        "stsb, snli, multinli, quora or a file; NLI takes several: A,B (default: by objective)"
    )
    dev: str | None = option(
        "best checkpoint by: FILE, stsb, share of --data, none (default: 0.1, or stsb)",
        metavar="FILE",
    )
    test: str | None = option(
        "rows for the final scores, in the same ways (default: none, or stsb)", metavar="FILE"
    )
    retrieval: str | None = option(
        "BEIR folder whose dev nDCG@10 selects the checkpoint", metavar="DIR", only=SINGLE
    )
    scale: float = option(
        "scores in files are 0 to S (default: 5); -1 for -1 to 1", 5.0, score_scale, "S", SCALED
    )
    columns: str | None = option(
        "read these columns, in the order of a row: score,left,right", metavar="A,B"
    )
    quotes: bool = option("quotation marks enclose cells of a table; without they are text", True)
    limit: int | None = option("read only the first ROWS training rows", None, COUNT, "ROWS")
    max_length: int | None = option(
        "truncate texts to N tokens (default: the model's limit)", None, COUNT, "N"
    )
    out: str | None = option(
        "folder of the run (default: in runs/, named after recipe or data, objective and model)"
    )
    overwrite: bool = option("delete the run in that folder and begin", False)
    resume: str | None = option(
        "continue a stopped run; the results are those of an uninterrupted one", metavar="RUN"
    )

    epochs: int = option("default: 1", 1, COUNT)
    max_steps: int | None = option("stop after N steps", None, COUNT, "N")
    eval_every: int | None = option(
        "evaluate on dev every STEPS (default: each epoch)", None, COUNT, "STEPS"
    )
    patience: int | None = option(
        "stop after N evaluations without a better score", None, COUNT, "N"
    )

    batch_size: int = option("rows per step (default: 32)", 32, COUNT)
    micro_tokens: int | None = option(
        "compute each batch in parts of at most N tokens", None, COUNT, "N"
    )
    lr: float = option("peak learning rate (default: 2e-5)", 2e-5, RATE)
    head_lr: float | None = option(
        "peak learning rate outside the encoder (default: --lr)", None, RATE
    )
    warmup: float = option(
        "a fraction of the steps, or from 1 on steps (default: 0.1)", 0.1, warmup_length
    )
    dropout: float | None = option(
        "dropout rate of the encoder (default: the model's)", None, FRACTION, "P"
    )
    seed: int = option("for dropout and batch order (default: 42)", 42, bounded(int, 0, 2**64))
    device: str = option("auto, cpu, cuda or mps (default: auto)", "auto")
    threads: int | None = option(
        "CPU threads (default: OMP_NUM_THREADS, or one a core)", None, THREADS, "N"
    )
    dtype: str = option(
        "of matrix products; auto: bfloat16 on hardware for it", "auto", choices=DTYPES
    )
    graphs: str = option(
        "steps as CUDA graphs; auto: on a GPU that can", "auto", choices=("auto", "on", "off")
    )

    pooler_head: bool = option(
        "BERT's pooler and a linear layer, as CrossEncoder has it", False, only=JOINT
    )
    margin: float = option("of triplet (default: 1)", 1.0, POSITIVE, only=("triplet",))
    temperature: float = option(
        "of in-batch losses (default: 0.05)", 0.05, POSITIVE, only=COMPARING
    )
    matryoshka: str | None = option(
        "the loss also of the first N columns: 256,64", None, prefix_widths, "N,N", NESTED
    )
    teacher: str | None = option(
        "learn its vectors, or a cross-encoder's scores", metavar="MODEL", only=TAUGHT
    )
    from_nothing: str | None = option(
        "random weights and a new vocabulary instead of --model: 3x256x6000",
        None,
        model_size,
        "LxDxV",
        ("mlm",),
    )
    student_layers: int | None = option(
        "keep N of --model's layers (default: all)", None, COUNT, "N", TAUGHT
    )

    # recipes set some of them
    save_every: int = option("save for --resume every STEPS (default: 100)", 100, COUNT, "STEPS")
    log_every: int = option("write metrics.jsonl every STEPS (default: 10)", 10, COUNT, "STEPS")

    schedule: str = option("default: linear", "linear", choices=("linear", "cosine", "constant"))
    weight_decay: float = option("also of biases and LayerNorm (default: 0)", 0.0, RATE)
    clip: float = option("maximum gradient norm, 0: no clipping (default: 1)", 1.0, RATE)
    freeze_embeddings: bool = option("freeze the embeddings", False)

    symmetric: bool = option("mnr in both directions", False, only=("mnr",))
    projection: bool = option(
        "SimCSE's dense layer and tanh, in training only", False, only=("triplet", *RANKING)
    )


SETTINGS: dict[str, Field] = {item.name: item for item in fields(RunSettings)}
FREE = (
    "resume",
    "overwrite",
    "out",
    "log_every",
    "save_every",
    "threads",
)  # may differ in a resumed run


def reads(objective: str, name: str) -> bool:
    """Return whether an objective reads a setting. One that it does not read is an error on the
    command line.
    """
    return objective in SETTINGS[name].metadata["only"]


# --------------------------------------------------------------------------------------- the
# command line

ABOUT = ("source", "needs", "expected")  # describe a recipe; all its other keys are options
ABOUT_TRAIN = (
    "Fine-tune a sentence encoder, by default on STS-B with the cosine and mean squared error."
)
EVERYDAY = [
    "recipe",
    "objective",
    "model",
    "data",
    "dev",
    "test",
    "max_length",
    "out",
    "resume",
    "epochs",
    "max_steps",
    "batch_size",
    "lr",
    "seed",
]
TRAIN_EXAMPLES = """Examples:
  minisbert train --epochs 4 --seed 7 --out runs/four-epochs
  minisbert train --objective siamese --epochs 2 --lr 5e-5 --head-lr 1e-3
  minisbert train --recipe list
  minisbert train --resume runs/four-epochs
  torchrun --nproc_per_node=2 -m minisbert train"""


def make_parser(advanced: bool = False) -> Parser:
    """Return a parser of all settings; it returns those that are on the command line, without
    defaults.

    ``advanced``: ``--help`` also shows the options that are not of every day.
    """
    objectives = [
        f"  {name:<25} {traits.rows:<11} {PURPOSES[name]}" for name, traits in OBJECTIVES.items()
    ]
    epilog = "\n".join(
        ["objectives, with what a row of their data is:", *objectives, "", TRAIN_EXAMPLES]
    )
    # SUPPRESS: an option that is absent must not override a recipe
    parser = command_parser(
        "train",
        ABOUT_TRAIN,
        usage="%(prog)s [options]",
        epilog=epilog,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--help-all", action="store_true", help="show all options, not only those of every day"
    )
    for name, item in SETTINGS.items():
        about = item.metadata
        if name in GROUPS:
            group = parser.add_argument_group(GROUPS[name])
        help_text = about["help"] if advanced or name in EVERYDAY else argparse.SUPPRESS
        if isinstance(item.default, bool):
            group.add_argument(flag(name), action=argparse.BooleanOptionalAction, help=help_text)
        else:
            read, choices, metavar = about["read"], about["choices"], about["metavar"]
            group.add_argument(
                flag(name), type=read, choices=choices, metavar=metavar, help=help_text
            )
    return parser


def flag(name: str) -> str:
    """Spell a setting as an option: ``max_steps`` -> ``--max-steps``."""
    return "--" + name.replace("_", "-")


def as_flags(settings: dict[str, Any]) -> list[str]:
    """Write settings as options: ``{"max_steps": 5, "projection": True}`` -> ``--max-steps=5``,
    ``--projection``.
    """
    flags = []
    for name, value in settings.items():
        if value is True:
            flags.append(flag(name))
        elif value is False:
            flags.append(flag(f"no_{name}"))
        elif value is not None:
            flags.append(f"{flag(name)}={value}")
    return flags


def command_of(settings: RunSettings) -> list[str]:
    """Write the command of a run, with the options that decide its result and are not a recipe's or
    the default.
    """
    preset = recipe_settings(settings.recipe) if settings.recipe else {}
    usual = {name: preset.get(name, item.default) for name, item in SETTINGS.items()}
    given = {
        name: value
        for name, value in vars(settings).items()
        if value != usual[name] and name not in FREE
    }
    return ["minisbert", "train", *as_flags(given)]


def parse(arguments: list[str] | None = None) -> RunSettings:
    """Return the settings of a run: the command line's, then a recipe's or a resumed run's, then
    the defaults.

    Raises ``InputError`` for an unknown recipe, an option that the objective does not read (a
    recipe's are ignored), options that exclude each other, and a run that cannot be resumed with
    the same result.
    """
    explicit = vars(make_parser().parse_args(arguments))
    if explicit.pop("help_all", False):
        make_parser(advanced=True).parse_args(["--help"])
    if "resume" in explicit:
        return resumed(explicit, Path(explicit["resume"]))
    if explicit.get("recipe") == "list":
        return RunSettings(**explicit)
    preset = recipe_settings(explicit["recipe"]) if "recipe" in explicit else {}
    if "teacher" in explicit and "objective" not in preset:
        preset["objective"] = "distillation"
    settings = RunSettings(**preset | explicit)
    for name, value in explicit.items():
        if value is not False and not reads(
            settings.objective, name
        ):  # switching off is allowed everywhere
            users = ", ".join(SETTINGS[name].metadata["only"])
            raise InputError(
                f"{flag(name)} is not for objective {settings.objective}: used by {users}"
            )
    if OBJECTIVES[settings.objective].in_batch and settings.batch_size < 2:
        raise InputError(
            f"objective {settings.objective} compares the rows of a batch: --batch-size must be at "
            f"least 2"
        )
    if settings.dev == "none" and settings.patience:
        raise InputError("--patience needs dev rows, and --dev none has none")
    # the saved vectors would be cut, but others, after the projection, be trained
    if reads(settings.objective, "projection") and settings.projection and settings.matryoshka:
        raise InputError("--matryoshka and --projection: give one of them")
    return settings


# ------------------------------------------------------------------------------- recipes and
# resumed runs


def recipes() -> dict[str, dict[str, Any]]:
    """Read the recipes by name: each a source, the data it needs, the expected score, and
    options.
    """
    return tomllib.loads(Path(__file__).with_name("recipes.toml").read_text(encoding="utf-8"))


def recipe_settings(name: str) -> dict[str, Any]:
    """Return the settings of a recipe."""
    table = recipes()
    if name not in table:
        raise InputError(f"unknown recipe {name!r}; choose from {', '.join(table)}")
    return {key.replace("-", "_"): value for key, value in table[name].items() if key not in ABOUT}


def list_recipes() -> str:
    """Write a few lines per recipe: its source, the data it needs, the expected score, its
    options.
    """
    blocks = []
    for name, recipe in recipes().items():
        lines = [name]
        for key in ABOUT:
            lines.append(f"  {key:<9} {recipe[key]}")
        lines.append(f"  {'options':<9} {' '.join(as_flags(recipe_settings(name)))}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def resumed(explicit: dict[str, Any], run: Path) -> RunSettings:
    """Return the settings of a stopped run; ``InputError`` if it is finished, or if an option
    changes its result.
    """
    if (run / RESULTS).is_file():
        raise InputError(
            f"{run} is finished: its model is in {run / MODEL}, its scores are in {RESULTS}"
        )
    is_other = run.is_dir() and not (run / RUN_LOG).is_file()
    check_usage(
        (is_other, f"{run} is not the folder of a run (it has no {RUN_LOG})"),
        (
            explicit.get("overwrite"),
            "--resume continues a run, --overwrite begins it anew: give one of them",
        ),
    )
    config = vars(read_run_settings(run / RUN_CONFIG))
    if not (run / STATE).is_file():
        raise InputError(
            f"{run} was stopped before its state was saved (--save-every): start it again, "
            f"--overwrite"
        )
    for name, value in explicit.items():
        if name == "out":
            changed = os.path.realpath(value) != os.path.realpath(run)
        else:
            changed = value != config[name] and name not in FREE
        if changed:
            before = f"with {config[name]} and continues with it"
            if config[name] is None:
                before = "without it and continues so"
            raise InputError(f"{flag(name)} {value}: {run} was started {before}")
    config["threads"] = None  # by default the number of threads in the state
    return RunSettings(**config | explicit)


def read_run_settings(path: Path) -> RunSettings:
    """Read the settings in a run's ``config.json``; ``InputError`` names one that no option could
    set.
    """
    config = read_json(path)
    with reading(path):
        settings = {name: config[name] for name in SETTINGS}
    for name, item in SETTINGS.items():
        if isinstance(settings[name], bool) != isinstance(item.default, bool):
            raise InputError(
                f"{path}: {name} is {settings[name]!r}, which {flag(name)} does not accept"
            )
    try:
        return RunSettings(**vars(make_parser().parse_args(as_flags(settings))))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
