"""Exact search beside faiss' flat index, in alternation: the nearest of many vectors.

    python -m benchmarks.search_speed    100,000 and 1,000,000 vectors, a few minutes, 4 GB
    python -m benchmarks.search_speed --vectors 10000 --queries 100 --rounds 3
    python -m benchmarks.search_speed --k 100 --json

The vectors have length 1 and lie around 1,000 random centres, with a cosine of about a half between
two of the same centre: as among sentences, a query has near neighbours. For each number of vectors:

seconds     for 1,000 queries, the median of rounds in which both take turns with as many threads;
            building faiss' index is not counted
ratio       faiss' seconds divided by this side's: above 1 is faster than faiss
GEMM share  the 2 Q N D operations of all products per second, divided by the machine's best
            float32 rate
memory      growth of the peak memory: by a search, and for faiss by the index, which is a copy of
            the vectors, as well
same        queries whose k results are those of ``top_k`` in the same order; faiss'
            ``IndexFlatIP`` rounds to float32 and may swap neighbours whose scores differ in the
            last digit

Above the table stand the CPU and the rates of its matrix products, measured before each size
(``benchmarks.machine``). faiss needs the ``reference`` extra; if it is not installed, it is left
out. It is told to multiply in blocks from 20 queries on, once its default: faiss-cpu 1.15 compares
vectors one by one otherwise and takes ten times as long.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import numpy as np
import torch

from benchmarks import machine
from benchmarks.peers import turns
from benchmarks.stream_memory import peak
from minisbert.search.dense import top_k
from minisbert.system.console import bounded, run_command, say
from minisbert.system.devices import keep_freed_memory

SIZES = (100_000, 1_000_000)
QUERIES = 1000
WIDTH = 384
K = 10
ROUNDS = 5
CENTRES = 1000
BLOCK = 10_000  # vectors made at a time

Search = Callable[[], tuple[np.ndarray, np.ndarray]]  # scores and indices (Q, k)


def unit_vectors(count: int, width: int, seed: int) -> np.ndarray:
    """Vectors (N, D) of length 1 in float32, around centres that are the same for every seed."""
    centres = np.random.default_rng(0).standard_normal((CENTRES, width), np.float32)
    generator = np.random.default_rng(seed)
    vectors = np.empty((count, width), np.float32)
    for start in range(0, count, BLOCK):  # in place: a temporary copy would raise the peak
        part = vectors[start : start + BLOCK]
        generator.standard_normal(out=part, dtype=np.float32)
        part += centres[generator.integers(0, CENTRES, len(part))]
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return vectors


def searches(queries: np.ndarray, corpus: np.ndarray, k: int) -> Iterator[tuple[str, Search]]:
    """The sides, one after the other.

    faiss' index is built only when it is asked for, after the memory of the first was measured.
    """
    yield "minisbert", lambda: top_k(queries, corpus, k)
    if find_spec("faiss"):
        import faiss

        faiss.omp_set_num_threads(torch.get_num_threads())
        faiss.cvar.distance_compute_blas_threshold = 20
        index = faiss.IndexFlatIP(corpus.shape[1])
        index.add(corpus)
        yield "faiss", lambda: index.search(queries, k)


def compare(queries: np.ndarray, count: int, k: int, rounds: int) -> dict:
    """The machine, and of each side every column of the table, on ``count`` vectors."""
    corpus = unit_vectors(count, queries.shape[1], seed=1)
    sides: dict[str, Search] = {}
    found: dict[str, dict] = {}
    before = peak()
    expected = None
    for name, search in searches(queries, corpus, k):
        _, indices = search()  # compiles kernels, so it is not timed
        if expected is None:
            expected = indices  # minisbert's, which come first
        same = float((indices == expected).all(axis=1).mean())
        sides[name] = search
        found[name] = {"mebibytes": peak() - before, "same": same}
        before = peak()
    measured = machine.measure()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _, name, search in turns(f"{count:,} vectors", rounds, sides):
        started = time.perf_counter()
        search()
        seconds[name].append(time.perf_counter() - started)
    # Seconds that the products alone would take.
    needed = 2 * queries.size * count / 1e9 / machine.best_rate(measured, "float32")
    for name, times in seconds.items():
        median = statistics.median(times)
        found[name] |= {"seconds": median, "gemm_share": needed / median}
    return {"machine": measured, "sides": found}


def show(results: dict[int, dict], queries: int, k: int) -> None:
    print(f"\nthe {k} nearest for {queries:,} queries\n")
    for count, found in results.items():
        print(f"{count:,} vectors:\n{machine.lines(found['machine'])}")
    print("\n| vectors | | seconds | ratio | GEMM share | growth of memory, MiB | same results |")
    print("|---" * 7 + "|")
    for count, found in results.items():
        sides = found["sides"]
        base = sides.get("faiss", sides["minisbert"])["seconds"]
        for name, row in sides.items():
            speed = f"{row['seconds']:.2f} | {base / row['seconds']:.2f} | {row['gemm_share']:.0%}"
            print(f"| {count:,} | {name} | {speed} | {row['mebibytes']:,.0f} | {row['same']:.1%} |")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search_speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    at_least_1 = bounded(int, 1)
    parser.add_argument(
        "--vectors",
        nargs="+",
        type=at_least_1,
        default=SIZES,
        metavar="N",
        help="default: 100000 1000000",
    )
    parser.add_argument("--queries", type=at_least_1, default=QUERIES, help="default: %(default)s")
    parser.add_argument(
        "--width", type=at_least_1, default=WIDTH, metavar="D", help="default: %(default)s"
    )
    parser.add_argument(
        "--k", type=at_least_1, default=K, help="results per query (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=at_least_1, default=ROUNDS, help="number of rounds (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if not find_spec("faiss"):
        say("faiss is not compared: not installed; pip install '.[reference]'")
    keep_freed_memory()
    queries = unit_vectors(options.queries, options.width, seed=2)
    # Ascending, as the peak of an earlier size would hide that of a smaller one.
    results = {}
    for count in sorted(set(options.vectors)):
        results[count] = compare(queries, count, options.k, options.rounds)
    if options.json:
        print(json.dumps(results))
    else:
        show(results, options.queries, options.k)


if __name__ == "__main__":
    run_command(main)
