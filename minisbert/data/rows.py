"""Which columns of a file a loss reads: the one rule. (Signatures first; the bodies follow.)"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Columns:
    """What a row must hold: so many texts, then maybe a label.

    ``label`` is "score" (a number), "binary" (0 or 1), "class" (a word) or None. With
    ``more_texts`` further texts may follow those that are needed: negatives. ``ignores_label``: a
    label beside the texts changes nothing (for commands that only look at the texts).
    """

    texts: int = 2
    label: str | None = None
    more_texts: bool = False
    ignores_label: bool = False


@dataclass
class Table:
    """The rows that were read, and what the one line says of them.

    A row is a tuple: its texts, then its score (float), its 0 or 1 (int), or its class (str).
    """

    name: str  # of the file or the data set, as the user wrote it
    columns: Columns  # what was asked for; of several the one that the header has
    rows: list[tuple]
    places: list[int] = field(default_factory=list)  # the number of each row's line in the file
    unit: str = "line"  # what ``places`` count: line, item of an array, row
    names: list[str] = field(default_factory=list)  # of the columns that were read
    unread: list[str] = field(default_factory=list)  # of the columns that were not
    skipped: int = 0  # rows with an empty text or without a label
    split: str = ""  # the rows of the column ``split`` that were chosen
    scale: float | None = None  # what the scores were divided by

    def note(self) -> str:
        """``pairs.csv: 300 rows; sentence1, sentence2, score / 5; not read: id, genre``."""
        raise NotImplementedError


def read_rows(
    data: Any,
    columns: Columns | Sequence[Columns],
    names: str | None = None,
    *,
    split: str = "",
    quotes: bool = True,
    limit: int | None = None,
) -> Table:
    """Read the rows of a file, a folder saved by ``datasets``, a published data set (``stsb``,
    ``snli``, ``multinli``, ``quora``, or several as ``snli,multinli``) or rows from Python.

    ``names`` is ``--columns``: ``"left,right,stars"``, texts first, then the label. Scores are as
    they stand there. Of several ``columns`` the first counts whose columns the header has. Raises
    ``InputError`` with file, line and what would do.
    """
    raise NotImplementedError


def as_rows(
    rows: Iterable, columns: Columns | Sequence[Columns], names: str | None = None
) -> Table:
    """Read rows from Python: tuples or lists (texts, then the label), dictionaries (by the names of
    their columns, as a file is), a ``datasets.Dataset``, a DataFrame, a dictionary of columns.

    The same checks and the same messages as for a file; what is no row is named with its number.
    """
    raise NotImplementedError


def choose_scale(scores: Iterable[float], name: str = "rows") -> float:
    """The smallest of 1, 5, 10 and 100 that no score exceeds, above or below 0.

    ``InputError`` above 100: ``--scale`` must say it.
    """
    raise NotImplementedError


def divide_scores(table: Table, scale: float) -> Table:
    """The table with scores divided by the scale, so in 0..1 or -1..1; sets ``table.scale``.

    ``InputError`` names the line of a score beyond it.
    """
    raise NotImplementedError


def read_texts(path: str | Path, names: str | None = None, quotes: bool = True) -> list[str]:
    """Read the texts of a file, for the commands; the one line is printed to stderr."""
    raise NotImplementedError
