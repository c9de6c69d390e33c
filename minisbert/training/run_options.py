"""The command line of ``minisbert train``: the settings of a new run, of a recipe, or of a resumed run."""

import argparse
import os
import tomllib
from pathlib import Path
from typing import Any

from minisbert.core import InputError, read_json, reading
from minisbert.system.console import Parser, check_usage, command_parser
from minisbert.training import MODEL, RESULTS, RUN_CONFIG, RUN_LOG, STATE
from minisbert.training.settings import FIRST_ADVANCED, FREE, GROUPS, OBJECTIVES, SETTINGS, RunSettings, reads

ABOUT = ("source", "needs", "expected")  # describe a recipe; all its other keys are options
ABOUT_TRAIN = "Fine-tune a sentence encoder, by default on STS-B with the cosine and mean squared error."
TRAIN_EXAMPLES = """Examples: minisbert train --epochs 4 --seed 7 --out runs/four-epochs
          minisbert train --objective siamese --epochs 2 --lr 5e-5 --head-lr 1e-3
          minisbert train --recipe list
          minisbert train --resume runs/four-epochs
          torchrun --nproc_per_node=2 -m minisbert train"""


def make_parser(advanced: bool = False) -> Parser:
    """Return a parser of all settings; it returns those that are on the command line, without defaults.

    ``advanced``: ``--help`` also shows the options that recipes and few people set.
    """
    # SUPPRESS: an option that is absent must not override a recipe
    parser = command_parser("train", ABOUT_TRAIN, epilog=TRAIN_EXAMPLES, argument_default=argparse.SUPPRESS)
    parser.add_argument("--help-all", action="store_true", help="show all options, also those that few people set")
    hidden = False
    for name, item in SETTINGS.items():
        about = item.metadata
        if name in GROUPS:
            group = parser.add_argument_group(GROUPS[name])
        if name == FIRST_ADVANCED and not advanced:
            hidden = True
        help_text = argparse.SUPPRESS if hidden else about["help"]
        if isinstance(item.default, bool):
            group.add_argument(flag(name), action=argparse.BooleanOptionalAction, help=help_text)
        else:
            read, choices, metavar = about["read"], about["choices"], about["metavar"]
            group.add_argument(flag(name), type=read, choices=choices, metavar=metavar, help=help_text)
    return parser


def flag(name: str) -> str:
    """Spell a setting as an option: ``max_steps`` -> ``--max-steps``."""
    return "--" + name.replace("_", "-")


def as_flags(settings: dict[str, Any]) -> list[str]:
    """Write settings as options: ``{"max_steps": 5, "projection": True}`` -> ``--max-steps=5``, ``--projection``."""
    flags = []
    for name, value in settings.items():
        if value is True:
            flags.append(flag(name))
        elif value is False:
            flags.append(flag(f"no_{name}"))
        elif value is not None:
            flags.append(f"{flag(name)}={value}")
    return flags


def parse(arguments: list[str] | None = None) -> RunSettings:
    """Return the settings of a run: the command line's, then a recipe's or a resumed run's, then the defaults.

    Raises ``InputError`` for an unknown recipe, an option that the objective does not read (a recipe's are ignored),
    options that exclude each other, and a run that cannot be resumed with the same result.
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
        if value is not False and not reads(settings.objective, name):  # switching off is allowed everywhere
            users = ", ".join(SETTINGS[name].metadata["only"])
            raise InputError(f"{flag(name)} is not for objective {settings.objective}: used by {users}")
    check_combination(settings)
    return settings


def check_combination(settings: RunSettings) -> None:
    """Raise ``InputError`` if settings that the objective reads exclude each other, or one lacks another."""
    objective = settings.objective
    if OBJECTIVES[objective].in_batch and settings.batch_size < 2:
        raise InputError(f"objective {objective} compares the rows of a batch: --batch-size must be at least 2")
    if objective == "contrastive" and settings.margin is not None and settings.margin > 2:
        raise InputError(f"--margin {settings.margin:g} must be at most 2, as 1 - cosine is")
    # the saved vectors would be cut, but others, after the projection, be trained
    if reads(objective, "projection") and settings.projection and settings.matryoshka:
        raise InputError("--matryoshka and --projection: give one of them")


# ------------------------------------------------------------------------------- recipes and resumed runs


def recipes() -> dict[str, dict[str, Any]]:
    """Read the recipes by name: each a source, the data it needs, the expected score, and options."""
    return tomllib.loads(Path(__file__).with_name("recipes.toml").read_text(encoding="utf-8"))


def recipe_settings(name: str) -> dict[str, Any]:
    """Return the settings of a recipe."""
    table = recipes()
    if name not in table:
        raise InputError(f"unknown recipe {name!r}; choose from {', '.join(table)}")
    return {key.replace("-", "_"): value for key, value in table[name].items() if key not in ABOUT}


def list_recipes() -> str:
    """Write a few lines per recipe: its source, the data it needs, the expected score, its options."""
    blocks = []
    for name, recipe in recipes().items():
        lines = [name]
        for key in ABOUT:
            lines.append(f"  {key:<9} {recipe[key]}")
        lines.append(f"  {'options':<9} {' '.join(as_flags(recipe_settings(name)))}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def resumed(explicit: dict[str, Any], run: Path) -> RunSettings:
    """Return the settings of a stopped run; ``InputError`` if it is finished, or if an option changes its result."""
    if (run / RESULTS).is_file():
        raise InputError(f"{run} is finished: its model is in {run / MODEL}, its scores are in {RESULTS}")
    is_other = run.is_dir() and not (run / RUN_LOG).is_file()
    check_usage(
        (is_other, f"{run} is not the folder of a run (it has no {RUN_LOG})"),
        (explicit.get("overwrite"), "--resume continues a run, --overwrite begins it anew: give one of them"),
    )
    config = vars(read_run_settings(run / RUN_CONFIG))
    if not (run / STATE).is_file():
        raise InputError(f"{run} was stopped before its state was saved (--save-every): start it again, --overwrite")
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
    """Read the settings in a run's ``config.json``; ``InputError`` names one that no option could set."""
    config = read_json(path)
    with reading(path):
        settings = {name: config[name] for name in SETTINGS}
    for name, item in SETTINGS.items():
        if isinstance(settings[name], bool) != isinstance(item.default, bool):
            raise InputError(f"{path}: {name} is {settings[name]!r}, which {flag(name)} does not accept")
    try:
        return RunSettings(**vars(make_parser().parse_args(as_flags(settings))))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
