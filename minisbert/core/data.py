"""Rows to batches: texts tokenized once, batches of similar length in random order.

What the library runs: all of this chapter.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from .tokenizer import Encoded, pad_batch


def padded_tokens(row: Sequence[Sequence[int]]) -> int:
    """The tokens that a row of texts takes once they are padded to the longest of them.

    An anchor of 5 tokens beside a positive of 8 takes ``2 * 8 = 16``.
    """
    longest = max(len(ids) for ids in row)
    return len(row) * longest


class EncodesTexts(Protocol):
    """What ``TextColumns`` asks of a tokenizer: the book's has it, and so has any model's."""

    pad_id: int

    def encode(self, texts: Sequence[str]) -> Encoded: ...


class TextColumns:
    """Columns of texts, one row per training example: two for pairs, three for triplets.

    The texts are tokenized once. ``lengths`` has the ``padded_tokens`` of each row.
    """

    def __init__(self, tokenizer: EncodesTexts, columns: Sequence[Sequence[str]]):
        self.encoded = [tokenizer.encode(column) for column in columns]
        self.pad_id = tokenizer.pad_id
        columns_of_ids = [column.ids for column in self.encoded]
        rows = zip(*columns_of_ids, strict=True)  # the texts of each row, as ids
        self.lengths = [padded_tokens(row) for row in rows]

    def batch(self, rows: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Ids and mask (n B, T) of B rows with n columns, one column below the other.

        One forward then serves all columns: ``u, v = encoder(*pairs.batch(rows)).chunk(2)``.
        """
        texts = []
        for column in self.encoded:
            texts += [column.ids[row] for row in rows]
        return pad_batch(texts, self.pad_id)


def length_grouped_batches(
    lengths: Sequence[int], batch_size: int, generator: torch.Generator, window: int = 50
) -> list[list[int]]:
    """Row numbers in batches of similar length, in random order: every row once.

    Rows are shuffled, sorted by length within windows of ``window`` batches, cut into batches, and
    the batches shuffled. So batches hold little padding, and which rows meet still changes from
    epoch to epoch. One batch may be smaller. The same generator state gives the same batches.
    """
    order = torch.randperm(len(lengths), generator=generator).tolist()
    rows_of_window = batch_size * window
    batches = []
    for start in range(0, len(order), rows_of_window):
        rows = sorted(order[start : start + rows_of_window], key=lambda row: lengths[row])
        for first in range(0, len(rows), batch_size):
            batches.append(rows[first : first + batch_size])

    shuffled = torch.randperm(len(batches), generator=generator).tolist()
    return [batches[i] for i in shuffled]
