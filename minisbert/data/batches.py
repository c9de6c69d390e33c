"""Batches in which no text occurs twice, for losses whose negatives are the other rows of the
batch.
"""

from collections.abc import Hashable, Sequence

import torch

from minisbert.core import InputError

MOST_HOSTS = 100  # batches that are tried for a row left alone


def unique_batches(
    keys: Sequence[Sequence[Hashable]],
    lengths: Sequence[int],
    batch_size: int,
    generator: torch.Generator,
    window: int = 50,
) -> list[list[int]]:
    """``length_grouped_batches`` with no key twice in a batch, for losses with in-batch negatives.

    Such a loss treats every other row of the batch as a negative, so a text in two rows would be
    its own negative. ``keys`` holds the texts of each row; a repetition within one row does no
    harm. A row whose text is already in a batch goes to a later batch of its window, or to the next
    window if none has room, so a few batches are smaller. A batch of one row has no negatives: its
    row joins the first batch without its texts, which may then have ``batch_size + 1`` rows. If
    none of the first hundred batches qualifies, as when all rows share a text, the row is dropped;
    every other row is in exactly one batch.
    """
    if batch_size < 2:
        raise InputError(
            "a batch of one has no negatives, so its loss is always 0: give 2 rows or more"
        )
    order = torch.randperm(len(keys), generator=generator).tolist()
    batches: list[list[int]] = []
    waiting: list[int] = []  # rows that found no batch in the windows before
    while order:
        # The window is filled up with fresh rows. There is room for one at least, because the
        # window before has placed at least one of its rows.
        fresh = batch_size * window - len(waiting)
        rows = sorted(waiting + order[:fresh], key=lambda row: lengths[row])
        order = order[fresh:]

        # A window fills so many batches, and what is left over waits for the next one. In the last
        # window each row gets a batch; also if most rows are waiting, for then a text is so
        # frequent that waiting longer would only cost time.
        most_batches = len(rows)
        if order and 2 * len(waiting) < len(rows):
            most_batches = window
        filled, waiting = fill_batches(rows, keys, batch_size, most_batches)
        batches += filled

    join_alone(batches, keys, batch_size)
    batches = [batch for batch in batches if batch]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def fill_batches(
    rows: list[int], keys: Sequence[Sequence[Hashable]], batch_size: int, most_batches: int
) -> tuple[list[list[int]], list[int]]:
    """Put each row into the first batch with room after those that have its texts.

    Returns at most ``most_batches`` batches, and the rows that are left over.
    With a batch size of 2, rows a, b, a, c, a of one text each give [a, b], [a, c], [a].
    """
    batches: list[list[int]] = [[] for _ in range(most_batches)]
    left_over = []
    after: dict[Hashable, int] = {}  # key -> the first batch behind all that have it
    for row in rows:
        at = max((after.get(key, 0) for key in keys[row]), default=0)
        # the rows of a window fill at most 50 batches, so few are passed
        while at < most_batches and len(batches[at]) == batch_size:
            at += 1
        if at == most_batches:
            left_over.append(row)
            continue
        batches[at].append(row)
        for key in keys[row]:
            after[key] = at + 1
    return [batch for batch in batches if batch], left_over


def join_alone(
    batches: list[list[int]], keys: Sequence[Sequence[Hashable]], batch_size: int
) -> None:
    """Move the row of each batch of one to another batch, or drop it: its own is empty then."""
    texts: list[set[Hashable]] = []
    for batch in batches:
        texts_of_batch: set[Hashable] = set()
        for row in batch:
            texts_of_batch.update(keys[row])
        texts.append(texts_of_batch)

    hosts = list(range(len(batches)))
    for batch in batches:
        if len(batch) != 1:  # also if another row has joined it since
            continue
        row = batch.pop()
        for host in hosts[:MOST_HOSTS]:
            if batches[host] and texts[host].isdisjoint(keys[row]):
                batches[host].append(row)
                texts[host].update(keys[row])
                if len(batches[host]) > batch_size:  # one more is enough
                    hosts.remove(host)
                break
