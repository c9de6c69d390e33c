"""Mine hard negatives for (anchor, positive) pairs: other texts that are close to the anchor.

Rules, defaults and results are those of sentence-transformers' ``mine_hard_negatives`` with
``output_format="triplet"`` and ``sampling_strategy="top"``. One is added: near-duplicates of the
anchor or its positives, equal but for case and white space, are no candidates.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from minisbert.core import InputError, one_line
from minisbert.core.checks import check_texts
from minisbert.search.dense import Vectors, VectorSource, scores_of, top_k
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
    """Rules that choose negatives among candidates.

    Let p be an anchor's score with its positive, the lowest if there are several, and c that with a
    candidate. The candidate is left out if c + absolute_margin > p, c > p - relative_margin |p|,
    c > max_score or c < min_score. Of those that remain, best first, ``range_min`` are skipped, and
    the next ``num_negatives`` are taken. ``range_max`` says how many candidates of an anchor are
    looked at; None leaves it to ``depth``. Raises ``InputError`` for rules that no candidate can
    meet.
    """

    num_negatives: int = 3
    range_min: int = 0
    range_max: int | None = None
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
            if limit is None:
                continue
            if not isinstance(limit, int | float) or not math.isfinite(limit):
                raise InputError(f"{name} must be a finite number, got {limit!r}")
        if self.range_max is not None and type(self.range_max) is not int:
            raise InputError(f"range_max must be an integer, got {self.range_max!r}")
        if self.range_max is not None and self.range_max - self.range_min < self.num_negatives:
            ranks = f"ranks {self.range_min} to {self.range_max}"
            raise InputError(
                f"{ranks} have no room for {self.num_negatives} negatives: raise range_max"
            )

    def depth(self, most_positives: int) -> int:
        """Return how many ranks to search, so that enough negatives will probably be among them.

        ``most_positives`` is that of ``Candidates``: positives take ranks, too. The numbers are
        sentence-transformers'.
        """
        if self.range_max is not None:
            return self.range_max + most_positives
        count = self.num_negatives
        # Some candidates will fail these rules. min_score is none of them: it only removes the last
        # ranks.
        limits = (self.absolute_margin, self.relative_margin, self.max_score)
        if any(limit is not None for limit in limits):
            count *= 10
        return self.range_min + count + 2 * most_positives

    def failures(
        self, scores: np.ndarray, positive: np.ndarray
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each rule and which candidates fail it, (A, C).

        scores (A, C) are the candidates'; ``positive`` (A, 1) is that of the lowest positive.
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
    """The anchors, and the documents among which their negatives are sought.

    Neither has a text twice. Documents are a corpus, then the positives that it lacks.
    """

    anchors: list[str]
    documents: list[str]
    positives: RowLists
    copies: RowLists  # near-duplicates of the anchor or its positives
    # The largest number of pairs that an anchor is in. A pair that is given twice counts twice, as
    # in sentence-transformers.
    most_positives: int


def candidates_of(pairs: Sequence[tuple[str, str]], corpus: Sequence[str] = ()) -> Candidates:
    """Group the pairs by anchor, in the order of each anchor's first pair.

    The documents are in the order of the corpus, then of the pairs.
    """
    corpus = check_texts(corpus)
    check_pairs(pairs)
    if not pairs:
        raise InputError("no pairs: pairs of anchor and positive are needed")
    # Dictionaries, not sets: results must not depend on the order of hashes.
    rows: dict[str, int] = {}
    for text in corpus:
        rows.setdefault(text, len(rows))
    for _, positive in pairs:
        rows.setdefault(positive, len(rows))

    alike: dict[str, list[int]] = {}  # rows whose texts are equal but for case and white space
    for text, row in rows.items():
        alike.setdefault(plain(text), []).append(row)

    by_anchor: dict[str, list[str]] = {}
    for anchor, positive in pairs:
        by_anchor.setdefault(anchor, []).append(positive)
    positives = []
    copies = []
    for anchor, texts in by_anchor.items():
        positive_rows = list(dict.fromkeys(rows[text] for text in texts))
        positives.append(positive_rows)

        plain_texts = dict.fromkeys(plain(text) for text in [anchor, *texts])
        copy_rows = []
        for text in plain_texts:
            copy_rows += [row for row in alike.get(text, []) if row not in positive_rows]
        copies.append(copy_rows)
    most_positives = max(len(texts) for texts in by_anchor.values())
    return Candidates(list(by_anchor), list(rows), positives, copies, most_positives)


def check_pairs(pairs: object) -> None:
    """Raise ``InputError`` for anything but pairs."""
    needed = "pairs of anchor and positive are needed"
    if not isinstance(pairs, Iterable):
        raise InputError(f"{needed}, not {one_line(pairs)}")
    for pair in pairs:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise InputError(f"{needed}, not {one_line(pair)}")
        if not isinstance(pair[0], str) or not isinstance(pair[1], str):
            raise InputError(f"{needed}, both texts, not {one_line(pair)}")


def plain(text: str) -> str:
    """Lower case, and one space for any white space: ``plain(" A  Cat") = "a cat"``."""
    return " ".join(text.lower().split())


@dataclass
class Mined:
    """The negatives of each anchor, and what became of the other candidates."""

    # Of each anchor: its negatives, best first, and their similarities to it.
    negatives: RowLists = field(default_factory=list)
    scores: list[list[float]] = field(default_factory=list)
    # The similarities of each anchor to its positives.
    positive_scores: list[list[float]] = field(default_factory=list)
    # How many candidates failed each rule; one that fails several counts for the first.
    failed: dict[str, int] = field(default_factory=dict)


def mine(
    anchors: np.ndarray,
    documents: VectorSource,
    task: Candidates,
    rules: Rules,
    progress: bool = False,
    similarity: str = "cosine",
    *,
    block: int = ANCHOR_BLOCK,
) -> Mined:
    """Find negatives by exact search in vectors of anchors (A, D) and documents (N, D).

    ``similarity`` is one of ``top_k``'s; ``block`` anchors are searched at a time. Equal scores are
    in the order of the documents. Raises ``InputError`` as ``top_k`` does.
    """
    mined = Mined()
    count = len(documents)
    depth = rules.depth(task.most_positives)
    starts = range(0, len(anchors), block)
    for start in Bar(starts, desc="comparing", unit=" blocks of anchors", shown=progress):
        part = slice(start, start + block)
        block_anchors = anchors[part]
        positives = task.positives[part]
        copies = task.copies[part]

        # Copies must not take the ranks of candidates. The search goes as many ranks deeper as an
        # anchor has copies; then these go to the end, the others keep their order, and what is
        # beyond the depth is cut off.
        most_copies = max(len(rows) for rows in copies)
        k = min(depth + most_copies, count)
        scores, rows = top_k(block_anchors, documents, k, similarity=similarity)  # (A, k) each
        is_copy = belongs(rows, copies, count)
        order = is_copy.argsort(axis=1, kind="stable")[:, :depth]  # (A, C)
        scores = np.take_along_axis(scores, order, axis=1)
        rows = np.take_along_axis(rows, order, axis=1)
        is_copy = np.take_along_axis(is_copy, order, axis=1)

        # The positives' scores are computed by themselves: they may rank too low to be found.
        positive_scores = scores_of_lists(block_anchors, documents, positives, similarity)
        lowest = np.array([[own_scores.min()] for own_scores in positive_scores])  # (A, 1)
        remaining = ~belongs(rows, positives, count) & ~is_copy
        for name, fails in rules.failures(scores, lowest):
            mined.failed[name] = mined.failed.get(name, 0) + int((remaining & fails).sum())
            remaining &= ~fails

        # The ranks, from 0, count only those that remain: range_min skips candidates, not rows of
        # the search.
        rank = remaining.cumsum(axis=1) - 1
        remaining &= (rank >= rules.range_min) & (rank < rules.range_min + rules.num_negatives)
        for own_rows, own_scores, chosen in zip(rows, scores, remaining, strict=True):
            mined.negatives.append(own_rows[chosen].tolist())
            mined.scores.append(own_scores[chosen].tolist())
        mined.positive_scores += [own_scores.tolist() for own_scores in positive_scores]
    return mined


def scores_of_lists(
    anchors: np.ndarray, documents: VectorSource, lists: RowLists, similarity: str
) -> list[np.ndarray]:
    """Compare each anchor with the documents of its list: an array of scores for each anchor."""
    # One call compares all n pairs: the anchor of each, and its document.
    counts = [len(rows) for rows in lists]
    pair_anchors = torch.arange(len(lists)).repeat_interleave(torch.tensor(counts))  # (n,)
    pair_documents: list[int] = []
    for rows in lists:
        pair_documents += rows
    left = Vectors(anchors, "anchors", similarity)
    right = Vectors(documents, "documents", similarity)
    columns = torch.tensor(pair_documents)[:, None]  # (n, 1)
    scores = scores_of(left, pair_anchors, right, columns).flatten()  # (n,)
    return [part.numpy() for part in scores.split(counts)]


def belongs(rows: np.ndarray, lists: RowLists, count: int) -> np.ndarray:
    """Return for each of the rows (A, C) whether it is in the list of its anchor, (A, C).

    Rows are numbers below ``count``.
    """
    # An anchor and a row make one number, so that one look-up serves all anchors.
    members: list[int] = []
    for anchor, anchor_rows in enumerate(lists):
        members += [anchor * count + row for row in anchor_rows]
    numbers = np.arange(len(rows))[:, None] * count + rows
    return np.isin(numbers, np.array(members, dtype=np.int64))


def triplets(task: Candidates, mined: Mined) -> Iterator[Triplet]:
    """Yield (anchor, positive, negative) for every positive and every negative of an anchor."""
    anchors = zip(task.anchors, task.positives, mined.negatives, strict=True)
    for anchor, positives, negatives in anchors:
        for positive in positives:
            for negative in negatives:
                yield Triplet(anchor, task.documents[positive], task.documents[negative])


@dataclass(frozen=True)
class Summary:
    """The counts and mean scores of a mining."""

    anchors: int
    pairs: int
    documents: int
    negatives: int
    triplets: int
    anchors_without_negative: int
    pairs_without_negative: int  # of those anchors
    anchors_with_fewer: int  # some negatives, but fewer than the rules ask for
    left_out: dict[str, int]  # candidates, by the reason
    mean_score: dict[str, float]  # of positives and of negatives; NaN if there are none


def summarize(task: Candidates, mined: Mined, rules: Rules) -> Summary:
    """Count what became of the anchors, their pairs and the candidates."""
    pairs = 0
    negatives = 0
    triplet_count = 0
    anchors_without = 0
    pairs_without = 0
    anchors_with_fewer = 0
    for own_positives, own_negatives in zip(task.positives, mined.negatives, strict=True):
        pairs += len(own_positives)
        negatives += len(own_negatives)
        triplet_count += len(own_positives) * len(own_negatives)
        if not own_negatives:
            anchors_without += 1
            pairs_without += len(own_positives)
        elif len(own_negatives) < rules.num_negatives:
            anchors_with_fewer += 1
    copies = sum(len(rows) for rows in task.copies)
    return Summary(
        anchors=len(task.anchors),
        pairs=pairs,
        documents=len(task.documents),
        negatives=negatives,
        triplets=triplet_count,
        anchors_without_negative=anchors_without,
        pairs_without_negative=pairs_without,
        anchors_with_fewer=anchors_with_fewer,
        left_out={"copy of anchor or positive": copies} | mined.failed,
        mean_score={
            "positives": mean_of_lists(mined.positive_scores),
            "negatives": mean_of_lists(mined.scores),
        },
    )


def mean_of_lists(lists: list[list[float]]) -> float:
    """Return the mean of all scores; NaN if all lists are empty."""
    scores: list[float] = []
    for own_scores in lists:
        scores += own_scores
    if not scores:
        return math.nan
    return statistics.fmean(scores)
