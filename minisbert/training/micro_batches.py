"""How a batch is divided into parts, which bounds the memory of a step."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from minisbert.training.distributed import ProcessGroup
from minisbert.training.gradient_cache import Cut, cut, whole
from minisbert.training.objectives.base import Objective
from minisbert.training.settings import RunSettings

MICRO_TOKENS = 768  # per process and part: no slower on a CPU, and memory stops growing with the batch
CACHED_TOKENS = 4096  # per process: a larger batch whose loss compares rows is cached, for a quarter more time


def divide(objective: Objective, options: RunSettings, group: ProcessGroup) -> tuple[Cut, nn.Module]:
    """What cuts a batch for ``fit``, and the network, shared out among the processes.

    If the loss is the mean of its rows' losses, ``fit`` adds up the gradients of the parts. Otherwise ``fit`` gets
    whole batches, and the network caches gradients.
    """
    cut_batch = partial(micro_batches, objective=objective, options=options, device=group.device)
    if objective.separable:
        return partial(cut_batch, processes=group.size), group.wrap(objective.network)
    return whole, group.wrap(objective.network, cut_batch)


def micro_batches(
    rows: Sequence[int], objective: Objective, options: RunSettings, device: torch.device, processes: int = 1
) -> list[list[int]]:
    """The parts of a batch, which ``processes`` compute together, one part after the other.

    ``--micro-tokens`` bounds each process's tokens. Without it, on a CPU, a long batch is cut into parts of some
    ``MICRO_TOKENS``; if its loss compares rows only from ``CACHED_TOKENS`` on, since caching costs another forward.
    """
    if options.micro_tokens is not None:
        return cut(rows, objective.lengths, options.micro_tokens * processes)
    tokens = sum(objective.lengths[row] for row in rows) / processes
    if device.type != "cpu" or (tokens <= CACHED_TOKENS and not objective.separable):
        return whole(rows)
    size = math.ceil(len(rows) / math.ceil(tokens / MICRO_TOKENS))
    return [list(rows[start : start + size]) for start in range(0, len(rows), size)]
