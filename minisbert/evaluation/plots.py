"""Pictures: histograms of a file, heat maps of similarities, curves of runs.

They need matplotlib, the extra ``plots``.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from minisbert.core import InputError
from minisbert.system.files import atomic_file

# A picture's file does not say when and by which program it was made, so that equal pictures have
# equal files.
METADATA = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
LEGEND_CHARACTERS = 120  # of the names of runs that stand side by side, with their lines
MAX_NUMBERS = 15  # a heat map of more texts has no numbers: in its small cells they would overlap


def require() -> Any:
    """Return matplotlib's ``Figure``; ``InputError`` if it is missing. Call it before the work."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(f"plots need matplotlib ({error}): pip install -e '.[plots]'") from error
    return Figure


def new_figure(width: float, height: float) -> Any:
    figure_class = require()
    return figure_class(figsize=(width, height), dpi=200, layout="constrained")


def draw_histograms(
    lengths: Mapping[str, Sequence[int]],
    unit: str,
    scores: Mapping[str, Sequence[float]],
    limit: int | None = None,
) -> Any:
    """Draw a ``Figure`` with a row for each file: the lengths of its texts, and its scores.

    Lengths are in ``unit``; a line stands at the ``limit`` beyond which the model cuts a text. The
    files share their axes, so that they can be compared. If no file has scores, there is no column
    for them.
    """
    has_scores = any(len(values) > 0 for values in scores.values())
    columns = 2 if has_scores else 1
    figure = new_figure(6 * columns, 3.2 * len(lengths))
    panels = figure.subplots(len(lengths), columns, squeeze=False, sharex="col")

    all_lengths: list[int] = []
    for values in lengths.values():
        all_lengths += values
    last = last_length(all_lengths, limit)
    width = math.ceil(last / 100)  # lengths per bar, for at most 100 bars
    # The edges of the bars, from the last down; they end in .5, so that integers fall inside a bar.
    edges = np.arange(last, -width, -width)[::-1] + 0.5

    for row, name in zip(panels, lengths, strict=True):
        left = row[0]
        title = f"{shorten(name, 60)}\n{lengths_in_words(lengths[name], unit, limit, last)}"
        left.set_title(title, fontsize=9, loc="left", parse_math=False)
        left.set(xlabel=f"{unit} of a text", ylabel="texts")
        left.tick_params(labelbottom=True)  # which panels with a common axis have only below
        left.hist(lengths[name], edges)
        if limit is not None and limit <= last:
            left.axvline(limit, color="C3", linestyle="--")
            left.annotate(
                f"limit {limit:,}",
                (limit, 1),
                xycoords=("data", "axes fraction"),
                xytext=(-3, -3),
                textcoords="offset points",
                rotation=90,
                ha="right",
                va="top",
                color="C3",
                fontsize=8,
            )
        if has_scores:
            right = row[1]
            right.set_title("scores as the file has them", fontsize=9, loc="left")
            right.set(xlabel="score of a pair", ylabel="pairs")
            right.tick_params(labelbottom=True)
            right.hist(scores[name], 25)
            right.set_visible(bool(scores[name]))
    return figure


def last_length(lengths: Sequence[int], limit: int | None) -> int:
    """Return where the axis of lengths ends.

    That is the longest text, unless it is far beyond nearly all others: it would squeeze their bars
    into the edge. If the limit cuts a text, the axis goes on to the limit.
    """
    if not lengths:
        return 1
    longest = max(lengths)
    most = int(np.percentile(lengths, 99, method="higher"))  # 99 of 100 texts are not longer
    last = math.ceil(1.5 * most)
    if limit is not None and longest > limit:
        last = max(last, math.ceil(1.1 * limit))
    return min(longest, last)


def lengths_in_words(lengths: Sequence[int], unit: str, limit: int | None, last: int) -> str:
    """Say what a histogram that ends at ``last`` shows: how many texts are cut, and not drawn."""
    if not lengths:
        return "no texts"
    parts = [f"longest {max(lengths):,}"]
    if limit is not None:
        cut = sum(length > limit for length in lengths)
        parts.append(f"the limit of {limit:,} {unit} cuts {cut:,} of {len(lengths):,}")
    beyond = sum(length > last for length in lengths)
    if beyond:
        parts.append(f"{beyond:,} beyond this axis")
    return "; ".join(parts)


def draw_heatmap(texts: Sequence[str], matrix: np.ndarray, similarity: str) -> Any:
    """Draw the ``similarity`` (N, N) of each text with each other as a ``Figure``.

    Texts that are alike are beside each other. Cosines are coloured on a fixed scale of 0 to 1, so
    that two pictures can be compared.
    """
    order = by_likeness(matrix)
    texts = [texts[i] for i in order]
    matrix = matrix[np.ix_(order, order)]
    with_numbers = len(texts) <= MAX_NUMBERS
    cell = 0.55 if with_numbers else 0.28  # inches
    size = cell * len(texts)
    figure = new_figure(size + 5, size + 3.5)
    axes = figure.subplots()
    scale = {}
    if similarity == "cosine":
        scale = {"vmin": 0, "vmax": 1}
    image = axes.imshow(matrix, cmap="viridis", **scale)
    labels = [shorten(" ".join(text.split()), 48) for text in texts]
    axes.set_xticks(
        range(len(texts)), labels, rotation=45, ha="right", rotation_mode="anchor", parse_math=False
    )
    axes.set_yticks(range(len(texts)), labels, parse_math=False)
    if with_numbers:
        for (row, column), value in np.ndenumerate(matrix):
            is_dark = image.norm(value) < 0.6  # the map runs from dark blue to yellow
            color = "white" if is_dark else "black"
            axes.text(column, row, f"{value:z.2f}", ha="center", va="center", color=color)
    figure.colorbar(image, label=similarity, shrink=0.7)
    return figure


def by_likeness(matrix: np.ndarray) -> list[int]:
    """Order N texts by their similarities (N, N), so that texts that are alike are neighbours.

    Average linkage: the two closest groups merge, again and again, until one is left. A group is as
    close to another as their members are on average.
    """
    # At first each text is a group. Minus infinity stands between a group and itself, and between
    # any group and one that has merged into another.
    closeness = matrix.astype(np.float64)  # (N, N), of each group to each other
    np.fill_diagonal(closeness, -np.inf)
    groups = [[i] for i in range(len(matrix))]
    for _ in range(len(matrix) - 1):
        place = np.unravel_index(closeness.argmax(), closeness.shape)
        i = int(place[0])
        j = int(place[1])
        size_i = len(groups[i])
        size_j = len(groups[j])
        # The merged group takes the place of i.
        average = (size_i * closeness[i] + size_j * closeness[j]) / (size_i + size_j)
        closeness[i] = average
        closeness[:, i] = average
        closeness[i, i] = -np.inf
        closeness[j] = -np.inf
        closeness[:, j] = -np.inf
        groups[i] = join(groups[i], groups[j], matrix)
        groups[j] = []
    return max(groups, key=len, default=[])


def join(a: list[int], b: list[int], matrix: np.ndarray) -> list[int]:
    """Join two rows of texts at those of their ends that are most alike; either may be reversed."""
    pairs = [(a, b), (a, b[::-1]), (a[::-1], b), (a[::-1], b[::-1])]
    likeness = [matrix[left[-1], right[0]] for left, right in pairs]
    left, right = pairs[int(np.argmax(likeness))]
    return left + right


def draw_curves(runs: Mapping[str, Mapping[str, Mapping[int, float]]], title: str) -> Any:
    """Draw a ``Figure`` with a panel for each metric: its values by step, in a colour for each run.

    ``runs`` are ``{name of the run: {metric: {step: value}}}``.
    """
    labels = labels_of(runs)
    figure = new_figure(9, 1 + 2.2 * len(labels))
    panels = figure.subplots(len(labels), sharex=True, squeeze=False)[:, 0]
    lines = {}
    for number, (name, curves) in enumerate(runs.items()):
        for label, curve in curves.items():
            # A curve of few points, such as one evaluation an epoch, shows them as dots.
            marker = "." if len(curve) < 60 else None
            panel = panels[labels.index(label)]
            (line,) = panel.plot(list(curve), list(curve.values()), f"C{number}", marker=marker)
            lines[name] = line  # the run's last one, for the legend
    for axes, label in zip(panels, labels, strict=True):
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    panels[-1].set_xlabel("step")
    figure.suptitle(title, parse_math=False)
    if len(runs) > 1:
        names = [shorten(name, 100) for name in lines]
        # Names stand side by side below the panels while a line has room for them.
        widest = max(len(name) for name in names)
        columns = max(1, min(len(names), LEGEND_CHARACTERS // (widest + 8)))
        place = "outside lower center"
        legend = figure.legend(lines.values(), names, loc=place, ncols=columns, fontsize=9)
        for text in legend.get_texts():
            text.set_parse_math(False)
    return figure


def labels_of(runs: Mapping[str, Mapping[str, Mapping[int, float]]]) -> list[str]:
    """Return the metrics of all runs, each once: the first of every run, then the second, ...

    So metrics in the same place of their runs get neighbouring panels. A run may have fewer than
    another: None stands in their places.
    """
    labels: list[str] = []
    for labels_in_place in zip_longest(*runs.values()):
        for label in labels_in_place:
            if label is not None and label not in labels:
                labels.append(label)
    return labels


def shorten(text: str, most: int) -> str:
    """Cut a text to ``most`` characters, and escape those that a file cannot hold."""
    if len(text) > most:
        text = text[: most - 3] + "..."
    return text.encode(errors="backslashreplace").decode()


def save(figure: Any, target: Path) -> None:
    """Write a picture in the format of the file's name: .png, .svg or .pdf."""
    with atomic_file(target) as partial:
        figure.savefig(partial, format=target.suffix[1:], metadata=METADATA[target.suffix])
