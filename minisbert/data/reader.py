"""Files of training data read as rows: a table, or lines of JSON, in one of the formats of ``formats``."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from minisbert.core import InputError, one_line
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
    Row,
    as_texts,
    is_header,
    is_index,
    mostly_numbers,
    number,
    parse_class,
    parse_label,
    parse_labels,
    parse_score,
)
from minisbert.data.lines import NAMES, Rows, read_texts
from minisbert.models.similarity import MAX_SCORE

IDENTITY = re.compile(r"|.*id\d?|index|idx|unnamed: 0")  # columns that nobody expects to be read
SAMPLE = 100  # rows that decide whether there is a header, and which format a file has


class RowReader:
    """The rows of a file in one format, those that training skips included.

    ``columns``, as in ``"score,left,right"``, names the columns or keys that are read, in the order of a row; numbers
    from 1 stand for the columns of a table without a header. ``refuse(line, message)`` is told of a row that cannot be
    read; without it, such a row is an ``InputError`` with file and line. ``unread`` are columns that are not read.
    """

    def __init__(
        self,
        path: str | Path,
        form: Format,
        scale: float | None = MAX_SCORE,
        columns: str | None = None,
        split: str = "",
        refuse: Callable[[int, str], None] | None = None,
    ):
        self.rows, self.form, self.scale = Rows(path, split), form, scale
        self.columns = [name.strip() for name in columns.split(",")] if columns else []
        self.unread: list[str] = []
        self.refuse = refuse or self.fail
        self.texts = 0  # of the first row

    def fail(self, line: int, message: str) -> None:
        raise InputError(f"{self.rows.where}, line {line}: {message}")

    def __iter__(self) -> Iterator[Row]:
        if self.form is SENTENCES:
            yield from (Row((text,), None, line) for line, text in read_texts(self.rows.path))
            return
        is_json = holds_json(self.rows.path)
        for line, names, values in self.json_values() if is_json else self.table_values():
            try:
                rows = list(self.make_rows(line, names, values))
            except ValueError as error:
                self.refuse(line, str(error))
            else:
                yield from rows

    def skips(self, row: Row) -> bool:
        """Whether training skips a row: it has an empty text, or no gold label."""
        return not all(row.texts) or (row.label is None and bool(self.form.labels))

    # ---------------------------------------------------------------------------------- fields of a row

    def json_values(self) -> Iterator[tuple[int, list[str], list[Any]]]:
        """Line, names and values of what is read, the label's first; a list has no names."""
        for line, value in self.rows.values():
            if isinstance(value, list):
                yield line, [], value
                continue
            if not isinstance(value, dict):
                self.refuse(line, f"expected {self.form.needs}, not {one_line(value)}")
                continue
            fields = {key.lower(): content for key, content in value.items()}
            names = self.columns or self.form.columns(list(fields))
            if names is None or not set(map(str.lower, names)) <= fields.keys():
                needed = ", ".join(self.columns) or self.form.names
                self.refuse(line, f"the keys are {shown(value)}; {self.form.name} need {needed}, or --columns")
                continue
            names = [name.lower() for name in names]
            if not self.unread:
                self.note_unread(list(fields), names)
            yield line, names, [fields[name] for name in names]

    def table_values(self) -> Iterator[tuple[int, list[str], list[str]]]:
        cells = self.rows.cells()
        sample = list(islice(cells, SAMPLE))
        if not sample:
            return
        line, first = sample[0]
        header = [cell.lower() for cell in first]
        names = self.header_names(header)
        if names:
            places = [header.index(name) for name in names]
            self.note_unread(header, names)
        else:
            places = self.places(line, [row for _, row in sample])
        # STS-B's rows have 7 columns, and some have sources after them
        wider = self.form is SCORED and len(first) >= 7 and not self.columns
        width, as_in = len(first), "as in the first row"
        if wider or (self.form.labels and not names and not self.columns):
            width, as_in = max(places) + 1, self.form.example
        for line, row in chain(sample[bool(names) :], cells):
            if len(row) < width or (len(row) > width and not wider):
                self.refuse(line, f"{len(row)} columns; {width} are needed ({as_in})")
            elif names and row == first:
                self.refuse(line, "the header again; delete the line")
            else:
                yield line, names, [row[place] for place in places]

    def header_names(self, header: list[str]) -> list[str]:
        """The names of the columns that are read; none if the first row is no header."""
        if not self.columns or all(map(str.isdecimal, self.columns)):
            return self.form.columns(header) or []
        names = [name.lower() for name in self.columns]
        missing = [name for name in names if name not in header]
        if missing:
            raise InputError(f"{self.rows.where}: no column {one_line(missing[0])}; the first line is {shown(header)}")
        return names

    def places(self, line: int, rows: Sequence[Sequence[str]]) -> list[int]:
        """The columns of a table without a header; ``InputError`` if it seems to have one, or another order."""
        where, width = f"{self.rows.where}, line {line}", len(rows[0])
        if self.columns:
            places = [int(column) - 1 for column in self.columns]
            if min(places) < 0 or max(places) >= width:
                raise InputError(f"{where}: --columns {','.join(self.columns)}, but there are {width} columns")
            return places
        if is_header(rows) or (self.form.labels and self.first_is_no_label(rows)):
            called = f"columns called {shown(rows[0])} are not known"
            example = ",".join(map(str, range(1, min(width, 3) + 1)))
            raise InputError(
                f"{where}: {called}: {self.form.name} need {self.form.names}. Rename them, or name those to read with "
                f"--columns A,B, or if this is a row and no header, number them: --columns {example}"
            )
        columns = list(zip(*(row for row in rows if len(row) == width), strict=True))
        numeric = [place for place in range(width) if mostly_numbers(columns[place])]
        if is_index(columns[0]):
            raise InputError(f"{where}: column 1 counts the rows: drop it, as to_csv(..., index=False) does")
        if not self.form.labels:
            if 0 in numeric or (numeric and width > 2):
                raise InputError(
                    f"{where}: column {numeric[0] + 1} holds numbers: scores, labels or an index? "
                    f"Needed are {self.form.needs}; choose columns with --columns"
                )
            return list(range(width))
        if self.form is SCORED and width >= 7:
            return [4, 5, 6]
        if width == 3 and numeric and 0 not in numeric:
            raise InputError(
                f"{where}: the label comes first, as in {self.form.needs}, but column {numeric[0] + 1} holds numbers: "
                f"give --columns {numeric[0] + 1},{','.join(str(i + 1) for i in range(3) if i != numeric[0])}"
            )
        return [0, 1, 2]

    def first_is_no_label(self, rows: Sequence[Sequence[str]]) -> bool:
        """Whether a column holds numbers in all rows but the first."""
        if len(rows) < 2 or self.form is NLI:
            return False
        columns = list(zip(*(row for row in rows if len(row) == len(rows[0])), strict=True))
        if self.form is SCORED and len(columns) >= 7:
            columns = columns[4:5]
        return any(first and not mostly_numbers([first]) and mostly_numbers(others) for first, *others in columns)

    def note_unread(self, names: Sequence[str], read: Sequence[str]) -> None:
        if self.rows.path.suffix != ".zip":
            self.unread = [name for name in names if name not in read and not IDENTITY.fullmatch(name)]

    # ---------------------------------------------------------------------------------- rows

    def make_rows(self, line: int, names: Sequence[str], values: list[Any]) -> Iterator[Row]:
        """The row of one line, or one for each of its positives; ``ValueError`` says what is wrong."""
        if self.form.labels:
            yield self.labelled_row(line, names, values)
            return
        if len(values) < 2:
            raise ValueError("1 column; anchor and positive are needed, separated by tabs or commas")
        anchor = as_texts(values[0])
        if len(anchor) != 1:
            raise ValueError(f"one anchor is needed, not {len(anchor)}")
        positives, negatives = as_texts(values[1]), [text for value in values[2:] for text in as_texts(value)]
        count = 2 + len(negatives)
        self.texts = self.texts or count
        listed = any(isinstance(value, list) for value in values[2:])
        if count != self.texts and not (listed and min(count, self.texts) > 2):
            raise ValueError(f"{count} texts; the first row has {self.texts}")
        for positive in positives or [""]:
            yield Row((*anchor, positive, *negatives), None, line)

    def labelled_row(self, line: int, names: Sequence[str], values: list[Any]) -> Row:
        if len(values) != 3:
            raise ValueError(f"{len(values)} columns; 3 are needed: {self.form.needs}")
        label, *texts = values
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"two texts are needed, not {one_line(texts)}")
        first, second = texts[0].strip(), texts[1].strip()
        if self.form is SCORED:
            label = parse_score(label, self.scale)
            if not (first and second):
                raise ValueError("an empty sentence")
        elif self.form is LABELLED:
            label = parse_label(label)
        elif self.form is MULTILABEL:
            label = parse_labels(label)
        else:
            label = parse_class(label, names[1:])
        return Row((first, second), label, line)


def holds_json(path: str | Path) -> bool:
    """Whether a file holds lines of JSON objects or lists: by its name, else by its first line."""
    if {".jsonl", ".json", ".zip"} & set(Path(path).suffixes):
        return True
    first = next((line for line in Rows(path).lines() if line.strip()), "")
    try:
        return isinstance(json.loads(first), dict | list)
    except (ValueError, RecursionError):
        return False


def shown(names: Sequence[str]) -> str:
    return ", ".join(map(one_line, names))


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
