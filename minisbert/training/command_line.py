"""The command line of ``python -m minisbert.train``: the settings of a new run, of a recipe, or of a resumed run."""

import argparse
import os
import tomllib
from pathlib import Path
from typing import Any

from minisbert.core import InputError, one_line, read_json, reading
from minisbert.system.console import check_usage
from minisbert.training.run_folder import recover_run
from minisbert.training.settings import FREE, GROUPS, OPTION_ALIASES, SETTINGS, UNIQUE, RunSettings, reads

RECIPE_ALIASES = {"sts-joint": "sts-cross-encoder", "sts-cross": "sts-cross-attention"}  # former names, still accepted
RECIPE_ALIASES |= {"sts-joint-published": "sts-cross-encoder-published"}
ABOUT = ("source", "needs", "expected")  # describe a recipe; all its other keys are options
# both divide a batch; the saved vectors are cut, others are trained; one view of a sentence, or two that differ
EXCLUSIVE = (("accumulate", "micro_tokens"), ("matryoshka", "projection"), ("same_mask", "augment"))


def recipes() -> dict[str, dict[str, Any]]:
    """The recipes by name: each a source, the data it needs, the expected score, and options."""
    return tomllib.loads(Path(__file__).with_name("recipes.toml").read_text(encoding="utf-8"))


def list_recipes() -> str:
    """A few lines per recipe: its source, the data it needs, the expected score, its options."""
    blocks = []
    for name, recipe in recipes().items():
        settings = {f"--{key}": value for key, value in recipe.items() if key not in ABOUT}
        flags = " ".join(key if value is True else f"{key} {value}" for key, value in settings.items())
        blocks.append("\n".join([name, *(f"  {key:<9} {recipe[key]}" for key in ABOUT), f"  {'options':<9} {flags}"]))
    return "\n\n".join(blocks)


def flag(name: str) -> str:
    """``max_steps`` -> ``--max-steps``."""
    return "--" + name.replace("_", "-")


def make_parser() -> argparse.ArgumentParser:
    """A parser of the settings that are on the command line; those that are absent have no default."""
    parser = argparse.ArgumentParser(
        prog="python -m minisbert.train",
        description="Fine-tune a sentence encoder, by default on STS-B with the cosine and mean squared error.",
        epilog="Examples: python -m minisbert.train --epochs 4 --seed 7 --out runs/four-epochs\n"
        "          python -m minisbert.train --objective siamese --epochs 2 --lr 5e-5 --head-lr 1e-3\n"
        "          python -m minisbert.train --recipe list\n"
        "          python -m minisbert.train --resume runs/four-epochs\n"
        "          torchrun --nproc_per_node=2 -m minisbert.train",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    for name, item in SETTINGS.items():
        if name in GROUPS:
            group = parser.add_argument_group(GROUPS[name])
        about = item.metadata
        if isinstance(item.default, bool):
            group.add_argument(flag(name), action=argparse.BooleanOptionalAction, help=about["help"])
        else:
            kinds = {"type": about["read"], "choices": about["choices"], "metavar": about["metavar"]}
            group.add_argument(flag(name), help=about["help"], **kinds)
    for former, name in OPTION_ALIASES.items():
        parser.add_argument(flag(former), dest=name, action=argparse.BooleanOptionalAction, help=argparse.SUPPRESS)
    return parser


def given(arguments: list[str] | None) -> dict[str, Any]:
    """The settings that are on the command line, without defaults and a recipe's settings."""
    return vars(make_parser().parse_args(arguments))


def parse(arguments: list[str] | None = None) -> RunSettings:
    """The settings of a run: those on the command line, then those of a recipe or a resumed run, then the defaults.

    Raises ``InputError`` for an unknown recipe, an option that the objective does not read (a recipe's are ignored),
    options that exclude each other, and a run that cannot be resumed with the same result.
    """
    explicit, preset = given(arguments), {}
    if "resume" in explicit:
        return resumed(explicit, Path(explicit["resume"]))
    recipe, known = explicit.get("recipe"), recipes()
    if recipe == "list":
        return RunSettings(**explicit)
    if recipe is not None:
        explicit["recipe"] = recipe = RECIPE_ALIASES.get(recipe, recipe)
        if recipe not in known:
            raise InputError(f"unknown recipe {recipe!r}; choose from {', '.join(known)}")
        preset = {key.replace("-", "_"): value for key, value in known[recipe].items() if key not in ABOUT}
    if "teacher" in explicit and "objective" not in preset:
        preset["objective"] = "distillation"
    settings = RunSettings(**preset | explicit)
    for name, value in explicit.items():
        if value is not False and not reads(settings.objective, name):  # switching off is allowed everywhere
            users = ", ".join(SETTINGS[name].metadata["only"])
            raise InputError(f"{flag(name)} is not for objective {settings.objective}: used by {users}")
    check_combination(settings)
    return settings


def check_combination(settings: RunSettings) -> None:
    """Raise ``InputError`` if settings that the objective reads exclude each other, or one lacks another."""
    objective, margin = settings.objective, settings.margin or 0
    read = {name: value for name, value in vars(settings).items() if reads(objective, name)}
    alone = objective in ("cosent", *UNIQUE) and settings.batch_size < 2
    drawn = read.get("attention_start") == "random" and settings.pooling != "attention"
    check_usage(
        (alone, f"objective {objective} compares the rows of a batch: --batch-size must be at least 2"),
        (objective == "contrastive" and margin > 2, f"--margin {margin:g} must be at most 2, as 1 - cosine is"),
        (drawn, "--attention-start random needs --pooling attention"),
    )
    for one, other in EXCLUSIVE:
        check_usage((read.get(one) and read.get(other), f"{flag(one)} and {flag(other)}: give one of them"))


def resumed(explicit: dict[str, Any], run: Path) -> RunSettings:
    """The settings of a stopped run."""
    recover_run(run)
    config = vars(read_settings(run / "config.json"))
    if (run / "results.json").is_file():
        raise InputError(f"{run} is finished: its model is in {run / 'model'}, its scores are in results.json")
    if not (run / "state" / "state.json").is_file():
        raise InputError(f"{run} was stopped before its state was saved (--save-every): start it again, --overwrite")
    for name, value in explicit.items():
        changed = value != config[name] and name not in FREE
        if changed or (name == "out" and os.path.realpath(value) != os.path.realpath(run)):
            raise InputError(f"{flag(name)} {value}: {run} was started with {config[name]} and continues with it")
    return RunSettings(**config | {"threads": None} | explicit)  # by default the number of threads in the state


def read_settings(path: Path) -> RunSettings:
    """The settings in a run's ``config.json``; ``InputError`` names one that no option could set.

    One that is missing has its default: the run is older than the option. ``identity`` notices if it had another value.
    """
    config = {OPTION_ALIASES.get(name, name): value for name, value in read_json(path).items()}
    with reading(path):
        return RunSettings(**{name: stored(name, config.get(name, item.default)) for name, item in SETTINGS.items()})


def stored(name: str, value: Any) -> Any:
    """The value of a setting in a run's ``config.json``; ``ValueError`` for one that its option could not set."""
    default, about = SETTINGS[name].default, SETTINGS[name].metadata
    if (value is None and default is None) or (isinstance(value, bool) and isinstance(default, bool)):
        return value
    try:
        value = about["read"](value) if name == "objective" else value  # a former name
        same = about["read"](str(value)) == value and not isinstance(default, bool)
    except ValueError:
        same = False
    if not same or value not in (about["choices"] or [value]):
        raise ValueError(f"{name!r} is {one_line(value)}, which {flag(name)} does not accept")
    return value
