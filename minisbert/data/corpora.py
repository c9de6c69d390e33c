"""Readers for files of labelled pairs, triplets, tuples and plain sentences.

Every reader streams its file, decompresses .gz, and returns the rows and the number of rows that it skipped; its
docstring says which. ``limit`` takes the first rows of the file, skipped ones included. All raise ``InputError`` with
file and line for unreadable input, and for a file without a usable row.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from minisbert.core import InputError
from minisbert.data.formats import LABELLED, NLI, NLI_LABELS, PAIRS, SENTENCES, TRIPLETS, read_file
from minisbert.system.assets import asset, ensure

NLI_ARCHIVES = {"snli": "snli_1.0.zip", "multinli": "multinli_1.0.zip"}


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


Element = TypeVar("Element")


def load_nli(data: str | Path, split: str = "train", limit: int | None = None) -> tuple[list[LabelledPair], int]:
    """Rows of SNLI or MultiNLI: one JSON object per line with ``gold_label``, ``sentence1`` and ``sentence2``.

    ``data`` is ``snli`` or ``multinli`` (fetched if missing) or a file. From a published .zip ``split`` selects train,
    dev, test, dev_matched, ... (of MultiNLI dev is dev_matched, test is dev_mismatched). Labels are numbered as in
    ``NLI_LABELS``. Rows without a gold label ("-") and rows with an empty sentence are skipped.
    """
    name = str(data)
    path = ensure(name) / NLI_ARCHIVES[name] if name in NLI_ARCHIVES else data
    rows, skipped = read_file(path, NLI, limit, split)
    return [LabelledPair(*row.texts, int(row.label)) for row in rows], skipped


def load_duplicates(data: str | Path, limit: int | None = None) -> tuple[list[LabelledPair], int]:
    """Pairs with label 1 (the same question) or 0: ``quora`` (fetched if missing), or a table of label and two texts.

    A header names the columns (``is_duplicate``, ``question1``, ``question2``, or ``label``, ``sentence1``,
    ``sentence2``) and may name others. Rows with an empty text are skipped (Quora has a few).
    """
    rows, skipped = read_file(find_quora() if data == "quora" else data, LABELLED, limit)
    return [LabelledPair(*row.texts, int(row.label)) for row in rows], skipped


def find_quora() -> Path:
    """Quora's release; ``InputError`` names its address and the alternative."""
    try:
        return ensure("quora") / asset("quora").files[0].name
    except InputError as error:
        address = asset("quora").sources[0]["url"]
        raise InputError(f"{error} (from {address}; or --data FILE of {LABELLED.file})") from error


def check_labels(pairs: Iterable[LabelledPair], source: str) -> None:
    """Raise ``InputError`` if no F1 is defined; call it before encoding."""
    if not any(pair.label for pair in pairs):
        raise InputError(f"{source}: no pair has label 1, so F1 is not defined; give more rows")


def read_tuples(path: str | Path, limit: int | None = None) -> tuple[list[tuple[str, ...]], int]:
    """Rows (anchor, positive, negative, ...) of texts, each with the same number of negatives, or none.

    From a table, or lines of JSON: lists of texts, or objects, whose ``negative`` may be a list. A header or the keys
    are one of ``PAIR_COLUMNS``, then ``negative``, ``negative_1``, ... or ``hard_neg``; others are ignored. Rows with
    an empty text are skipped.
    """
    rows, skipped = read_file(path, PAIRS, limit)
    return [tuple(row.texts) for row in rows], skipped


def read_triplets(path: str | Path, limit: int | None = None) -> tuple[list[Triplet], int]:
    """``read_tuples`` with one negative in each row."""
    rows, skipped = read_file(path, TRIPLETS, limit)
    if len(rows[0].texts) != 3:  # all have as many
        found = len(rows[0].texts)
        raise InputError(f"{path}, line {rows[0].line}: {found} texts; anchor, positive and negative are needed")
    return [Triplet(*row.texts) for row in rows], skipped


def read_sentences(path: str | Path, limit: int | None = None) -> tuple[list[str], int]:
    """One sentence per line, .txt or .txt.gz; duplicates are kept. Empty lines are skipped."""
    rows, skipped = read_file(path, SENTENCES, limit)
    return [row.texts[0] for row in rows], skipped


def nli_triplets(rows: Iterable[LabelledPair]) -> list[Triplet]:
    """(premise, entailment, contradiction) for every premise that has both; neutral does not count.

    Each premise gives one triplet, with its first entailment and its first contradiction, in the order in which
    premises first appear. The first 100,000 rows of SNLI's training file give 27,195.
    """
    contradiction, entailment, _ = range(len(NLI_LABELS))
    found: dict[str, dict[int, str]] = {}
    for row in rows:
        found.setdefault(row.sentence1, {}).setdefault(row.label, row.sentence2)
    return [
        Triplet(premise, second[entailment], second[contradiction])
        for premise, second in found.items()
        if {contradiction, entailment} <= second.keys()
    ]


def split_rows(rows: Sequence[Element], share: float, seed: int) -> tuple[list[Element], list[Element]]:
    """Rows shuffled and split in two: ``round(share * N)`` rows and the rest. The same seed gives the same split.

    Raises ``ValueError`` if one side would be empty.
    """
    cut = round(share * len(rows))
    if not 0 < cut < len(rows):
        raise ValueError(f"a share of {share} of {len(rows)} rows leaves one side empty")
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()
    return [rows[i] for i in order[:cut]], [rows[i] for i in order[cut:]]
