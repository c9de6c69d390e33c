"""Encoding on a GPU beside sentence-transformers: same weights, texts and GPU, in turns.

    python -m benchmarks.gpu                            ten minutes
    python -m benchmarks.gpu --rounds 9 --device cuda:1
    python -m benchmarks.gpu --tables latency sizes
    python -m benchmarks.train_speed --device cuda      training

rates    texts a second at the fastest of several batch sizes, from strings to an array on the
         CPU, medians of rounds, and millions of texts an hour: the distinct sentences of STS-B
         test, with Spearman's correlation times 100; 100,000 other ones; and texts of 256 tokens.
         The ratio is to sentence-transformers in float32. The difference is the largest from the
         vectors in float64 on the CPU; for the last two kinds of texts from minisbert's in float32
latency  milliseconds per call with 1, 16 and 256 sentences of STS-B test, other ones in every call
sizes    rates with the shapes of BERT-base and BERT-large and random weights, all in bfloat16; the
         ratio and the difference are to sentence-transformers' and minisbert's in bfloat16

"compiled" is ``minisbert.load(..., compiled=True)``, which chooses its own batches. MFU is the
share of the GPU's rate for a product of 8192 x 8192 matrices in bfloat16. The first lines name the
GPU and give that rate, and those for the six linear layers of one MiniLM layer on ``TOKENS``
tokens, in TFLOP/s. sentence-transformers is left out where it is not installed.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

import minisbert
from benchmarks.encode_speed import composed, stsb_spearman, texts_of, tokens_of
from benchmarks.machine import LAYER
from benchmarks.peers import Encode, sentence_transformers, stay_offline, turns
from minisbert.core import InputError
from minisbert.core.bert import Bert
from minisbert.core.weights import BertConfig
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.assets import ensure
from minisbert.system.console import bounded, run_command
from minisbert.system.devices import choose_device, choose_dtype

MODEL = "all-MiniLM-L6-v2"
PEER = "sentence-transformers"
COMPILED = "compiled"
DTYPES = ("float32", "bfloat16")
TABLES = ("rates", "latency", "sizes")
BATCH_SIZES = (32, 128, 512, 2048)
TEXTS_A_CALL = (1, 16, 256)
CALLS = 10  # of one side in a row, in each round
TOKENS = 2**16  # rows of the products that are timed
# Numbers of texts in ``rates``: of other sentences and of long ones; and of each kind in ``sizes``.
MANY = 100_000
LONG = 2_000
SOME = 1_000
# Layers, width, heads, feed-forward width.
SHAPES = {"base": (12, 768, 12, 3072), "large": (24, 1024, 16, 4096)}


def identity(device: torch.device) -> str:
    """A line for the GPU."""
    about = torch.cuda.get_device_properties(device)
    return f"{about.name}, {about.total_memory / 2**30:.0f} GiB; torch {torch.__version__}"


@torch.no_grad()
def product_rate(device: torch.device, dtype: torch.dtype, rounds: int = 20) -> float:
    """TFLOP/s of a layer's six products, the best of ``rounds``."""
    operands = []
    for i, o in LAYER:
        x = torch.randn(TOKENS, i, device=device, dtype=dtype)
        weight = torch.randn(o, i, device=device, dtype=dtype)
        operands.append((x, weight))
    best = float("inf")
    for _ in range(rounds):
        torch.cuda.synchronize(device)
        started = time.perf_counter()
        for x, weight in operands:
            torch.nn.functional.linear(x, weight)
        torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return sum(2 * TOKENS * i * o for i, o in LAYER) / best / 1e12


def square_rate(device: torch.device, rounds: int = 20) -> float:
    """TFLOP/s of a large product in bfloat16, the best of ``rounds``."""
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    best = float("inf")
    for _ in range(rounds):
        torch.cuda.synchronize(device)
        started = time.perf_counter()
        torch.mm(a, b)
        torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return 2 * 8192**3 / best / 1e12


def operations(config: BertConfig, lengths: Sequence[int]) -> float:
    """Floating-point operations of an encoder for texts of these lengths in tokens.

    2 for a weight and 4 D for a pair of tokens.
    """
    weights = 4 * config.hidden_size**2 + 2 * config.hidden_size * config.intermediate_size
    total = 0
    for tokens in lengths:
        total += 2 * weights * tokens + 4 * config.hidden_size * tokens**2
    return config.num_hidden_layers * total


def loaded(folder: Path, device: torch.device, dtypes: Sequence[str] = DTYPES) -> dict[str, Encode]:
    """Every side by its name; each takes ``batch_size`` and returns an array on the CPU."""
    encoder = SentenceEncoder.load(folder, device=device)
    sides: dict[str, Encode] = {}
    for dtype in dtypes:
        sides[f"minisbert {dtype}"] = partial(encoder.encode, dtype=dtype)
    for dtype in dtypes:
        compiled = minisbert.load(folder, compiled=True, dtype=dtype, device=device)
        sides[f"{COMPILED} {dtype}"] = compiled.encode
    if find_spec(PEER.replace("-", "_")):
        for dtype in dtypes:
            sides[f"{PEER} {dtype}"] = sentence_transformers(
                getattr(torch, dtype), folder, 1, str(device)
            )
    return sides


def timed(encode: Encode, texts: Sequence[str], size: int | None) -> tuple[float, np.ndarray]:
    """Seconds and vectors; None lets the encoder choose its batches.

    The array is on the CPU, so the GPU has finished.
    """
    started = time.perf_counter()
    vectors = encode(texts, batch_size=size)
    return time.perf_counter() - started, vectors


@dataclass
class Task:
    """Texts, how they are called, and the operations of one pass over them."""

    kind: str
    texts: list[str]
    operations: float
    peak: float  # TFLOP/s that count as all

    def share(self, seconds: float) -> str:
        return f"{100 * self.operations / seconds / 1e12 / self.peak:.0f} %"


def rates(
    task: Task,
    sides: dict[str, Encode],
    sizes: dict[str, int | None],
    rounds: int,
    reference: np.ndarray,
) -> None:
    """Print a table of texts a second; ``sizes`` are the batch sizes, None for a side's own."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    vectors = {}
    for _, name, encode in turns(task.kind, rounds, sides):
        taken, vectors[name] = timed(encode, task.texts, sizes[name])
        seconds[name].append(taken)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    peers = [median for name, median in medians.items() if name.startswith(PEER)]
    base = (peers or list(medians.values()))[0]
    rows = [["", "texts a second", "ratio", "million an hour", "MFU", "batch size", "difference"]]
    for name, median in medians.items():
        rate = len(task.texts) / median
        size = "its own" if sizes[name] is None else f"{sizes[name]:,}"
        difference = float(abs(vectors[name] - reference).max())
        row = [name, f"{rate:,.0f}", f"{base / median:.2f}", f"{rate * 3600 / 1e6:,.0f}"]
        rows.append([*row, task.share(median), size, f"{difference:.0e}"])
    if task.kind == "stsb":
        rows[0].append("Spearman")
        for row in rows[1:]:
            row.append(f"{100 * stsb_spearman(task.texts, vectors[row[0]]):.3f}")
    table(f"{task.kind}: {len(task.texts):,} texts", rows)


def table(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table; the first row is its heading."""
    heading, *others = [f"| {' | '.join(row)} |" for row in rows]
    rule = "|---" * len(rows[0]) + "|"
    print("\n".join(["", title, "", heading, rule, *others]), flush=True)


def fastest(name: str, encode: Encode, texts: Sequence[str]) -> int | None:
    """The batch size that encodes these texts fastest; None for what chooses its own.

    By the better of two runs each.
    """
    if name.startswith(COMPILED):
        timed(encode, texts, None)  # the first run compiles kernels
        return None
    seconds = {}
    for size in BATCH_SIZES:
        first, _ = timed(encode, texts, size)
        second, _ = timed(encode, texts, size)
        seconds[size] = min(first, second)
    return min(seconds, key=lambda size: seconds[size])


def texts_by_kind(encoder: SentenceEncoder) -> dict[str, list[str]]:
    """Real sentences; many that differ in a number; and long texts of the most tokens."""
    distinct = texts_of("stsb", encoder)
    chance = random.Random(0)
    many = [f"{chance.choice(distinct)} {number}" for number in range(MANY)]
    long = composed(LONG, 300, 400, tokens_of(distinct, encoder))
    return {"stsb": distinct, "many": many, "long": long}


def sizes_table(
    folder: Path, texts: dict[str, list[str]], device: torch.device, peak: float, rounds: int
) -> None:
    """Print rates with the shapes of larger models, whose weights are random."""
    source = SentenceEncoder.load(folder, device="cpu")
    for name, (layers, width, heads, inner) in SHAPES.items():
        shape = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
        config = replace(source.bert.config, **shape, intermediate_size=inner)
        torch.manual_seed(0)
        large = SentenceEncoder(source.tokenizer, Bert(config, pooler=False), source.pooling, True)
        with tempfile.TemporaryDirectory() as place:
            large.save(Path(place) / name)
            sides = loaded(Path(place) / name, device, ["bfloat16"])
            for kind in ("stsb", "long"):
                some = texts[kind][:SOME]
                lengths = list(map(len, source.tokenizer.encode(some).ids))
                sizes = {side: fastest(side, encode, some) for side, encode in sides.items()}
                task = Task(f"{name}, {kind}", some, operations(config, lengths), peak)
                rates(task, sides, sizes, rounds, sides["minisbert bfloat16"](some))
            del sides


def latency(sentences: Sequence[str], sides: dict[str, Encode], rounds: int) -> None:
    """Print a table of milliseconds per call."""
    milliseconds: dict[str, list[str]] = {name: [name] for name in sides}
    for count in TEXTS_A_CALL:
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for round_, name, encode in turns(f"{count} a call", rounds + 1, sides):
            for call in range(CALLS):
                texts = random.Random(CALLS * round_ + call).sample(sentences, count)
                size = None if name.startswith(COMPILED) else max(count, BATCH_SIZES[0])
                taken, _ = timed(encode, texts, size)
                if round_:  # the first round compiles kernels and is not counted
                    seconds[name].append(taken)
        for name, times in seconds.items():
            milliseconds[name].append(f"{1000 * statistics.median(times):.2f}")
    table("milliseconds per call", [["", *map(str, TEXTS_A_CALL)], *milliseconds.values()])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--device", default="cuda", help="cuda, or cuda:1 and so on (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=bounded(int, 1), default=5, help="number of rounds (default: %(default)s)"
    )
    parser.add_argument(
        "--tables",
        nargs="+",
        choices=TABLES,
        default=TABLES,
        help="the tables (default: all three)",
    )
    options = parser.parse_args(arguments)
    stay_offline()
    device = choose_device(options.device)
    if device.type != "cuda":
        raise InputError(f"this benchmark needs a CUDA device, not {device}")
    choose_dtype("bfloat16", device)  # an error for a GPU without it
    folder = ensure(MODEL)
    exact = SentenceEncoder.load(folder, device="cpu").double()
    found = {dtype: product_rate(device, getattr(torch, dtype)) for dtype in DTYPES}
    peak = square_rate(device)
    layers = ", ".join(f"{dtype} {rate:,.0f}" for dtype, rate in found.items())
    print(f"{identity(device)}\nTFLOP/s: {layers}, 8192 x 8192 in bfloat16 {peak:,.0f}", flush=True)
    sides = loaded(folder, device)
    kinds = texts_by_kind(exact)
    if "rates" in options.tables:
        for kind, texts in kinds.items():
            lengths = list(map(len, exact.tokenizer.encode(texts).ids))
            if kind == "stsb":
                reference = exact.encode(texts)
            else:
                reference = sides["minisbert float32"](texts, batch_size=512)
            if kind != "many":  # those are as long as the sentences before, whose sizes stay
                sizes = {name: fastest(name, encode, texts) for name, encode in sides.items()}
            task = Task(kind, texts, operations(exact.bert.config, lengths), peak)
            rates(task, sides, sizes, options.rounds, reference)
    if "latency" in options.tables:
        latency(kinds["stsb"], sides, options.rounds)
    if "sizes" in options.tables:
        sizes_table(folder, kinds, device, peak, options.rounds)


if __name__ == "__main__":
    run_command(main)
