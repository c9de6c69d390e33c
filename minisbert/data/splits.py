"""The rows of train, dev and test, without leakage. (Signatures first; the bodies follow.)"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from minisbert.data.rows import Columns


@dataclass
class Splits:
    """The rows to train on, to choose the step by, and to report; an empty list is none.

    ``notes`` are lines to print as they are: one for train, dev and test each, and at most one that
    says that the gain cannot be told from chance. Scores are divided by ``scale``, classes are the
    strings of the file, and ``classes`` those of the training rows, sorted.
    """

    train: list[tuple]
    dev: list[tuple]
    test: list[tuple]
    notes: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # split -> its file, "" if it is held out
    # what the rows of a split are: those of dev may be scored pairs where the loss reads no score
    columns: dict[str, Columns] = field(default_factory=dict)
    scale: float | None = None
    classes: list[str] = field(default_factory=list)


def read_splits(
    data: Any,
    dev: Any = None,
    test: Any = None,
    columns: Columns | None = None,
    names: str | None = None,
    scale: float | None = None,
    *,
    judged_by: Sequence[Columns] = (),
    quotes: bool = True,
    limit: int | None = None,
    seed: int = 42,
) -> Splits:
    """Read the rows of a run.

    ``data``, ``dev`` and ``test`` are what ``read_rows`` reads, or rows from Python. ``dev`` and
    ``test`` may also be a share of the training rows ("0.1") or "none". None is the default: of a
    published data set its own dev and test, of one's own data a part of it where there are rows
    enough. ``judged_by``: other columns that dev and test may have, such as
    ``Columns(2, "score")`` for a loss without scores; by default those of the training rows alone.
    ``limit`` takes the first training rows, ``seed`` chooses the rows that are held out.
    """
    raise NotImplementedError


def hold_out(
    rows: Sequence[tuple], sizes: dict[str, int], seed: int
) -> tuple[dict[str, list[tuple]], str]:
    """Divide rows into "train" and the splits of ``sizes``, which share no text with each other.

    The second value is "", or says that some texts are on both sides because all rows hang
    together.
    """
    raise NotImplementedError


def linked_rows(rows: Sequence[tuple]) -> list[list[tuple]]:
    """Group rows so that rows of two groups have no text in common."""
    raise NotImplementedError


def shared_rows(train: Iterable[tuple], other: Iterable[tuple]) -> int:
    """Count the rows of ``other`` whose first two texts share a row of ``train``."""
    raise NotImplementedError
