"""Whose product the linear layers of an eager float32 encoder should be: torch's BLAS (MKL on x86) or oneDNN's.

    python -m benchmarks.linear
    MKL_ENABLE_INSTRUCTIONS=AVX2 python -m benchmarks.linear    MKL without AVX-512, as on AMD's Zen 5

The sentences of STS-B test are encoded with either in alternation; rates are medians. ``encode`` takes oneDNN's if one
layer alone is at least ``GAIN`` of ``system/torch_internals.py`` times as fast with it.
"""

import argparse
import statistics
import time
from unittest import mock

from benchmarks import machine
from benchmarks.encode_speed import MODEL, texts_of
from benchmarks.peers import require
from minisbert import SentenceEncoder
from minisbert.system import torch_internals
from minisbert.system.console import bounded, run_command
from minisbert.system.devices import keep_freed_memory

LIBRARIES = {"torch's BLAS": False, "oneDNN": True}
SAME = 2e-6  # largest difference of unit vectors in float32


def main(arguments: list[str] | None = None) -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linear", description=__doc__, formatter_class=layout)
    parser.add_argument("--rounds", type=bounded(int, 1), default=5, help="that count (default: %(default)s)")
    options = parser.parse_args(arguments)
    keep_freed_memory()
    print(machine.lines(machine.measure()))
    print(f"one layer: oneDNN is {torch_internals.onednn_gain(384, 1536, (256,)):.2f} times as fast")
    encoder = SentenceEncoder.load(MODEL, device="cpu")
    texts = texts_of("stsb", encoder)
    seconds: dict[str, list[float]] = {name: [] for name in LIBRARIES}
    vectors = {}
    for _ in range(options.rounds + 1):  # the first one compiles kernels
        for name, chosen in LIBRARIES.items():
            with mock.patch.dict(torch_internals.CHOICES, {"384 x 1536": chosen}):
                started = time.perf_counter()
                vectors[name] = encoder.encode(texts)
                seconds[name].append(time.perf_counter() - started)
    difference = abs(vectors["oneDNN"] - vectors["torch's BLAS"]).max()
    require(difference <= SAME, f"the vectors differ by {difference:.0e}")
    for name, times in seconds.items():
        print(f"{name}: {len(texts) / statistics.median(times[1:]):,.0f} sentences a second")


if __name__ == "__main__":
    run_command(main)
