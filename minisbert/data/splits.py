"""Divide rows into training, dev and test rows, and count those that two splits share."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch

from minisbert.data.formats import Row

HELD_OUT = 0.1  # share of the labelled rows that dev and test each get if they have no file


def texts_of(row: Row | tuple[str, ...]) -> frozenset[str]:
    """Return a row's texts without their order: copies of a row must not be in training and dev at once."""
    if isinstance(row, Row):
        row = row.texts
    return frozenset(row)


def hold_out(
    rows: Sequence[Any], splits: Sequence[str], seed: int, key: Callable[[Any], Hashable] = texts_of
) -> tuple[Sequence[Any], dict[str, list[Any]]]:
    """Hold out a tenth of the rows for each split, and return the rest first; ``ValueError`` if one would be empty."""
    if not splits:
        return rows, {}
    rows, held_out = split_rows(rows, 1 - HELD_OUT * len(splits), seed, key)
    if len(splits) == 1:
        return rows, {splits[0]: held_out}
    first, second = split_rows(held_out, 0.5, seed, key)
    return rows, {splits[0]: first, splits[1]: second}


def split_rows(
    rows: Sequence[Any], share: float, seed: int, key: Callable[[Any], Hashable] = texts_of
) -> tuple[list[Any], list[Any]]:
    """Shuffle rows and split them in two: about ``round(share * N)`` and the rest, the same for the same seed.

    Rows with the same ``key`` are on the same side. Raises ``ValueError`` if one side would be empty.
    """
    # Copies of a row move together: one in training and one in dev would make dev's score too good.
    groups: dict[Hashable, list[Any]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    blocks = list(groups.values())
    cut = round(share * len(rows))
    first: list[Any] = []
    rest: list[Any] = []
    for i in torch.randperm(len(blocks), generator=torch.Generator().manual_seed(seed)).tolist():
        if len(first) < cut:
            first += blocks[i]
        else:
            rest += blocks[i]
    if not first or not rest:
        raise ValueError(f"a share of {share} of {len(rows)} rows leaves one side empty")
    return first, rest


def shared_rows(train: Iterable[Any], other: Iterable[Any]) -> int:
    """Count the rows of ``other`` whose first two texts share a row of ``train``, in either order.

    A row is a ``Row`` or a tuple of texts:
    ``shared_rows([("a", "b")], [("b", "a", "c"), ("a", "c")]) = 1``.
    """
    trained = {pair_of(row) for row in train}
    return sum(pair_of(row) in trained for row in other)


def pair_of(row: Row | tuple[str, ...]) -> frozenset[str]:
    """Return the first two texts of a row without their order."""
    if isinstance(row, Row):
        row = row.texts
    return frozenset(row[:2])
