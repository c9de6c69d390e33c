"""Files of sentence pairs to rows, and rows to batches.

Rows are plain dataclasses; every reader names file and line of what it cannot use.
"""

import csv
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from minisbert.core import InputError, decode, one_line, read_text
from minisbert.system.assets import ensure

SPLITS = ("train", "dev", "test")
MOST_HOSTS = 100  # batches that a row left alone is offered to
MAX_SCORE = 5.0  # the STS scale: 0 nothing in common, 5 the same meaning


@dataclass(frozen=True)
class ScoredPair:
    """Two sentences and how similar people found them, 0 to 5."""

    sentence1: str
    sentence2: str
    score: float


def load_scored_pairs(data: str, split: str) -> list[ScoredPair]:
    """``data`` is ``stsb`` (fetched where it is missing; ``split`` is train, dev or test) or a file of one's own."""
    if data == "stsb":
        if split not in SPLITS:
            raise InputError(f"no split is called {one_line(split)}; choose from {', '.join(SPLITS)}")
        return read_scored_pairs(ensure("stsb") / f"sts-{split}.csv")
    return read_scored_pairs(data)


def read_scored_pairs(path: str | Path) -> list[ScoredPair]:
    """Rows of a scored-pairs file, in one of three forms, told apart by its first line:

    - STS Benchmark: tab-separated, 7 or more columns: genre, file, year, id, score, sentence1, sentence2, ...
    - tab-separated, 3 columns: score, sentence1, sentence2
    - comma-separated, 3 columns in the same order, quoted where a sentence holds a comma

    In tab-separated files quotation marks are text. A first row ``score, sentence1, sentence2`` is a header.
    Raises ``InputError`` with file and line for too few columns, a score that is no number or not in 0..5, an
    empty sentence, a file without rows.
    """
    path = Path(path)
    # subtle: not splitlines(), which also breaks at U+0085 and U+2028 inside a sentence
    lines = read_text(path).split("\n")
    rows = tab_rows(lines) if "\t" in lines[0] else quoted_rows(path, lines)
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
        pairs.append(ScoredPair(first.strip(), second.strip(), parse_score(score, where)))
    if not pairs:
        raise InputError(f"{path} holds no sentence pairs")
    return pairs


def tab_rows(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every line that is not empty."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, line.rstrip("\r").split("\t")


def quoted_rows(path: Path, lines: Iterable[str], delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """The same for separated values with quotes, where a quoted cell may run over several lines."""
    # subtle: lines keep their ends, or a quoted cell's two lines would become one word where they meet
    # and text behind a closing quote is an error but in Quora's tabs, a release that nobody can correct any more
    reader = csv.reader((line + "\n" for line in lines), delimiter=delimiter, strict=delimiter == ",")
    start = 1  # line of the row's beginning
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield start, cells
            start = reader.line_num + 1
    except csv.Error as error:
        kind = "comma" if delimiter == "," else "tab"
        raise InputError(f"{path}, line {start}: not {kind}-separated values: {error}") from error


def parse_score(cell: str, where: str) -> float:
    try:
        score = float(cell)
    except ValueError as error:
        raise InputError(f"{where}: the score {one_line(cell)} is not a number") from error
    if not 0.0 <= score <= MAX_SCORE:  # also true of NaN
        raise InputError(f"{where}: the score {cell.strip()} is not on the scale of 0 to 5; rescale the file")
    return score


def text_lines(lines: Iterable[bytes], where: str) -> Iterator[str]:
    """One text a line, as they are read: from a file opened in binary, or standard input.

    Raises ``InputError`` for a line that is not UTF-8, for an empty one, which is no text to encode, and at the end
    where there was no line.
    """
    number = 0
    for number, line in enumerate(lines, start=1):
        text = decode(line, where, number).removesuffix("\n").rstrip("\r")
        if not text.strip():
            raise InputError(f"{where}, line {number}: an empty line has no text to encode; remove it")
        yield text
    if not number:
        raise InputError(f"{where} is empty")


# ----------------------------------------------------------------------------------------- batches


def length_grouped_batches(
    lengths: Sequence[int], batch_size: int, generator: torch.Generator, window: int = 50
) -> list[list[int]]:
    """Row numbers in batches of like length, in random order: every row once, the last batch may be smaller.

    Rows are shuffled, sorted by length within windows of ``window`` batches, cut into batches, and the batches
    shuffled. So batches hold little padding, and which rows meet still changes from epoch to epoch.
    The same generator state gives the same batches.
    """
    order = torch.randperm(len(lengths), generator=generator).tolist()
    size = batch_size * window
    batches = []
    for start in range(0, len(order), size):
        rows = sorted(order[start : start + size], key=lambda row: lengths[row])
        batches += [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def unique_batches(
    keys: Sequence[Sequence[Hashable]],
    lengths: Sequence[int],
    batch_size: int,
    generator: torch.Generator,
    window: int = 50,
) -> list[list[int]]:
    """``length_grouped_batches`` in which no key stands twice in a batch, for losses with in-batch negatives.

    There every other row of the batch counts as wrong, and a text that stands in two rows would be wrong to itself.
    ``keys`` holds the texts of each row; one that repeats within its own row does no harm. A row whose text is in a
    batch already goes to a later batch of its window, where none has room to the next window: every row is in one
    batch, and a few batches stay smaller. A batch of one row has no negatives: its row joins the first batch without
    its texts, which may then have one row more than ``batch_size``. Where there is none (of the first hundred), as
    when all rows share a text, the row is left out.
    """
    if batch_size < 2:
        raise ValueError(f"a batch of {batch_size} has no negatives: batch_size must be at least 2")
    if len(keys) != len(lengths):
        raise ValueError(f"{len(keys)} rows of keys, {len(lengths)} lengths: both must tell of the same rows")
    order = torch.randperm(len(keys), generator=generator).tolist()
    batches: list[list[int]] = []
    waiting: list[int] = []
    while order or waiting:
        fresh = batch_size * window - len(waiting)  # at least 1: in each window at least one row has found its place
        rows = sorted(waiting + order[:fresh], key=lambda row: lengths[row])
        order = order[fresh:]
        # where most rows wait already, a text is so frequent that more waiting would only cost time
        may_wait = order and 2 * len(waiting) < len(rows)
        filled, waiting = _fill(rows, keys, batch_size, most=window if may_wait else len(rows))
        batches += filled
    _join_alone(batches, keys, batch_size)
    batches = [batch for batch in batches if batch]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def _fill(
    rows: list[int], keys: Sequence[Sequence[Hashable]], batch_size: int, most: int
) -> tuple[list[list[int]], list[int]]:
    """At most ``most`` batches, and the rows left: each row in turn to the first batch with room behind its texts'."""
    batches: list[list[int]] = [[] for _ in range(most)]
    left = []
    after: dict[Hashable, int] = {}  # key -> the batch behind the last one that holds it
    onward = list(range(most + 1))  # a batch with room points at itself, a full one at some later batch
    for row in rows:
        at = max((after.get(key, 0) for key in keys[row]), default=0)
        while onward[at] != at:
            onward[at] = onward[onward[at]]  # halves the way for the next row
            at = onward[at]
        if at == most:
            left.append(row)
            continue
        batches[at].append(row)
        after.update(dict.fromkeys(keys[row], at + 1))
        if len(batches[at]) == batch_size:
            onward[at] = at + 1
    return [batch for batch in batches if batch], left


def _join_alone(batches: list[list[int]], keys: Sequence[Sequence[Hashable]], batch_size: int) -> None:
    """Move the row of each batch of one to another batch, or out; its own batch is then empty."""
    held = [{key for row in batch for key in keys[row]} for batch in batches]
    hosts = list(range(len(batches)))
    for alone in [at for at, batch in enumerate(batches) if len(batch) == 1]:
        if len(batches[alone]) > 1:  # another one has joined it since
            continue
        row = batches[alone].pop()
        fits = (at for at in hosts[:MOST_HOSTS] if batches[at] and held[at].isdisjoint(keys[row]))
        if (at := next(fits, None)) is not None:
            batches[at].append(row)
            held[at].update(keys[row])
            if len(batches[at]) > batch_size:
                hosts.remove(at)


def pad_batch(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor | None]:
    """Ids of several lengths to one tensor: ids (B, T) int64 and mask (B, T), True for real tokens.

    The mask is None where no row needed a pad: attention then has nothing to hide.
    """
    longest = max(len(row) for row in rows)
    ids = torch.tensor([list(row) + [pad_id] * (longest - len(row)) for row in rows])  # (B, T)
    lengths = torch.tensor([len(row) for row in rows])  # (B,)
    if (lengths == longest).all():
        return ids, None
    return ids, torch.arange(longest) < lengths[:, None]  # (B, T)
