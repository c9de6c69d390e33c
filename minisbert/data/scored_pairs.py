"""Scored sentence pairs: STS Benchmark, or a file."""

from dataclasses import dataclass
from pathlib import Path

from minisbert.core import InputError
from minisbert.data.formats import SCORED, read_file
from minisbert.models.pair_scorer import MAX_SCORE
from minisbert.system.assets import ensure

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class ScoredPair:
    """Two sentences and their human similarity score, 0 to 5."""

    sentence1: str
    sentence2: str
    score: float


def load_scored_pairs(data: str, split: str, scale: float = MAX_SCORE) -> list[ScoredPair]:
    """``data`` is ``stsb`` (fetched if it is missing), with ``split`` train, dev or test, or the path of a file.

    A file's scores are 0 to ``scale``; those of the pairs are always 0 to 5.
    """
    return read_scored_pairs(ensure("stsb") / f"sts-{split}.csv") if data == "stsb" else read_scored_pairs(data, scale)


def read_scored_pairs(path: str | Path, scale: float = MAX_SCORE) -> list[ScoredPair]:
    """Rows of score, sentence1 and sentence2, tab- or comma-separated, or of STS-B's 7 or more columns; maybe a header.

    Raises ``InputError`` with file and line for a wrong number of columns, a score that is not a number in 0..scale, an
    empty sentence, and a file without rows.
    """
    return [ScoredPair(*row.texts, row.label) for row in read_file(path, SCORED, scale=scale)[0]]


def check_scores(pairs: list[ScoredPair], source: str) -> None:
    """Raise ``InputError`` if no correlation with the scores is defined; call it before encoding."""
    if len({pair.score for pair in pairs}) < 2:
        raise InputError(f"{source}: a correlation needs at least two pairs with different scores")
