"""Train in several processes: which process computes which rows, and how all see the whole batch.

    torchrun --nproc_per_node=2 -m minisbert train ...

Every process holds the whole model and computes its share of each batch. The outputs are gathered,
so every process has the loss of the whole batch, in-batch negatives included; each backpropagates
what belongs to its own rows, and DistributedDataParallel combines the gradients. Without torchrun
the group is a single process, and nothing is sent.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn

from minisbert.core import InputError
from minisbert.system.console import report_error, run_command, say, settle_output, warn
from minisbert.system.devices import choose_device
from minisbert.system.reading import reading
from minisbert.training.gradient_cache import (
    Divide,
    GradientCache,
    compute_in_parts,
    whole_batch,
)

# The others wait so long while rank 0 evaluates; NCCL's own limit is ten minutes.
PATIENCE = timedelta(days=7)


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of one run, as one of them sees it."""

    rank: int  # of this process; rank 0 prints, evaluates and writes
    size: int  # number of processes
    device: torch.device
    waiting: Any = None  # torch's group for what may take long

    def wrap(self, network: nn.Module, divide: Divide = whole_batch) -> nn.Module:
        """Wrap the network for these processes; if a batch is divided, gradients are cached."""
        if self.size > 1:
            return DistributedNetwork(network, self, divide)
        if divide is whole_batch:
            return network
        return GradientCache(network, divide)

    def reseed(self, seed: int, step: int) -> None:
        """Before a step: seed the dropout masks of each process but rank 0.

        They depend only on the seed, the rank and the step, so a resumed run has those of an
        uninterrupted one. Rank 0 goes on drawing from its generator, whose state is saved.
        """
        if self.rank != 0:
            mixed = np.random.SeedSequence([seed, self.rank, step]).generate_state(1, np.uint64)
            torch.manual_seed(int(mixed[0]))

    def share(self, rows: Sequence[int], rank: int) -> list[int]:
        """Return the rows of process ``rank``, in order: 3, 3 and 2 of 8 rows in three processes.

        At least one row, since all processes must take part; ``gather`` drops a spare one.
        """
        share = np.array_split(rows, self.size)[rank].tolist()
        if not share:
            return list(rows[:1])
        return share

    def gather(self, outputs: Tensor, count: int) -> Tensor:
        """Gather all processes' outputs (b, ...) of a batch of ``count`` rows: (count, ...).

        It is the same in every process. Gradients flow to this process's own rows only; the others'
        are computed by the processes that own them.
        """
        sizes = [len(share) for share in np.array_split(range(count), self.size)]
        local = outputs[: sizes[self.rank]]

        # All must send the same size, so the smaller shares are filled up.
        padded = outputs.new_zeros((max(sizes), *outputs.shape[1:]))
        padded[: len(local)] = local.detach()
        received = [torch.empty_like(padded) for _ in sizes]
        distributed.all_gather(received, padded)
        shares = [part[:size] for part, size in zip(received, sizes, strict=True)]

        # subtle: DistributedDataParallel averages the gradients, but they are parts of a sum
        if local.requires_grad:
            local.register_hook(lambda gradient: gradient * self.size)
        # What was gathered has no graph, so this process's rows go in again with theirs.
        shares[self.rank] = local
        return torch.cat(shares)

    def broadcast(self, value: float) -> float:
        """Send the number of rank 0 to every process and return it."""
        values = [value]
        if self.size > 1:
            distributed.broadcast_object_list(
                values, src=0, group=self.waiting, device=torch.device("cpu")
            )
        return values[0]


class DistributedNetwork(nn.Module):
    """Wrap a network from row numbers to outputs (B, ...): each process computes its share."""

    def __init__(self, network: nn.Module, group: ProcessGroup, divide: Divide = whole_batch):
        super().__init__()
        # Torch's wrapper gives all processes rank 0's weights, and combines their gradients.
        self.replica = nn.parallel.DistributedDataParallel(network)
        self.group = group
        self.divide = divide

    def forward(self, rows: list[int]) -> Tensor:
        shares = [self.group.share(rows, rank) for rank in range(self.group.size)]
        local = shares[self.group.rank]
        # subtle: all processes cache gradients or none does, because they must send and receive in
        # the same order
        if any(len(self.divide(share)) > 1 for share in shares):
            outputs = compute_in_parts(self.replica, self.divide(local))
        else:
            outputs = self.replica(local)
        return self.group.gather(outputs, len(rows))


@contextmanager
def process_group(device: str) -> Iterator[ProcessGroup]:
    """Connect the processes of this run, or yield this one alone.

    If one of them ends, the others raise ``InputError``.
    """
    rank, size = read_environment()
    place = choose_device(device)
    if size == 1:
        yield ProcessGroup(0, 1, place)
        return

    place = connect(rank, size, place)
    try:
        # While rank 0 evaluates, the others wait in a group of their own. It is gloo's even beside
        # NCCL, because they wait on the CPU.
        waiting = distributed.new_group(backend="gloo", timeout=PATIENCE)
        yield ProcessGroup(rank, size, place, waiting)
        # torchrun stops all processes when one has failed: rank 0 must report first.
        distributed.barrier(waiting)
    except RuntimeError as error:
        if not lost_contact(error):
            raise
        raise InputError(
            f"process {rank} of {size} has lost its connection to another one, which has ended: "
            "see that process's message, or its exit code in torchrun's summary"
        ) from error
    # After an error nothing is destroyed: others may be waiting, and the process ends anyway.
    distributed.destroy_process_group()


def connect(rank: int, size: int, device: torch.device) -> torch.device:
    """Connect this process to the others of its run; return the device that it computes on."""
    backend = "gloo"
    if device.type == "mps":
        # gloo has no tensors of Apple's GPU.
        device = torch.device("cpu")
    if device.type == "cuda":
        backend = "nccl"
        gpu = os.environ.get("LOCAL_RANK", rank)
        device = choose_device(f"cuda:{gpu}")
        torch.cuda.set_device(device)
    try:
        distributed.init_process_group(backend)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"process {rank} of {size} cannot connect to the others: {reason}"
        ) from error
    return device


def read_environment() -> tuple[int, int]:
    """Return this process's rank and the number of processes; without torchrun 0 and 1."""
    if "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        return 0, 1
    with reading("RANK and WORLD_SIZE in the environment, which torchrun sets"):
        rank = int(os.environ["RANK"])
        size = int(os.environ["WORLD_SIZE"])
    if not 0 <= rank < size:
        raise InputError(
            f"RANK is {rank} and WORLD_SIZE {size}: was this process started by torchrun?"
        )
    return rank, size


def processes() -> int:
    """Return the number of processes in this run."""
    if not distributed.is_initialized():
        return 1
    return distributed.get_world_size()


def is_first() -> bool:
    """Return whether this process is rank 0, which prints and writes."""
    return not distributed.is_initialized() or distributed.get_rank() == 0


def say_once(text: str) -> None:
    """``say`` in rank 0 only."""
    if is_first():
        say(text)


def warn_once(text: str) -> None:
    """``warn`` in rank 0 only."""
    if is_first():
        warn(text)


@contextmanager
def leaving_the_group() -> Iterator[None]:
    """Report an error of this block, and end the process at once if it is one of several.

    It belongs around a command that torchrun may start, within ``run_command``, which reports the
    errors of a single process.
    """
    try:
        yield
    except BaseException as error:
        if processes() == 1:
            raise
        if isinstance(error, SystemExit):
            code = int(error.code or 0)
        else:
            reported = report_error(error)
            if reported is None:
                raise
            code = reported
        settle_output()
        # This leaves out Python's clean-up, in which gloo's threads sometimes abort the process.
        os._exit(code)


def run_distributed_command(main: Callable[[], None]) -> None:
    """Run a command that torchrun may start in several processes; each reports its errors."""

    def main_in_the_group() -> None:
        with leaving_the_group():
            main()

    run_command(main_in_the_group)


def lost_contact(error: BaseException) -> bool:
    """Return whether the error means that another process has exited."""
    # gloo and NCCL have no type for it, so it is recognized by the words of their messages.
    words = (
        "connection closed",
        "connection reset",
        "broken pipe",
        "timed out",
        "timeout",
        "gloo",
        "nccl",
    )
    message = str(error).lower()
    return isinstance(error, RuntimeError) and any(word in message for word in words)
