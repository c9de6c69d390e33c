"""What a training step costs, by operation: milliseconds of CPU by torch's profiler, beside sentence-transformers.

    python -m benchmarks.step_cost
    python -m benchmarks.emulated benchmarks.step_cost    as on a CPU with AVX2 alone

The default recipe in float32 on one thread: all-MiniLM-L6-v2, STS-B, 32 pairs a step. Both sides take the means of
``STEPS`` steps, ``--rounds`` times in alternation, and the smallest total counts. sentence-transformers computes its
``CosineSimilarityLoss`` of rows in random order, as its trainer does, with torch's AdamW.
"""

import argparse
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import cycle

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.peers import stay_offline, turns
from minisbert.core.loop import adamw, fit
from minisbert.data.datasets import load_scored_pairs
from minisbert.system.assets import ensure
from minisbert.system.console import bounded, run_command
from minisbert.system.devices import keep_freed_memory, save_training_memory
from minisbert.training.distributed import ProcessGroup
from minisbert.training.run_options import parse
from minisbert.training.train import divide, prepare_objective

PEER, STEPS, ROWS, LR = "sentence-transformers", 8, 32, 2e-5
REST = "LayerNorm, sums, copies, the rest"
KINDS = {  # of what torch calls its operations, the first that occurs in a name
    "linear layers, forward": ("addmm", "mkldnn_linear", "_linear_pointwise"),
    "attention: products, softmax": ("scaled_dot_product", "bmm", "softmax"),
    "linear layers, backward": ("aten::mm",),
    "dropout's random numbers": ("bernoulli", "native_dropout", "random"),
    "zeros for gradients, AdamW, norm of the gradient": ("zero", "fill", "adamw", "norm_", "foreach", "vector_norm"),
    "GELU and its gradient": ("gelu",),
}


def kind_of(operation: str) -> str:
    """The row of the table for an operation: ``kind_of("aten::gelu_backward") = "GELU and its gradient"``."""
    for kind, parts in KINDS.items():
        if "layer_norm" not in operation and any(part in operation for part in parts):
            return kind
    return REST


def minisbert_steps() -> Iterator[None]:
    """The steps of ``minisbert train``."""
    options, cpu = parse(["--dtype", "float32"]), torch.device("cpu")
    objective, _ = prepare_objective(options, cpu, torch.float32)
    cut, network = divide(objective, options, ProcessGroup(0, 1, cpu))
    optimizer = adamw(objective.parameter_groups(LR, None), LR)
    # of an epoch's batches, which are of like length each, some that stand for all: from the shortest to the longest
    batches = sorted(
        objective.batches(ROWS, torch.Generator().manual_seed(0)),
        key=lambda rows: sum(objective.lengths[row] for row in rows),
    )
    batches = [batches[(2 * step + 1) * len(batches) // (2 * STEPS)] for step in range(STEPS)]
    for _ in fit(network.train(), objective.loss, cycle(batches), optimizer, lambda step: 1.0, 0, 1.0, cut):
        yield


def peer_steps() -> Iterator[None]:
    """The same steps by sentence-transformers' model and loss."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss

    model = SentenceTransformer(str(ensure("all-MiniLM-L6-v2")), device="cpu").train()
    loss, pairs = CosineSimilarityLoss(model), load_scored_pairs("stsb", "train")
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    random.Random(0).shuffle(pairs)
    for start in range(0, len(pairs), ROWS):
        rows = pairs[start : start + ROWS]
        columns = [model.preprocess([getattr(row, side) for row in rows]) for side in ("sentence1", "sentence2")]
        optimizer.zero_grad()
        loss(columns, torch.tensor([row.score / 5 for row in rows])).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield


def measured(steps: Iterator[None]) -> dict[str, float]:
    """Milliseconds a step of each kind of operation."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(STEPS):
            next(steps)
    costs: dict[str, float] = defaultdict(float)
    for event in found.key_averages():
        costs[kind_of(event.key)] += event.self_cpu_time_total / 1000 / STEPS
    return costs


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=bounded(int, 1), default=3, help="number of rounds (default: %(default)s)")
    options = parser.parse_args(arguments)
    stay_offline()
    save_training_memory()
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    makers: dict[str, Callable[[], Iterator[None]]] = {"minisbert": minisbert_steps, PEER: peer_steps}
    sides = {name: make() for name, make in makers.items()}
    for steps in sides.values():
        measured(steps)  # the first ones compile kernels and take memory
    best: dict[str, dict[str, float]] = {}
    for _, name, steps in turns("step", options.rounds, sides):
        costs = measured(steps)
        if name not in best or sum(costs.values()) < sum(best[name].values()):
            best[name] = costs
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}")
    print(f"\n| | {' | '.join(sides)} |\n|---|---|---|")
    for kind in (*KINDS, REST):
        print(f"| {kind} | {' | '.join(f'{best[name][kind]:,.0f}' for name in sides)} |")
    print(f"| a step | {' | '.join(f'{sum(best[name].values()):,.0f}' for name in sides)} |")


if __name__ == "__main__":
    run_command(main)
