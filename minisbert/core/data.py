"""Rows to batches: texts tokenized once, batches of like length in random order."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .tokenizer import Tokenizer, pad_batch


class TextColumns:
    """Columns of texts, one row per training example: two for pairs, three for triplets. Tokenized
    once.
    """

    def __init__(self, tokenizer: Tokenizer, columns: Sequence[Sequence[str]]):
        self.encoded = [tokenizer.encode(column) for column in columns]
        self.pad_id = tokenizer.pad_id
        rows = zip(*(column.ids for column in self.encoded), strict=True)
        self.lengths = [
            len(ids) * max(map(len, ids)) for ids in rows
        ]  # a row's tokens in a batch of rows like it

    def batch(self, rows: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Ids and mask (n B, T) of B rows with n columns: the first B are the first column's, and
        so on.

        One forward then serves all columns: ``u, v = encoder(*pairs.batch(rows)).chunk(2)``.
        """
        return pad_batch([column.ids[row] for column in self.encoded for row in rows], self.pad_id)


def length_grouped_batches(
    lengths: Sequence[int], batch_size: int, generator: torch.Generator, window: int = 50
) -> list[list[int]]:
    """Row numbers in batches of like length, in random order: every row once, the last batch may be
    smaller.

    Rows are shuffled, sorted by length within windows of ``window`` batches, cut into batches, and
    the batches shuffled: little padding, and which rows meet changes from epoch to epoch. The same
    generator, the same batches.
    """
    order = torch.randperm(len(lengths), generator=generator).tolist()
    size = batch_size * window
    batches = []
    for start in range(0, len(order), size):
        rows = sorted(order[start : start + size], key=lambda row: lengths[row])
        batches += [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]
