"""How long a row should be that several texts share: texts per second by ``minisbert.models.batching.ROW``.

    python -m benchmarks.row_length                              sentences of STS-B test: about eight minutes
    python -m benchmarks.row_length --texts mixed --rows 64 128
    python -m benchmarks.row_length --texts-a-call 16            as a service gets them, 16 in one call

A longer row holds more texts, so batches have fewer pads and fewer shapes; but its attention computes all products of
two tokens, those of different texts as well. Eager and compiled, in float32 and bfloat16 (``encode_speed``); all row
lengths of all sides take turns, and rates are medians of the rounds. The first round is not counted: oneDNN compiles
kernels for new shapes. The vectors of a side must not depend on the length of its rows, which is checked.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from itertools import product

import numpy as np

from benchmarks import machine
from benchmarks.encode_speed import MODEL, minisbert_sides, table, texts_of
from benchmarks.ladder import SAME
from benchmarks.peers import Encode, require, turns
from minisbert.models import batching
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.assets import ensure
from minisbert.system.console import bounded, run_command
from minisbert.system.devices import keep_freed_memory

ROWS = (32, 48, 64, 96, 128, 256)


def encode_all(encode: Encode, texts: Sequence[str], a_call: int, row: int) -> np.ndarray:
    """Vectors (N, D) of all texts, ``a_call`` of them in one call, in rows of ``row`` tokens."""
    before, batching.ROW = batching.ROW, row
    try:
        return np.concatenate([encode(texts[start : start + a_call]) for start in range(0, len(texts), a_call)])
    finally:
        batching.ROW = before


def measure(sides: dict[str, Encode], texts: Sequence[str], a_call: int, rows: Sequence[int], rounds: int) -> dict:
    """Texts per second of every side, by row length."""
    measured = machine.measure()
    settings = {f"{name}, rows of {row}": (name, row) for row, name in product(rows, sides)}
    seconds: dict[str, dict[int, list[float]]] = {name: {row: [] for row in rows} for name in sides}
    first: dict[str, np.ndarray] = {}
    for round_, setting, (name, row) in turns("row length", rounds + 1, settings):
        started = time.perf_counter()
        vectors = encode_all(sides[name], texts, a_call, row)
        if round_:
            seconds[name][row].append(time.perf_counter() - started)
        difference = float(abs(vectors - first.setdefault(name, vectors)).max())
        require(difference <= SAME[name.split()[-1]], f"the vectors of {setting} differ by {difference:.0e}")
    rates = {
        name: {row: len(texts) / statistics.median(times) for row, times in by_row.items()}
        for name, by_row in seconds.items()
    }
    return {"machine": measured, "texts_per_second": rates}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.row_length",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    at_least_1 = bounded(int, 1)
    parser.add_argument("--texts", choices=("stsb", "mixed"), default="stsb", help="default: %(default)s")
    parser.add_argument(
        "--rows", nargs="+", type=at_least_1, default=ROWS, metavar="T", help="in tokens (default: 32 to 256)"
    )
    parser.add_argument("--texts-a-call", type=at_least_1, metavar="N", help="texts in one call (default: all)")
    parser.add_argument("--limit", type=at_least_1, metavar="N", help="number of texts (default: all)")
    parser.add_argument("--rounds", type=at_least_1, default=3, help="number of rounds (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)

    keep_freed_memory()
    folder = ensure(MODEL)
    encoder = SentenceEncoder.load(folder)
    texts = texts_of(options.texts, encoder)
    random.Random(0).shuffle(texts)  # a call gets sentences of any length
    texts = texts[: options.limit]
    a_call = min(options.texts_a_call or len(texts), len(texts))
    found = measure(minisbert_sides(folder), texts, a_call, options.rows, options.rounds)
    if options.json:
        print(json.dumps({"texts": len(texts), "texts_a_call": a_call, **found}))
        return
    rows = {name: [f"{rate:,.0f}" for rate in rates.values()] for name, rates in found["texts_per_second"].items()}
    title = f"texts per second, by tokens in a row; {options.texts}: {len(texts):,} texts, {a_call:,} a call"
    table(title, found, [str(row) for row in options.rows], rows)


if __name__ == "__main__":
    run_command(main)
