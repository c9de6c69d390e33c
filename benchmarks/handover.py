"""Where exact search ends: minisbert's vectors handed to faiss and hnswlib, compared with its own exact search.

    python -m benchmarks.handover --file sentences.txt.gz                   10,000 and 100,000 vectors
    python -m benchmarks.handover --file sentences.txt.gz nli.jsonl.gz --vectors 10000 100000 1000000
    python -m benchmarks.handover --file sentences.txt.gz --keep vectors    encoded once, used again

The distinct sentences of all files, .txt or SNLI's .jsonl, in random order: the first 1,000 are the queries, those
after them the corpus. ``minisbert encode`` makes one file of them, and every side gets its rows by memory map, block by
block. Random vectors are never used: they have no near
neighbours, and every index looks worse on them. If there are fewer sentences than N, the last table is of all of them.

build    seconds to add all vectors, for IVF with finding its lists
MB       of the saved index, which is about what it takes in memory; of the exact search, of its file
queries  1,000 of them at once, with as many threads as torch, the median of rounds in which all sides take turns
one, ms  a query by itself, the median of 50
recall   how many of the k nearest of ``search.dense.top_k`` are among the k found

A graph (HNSW) has 32 neighbours a vector and 200 candidates while it is built; ``ef`` is the candidates of a query. IVF
has 4 sqrt(N) lists, of 39 vectors or more; ``nprobe`` is how many a query reads. A library not installed is left out.
``benchmarks/indexes.py`` builds the indexes.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import machine
from benchmarks.encode_speed import table
from benchmarks.indexes import Search, installed, sides_of
from benchmarks.peers import turns
from minisbert.core import InputError
from minisbert.data.datasets import load_labelled
from minisbert.data.formats import NLI
from minisbert.data.lines import every_text
from minisbert.system.console import bounded, run_command, say

SIZES, QUERIES, K, ROUNDS = (10_000, 100_000), 1000, 10, 3
ALONE = 50  # queries that are timed one by one


# ------------------------------------------------------------------------------------------ vectors


def sentences(files: Sequence[str], seed: int = 0) -> list[str]:
    """The distinct sentences of all files, in random order."""
    found: list[str] = []
    for file in files:
        if ".jsonl" in Path(file).suffixes:
            found += [text for pair in load_labelled(file, NLI).rows for text in (pair.sentence1, pair.sentence2)]
        else:
            found += list(every_text(file))
    distinct = [text for text in dict.fromkeys(" ".join(text.split()) for text in found) if text]
    random.Random(seed).shuffle(distinct)
    return distinct


def encode(texts: Sequence[str], model: str, folder: Path) -> np.ndarray:
    """Vectors (N, D) of length 1, by the command; of the same texts, in a folder that is kept, only once."""
    folder.mkdir(parents=True, exist_ok=True)
    text, out = folder / "texts.txt", folder / f"{Path(model).name}.npy"
    lines = "".join(f"{line}\n" for line in texts)
    if not out.is_file() or text.read_text(encoding="utf-8") != lines:
        text.write_text(lines, encoding="utf-8")
        command = [sys.executable, "-m", "minisbert", "encode", "--file", str(text), "--out", str(out)]
        if subprocess.run([*command, "--model", model, "--normalize"], stdout=sys.stderr).returncode:
            raise InputError("encoding failed; nothing is measured")
    return np.load(out, mmap_mode="r")


# -------------------------------------------------------------------------------------- measurement


def recall(found: np.ndarray, expected: np.ndarray) -> float:
    """The share of the expected indices (Q, k) that are found in the same row; -1 stands for no result.

    ``found [[4, 2, -1]]``, ``expected [[2, 4, 7]]``: 2 of 3.
    """
    return float(np.mean([np.isin(row, other).mean() for row, other in zip(expected, found, strict=True)]))


def alone(search: Search, queries: np.ndarray) -> float:
    """The median milliseconds of one query."""
    times = []
    for row in range(min(ALONE, len(queries))):
        started = time.perf_counter()
        search(queries[row : row + 1])
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


def measure(queries: np.ndarray, corpus: np.ndarray, k: int, rounds: int, libraries: Sequence[str]) -> dict:
    """The machine, and every column of the table by side and setting."""
    queries = np.asarray(queries, dtype=np.float32)
    expected, found, searches = None, {}, {}
    for name, make in sides_of(libraries).items():
        say(f"{len(corpus):,} vectors: building {name}")
        started = time.perf_counter()
        side = make(corpus, k)
        built, size = time.perf_counter() - started, corpus.nbytes
        if side.save:
            with tempfile.TemporaryDirectory() as folder:
                side.save(f"{folder}/index")
                size = Path(folder, "index").stat().st_size
        for setting, search in side.searches.items():
            label = f"{name}, {setting}" if setting else name
            indices = search(queries)
            expected = indices if expected is None else expected
            check(label, indices, len(corpus))
            searches[label] = search
            build = built if side.save else 0.0
            found[label] = {"build": build, "bytes": size, "recall": recall(indices, expected)}
    measured, seconds = machine.measure(), {label: [] for label in searches}
    for _, label, search in turns(f"{len(corpus):,} vectors", rounds, searches):
        started = time.perf_counter()
        search(queries)
        seconds[label].append((time.perf_counter() - started) * 1000 / len(queries))
    for label, search in searches.items():
        found[label] |= {"seconds": statistics.median(seconds[label]), "alone": alone(search, queries)}
    return {"machine": measured, "sides": found}


def check(name: str, indices: np.ndarray, count: int) -> None:
    """Raise ``InputError`` unless each row has different rows of the corpus; -1 is no result, which lowers recall."""
    rows = [row[row >= 0] for row in indices]
    if indices.max() >= count or any(len(np.unique(row)) < len(row) for row in rows):
        raise InputError(f"{name} returned indices that no corpus of {count:,} has, or one twice")


def show(results: dict[int, dict], k: int) -> None:
    for count, found in results.items():
        rows = {
            name: (
                f"{row['build']:.1f}" if row["build"] else "-",
                f"{row['bytes'] / 1e6:,.0f}",
                f"{row['seconds']:.2f}",
                f"{row['alone']:.2f}",
                f"{row['recall']:.3f}",
            )
            for name, row in found["sides"].items()
        }
        columns = ["build, s", "MB", "1,000 queries, s", "one, ms", "recall"]
        table(f"the {k} nearest", found, columns, rows, corner=f"{count:,} vectors")


def sizes_that_fit(wanted: Sequence[int], rows: int) -> list[int]:
    """The sizes in ascending order; those beyond ``rows`` become one of all rows, which is said."""
    fitting = sorted({size for size in wanted if size <= rows})
    if missing := sorted({*wanted} - {*fitting}):
        say(f"only {rows:,} sentences: they stand for {' and '.join(f'{size:,}' for size in missing)} vectors")
        fitting += [rows] if rows not in fitting else []
    return fitting


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.handover",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    at_least_1 = bounded(int, 1)
    parser.add_argument("--file", nargs="+", required=True, metavar="F", help=".txt, SNLI's .jsonl, or their .gz")
    parser.add_argument("--vectors", nargs="+", type=at_least_1, default=SIZES, metavar="N", help="10000 100000")
    parser.add_argument("--queries", type=at_least_1, default=QUERIES, help="default: %(default)s")
    parser.add_argument("--k", type=at_least_1, default=K, help="results per query (default: %(default)s)")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="name or folder (default: %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the vectors there (default: a temporary folder)")
    parser.add_argument("--rounds", type=at_least_1, default=ROUNDS, help="number of rounds (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    libraries, texts = installed(), sentences(options.file)
    if len(texts) < options.queries + options.k:
        raise InputError(f"{len(texts):,} distinct sentences: fewer than {options.queries:,} queries and {options.k}")
    sizes = sizes_that_fit(options.vectors, len(texts) - options.queries)
    with tempfile.TemporaryDirectory() as temporary:
        vectors = encode(texts[: options.queries + sizes[-1]], options.model, options.keep or Path(temporary))
        queries, corpus = vectors[: options.queries], vectors[options.queries :]
        results = {n: measure(queries, corpus[:n], options.k, options.rounds, libraries) for n in sizes}
    if options.json:
        print(json.dumps(results))
    else:
        show(results, options.k)


if __name__ == "__main__":
    run_command(main)
