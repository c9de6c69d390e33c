"""Inspect files of training data.

What the rule of ``data.columns`` makes of them, what training refuses and skips, what repeats, and
what files share.
"""

import copy
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from minisbert.checkpoints.model_tokenizer import ModelTokenizer
from minisbert.core import InputError, one_line
from minisbert.data.columns import PAIRS, Columns, choose_columns, last_number
from minisbert.data.records import Records, Refuse
from minisbert.data.rows import Table, check_table, rows_of
from minisbert.data.splits import ready_to_train, shared_rows
from minisbert.data.tables import open_records
from minisbert.data.values import as_number
from minisbert.models.batching import chunks

# Of fewer rows than this one epoch is too few steps to learn: docs/training.md.
FEW_ROWS = 500
MOST_PROBLEMS = 10_000  # rows that cannot be read, before the file is not read further
ONE_TEXT = Columns(1)
# For each label that two texts may have, the options of the command that is suggested.
OPTIONS_BY_LABEL = {
    "score": ["--loss", "cosine"],
    "binary": ["--loss", "binary", "--head", "concat"],
    "class": ["--loss", "softmax"],
    None: ["--loss", "ranking"],
}


@dataclass
class InspectedFile:
    """A file, how it is read, and what was found in it."""

    path: Path
    columns: str | None = None  # --columns
    scale: float | None = None  # --scale
    quotes: bool = True  # False: --no-quotes
    role: str = "train"  # or dev or test: what the rows are read for
    table: Table | None = None  # the rows that training takes; None if the file cannot be read
    problems: list[str] = field(default_factory=list)  # "line 7: ...", for which training stops
    repeated: list[str] = field(default_factory=list)  # "line 7, as line 2"
    limit: int = 0  # of the model, in tokens
    tokens: list[int] = field(default_factory=list)  # of each text, before it is cut

    @property
    def rows(self) -> list[tuple]:
        if self.table is None:
            return []
        return self.table.rows

    @property
    def label(self) -> str | None:
        """What the label of a row is: score, binary, class or None."""
        if self.table is None:
            return None
        return self.table.columns.label

    @property
    def texts(self) -> list[str]:
        texts: list[str] = []
        for row in self.rows:
            if self.label is not None:
                row = row[:-1]
            texts += row
        return texts

    @property
    def scores(self) -> list[float]:
        """The scores of scored pairs, as the file has them."""
        if self.label != "score":
            return []
        return [row[-1] for row in self.rows]

    def summary(self) -> dict[str, Any]:
        """Return counts and findings as plain values, for JSON."""
        read = None
        unread: list[str] = []
        skipped: list[str] = []
        if self.table is not None:
            read = self.table.note()
            unread = self.table.unread
            skipped = [f"{self.table.unit} {place}" for place in self.table.skipped]

        content: dict[str, Any] = {
            "path": str(self.path),
            "rows": len(self.rows),
            "read": read,
            "texts": len(self.texts),
            "distinct_texts": len(set(self.texts)),
        }
        if self.tokens:
            median, p95 = np.percentile(self.tokens, (50, 95), method="higher").tolist()
            content["tokens"] = {
                "median": median,
                "p95": p95,
                "longest": max(self.tokens),
                "limit": self.limit,
                "cut": sum(length > self.limit for length in self.tokens),
            }
        content["labels"] = {}
        if self.scores:
            content["scores"] = {
                "min": min(self.scores),
                "max": max(self.scores),
                "mean": float(np.mean(self.scores)),
            }
        elif self.label:
            content["labels"] = counted(row[-1] for row in self.rows)

        content["unread"] = unread
        content["problems"] = self.problems
        content["skipped"] = skipped
        content["repeated"] = self.repeated
        return content


def counted(labels: Iterable[str | int]) -> dict[str, int]:
    """How often each label occurs, sorted by label."""
    return {str(label): count for label, count in sorted(Counter(labels).items())}


def inspect(
    path: Path,
    tokenizer: ModelTokenizer | None = None,
    scale: float | None = None,
    role: str = "train",
    quotes: bool = True,
    columns: str | None = None,
) -> InspectedFile:
    """Read a file as training does that takes it as ``role``: train, dev or test.

    Unlike training it goes on after a row that is refused. Lengths in tokens are counted if there
    is a tokenizer. Raises ``InputError`` only for a file that is missing, or a pipe.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist")
    if not path.is_file() and not path.is_dir():  # a folder may be a data set
        raise InputError(f"{path} is a pipe, which can be read once only: save it as a file")
    file = InspectedFile(path, columns, scale, quotes, role)
    try:
        # The file is read twice: what kind of labels it has is known only after the last one.
        records = open_file(file, pass_over)
        needs = needs_of(records, columns)
        file.table = read_all(file, needs)
        note_repeated(file, file.table)
        if not file.problems:
            check_whole(file, file.table)
    except InputError as error:
        file.problems.append(str(error))
    if tokenizer is not None:
        count_tokens(file, tokenizer)
    return file


def open_file(file: InspectedFile, refuse: Refuse, is_text: bool = False) -> Records:
    """Open the file. ``refuse`` takes rows that are broken."""
    return open_records(
        file.path,
        quotes=file.quotes,
        last_number=last_number(file.columns),
        is_text=is_text and file.columns is None,
        split=file.role,
        refuse=refuse,
    )


def pass_over(place: int, message: str) -> None:
    """Leave out a broken row: ``read_all`` reports it."""


def read_all(file: InspectedFile, needs: Sequence[Columns]) -> Table:
    """Read the rows, and go on after each that is refused."""
    broken: list[tuple[int, str]] = []  # the place of a row, and what is wrong with it

    def refuse(place: int, message: str) -> None:
        broken.append((place, message))
        if len(broken) == MOST_PROBLEMS:  # a file of millions of them would fill the memory
            raise InputError(
                f"{file.path}: {MOST_PROBLEMS:,} rows cannot be read; mend these first"
            )

    may_be_texts = ONE_TEXT in needs
    records = open_file(file, refuse, is_text=may_be_texts)
    try:
        return rows_of(records, needs, file.columns, split=file.role, refuse=refuse)
    finally:
        for place, message in broken:
            file.problems.append(f"{records.unit} {place}: {message}")


def count_tokens(file: InspectedFile, tokenizer: ModelTokenizer) -> None:
    """Count the tokens of each text, as if no limit cut it."""
    uncut = copy.copy(tokenizer)
    uncut.limit = 2**31
    file.limit = tokenizer.limit
    for chunk in chunks(file.texts):  # all ids of a large file would not fit in memory
        file.tokens += [len(ids) for ids in uncut.encode(chunk).ids]


def needs_of(records: Records, columns: str | None) -> list[Columns]:
    """What the rows of a file may be; the values of a label say what kind of label it is."""
    try:
        # Whatever the label is, it can be the name of a class.
        choice = choose_columns(records, [Columns(2, "class"), PAIRS, ONE_TEXT], columns)
    except InputError:
        # A file with a text in each line has no columns. For any other, reading the rows says what
        # is wrong.
        return [Columns(2, "score"), PAIRS, ONE_TEXT]
    if choice.label is None:
        return [choice.columns]
    name = choice.label.lower()
    if "score" in name or "similarity" in name:
        return [Columns(2, "score")]
    labels = labels_of(records, choice.label)
    return [Columns(2, kind_of_labels(labels))]


def labels_of(records: Records, column: str) -> set[str]:
    """The different labels of a file, as strings."""
    labels = set()
    for _, record in records.items:
        label = record.get(column)
        # JSON has true and false for 1 and 0. A row without a label is skipped; 0 fits any kind.
        if not label:
            label = 0
        elif label is True:
            label = 1
        labels.add(str(label))
    return labels


def kind_of_labels(labels: set[str]) -> str:
    """What these are: "binary" (0 and 1 alone), "class" (most are words) or "score"."""
    numbers = set()
    words = 0
    for label in labels:
        value = as_number(label, comma=True)
        if value is None:
            words += 1
        else:
            numbers.add(value)
    if not words and numbers <= {0.0, 1.0}:
        return "binary"
    if words < len(labels) / 2:  # a few words among numbers are mistakes
        return "score"
    return "class"


def check_whole(file: InspectedFile, table: Table) -> None:
    """Raise ``InputError`` for what training says of all rows together."""
    check_table(table)
    if len(table.rows) == 1 and file.role == "train":
        raise InputError(f"{table.name}: one row is too few to train on: give more")

    # It is called for its errors, for the scale and what is said of it: the scores are shown as the
    # file has them.
    ready = ready_to_train(table, file.scale)
    table.scale = ready.scale
    table.remarks = ready.remarks

    if table.columns.label == "score" and len(set(file.scores)) < 2:
        raise InputError(
            f"{table.name}: all rows have the score {file.scores[0]:g}, and a correlation "
            f"needs different ones: give more rows"
        )
    if table.columns.label is None and table.columns.texts > 1 and file.role == "train":
        check_negatives(table)


def check_negatives(table: Table) -> None:
    """Raise ``InputError`` if all rows share a text: then none can be a negative of another."""
    shared = set(table.rows[0])
    for row in table.rows:
        shared.intersection_update(row)
        if not shared:
            return
    raise InputError(
        f"{table.name}: all rows share the text {one_line(min(shared))}, so no batch has a "
        f"negative: give other rows"
    )


def note_repeated(file: InspectedFile, table: Table) -> None:
    """Note the rows that are copies of earlier ones."""
    first: dict[tuple, int] = {}  # row -> its place
    for row, place in zip(table.rows, table.places, strict=True):
        earlier = first.setdefault(row, place)
        if earlier != place:
            file.repeated.append(f"{table.unit} {place}, as {table.unit} {earlier}")


def overlap(train: InspectedFile, other: InspectedFile) -> dict[str, Any]:
    """Count the rows of ``other`` whose first two texts are those of a row of ``train``."""
    rows = shared_rows(train.rows, other.rows)
    return {"file": str(other.path), "with": str(train.path), "rows": rows}


def training_command(
    files: Sequence[InspectedFile], model: str | None, max_length: int | None
) -> str | None:
    """Write the command that trains on the first file; the next are its dev and test.

    Returns None if one of them has problems.
    """
    first = files[0]
    if first.table is None or any(file.problems for file in files):
        return None
    loss = OPTIONS_BY_LABEL[first.label]
    if first.table.columns.texts == 1:
        loss = ["--loss", "simcse"]
    arguments = [*loss, "--data", str(first.path)]
    for file in files[1:3]:
        arguments += [f"--{file.role}", str(file.path)]
    if first.columns:
        arguments += ["--columns", first.columns]
    if not first.quotes:
        arguments.append("--no-quotes")
    if len(first.rows) < FEW_ROWS:
        arguments += ["--epochs", "8"]
    if first.scale is not None:
        arguments += ["--scale", f"{first.scale:g}"]
    if model:
        arguments += ["--model", model]
    if max_length:
        arguments += ["--max-length", str(max_length)]
    return shlex.join(["minisbert", "train", *arguments])
