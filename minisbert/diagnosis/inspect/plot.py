"""The picture of inspected files: lengths in tokens and characters, labels. Needs matplotlib (the ``plots`` extra)."""

from collections.abc import Sequence
from typing import Any

from minisbert.diagnosis.inspect.inspected_file import InspectedFile
from minisbert.evaluation.plots import COLOURS, draw_histogram, new_figure, shorten, tidy


def draw_inspection(files: Sequence[InspectedFile]) -> Any:
    """A ``Figure``: for each file its lengths in tokens with the limit, those in characters, and its labels."""
    figure = new_figure((13, 3.2 * len(files)))
    panels = figure.subplots(len(files), 3, squeeze=False)
    for (left, middle, right), found in zip(panels, files, strict=True):
        left.set_title(shorten(str(found.path), 60), fontsize=9, loc="left", parse_math=False)
        if found.lengths and found.lengths.tokens:
            draw_histogram(left, found.lengths.tokens, found.lengths.limit)
            draw_histogram(middle, found.lengths.characters, unit="characters")
            for axes in (left, middle):
                axes.legend(fontsize=8)  # framed: it lies on the bars
        else:
            empty(left, "no lengths")
            empty(middle, "")
        if len(found.labels):
            draw_labels(right, found)
        else:
            empty(right, f"{found.name}: no labels")
    return figure


def draw_labels(axes: Any, found: InspectedFile) -> None:
    bars = found.label_counts()
    axes.barh(range(len(bars)), list(bars.values()), color=COLOURS[0])
    axes.set_yticks(range(len(bars)), list(bars), fontsize=8)
    axes.set(xlabel="rows", title=f"labels of {found.name}")
    axes.title.set_fontsize(9)
    axes.invert_yaxis()
    tidy([axes], integer_axes=[axes.xaxis])


def empty(axes: Any, text: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
