"""Compute large batches in parts by gradient caching: exactly, dropout included.

Gao et al. 2021 (arXiv 2101.06983). A loss that compares the rows of a batch needs the vectors of
all of them, and its gradient reaches the encoder through those vectors alone. So a batch is
computed in parts:

1. ``vectors_in_parts`` computes the vectors of every part, without graphs.
2. The loss of the whole batch is computed from them as from any vectors, and so is its gradient by
   the vectors, the cache: (B, n, D) numbers.
3. ``replay`` computes each part again, under the same dropout masks, and takes its rows of that
   gradient on through the encoder.

Memory is that of one part, and of the loss: its B x B cosines. The price is another forward: a
third more time, where a backward takes as long as two forwards. A loss that is the mean of its
rows' losses needs none of this: there, ``fit`` adds up the gradients of micro-batches.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from minisbert.system.devices import random_state, set_random_state

# Tokens of a part of a batch: a CPU is no slower with it, and memory stops growing with the batch.
MICRO_TOKENS = 768
# Tokens of a process's share of a batch: with more, a loss that compares rows caches gradients,
# which takes a third more time.
CACHED_TOKENS = 4096
Part = list[int]  # row numbers
Divide = Callable[[Sequence[int]], list[Part]]  # from the row numbers of a batch to its parts


def whole_batch(rows: Sequence[int]) -> list[Part]:
    """Return the rows as one part: no gradient caching."""
    return [list(rows)]


def cut(rows: Sequence[int], lengths: Sequence[int], tokens: int) -> list[Part]:
    """Divide rows, in order, into parts of at most ``tokens`` tokens, pads included.

    A longer row is a part alone. ``lengths[row]`` are the tokens of a row, all its texts together.
    Rows are padded to the longest of their part: ``cut([0, 1, 2, 3], [30, 50, 20, 40], 100) =
    [[0, 1], [2, 3]]``, of 2 * 50 and 2 * 40 tokens.
    """
    parts: list[Part] = []
    longest = 0
    for row in rows:
        longest = max(longest, lengths[row])
        if parts and (len(parts[-1]) + 1) * longest <= tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
            longest = lengths[row]
    return parts


def equal_parts(
    rows: Sequence[int], lengths: Sequence[int], part_tokens: float = MICRO_TOKENS
) -> list[Part]:
    """Divide a batch into parts of equal size with at most some ``part_tokens`` tokens each.

    Rows of a batch are of like length, and a short last part would waste a call.
    """
    tokens = sum(lengths[row] for row in rows)
    count = max(1, math.ceil(tokens / part_tokens))
    size = math.ceil(len(rows) / count)
    return [list(rows[start : start + size]) for start in range(0, len(rows), size)]


def batch_divider(
    lengths: Sequence[int],
    device: torch.device,
    micro_tokens: int | None,
    compares_rows: bool,
    processes: int = 1,
) -> Divide:
    """Return what divides a batch into parts, each of which ``processes`` compute together.

    ``micro_tokens`` bounds each process's tokens. Without it, on a CPU, a batch is divided into
    parts of some ``MICRO_TOKENS``. If its loss compares rows, that is done above ``CACHED_TOKENS``
    only, since caching costs another forward.
    """

    def divide(batch: Sequence[int]) -> list[Part]:
        if micro_tokens is not None:
            return cut(batch, lengths, micro_tokens * processes)
        if device.type != "cpu":
            return whole_batch(batch)
        tokens = sum(lengths[row] for row in batch) / processes
        if compares_rows and tokens <= CACHED_TOKENS:
            return whole_batch(batch)
        return equal_parts(batch, lengths, MICRO_TOKENS * processes)

    return divide


def vectors_in_parts(
    network: nn.Module, parts: Sequence[Part]
) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Step 1: compute the vectors (B, n, D) of all parts' rows, without a graph.

    ``network`` turns the numbers of b rows into vectors (b, n, D). Also returns the states of the
    random generators before each part, from which ``replay`` draws the same dropout masks.
    """
    device = next(network.parameters()).device
    vectors = []
    states = []
    with torch.no_grad():
        for part in parts:
            states.append(random_state(device))
            vectors.append(network(part))  # (b, n, D)
    return torch.cat(vectors), states  # (B, n, D)


def replay(
    network: nn.Module, parts: Sequence[Part], states: Sequence[dict[str, Tensor]], gradient: Tensor
) -> None:
    """Step 3: compute each part again, from its random state, and backpropagate its gradient.

    ``gradient`` (B, n, D) has all parts' rows. The parameters' ``grad`` adds up those of all parts.
    """
    sizes = [len(part) for part in parts]
    gradients = gradient.split(sizes)  # (b, n, D) each
    with torch.enable_grad():  # it is off while backward calls this
        for part, state, part_gradient in zip(parts, states, gradients, strict=True):
            # subtle: other dropout masks would be another network's gradient
            set_random_state(state, gradient.device)
            # The graph of this part exists between these two calls only, which saves the memory.
            network(part).backward(part_gradient)


def compute_in_parts(network: nn.Module, parts: Sequence[Part]) -> Tensor:
    """Return the vectors (B, n, D) of all parts' rows, on which ``backward()`` replays the parts.

    The caller computes a loss and calls ``backward()`` as for any network. Its graph ends at the
    vectors, a leaf that has no graph behind it. So a hook on the leaf takes over: autograd calls it
    with step 2's gradient, and it runs step 3, forwards and backwards of parts inside the backward
    of the loss.
    """
    vectors, states = vectors_in_parts(network, parts)

    def replay_all(gradient: Tensor) -> None:
        last = len(vectors) - len(parts[-1])  # the last part's first row
        # subtle: DistributedDataParallel would send the gradients after every part. ``no_sync``
        # holds them back, so that they are sent with the last part, summed up.
        held_back: AbstractContextManager[None] = nullcontext()
        if isinstance(network, nn.parallel.DistributedDataParallel):
            held_back = network.no_sync()
        with held_back:
            replay(network, parts[:-1], states[:-1], gradient[:last])
        replay(network, parts[-1:], states[-1:], gradient[last:])

    vectors.requires_grad_().register_hook(replay_all)
    return vectors


class GradientCache(nn.Module):
    """Wrap a network from row numbers to vectors (B, n, D): it computes a batch in parts.

    ``divide`` makes the parts. ``loss(GradientCache(network, divide), rows).backward()`` leaves the
    gradients that ``loss(network, rows).backward()`` does, but for the dropout masks, which are
    drawn part by part. Each row's vectors must depend on that row alone.
    """

    def __init__(self, network: nn.Module, divide: Divide):
        super().__init__()
        self.network = network
        self.divide = divide

    def forward(self, rows: Sequence[int]) -> Tensor:
        parts = self.divide(rows)
        if len(parts) <= 1:
            return self.network(rows)  # one graph: no second forward
        return compute_in_parts(self.network, parts)
