"""Training in several processes: which process computes which rows, and how each sees the whole batch.

    torchrun --nproc_per_node=2 -m minisbert.train ...

Every process holds the whole model and computes its share of each batch. The outputs are gathered, so every process
has the loss of the whole batch, in-batch negatives included; each backpropagates what belongs to its own rows, and
DistributedDataParallel combines the gradients. Without torchrun the group is a single process, and nothing is sent.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn

from minisbert.core import InputError
from minisbert.system.devices import choose_device


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of one run, as one of them sees it."""

    rank: int  # of this process, counted from 0
    size: int  # number of processes
    device: torch.device

    @property
    def leader(self) -> bool:
        """The one process that prints, evaluates and writes."""
        return self.rank == 0

    def wrap(self, network: nn.Module) -> nn.Module:
        """The network, shared out if there are several processes."""
        return network if self.size == 1 else DistributedNetwork(network, self)

    def shares(self, count: int) -> list[int]:
        """How many rows of a batch each process takes: ``ProcessGroup(0, 3, cpu).shares(8) = [3, 3, 2]``."""
        return [(count + self.size - 1 - rank) // self.size for rank in range(self.size)]

    def share(self, rows: Sequence[int]) -> list[int]:
        """This process's rows, in order. At least one, since all must take part: ``gather`` drops a spare one."""
        shares = self.shares(len(rows))
        start = sum(shares[: self.rank])
        return list(rows[start : start + shares[self.rank]]) or list(rows[:1])

    def gather(self, outputs: Tensor, count: int) -> Tensor:
        """All processes' outputs (b, ...) of a batch of ``count`` rows -> (count, ...), the same in every process.

        Gradients flow to this process's own rows only; the others' are computed by the processes that own them.
        """
        shares = self.shares(count)
        own = outputs[: shares[self.rank]]
        padded = outputs.new_zeros(max(shares), *outputs.shape[1:])  # all must send the same size
        padded[: len(own)] = own.detach()
        parts = [torch.empty_like(padded) for _ in shares]
        distributed.all_gather(parts, padded)
        parts = [part[:share] for part, share in zip(parts, shares, strict=True)]
        if own.requires_grad:
            # subtle: DistributedDataParallel averages the gradients, but they are parts of a sum
            own.register_hook(lambda gradient: gradient * self.size)
        parts[self.rank] = own
        return torch.cat(parts)

    def broadcast(self, value: float) -> float:
        """The leader's number, in every process."""
        if self.size == 1:
            return value
        told = torch.tensor(value, dtype=torch.float64 if self.device.type != "mps" else None, device=self.device)
        distributed.broadcast(told, src=0)
        return told.item()


class DistributedNetwork(nn.Module):
    """A network from row numbers to outputs (B, ...), each process computing its share of the rows."""

    def __init__(self, network: nn.Module, group: ProcessGroup):
        super().__init__()
        self.replica = nn.parallel.DistributedDataParallel(network)  # the leader's weights, combined gradients
        self.group = group

    def forward(self, rows: list[int]) -> Tensor:
        return self.group.gather(self.replica(self.group.share(rows)), len(rows))


@contextmanager
def process_group(device: str) -> Iterator[ProcessGroup]:
    """The processes of this run: torchrun's, or this one alone.

    If one process ends, the others end too and say so in an ``InputError``.
    """
    size, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    place = choose_device(device)
    if size == 1:
        yield ProcessGroup(0, 1, place)
        return
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(place)
    distributed.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield ProcessGroup(rank, size, place)
        distributed.barrier()  # torchrun stops all processes when one has failed: the leader must report first
    except RuntimeError as error:
        if not lost_contact(error):
            raise
        raise InputError(
            f"process {rank} of {size} has lost contact with another one, which has ended: see that one's message"
        ) from error
    finally:
        distributed.destroy_process_group()


def leave() -> None:
    """End this process, whose work is done, at once: gloo's threads sometimes abort one that ends the usual way."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def lost_contact(error: BaseException) -> bool:
    """Is this the error that gloo or NCCL raise when another process has ended?"""
    words = ("connection closed", "connection reset", "broken pipe", "timed out", "timeout", "gloo", "nccl")
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
