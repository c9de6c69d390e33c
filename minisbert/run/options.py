"""The options of ``python -m minisbert.train``, and the recipes that set many of them at once.

A recipe is a few lines of ``recipes.toml``; flags on the command line override it.
"""

import argparse
import math
import tomllib
from pathlib import Path
from typing import Any

from minisbert.core import InputError, read_json
from minisbert.objectives.registry import OBJECTIVES

RECIPES = Path(__file__).parents[1] / "objectives" / "recipes.toml"
ABOUT = ("source", "needs", "expected")  # of a recipe, for people; everything else in it is an option

# Flags that not every objective reads, and the objectives that do. Given to another one, a flag is an error.
USED_BY = {
    "pooling": [name for name in OBJECTIVES if name not in ("joint", "cross")],
    "loss": ["joint", "siamese", "cross"],
    "variant": ["cross"],
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
    "allow_no_dropout": ["simcse"],
}


def recipes() -> dict[str, dict[str, Any]]:
    """The named recipes, in the order of the file."""
    return tomllib.loads(RECIPES.read_text(encoding="utf-8"))


def list_recipes() -> str:
    """A few lines for each recipe: where it is from, what it needs, what it gives, its options."""
    blocks = []
    for name, recipe in recipes().items():
        flags = " ".join(
            f"--{key} {value}" if value is not True else f"--{key}" for key, value in recipe.items() if key not in ABOUT
        )
        blocks.append("\n".join([name, *(f"  {key:<9} {recipe[key]}" for key in ABOUT), f"  {'options':<9} {flags}"]))
    return "\n\n".join(blocks)


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
    group = parser.add_argument_group("what")
    group.add_argument("--recipe", metavar="NAME", help="a named recipe, which other flags override; list shows all")
    group.add_argument("--objective", choices=OBJECTIVES, default="cosine", help="default: cosine")
    group.add_argument("--model", default="all-MiniLM-L6-v2", help="name or folder (default: %(default)s)")
    group.add_argument("--pooling", help="override the model's pooling: mean, cls, max, attention, first-last, pooler")
    group.add_argument("--data", help="stsb, snli, quora or a file of rows for the objective (default: by objective)")
    group.add_argument(
        "--dev", metavar="FILE", help="rows that choose the best checkpoint (default: stsb's, or held out)"
    )
    group.add_argument("--test", metavar="FILE", help="rows for the last table (default: stsb's, or held out)")
    group.add_argument("--limit", metavar="ROWS", type=number(int, 1), help="read only so many training rows")
    group.add_argument("--out", help="folder of the run (default: runs/, by recipe or data and objective, and model)")
    group.add_argument("--overwrite", action="store_true", help="replace the run that stands there")
    group.add_argument("--plots", action="store_true", help="draw curves.png and lengths.png (the plots extra)")
    group.add_argument("--resume", metavar="RUN", help="go on with a stopped run, exactly as it would have gone on")

    group = parser.add_argument_group("how long")
    group.add_argument("--epochs", type=number(int, 1), default=1, help="default: 1")
    group.add_argument("--max-steps", type=number(int, 1), help="stop after so many steps")
    group.add_argument(
        "--eval-every", metavar="STEPS", type=number(int, 1), help="evaluate on dev so often (default: each epoch)"
    )
    group.add_argument(
        "--patience", metavar="N", type=number(int, 1), help="stop after N evaluations without a better score"
    )
    group.add_argument(
        "--save-every", metavar="STEPS", type=number(int, 1), default=100, help="for --resume (default: 100)"
    )

    group = parser.add_argument_group("how")
    group.add_argument("--batch-size", type=number(int, 1), default=32, help="rows a step (default: 32)")
    group.add_argument(
        "--accumulate",
        metavar="N",
        type=number(int, 1),
        help="compute each batch in N parts, which takes less memory (default: on a CPU, long batches are)",
    )
    group.add_argument("--lr", type=number(float, 0), default=2e-5, help="peak learning rate (default: 2e-5)")
    group.add_argument("--head-lr", type=number(float, 0), help="of what stands on the encoder (default: --lr)")
    group.add_argument("--schedule", choices=("linear", "cosine", "constant"), default="linear", help="default: linear")
    group.add_argument("--warmup", type=number(float, 0, 1), default=0.1, help="share of the steps (default: 0.1)")
    group.add_argument("--weight-decay", type=number(float, 0), default=0.0, help="default: 0")
    group.add_argument("--clip", type=number(float, 0), default=1.0, help="largest gradient norm, 0: any; default: 1")
    group.add_argument(
        "--freeze-layers", metavar="N", type=number(int, 0), default=0, help="the lowest N are not trained"
    )
    group.add_argument(
        "--freeze-embeddings", action=argparse.BooleanOptionalAction, default=False, help="nor are the embeddings"
    )
    group.add_argument(
        "--dropout", metavar="P", type=number(float, 0, 1), help="of the encoder, all of it (default: the model's own)"
    )
    group.add_argument("--seed", type=number(int, 0, 2**64), default=42, help="of dropout and order (default: 42)")
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (default: auto)")
    group.add_argument(
        "--precision",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        help="of the encoder's matrix products; auto: bfloat16 where the hardware has it (default)",
    )
    group.add_argument("--log-every", type=number(int, 1), default=10, help="steps a line of metrics.jsonl")

    group = parser.add_argument_group("heads (joint, siamese, cross, softmax, binary)")
    group.add_argument("--loss", choices=("mse", "weighted-mse"), default="mse", help="of the STS heads (default: mse)")
    group.add_argument("--concat", default="u,v,|u-v|", help="what softmax and binary compare (default: %(default)s)")
    group.add_argument(
        "--head-hidden", type=number(int, 0), default=0, help="width of a hidden layer there (default: none)"
    )
    group.add_argument(
        "--head-dropout", type=number(float, 0, 1), default=0.0, help="before a head's last layer; default: 0"
    )
    group.add_argument(
        "--variant", choices=("published", "compare"), default="compare", help="of cross (default: compare)"
    )
    group.add_argument(
        "--pos-weight", type=number(float, 1e-4), default=1.0, help="weight of duplicates in binary (default: 1)"
    )

    group = parser.add_argument_group("losses between vectors")
    group.add_argument(
        "--margin", type=number(float, 1e-4), help="of triplet (default: 1) and contrastive (default: 0.5)"
    )
    group.add_argument(
        "--temperature", type=number(float, 1e-4), default=0.05, help="of in-batch losses (default: 0.05)"
    )
    group.add_argument(
        "--symmetric", action=argparse.BooleanOptionalAction, default=False, help="mnr in both directions"
    )
    group.add_argument(
        "--hard-negative-weight",
        metavar="WEIGHT",
        type=number(float, -1e4, 1e4),
        default=0.0,
        help="simcse-supervised: added to their logits",
    )
    group.add_argument(
        "--projection",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="SimCSE's dense layer and tanh, in training only",
    )
    group.add_argument(
        "--nt-xent",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="simcse with SimCLR's loss: both views are anchors and wrong answers",
    )
    group.add_argument("--same-mask", action="store_true", help="simcse with one dropout mask for both views")
    group.add_argument("--allow-no-dropout", action="store_true", help="simcse on a model without dropout")
    return parser


FREE = ("resume", "overwrite", "out", "log_every", "save_every", "plots")  # settings that a resumed run may change


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options, a recipe's or a resumed run's filled in.

    Raises ``InputError`` for an unknown recipe, for a flag that the objective does not read (a recipe's own settings
    may lie idle when another objective is chosen), and for a run that cannot go on as if it had never stopped.
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
            raise InputError(f"no recipe is called {options.recipe!r}; known are {', '.join(known)}")
        settings = {key.replace("-", "_"): value for key, value in known[options.recipe].items() if key not in ABOUT}
        parser.set_defaults(**settings)
    options = parser.parse_args(arguments)
    for name, value in given(arguments).items():
        users = USED_BY.get(name, OBJECTIVES)
        if options.objective not in users and value is not False:  # what is switched off may be off everywhere
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} is not for objective {options.objective}: used by {', '.join(users)}")
    return options


def given(arguments: list[str] | None) -> dict[str, Any]:
    """The options that stand on the command line, without defaults and what a recipe sets."""
    parser = make_parser()
    absent = object()
    parser.set_defaults(**dict.fromkeys(vars(parser.parse_args([])), absent))
    return {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not absent}


def resumed(parser: argparse.ArgumentParser, arguments: list[str] | None, run: Path) -> argparse.Namespace:
    """The options of a run that was stopped."""
    if not (run / "config.json").is_file():
        raise InputError(f"{run} is not the folder of a run: it has no config.json")
    if (run / "results.json").is_file():
        raise InputError(f"{run} is finished: its model is in {run / 'model'}, its scores are in results.json")
    if not (run / "state" / "state.json").is_file():
        raise InputError(f"{run} was stopped before its state was saved (--save-every): start it again, --overwrite")
    config = read_json(run / "config.json")
    parser.set_defaults(**{key: config[key] for key in vars(parser.parse_args([])) if key in config})
    options = parser.parse_args(arguments)
    for key, value in vars(options).items():
        if key in config and key not in FREE and value != config[key]:
            flag = "--" + key.replace("_", "-")
            raise InputError(f"{flag} {value}: {run} was started with {config[key]} and goes on as it was")
    return options
