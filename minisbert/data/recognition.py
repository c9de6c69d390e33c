"""Which format a file has: by its header or keys, or by what the columns of its first rows hold."""

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from minisbert.core import InputError
from minisbert.data.formats import (
    ANCHORS,
    LABELLED,
    MULTILABEL,
    NLI,
    NLI_LABELS,
    PAIRS,
    POSITIVES,
    SCORE_NAMES,
    SCORED,
    SENTENCES,
    Format,
    is_header,
    mostly_numbers,
    number,
)
from minisbert.data.reader import SAMPLE, holds_json, shown
from minisbert.data.rows import Rows
from minisbert.data.texts import NAMES

NUMBER_FIRST = re.compile(r"-?[\d.]+,[^,]+,")  # scored pairs between commas, whatever the file is called


def recognise(path: str | Path) -> Format:
    """The format of a file, by its header or keys, and by what its first hundred rows hold.

    Raises ``InputError`` if training reads no such file.
    """
    rows = Rows(path, "train")
    if holds_json(path):
        sample = [value for _, value in islice(rows.values(), SAMPLE)]
        if sample and isinstance(sample[0], dict):
            fields = [{key.lower(): value for key, value in one.items()} for one in sample if isinstance(one, dict)]
            names = list(fields[0])
            return by_names(path, names, {name: [one.get(name) for one in fields] for name in names})
        return by_values(sample)
    lines = rows.lines()
    first = next((line for line in lines if line.strip()), "")
    tables = "\t" in first or {".csv", ".tsv"} & set(Path(path).suffixes)
    if not tables and NUMBER_FIRST.match(first) is None:
        return SENTENCES
    cells = [row for _, row in islice(rows.cells(), SAMPLE)]
    cells = [row for row in cells if len(row) == len(cells[0])]
    if not cells:
        raise InputError(f"{path} holds no usable rows")
    names = [cell.lower() for cell in cells[0]]
    if is_header(cells):
        return by_names(path, names, dict(zip(names, zip(*cells[1:], strict=True), strict=False)))
    return by_values(cells)


def by_names(path: str | Path, names: list[str], values: dict[str, Sequence[Any]]) -> Format:
    """The format of a file with these columns."""
    pairs = PAIRS.columns(names)
    if pairs and len(pairs) > 2:
        return PAIRS
    columns = SCORED.columns(names)
    if columns and columns[0] in SCORE_NAMES and "gold_label" not in names:
        return SCORED
    columns = MULTILABEL.columns(names)
    if columns and columns[0] == "labels":
        return MULTILABEL
    columns = LABELLED.columns(names)
    if columns:
        return format_of_labels(values.get(columns[0], ()), columns[1:])
    if pairs:
        return PAIRS
    if set(NAMES) & set(names) and not {*ANCHORS, *POSITIVES, *SCORED.labels} - set(NAMES) & set(names):
        return SENTENCES
    raise InputError(
        f"{path}: columns called {shown(names)} are not known: scores need {SCORED.names}; pairs need {PAIRS.names}"
    )


def format_of_labels(labels: Sequence[Any], texts: Sequence[str]) -> Format:
    if any(isinstance(label, list) for label in labels):
        return MULTILABEL
    numbers = [number(label) for label in labels]
    if list(texts) == ["premise", "hypothesis"] and set(numbers) <= {0, 1, 2, -1}:
        return NLI
    if set(numbers) <= {0, 1}:
        return LABELLED
    return SCORED if mostly_numbers(labels) else NLI


def by_values(sample: Sequence[Any]) -> Format:
    """The format of rows without names."""
    if sample and isinstance(sample[0], str):
        return SENTENCES
    rows = [row for row in sample if isinstance(row, list)]
    rows = [row for row in rows if len(row) == len(rows[0])]
    if not rows or len(rows[0]) < 2:
        raise InputError("rows of two columns or more are needed, or a .txt with one text per line")
    columns = list(zip(*rows, strict=True))
    if any(isinstance(label, list) for label in columns[0]):
        return MULTILABEL
    if set(columns[0]) & set(NLI_LABELS):
        return NLI
    if len(columns) == 2 or not any(map(mostly_numbers, columns)):
        return PAIRS
    if {number(label) for label in columns[0]} <= {0, 1}:
        return LABELLED
    return SCORED
