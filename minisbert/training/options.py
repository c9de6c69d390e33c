"""The options of ``python -m minisbert.train``, a recipe's, and a resumed run's."""

import argparse
import json
import math
import os
from pathlib import Path
from typing import Any

from minisbert.core import InputError, one_line, reading
from minisbert.models.heads import VARIANTS
from minisbert.system.devices import add_threads_option
from minisbert.training.folder import recover_run
from minisbert.training.objective import BATCHES
from minisbert.training.recipes import ABOUT, recipes
from minisbert.training.registry import OBJECTIVES
from minisbert.training.schedules import SCHEDULES

SWITCH = argparse.BooleanOptionalAction  # --flag and --no-flag

# Flags that only some objectives read, and those objectives. With any other objective the flag is an error.
USED_BY = {
    "pooling": [name for name in OBJECTIVES if name not in ("joint", "cross")],
    "scale": [name for name in OBJECTIVES if name not in ("softmax", "binary", "contrastive")],
    "batches": [name for name in OBJECTIVES if name not in ("mnr", "simcse", "simcse-supervised")],
    "loss": ["joint", "siamese", "cross"],
    "variant": ["cross"],
    "cross_encoder": ["joint"],
    "head_dropout": ["joint", "siamese", "cross", "softmax", "binary"],
    "head_hidden": ["softmax", "binary"],
    "concat": ["softmax", "binary"],
    "pos_weight": ["binary"],
    "margin": ["contrastive", "triplet"],
    "temperature": ["cosent", "mnr", "simcse", "simcse-supervised"],
    "symmetric": ["mnr"],
    "hard_negative_weight": ["simcse-supervised"],
    "projection": ["triplet", "mnr", "simcse", "simcse-supervised"],
    "nt_xent": ["simcse"],
    "same_mask": ["simcse"],
    "augment": ["simcse"],
    "shuffled_negatives": ["cosine", "cosent"],
    "allow_no_dropout": ["simcse"],
}


def number(kind: type, smallest: float, below: float = math.inf) -> Any:
    """An argparse type: a number in [smallest, below)."""

    def convert(text: str) -> Any:
        value = kind(text)
        if not smallest <= value < below:
            raise ValueError
        return value

    convert.__name__ = f"{kind.__name__} in [{smallest:g}, {below:g})"
    return convert


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m minisbert.train",
        description="Fine-tune a sentence encoder, by default on STS-B with the cosine and mean squared error.",
        epilog="Examples: python -m minisbert.train --epochs 4 --seed 7 --out runs/four-epochs\n"
        "          python -m minisbert.train --objective siamese --epochs 2 --lr 5e-5 --head-lr 1e-3\n"
        "          python -m minisbert.train --recipe list\n"
        "          python -m minisbert.train --resume runs/four-epochs\n"
        "          torchrun --nproc_per_node=2 -m minisbert.train",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for add_options in (add_data, add_duration, add_training, add_heads, add_vector_losses):
        add_options(parser)
    return parser


def add_data(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("objective, model, data and output").add_argument
    add("--recipe", metavar="NAME", help="a named recipe, which other flags override; list shows all")
    add("--objective", choices=OBJECTIVES, default="cosine", help="default: cosine")
    add("--model", default="all-MiniLM-L6-v2", help="name or folder (default: %(default)s)")
    add("--pooling", help="override the model's pooling: mean, cls, max, attention, first-last, pooler")
    add("--data", help="stsb, snli, multinli, quora or a file; of NLI also several, as in A,B (default: by objective)")
    add("--dev", metavar="FILE", help="rows that select the best checkpoint (default: stsb's, or held out)")
    add("--test", metavar="FILE", help="rows for the final scores (default: stsb's, or held out)")
    add("--retrieval", metavar="FOLDER", help="BEIR's files: nDCG@10 by qrels/dev.tsv selects the best checkpoint")
    add("--scale", metavar="S", type=number(float, 1e-4), default=5.0, help="scores in files are 0 to S (default: 5)")
    add("--limit", metavar="ROWS", type=number(int, 1), help="read only the first ROWS training rows")
    add("--max-length", metavar="N", type=number(int, 1), help="cut texts to N tokens (default: the model's)")
    add("--out", help="folder of the run (default: in runs/, by recipe or data and objective, and model)")
    add("--overwrite", action="store_true", help="replace an existing run in that folder")
    add("--plots", action="store_true", help="draw curves.png and lengths.png (needs the plots extra)")
    add("--resume", metavar="RUN", help="continue a stopped run with the same results as an uninterrupted one")


def add_duration(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("duration and evaluation").add_argument
    add("--epochs", type=number(int, 1), default=1, help="default: 1")
    add("--max-steps", metavar="N", type=number(int, 1), help="stop after N steps")
    add("--eval-every", metavar="STEPS", type=number(int, 1), help="evaluate on dev every STEPS (default: each epoch)")
    add("--patience", metavar="N", type=number(int, 1), help="stop after N evaluations without a better score")
    add("--save-every", metavar="STEPS", type=number(int, 1), default=100, help="save for --resume (default: 100)")


def add_training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    add = group.add_argument
    add("--batch-size", type=number(int, 1), default=32, help="rows per step (default: 32)")
    add(
        "--batches",
        choices=BATCHES,
        default="grouped",
        help="grouped: rows of like length, shuffled each epoch; random: of any length; fixed: the rows in order",
    )
    add(
        "--accumulate",
        metavar="N",
        type=number(int, 1),
        help="compute each batch in N micro-batches to save memory (default: 1; on a CPU as many as its tokens need)",
    )
    add("--micro-tokens", metavar="N", type=number(int, 1), help="or in parts of at most N tokens, pads included")
    add("--lr", type=number(float, 0), default=2e-5, help="peak learning rate (default: 2e-5)")
    add("--head-lr", type=number(float, 0), help="peak learning rate outside the encoder (default: --lr)")
    add("--schedule", choices=SCHEDULES, default="linear", help="default: linear")
    add("--warmup", type=number(float, 0, 1), default=0.1, help="share of the steps (default: 0.1)")
    add("--weight-decay", type=number(float, 0), default=0.0, help="also of biases and LayerNorm (default: 0)")
    add("--clip", type=number(float, 0), default=1.0, help="largest gradient norm, 0: no clipping (default: 1)")
    add("--freeze-layers", metavar="N", type=number(int, 0), default=0, help="freeze the lowest N layers (default: 0)")
    add("--freeze-embeddings", action=SWITCH, default=False, help="freeze the embeddings")
    add("--dropout", metavar="P", type=number(float, 0, 1), help="dropout rate of the encoder (default: the model's)")
    add("--seed", type=number(int, 0, 2**64), default=42, help="for dropout and batch order (default: 42)")
    add("--device", default="auto", help="auto, cpu, cuda or mps (default: auto)")
    add_threads_option(group)
    add(
        "--precision",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        help="of the encoder's matrix products; auto: bfloat16 if the hardware supports it (default: auto)",
    )
    add("--log-every", metavar="STEPS", type=number(int, 1), default=10, help="write metrics.jsonl (default: 10)")


def add_heads(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("heads (joint, siamese, cross, softmax, binary)").add_argument
    add("--loss", choices=("mse", "weighted-mse"), default="mse", help="loss of the STS heads (default: mse)")
    add("--concat", default="u,v,|u-v|", help="input of the softmax and binary heads (default: %(default)s)")
    add("--head-hidden", type=number(int, 0, 2**20), default=0, help="width of a hidden layer in them (default: none)")
    add("--head-dropout", type=number(float, 0, 1), default=0.0, help="before a head's last layer (default: 0)")
    add("--variant", choices=VARIANTS, default="compare", help="of cross (default: compare)")
    add("--cross-encoder", action=SWITCH, default=False, help="of joint: a head that sentence-transformers opens too")
    add("--pos-weight", type=number(float, 1e-4), default=1.0, help="weight of duplicates in binary (default: 1)")


def add_vector_losses(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("losses between vectors").add_argument
    add("--margin", type=number(float, 1e-4), help="of triplet (default: 1) and contrastive (default: 0.5)")
    add("--temperature", type=number(float, 1e-4), default=0.05, help="of in-batch losses (default: 0.05)")
    add("--symmetric", action=SWITCH, default=False, help="mnr in both directions")
    add(
        "--hard-negative-weight",
        metavar="WEIGHT",
        type=number(float, -1e4, 1e4),
        default=0.0,
        help="simcse-supervised: added to the logits of each row's own hard negative (default: 0)",
    )
    add("--projection", action=SWITCH, default=False, help="SimCSE's dense layer and tanh, in training only")
    add("--nt-xent", action=SWITCH, default=False, help="simcse with SimCLR's loss: both views are anchors")
    add("--augment", metavar="HOW", help="simcse: change one view: crop:0.1, delete:0.1, delete-one, synonym:FILE")
    add("--shuffled-negatives", metavar="N", type=number(int, 1), help="cosine: add N shuffled pairs of score 0 a pair")
    add("--same-mask", action="store_true", help="simcse with one dropout mask for both views")
    add("--allow-no-dropout", action="store_true", help="simcse on a model without dropout")


FREE = ("resume", "overwrite", "out", "log_every", "save_every", "plots", "threads")  # may differ in a resumed run


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options, with those of a recipe or a resumed run filled in.

    Raises ``InputError`` for an unknown recipe, for a flag that the objective does not read (settings of a recipe that
    another objective does not read are ignored), and for a run that cannot be resumed with the same result.
    """
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.resume is not None:
        return resumed(parser, arguments, Path(options.resume))
    if options.recipe == "list":
        return options
    if options.recipe is not None:
        known = recipes()
        if options.recipe not in known:
            raise InputError(f"unknown recipe {options.recipe!r}; choose from {', '.join(known)}")
        settings = {key.replace("-", "_"): value for key, value in known[options.recipe].items() if key not in ABOUT}
        parser.set_defaults(**settings)
    options = parser.parse_args(arguments)
    for name, value in given(arguments).items():
        users = USED_BY.get(name, OBJECTIVES)
        if options.objective not in users and value is not False:  # switching off is allowed everywhere
            about = f"is not for objective {options.objective}: used by {', '.join(users)}"
            raise InputError(f"--{name.replace('_', '-')} {about}")
    return options


def given(arguments: list[str] | None) -> dict[str, Any]:
    """The options that are on the command line, without defaults and a recipe's settings."""
    parser = make_parser()
    parser.set_defaults(**dict.fromkeys(vars(parser.parse_args([])), parser))  # no option has this value
    return {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not parser}


def resumed(parser: argparse.ArgumentParser, arguments: list[str] | None, run: Path) -> argparse.Namespace:
    """The options of a stopped run."""
    if not (run / "config.json").is_file():
        raise InputError(f"{run} is not the folder of a run: it has no config.json")
    out = given(arguments).get("out", run)
    if os.path.realpath(out) != os.path.realpath(run):
        raise InputError(f"--out {out}: a resumed run continues in its own folder, {run}; omit --out")
    recover_run(run)
    if (run / "results.json").is_file():
        raise InputError(f"{run} is finished: its model is in {run / 'model'}, its scores are in results.json")
    if not (run / "state" / "state.json").is_file():
        raise InputError(f"{run} was stopped before its state was saved (--save-every): start it again, --overwrite")
    config = read_settings(run / "config.json")
    parser.set_defaults(**config | {"threads": None})  # unless given again, the number that the state has
    options = parser.parse_args(arguments)
    for key, value in vars(options).items():
        if key not in FREE and value != config[key]:
            flag = f"--{key.replace('_', '-')} {value}"
            raise InputError(f"{flag}: {run} was started with {config[key]} and continues with it")
    return options


def read_settings(path: Path) -> dict[str, Any]:
    """The options in a run's ``config.json``; ``InputError`` names one that is missing or that no flag could set."""
    with reading(path):
        config = dict(json.loads(path.read_bytes()))  # not read_json: the names of files may not be UTF-8
    parser = make_parser()
    parser.exit_on_error = False
    settings = vars(parser.parse_args([]))
    for name, default in settings.items():
        if name not in config:
            raise InputError(f"{path} has no {name!r}: it was edited, or written by another version")
        value = settings[name] = config[name]
        if (value is None and default is None) or (isinstance(value, bool) and isinstance(default, bool)):
            continue
        try:
            same = getattr(parser.parse_args([f"--{name.replace('_', '-')}={value}"]), name) == value
        except argparse.ArgumentError as error:
            raise InputError(f"{path}: {name!r} is {one_line(value)}: {error.message[:200]}") from error
        if not same:
            raise InputError(f"{path}: {name!r} is {one_line(value)}, of another type than its flag takes")
    return settings
