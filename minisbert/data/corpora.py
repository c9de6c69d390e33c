"""Readers for files of labelled pairs, triplets and plain sentences.

Every reader streams its file, decompresses .gz, and returns the rows and the number of rows that it skipped; its
docstring says which. ``limit`` takes the first rows of the file, skipped ones included. All raise ``InputError`` with
file and line for input they cannot read, and for a file without a usable row.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from minisbert.core import InputError, one_line
from minisbert.data.rows import Rows, check_unicode
from minisbert.system.assets import ensure

NLI_LABELS = ("contradiction", "entailment", "neutral")  # numbered 0, 1, 2 as in SBERT's own script
NLI_ARCHIVES = {"snli": "snli_1.0.zip", "multinli": "multinli_1.0.zip"}
DUPLICATE_COLUMNS = (("is_duplicate", "question1", "question2"), ("label", "sentence1", "sentence2"))
TRIPLET_COLUMNS = (("anchor", "positive", "negative"), ("sent0", "sent1", "hard_neg"))  # the second is SimCSE's file


@dataclass(frozen=True)
class LabelledPair:
    """Two sentences and their class number."""

    sentence1: str
    sentence2: str
    label: int


class Triplet(NamedTuple):
    """A sentence, one with the same meaning, one with another."""

    anchor: str
    positive: str
    negative: str


Row = TypeVar("Row")

# ------------------------------------------------------------------------------------------- readers


def load_nli(data: str, split: str = "train", limit: int | None = None) -> tuple[list[LabelledPair], int]:
    """``data`` is ``snli`` or ``multinli`` (fetched if missing) or the path of a file; only a .zip has splits."""
    return read_nli(ensure(data) / NLI_ARCHIVES[data] if data in NLI_ARCHIVES else data, split, limit)


def read_nli(path: str | Path, split: str = "train", limit: int | None = None) -> tuple[list[LabelledPair], int]:
    """Rows of SNLI or MultiNLI: one JSON object per line with ``gold_label``, ``sentence1`` and ``sentence2``.

    ``path`` is a .jsonl, a .jsonl.gz, or the published .zip, from which ``split`` selects a file: train, dev, test,
    dev_matched, ... (of MultiNLI dev is dev_matched, test is dev_mismatched). Labels are numbered as in ``NLI_LABELS``.
    Rows whose annotators did not agree (``gold_label`` is "-") and rows with an empty sentence are skipped.
    """

    def pair(where: str, cells: list[str]) -> LabelledPair | None:
        label, *sentences = cells
        if label != "-" and label not in NLI_LABELS:
            raise InputError(f"{where}: unknown label {one_line(label)}; the labels are {', '.join(NLI_LABELS)} and -")
        return LabelledPair(*sentences, NLI_LABELS.index(label)) if label != "-" and all(sentences) else None

    rows = json_rows(path, ("gold_label", "sentence1", "sentence2"), split)
    return collect(path, (pair(where, cells) for where, cells in rows), limit)


def read_duplicates(path: str | Path, limit: int | None = None) -> tuple[list[LabelledPair], int]:
    """Pairs with label 1 (the same question) or 0: Quora's release, or a file of label, sentence1, sentence2.

    Tab- or comma-separated. The header names the columns (``is_duplicate``, ``question1``, ``question2``, or
    ``label``, ``sentence1``, ``sentence2``) and may name others; without a header the file must have these three, in
    this order. Quotation marks enclose a cell in comma-separated files and in Quora's; in other tab-separated files
    they are text. Rows with an empty text are skipped (Quora has a few).
    """

    def pair(where: str, cells: list[str]) -> LabelledPair | None:
        label, *sentences = cells
        if label not in ("0", "1"):
            raise InputError(f"{where}: the label {one_line(label)} is not 0 or 1")
        return LabelledPair(*sentences, int(label)) if all(sentences) else None

    rows = table(path, known(DUPLICATE_COLUMNS), DUPLICATE_COLUMNS[0])
    return collect(path, (pair(where, cells) for where, cells in rows), limit)


def read_triplets(path: str | Path, limit: int | None = None) -> tuple[list[Triplet], int]:
    """Triplets in three columns: anchor, positive, negative.

    Tab- or comma-separated, with or without a header (see ``read_duplicates``; SimCSE's sent0, sent1, hard_neg also
    works), or .jsonl with objects of these three keys or lists of three. Rows with an empty text are skipped.
    """
    is_json = ".jsonl" in Path(path).suffixes
    rows = json_rows(path, TRIPLET_COLUMNS[0]) if is_json else table(path, known(TRIPLET_COLUMNS), TRIPLET_COLUMNS[0])
    return collect(path, (Triplet(*cells) if all(cells) else None for _, cells in rows), limit)


def read_sentences(path: str | Path, limit: int | None = None) -> tuple[list[str], int]:
    """One sentence per line, .txt or .txt.gz; duplicates are kept. Empty lines are skipped."""
    return collect(path, (line.strip() or None for line in Rows(path).lines()), limit)


def nli_triplets(rows: Iterable[LabelledPair]) -> list[Triplet]:
    """(premise, entailment, contradiction) for every premise that has both; neutral does not count.

    Rows with the same premise text belong together, wherever they are in the file. Each premise gives one triplet, with
    its first entailment and its first contradiction, in the order in which premises first appear. The first 100,000
    rows of SNLI's training file give 27,195. (Also pairing the second with the second and so on would give 33,091,
    with the same anchor in several rows.)
    """
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        found.setdefault(row.sentence1, {}).setdefault(NLI_LABELS[row.label], row.sentence2)
    return [
        Triplet(premise, hypotheses["entailment"], hypotheses["contradiction"])
        for premise, hypotheses in found.items()
        if "entailment" in hypotheses and "contradiction" in hypotheses
    ]


def split_rows(rows: Sequence[Row], share: float, seed: int) -> tuple[list[Row], list[Row]]:
    """Rows shuffled and split in two: ``round(share * N)`` of them, and the rest. The same seed gives the same split.

    Raises ``ValueError`` if one side would be empty.
    """
    cut = round(share * len(rows))
    if not 0 < cut < len(rows):
        raise ValueError(f"a share of {share} of {len(rows)} rows leaves one side empty")
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()
    return [rows[i] for i in order[:cut]], [rows[i] for i in order[cut:]]


# -------------------------------------------------------------------------------------- files to rows


def collect(path: str | Path, rows: Iterable[Row | None], limit: int | None) -> tuple[list[Row], int]:
    """The first ``limit`` rows without those that are None, and the number of those."""
    if limit is not None and limit < 1:
        raise InputError(f"limit must be at least 1, not {limit}")
    found = list(islice(rows, limit))
    kept = [row for row in found if row is not None]
    if not kept:
        raise InputError(f"{path} holds no usable rows" + (f" ({len(found)} were skipped)" if found else ""))
    return kept, len(found) - len(kept)


def json_rows(path: str | Path, keys: Sequence[str], split: str = "") -> Iterator[tuple[str, list[str]]]:
    """``FILE, line N`` and the stripped strings under ``keys`` of each line's JSON object (or list of just these)."""
    rows = Rows(path, split)
    for line, row in rows.values():
        where = rows.at(line)
        if isinstance(row, list) and len(row) == len(keys):
            row = dict(zip(keys, row, strict=True))
        if not isinstance(row, dict):
            raise InputError(f"{where}: not an object with the keys {', '.join(keys)}: {one_line(row)}")
        for key in keys:
            if not isinstance(row.get(key), str):
                value = one_line(row[key]) if key in row else "missing"
                raise InputError(f"{where}: {key} is {value}, expected a string")
            check_unicode(row[key], f"{where}: {key}")
        yield where, [row[key].strip() for key in keys]


def table(
    path: str | Path, header: Callable[[list[str]], Sequence[str] | None], needed: Sequence[str] = ()
) -> Iterator[tuple[str, list[str]]]:
    """``FILE, line N`` and the wanted cells of each row of a table.

    ``header`` takes the first row in lower case and returns the names of the wanted columns, None if it is no header.
    Without one all columns are wanted: ``needed``, or as many as the first row has.
    """
    rows, wanted, width, expected = Rows(path), [], 0, ""
    for index, (line, cells) in enumerate(rows.cells()):
        if index == 0:
            first = [cell.lower() for cell in cells]
            names = header(first)
            width = len(cells) if names or not needed else len(needed)
            wanted = [first.index(name) for name in names] if names else list(range(width))
            by_name = f"{width} are needed ({', '.join(needed)})" if needed else f"the first row has {width}"
            expected = f"the header has {width}" if names else by_name
            if names:
                continue
        if len(cells) != width:
            raise InputError(f"{rows.at(line)}: {len(cells)} columns; {expected}")
        yield rows.at(line), [cells[i] for i in wanted]


def known(columns: Sequence[tuple[str, ...]]) -> Callable[[list[str]], tuple[str, ...] | None]:
    """For ``table``: the first of several sets of names that a header has."""
    return lambda header: next((names for names in columns if set(names) <= set(header)), None)
