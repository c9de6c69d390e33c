"""The picture of inspected files: lengths in tokens and characters. Needs matplotlib (the ``plots`` extra)."""

from collections.abc import Sequence
from typing import Any

from minisbert.diagnosis.inspect.inspected_file import InspectedFile
from minisbert.evaluation.plots import draw_histogram, new_figure, shorten


def draw_inspection(files: Sequence[InspectedFile]) -> Any:
    """A ``Figure``: for each file its lengths in tokens, with the limit, and in characters."""
    figure = new_figure((9, 3.2 * len(files)))
    panels = figure.subplots(len(files), 2, squeeze=False)
    for (left, right), found in zip(panels, files, strict=True):
        left.set_title(shorten(str(found.path), 60), fontsize=9, loc="left", parse_math=False)
        if not found.lengths or not found.lengths.tokens:
            right.set_axis_off()
            continue
        draw_histogram(left, found.lengths.tokens, found.lengths.limit)
        draw_histogram(right, found.lengths.characters, unit="characters")
        for axes in (left, right):
            axes.legend(fontsize=8)  # framed: it lies on the bars
    return figure
