"""What the processes of tests/training/test_distributed.py run, started by torchrun; not a test
itself.

torchrun --nproc_per_node=2 -m tests.distributed_step gradients OUT ARGUMENT...    loss and gradients of some batches
torchrun --nproc_per_node=2 -m tests.distributed_step train ARGUMENT...            a run, with one thread a process
torchrun --nproc_per_node=2 -m tests.distributed_step die ARGUMENT...              a run whose second process is killed
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from minisbert.training.settings import parse
from minisbert.training.train import divide, main, make_objective
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from minisbert.checkpoints.weights import write_safetensors
from minisbert.core import data
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.distributed import ProcessGroup, process_group, run_distributed_command

BATCHES = (
    [5, 0, 3, 8, 1, 7, 2],
    [4, 9, 6, 11],
    [10],
)  # seven rows, four, and one that only one process can take


def gradients(
    arguments: list[str], group: ProcessGroup, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Loss and gradient of each batch, on a model without dropout, computed by the group."""
    options = parse(arguments)
    torch.manual_seed(3)
    objective = make_objective(options, SentenceEncoder.load(options.model))
    for parameter in objective.unused_parameters():
        parameter.requires_grad_(False)
    objective.network.to(dtype).eval()
    _, network = divide(objective, options, group)
    found, sent = {}, []
    if group.size > 1:

        def count(
            state: None, bucket: distributed.GradBucket
        ) -> torch.futures.Future[torch.Tensor]:
            sent.append(bucket.index())
            return allreduce_hook(state, bucket)

        network.replica.register_comm_hook(None, count)
    for i, rows in enumerate(BATCHES if objective.separable else BATCHES[:2]):
        objective.network.zero_grad()
        loss = objective.loss(network, rows)
        loss.backward()
        found[f"{i}.loss"], found[f"{i}.buckets"] = loss.detach(), torch.tensor(len(sent))
        sent.clear()
        found |= {
            f"{i}.{n}": p.grad.clone()
            for n, p in objective.network.named_parameters()
            if p.grad is not None
        }
    return found


def start() -> None:
    torch.set_num_threads(1)
    what, *arguments = sys.argv[1:]
    if what == "gradients":
        out, *arguments = arguments
        with process_group("cpu") as group:
            for name, flags in json.loads(arguments[0]).items():
                for dtype in (torch.float64, torch.float32):
                    found = gradients(flags, group, dtype)
                    if group.rank == 0:
                        write_safetensors(
                            found,
                            Path(out) / f"{name}-{str(dtype).removeprefix('torch.')}.safetensors",
                        )
        return
    if what == "die" and os.environ["RANK"] == "1":
        batch, batches = data.pad_batch, []

        def die(rows: list, pad_id: int) -> tuple:
            batches.append(rows)  # this process does not evaluate: all are of training
            if len(batches) == 8:
                os.kill(os.getpid(), signal.SIGKILL)
            return batch(rows, pad_id)

        data.pad_batch = die
    main(arguments)


if __name__ == "__main__":
    run_distributed_command(start)
