"""Which way of encoding this machine is fastest at: rates, accuracy and a line of advice.

    python -m benchmarks.tune                               all-MiniLM-L6-v2, about two minutes
    python -m benchmarks.tune --model path/to/encoder

Eager and compiled, at every dtype that the CPU multiplies in hardware, each in a process of its
own. Sentences of STS-B test a second and milliseconds for one sentence are medians of rounds in
which all ways take turns; the accuracy is Spearman's correlation times 100 over all pairs of STS-B
test. Packages that are missing are compiled first, 20 to 90 seconds each.
"""

import argparse
import statistics
from collections.abc import Sequence

from benchmarks import machine
from benchmarks.encode_speed import (
    minisbert_makers,
    minisbert_sides,
    running,
    stsb_spearman,
    table,
    texts_of,
)
from benchmarks.sides import Side
from minisbert.checkpoints.layout import find_model
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import bounded, run_command
from minisbert.system.devices import keep_freed_memory
from minisbert.system.progress import Bar

CALLS = 20  # of one text, in a round
LOSS = 0.2  # points of Spearman that a dtype may cost and still be advised


def measure(sides: dict[str, Side], texts: Sequence[str], rounds: int) -> dict[str, dict]:
    """Texts a second, milliseconds for one text and Spearman x 100 of every side."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    single: dict[str, list[float]] = {name: [] for name in sides}
    found: dict[str, dict] = {name: {} for name in sides}
    with Bar(total=(rounds + 1) * len(sides), desc="measuring", unit=" turns") as bar:
        # The first round compiles oneDNN's kernels and gives the vectors.
        for round_ in range(rounds + 1):
            for name, side in sides.items():
                times, vectors = side.timed([texts])
                seconds[name] += times
                if not round_:
                    found[name]["spearman"] = 100 * stsb_spearman(texts, vectors)
                times, _ = side.timed([[text] for text in texts[:CALLS]])
                single[name] += times
                bar.update()
    for name, row in found.items():
        row["texts_per_second"] = len(texts) / statistics.median(seconds[name][1:])
        row["milliseconds"] = 1000 * statistics.median(single[name][CALLS:])
    return found


def advice(found: dict[str, dict]) -> str:
    """The fastest way that keeps within ``LOSS`` of the best accuracy, and the fastest of all."""
    best = max(row["spearman"] for row in found.values())
    by_rate = sorted(found, key=lambda name: -found[name]["texts_per_second"])
    accurate = next(name for name in by_rate if found[name]["spearman"] >= best - LOSS)
    words = f"use {accurate}: the fastest within {LOSS} points of the best Spearman"
    if by_rate[0] != accurate:
        fastest = by_rate[0]
        rate = found[fastest]["texts_per_second"] / found[accurate]["texts_per_second"]
        cost = best - found[fastest]["spearman"]
        words += f"; {fastest} is {rate:.2f} times as fast and costs {cost:.2f}"
    return words


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tune",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model", default="all-MiniLM-L6-v2", help="name or folder (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=bounded(int, 1), default=3, help="number of rounds (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    keep_freed_memory()
    folder = find_model(options.model)
    encoder = SentenceEncoder.load(folder)
    minisbert_sides(folder)  # compiles the packages that are missing
    measured = machine.measure()
    with running(minisbert_makers(folder), keep_memory=True) as sides:
        found = measure(sides, texts_of("stsb", encoder), options.rounds)
    rows = {}
    for name, row in found.items():
        rows[name] = [
            f"{row['texts_per_second']:,.0f}",
            f"{row['milliseconds']:.2f}",
            f"{row['spearman']:.2f}",
        ]
    columns = ["texts a second", "ms for one text", "Spearman"]
    table("ways to encode on this machine", {"machine": measured}, columns, rows)
    print(f"\n{advice(found)}")


if __name__ == "__main__":
    run_command(main)
