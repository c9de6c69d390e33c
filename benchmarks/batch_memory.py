"""The memory of one training step by its batch size: in one graph, and with gradient caching.

    python -m benchmarks.batch_memory    all-MiniLM-L6-v2, batches of 64 to 1,024
    python -m benchmarks.batch_memory --batches 64 256 --micro-tokens 1536 --dtype bfloat16

Each batch takes a process of its own, which makes two steps of ``ranking`` on sentences of STS-B
train: anchor, positive, negative. Growth is the peak memory of the process minus its memory after
loading model, libraries and texts. Seconds are CPU time of the second step, on one thread. Exits
with 1 if growth with caching differs by more than 10 % between the batches that are cut.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

from minisbert.data.rows import load_scored_pairs
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.devices import choose_dtype, save_training_memory
from minisbert.training.distributed import ProcessGroup
from minisbert.training.encoder_losses import Ranking
from minisbert.training.gradient_cache import batch_divider

WHOLE = 10**9  # tokens: no batch is cut


def peak() -> float:
    """The peak memory of this process in MiB."""
    kibi = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Bytes on macOS, KiB elsewhere.
    return kibi / 2**20 if sys.platform == "darwin" else kibi / 2**10


def triplets(count: int) -> list[tuple]:
    """Rows of three sentences of STS-B train; no sentence occurs twice."""
    texts = []
    for pair in load_scored_pairs("stsb", "train"):
        texts += [pair.sentence1, pair.sentence2]
    texts = list(dict.fromkeys(texts))
    return [tuple(texts[3 * i : 3 * i + 3]) for i in range(count)]


def measure(model: str, batch: int, tokens: int, dtype: str) -> dict[str, float]:
    """Two steps in this process."""
    save_training_memory()
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    encoder = SentenceEncoder.load(model, device=cpu)
    loss = Ranking()
    network = loss.prepare(encoder, triplets(batch))
    network.dtype, _ = choose_dtype(dtype, cpu)
    divide = batch_divider(network.lengths, cpu, tokens, compares_rows=True)
    shared = ProcessGroup(0, 1, cpu).wrap(network, divide)
    shared.train()
    rows = list(range(batch))
    loaded = peak()
    for _ in range(2):
        network.zero_grad()
        started = time.process_time()
        loss.batch_loss(shared, rows).backward()
        seconds = time.process_time() - started
    return {
        "tokens": sum(network.lengths),
        "growth": peak() - loaded,
        "peak": peak(),
        "seconds": seconds,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.batch_memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model", default="all-MiniLM-L6-v2", help="name or folder (default: %(default)s)"
    )
    parser.add_argument(
        "--batches", type=int, nargs="+", default=[64, 128, 256, 512, 1024], help="rows of a batch"
    )
    parser.add_argument(
        "--micro-tokens", type=int, default=768, help="tokens of a part (default: %(default)s)"
    )
    parser.add_argument(
        "--most", type=int, default=256, help="largest batch in one graph (default: %(default)s)"
    )
    parser.add_argument(
        "--dtype", default="float32", help="float32, bfloat16 or auto (default: %(default)s)"
    )
    # Rows and tokens: what a process of one batch measures.
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure(options.model, *options.one, options.dtype)))
        return
    growths = []
    print(
        f"{'rows':>6} {'tokens':>8}  {'':14} {'growth MiB':>10} {'peak MiB':>9} {'s per step':>11}"
    )
    for batch in options.batches:
        for name, tokens in (("one graph", WHOLE), ("caching", options.micro_tokens)):
            if name == "one graph" and batch > options.most:
                continue
            command = [sys.executable, "-m", "benchmarks.batch_memory"]
            command += ["--one", str(batch), str(tokens)]
            command += ["--model", options.model, "--dtype", options.dtype]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            if name == "caching":
                growths.append(found["growth"])
            numbers = f"{found['growth']:>10,.0f} {found['peak']:>9,.0f} {found['seconds']:>11.2f}"
            print(f"{batch:>6,} {found['tokens']:>8,}  {name:14} {numbers}", flush=True)
    if max(growths) > 1.1 * min(growths):
        raise SystemExit(f"memory is not flat: {min(growths):,.0f} to {max(growths):,.0f} MiB")


if __name__ == "__main__":
    main()
