"""Pictures: histograms of a file, heat maps of similarities, curves of runs. Needs matplotlib
(extra ``plots``).
"""

from collections.abc import Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np

from minisbert.core import InputError
from minisbert.system.files import atomic_file

# of a picture's file, and what says when and by which program it was made: left out, so that equal
# pictures are equal
METADATA = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
MAX_NUMBERS = 15  # texts of a heat map; in more cells numbers would overlap


def require() -> Any:
    """Return matplotlib's ``Figure``; ``InputError`` if it is missing. Call it before the work, not
    after.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(f"plots need matplotlib ({error}): pip install -e '.[plots]'") from error
    return Figure


def new_figure(width: float, height: float) -> Any:
    return require()(figsize=(width, height), dpi=200, layout="constrained")


def draw_histograms(
    lengths: Mapping[str, Sequence[int]], unit: str, scores: Mapping[str, Sequence[float]]
) -> Any:
    """Draw a ``Figure`` with a row for each file: the lengths of its texts in ``unit``, and its
    scores, if any.
    """
    columns = 2 if any(map(len, scores.values())) else 1
    figure = new_figure(6 * columns, 3 * len(lengths))
    panels = figure.subplots(len(lengths), columns, squeeze=False)
    for row, name in zip(panels, lengths, strict=True):
        row[0].set_title(shorten(name, 60), fontsize=9, loc="left", parse_math=False)
        row[0].set(xlabel=f"{unit} of a text", ylabel="texts")
        if lengths[name]:
            longest = max(lengths[name])
            width = -(-longest // 100)  # lengths per bar, for at most 100 bars
            # integers fall inside a bar, not on its edge
            row[0].hist(lengths[name], np.arange(longest, -width, -width)[::-1] + 0.5)
        for axes in row[1:]:
            axes.set(xlabel="score of a pair", ylabel="pairs")
            axes.hist(scores[name], 25)
            axes.set_visible(bool(scores[name]))
    return figure


def draw_heatmap(texts: Sequence[str], matrix: np.ndarray, similarity: str) -> Any:
    """Draw the ``similarity`` (N, N) of each text with each other as a ``Figure``, like texts
    beside each other.

    Cosines are coloured on a fixed scale of 0 to 1, so that two pictures can be compared.
    """
    order = by_likeness(matrix)
    texts, matrix = [texts[i] for i in order], matrix[np.ix_(order, order)]
    size = 0.55 * len(texts) if len(texts) <= MAX_NUMBERS else 0.28 * len(texts)  # inches
    figure = new_figure(size + 5, size + 3.5)
    axes = figure.subplots()
    scale = {"vmin": 0, "vmax": 1} if similarity == "cosine" else {}
    image = axes.imshow(matrix, cmap="viridis", **scale)
    labels = [shorten(" ".join(text.split()), 48) for text in texts]
    axes.set_xticks(
        range(len(texts)), labels, rotation=45, ha="right", rotation_mode="anchor", parse_math=False
    )
    axes.set_yticks(range(len(texts)), labels, parse_math=False)
    if len(texts) <= MAX_NUMBERS:
        for (row, column), value in np.ndenumerate(matrix):
            dark = image.norm(value) < 0.6  # the map runs from dark blue to yellow
            axes.text(
                column,
                row,
                f"{value:z.2f}",
                ha="center",
                va="center",
                color="white" if dark else "black",
            )
    figure.colorbar(image, label=similarity, shrink=0.7)
    return figure


def by_likeness(matrix: np.ndarray) -> list[int]:
    """Order N texts by average linkage over their similarities (N, N): the closest groups merge,
    like ends meeting.
    """
    near = matrix.astype(np.float64)
    np.fill_diagonal(near, -np.inf)
    groups = [[i] for i in range(len(matrix))]
    for _ in range(len(matrix) - 1):
        i, j = map(int, np.unravel_index(near.argmax(), near.shape))
        a, b = groups[i], groups[j]
        # a group is to others as its members are on average; the other one of the two is gone
        near[i] = near[:, i] = (len(a) * near[i] + len(b) * near[j]) / (len(a) + len(b))
        near[j] = near[:, j] = near[i, i] = -np.inf
        ends = product((a, a[::-1]), (b, b[::-1]))
        left, right = max(ends, key=lambda pair: matrix[pair[0][-1], pair[1][0]])
        groups[i] = left + right
    return max(groups, key=len, default=[])


def draw_curves(runs: Mapping[str, Mapping[str, Mapping[int, float]]], title: str) -> Any:
    """Draw a ``Figure`` with a panel for each metric: its values by step, a colour for each run
    that has it.
    """
    labels = list(
        dict.fromkeys(chain.from_iterable(zip(*runs.values(), strict=True)))
    )  # the losses first
    figure = new_figure(9, 1 + 2.2 * len(labels))
    panels = figure.subplots(len(labels), sharex=True, squeeze=False)[:, 0]
    lines = []
    for number, curves in enumerate(runs.values()):
        for label, curve in curves.items():
            # a few points are marked: those of a warm-up, or of an evaluation at each epoch
            marker = "." if len(curve) < 60 else None
            (line,) = panels[labels.index(label)].plot(
                list(curve), list(curve.values()), f"C{number}", marker=marker
            )
        lines.append(line)
    for axes, label in zip(panels, labels, strict=True):
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    panels[-1].set_xlabel("step")
    figure.suptitle(title, parse_math=False)
    if len(runs) > 1:
        legend = figure.legend(
            lines, [shorten(name, 100) for name in runs], loc="outside lower left"
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
    return figure


def shorten(text: str, most: int) -> str:
    """Cut a text to ``most`` characters, and escape those that a file cannot hold."""
    text = text if len(text) <= most else text[: most - 3] + "..."
    return text.encode(errors="backslashreplace").decode()


def save(figure: Any, target: Path) -> None:
    """Write a picture in the format of the file's name: .png, .svg or .pdf."""
    with atomic_file(target) as partial:
        figure.savefig(partial, format=target.suffix[1:], metadata=METADATA[target.suffix])
