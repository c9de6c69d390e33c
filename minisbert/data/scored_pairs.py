"""Readers for files of scored sentence pairs and of plain texts. Errors name the file and the line."""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from minisbert.core import InputError, one_line
from minisbert.models.scoring import MAX_SCORE
from minisbert.system.assets import ensure
from minisbert.system.files import decode, open_bytes

SPLITS = ("train", "dev", "test")
LONGEST_LINE = 2**22  # bytes; tokenizing a text takes over a hundred times its size


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
    Raises ``InputError`` with file and line for a wrong number of columns, a score that is not a number in 0..scale, an
    empty sentence, and a file without rows.
    """
    path = Path(path)
    lines = read_lines(path)
    rows = tab_rows(lines) if lines and "\t" in lines[0] else quoted_rows(path, lines)
    pairs = []
    for line, cells in rows:
        where = f"{path}, line {line}"
        if len(cells) >= 7:
            score, first, second = cells[4:7]
        elif len(cells) == 3:
            score, first, second = cells
        else:
            raise InputError(f"{where}: {len(cells)} columns; 3 are needed (score, sentence1, sentence2) or STS-B's 7")
        if line == 1 and (score.lower(), first.lower(), second.lower()) == ("score", "sentence1", "sentence2"):
            continue
        if not first.strip() or not second.strip():
            raise InputError(f"{where}: an empty sentence")
        pairs.append(ScoredPair(first.strip(), second.strip(), parse_score(score, where, scale)))
    if not pairs:
        raise InputError(f"{path} holds no sentence pairs")
    return pairs


def tab_rows(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every line that is not blank."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, line.rstrip("\r").split("\t")


def quoted_rows(path: Path, lines: Iterable[str], delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """The same for values with quotation marks, in which a cell may span several lines."""
    # subtle: lines keep their ends, or the last word of one line of a cell would run into the first of the next.
    # Text after a closing quotation mark is an error, except in Quora's tab-separated release, which is final
    reader = csv.reader((line + "\n" for line in lines), delimiter=delimiter, strict=delimiter == ",")
    start = 1  # first line of the row
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield start, cells
            start = reader.line_num + 1
    except csv.Error as error:
        kind = "comma" if delimiter == "," else "tab"
        raise InputError(f"{path}, line {start}: not {kind}-separated values: {error}") from error


def parse_score(cell: str, where: str, scale: float) -> float:
    """A score of 0 to ``scale`` on the scale of 0 to 5."""
    try:
        score = float(cell)
    except ValueError as error:
        raise InputError(f"{where}: the score {one_line(cell)} is not a number") from error
    if not 0.0 <= score <= scale:  # also true of NaN
        raise InputError(f"{where}: the score {cell.strip()} is not on the scale of 0 to {scale:g}; give its --scale")
    return score * (MAX_SCORE / scale)


def read_lines(path: str | Path) -> list[str]:
    """The lines of a UTF-8 file without their line feeds; ``InputError`` for one that is too long or not UTF-8."""
    with open_bytes(path) as file:
        lines = enumerate(byte_lines(file, str(path)), start=1)
        return [decode(line, str(path), number).removesuffix("\n") for number, line in lines]


def byte_lines(stream: IO[bytes], where: str) -> Iterator[bytes]:
    """The lines of a stream, with their line feeds; ``InputError`` for one of more than 4 MiB."""
    # subtle: text streams also split at other separators, such as U+0085 and U+2028, inside a sentence
    number = 0
    while line := stream.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise InputError(f"{where}, line {number}: longer than {LONGEST_LINE:,} bytes; split the text")
        yield line


def text_lines(stream: IO[bytes], where: str) -> Iterator[str]:
    """One text per line of a binary file or of standard input, yielded as it is read.

    Raises ``InputError`` for a line that is not UTF-8 or too long, an empty line, and a stream without lines.
    """
    number = 0
    for number, line in enumerate(byte_lines(stream, where), start=1):
        text = decode(line, where, number).removesuffix("\n").rstrip("\r")
        if not text.strip():
            raise InputError(f"{where}, line {number}: an empty line has no text to encode; remove it")
        yield text
    if not number:
        raise InputError(f"{where} is empty")


def check_scores(pairs: list[ScoredPair], source: str) -> None:
    """Raise ``InputError`` if no correlation with the scores is defined; call it before encoding."""
    if len({pair.score for pair in pairs}) < 2:
        raise InputError(f"{source}: a correlation needs at least two pairs with different scores")


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
