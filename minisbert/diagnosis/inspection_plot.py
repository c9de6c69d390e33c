"""The picture of inspected files: lengths in tokens and characters, labels. Needs matplotlib (the ``plots`` extra)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minisbert.diagnosis.inspected_file import InspectedFile
from minisbert.diagnosis.text_checks import Lengths
from minisbert.evaluation.plots import COLOURS, require, save, shorten, tidy

MOST_BARS = 60  # of a histogram of lengths


def inspection(files: Sequence[InspectedFile], target: Path) -> None:
    """Draw a row of panels for each file to ``target``, a PNG file."""
    require()
    save(draw_inspection(files), target)


def draw_inspection(files: Sequence[InspectedFile]) -> Any:
    """A ``Figure``: for each file its lengths in tokens with the limit, those in characters, and its labels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.2 * len(files)), dpi=110, layout="constrained")
    panels = figure.subplots(len(files), 3, squeeze=False)
    for (left, middle, right), found in zip(panels, files, strict=True):
        left.set_title(shorten(str(found.path), 60), fontsize=9, loc="left", parse_math=False)
        if found.lengths and found.lengths.counts:
            draw_lengths(left, found.lengths.counts, "tokens", found.lengths)
            draw_lengths(middle, found.lengths.sizes, "characters")
        else:
            empty(left, "no lengths")
            empty(middle, "")
        if len(found.labels):
            draw_labels(right, found)
        else:
            empty(right, f"{found.name}: no labels")
    return figure


def draw_lengths(axes: Any, lengths: Sequence[int], unit: str, limited: Lengths | None = None) -> None:
    """A histogram with the median; and the limit, if it cuts texts."""
    counts = np.array(lengths)
    width = -(-int(counts.max()) // MOST_BARS)  # lengths per bar
    edges = np.arange(0.5, counts.max() + width + 0.5, width)
    axes.stairs(np.histogram(counts, edges)[0], edges, fill=True, color="#b8cbd9")
    axes.axvline(np.median(counts), color=COLOURS[0], linewidth=2, label=f"median: {np.median(counts):g}")
    if limited and limited.limit <= edges[-1]:
        cut = f"limit: {limited.limit:,}, cuts {limited.cut:,} of {len(counts):,}"
        axes.axvline(limited.limit, color=COLOURS[1], linewidth=2, linestyle="--", label=cut)
    axes.set(xlabel=f"{unit} of a text", ylabel="texts", xlim=(0, edges[-1]))
    axes.legend(frameon=False, fontsize=8)
    tidy([axes], integer_axes=[axes.yaxis])


def draw_labels(axes: Any, found: InspectedFile) -> None:
    bars = found.label_bars()
    axes.barh(range(len(bars)), list(bars.values()), color=COLOURS[0])
    axes.set_yticks(range(len(bars)), list(bars), fontsize=8)
    axes.set(xlabel="rows", title=f"labels of {found.name}")
    axes.title.set_fontsize(9)
    axes.invert_yaxis()
    tidy([axes], integer_axes=[axes.xaxis])


def empty(axes: Any, text: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
