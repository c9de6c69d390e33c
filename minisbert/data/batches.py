"""Batches in which no text occurs twice, for losses whose negatives are the other rows of the batch."""

from collections.abc import Hashable, Sequence

import torch

from minisbert.core.checks import check_negatives

MOST_HOSTS = 100  # batches that are tried for a row left alone


def unique_batches(
    keys: Sequence[Sequence[Hashable]],
    lengths: Sequence[int],
    batch_size: int,
    generator: torch.Generator,
    window: int = 50,
) -> list[list[int]]:
    """``length_grouped_batches`` with no key twice in a batch, for losses with in-batch negatives.

    Such a loss treats every other row of the batch as a negative, so a text in two rows would be its own negative.
    ``keys`` holds the texts of each row; a repetition within one row does no harm. A row whose text is already in a
    batch goes to a later batch of its window, or to the next window if none has room, so a few batches are smaller.
    A batch of one row has no negatives: its row joins the first batch without its texts, which may then have
    ``batch_size + 1`` rows. If none of the first hundred batches qualifies, as when all rows share a text, the row is
    dropped; every other row is in exactly one batch.
    """
    check_negatives(range(batch_size))
    order = torch.randperm(len(keys), generator=generator).tolist()
    batches: list[list[int]] = []
    waiting: list[int] = []
    while order:
        fresh = batch_size * window - len(waiting)  # at least 1: each window places at least one row
        rows = sorted(waiting + order[:fresh], key=lambda row: lengths[row])
        order = order[fresh:]
        # if most rows are waiting, a text is so frequent that waiting longer would only cost time
        may_wait = order and 2 * len(waiting) < len(rows)
        filled, waiting = _fill(rows, keys, batch_size, most=window if may_wait else len(rows))
        batches += filled
    _join_alone(batches, keys, batch_size)
    batches = [batch for batch in batches if batch]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def _fill(
    rows: list[int], keys: Sequence[Sequence[Hashable]], batch_size: int, most: int
) -> tuple[list[list[int]], list[int]]:
    """At most ``most`` batches and the rows left over: each row goes to the first batch with room after its texts'."""
    batches: list[list[int]] = [[] for _ in range(most)]
    left = []
    after: dict[Hashable, int] = {}  # key -> the batch after the last one that contains it
    onward = list(range(most + 1))  # a batch with room points to itself, a full one to a later batch
    for row in rows:
        at = max((after.get(key, 0) for key in keys[row]), default=0)
        while onward[at] != at:
            onward[at] = onward[onward[at]]  # path halving: shorter for the next row
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
    """Move the row of each batch of one to another batch, or drop it, which leaves its batch empty."""
    held = [{key for row in batch for key in keys[row]} for batch in batches]
    hosts = list(range(len(batches)))
    for alone in [at for at, batch in enumerate(batches) if len(batch) == 1]:
        if len(batches[alone]) > 1:  # another row has joined it since
            continue
        row = batches[alone].pop()
        fits = (at for at in hosts[:MOST_HOSTS] if batches[at] and held[at].isdisjoint(keys[row]))
        if (at := next(fits, None)) is not None:
            batches[at].append(row)
            held[at].update(keys[row])
            if len(batches[at]) > batch_size:
                hosts.remove(at)
