"""Pictures: histograms of lengths, heat maps of similarities, curves of runs. Needs matplotlib (extra ``plots``)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minisbert.core import InputError
from minisbert.system.files import atomic_file

MAX_NUMBERS = 15  # texts of a heat map; in more cells numbers would overlap


def require() -> Any:
    """Return matplotlib's ``Figure``; ``InputError`` if it is missing. Call it before the work, not after."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(f"plots need matplotlib ({error}): pip install 'minisbert[plots]'") from error
    return Figure


def new_figure(width: float, height: float) -> Any:
    return require()(figsize=(width, height), dpi=110, layout="constrained")


def draw_lengths(files: Mapping[str, Sequence[int]], unit: str) -> Any:
    """Draw a ``Figure`` with a histogram of the lengths of each file's texts, in ``unit`` such as tokens."""
    figure = new_figure(7, 3 * len(files))
    panels = figure.subplots(len(files), squeeze=False)[:, 0]
    for axes, (name, lengths) in zip(panels, files.items(), strict=True):
        axes.set_title(shorten(name, 60), fontsize=9, loc="left", parse_math=False)
        axes.set(xlabel=f"{unit} of a text", ylabel="texts")
        if lengths:
            width = -(-max(lengths) // 100)  # lengths per bar, for at most 100 bars
            # integers fall inside a bar, not on its edge
            axes.hist(lengths, np.arange(max(lengths), -width, -width)[::-1] + 0.5)
    return figure


def draw_heatmap(texts: Sequence[str], matrix: np.ndarray, similarity: str) -> Any:
    """Draw the ``similarity`` (N, N) of each text with each other as a ``Figure``.

    Cosines are coloured on a fixed scale of 0 to 1, so that two pictures can be compared.
    """
    size = 0.55 * len(texts) if len(texts) <= MAX_NUMBERS else 0.28 * len(texts)  # inches
    figure = new_figure(size + 5, size + 3.5)
    axes = figure.subplots()
    scale = {"vmin": 0, "vmax": 1} if similarity == "cosine" else {}
    image = axes.imshow(matrix, cmap="viridis", **scale)
    labels = [shorten(" ".join(text.split()), 48) for text in texts]
    axes.set_xticks(range(len(texts)), labels, rotation=45, ha="right", rotation_mode="anchor", parse_math=False)
    axes.set_yticks(range(len(texts)), labels, parse_math=False)
    if len(texts) <= MAX_NUMBERS:
        for (row, column), value in np.ndenumerate(matrix):
            dark = image.norm(value) < 0.6  # the map runs from dark blue to yellow
            axes.text(column, row, f"{value:z.2f}", ha="center", va="center", color="white" if dark else "black")
    figure.colorbar(image, label=similarity, shrink=0.7)
    return figure


def draw_curves(runs: Mapping[str, Sequence[Mapping[int, float]]], labels: Sequence[str]) -> Any:
    """Draw a ``Figure`` with a panel for each label: the values of each run by step, a colour for each run."""
    figure = new_figure(9, 7)
    panels = figure.subplots(len(labels), sharex=True)
    for curves in runs.values():
        for axes, curve in zip(panels, curves, strict=True):
            axes.plot(list(curve), list(curve.values()))
    for axes, label in zip(panels, labels, strict=True):
        axes.set_ylabel(label)
    panels[-1].set_xlabel("step")
    legend = figure.legend(panels[0].lines, [shorten(name, 100) for name in runs], loc="outside upper left")
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def shorten(text: str, most: int) -> str:
    """Cut a text to ``most`` characters, and escape those that a file cannot hold."""
    text = text if len(text) <= most else text[: most - 3] + "..."
    return text.encode(errors="backslashreplace").decode()


def save(figure: Any, target: Path) -> None:
    with atomic_file(target) as partial:
        figure.savefig(partial, format="png", metadata={"Software": None})
