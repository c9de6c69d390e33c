"""Read a file of training data as rows: a table with a header, or JSON, in one of the formats of ``formats``."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from minisbert.core import InputError, one_line
from minisbert.data.formats import (
    JUDGEMENTS,
    LABELLED,
    MAX_SCORE,
    MULTILABEL,
    NLI,
    NO_GOLD,
    PAIRS,
    PREMISE,
    SCORED,
    SENTENCES,
    Format,
    Row,
    format_of,
    number,
    parse_class,
    parse_label,
    parse_labels,
    parse_score,
)
from minisbert.data.lines import TEXT_NAMES, Rows, checked_text, first_of, read_texts, shown

IDENTITY = re.compile(r"|.*id\d?|index|idx|unnamed: 0")  # columns that nobody expects to be read


def recognise(source: str | Path | Rows) -> Format:
    """Find the format of a file by its header or keys. Raises ``InputError`` if training reads no such file."""
    rows = Rows.of(source, "train")
    form = format_of(rows.names)
    if not rows.first_line:
        raise InputError(f"{rows} holds no usable rows")
    if form in (None, SENTENCES) and rows.holds_lines and "\t" not in rows.first_line:
        return SENTENCES  # one text per line, commas and all
    if form is None:
        raise rows.unknown_names(f"{SCORED.needs}, {PAIRS.needs}; train and evaluate read others by --columns")
    return form


class RowReader:
    """Iterate over the rows of a file in one format, those that training skips included.

    ``columns``, as in ``"score,left,right"``, names the columns or keys to read, in the order of a row; numbers from 1
    stand for the columns of a table without a header, or the places in lists of JSON. A row that cannot be read is
    passed to ``refuse(line, message)``, or is an ``InputError`` with file and line. ``unread`` lists the columns that
    are not read.
    """

    def __init__(
        self,
        source: str | Path | Rows,
        form: Format,
        scale: float | None = MAX_SCORE,
        columns: str | None = None,
        split: str = "",
        refuse: Callable[[int, str], None] | None = None,
    ):
        self.rows, self.form, self.scale = Rows.of(source, split), form, scale
        self.columns: list[str] = []
        if columns:
            self.columns = [name.strip() for name in columns.lower().split(",")]
        self.unread: list[str] = []
        self.refuse = refuse or self.rows.fail
        self.texts = 0  # of the first row
        self.numbered: set[float | None] = set()  # the labels that may be numbers of NLI's classes; None for others

    def __iter__(self) -> Iterator[Row]:
        if self.form is SENTENCES:
            if not self.rows.holds_lines:
                self.note_unread(self.rows.names, [first_of(TEXT_NAMES, self.rows.names) or ""])
            for line, text in read_texts(self.rows):
                yield Row((text,), None, line)
            return
        fields = self.fields_by_name()
        if self.columns and all(map(str.isdecimal, self.columns)):
            fields = self.fields_by_number()
        for line, names, values in fields:
            try:
                rows = self.labelled(line, names, values) if self.form.labels else self.unlabelled(line, values)
            except ValueError as error:
                self.refuse(line, str(error))
            else:
                yield from rows
        self.check_numbers()

    def skips(self, row: Row) -> bool:
        """Whether training skips a row: it has an empty text, or no gold label."""
        return not all(row.texts) or (row.label is None and bool(self.form.labels))

    def check_numbers(self) -> None:
        """Raise ``InputError`` for numbers that may be NLI's classes, or scores, or labels: the names do not say it."""
        if self.form is SCORED and self.numbered - {NO_GOLD} == {0, 1, 2}:
            raise InputError(
                f"{self.rows.where}: labels of 0, 1 and 2: if they are scores, call the column score; if they are "
                "classes, write their names, because libraries number those of NLI differently"
            )
        if self.form is NLI and self.numbered == {0, 1}:
            raise InputError(
                f"{self.rows.where}: labels of 0 and 1 under premise and hypothesis: call the texts sentence1 and "
                "sentence2 if 1 stands for similar, or write entailment and neutral if 0 and 1 stand for these"
            )

    def note_unread(self, names: Sequence[str], read: Sequence[str]) -> None:
        if self.rows.path.suffix != ".zip":  # of SNLI nobody expects the parses
            self.unread = [name for name in names if name not in read and not IDENTITY.fullmatch(name)]

    # ---------------------------------------------------------------------------------- fields of a row

    def fields_by_name(self) -> Iterator[tuple[int, list[str], list[Any]]]:
        """Yield line, names and values of what is read, the label's first."""
        needed = ", ".join(self.columns) or self.form.needs
        if not self.rows.first_line:
            return
        if not self.rows.holds_json:
            names = self.columns or self.form.columns(self.rows.names)
            if names is None or not set(names) <= set(self.rows.names):
                example = ",".join(("1", "2", "3")[: len(self.rows.names)])
                raise self.rows.unknown_names(f"{needed}; or --columns NAMES, or without a header --columns {example}")
            self.rows.check_once(names)
        seen: list[str] | None = None
        for line, fields in self.rows.records(self.refuse):
            if list(fields) != seen:  # in a table only once
                seen = list(fields)
                names = self.columns or self.form.columns(seen)
                self.check_judgement(seen, names)
            if names is None or not set(names) <= fields.keys():
                self.refuse(line, f"the keys are {shown(seen)}; needed are {needed}, or --columns")
                continue
            if not self.unread:
                self.note_unread(seen, names)
            yield line, names, [fields[name] for name in names]

    def check_judgement(self, names: Sequence[str], read: Sequence[str] | None) -> None:
        """Raise ``InputError`` for pairs beside a label or a score: nobody knows whether all of them are positives."""
        judgement = first_of(JUDGEMENTS, names)
        if self.form is PAIRS and not self.columns and read and len(read) == 2 and judgement:
            pair = ",".join(read)
            raise InputError(
                f"{self.rows.where}: {judgement} may say that not every pair is a positive: train with contrastive or "
                f"cosine, which read it (--columns {judgement},{pair}), or without it: --columns {pair}"
            )

    def fields_by_number(self) -> Iterator[tuple[int, list[str], list[Any]]]:
        """Yield line and values of the columns with these numbers; they have no names."""
        named = self.form.columns(self.rows.names)
        if named and not self.rows.holds_json:  # the header would become a row
            columns = f"--columns {','.join(named)}"
            raise InputError(f"{self.rows.where}: the first line is a header, so name its columns: {columns}")
        places, width = [int(column) - 1 for column in self.columns], 0
        for line, values in self.rows.values() if self.rows.holds_json else self.rows.cells():
            if not isinstance(values, list):
                self.refuse(line, f"columns by number need a list, not {one_line(values)}")
                continue
            width = width or len(values)
            if len(values) != width and not self.rows.holds_json:
                self.refuse(line, f"{len(values)} columns; {width} are needed, as in the first line")
            elif min(places) < 0 or max(places) >= len(values):
                self.rows.fail(line, f"--columns {','.join(self.columns)}, but there are {len(values)} columns")
            else:
                yield line, [], [values[place] for place in places]

    # ---------------------------------------------------------------------------------- rows

    def unlabelled(self, line: int, values: list[Any]) -> list[Row]:
        """Make a row of anchor, positive and negatives for each positive; ``ValueError`` says what is wrong."""
        if len(values) < 2:
            raise ValueError("1 column; anchor and positive are needed")
        anchor, positives, *others = (
            [checked_text(one) for one in (value if isinstance(value, list) else [value])] for value in values
        )
        if len(anchor) != 1:
            raise ValueError(f"one anchor is needed, not {len(anchor)}")
        negatives = [text for texts in others for text in texts]
        count = 2 + len(negatives)
        self.texts = self.texts or count
        # lists of negatives may have different lengths, unless one is empty: training cuts them to the shortest
        is_listed = any(isinstance(value, list) for value in values[2:])
        if count != self.texts and not (is_listed and min(count, self.texts) > 2):
            raise ValueError(f"{count} texts; the first row has {self.texts}")
        return [Row((*anchor, positive, *negatives), None, line) for positive in positives or [""]]

    def labelled(self, line: int, names: Sequence[str], values: list[Any]) -> list[Row]:
        """Make the row of a label and two texts; ``ValueError`` says what is wrong."""
        if len(values) != 3:
            raise ValueError(f"{len(values)} columns; 3 are needed: {self.form.needs}")
        label, first, second = values[0], checked_text(values[1]), checked_text(values[2])
        if (self.form is NLI and tuple(names[1:]) == PREMISE) or (
            self.form is SCORED and not self.columns and names[0] == "label"
        ):
            code = number(label)
            self.numbered.add(code if code in (NO_GOLD, 0, 1, 2) else None)
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
        return [Row((first, second), label, line)]


# ---------------------------------------------------------------------------------- a whole file


class Table(NamedTuple):
    """The rows of a file, how many it has that are skipped, and its columns that are not read."""

    rows: list[Row]
    skipped: int
    unread: list[str]

    def note(self, name: object, what: str) -> str:
        """``pairs.csv (20 pairs, 1 skipped; not read: genre)``."""
        return note(name, len(self.rows), what, self.skipped, self.unread)


def note(name: object, count: int, what: str, skipped: int = 0, unread: Sequence[str] = ()) -> str:
    text = f"{name} ({count:,} {what}"
    if skipped:
        text += f", {skipped:,} skipped"
    if unread:
        text += f"; not read: {', '.join(unread)}"
    return text + ")"


def read_file(
    source: str | Path | Rows,
    form: Format,
    limit: int | None = None,
    split: str = "",
    scale: float | None = MAX_SCORE,
    columns: str | None = None,
) -> Table:
    """Read a file, leaving out what training skips: rows with an empty text or no gold label. ``limit`` counts both.

    If JSON lists negatives, and not as many in each row, all rows are cut to the fewest.
    """
    reader = RowReader(source, form, scale, columns, split)
    rows = list(islice(reader, limit))
    reader.check_numbers()  # also if the limit has ended the reading
    usable = [row for row in rows if not reader.skips(row)]
    if not usable:
        skipped = f" ({len(rows)} were skipped)" if rows else ""
        raise InputError(f"{reader.rows} holds no usable rows{skipped}")
    fewest = min(len(row.texts) for row in usable)
    if form is PAIRS and any(len(row.texts) > fewest for row in usable):
        usable = [Row(row.texts[:fewest], None, row.line) for row in usable]
        reader.unread.append(f"negatives beyond {fewest - 2} of a row")
    return Table(usable, len(rows) - len(usable), reader.unread)
