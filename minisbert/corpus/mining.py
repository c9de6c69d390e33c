"""Hard negatives for (anchor, positive) pairs: texts that a model finds close to an anchor and that are not its own.

Rules, defaults and results are those of sentence-transformers' ``mine_hard_negatives`` with ``output_format="triplet"``
and ``sampling_strategy="top"``. One is added: near-duplicates of the anchor or its positives, equal but for case and
white space, are no candidates.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from minisbert.core import InputError
from minisbert.search.dense import Source, Vectors, cosines_of, top_k
from minisbert.system.progress import Bar

ANCHORS = 1024  # at a time
RowLists = list[list[int]]  # of each anchor: rows of documents


class Triplet(NamedTuple):
    """A text, one with the same meaning, one with another."""

    anchor: str
    positive: str
    negative: str


@dataclass(frozen=True)
class Rules:
    """Which candidates become negatives. Raises ``InputError`` for rules that no candidate can meet.

    With the lowest cosine p of an anchor and its positives, a candidate of cosine c is left out if
    c + absolute_margin > p, c > p - relative_margin |p|, c > max_score or c < min_score. Of those that remain, best
    first, ``range_min`` are skipped, and the next ``num_negatives`` are taken.
    """

    num_negatives: int = 3
    range_min: int = 0
    range_max: int | None = None  # candidates of each anchor; None: as many as will probably do (``depth``)
    absolute_margin: float | None = None
    relative_margin: float | None = None
    max_score: float | None = None
    min_score: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("num_negatives", 1), ("range_min", 0), ("range_max", 1)):
            number = getattr(self, name)
            if number is not None and (type(number) is not int or number < least):
                raise InputError(f"{name} must be an integer from {least}, not {number!r}")
        for name in ("absolute_margin", "relative_margin", "max_score", "min_score"):
            limit = getattr(self, name)
            if limit is not None and not (isinstance(limit, int | float) and math.isfinite(limit)):
                raise InputError(f"{name} must be finite, not {limit!r}")
        if self.range_max is not None and self.range_max - self.range_min < self.num_negatives:
            ranks = f"ranks {self.range_min} to {self.range_max}"
            raise InputError(f"{ranks} have no room for {self.num_negatives} negatives: raise range_max")

    def depth(self, most: int) -> int:
        """How many ranks are searched for an anchor, its positives included; ``most`` positives has an anchor."""
        if self.range_max is not None:
            return self.range_max + most
        count = self.num_negatives
        if not (self.absolute_margin is self.relative_margin is self.max_score is None):
            count *= 10  # some will fail
        return self.range_min + count + 2 * most

    def failures(self, scores: np.ndarray, positive: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """The name of each rule and the candidates that fail it: scores (A, C), lowest positive (A, 1) -> (A, C)."""
        if self.absolute_margin is not None:
            yield "absolute margin", scores + self.absolute_margin > positive
        if self.relative_margin is not None:
            # subtle: |p|, as p (1 - margin) would be above a negative p
            yield "relative margin", scores > positive - self.relative_margin * abs(positive)
        if self.max_score is not None:
            yield "max score", scores > self.max_score
        if self.min_score is not None:
            yield "min score", scores < self.min_score


@dataclass(frozen=True)
class Candidates:
    """A anchors and N documents, no text twice in either. Documents are a corpus, then the positives that it lacks."""

    anchors: list[str]
    documents: list[str]
    positives: RowLists
    copies: RowLists  # near-duplicates of the anchor or its positives
    most: int  # pairs of one anchor


def candidates_of(pairs: Sequence[tuple[str, str]], corpus: Sequence[str] = ()) -> Candidates:
    """All pairs of an anchor together, in the order of their first; documents in the order of corpus and pairs."""
    documents = list(dict.fromkeys([*corpus, *(positive for _, positive in pairs)]))
    rows = {text: row for row, text in enumerate(documents)}
    alike: dict[str, list[int]] = {}
    for text, row in rows.items():
        alike.setdefault(plain(text), []).append(row)
    by_anchor: dict[str, list[int]] = {}
    for anchor, positive in pairs:
        by_anchor.setdefault(anchor, []).append(rows[positive])
    positives = [list(dict.fromkeys(some)) for some in by_anchor.values()]
    copies = []
    for anchor, own in zip(by_anchor, positives, strict=True):
        texts = {plain(anchor), *(plain(documents[row]) for row in own)}
        copies.append([row for text in texts for row in alike.get(text, []) if row not in own])
    return Candidates(list(by_anchor), documents, positives, copies, max(map(len, by_anchor.values())))


def plain(text: str) -> str:
    """``plain(" A  Cat") = "a cat"``."""
    return " ".join(text.lower().split())


@dataclass
class Mined:
    """The negatives of each anchor, and what became of the other candidates."""

    negatives: RowLists = field(default_factory=list)  # best first
    scores: list[list[float]] = field(default_factory=list)  # their cosines
    positive_scores: list[list[float]] = field(default_factory=list)  # of each anchor and its positives
    failed: dict[str, int] = field(default_factory=dict)  # candidates by the first rule that they failed


def mine(anchors: np.ndarray, documents: Source, task: Candidates, rules: Rules, progress: bool = False) -> Mined:
    """Negatives by the exact search in vectors of anchors (A, D) and documents (N, D).

    Equal scores are in the order of the documents. Raises ``InputError`` as ``top_k`` does.
    """
    mined = Mined()
    for start in Bar(range(0, len(anchors), ANCHORS), desc="comparing", unit=" blocks of anchors", shown=progress):
        some = slice(start, start + ANCHORS)
        mine_block(anchors[some], documents, task.positives[some], task.copies[some], rules, task.most, mined)
    return mined


def mine_block(
    anchors: np.ndarray,
    documents: Source,
    positives: RowLists,
    copies: RowLists,
    rules: Rules,
    most: int,
    mined: Mined,
) -> None:
    """Add the negatives of some anchors to ``mined``."""
    count, depth = len(documents), rules.depth(most)
    scores, rows = top_k(anchors, documents, min(depth + max(map(len, copies)), count))  # (A, C)
    # without its copies each anchor still has ``depth`` candidates; they are moved behind all others
    copied = belongs(rows, copies, count)
    order = copied.argsort(axis=1, kind="stable")[:, :depth]
    scores, rows, copied = (np.take_along_axis(values, order, axis=1) for values in (scores, rows, copied))
    own = positive_scores(anchors, documents, positives)
    lowest = np.array([min(cosines) for cosines in own], np.float32)[:, None]  # (A, 1)
    remaining = ~belongs(rows, positives, count) & ~copied
    for name, fails in rules.failures(scores, lowest):
        mined.failed[name] = mined.failed.get(name, 0) + int((remaining & fails).sum())
        remaining &= ~fails
    rank = remaining.cumsum(axis=1) - 1
    remaining &= (rank >= rules.range_min) & (rank < rules.range_min + rules.num_negatives)
    for row, cosines, chosen in zip(rows, scores, remaining, strict=True):
        mined.negatives.append(row[chosen].tolist())
        mined.scores.append(cosines[chosen].tolist())
    mined.positive_scores += own


def belongs(rows: np.ndarray, lists: RowLists, count: int) -> np.ndarray:
    """Which of the rows (A, C), numbers below ``count``, are in the list of their anchor: (A, C)."""
    keys = [anchor * count + row for anchor, some in enumerate(lists) for row in some]
    return np.isin(np.arange(len(rows))[:, None] * count + rows, np.array(keys, dtype=np.int64))


def positive_scores(anchors: np.ndarray, documents: Source, positives: RowLists) -> list[list[float]]:
    """The cosines of each anchor and its positives."""
    counts = [len(rows) for rows in positives]
    which = torch.arange(len(positives)).repeat_interleave(torch.tensor(counts))
    rows = torch.tensor([row for rows in positives for row in rows])
    cosines = cosines_of(Vectors(anchors, "anchors"), which, Vectors(documents, "documents"), rows[:, None])
    return [part.tolist() for part in cosines.flatten().split(counts)]


def triplets(task: Candidates, mined: Mined) -> Iterator[Triplet]:
    """(anchor, positive, negative) for every positive and every negative of an anchor."""
    for anchor, positives, negatives in zip(task.anchors, task.positives, mined.negatives, strict=True):
        for positive in positives:
            for negative in negatives:
                yield Triplet(anchor, task.documents[positive], task.documents[negative])
