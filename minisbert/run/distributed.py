"""Training in several processes: who does which rows, and how all of them see the whole batch.

    torchrun --nproc_per_node=2 -m minisbert.train ...

Every process holds the whole model and computes its share of each batch. The outputs are gathered, so that every
process has the loss of the whole batch, in-batch negatives included; each sends back through the model what belongs
to its own rows, and DistributedDataParallel averages the gradients. Started without torchrun a team is one process,
and everything here does nothing.
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
class Team:
    """The processes of one run, as one of them sees it."""

    rank: int  # this process, counted from 0
    size: int  # how many there are
    device: torch.device

    @property
    def leader(self) -> bool:
        """The one process that talks, evaluates and writes."""
        return self.rank == 0

    def wrap(self, network: nn.Module) -> nn.Module:
        """The network, its weights the leader's and its gradients the team's average."""
        if self.size == 1:
            return network
        return nn.parallel.DistributedDataParallel(network)

    def shares(self, count: int) -> list[int]:
        """How many rows of a batch each process takes: ``Team(0, 3, cpu).shares(8) = [3, 3, 2]``."""
        return [(count + self.size - 1 - rank) // self.size for rank in range(self.size)]

    def share(self, rows: Sequence[int]) -> list[int]:
        """This process's rows, in order. At least one, since all must take part: ``gather`` leaves a spare one out."""
        shares = self.shares(len(rows))
        start = sum(shares[: self.rank])
        return list(rows[start : start + shares[self.rank]]) or list(rows[:1])

    def gather(self, outputs: Tensor, count: int) -> Tensor:
        """Everybody's outputs (b, ...) of a batch of ``count`` rows -> (count, ...), the same in every process.

        Gradients flow to this process's own rows only: the others' are sent back by those who computed them.
        """
        if self.size == 1:
            return outputs
        shares = self.shares(count)
        own = outputs[: shares[self.rank]]
        padded = outputs.new_zeros(max(shares), *outputs.shape[1:])  # all must send as much
        padded[: len(own)] = own.detach()
        parts = [torch.empty_like(padded) for _ in shares]
        distributed.all_gather(parts, padded)
        parts = [part[:share] for part, share in zip(parts, shares, strict=True)]
        parts[self.rank] = own
        return torch.cat(parts)

    def backward(self, loss: Tensor) -> None:
        """Gradients of the whole batch's loss. What DistributedDataParallel averages are shares of a sum."""
        (loss * self.size).backward()

    def agree(self, value: float) -> float:
        """The leader's number, in every process."""
        if self.size == 1:
            return value
        told = torch.tensor(value, dtype=torch.float64 if self.device.type != "mps" else None, device=self.device)
        distributed.broadcast(told, src=0)
        return told.item()


@contextmanager
def team(device: str) -> Iterator[Team]:
    """The team of this run: torchrun's processes, or this one alone.

    A process that ends takes the others with it: they say so in an ``InputError``.
    """
    size, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    place = choose_device(device)
    if size == 1:
        yield Team(0, 1, place)
        return
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(place)
    distributed.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield Team(rank, size, place)
        distributed.barrier()  # torchrun takes a process that has ended badly for the end of all: the leader goes first
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
    """Is this what gloo or NCCL say when another process is gone?"""
    words = ("connection closed", "connection reset", "broken pipe", "timed out", "timeout", "gloo", "nccl")
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
