"""What the lessons share: paths, printed numbers, comparisons, guesses, figures.

Nothing to learn here; a lesson can be read without it.
"""

import ast
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "weights" / "tiny"  # a random BERT of 2 layers and width 24, in git
GOLDEN = ROOT / "tests" / "reference"  # what transformers computed

if sys.path[0] != str(ROOT):  # the package of this checkout, which you edit, not an installed copy
    sys.path.insert(0, str(ROOT))

from lessons.grader.pieces import PIECES, mine  # noqa: E402
from lessons.grader.result import defined  # noqa: E402
from lessons.parts import chapter_file, chosen_units  # noqa: E402
from lessons.predictions import predict  # noqa: E402, F401
from minisbert.core import bert  # noqa: E402
from minisbert.system import devices  # noqa: E402, F401  # makes the first result as exact as the next

bert.FUSED = False  # the formulas as the book writes them out; lesson 26 is about the others

torch.set_printoptions(precision=4, sci_mode=False, linewidth=110)
np.set_printoptions(precision=4, suppress=True, linewidth=110)


def largest_difference(a: Any, b: Any) -> float:
    """The largest absolute difference of two arrays or tensors of the same shape, in float64."""
    a = as_double(a)
    b = as_double(b)
    if a.shape != b.shape:
        raise ValueError(
            f"shapes {tuple(a.shape)} and {tuple(b.shape)} cannot be compared number by number"
        )
    return (a - b).abs().max().item()


def as_double(x: Any) -> torch.Tensor:
    if isinstance(x, torch.Tensor):
        return x.detach().double()
    return torch.tensor(x, dtype=torch.double)


def chapter(name: str, *wanted: str) -> None:
    """Print definitions of a chapter of the book, and below each your own if you have written it.

    ``chapter("bert", "attention", "Attention.split")``; without definitions, the whole chapter.
    """
    path = chapter_file(name)
    lines = path.read_text(encoding="utf-8").splitlines()
    for unit in chosen_units(name, wanted):
        print(f"{path.relative_to(ROOT).as_posix()}, lines {unit.first} to {unit.last}\n")
        print("\n".join(lines[unit.first - 1 : unit.last]).strip("\n") + "\n")
        if own := own_version(f"{name}.{unit.name}"):
            print(own + "\n")


def own_version(master: str) -> str:
    """What you have written of a piece, with its place; empty if there is nothing yet."""
    piece = PIECES.get(master)
    path = mine(piece.lesson) if piece else None
    if path is None or not path.is_file():
        return ""
    try:
        text = path.read_text(encoding="utf-8-sig")
        node = defined(ast.parse(text), piece.path)
    except SyntaxError as error:
        return f"yours: {path.name}, line {error.lineno}: not Python: {error.msg}"
    if node is None or "NotImplementedError" in ast.unparse(node):
        return ""
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    return "\n".join([f"yours: {path.name}, lines {node.lineno} to {node.end_lineno}\n", *lines])


def figure(name: str, draw: Callable[[Any], Any]) -> None:
    """Save what ``draw(plt)`` returns as ``NAME.png``, and say where, or that plots are missing.

    To ``lessons/mine/figures/``, which git ignores. ``MINISBERT_FIGURES=lessons/figures`` renews
    those in git.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        missing = "matplotlib is missing (pip install -e '.[plots]')"
        print(f"no figure: {missing}; see lessons/figures/{name}.png")
        return
    plt.rcParams["figure.dpi"] = 200  # in a notebook, where a page scales it down
    plt.rcParams.update(
        {"font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False}
    )
    drawn = draw(plt)
    folder = Path(os.environ.get("MINISBERT_FIGURES") or ROOT / "lessons" / "mine" / "figures")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    drawn.savefig(path, dpi=100, metadata={"Software": None})
    print(f"figure: {os.path.relpath(path)}")
    if "ipykernel" not in sys.modules:  # a notebook shows it below the cell
        plt.close(drawn)


def heatmap(
    axes: Any,
    values: Any,
    rows: Sequence[str],
    columns: Sequence[str],
    numbers: str | None = None,
    low: float = 0.0,
    high: float = 1.0,
) -> Any:
    """A matrix as coloured squares with names; ``numbers`` such as ``.2f`` writes each value."""
    values = np.asarray(values)
    image = axes.imshow(values, cmap="Blues", vmin=low, vmax=high)
    rotation = 45 if max(map(len, columns)) > 2 else 0
    axes.set_xticks(range(len(columns)), columns, rotation=rotation, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if numbers:
        for (i, j), value in np.ndenumerate(values):
            ink = "white" if value > (low + 3 * high) / 4 else "black"
            axes.text(j, i, f"{value:{numbers}}", ha="center", va="center", color=ink)
    return image
