"""The formats of training data: where the label and the texts of a row are, and which rows are refused.

``read_rows`` serves training and ``inspect`` alike: what training refuses goes to ``rows.fault``, which raises or
collects.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from minisbert.core import InputError, one_line
from minisbert.data.rows import SURROGATE, Rows, holds_json
from minisbert.models.scoring import MAX_SCORE

NLI_LABELS = ("contradiction", "entailment", "neutral")  # numbered 0, 1, 2 as in SBERT's own script
NLI_KEYS = ("gold_label", "sentence1", "sentence2")
SCORED_COLUMNS = ("score", "sentence1", "sentence2")
DUPLICATE_COLUMNS = (("is_duplicate", "question1", "question2"), ("label", "sentence1", "sentence2"))
PAIR_COLUMNS = (
    *(("anchor", "positive"), ("query", "positive"), ("query", "answer"), ("question", "answer")),
    ("sent0", "sent1"),  # SimCSE's file
)
NEGATIVES = re.compile(r"(negatives?|hard_neg)(_?\d+)?")  # negative_1, negative_2, ... are sentence-transformers'


class Row(NamedTuple):
    """A row that training reads: its line, its stripped texts, its label as a number and as it is written."""

    line: int
    texts: list[str]
    label: float | None = None
    cell: str = ""

    @property
    def skipped(self) -> str:
        """Why training skips the row, by the name of the finding."""
        return "no-gold-label" if self.cell == "-" else "" if all(self.texts) else "empty-text"


class Layout(NamedTuple):
    """Which columns of a table are read, the label's first, and how many a row has."""

    columns: tuple[int, ...]
    width: int
    expected: str
    header: bool = False
    wider: bool = False  # may a row have more columns


@dataclass(frozen=True)
class Format:
    """A format, the data set with such rows, if there is one, and what a file of them contains."""

    name: str
    own: str | None
    file: str
    json: bool | None  # whether its lines are JSON; None: either
    layout: Callable[[Sequence[str]], Layout] | None = None  # of a table, by its first row in lower case
    cells: Callable[[Any], Any] | None = (
        None  # of a line's JSON value, the label first; None if it is of another format
    )
    parse: Callable[[str, float | None], float | None] | None = None  # the label; ValueError says what is wrong with it


# --------------------------------------------------------------------------------------- the formats


def scored_layout(first: Sequence[str]) -> Layout:
    start = 4 if len(first) >= 7 else 0  # STS-B's rows have 7 columns, and some have sources after them
    header = tuple(first[start : start + 3]) == SCORED_COLUMNS
    expected = f"3 are needed ({', '.join(SCORED_COLUMNS)}) or STS-B's 7"
    return Layout((start, start + 1, start + 2), start + 3, expected, header, wider=start > 0)


def labelled_layout(first: Sequence[str]) -> Layout:
    for names in DUPLICATE_COLUMNS:
        if set(names) <= set(first):
            return Layout(tuple(map(first.index, names)), len(first), f"the header has {len(first)}", True)
    return Layout((0, 1, 2), 3, f"3 are needed ({', '.join(DUPLICATE_COLUMNS[0])})")


def tuple_layout(first: Sequence[str]) -> Layout:
    expected, names = f"the first row has {len(first)}", tuple_columns(first)
    if names:
        return Layout(tuple(map(first.index, names)), len(first), expected, True)
    return Layout(tuple(range(len(first))), len(first), expected)


def tuple_columns(names: Sequence[str]) -> list[str] | None:
    """Those of anchor, positive and negatives among the names, in this order; None if there is no pair."""
    pair = next((pair for pair in PAIR_COLUMNS if set(pair) <= set(names)), None)
    return pair and [*pair, *(name for name in names if NEGATIVES.fullmatch(name))]


def nli_cells(value: Any) -> Any:
    if isinstance(value, dict):
        return [value.get(key) for key in NLI_KEYS]
    return value if isinstance(value, list) and len(value) == len(NLI_KEYS) else None


def tuple_cells(value: Any) -> Any:
    if isinstance(value, dict):
        found = [value[key] for key in tuple_columns(list(value)) or ()]
        value = [text for one in found for text in (one if isinstance(one, list) else [one])]
    return value if isinstance(value, list) and len(value) > 1 else None


def parse_score(cell: str, scale: float | None = MAX_SCORE) -> float:
    """A score of 0 to ``scale`` on the scale of 0 to 5; without a scale any finite number as it is."""
    try:
        score = float(cell)
    except ValueError as error:
        raise ValueError(f"the score {one_line(cell)} is not a number") from error
    low, high = (0.0, scale) if scale else (-math.inf, math.inf)
    if not low <= score <= high or not math.isfinite(score):  # the first is also true of NaN
        raise ValueError(f"the score {cell.strip()} is not on the scale of 0 to {high:g}; give its --scale")
    return score * (MAX_SCORE / scale) if scale else score


def parse_class(cell: str, scale: float | None = None) -> float:
    if cell not in ("0", "1"):
        raise ValueError(f"the label {one_line(cell)} is not 0 or 1")
    return float(cell)


def parse_nli(cell: str, scale: float | None = None) -> float | None:
    if cell != "-" and cell not in NLI_LABELS:
        raise ValueError(f"unknown label {one_line(cell)}; the labels are {', '.join(NLI_LABELS)} and -")
    return None if cell == "-" else float(NLI_LABELS.index(cell))


SCORED = Format(
    *("scored pairs", "stsb", "scored pairs (score of 0 to 5, sentence1, sentence2)", False),
    layout=scored_layout,
    parse=parse_score,
)
LABELLED = Format(
    *("labelled pairs", "quora", "duplicates (label 0 or 1, sentence1, sentence2)", False),
    layout=labelled_layout,
    parse=parse_class,
)
NLI = Format(
    *("NLI", "snli", "NLI rows (.jsonl or .zip with gold_label, sentence1, sentence2)", True),
    cells=nli_cells,
    parse=parse_nli,
)
PAIRS = Format(
    *("pairs", "snli", "pairs or triplets (anchor, positive, negatives) or NLI rows (.jsonl or .zip)", None),
    layout=tuple_layout,
    cells=tuple_cells,
)
TRIPLETS = Format(
    *("triplets", "snli", "triplets (anchor, positive, negative) or NLI rows (.jsonl or .zip)", None),
    layout=tuple_layout,
    cells=tuple_cells,
)
SENTENCES = Format("sentences", None, "plain sentences, one a line (.txt or .txt.gz)", False)


# ------------------------------------------------------------------------------------------- reading


def read_file(
    path: str | Path, form: Format, limit: int | None = None, split: str = "", scale: float | None = MAX_SCORE
) -> tuple[list[Row], int]:
    """The rows of a file without those that are skipped, and how many these are; ``limit`` counts both."""
    if limit is not None and limit < 1:
        raise InputError(f"limit must be at least 1, not {limit}")
    found = list(islice(read_rows(Rows(path, split), form, scale), limit))
    kept = [row for row in found if not row.skipped]
    if not kept:
        raise InputError(f"{path} holds no usable rows" + (f" ({len(found)} were skipped)" if found else ""))
    return kept, len(found) - len(kept)


def read_rows(rows: Rows, form: Format, scale: float | None = MAX_SCORE) -> Iterator[Row]:
    """The rows of a file, as they are read, with those that training skips."""
    width = 0
    for line, cells in row_cells(rows, form):
        cell = cells.pop(0) if form.parse else ""
        width = width or len(cells)
        label = None
        try:
            label = form.parse(cell, scale) if form.parse else None
        except ValueError as error:
            rows.fault("label-unreadable", line, str(error), cell)
            continue
        if form is SCORED and not all(cells):
            rows.fault("empty-text", line, "an empty sentence")
        elif len(cells) != width:
            rows.fault("ragged", line, f"{len(cells)} texts; the first row has {width}", f"{len(cells)}, not {width}")
        elif form in (PAIRS, TRIPLETS) and width < 2:
            rows.fault("one-column", line, "1 column; anchor and positive are needed")
        else:
            yield Row(line, cells, label, cell)


def row_cells(rows: Rows, form: Format) -> Iterator[tuple[int, list[str]]]:
    """Line number and stripped cells of each row, the label's first."""
    if form is SENTENCES:
        return ((number, [line.strip()]) for number, line in enumerate(rows.lines(), start=1))
    is_json = holds_json(rows.path) if form.json is None else form.json
    return json_cells(rows, form) if is_json else table_cells(rows, form)


def table_cells(rows: Rows, form: Format) -> Iterator[tuple[int, list[str]]]:
    layout, header = None, None
    for line, cells in rows.cells():
        if layout is None:
            layout = form.layout([cell.lower() for cell in cells])
            if layout.header:
                header = cells
                continue
        if len(cells) < layout.width or (len(cells) > layout.width and not layout.wider):
            name = f"{len(cells)} columns"
            rows.fault("ragged", line, f"{name}; {layout.expected}", f"{name}, not {layout.width}")
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
