"""Pictures: a histogram of lengths, similarities as a heat map. Needs matplotlib (the ``plots`` extra)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minisbert.core import InputError
from minisbert.system.files import atomic_file

# a palette for every kind of colour vision (Okabe & Ito 2008); dashes let a line underneath show through
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MAX_NUMBERS = 15  # texts of a heat map; in more cells numbers would overlap


def require() -> None:
    """``InputError`` if matplotlib is missing. Call it before the work, not after."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise InputError(f"plots need matplotlib ({error}): pip install 'minisbert[plots]'") from error


def new_figure(inches: tuple[float, float]) -> Any:
    require()
    from matplotlib.figure import Figure

    return Figure(figsize=inches, dpi=110, layout="constrained")


def draw_histogram(axes: Any, tokens: Sequence[int], limit: int | None = None, unit: str = "tokens") -> None:
    """Draw the lengths of texts; a limit beyond twice the longest text becomes an arrow at the right edge."""
    longest = max(tokens)
    width = -(-longest // 100)  # lengths per bar, for at most 100 bars
    # integers fall inside a bar, not on its edge
    edges = np.arange(longest, -width, -width)[::-1] + 0.5
    axes.stairs(np.histogram(tokens, edges)[0], edges, fill=True, color="#b8cbd9")
    median, most = np.median(tokens), np.percentile(tokens, 95)
    axes.axvline(median, color=COLOURS[0], linewidth=2, label=f"median: {median:g}")
    axes.axvline(most, color=COLOURS[1], linewidth=2, linestyle="--", label=f"95th percentile: {most:g}")
    axes.set(xlim=(0, 1.02 * (longest + 0.5)), xlabel=f"{unit} of a text", ylabel=f"texts, in bars {width} wide")
    tidy([axes], integer_axes=[axes.xaxis, axes.yaxis])
    if limit is None:
        return
    reached = sum(length >= limit for length in tokens)
    label = f"the model's limit: {limit:,} (reached by {reached:,} of {len(tokens):,} texts)"
    if limit <= 2 * longest:
        axes.set_xlim(0, 1.02 * max(longest + 0.5, limit))
        axes.axvline(limit, color="black", linewidth=2, linestyle=":", label=label)
    else:
        axes.plot(1, 0.5, ">k", markersize=12, transform=axes.transAxes, clip_on=False, linestyle="", label=label)


def draw_lengths(files: Sequence[tuple[str, Sequence[int], Sequence[int], int]]) -> Any:
    """Draw a ``Figure`` of lengths in tokens and in characters for each (title, tokens, characters, limit)."""
    figure = new_figure((9, 3.2 * len(files)))
    panels = figure.subplots(len(files), 2, squeeze=False)
    for (left, right), (title, tokens, characters, limit) in zip(panels, files, strict=True):
        left.set_title(shorten(title, 60), fontsize=9, loc="left", parse_math=False)
        if not tokens:
            right.set_axis_off()
            continue
        draw_histogram(left, tokens, limit)
        draw_histogram(right, characters, unit="characters")
        for axes in (left, right):
            axes.legend(fontsize=8)  # framed: it lies on the bars
    return figure


def draw_heatmap(texts: Sequence[str], matrix: np.ndarray, similarity: str) -> Any:
    """Draw the ``similarity`` (N, N) of each text with each other as a ``Figure``.

    Cosines are coloured on a fixed scale of 0 to 1, so that two pictures can be compared.
    """
    size = 0.55 * len(texts) if len(texts) <= MAX_NUMBERS else 0.28 * len(texts)  # inches
    figure = new_figure((size + 5, size + 3.5))
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
    figure.colorbar(image, label=similarity, shrink=0.7, extend="min" if scale and matrix.min() < 0 else "neither")
    return figure


def shorten(text: str, most: int) -> str:
    """Cut a text to ``most`` characters, and escape those that a file cannot hold."""
    text = text if len(text) <= most else text[: most - 3] + "..."
    return text.encode(errors="backslashreplace").decode()


def tidy(panels: Sequence[Any], integer_axes: Sequence[Any]) -> None:
    """Keep only the lines that help to read a value; label ``integer_axes`` with whole numbers."""
    for axes in panels:
        axes.grid(color="#e5e5e5", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    for axis in integer_axes:
        axis.get_major_locator().set_params(integer=True)
        axis.set_major_formatter("{x:,.0f}")


def save(figure: Any, target: Path) -> None:
    with atomic_file(target) as partial:
        figure.savefig(partial, format="png", metadata={"Software": None})
