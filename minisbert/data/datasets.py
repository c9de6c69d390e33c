"""The rows of a run for the objectives of ``training``: what ``splits`` reads, under older names.

This file goes with those objectives; new code calls ``splits.read_splits``.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from minisbert.core import InputError
from minisbert.data import splits as new
from minisbert.data.columns import Columns
from minisbert.data.rows import Table, load_scored_pairs, read_rows
from minisbert.data.splits import Splits, read_splits, split_table

__all__ = ["load_scored_pairs"]

MAX_SCORE = 5.0  # the scores of rows are 0 to this
SCORED = Columns(2, "score")
LABELLED = Columns(2, "binary")
CLASSES = Columns(2, "class")
PAIRS = Columns(2, more_texts=True)

TextRows = list[tuple[str, ...]]
Notes = dict[str, str]  # by split


@dataclass(frozen=True)
class Row:
    """Texts that belong together, and their label: a score of 0 to 5, 0 or 1, or a class."""

    texts: tuple[str, ...]
    label: Any = None

    @property
    def sentence1(self) -> str:
        return self.texts[0]

    @property
    def sentence2(self) -> str:
        return self.texts[1]

    @property
    def score(self) -> float:
        return float(self.label)


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where the rows of a run come from: names of data sets or files, or rows that are read."""

    data: Any = None
    dev: Any = None
    test: Any = None
    columns: str | None = None
    scale: float = MAX_SCORE
    quotes: bool = True
    limit: int | None = None
    seed: int = 42

    @property
    def given_scale(self) -> float | None:
        """The scale, unless it is the default."""
        return None if self.scale == MAX_SCORE else abs(self.scale)

    def splits(self, columns: Columns, default: str) -> Splits:
        return read_splits(
            self.data or default,
            self.dev,
            self.test,
            columns,
            self.columns,
            self.given_scale,
            quotes=self.quotes,
            limit=self.limit,
            seed=self.seed,
        )

    def table(self, columns: Columns | list[Columns], default: str = "", split: str = "") -> Table:
        """The rows of a split of their own, by default those to train on."""
        if not self.data and not default:
            raise InputError("--data FILE is needed")
        return read_rows(
            self.data or default,
            columns,
            self.columns,
            split=split or "train",
            quotes=self.quotes,
            limit=self.limit,
        )


def labelled(rows: Iterable[tuple], columns: Columns, times: float = MAX_SCORE) -> list:
    """Rows with a label as objects; rows of texts stay tuples."""
    if columns.label is None:
        return list(rows)
    if columns.label != "score":
        return [Row(row[:-1], row[-1]) for row in rows]
    return [Row(row[:-1], row[-1] * times) for row in rows]


def objects_of(splits: Splits) -> tuple[dict[str, list], Notes]:
    """Rows and notes of all splits."""
    rows = {}
    for split, some in splits.rows.items():
        columns = splits.columns.get(split, splits.columns["train"])
        times = MAX_SCORE if splits.scale is not None else 1.0
        rows[split] = labelled(some, columns, times)
    return rows, splits.described


def shared_rows(train: Iterable, other: Iterable) -> int:
    """Count the rows of ``other`` whose first two texts share a row of ``train``."""
    return new.shared_rows(map(texts_of, train), map(texts_of, other))


def texts_of(row: Any) -> tuple:
    return row.texts if isinstance(row, Row) else row


def scored_rows(sources: Sources) -> tuple[dict[str, list], Notes]:
    return objects_of(sources.splits(SCORED, "stsb"))


def duplicate_rows(sources: Sources) -> tuple[dict[str, list], Notes]:
    rows, notes = objects_of(sources.splits(LABELLED, "quora"))
    for split in ("dev", "test"):
        if rows[split]:
            check_labels(rows[split], f"{split} {notes[split]}")
    return rows, notes


def check_labels(rows: Iterable[Row], name: str) -> None:
    """Raise ``InputError`` if no F1 is defined."""
    if not any(row.label for row in rows):
        raise InputError(f"{name}: no pair has label 1, so F1 is not defined; give more rows")


def class_rows(sources: Sources) -> tuple[dict[str, list], Notes, tuple[str, ...]]:
    splits = sources.splits(CLASSES, "snli")
    rows, notes = objects_of(splits)
    for split, some in rows.items():
        rows[split] = [replace(row, label=splits.classes.index(row.label)) for row in some]
    return rows, notes, tuple(splits.classes)


def triplet_rows(
    sources: Sources, split: str = "train", only_triplets: bool = False
) -> tuple[TextRows, str]:
    table = sources.table(Columns(3) if only_triplets else PAIRS, "snli", split)
    return table.rows, table.note()


def translation_rows(sources: Sources) -> tuple[TextRows, str]:
    table = sources.table([Columns(1), Columns(2)], "stsb")
    return table.rows, table.note()


def text_rows(sources: Sources, alone: bool = False) -> tuple[TextRows, str]:
    table = sources.table(Columns(1), "stsb")
    return table.rows, table.note()


def judged_rows(
    train: list, note: str, sources: Sources, can_judge: bool = True, searched: bool = False
) -> tuple[dict[str, list], Notes]:
    """Training rows with those of dev and test."""
    columns = Columns(1)
    if can_judge:
        columns = Columns(len(train[0])) if len(train[0]) <= 3 else PAIRS
    dev = sources.dev
    if searched and dev is None:
        dev = "stsb"
    table = Table(str(sources.data or "stsb"), columns, train)
    needs = [SCORED]
    if can_judge:
        needs = [PAIRS, SCORED]
    splits = split_table(
        table, dev, sources.test, needs, sources.columns, quotes=sources.quotes, seed=sources.seed
    )
    rows, notes = objects_of(splits)
    notes["train"] = note
    return rows, notes


def divided(
    train: list,
    note: str,
    sources: Sources,
    load: Callable[[str], tuple[list, str]],
    what: str = "pairs",
) -> tuple[dict[str, list], Notes]:
    """Rows of candidates with those of dev and test."""
    table = Table(str(sources.data), Columns(2, more_texts=True), train)
    splits = split_table(
        table,
        sources.dev,
        sources.test,
        [PAIRS],
        sources.columns,
        quotes=sources.quotes,
        seed=sources.seed,
    )
    return splits.rows, {**splits.described, "train": note}


def bare_rows(
    loss: str, data: str | None, dev: str | None, test: str | None, seed: int, quotes: bool = True
) -> tuple[dict[str, list[tuple]], Notes]:
    """What ``minisbert.train`` reads: rows of texts, then a score in 0..1 or the number of a
    class.
    """
    sources = Sources(data=data, dev=dev, test=test, seed=seed, quotes=quotes)
    if loss == "cosine":
        splits = sources.splits(SCORED, "stsb")
        return splits.rows, splits.described
    if loss == "softmax":
        splits = sources.splits(CLASSES, "snli")
        for split, some in splits.rows.items():
            splits.rows[split] = [(*row[:-1], splits.classes.index(row[-1])) for row in some]
        return splits.rows, splits.described
    if loss == "simcse":
        rows, note = text_rows(sources)
    else:
        rows, note = triplet_rows(sources, only_triplets=loss == "triplet")
    found, notes = judged_rows(rows, note, sources, can_judge=loss != "simcse")
    for split, some in found.items():
        found[split] = [(*r.texts, r.score) if isinstance(r, Row) else r for r in some]
    return found, notes
