"""Inspect files of training data: what the rule of ``data.columns`` makes of them, what training
refuses and skips, what repeats, and what files share.
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
from minisbert.core import InputError
from minisbert.data.columns import Columns, choose_columns, last_number
from minisbert.data.records import Records, Refuse
from minisbert.data.rows import Table, check_table, choose_scale, divide_scores, rows_of
from minisbert.data.splits import check_classes, shared_rows
from minisbert.data.tables import open_records
from minisbert.data.values import number
from minisbert.models.batching import chunks

FEW = 500  # rows, of which one epoch is too few steps to learn: docs/training.md
TEXTS = Columns(1)
PAIRS = Columns(2, more_texts=True)
# what the label of two texts is -> the options of the command that is suggested
LOSSES = {
    "score": ["--loss", "cosine"],
    "binary": ["--loss", "binary", "--head", "concat"],
    "class": ["--loss", "softmax"],
    None: ["--loss", "ranking"],
}


@dataclass
class InspectedFile:
    """A file, and the rows that training takes. Places are strings such as "line 7"."""

    path: Path
    columns: str | None = None  # --columns
    scale: float | None = None  # --scale
    table: Table | None = None  # None if the file cannot be read at all
    problems: list[str] = field(default_factory=list)  # for which training stops, with their places
    repeated: list[str] = field(default_factory=list)  # places of rows that are copies of others
    limit: int = 0  # of the model, in tokens
    tokens: list[int] = field(default_factory=list)  # of each text, before it is cut

    @property
    def rows(self) -> list[tuple]:
        return self.table.rows if self.table else []

    @property
    def label(self) -> str | None:
        """What the label of a row is: score, binary, class or None."""
        return self.table.columns.label if self.table else None

    @property
    def texts(self) -> list[str]:
        texts: list[str] = []
        for row in self.rows:
            texts += row[:-1] if self.label else row
        return texts

    @property
    def scores(self) -> list[float]:
        """The scores of scored pairs, as the file has them."""
        if self.label != "score":
            return []
        return [row[-1] for row in self.rows]

    def summary(self) -> dict[str, Any]:
        """Return counts and findings as plain values, for JSON."""
        content: dict[str, Any] = {"path": str(self.path), "rows": len(self.rows)}
        content["read"] = self.table.note() if self.table else None
        content |= {"texts": len(self.texts), "distinct_texts": len(set(self.texts))}
        if self.tokens:
            median, p95 = np.percentile(self.tokens, (50, 95), method="higher").tolist()
            cut = sum(length > self.limit for length in self.tokens)
            content["tokens"] = {"median": median, "p95": p95, "longest": max(self.tokens)}
            content["tokens"] |= {"limit": self.limit, "cut": cut}
        content["labels"] = {}
        if self.scores:
            content["scores"] = {
                "min": min(self.scores),
                "max": max(self.scores),
                "mean": float(np.mean(self.scores)),
            }
        elif self.label:
            content["labels"] = counted(row[-1] for row in self.rows)
        skipped = []
        if self.table:
            skipped = [f"{self.table.unit} {place}" for place in self.table.skipped]
        return content | {
            "unread": self.table.unread if self.table else [],
            "problems": self.problems,
            "skipped": skipped,
            "repeated": self.repeated,
        }


def counted(labels: Iterable[str | int]) -> dict[str, int]:
    return {str(label): count for label, count in sorted(Counter(labels).items())}


def inspect(
    path: Path,
    tokenizer: ModelTokenizer | None = None,
    scale: float | None = None,
    role: str = "train",
    quotes: bool = True,
    columns: str | None = None,
) -> InspectedFile:
    """Read a file as training does that takes it as ``role``, train, dev or test; go on after a row
    that it refuses.

    Lengths in tokens are counted if there is a tokenizer. Raises ``InputError`` only for a file
    that is missing.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist")
    found = InspectedFile(path, columns, scale)
    try:
        needs = needs_of(open_file(found, role, quotes, pass_over), columns)
        found.table = read_all(found, needs, role, quotes)
        note_repeated(found, found.table)
        if not found.problems:
            check_whole(found, found.table)
    except InputError as error:
        found.problems.append(str(error))
    if tokenizer is not None:
        uncut = copy.copy(tokenizer)
        found.limit, uncut.limit = tokenizer.limit, 2**31
        for chunk in chunks(found.texts):  # all ids of a large file would not fit in memory
            found.tokens += map(len, uncut.encode(chunk).ids)
    return found


def open_file(
    found: InspectedFile,
    role: str,
    quotes: bool,
    refuse: Refuse | None = None,
    is_text: bool = False,
) -> Records:
    """Open the file, as a table if it may be one. ``refuse`` takes rows that are broken."""
    return open_records(
        found.path,
        quotes=quotes,
        last_number=last_number(found.columns),
        is_text=is_text and found.columns is None,
        split=role,
        refuse=refuse,
    )


def pass_over(place: int, message: str) -> None:
    """Leave out a row that is broken: it is told when the rows are read."""


def read_all(found: InspectedFile, needs: Sequence[Columns], role: str, quotes: bool) -> Table:
    """Read the rows, and go on after each that is refused."""
    broken: list[tuple[int, str]] = []  # the place of a row, and what is wrong with it

    def refuse(place: int, message: str) -> None:
        broken.append((place, message))

    records = open_file(found, role, quotes, refuse, is_text=needs[-1] == TEXTS)
    try:
        return rows_of(records, needs, found.columns, split=role, refuse=refuse)
    finally:
        for place, message in broken:
            found.problems.append(f"{records.unit} {place}: {message}")


def needs_of(records: Records, columns: str | None) -> list[Columns]:
    """What the rows of a file may be: its label is what all of its values are."""
    try:
        choice = choose_columns(records, [Columns(2, "class"), PAIRS, TEXTS], columns)
    except InputError:
        return [Columns(2, "score"), PAIRS, TEXTS]  # which says what is wrong
    if choice.label is None:
        return [choice.columns]
    labels = set()
    for _, record in records.items:
        labels.add(str(record.get(choice.label) or "0"))
    numbers = {number(label.replace(",", ".")) for label in labels}
    is_score = "score" in choice.label.lower() or "similarity" in choice.label.lower()
    if not is_score and numbers <= {0.0, 1.0}:
        return [Columns(2, "binary")]
    # a few words among numbers are mistakes
    words = [label for label in labels if number(label.replace(",", ".")) is None]
    if is_score or len(words) < len(labels) / 2:
        return [Columns(2, "score")]
    return [Columns(2, "class")]


def check_whole(found: InspectedFile, table: Table) -> None:
    """Raise ``InputError`` for what training says of all rows together."""
    check_table(table)
    if table.columns.label == "class":
        check_classes(table)
    if table.columns.label == "score":
        scale = abs(found.scale or choose_scale(found.scores, table.name))
        divide_scores(table, scale)
        table.scale = scale


def note_repeated(found: InspectedFile, table: Table) -> None:
    """Note the rows that are copies of earlier ones."""
    first: dict[tuple, int] = {}  # row -> its place
    for row, place in zip(table.rows, table.places, strict=True):
        earlier = first.setdefault(row, place)
        if earlier != place:
            found.repeated.append(f"{table.unit} {place}, as {table.unit} {earlier}")


def overlap(train: InspectedFile, other: InspectedFile) -> dict[str, Any]:
    """Count the rows of ``other`` whose first two texts share a row of ``train``, in either
    order.
    """
    rows = shared_rows(train.rows, other.rows)
    return {"file": str(other.path), "with": str(train.path), "rows": rows}


def training_command(
    files: Sequence[InspectedFile], model: str | None, max_length: int | None
) -> str | None:
    """Write the command that trains on the first file, with dev and test; None if one of them has
    problems.
    """
    first = files[0]
    if first.table is None or any(file.problems for file in files):
        return None
    loss = LOSSES[first.label]
    if first.table.columns.texts == 1:
        loss = ["--loss", "simcse"]
    words = [*loss, "--data", str(first.path)]
    for flag, file in zip(("--dev", "--test"), files[1:], strict=False):
        words += [flag, str(file.path)]
    if first.columns:
        words += ["--columns", first.columns]
    if len(first.rows) < FEW:
        words += ["--epochs", "8"]
    if first.scale is not None:
        words += ["--scale", f"{first.scale:g}"]
    if model:
        words += ["--model", model]
    if max_length:
        words += ["--max-length", str(max_length)]
    return shlex.join(["minisbert", "train", *words])
