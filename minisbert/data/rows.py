"""Rows: tuples of texts, then their score or class, from a file, a data set or Python.

``read_rows`` is what all commands call. Which columns it reads is decided in ``columns``, what a
line or a cell is in ``tables``; ``Table.note`` is the one line that says what was read and what was
not.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from minisbert.core import InputError, one_line
from minisbert.data.columns import (
    Choice,
    Columns,
    RowsDoNotFit,
    choose_columns,
    either,
    has_columns,
    last_number,
    listed_names,
    proposal,
)
from minisbert.data.published import PUBLISHED, check_has_name, check_no_asset, open_published
from minisbert.data.records import (
    Record,
    Records,
    Refuse,
    place_of,
    python_records,
    split_name,
)
from minisbert.data.tables import open_records
from minisbert.data.values import (
    is_missing,
    parse_binary,
    parse_class,
    parse_score,
    parse_text,
)
from minisbert.system.console import say, warn

SCALES = (1, 5, 10, 100)  # the highest scores that are usual
SPLITS = ("train", "dev", "test")
NLI_ROWS = Columns(2, "class")  # premise, hypothesis, and the name of a class


@dataclass
class Table:
    """The rows that were read, and what the one line says of them.

    A row is a tuple: its texts, then its score (float), its 0 or 1 (int), or its class (str).
    """

    name: str  # of the file or the data set, as the user wrote it
    columns: Columns  # what was asked for; of several the one that the header has
    rows: list[tuple]
    places: list[int] = field(default_factory=list)  # the number of each row's line in the file
    unit: str = "line"  # what ``places`` count: line, item of an array, row, Python's index
    names: list[str] = field(default_factory=list)  # of the columns that were read
    # of the columns that were not, and in words the negatives that were not
    unread: list[str] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)  # places: an empty text, or no label
    remarks: list[str] = field(default_factory=list)  # what else the line says
    scale: float | None = None  # what the scores were divided by
    total: int = 0  # rows before some were held out
    is_named: bool = False  # the columns were named by the user, not found by their names
    split: str = ""  # the rows of the column split that were read, if there is one
    parts: list["Table"] = field(default_factory=list)  # of several files that were joined

    def note(self) -> str:
        """``pairs.csv: 300 rows; sentence1, sentence2, score / 5; not read: id, genre``."""
        count = f"{self.name}: {len(self.rows):,}"
        if self.total:
            count += f" of {self.total:,}"
        count += " rows"
        if self.skipped:
            count += f", {len(self.skipped):,} skipped (an empty text or no label)"
        return "; ".join([count, *self.details()])

    def details(self) -> list[str]:
        """What the line says behind the number of rows."""
        parts = []
        if self.names:
            names = listed_names(self.names)
            if self.scale is not None:
                names += f" / {self.scale:g}"
            parts.append(names)
        elif self.scale is not None:  # of tuples, whose columns have no names
            parts.append(f"scores / {self.scale:g}")
        if self.columns.label == "class":
            classes = self.classes()
            parts.append(f"{len(classes)} classes: {listed_names(classes)}")
        parts += self.remarks
        if self.unread:
            parts.append(f"not read: {listed_names(self.unread)}")
        return parts

    def place(self, index: int) -> str:
        """``pairs.csv, line 7``: where a row stands, of several files in its own."""
        for part in self.parts:
            if index < len(part.rows):
                return part.place(index)
            index -= len(part.rows)
        return place_of(self.name, self.unit, self.places[index])

    def classes(self) -> list[str]:
        """The names of the classes, sorted."""
        return sorted({row[-1] for row in self.rows})

    def limited(self, limit: int | None) -> "Table":
        """The table with its first rows only."""
        return replace(self, rows=self.rows[:limit], places=self.places[:limit])


# ---------------------------------------------------------------------------------------- reading


def read_rows(
    data: Any,
    columns: Columns | Sequence[Columns],
    names: str | None = None,
    *,
    split: str = "",
    quotes: bool = True,
    limit: int | None = None,
    names_may_lack: bool = False,
) -> Table:
    """Read the rows of a file, a folder saved by ``datasets``, a published data set (``stsb``,
    ``snli``, ``multinli``, ``quora``), several of these as ``snli,multinli``, or rows from Python.

    ``columns`` is what a row must hold; of several the first is read whose columns the file has.
    ``names`` is ``--columns``: ``"left,right,stars"``, texts first, then the label; numbers from 1
    for a table without a header. With ``names_may_lack`` a file without these columns is read by
    the table of names, as if they were not given. If there is a column called split, only rows of
    this ``split`` are read. ``limit`` counts skipped rows too. Scores are as they stand there.
    Raises ``InputError`` with file, line and what would do.
    """
    needs = as_needs(columns)
    if not isinstance(data, str | Path):
        return as_rows(data, needs, names)

    sources = [data]
    if isinstance(data, str) and "," in data and not Path(data).exists():
        sources = [source for source in data.split(",") if source]

    tables: list[Table] = []
    left = limit  # how many rows may still be read
    for source in sources:
        if tables and left is not None and left <= 0:
            break
        if source in PUBLISHED:
            table = read_published(str(source), needs, split, left)
        else:
            table = read_file(source, needs, names, split, quotes, left, names_may_lack)
        tables.append(check_table(table))
        if left is not None:
            left -= len(table.rows) + len(table.skipped)
    return joined(tables, str(data))


def read_published(name: str, needs: Sequence[Columns], split: str, limit: int | None) -> Table:
    """Read a published data set. What else it holds is well known, and not named as unread."""
    records = open_published(name, split or "train")
    if needs[0].texts == 1:
        table = each_text_once(rows_of(records, [Columns(ignores_label=True)], limit=limit))
    elif reads_triplets(needs[0], records):
        table = nli_triplets(rows_of(records, [NLI_ROWS], limit=limit))
    else:
        table = rows_of(records, needs, limit=limit)
    table.unread = []
    return table


def read_file(
    path: str | Path,
    needs: Sequence[Columns],
    names: str | None,
    split: str,
    quotes: bool,
    limit: int | None,
    names_may_lack: bool,
) -> Table:
    """Read one file, as ``read_rows`` says."""
    check_has_name(path)
    check_no_asset(path)
    records = open_records(
        path,
        quotes=quotes,
        last_number=last_number(names),
        is_text=names is None and any(need.texts == 1 for need in needs),
        split=split,
    )
    if names is not None and names_may_lack and not has_columns(records, names):
        names = None
    if names is None and reads_triplets(needs[0], records):
        return nli_triplets(rows_of(records, [NLI_ROWS], split=split, limit=limit))
    return rows_of(records, needs, names, split=split, limit=limit)


def reads_triplets(need: Columns, records: Records) -> bool:
    """Whether rows of NLI are to be made into triplets, for a loss of texts without a label.

    SNLI and MultiNLI alone call a column gold_label.
    """
    reads_negatives = need.label is None and (need.more_texts or need.texts == 3)
    return reads_negatives and "gold_label" in records.names


def joined(tables: list[Table], name: str) -> Table:
    """The rows of several files, one after the other."""
    first = tables[0]
    if len(tables) == 1:
        return first
    whole = replace(first, name=name, rows=[], places=[], skipped=[], unread=[], remarks=[])
    whole.parts = tables
    for table in tables:
        if table.columns != first.columns:
            raise InputError(
                f"{name}: {table.name} has {table.columns}, {first.name} {first.columns}"
            )
        whole.rows += table.rows
        whole.places += table.places
        whole.skipped += table.skipped
        whole.unread += [column for column in table.unread if column not in whole.unread]

        # the line names the columns of the first file, and others only where they differ
        if table.names != first.names:
            whole.remarks.append(f"of {table.name} {listed_names(table.names)}")
        whole.remarks += [remark for remark in table.remarks if remark not in whole.remarks]
    if first.columns.more_texts:
        cut_to_fewest(whole)
    return whole


def as_rows(
    rows: Any,
    columns: Columns | Sequence[Columns],
    names: str | None = None,
    *,
    name: str = "rows",
    names_may_lack: bool = False,
) -> Table:
    """Read rows from Python: tuples or lists (texts, then the label), dictionaries (by the names of
    their columns, as a file is), a ``datasets.Dataset``, a DataFrame, a dictionary of columns.

    The same checks and the same messages as for a file; what is no row is named with its number.
    ``names`` are for rows that have names, and ``names_may_lack`` as in ``read_rows``.
    """
    needs = as_needs(columns)
    records = python_records(rows, name)
    if records.is_numbered:
        # Tuples have no names: their columns are taken in order.
        names = ",".join(records.names)

        # Which of the needs they are is said by their last value, a text or a label. Of the tuples
        # that are looked at only the last may have one. They are rows too, so they are read again.
        looked_at = []
        for number, record in records.items:
            looked_at.append((number, record))
            if not is_missing(record[records.names[-1]]):
                break
        index, record = looked_at[-1]
        needs = [need_of_tuple(records, index, tuple(record.values()), needs)]
        records = replace(records, items=chain(looked_at, records.items))
    elif names is not None and names_may_lack and not has_columns(records, names):
        names = None
    return check_table(rows_of(records, needs, names))


def need_of_tuple(records: Records, index: int, row: tuple, needs: Sequence[Columns]) -> Columns:
    """What a row from Python is: the first of the needs that has its length and its end."""
    for need in needs:
        if not need.fits(len(row)):
            continue
        # A class is a word or a number. If no row has a last value, all are skipped.
        if need.label == "class" or is_missing(row[-1]):
            return need
        ends_with_text = isinstance(row[-1], str | list)
        if ends_with_text and need.label is None:
            return need
        if not ends_with_text and need.label is not None:
            return need
    place = place_of(records.name, records.unit, index)
    raise RowsDoNotFit(f"{place}: needed: {either(needs)}; not {one_line(row)}")


def as_needs(columns: Columns | Sequence[Columns]) -> Sequence[Columns]:
    """A list of needs, where one or several were given."""
    if isinstance(columns, Columns):
        return [columns]
    return columns


def rows_of(
    records: Records,
    needs: Sequence[Columns],
    names: str | None = None,
    *,
    split: str = "",
    limit: int | None = None,
    refuse: Refuse | None = None,
) -> Table:
    """The rows of records. A row that cannot be read is an error, unless ``refuse`` takes it."""
    choice = choose_columns(records, needs, names)
    table = Table(records.name, choice.columns, [], unit=records.unit, names=choice.names)
    table.is_named = choice.is_named

    # The records of other splits are passed over while the table is filled.
    split_column = None
    if split:
        split_column = split_column_of(records, choice)
    other_splits: Counter[str] = Counter()  # the rows of other splits, counted as they are passed
    if split_column is not None:
        items = items_of_split(records.items, split_column, split, other_splits)
        records = replace(records, items=items)
    fill(table, records, choice, limit, refuse or records.fail)

    if other_splits and not table.rows and not table.skipped:
        raise InputError(
            f"{records.name}: no row has the split {split}: in the column split are "
            f"{listed_names(other_splits)}; write {split} there, or leave the column out"
        )
    describe(table, records, choice, split_column)
    if choice.columns.more_texts:
        cut_to_fewest(table)
    if split_column is not None:
        table.split = split
        remark = f"split {split}"
        if other_splits:
            count = other_splits.total()
            remark += f", not the {count:,} rows of {listed_names(other_splits)}"
        table.remarks.append(remark)
    return table


def fill(
    table: Table,
    records: Records,
    choice: Choice,
    limit: int | None,
    refuse: Refuse,
) -> None:
    """Read the records into the table, at most ``limit`` with those that are skipped."""
    parse_label = label_parser(choice, records)
    count = 0
    for number, record in records.items:
        count += 1
        try:
            rows = read_record(record, choice, parse_label)
        except ValueError as error:
            refuse(number, str(error))
            continue
        if not rows:
            table.skipped.append(number)
        for row in rows:
            table.rows.append(row)
            table.places.append(number)
        if count == limit:  # what comes after it is not even looked at
            break


def split_column_of(records: Records, choice: Choice) -> str | None:
    """The column that says of each row whether it is one of train, dev or test."""
    for name in records.names:
        if name.lower() == "split" and name not in choice.names:
            return name
    return None


def items_of_split(
    items: Iterable[tuple[int, Record]], column: str, split: str, other_splits: Counter[str]
) -> Iterator[tuple[int, Record]]:
    """The records of a split; ``other_splits`` counts those of the others."""
    for number, record in items:
        name = split_name(record.get(column))
        if name == split:
            yield number, record
        else:
            other_splits[name] += 1


def describe(table: Table, records: Records, choice: Choice, split_column: str | None) -> None:
    """Note what the one line says behind the number of rows."""
    for name in records.names:
        if name and name not in choice.names and name != split_column:
            table.unread.append(name)
    if records.is_text:
        table.names = []
        table.remarks.append("a text in each line")
    elif records.is_numbered:
        # nobody asks which of the columns without names were not read
        table.unread = []
        table.names = [f"column {name}" for name in choice.names]
        if records.unit == "index":
            table.names = []
    if records.separator == ";":
        table.remarks.append("separated by semicolons")


def check_table(table: Table) -> Table:
    """The table, unless it has no row, or numbers whose meaning nobody can know."""
    if not table.rows:
        skipped = ""
        if table.skipped:
            skipped = f" ({len(table.skipped):,} were skipped: an empty text or no label)"
        raise InputError(f"{table.name} holds no usable rows{skipped}")
    if table.columns.label in ("class", "score") and not table.is_named:
        check_nli_numbers(table)
    if table.columns.label == "class":
        check_no_negative_class(table)
    return table


def check_nli_numbers(table: Table) -> None:
    """Raise ``InputError`` for 0, 1 and 2 under a name that NLI's classes have.

    Publishers number them in different orders, and scores of 0 to 2 are rare.
    """
    if table.names[-1].lower() not in ("label", "labels", "gold_label"):
        return
    labels = {row[-1] for row in table.rows}
    labels -= {"-1", -1.0}  # a row on which people did not agree
    if labels == {"0", "1", "2"} or labels == {0.0, 1.0, 2.0}:
        raise InputError(
            f"{table.name}: 0, 1 and 2 in the column {table.names[-1]} may be the classes of NLI, "
            f"and publishers number them in different orders (0 is entailment at Hugging Face, "
            f"contradiction in SBERT's own script): write their names, or if they are classes or "
            f"scores of your own: {proposal(table.unit, table.names)}"
        )


def check_no_negative_class(table: Table) -> None:
    """Raise ``InputError`` for the class -1, with which data sets of NLI mark a row without one."""
    for index, row in enumerate(table.rows):
        if row[-1].startswith("-") and row[-1][1:].isdigit():
            raise InputError(
                f"{table.place(index)}: the label {row[-1]} may be a class, or mark a row on which "
                f"people did not agree, as in NLI: leave out such rows, or write the classes as "
                f"words"
            )


def read_record(record: Record, choice: Choice, parse_label: Callable[[Any], Any]) -> list[tuple]:
    """The rows of a record: one, none if a text or its label is empty, or one for each positive.

    Raises ``ValueError`` that says what is wrong.
    """
    label = None
    try:
        values = [record[name] for name in choice.texts]
        if choice.label is not None:
            label = record[choice.label]
    except KeyError as error:
        raise ValueError(f"no {error}; the keys are {listed_names(record)}") from error

    # JSON may hold several positives or negatives of an anchor in a list.
    if choice.label is None and len(values) > 1 and any(type(value) is list for value in values):
        return read_lists(values)

    texts = []
    for value in values:
        text = parse_text(value)
        if not text:
            return []
        texts.append(text)
    if choice.label is None:
        return [tuple(texts)]
    label = parse_label(label)
    if label is None:
        return []
    return [(*texts, label)]


def read_lists(values: list[Any]) -> list[tuple]:
    """A row for each positive of an anchor, each with all negatives of their lists."""
    lists = []
    for value in values:
        if not isinstance(value, list):
            value = [value]
        lists.append([parse_text(item) for item in value])
    anchors, positives, *lists_of_negatives = lists
    if len(anchors) != 1:
        raise ValueError(f"one anchor is needed, not {len(anchors)}")
    negatives = []
    for texts in lists_of_negatives:
        negatives += texts
    rows = []
    for positive in positives:
        row = (anchors[0], positive, *negatives)
        if all(row):  # no text is empty
            rows.append(row)
    return rows


def cut_to_fewest(table: Table) -> None:
    """Give all rows as many negatives as the row with the fewest: lists may differ in length."""
    widths = {len(row) for row in table.rows}
    if len(widths) < 2:
        return
    fewest = min(widths)
    if fewest == 2:
        index = [len(row) for row in table.rows].index(2)
        raise InputError(f"{table.place(index)}: no negative; other rows have some")
    table.rows = [row[:fewest] for row in table.rows]
    table.unread.append(f"negatives beyond {fewest - 2} of a row")


def label_parser(choice: Choice, records: Records) -> Callable[[Any], Any]:
    """The function that reads a label; it returns None for a row without one."""
    kind = choice.columns.label
    if kind == "binary":
        return parse_binary
    if kind == "class":
        class_names = records.classes.get(choice.label or "", ())
        return class_parser(class_names)

    def parse_score_with_comma(value: Any) -> float | None:
        return parse_score(value, comma=True)

    if records.separator == ";":
        return parse_score_with_comma
    return parse_score


def class_parser(class_names: Sequence[str]) -> Callable[[Any], str | None]:
    """The function that reads a class; its number if a ``datasets.Dataset`` has names for them."""

    def parse_numbered_class(value: Any) -> str | None:
        if not isinstance(value, int):
            return parse_class(value)
        if value < 0:  # -1 is no class
            return None
        return class_names[value]

    if class_names:
        return parse_numbered_class
    return parse_class


# -------------------------------------------------------------------------------------- scales


def choose_scale(scores: Iterable[float], name: str = "rows", unit: str = "line") -> float:
    """The smallest of 1, 5, 10 and 100 that no score exceeds, above or below 0.

    ``choose_scale([0.5, 4.2]) = 5``. Raises ``InputError`` above 100: ``--scale`` must say it, or
    ``scale=`` for rows from Python, whose ``unit`` is "index".
    """
    highest = max((abs(score) for score in scores), default=0.0)
    for scale in SCALES:
        if highest <= scale:
            return float(scale)
    raise InputError(
        f"{name}: the highest score is {highest:g}, and a scale above 100 must be given, such as "
        f"{scale_setting(unit, highest)}"
    )


def highest_in_name(column: str) -> float | None:
    """The highest score that the name of a column states; None without one.

    ``highest_in_name("score (0-10)") = 10``.
    """
    scale = re.search(r"(?<![0-9a-zA-Z])[01] ?(?:-|–|to|\.\.) ?(\d+)(?!\d)", column)
    if scale is None:
        return None
    return float(scale[1])


def scale_option(unit: str) -> str:
    """What a user calls the scale of rows that are counted by this unit."""
    if unit == "index":
        return "scale"
    return "--scale"


def scale_setting(unit: str, scale: float) -> str:
    """``--scale 5``, or in Python ``scale=5``."""
    if unit == "index":
        return f"scale={scale:g}"
    return f"--scale {scale:g}"


def divide_scores(table: Table, scale: float) -> Table:
    """The table with its scores divided by the scale, so in 0 to 1 or -1 to 1.

    Raises ``InputError`` with the line of a score that is beyond it, and for a scale that is none.
    """
    if not 0 < scale < math.inf:
        raise InputError(
            f"{scale_setting(table.unit, scale)}: the highest score is needed, a number above 0"
        )
    rows = []
    for index, row in enumerate(table.rows):
        if abs(row[-1]) > scale:
            raise InputError(
                f"{table.place(index)}: the score {row[-1]:g} is beyond the scale of {scale:g}, "
                f"which holds for train, dev and test: give {scale_option(table.unit)}"
            )
        rows.append((*row[:-1], row[-1] / scale))
    return replace(table, rows=rows, scale=scale)


# ------------------------------------------------------------------------------- rows of NLI


def nli_triplets(table: Table) -> Table:
    """Make (premise, entailment, contradiction) of every premise that has both.

    Each premise gives one triplet, with its first entailment and its first contradiction, in the
    order in which premises first appear; neutral does not count. The first 100,000 rows of SNLI's
    training file give 27,195.
    """
    premises: dict[str, dict[str, str]] = {}  # premise -> class -> its first hypothesis
    places: dict[str, int] = {}
    for row, place in zip(table.rows, table.places, strict=True):
        premise, hypothesis, label = row
        premises.setdefault(premise, {}).setdefault(label, hypothesis)
        places.setdefault(premise, place)

    triplets: list[tuple] = []
    kept = []
    for premise, hypotheses in premises.items():
        if "entailment" in hypotheses and "contradiction" in hypotheses:
            triplets.append((premise, hypotheses["entailment"], hypotheses["contradiction"]))
            kept.append(places[premise])
    if not triplets:
        raise InputError(
            f"{table.name}: none of {len(table.rows):,} rows has a premise with both entailment "
            f"and contradiction"
        )
    return replace(
        table,
        rows=triplets,
        places=kept,
        columns=Columns(3),
        names=["premise", "entailment", "contradiction"],
        remarks=[f"made of {len(table.rows):,} rows of NLI"],
    )


def each_text_once(table: Table) -> Table:
    """Every text of the rows, in the order in which they first occur."""
    places: dict[str, int] = {}
    for row, place in zip(table.rows, table.places, strict=True):
        for text in row:
            places.setdefault(text, place)
    return replace(
        table,
        rows=[(text,) for text in places],
        places=list(places.values()),
        columns=Columns(1),
        names=[],
        remarks=["each of its texts once"],
    )


# ----------------------------------------------------------------------- pairs and texts by name


class ScoredPair(NamedTuple):
    """Two sentences, and how similar people found them: of the STS Benchmark from 0 to 5."""

    sentence1: str
    sentence2: str
    score: float

    @property
    def texts(self) -> tuple[str, str]:
        return self.sentence1, self.sentence2


def load_scored_pairs(data: str | Path, split: str = "") -> list[ScoredPair]:
    """Load ``stsb`` (fetched if it is missing), with ``split`` train, dev or test, or the scored
    pairs of a file. Scores are as they stand there.
    """
    table = read_rows(data, Columns(2, "score"), split=split)
    if table.skipped:
        warn(table.note())
    return [ScoredPair(*row) for row in table.rows]


def every_text(
    path: str | Path,
    names: str | None = None,
    quotes: bool = True,
    *,
    blanks: bool = False,
    is_told: bool = False,
    names_may_lack: bool = False,
) -> Iterator[str]:
    """Yield the text of each row, stripped; text i is in the i-th line or row.

    A file that is no table and no JSON has a text in each line. ``names`` is ``--columns``; with
    ``names_may_lack`` a file without these columns is read as if they were not given. At the end
    one line tells what was read, unless the user ``is_told`` already. Raises ``InputError`` for a
    blank text, unless ``blanks`` are wanted, which are "", and for a file without a text.
    """
    is_text = names is None or names_may_lack
    records = open_records(path, quotes=quotes, last_number=last_number(names), is_text=is_text)
    if names is not None and names_may_lack and not has_columns(records, names):
        names = None
    choice = choose_columns(records, [Columns(1)], names)
    parse_label = label_parser(choice, records)

    count = 0
    has_text = False
    for number, record in records.items:
        try:
            rows = read_record(record, choice, parse_label)
        except ValueError as error:
            records.fail(number, str(error))
        text = ""
        if rows:
            (text,) = rows[0]
        if not text and not blanks:
            records.fail(number, "an empty line has no text to encode; remove it")
        count += 1
        if text:
            has_text = True
        yield text
    if not has_text:
        raise InputError(f"{records.name} is empty: it holds no text")
    if not records.is_text and not is_told:
        table = Table(records.name, choice.columns, [], unit=records.unit, names=choice.names)
        describe(table, records, choice, None)
        say("; ".join([f"{records.name}: {count:,} rows", *table.details()]))
