"""Read a file of training data as rows: a table with a header, or JSON, in one of the formats of ``formats``."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from minisbert.core import InputError, one_line, reading
from minisbert.data.formats import (
    IDENTIFIER,
    LABELLED,
    MEANINGS,
    MULTILABEL,
    PAIRS,
    SCORE_NAMES,
    SCORED,
    SENTENCES,
    Format,
    Row,
    as_texts,
    cell_value,
    check_once,
    format_of,
    label_number,
    number,
    parse_class,
    parse_label,
    parse_labels,
    parse_score,
    unpacked,
)
from minisbert.data.lines import Rows, header_error, read_texts
from minisbert.models.similarity import MAX_SCORE

IDENTITY = re.compile(r"|.*id\d?|index|idx|unnamed: 0")  # columns that nobody expects to be read
RECOGNISED_ROWS = 100  # whose labels tell scores from classes, if their column is only called label
CLASS_WORDS = 3  # a text of more words is no class


class RowReader:
    """Iterate over the rows of a file in one format, those that training skips included.

    ``columns``, as in ``"score,left,right"``, names the columns or keys to read, in the order of a row; numbers from 1
    stand for the columns of a table without a header, or the places in lists of JSON. A row that cannot be read is
    passed to ``refuse(line, message)``, or is an ``InputError`` with file and line. ``unread`` lists the columns that
    are not read.
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
        self.columns: list[str] = []
        if columns:
            self.columns = [name.strip() for name in columns.lower().split(",")]
        self.is_numbered = bool(self.columns) and all(map(str.isdecimal, self.columns))
        self.unread: list[str] = []
        self.refuse = refuse or self.fail
        self.texts = 0  # of the first row

    def fail(self, line: int, message: str) -> None:
        raise InputError(f"{self.rows.place(line)}: {message}")

    def __iter__(self) -> Iterator[Row]:
        if self.form is SENTENCES:
            for line, text in read_texts(self.rows.path):
                yield Row((text,), None, line)
            return
        fields = self.fields_of_table()
        if holds_json(self.rows.path):
            fields = self.fields_of_json()
        for line, names, values in fields:
            try:
                rows = self.make_rows(line, names, values)
            except ValueError as error:
                self.refuse(line, str(error))
            else:
                yield from rows

    def skips(self, row: Row) -> bool:
        """Whether training skips a row: it has an empty text, or no gold label."""
        return not all(row.texts) or (row.label is None and bool(self.form.labels))

    # ---------------------------------------------------------------------------------- fields of a row

    def fields_of_json(self) -> Iterator[tuple[int, list[str], list[Any]]]:
        """Yield line, names and values of what is read, the label's first; a list has no names."""
        for line, value in self.rows.values():
            # A list of texts can only be anchor, positive and negatives. Which item is a label, only --columns can say.
            if isinstance(value, list) and self.is_numbered:
                places = self.places(line, len(value))
                yield line, [], [value[place] for place in places]
                continue
            if isinstance(value, list) and not self.form.labels:
                yield line, [], value
                continue
            if not isinstance(value, dict):
                self.refuse(line, f"expected an object with {self.form.names}, not {one_line(value)}")
                continue
            fields = lower_keys(value)
            names = self.columns or self.form.columns(list(fields))
            if names is None or not set(names) <= fields.keys():
                needed = ", ".join(self.columns) or self.form.names
                self.refuse(line, f"the keys are {shown(value)}; {self.form.name} need {needed}, or --columns")
                continue
            if not self.unread:
                self.note_unread(list(fields), names)
            place = self.label_place(names)
            try:
                values = [unpacked(fields[name], i == place) for i, name in enumerate(names)]
            except ValueError as error:
                self.refuse(line, str(error))
                continue
            yield line, names, values

    def fields_of_table(self) -> Iterator[tuple[int, list[str], list[str]]]:
        """Yield line, names and cells of what is read, the label's first; numbered columns have no names."""
        rows = self.rows.cells()
        start = next(rows, None)
        if start is None:
            return
        line, first = start
        header = [cell.lower() for cell in first]
        by_name = self.form.columns(header)
        names: list[str] = []
        if self.is_numbered:
            if by_name:  # the header would become a row
                named = ",".join(by_name)
                raise InputError(
                    f"{self.rows.where}: the first line is a header, so name its columns: --columns {named}"
                )
            places = self.places(line, len(first))
            rows = chain([start], rows)
        else:
            names = self.columns or by_name or []
            missing = [name for name in names if name not in header]
            if not names or missing:
                raise self.unknown_header(first, missing)
            with reading(self.rows.where):
                check_once(header, names)
            places = [header.index(name) for name in names]
            self.note_unread(header, names)
        label_place = self.label_place(names)
        for line, cells in rows:
            if len(cells) != len(first):
                self.refuse(line, f"{len(cells)} columns; {len(first)} are needed, as in the first line")
            elif names and cells == first:
                self.refuse(line, "the header again; delete the line")
            else:
                try:
                    values = [cell_value(cells[place], i == label_place) for i, place in enumerate(places)]
                except ValueError as error:
                    self.refuse(line, str(error))
                    continue
                yield line, names, values

    def label_place(self, names: Sequence[str]) -> int | None:
        """Return the place of the label among what is read of a row; None if there is none."""
        if self.form.labels:
            return 0
        return 2 if len(names) == 3 and names[2] in MEANINGS else None

    def unknown_header(self, header: Sequence[str], missing: Sequence[str]) -> InputError:
        """Say which names are needed, and how to read a table that has others or none."""
        if missing:
            return InputError(f"{self.rows.where}: no column {one_line(missing[0])}; the first line is {shown(header)}")
        example = ",".join(("1", "2", "3")[: len(header)])
        needed = (
            f"{self.form.name} need {self.form.names}; or give --columns with the names to read, "
            f"or with numbers if there is no header, such as --columns {example}"
        )
        return header_error(self.rows.where, header, needed)

    def places(self, line: int, width: int) -> list[int]:
        """Convert numbered columns to places in a row."""
        places = [int(column) - 1 for column in self.columns]
        if min(places) < 0 or max(places) >= width:
            raise InputError(
                f"{self.rows.place(line)}: --columns {','.join(self.columns)}, but there are {width} columns"
            )
        return places

    def note_unread(self, names: Sequence[str], read: Sequence[str]) -> None:
        if self.rows.path.suffix != ".zip":  # of SNLI nobody expects the parses
            self.unread = [name for name in names if name not in read and not IDENTITY.fullmatch(name)]

    # ---------------------------------------------------------------------------------- rows

    def make_rows(self, line: int, names: Sequence[str], values: list[Any]) -> list[Row]:
        """Make the row of one line, or one for each of its positives; ``ValueError`` says what is wrong."""
        if self.form.labels:
            return [self.labelled_row(line, names, values)]
        if len(values) < 2:
            raise ValueError("1 column; anchor and positive are needed")
        if len(names) == 3 and names[2] in MEANINGS:
            values = [values[0], *divided(names, as_texts(values[1]), values[2])]
        anchor, positives, negatives = as_texts(values[0]), as_texts(values[1]), []
        if len(anchor) != 1:
            raise ValueError(f"one anchor is needed, not {len(anchor)}")
        for value in values[2:]:
            negatives += as_texts(value)
        count = 2 + len(negatives)
        self.texts = self.texts or count
        # lists of negatives may have different lengths, unless one is empty: training cuts them to the shortest
        is_listed = any(isinstance(value, list) for value in values[2:])
        if count != self.texts and not (is_listed and min(count, self.texts) > 2):
            raise ValueError(f"{count} texts; the first row has {self.texts}")
        return [Row((*anchor, positive, *negatives), None, line) for positive in positives or [""]]

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


def divided(names: Sequence[str], texts: list[str], labels: Any) -> list[list[str]]:
    """Divide the texts of a row into positives, labelled 1, and negatives, labelled 0.

    Lists are those of sentence-transformers' mined "labeled-list". A pair of its "labeled-pair" is read if its label is
    1, otherwise ``ValueError``: it is no positive, and without it the pairs would be others than the file's.
    """
    anchor, positive, name = names
    if not isinstance(labels, list):
        if name in SCORE_NAMES or label_number(labels) != 1:
            raise ValueError(
                f"{name} {one_line(labels)} says that not every pair is a positive: train with contrastive or cosine, "
                f"which read it (--columns {name},{anchor},{positive}), or without it: --columns {anchor},{positive}"
            )
        return [texts]
    if len(labels) != len(texts) or not set(map(label_number, labels)) <= {0, 1}:
        raise ValueError(f"{name}: {len(texts)} texts need a 0 or 1 each, not {one_line(labels)}")
    positives, negatives = [], []
    for text, label in zip(texts, labels, strict=True):
        chosen = positives if label_number(label) else negatives
        chosen.append(text)
    return [positives, negatives]


def lower_keys(fields: dict[str, Any]) -> dict[str, Any]:
    return {key.lower(): value for key, value in fields.items()}


def shown(names: Sequence[str]) -> str:
    return ", ".join(map(one_line, names))


def holds_json(path: str | Path) -> bool:
    """Whether a file holds JSON: by its name, or because its first line is an object or a list."""
    if {".jsonl", ".json", ".zip"} & set(Path(path).suffixes) or Rows(path).is_array:
        return True
    try:
        return isinstance(json.loads(Rows(path).first_line()), dict | list)
    except (ValueError, RecursionError):
        return False


# ---------------------------------------------------------------------------------- a whole file


class Table(NamedTuple):
    """The rows of a file, how many it has that are skipped, and its columns that are not read."""

    rows: list[Row]
    skipped: int
    unread: list[str]

    def note(self, name: str, what: str) -> str:
        """``pairs.csv (20 pairs, 1 skipped; not read: genre)``."""
        return note(name, len(self.rows), what, self.skipped, self.unread)


def note(name: str, count: int, what: str, skipped: int = 0, unread: Sequence[str] = ()) -> str:
    text = f"{name} ({count:,} {what}"
    if skipped:
        text += f", {skipped:,} skipped"
    if unread:
        text += f"; not read: {', '.join(unread)}"
    return text + ")"


def read_file(
    path: str | Path,
    form: Format,
    limit: int | None = None,
    split: str = "",
    scale: float | None = MAX_SCORE,
    columns: str | None = None,
) -> Table:
    """Read a file, leaving out what training skips: rows with an empty text or no gold label. ``limit`` counts both.

    If JSON lists negatives, and not as many in each row, all rows are cut to the fewest.
    """
    reader = RowReader(path, form, scale, columns, split)
    rows = list(islice(reader, limit))
    usable = [row for row in rows if not reader.skips(row)]
    if not usable:
        skipped = f" ({len(rows)} were skipped)" if rows else ""
        raise InputError(f"{path} holds no usable rows{skipped}")
    fewest = min(len(row.texts) for row in usable)
    if form is PAIRS and any(len(row.texts) > fewest for row in usable):
        usable = [Row(row.texts[:fewest], None, row.line) for row in usable]
        reader.unread.append(f"negatives beyond {fewest - 2} of a row")
    return Table(usable, len(rows) - len(usable), reader.unread)


# ---------------------------------------------------------------------------------- the format of a file


def recognise(path: str | Path) -> Format:
    """Find the format of a file by its header or keys. Raises ``InputError`` if training reads no such file."""
    rows = Rows(path, "train")
    if holds_json(path):
        sample = [value for _, value in islice(rows.values(), RECOGNISED_ROWS)]
        if not sample:
            raise InputError(f"{path} holds no usable rows")
        first = sample[0]
        if isinstance(first, str):
            return SENTENCES
        # A list has no names, so it is what a list always is: anchor, positive, negatives.
        if isinstance(first, list) and len(first) > 1 and set(map(type, first)) == {str}:
            check_columns(path, [row[1:] for row in sample if isinstance(row, list)], named=False)
            return PAIRS
        if not isinstance(first, dict):
            raise InputError(
                f"{path}: rows are objects with {PAIRS.names}, or with {SCORED.names}; not {one_line(first)}"
            )
        fields = [lower_keys(row) for row in sample if isinstance(row, dict)]
        return named_format(path, list(first), fields)
    if "\t" not in rows.first_line() and not {".csv", ".tsv"} & set(Path(path).suffixes):
        return SENTENCES  # one text per line, commas and all
    table = islice(rows.cells(), 1 + RECOGNISED_ROWS)
    _, header = next(table, (0, []))
    if not header:
        raise InputError(f"{path} holds no usable rows")
    names = [cell.lower() for cell in header]
    fields = []
    for _, cells in table:
        try:
            fields.append({name: cell_value(cell, name in MEANINGS) for name, cell in zip(names, cells, strict=False)})
        except ValueError:  # the reader refuses the row
            continue
    return named_format(path, header, fields)


def named_format(path: str | Path, header: Sequence[str], rows: Sequence[dict[str, Any]]) -> Format:
    """Find the format of rows whose columns or keys have these names. Raises ``InputError`` as ``recognise``."""
    names = [name.lower() for name in header]
    with reading(path):
        form = format_of(names, rows)
    if form is None:
        raise unknown_format(path, header)
    if form is PAIRS:
        check_named(path, names, rows)
    return form


def check_named(path: str | Path, names: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Raise ``InputError`` for texts that are numbers or identifiers, and for 0 and 1 in a column that is not read."""
    read = PAIRS.columns(names) or []
    texts = [name for name in read[1:] if name not in MEANINGS]
    words = [row.get(name) for row in rows for name in (read[:1] + texts)]
    if words and all(isinstance(word, str) and IDENTIFIER.fullmatch(word) for word in words):
        raise InputError(f"{path}: {one_line(words[0])} and the like are identifiers: put the texts in their place")
    check_columns(path, [[row.get(name) for name in texts] for row in rows], named=True)
    for name in names:
        if len(read) == 2 and name not in read and {number(row.get(name)) for row in rows} == {0, 1}:
            raise InputError(
                f"{path}: the column {one_line(name)} has 0 and 1: if it says which pairs are positives, name it "
                f"label; if not, leave it out with --columns {','.join(read)}"
            )


def check_columns(path: str | Path, rows: Sequence[Sequence[Any]], named: bool) -> None:
    """Raise ``InputError`` if a column after the anchor's holds numbers, or without names classes, instead of texts.

    ``rows`` are the first of a file. A column of at most three words each, of which each occurs twice or more, is one
    of classes; a header that calls it the positives is believed.
    """
    for values in zip(*(row for row in rows if len(row) == len(rows[0])), strict=True):
        texts = [value for value in values if isinstance(value, str) and value]
        if len(texts) < len(values) or not texts:
            continue
        numbers = [text for text in texts if number(text) is not None]
        is_class = not named and len(texts) >= 4 and all(len(text.split()) <= CLASS_WORDS for text in texts)
        if len(numbers) == len(texts) or (is_class and 2 * len(set(texts)) <= len(texts)):
            raise InputError(
                f"{path}: {one_line(texts[0])} and the like are numbers or classes, not texts of a pair: name the "
                "columns label, sentence1, sentence2; or if they are texts, name those to read with --columns"
            )


def unknown_format(path: str | Path, names: Sequence[str]) -> InputError:
    needed = f"scores need {SCORED.names}; pairs need {PAIRS.names}; train and evaluate read others by --columns"
    return header_error(str(path), names, needed)
