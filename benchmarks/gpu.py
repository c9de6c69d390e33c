"""Encoding on a GPU beside sentence-transformers: same weights, texts and GPU, in turns.

    python -m benchmarks.gpu                            about a minute
    python -m benchmarks.gpu --rounds 9 --device cuda:1
    python -m benchmarks.train_speed --device cuda      training

rates    texts a second at the fastest of several batch sizes, from strings to an array on the CPU, medians of rounds:
         the distinct sentences of STS-B test, with Spearman's correlation times 100, and texts of 256 tokens; the
         difference is the largest from the vectors in float64 on the CPU
latency  milliseconds per call with 1, 16 and 256 sentences of STS-B test, other ones in every call

The first lines name the GPU and give its rates in TFLOP/s for the six linear layers of one MiniLM layer on ``TOKENS``
tokens. sentence-transformers is left out where it is not installed.
"""

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from benchmarks.encode_speed import stsb_spearman, texts_of
from benchmarks.machine import LAYER
from benchmarks.peers import Encode, sentence_transformers, stay_offline, turns
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.assets import ensure
from minisbert.system.console import bounded, run_command
from minisbert.system.devices import choose_device, choose_dtype

MODEL, PEER = "all-MiniLM-L6-v2", "sentence-transformers"
DTYPES = ("float32", "bfloat16")
BATCH_SIZES = (32, 128, 512, 2048)
TEXTS_A_CALL = (1, 16, 256)
CALLS = 10  # of one side in a row, in each round
TOKENS = 2**16  # rows of the products that are timed


def identity(device: torch.device) -> str:
    """A line for the GPU."""
    about = torch.cuda.get_device_properties(device)
    return f"{about.name}, {about.total_memory / 2**30:.0f} GiB; torch {torch.__version__}"


@torch.no_grad()
def product_rate(device: torch.device, dtype: torch.dtype, rounds: int = 20) -> float:
    """TFLOP/s of a layer's six products, the best of ``rounds``."""
    operands = [
        (torch.randn(TOKENS, i, device=device, dtype=dtype), torch.randn(o, i, device=device, dtype=dtype))
        for i, o in LAYER
    ]
    best = float("inf")
    for _ in range(rounds):
        torch.cuda.synchronize(device)
        started = time.perf_counter()
        for x, weight in operands:
            torch.nn.functional.linear(x, weight)
        torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return sum(2 * TOKENS * i * o for i, o in LAYER) / best / 1e12


def loaded(folder: Path, device: torch.device) -> dict[str, Encode]:
    """Every side by its name; each takes ``batch_size`` and returns an array on the CPU."""
    encoder = SentenceEncoder.load(folder, device=device)
    sides: dict[str, Encode] = {f"minisbert {dtype}": partial(encoder.encode, dtype=dtype) for dtype in DTYPES}
    if find_spec(PEER.replace("-", "_")):
        for dtype in DTYPES:
            sides[f"{PEER} {dtype}"] = sentence_transformers(getattr(torch, dtype), folder, 1, str(device))
    return sides


def timed(encode: Encode, texts: Sequence[str], size: int) -> tuple[float, np.ndarray]:
    """Seconds and vectors. The array is on the CPU, so the GPU has finished."""
    started = time.perf_counter()
    vectors = encode(texts, batch_size=size)
    return time.perf_counter() - started, vectors


def rates(kind: str, texts: list[str], sides: dict[str, Encode], rounds: int, reference: np.ndarray) -> None:
    """Print a table of texts a second."""
    sizes = {name: fastest(encode, texts) for name, encode in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    vectors = {}
    for _, name, encode in turns(kind, rounds, sides):
        taken, vectors[name] = timed(encode, texts, sizes[name])
        seconds[name].append(taken)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    base = medians.get(f"{PEER} float32", medians["minisbert float32"])
    rows = [["", "texts a second", "ratio", "batch size", "difference"]]
    for name, median in medians.items():
        difference = float(abs(vectors[name] - reference).max())
        rate = f"{len(texts) / median:,.0f}", f"{base / median:.2f}", f"{sizes[name]:,}"
        rows.append([name, *rate, f"{difference:.0e}"])
    if kind == "stsb":
        rows[0].append("Spearman")
        for row in rows[1:]:
            row.append(f"{100 * stsb_spearman(texts, vectors[row[0]]):.3f}")
    table(f"{kind}: {len(texts):,} texts", rows)


def table(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table; the first row is its heading."""
    heading, *others = (f"| {' | '.join(row)} |" for row in rows)
    print("\n".join(["", title, "", heading, "|---" * len(rows[0]) + "|", *others]))


def fastest(encode: Encode, texts: Sequence[str]) -> int:
    """The batch size that encodes these texts fastest, by the better of two runs each."""
    return min(BATCH_SIZES, key=lambda size: min(timed(encode, texts, size)[0] for _ in range(2)))


def latency(sentences: Sequence[str], sides: dict[str, Encode], rounds: int) -> None:
    """Print a table of milliseconds per call."""
    milliseconds: dict[str, list[str]] = {name: [name] for name in sides}
    for count in TEXTS_A_CALL:
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for round_, name, encode in turns(f"{count} a call", rounds + 1, sides):
            for call in range(CALLS):
                texts = random.Random(CALLS * round_ + call).sample(sentences, count)
                taken, _ = timed(encode, texts, max(count, BATCH_SIZES[0]))
                if round_:  # the first round compiles kernels and is not counted
                    seconds[name].append(taken)
        for name, times in seconds.items():
            milliseconds[name].append(f"{1000 * statistics.median(times):.2f}")
    table("milliseconds per call", [["", *map(str, TEXTS_A_CALL)], *milliseconds.values()])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda, or cuda:1 and so on (default: %(default)s)")
    parser.add_argument("--rounds", type=bounded(int, 1), default=5, help="number of rounds (default: %(default)s)")
    options = parser.parse_args(arguments)
    stay_offline()
    device = choose_device(options.device)
    choose_dtype("bfloat16", device)  # an error for a GPU without it
    folder = ensure(MODEL)
    exact = SentenceEncoder.load(folder, device="cpu").double()
    found = {dtype: product_rate(device, getattr(torch, dtype)) for dtype in DTYPES}
    print(f"{identity(device)}\nTFLOP/s: " + ", ".join(f"{dtype} {rate:,.0f}" for dtype, rate in found.items()))
    sides = loaded(folder, device)
    for kind in ("stsb", "long"):
        texts = texts_of(kind, exact)
        rates(kind, texts, sides, options.rounds, exact.encode(texts))
    latency(texts_of("stsb", exact), sides, options.rounds)


if __name__ == "__main__":
    run_command(main)
