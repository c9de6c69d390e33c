"""Rows of dev or test that are training rows too: the score that they give says nothing about other texts."""

from collections.abc import Iterable
from typing import Any


def shared_rows(train: Iterable[Any], other: Iterable[Any]) -> int:
    """The number of rows of ``other`` whose first two texts share a row of ``train``, in either order.

    Rows are pairs with ``sentence1`` and ``sentence2``, or tuples of texts:
    ``shared_rows([("a", "b")], [("b", "a", "c"), ("a", "c")]) = 1``.
    """
    known = {texts_of(row) for row in train}
    return sum(texts_of(row) in known for row in other)


def texts_of(row: Any) -> frozenset[str]:
    if hasattr(row, "sentence1"):
        return frozenset((row.sentence1, row.sentence2))
    return frozenset(row[:2])
