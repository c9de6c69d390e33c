"""Scored sentence pairs: STS Benchmark, or a file. Errors name the file and the line."""

from dataclasses import dataclass
from pathlib import Path

from minisbert.core import InputError, one_line
from minisbert.data.rows import Rows
from minisbert.models.scoring import MAX_SCORE
from minisbert.system.assets import ensure

SPLITS = ("train", "dev", "test")
SCORED_COLUMNS = ("score", "sentence1", "sentence2")


@dataclass(frozen=True)
class ScoredPair:
    """Two sentences and their human similarity score, 0 to 5."""

    sentence1: str
    sentence2: str
    score: float


def load_scored_pairs(data: str, split: str, scale: float = MAX_SCORE) -> list[ScoredPair]:
    """``data`` is ``stsb`` (fetched if it is missing), with ``split`` train, dev or test, or the path of a file.

    A file's scores are 0 to ``scale``; those of the pairs are 0 to 5 in any case.
    """
    if data == "stsb":
        if split not in SPLITS:
            raise InputError(f"unknown split {one_line(split)}; choose from {', '.join(SPLITS)}")
        return read_scored_pairs(ensure("stsb") / f"sts-{split}.csv")
    return read_scored_pairs(data, scale)


def read_scored_pairs(path: str | Path, scale: float = MAX_SCORE) -> list[ScoredPair]:
    """Rows of a scored-pairs file in one of three formats; the first line decides which:

    - STS Benchmark: tab-separated, 7 or more columns: genre, file, year, id, score, sentence1, sentence2, ...
    - tab-separated, 3 columns: score, sentence1, sentence2
    - comma-separated, 3 columns in the same order, a sentence with a comma in quotation marks

    In tab-separated files quotation marks are text. A first row ``score, sentence1, sentence2`` is a header.
    A .gz is decompressed.
    Raises ``InputError`` with file and line for a wrong number of columns, a score that is not a number in 0..scale, an
    empty sentence, and a file without rows.
    """
    rows, pairs = Rows(path), []
    for index, (line, cells) in enumerate(rows.cells()):
        if len(cells) != 3 and len(cells) < 7:
            raise InputError(
                f"{rows.at(line)}: {len(cells)} columns; 3 are needed (score, sentence1, sentence2) or STS-B's 7"
            )
        score, first, second = cells[4:7] if len(cells) >= 7 else cells
        if index == 0 and (score.lower(), first.lower(), second.lower()) == SCORED_COLUMNS:
            continue
        if not first or not second:
            raise InputError(f"{rows.at(line)}: an empty sentence")
        pairs.append(ScoredPair(first, second, parse_score(score, rows.at(line), scale)))
    if not pairs:
        raise InputError(f"{path} holds no sentence pairs")
    return pairs


def parse_score(cell: str, where: str, scale: float) -> float:
    """A score of 0 to ``scale`` on the scale of 0 to 5."""
    try:
        score = float(cell)
    except ValueError as error:
        raise InputError(f"{where}: the score {one_line(cell)} is not a number") from error
    if not 0.0 <= score <= scale:  # also true of NaN
        raise InputError(f"{where}: the score {cell.strip()} is not on the scale of 0 to {scale:g}; give its --scale")
    return score * (MAX_SCORE / scale)


def check_scores(pairs: list[ScoredPair], source: str) -> None:
    """Raise ``InputError`` if no correlation with the scores is defined; call it before encoding."""
    if len({pair.score for pair in pairs}) < 2:
        raise InputError(f"{source}: a correlation needs at least two pairs with different scores")
