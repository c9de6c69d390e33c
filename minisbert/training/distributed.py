"""Training in several processes: which process computes which rows, and how each sees the whole batch.

    torchrun --nproc_per_node=2 -m minisbert.train ...

Every process holds the whole model and computes its share of each batch. The outputs are gathered, so every process
has the loss of the whole batch, in-batch negatives included; each backpropagates what belongs to its own rows, and
DistributedDataParallel combines the gradients. Without torchrun the group is a single process, and nothing is sent.
"""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, distributed, nn

from minisbert.core import InputError, one_line
from minisbert.system.console import run_command, say, settle_output
from minisbert.system.devices import choose_device
from minisbert.training.gradient_cache import Cut, GradientCache, compute_in_parts, whole

GRACE = 0.3  # seconds; torchrun looks every 0.1 s which process has ended first


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of one run, as one of them sees it."""

    rank: int  # of this process; rank 0 prints, evaluates and writes
    size: int  # number of processes
    device: torch.device

    def wrap(self, network: nn.Module, cut: Cut = whole) -> nn.Module:
        """The network for these processes; if ``cut`` divides a batch, its gradients are cached."""
        if self.size > 1:
            return DistributedNetwork(network, self, cut)
        return network if cut is whole else GradientCache(network, cut)

    def reseed(self, seed: int, step: int) -> None:
        """Before a step: seed the dropout masks of each process but rank 0, whose generator is saved.

        They depend only on the seed, the rank and the step, so a resumed run has those of an uninterrupted one.
        """
        if self.rank != 0:
            mixed = np.random.SeedSequence([seed, self.rank, step]).generate_state(1, np.uint64)
            torch.manual_seed(int(mixed[0]))

    def shares(self, count: int) -> list[int]:
        """How many rows of a batch each process takes: ``ProcessGroup(0, 3, cpu).shares(8) = [3, 3, 2]``."""
        return [len(part) for part in np.array_split(range(count), self.size)]

    def share(self, rows: Sequence[int], rank: int | None = None) -> list[int]:
        """The rows of this process, or of ``rank``, in order. At least one, since all must take part."""
        parts = np.array_split(rows, self.size)
        return parts[self.rank if rank is None else rank].tolist() or list(rows[:1])  # gather drops a spare row

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
        """The number of rank 0, in every process."""
        values = [value]
        if self.size > 1:
            distributed.broadcast_object_list(values, src=0)
        return values[0]


class DistributedNetwork(nn.Module):
    """A network from row numbers to outputs (B, ...), each process computing its share of the rows."""

    def __init__(self, network: nn.Module, group: ProcessGroup, cut: Cut = whole):
        super().__init__()
        self.replica = nn.parallel.DistributedDataParallel(network)  # rank 0's weights, combined gradients
        self.group, self.cut = group, cut

    def forward(self, rows: list[int]) -> Tensor:
        own = self.group.share(rows)
        # subtle: all processes cache gradients or none does, because they must send and receive in the same order
        shares = (self.group.share(rows, rank) for rank in range(self.group.size))
        cached = any(len(self.cut(share)) > 1 for share in shares)
        outputs = compute_in_parts(self.replica, self.cut(own)) if cached else self.replica(own)
        return self.group.gather(outputs, len(rows))


@contextmanager
def process_group(device: str) -> Iterator[ProcessGroup]:
    """The processes of this run: torchrun's, or this one alone. If one ends, the others end with an ``InputError``."""
    rank, size = read_environment()
    place = choose_device(device)
    if size == 1:
        yield ProcessGroup(0, 1, place)
        return
    if place.type == "cuda":
        count = torch.cuda.device_count()
        place = torch.device("cuda", environment_number("LOCAL_RANK", 0, count - 1, f" ({count} CUDA devices here)"))
        torch.cuda.set_device(place)
    try:
        distributed.init_process_group("nccl" if place.type == "cuda" else "gloo")
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        if restarts():
            reason += "; a restart by torchrun needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment"
        raise InputError(f"process {rank} of {size} cannot connect to the others: {reason}") from error
    try:
        yield ProcessGroup(rank, size, place)
        distributed.barrier()  # torchrun stops all processes when one has failed: rank 0 must report first
    except RuntimeError as error:
        if not lost_contact(error):
            raise
        raise InputError(
            f"process {rank} of {size} has lost its connection to another one, which has ended: see that process's "
            "message, or its exit code in torchrun's summary"
        ) from error
    distributed.destroy_process_group()  # not after an error: others may be waiting, and the process ends anyway


def read_environment() -> tuple[int, int]:
    """This process's rank and the number of processes; 0 and 1 without torchrun."""
    if "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        return 0, 1
    size = environment_number("WORLD_SIZE", 1)
    return environment_number("RANK", 0, size - 1, f" (WORLD_SIZE is {size})"), size


def restarts() -> int:
    """How often torchrun has started the processes of this run again (``--max-restarts``)."""
    return environment_number("TORCHELASTIC_RESTART_COUNT", 0) if "TORCHELASTIC_RESTART_COUNT" in os.environ else 0


def processes() -> int:
    """The number of processes in this run."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def is_first() -> bool:
    return not distributed.is_initialized() or distributed.get_rank() == 0


def say_once(text: str) -> None:
    """``say`` in rank 0 only."""
    if is_first():
        say(text)


def environment_number(name: str, smallest: int, largest: int = 10**6, why: str = "", starter: str = "torchrun") -> int:
    """A variable that torchrun or ``starter`` sets; ``InputError`` unless it is a whole number in that range."""
    text = os.environ.get(name, "")
    if text.isascii() and text.isdigit() and len(text) < 8 and smallest <= int(text) <= largest:
        return int(text)
    found = f"{name} is {one_line(text)}" if name in os.environ else f"{name} is not set"
    raise InputError(f"{found}, not a whole number from {smallest} to {largest}{why}: started with {starter}?")


def run_distributed_command(main: Callable[[], None]) -> None:
    """``run_command`` for a command that torchrun may start in several processes: only the first to fail reports."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        run_command(main)
        return
    code = 0
    try:
        run_command(partial(report_once, main))
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    settle_output()
    os._exit(code)  # without Python's clean-up, in which gloo's threads sometimes abort the process


def report_once(main: Callable[[], None]) -> None:
    """Run ``main``; an error passes in the first process that fails and ends the others silently."""
    try:
        main()
    except (Exception, KeyboardInterrupt) as error:
        first = True  # to fail in this run, or the others cannot be reached
        with suppress(RuntimeError, ValueError):
            store, *_ = next(distributed.rendezvous("env://", timeout=timedelta(seconds=3)))
            first = store.add(f"failures/{restarts()}", 1) == 1
        write_error_file(error)
        if not first:
            time.sleep(GRACE)  # torchrun shows the error file of the process that ended first
            sys.exit(2)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun stops the others too: not before the message
        raise


def write_error_file(error: BaseException) -> None:
    """Write the error to the file that torchrun reads; it is the last line that torchrun prints."""
    details = {"message": f"{type(error).__name__}: {error}", "extraInfo": {"timestamp": str(int(time.time()))}}
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        with suppress(OSError):
            Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps({"message": details}))


def lost_contact(error: BaseException) -> bool:
    """Is this the error that gloo or NCCL raise when another process has ended?"""
    words = ("connection closed", "connection reset", "broken pipe", "timed out", "timeout", "gloo", "nccl")
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
