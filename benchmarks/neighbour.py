"""How OpenMP's threads should wait: speed alone and beside one busy process, for several wait policies.

    python -m benchmarks.neighbour                                     three rounds: about ten minutes
    python -m benchmarks.neighbour --rounds 7 --spins 500 --spins 1000

Each measurement is a process of its own; policies alternate, alone and beside the busy process. It trains with the
cosine objective on STS-B, batches of 16, in the dtype that ``auto`` chooses, and then encodes one sentence again
and again in float32. Prints medians: tokens a second, milliseconds a sentence, and both relative to OpenMP's default
alone.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import torch

from minisbert.core.loop import adamw, fit
from minisbert.system.console import SPINNING
from minisbert.system.devices import choose_dtype, save_training_memory
from minisbert.training.run_options import parse
from minisbert.training.train import prepare_objective

WARM_UP = 2  # steps, and sentences
SENTENCE = "A man is playing the guitar on the stage while a woman sings."


def measure(seconds: float) -> dict[str, float]:
    """Tokens a second in training, and milliseconds per call of ``encode`` with one sentence."""
    save_training_memory()
    torch.manual_seed(0)
    cpu, options = torch.device("cpu"), parse(["--limit", "1600", "--batch-size", "16"])
    objective, _ = prepare_objective(options, cpu, choose_dtype("auto", cpu)[0])
    batches = objective.batches(16, torch.Generator().manual_seed(0))
    optimizer = adamw(objective.parameter_groups(options.lr, options.head_lr), options.lr)
    tokens, started = 0, 0.0
    for step in fit(objective.network.train(), objective.loss, batches, optimizer, lambda step: 1.0):
        if step.number <= WARM_UP:
            started = time.perf_counter()
            continue
        tokens += sum(objective.lengths[row] for row in step.batch)
        if time.perf_counter() - started > seconds:
            break
    rate, times = tokens / (time.perf_counter() - started), []
    ends = time.perf_counter() + seconds / 2
    while time.perf_counter() < ends or len(times) <= WARM_UP:
        started = time.perf_counter()
        objective.encoder.encode([SENTENCE])
        times.append(time.perf_counter() - started)
    return {"tokens": rate, "milliseconds": 1000 * statistics.median(times[WARM_UP:])}


def run(policy: dict[str, str], seconds: float, busy: bool) -> dict[str, float]:
    """``measure`` in a new process with these environment variables, beside a process that only counts if ``busy``."""
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    try:
        environment = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", *SPINNING)}
        command = [sys.executable, "-m", "benchmarks.neighbour", "--measure", "--seconds", str(seconds)]
        done = subprocess.run(command, env=environment | policy, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout)
    finally:
        if neighbour:
            neighbour.kill()
            neighbour.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.neighbour",
        description="Speed alone and beside a busy process, for the wait policies of OpenMP.",
    )
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--seconds", type=float, default=6.0, help="of training in each measurement (default: 6)")
    parser.add_argument("--spins", type=int, action="append", help="a GOMP_SPINCOUNT (default: several)")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.seconds)))
        return
    spins = options.spins or sorted({300, 1000, 3000, 10_000, int(SPINNING["GOMP_SPINCOUNT"])})
    policies = {"OpenMP's default": {}, "PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"}}
    policies |= {f"{count:,} spins": {"GOMP_SPINCOUNT": str(count)} for count in spins}
    found: dict[tuple[str, bool], list[dict[str, float]]] = {}
    for number in range(options.rounds):
        for name, policy in policies.items():
            for busy in (False, True):
                found.setdefault((name, busy), []).append(run(policy, options.seconds, busy))
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    medians = {
        key: {unit: statistics.median(row[unit] for row in rows) for unit in rows[0]} for key, rows in found.items()
    }
    first = medians[next(iter(policies)), False]
    print(f"{torch.get_num_threads()} threads\n")
    print("| | tokens/s alone | beside | one sentence alone, ms | beside |\n|---|---|---|---|---|")
    for name in policies:
        alone, beside = (medians[name, busy] for busy in (False, True))
        rates = [f"{row['tokens']:,.0f} ({row['tokens'] / first['tokens']:.3f})" for row in (alone, beside)]
        times = [
            f"{row['milliseconds']:.2f} ({row['milliseconds'] / first['milliseconds']:.2f})" for row in (alone, beside)
        ]
        print(f"| {name} | {' | '.join([*rates, *times])} |")


if __name__ == "__main__":
    main()
