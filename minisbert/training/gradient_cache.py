"""Large batches on a small machine: gradient caching (Gao et al. 2021, arXiv 2101.06983). Exact, dropout included.

A loss that compares the rows of a batch needs the vectors of all of them, and its gradient reaches the encoder through
those vectors alone. So a batch is computed in parts:

1. ``vectors_in_parts``: the vectors of every part, without graphs
2. the loss of the whole batch, and its gradient by the vectors, which is the cache
3. ``replay``: each part again, under the same dropout masks, and its rows of that gradient through the encoder

Memory is that of one part, and of the loss: its B x B cosines. The price is another forward, a quarter more time. A
loss that is the mean of its rows' losses needs none of this: there, ``fit`` adds up the gradients of micro-batches.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from minisbert.system.devices import random_state, set_random_state

Part = list[int]  # row numbers
Cut = Callable[[Sequence[int]], list[Part]]


def whole(rows: Sequence[int]) -> list[Part]:
    """One part: no gradient caching."""
    return [list(rows)]


def cut(rows: Sequence[int], lengths: Sequence[int], tokens: int) -> list[Part]:
    """Rows in order, in parts of at most ``tokens`` tokens, pads included. A longer row is a part of its own.

    ``lengths[row]`` are the tokens of a row, all its texts together. Rows are padded to the longest of their part:
    ``cut([0, 1, 2, 3], [30, 50, 20, 40], 100) = [[0, 1], [2, 3]]``, of 2 * 50 and 2 * 40 tokens.
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


def vectors_in_parts(network: nn.Module, parts: Sequence[Part]) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Step 1: the vectors (B, n, D) of the B rows of all parts, without a graph, and how to compute each part again.

    ``network`` turns the numbers of b rows into vectors (b, n, D). The states of the random generators before each
    part are what its dropout masks were drawn from.
    """
    device = next(network.parameters()).device
    vectors, states = [], []
    with torch.no_grad():
        for part in parts:
            states.append(random_state(device))
            vectors.append(network(part))  # (b, n, D)
    return torch.cat(vectors), states  # (B, n, D)


def replay(network: nn.Module, parts: Sequence[Part], states: Sequence[dict[str, Tensor]], gradient: Tensor) -> None:
    """Step 3: each part again, from its random state, and backward from its rows of ``gradient`` (B, n, D).

    The parameters' ``grad`` adds up those of all parts.
    """
    pulls = gradient.split([len(part) for part in parts])  # (b, n, D) each
    with torch.enable_grad():  # it is off while backward calls this
        for part, state, pull in zip(parts, states, pulls, strict=True):
            set_random_state(state, gradient.device)  # subtle: other dropout masks would be another network's gradient
            network(part).backward(pull)


def compute_in_parts(network: nn.Module, parts: Sequence[Part]) -> Tensor:
    """The vectors (B, n, D) of all parts' rows, a leaf of the loss's graph. Backward to it replays the parts."""
    vectors, states = vectors_in_parts(network, parts)
    first = len(vectors) - len(parts[-1])  # row of the last part

    def backward(gradient: Tensor) -> None:
        # subtle: DistributedDataParallel sends gradients with the last part only, and then those of all parts at once
        with getattr(network, "no_sync", nullcontext)():
            replay(network, parts[:-1], states[:-1], gradient[:first])
        replay(network, parts[-1:], states[-1:], gradient[first:])

    vectors.requires_grad_().register_hook(backward)
    return vectors


class GradientCache(nn.Module):
    """A network from row numbers to vectors (B, n, D) that computes a batch in the parts into which ``cut`` divides it.

    ``loss(GradientCache(network, cut), rows).backward()`` leaves the gradients that ``loss(network, rows).backward()``
    does, but for the dropout masks, which are drawn part by part. Each row's vectors must depend on that row alone.
    """

    def __init__(self, network: nn.Module, cut: Cut):
        super().__init__()
        self.network, self.cut = network, cut

    def forward(self, rows: Sequence[int]) -> Tensor:
        parts = self.cut(rows)
        return compute_in_parts(self.network, parts) if len(parts) > 1 else self.network(rows)
