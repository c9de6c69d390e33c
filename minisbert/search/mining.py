"""Mine hard negatives for (anchor, positive) pairs: texts close to an anchor, by a model, that are
not its positives.

Rules, defaults and results are those of sentence-transformers' ``mine_hard_negatives`` with
``output_format="triplet"`` and ``sampling_strategy="top"``. One is added: near-duplicates of the
anchor or its positives, equal but for case and white space, are no candidates.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from minisbert.core import InputError, one_line
from minisbert.core.checks import check_texts
from minisbert.search.dense import Source, Vectors, scores_of, top_k
from minisbert.system.progress import Bar

ANCHOR_BLOCK = 1024  # anchors at a time
RowLists = list[list[int]]  # of each anchor: rows of documents


class Triplet(NamedTuple):
    """A text, one with the same meaning, one with another."""

    anchor: str
    positive: str
    negative: str


@dataclass(frozen=True)
class Rules:
    """Rules that choose negatives among candidates. Raises ``InputError`` for rules that no
    candidate can meet.

    With the lowest score p of an anchor and its positives, a candidate with the score c is left out
    if c + absolute_margin > p, c > p - relative_margin |p|, c > max_score or c < min_score. Of
    those that remain, best first, ``range_min`` are skipped, and the next ``num_negatives`` are
    taken.
    """

    num_negatives: int = 3
    range_min: int = 0
    range_max: int | None = (
        None  # candidates of each anchor; None: as many as will probably do (``depth``)
    )
    absolute_margin: float | None = None
    relative_margin: float | None = None
    max_score: float | None = None
    min_score: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("num_negatives", 1), ("range_min", 0)):
            number = getattr(self, name)
            if type(number) is not int or number < least:
                raise InputError(f"{name} must be an integer from {least}, got {number!r}")
        for name in ("absolute_margin", "relative_margin", "max_score", "min_score"):
            limit = getattr(self, name)
            if limit is not None and not math.isfinite(limit):
                raise InputError(f"{name} must be finite, got {limit!r}")
        if self.range_max is not None and self.range_max - self.range_min < self.num_negatives:
            ranks = f"ranks {self.range_min} to {self.range_max}"
            raise InputError(
                f"{ranks} have no room for {self.num_negatives} negatives: raise range_max"
            )

    def depth(self, most: int) -> int:
        """Return how many ranks to search for an anchor; ``most`` is the largest number of
        positives of any anchor.
        """
        if self.range_max is not None:
            return self.range_max + most
        count = self.num_negatives
        # min_score is left out: it only removes the last ranks
        if not (self.absolute_margin is self.relative_margin is self.max_score is None):
            count *= 10  # some will fail
        return self.range_min + count + 2 * most

    def failures(
        self, scores: np.ndarray, positive: np.ndarray
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each rule and which candidates fail it: scores (A, C), lowest positive (A, 1) ->
        (A, C).
        """
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
    """A anchors and N documents, no text twice in either. Documents are a corpus, then the
    positives that it lacks.
    """

    anchors: list[str]
    documents: list[str]
    positives: RowLists
    copies: RowLists  # near-duplicates of the anchor or its positives
    most: int  # pairs of one anchor


def candidates_of(pairs: Sequence[tuple[str, str]], corpus: Sequence[str] = ()) -> Candidates:
    """Group the pairs by anchor, in the order of their first; documents in the order of corpus and
    pairs.
    """
    corpus = check_texts(corpus)
    for pair in pairs if isinstance(pairs, Iterable) else [pairs]:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise InputError(f"pairs of anchor and positive are needed, not {one_line(pair)}")
    # dictionaries, not sets: results must not depend on the order of hashes
    documents = list(dict.fromkeys([*corpus, *(positive for _, positive in pairs)]))
    rows = {text: row for row, text in enumerate(documents)}
    alike: dict[str, list[int]] = {}
    for text, row in rows.items():
        alike.setdefault(plain(text), []).append(row)
    by_anchor: dict[str, list[int]] = {}
    for anchor, positive in pairs:
        by_anchor.setdefault(anchor, []).append(rows[positive])
    positives, copies = [], []
    for anchor, with_repeats in by_anchor.items():
        anchor_rows = list(dict.fromkeys(with_repeats))
        texts = {plain(anchor), *(plain(documents[row]) for row in anchor_rows)}
        positives.append(anchor_rows)
        copies.append(
            [row for text in texts for row in alike.get(text, []) if row not in anchor_rows]
        )
    return Candidates(
        list(by_anchor), documents, positives, copies, most=max(map(len, by_anchor.values()))
    )


def plain(text: str) -> str:
    """``plain(" A  Cat") = "a cat"``."""
    return " ".join(text.lower().split())


@dataclass
class Mined:
    """The negatives of each anchor, and what became of the other candidates."""

    negatives: RowLists = field(default_factory=list)  # best first
    scores: list[list[float]] = field(default_factory=list)  # their similarities to the anchor
    positive_scores: list[list[float]] = field(
        default_factory=list
    )  # of each anchor and its positives
    failed: dict[str, int] = field(
        default_factory=dict
    )  # candidates by the first rule that they failed


def mine(
    anchors: np.ndarray,
    documents: Source,
    task: Candidates,
    rules: Rules,
    progress: bool = False,
    similarity: str = "cosine",
) -> Mined:
    """Find negatives by exact search in vectors of anchors (A, D) and documents (N, D).

    ``similarity`` is one of ``top_k``'s. Equal scores are in the order of the documents. Raises
    ``InputError`` as ``top_k`` does.
    """
    mined, count, depth = Mined(), len(documents), rules.depth(task.most)
    for start in Bar(
        range(0, len(anchors), ANCHOR_BLOCK),
        desc="comparing",
        unit=" blocks of anchors",
        shown=progress,
    ):
        some = slice(start, start + ANCHOR_BLOCK)
        positives, copies = task.positives[some], task.copies[some]
        # copies take no rank: search for so many more, then move them behind all others and cut
        most = min(depth + max(map(len, copies)), count)
        scores, rows = top_k(anchors[some], documents, most, similarity=similarity)  # (A, C)
        copied = belongs(rows, copies, count)
        order = copied.argsort(axis=1, kind="stable")[:, :depth]
        scores, rows, copied = (
            np.take_along_axis(x, order, axis=1) for x in (scores, rows, copied)
        )

        # the positives may rank too low to be among them
        counts = list(map(len, positives))
        which = torch.arange(len(counts)).repeat_interleave(
            torch.tensor(counts)
        )  # (n,), the anchor of each score
        positive_rows = torch.tensor([row for own in positives for row in own])[:, None]  # (n, 1)
        left, right = (
            Vectors(anchors[some], "anchors", similarity),
            Vectors(documents, "documents", similarity),
        )
        of_positives = scores_of(left, which, right, positive_rows).flatten().split(counts)
        lowest = torch.stack([part.min() for part in of_positives])[:, None].numpy()  # (A, 1)
        remaining = ~belongs(rows, positives, count) & ~copied
        for name, fails in rules.failures(scores, lowest):
            mined.failed[name] = mined.failed.get(name, 0) + int((remaining & fails).sum())
            remaining &= ~fails

        # ranks from 0, of those that remain: range_min skips candidates, not rows of the search
        rank = remaining.cumsum(axis=1) - 1
        remaining &= (rank >= rules.range_min) & (rank < rules.range_min + rules.num_negatives)
        for row, row_scores, chosen in zip(rows, scores, remaining, strict=True):
            mined.negatives.append(row[chosen].tolist())
            mined.scores.append(row_scores[chosen].tolist())
        mined.positive_scores += [part.tolist() for part in of_positives]
    return mined


def belongs(rows: np.ndarray, lists: RowLists, count: int) -> np.ndarray:
    """Return which of the rows (A, C), numbers below ``count``, are in the list of their anchor:
    (A, C).
    """
    # (anchor, row) as one number, so that one look-up serves all anchors
    members = [anchor * count + row for anchor, some in enumerate(lists) for row in some]
    return np.isin(np.arange(len(rows))[:, None] * count + rows, np.array(members, dtype=np.int64))


def triplets(task: Candidates, mined: Mined) -> Iterator[Triplet]:
    """Yield (anchor, positive, negative) for every positive and every negative of an anchor."""
    for anchor, positives, negatives in zip(
        task.anchors, task.positives, mined.negatives, strict=True
    ):
        for positive in positives:
            for negative in negatives:
                yield Triplet(anchor, task.documents[positive], task.documents[negative])
