"""The command line of ``python -m minisbert.train``: the settings of a new run, of a recipe, or of a resumed run."""

import argparse
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from minisbert.core import InputError, read_json, reading
from minisbert.training.folder import recover_run
from minisbert.training.recipes import ABOUT, FORMER, recipes
from minisbert.training.settings import FREE, GROUPS, OPTION_ALIASES, SETTINGS, USED_BY, RunSettings, flag, stored


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
    for group in GROUPS:
        add = parser.add_argument_group(group.__doc__).add_argument
        for item in fields(group):
            name, about = item.name, item.metadata
            if isinstance(item.default, bool):
                add(flag(name), action=argparse.BooleanOptionalAction, help=about["help"])
            else:
                kinds = {"type": about["read"], "choices": about["choices"], "metavar": about["metavar"]}
                add(flag(name), help=about["help"], **kinds)
    for former, name in OPTION_ALIASES.items():
        parser.add_argument(flag(former), dest=name, action=argparse.BooleanOptionalAction, help=argparse.SUPPRESS)
    return parser


def given(arguments: list[str] | None) -> dict[str, Any]:
    """The settings that are on the command line, without defaults and a recipe's settings."""
    return vars(make_parser().parse_args(arguments))


def parse(arguments: list[str] | None = None) -> RunSettings:
    """The settings of a run: those on the command line, then those of a recipe or a resumed run, then the defaults.

    Raises ``InputError`` for an unknown recipe, for an option that the objective does not read (settings of a recipe
    that another objective does not read are ignored), and for a run that cannot be resumed with the same result.
    """
    explicit, preset = given(arguments), {}
    if "resume" in explicit:
        return resumed(explicit, Path(explicit["resume"]))
    recipe, known = explicit.get("recipe"), recipes()
    recipe = FORMER.get(recipe, recipe)
    if recipe == "list":
        return RunSettings(**explicit)
    if recipe is not None:
        if recipe not in known:
            raise InputError(f"unknown recipe {recipe!r}; choose from {', '.join(known)}")
        preset = {key.replace("-", "_"): value for key, value in known[recipe].items() if key not in ABOUT}
        explicit["recipe"] = recipe
    if "teacher" in explicit and "objective" not in preset:
        preset["objective"] = "distillation"
    settings = RunSettings(**preset | explicit)
    for name, value in explicit.items():
        users = USED_BY.get(name, (settings.objective,))
        if settings.objective not in users and value is not False:  # switching off is allowed everywhere
            raise InputError(f"{flag(name)} is not for objective {settings.objective}: used by {', '.join(users)}")
    return settings


def resumed(explicit: dict[str, Any], run: Path) -> RunSettings:
    """The settings of a stopped run."""
    if not (run / "config.json").is_file():
        raise InputError(f"{run} is not the folder of a run: it has no config.json")
    out = explicit.get("out", run)
    if os.path.realpath(out) != os.path.realpath(run):
        raise InputError(f"--out {out}: a resumed run continues in its own folder, {run}; omit --out")
    recover_run(run)
    if (run / "results.json").is_file():
        raise InputError(f"{run} is finished: its model is in {run / 'model'}, its scores are in results.json")
    if not (run / "state" / "state.json").is_file():
        raise InputError(f"{run} was stopped before its state was saved (--save-every): start it again, --overwrite")
    config = vars(read_settings(run / "config.json"))
    for name, value in explicit.items():
        if name not in FREE and value != config[name]:
            raise InputError(f"{flag(name)} {value}: {run} was started with {config[name]} and continues with it")
    return RunSettings(**config | {"threads": None} | explicit)  # unless given again, the number that the state has


def read_settings(path: Path) -> RunSettings:
    """The settings in a run's ``config.json``; ``InputError`` names one that no option could set.

    One that is missing has its default: the run is older than the option. ``identity`` notices if it had another value.
    """
    config = {OPTION_ALIASES.get(name, name): value for name, value in read_json(path).items()}
    with reading(path):
        return RunSettings(**{name: stored(name, config.get(name, item.default)) for name, item in SETTINGS.items()})
