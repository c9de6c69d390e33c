"""The recipes of ``recipes.toml``: named runs, each a source, the data it needs, the expected score, and options."""

import tomllib
from pathlib import Path
from typing import Any

RECIPES = Path(__file__).with_suffix(".toml")
FORMER = {"sts-joint": "sts-cross-encoder", "sts-cross": "sts-cross-attention"}  # names, still accepted
FORMER |= {"sts-joint-published": "sts-cross-encoder-published"}
ABOUT = ("source", "needs", "expected")  # describe a recipe; all its other keys are options


def recipes() -> dict[str, dict[str, Any]]:
    """The recipes by name, in the order of the file."""
    return tomllib.loads(RECIPES.read_text(encoding="utf-8"))


def list_recipes() -> str:
    """A few lines per recipe: its source, the data it needs, the expected score, its options."""
    blocks = []
    for name, recipe in recipes().items():
        flags = " ".join(
            f"--{key} {value}" if value is not True else f"--{key}" for key, value in recipe.items() if key not in ABOUT
        )
        blocks.append("\n".join([name, *(f"  {key:<9} {recipe[key]}" for key in ABOUT), f"  {'options':<9} {flags}"]))
    return "\n\n".join(blocks)
