"""The formats of training data: the position of the label and the texts in a row, and the rows that are refused.

``read_rows`` serves training and ``inspect``: rows that training refuses go to ``rows.fault``, which raises or
collects.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from minisbert.core import InputError, one_line
from minisbert.data.rows import SURROGATE, Rows, holds_json
from minisbert.models.pair_scorer import MAX_SCORE

NLI_LABELS = ("contradiction", "entailment", "neutral")  # numbered 0, 1, 2 as in SBERT's own script
NO_GOLD = "-"  # the label of an NLI row on which the annotators did not agree
NEGATIVES = re.compile(r"(negatives?|hard_neg)(_?\d+)?")  # negative_1, negative_2, ... are sentence-transformers'


class Row(NamedTuple):
    """A row that training reads: its line, its stripped texts, its label as a number and as in the file."""

    line: int
    texts: list[str]
    label: float | None = None
    cell: str = ""

    @property
    def skipped(self) -> str:
        """The name of the finding for which training skips the row; empty if it does not."""
        return "no-gold-label" if self.cell == NO_GOLD else "" if all(self.texts) else "empty-text"


class Layout(NamedTuple):
    """Which columns of a table are read, the label's first, and how many a row has."""

    columns: tuple[int, ...]
    width: int
    header: bool
    wider: bool  # whether a row may have more columns


@dataclass(frozen=True)
class Format:
    """A format: its name, the data set that has it by default, and the contents of a file in words."""

    name: str
    dataset: str | None
    file: str
    json: bool | None  # whether its lines are JSON; None: either
    headers: tuple[tuple[str, ...], ...] = ()  # what the columns or keys may be called, the label's first if it has one
    labelled: bool = True
    classes: tuple[str, ...] = ()  # the labels, numbered from 0; scores have none

    def columns(self, names: Sequence[str]) -> list[str] | None:
        """Those of the names that are read, in the order of a row; None if no header is among them."""
        found = next((header for header in self.headers if set(header) <= set(names)), None)
        return found and [*found, *(name for name in names if not self.labelled and NEGATIVES.fullmatch(name))]

    def layout(self, first: Sequence[str]) -> Layout:
        """The layout of a table by its first row, in lower case."""
        stsb = self is SCORED and len(first) >= 7  # STS-B's rows have 7 columns, and some have sources after them
        if names := self.columns(first):
            columns = tuple(map(first.index, names))
        else:
            columns = ((4, 5, 6) if stsb else (0, 1, 2)) if self.labelled else tuple(range(len(first)))
        width = len(first) if names and not stsb else max(columns, default=0) + 1
        return Layout(columns, width, names is not None, stsb)

    def cells(self, value: Any) -> list[Any] | None:
        """The label, if there is one, and the texts of a line's JSON value; None if it is of another format."""
        if isinstance(value, dict):
            found = [value[name] for name in self.columns(list(value)) or ()]
            value = [text for one in found for text in (one if isinstance(one, list) and not self.labelled else [one])]
        fits = isinstance(value, list) and (len(value) == 3 if self.labelled else len(value) > 1)
        return value if fits else None

    def label(self, cell: str, scale: float | None) -> float:
        """A label as a number; ``ValueError`` says what is wrong with it."""
        if not self.classes:
            return parse_score(cell, scale)
        if cell not in self.classes:
            raise ValueError(f"the label {one_line(cell)} is not {' or '.join(self.classes)}")
        return float(self.classes.index(cell))


def parse_score(cell: str, scale: float | None = MAX_SCORE) -> float:
    """A score of 0 to ``scale``, converted to 0 to 5; without a scale any finite number, unchanged."""
    try:
        score = float(cell)
    except ValueError as error:
        raise ValueError(f"the score {one_line(cell)} is not a number") from error
    low, high = (0.0, scale) if scale else (-math.inf, math.inf)
    if not low <= score <= high or not math.isfinite(score):  # the first is also true of NaN
        raise ValueError(f"the score {cell.strip()} is not on the scale of 0 to {high:g}; give its --scale")
    return score * (MAX_SCORE / scale) if scale else score


# --------------------------------------------------------------------------------------- the formats

SCORED = Format(
    *("scored pairs", "stsb", "scored pairs (score of 0 to 5, sentence1, sentence2)", False),
    headers=(("score", "sentence1", "sentence2"),),
)
LABELLED = Format(
    *("labelled pairs", "quora", "duplicates (label 0 or 1, sentence1, sentence2)", False),
    headers=(("is_duplicate", "question1", "question2"), ("label", "sentence1", "sentence2")),
    classes=("0", "1"),
)
NLI = Format(
    *("NLI", "snli", "NLI rows (.jsonl or .zip with gold_label, sentence1, sentence2)", True),
    headers=(("gold_label", "sentence1", "sentence2"),),
    classes=(*NLI_LABELS, NO_GOLD),
)
PAIR_COLUMNS = (
    *(("anchor", "positive"), ("query", "positive"), ("query", "answer"), ("question", "answer")),
    ("sent0", "sent1"),  # SimCSE's file
)
PAIRS = Format(
    *("pairs", "snli", "pairs or triplets (anchor, positive, negatives) or NLI rows (.jsonl or .zip)", None),
    headers=PAIR_COLUMNS,
    labelled=False,
)
TRIPLETS = Format(
    *("triplets", "snli", "triplets (anchor, positive, negative) or NLI rows (.jsonl or .zip)", None),
    headers=PAIR_COLUMNS,
    labelled=False,
)
SENTENCES = Format("sentences", None, "plain sentences, one a line (.txt or .txt.gz)", False, labelled=False)

# ------------------------------------------------------------------------------------------- reading


def read_file(
    path: str | Path, form: Format, limit: int | None = None, split: str = "", scale: float | None = MAX_SCORE
) -> tuple[list[Row], int]:
    """The rows of a file without the skipped ones, and the number of those; ``limit`` counts both."""
    found = list(islice(read_rows(Rows(path, split), form, scale), limit))
    kept = [row for row in found if not row.skipped]
    if not kept:
        raise InputError(f"{path} holds no usable rows" + (f" ({len(found)} were skipped)" if found else ""))
    return kept, len(found) - len(kept)


def read_rows(rows: Rows, form: Format, scale: float | None = MAX_SCORE) -> Iterator[Row]:
    """Yield the rows of a file, including those that training skips."""
    if form is SENTENCES:
        yield from (Row(number, [line.strip()]) for number, line in enumerate(rows.lines(), start=1))
        return
    is_json = holds_json(rows.path) if form.json is None else form.json
    width = 0
    for line, cells in (json_cells if is_json else table_cells)(rows, form):
        cell = cells.pop(0) if form.labelled else ""
        width = width or len(cells)
        try:
            label = form.label(cell, scale) if form.labelled else None
        except ValueError as error:
            rows.fault("label-unreadable", line, str(error), cell)
            continue
        if form is SCORED and not all(cells):
            rows.fault("empty-text", line, "an empty sentence")
        elif len(cells) != width:
            rows.fault("ragged", line, f"{len(cells)} texts; the first row has {width}", f"{len(cells)}, not {width}")
        elif width < 2:
            rows.fault("one-column", line, "1 column; anchor and positive are needed")
        else:
            yield Row(line, cells, label, cell)


def table_cells(rows: Rows, form: Format) -> Iterator[tuple[int, list[str]]]:
    """Line number and stripped cells of each row, the label's first."""
    layout, header = None, None
    for line, cells in rows.cells():
        if layout is None:
            layout = form.layout([cell.lower() for cell in cells])
            if layout.header:
                header = cells
                continue
        if len(cells) < layout.width or (len(cells) > layout.width and not layout.wider):
            found, named = f"{len(cells)} columns", form.labelled and not (layout.header or layout.wider)
            needed = ", ".join(form.headers[0]) if named else "as in the first row"
            rows.fault("ragged", line, f"{found}; {layout.width} are needed ({needed})", f"{found}, not {layout.width}")
        elif cells == header:
            rows.fault("header-inside", line, "the header again; delete the line")
        else:
            yield line, [cells[i] for i in layout.columns]


def json_cells(rows: Rows, form: Format) -> Iterator[tuple[int, list[str]]]:
    for line, value in rows.values():
        cells = form.cells(value)
        if cells is None or not all(isinstance(cell, str) for cell in cells):
            rows.fault("missing-key", line, f"expected {form.file} as strings, not {one_line(value)}", value)
        elif SURROGATE.search("".join(cells)):
            rows.fault("surrogate", line, f"not valid Unicode: a lone surrogate in {one_line(value)}")
        else:
            yield line, [cell.strip() for cell in cells]
