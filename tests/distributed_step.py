"""What the processes of tests/training/test_distributed.py run, started by torchrun; not a test.

torchrun --nproc_per_node=2 -m tests.distributed_step gradients OUT CASES   gradients of batches
torchrun --nproc_per_node=2 -m tests.distributed_step train ARGUMENT...     a run, one thread each
torchrun --nproc_per_node=2 -m tests.distributed_step die ARGUMENT...       its second process dies
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from minisbert import train
from minisbert.checkpoints.weights import write_safetensors
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.distributed import ProcessGroup, process_group, run_distributed_command
from minisbert.training.encoder_losses import Ranking
from minisbert.training.gradient_cache import batch_divider
from minisbert.training.named_heads import add_head
from minisbert.training.starting_model import frozen_if_unused
from minisbert.training.table import find_loss
from tests import toys

# seven rows, four, and one that only one process can take
BATCHES = ([5, 0, 3, 8, 1, 7, 2], [4, 9, 6, 11], [10])


def gradients(
    case: dict[str, Any], group: ProcessGroup, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Loss and gradient of each batch, on a model without dropout, computed by the group.

    ``case`` has the folder of the model, the loss, and maybe a head and "micro_tokens".
    """
    torch.manual_seed(3)
    model: Any = SentenceEncoder.load(case["model"], device="cpu")
    loss = find_loss(case["loss"])
    if isinstance(loss, Ranking):
        loss.symmetric = True
        loss.projection = True
    if "head" in case:
        model = add_head(model, case["head"], loss.task)
    rows = toys.rows(toys.FORM.get(case["loss"], "triplets"))
    network = loss.prepare(model, rows)
    network.to(dtype).eval()
    divide = batch_divider(
        network.lengths,
        torch.device("cpu"),
        case.get("micro_tokens"),
        loss.compares_rows,
        group.size,
    )
    found = {}
    sent: list[int] = []
    with frozen_if_unused(model):
        shared = group.wrap(network, divide) if loss.compares_rows else group.wrap(network)
        if group.size > 1:

            def count(
                state: None, bucket: distributed.GradBucket
            ) -> torch.futures.Future[torch.Tensor]:
                sent.append(bucket.index())
                return allreduce_hook(state, bucket)

            shared.replica.register_comm_hook(None, count)
        # in-batch negatives need two rows
        for i, batch in enumerate(BATCHES[:2] if loss.compares_rows else BATCHES):
            network.zero_grad()
            value = loss.batch_loss(shared, batch)
            value.backward()
            found[f"{i}.loss"] = value.detach()
            found[f"{i}.buckets"] = torch.tensor(len(sent))
            sent.clear()
            for name, parameter in network.named_parameters():
                if parameter.grad is not None:
                    found[f"{i}.{name}"] = parameter.grad.clone()
    return found


def start() -> None:
    torch.set_num_threads(1)
    what, *arguments = sys.argv[1:]
    if what == "gradients":
        out, cases = arguments
        with process_group("cpu") as group:
            for name, case in json.loads(cases).items():
                for dtype in (torch.float64, torch.float32):
                    found = gradients(case, group, dtype)
                    if group.rank == 0:
                        kind = str(dtype).removeprefix("torch.")
                        write_safetensors(found, Path(out) / f"{name}-{kind}.safetensors")
        return
    if what == "die" and os.environ["RANK"] == "1":
        next_step = train.next_step
        steps = []

        def die(*arguments: Any) -> Any:
            steps.append(len(steps))
            if len(steps) == 8:
                os.kill(os.getpid(), signal.SIGKILL)
            return next_step(*arguments)

        train.next_step = die
    train.main(arguments)


if __name__ == "__main__":
    run_distributed_command(start)
