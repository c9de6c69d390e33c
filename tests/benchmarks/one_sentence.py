"""Where the time of one sentence goes: the whole call, its linear layers alone, and reading their weights once.

    python -m tests.benchmarks.one_sentence                                    a minute
    python -m tests.benchmarks.one_sentence --text "A man plays." --rounds 20

call         ``encode`` with one text, the weights laid out before (``SentenceEncoder.prepare``)
linear       the layers' matrix products of that call and nothing else, on rows of random numbers
reading      the sum of the same weights: what a call costs at least, as all of them pass through the processor
ONNX Runtime the same text by it, if it is installed (extra ``reference``); it computes no bfloat16 here

Medians in milliseconds; all sides take turns, so that each finds the caches as another side left them.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from minisbert.fast.fused import FusedBert, rounded
from minisbert.fast.kernels import linear
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.run.options import number
from minisbert.system.assets import ensure
from minisbert.system.console import run_command
from minisbert.system.devices import bfloat16_hardware, keep_freed_memory
from tests.benchmarks import machine, peers
from tests.benchmarks.conversion import convert

MODEL = "all-MiniLM-L6-v2"
TEXT = "A man is playing the guitar on the stage while a woman sings."
CALLS = 20  # of one side in a row, in each round


def matrices(fused: FusedBert) -> list[tuple[Tensor, Tensor, bool]]:
    """The weight and bias of each linear layer in the order of a call, and whether GELU follows."""
    names = ("attention.all", "attention.output", "feed_forward.up", "feed_forward.down")
    return [(*weights[name], name == "feed_forward.up") for weights in fused.layers for name in names]


def parts(encoder: SentenceEncoder, dtype: torch.dtype, tokens: int) -> dict[str, Callable[[], object]]:
    """``linear`` and ``reading`` for a call with so many tokens."""
    layers = matrices(FusedBert(encoder.bert, dtype, copy=True))
    rows = {width: torch.randn(rounded(tokens), width).to(dtype) for width in {w.shape[1] for w, _, _ in layers}}
    plain = [torch.randn(weight.shape).to(dtype).view(torch.float32) for weight, _, _ in layers]
    return {
        "linear": lambda: [linear(rows[w.shape[1]], w, bias, with_gelu=gelu) for w, bias, gelu in layers],
        "reading": lambda: [weight.sum() for weight in plain],
    }


def measure(encoder: SentenceEncoder, files: Path, libraries: list[str], text: str, rounds: int) -> dict:
    """Median milliseconds of every side."""
    tokens = len(encoder.tokenizer.encode([text]).ids[0])
    sides: dict[str, Callable[[], object]] = {}
    for name in ("float32", "bfloat16")[: 1 + bfloat16_hardware(torch.device("cpu"))[0]]:
        encoder.prepare(name)
        sides[f"{name}, call"] = partial(encoder.encode, [text], precision=name)
        found = parts(encoder, getattr(torch, name), tokens)
        sides |= {f"{name}, {part}": run for part, run in found.items()}
    if "onnxruntime" in libraries:
        sides["float32, ONNX Runtime"] = partial(peers.onnxruntime("float32", files, 1), [text])
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    with torch.inference_mode():
        for round_, name, run in peers.turns("one sentence", rounds + 1, sides):
            for _ in range(CALLS):
                started = time.perf_counter()
                run()
                if round_:  # in the first, kernels are compiled
                    seconds[name].append(time.perf_counter() - started)
    medians = {name: 1000 * statistics.median(times) for name, times in seconds.items()}
    return {"machine": machine.measure(), "tokens": tokens, "milliseconds": medians}


def show(found: dict) -> None:
    print(f"\none text of {found['tokens']} tokens, milliseconds\n\n{machine.lines(found['machine'])}\n")
    columns = ("call", "linear", "reading", "ONNX Runtime")
    print(f"| | {' | '.join(columns)} |\n|{'---|' * (1 + len(columns))}")
    for precision in dict.fromkeys(name.partition(",")[0] for name in found["milliseconds"]):
        cells = [found["milliseconds"].get(f"{precision}, {column}") for column in columns]
        print(f"| {precision} | {' | '.join('-' if cell is None else f'{cell:.2f}' for cell in cells)} |")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.one_sentence",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--text", default=TEXT, help="default: %(default)s")
    parser.add_argument("--rounds", type=number(int, 1), default=10, help="number of rounds (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    peers.stay_offline()
    keep_freed_memory()
    folder = ensure(MODEL)
    libraries = [name for name in peers.installed(None) if name == "onnxruntime"]
    with tempfile.TemporaryDirectory() as converted:
        convert(folder, Path(converted), libraries)
        found = measure(SentenceEncoder.load(folder), Path(converted), libraries, options.text, options.rounds)
    print(json.dumps(found)) if options.json else show(found)


if __name__ == "__main__":
    run_command(main)
