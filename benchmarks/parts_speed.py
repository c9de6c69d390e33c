"""Encoding in parts: two processes beside one, merging beside copying, the memory of a rank, the first pass.

    python -m benchmarks.parts_speed                                  everything, some ten minutes, 4 GB of disk
    python -m benchmarks.parts_speed --what processes --rows 50000 --file sentences.txt.gz --rounds 5
    python -m benchmarks.parts_speed --what merge --place /mnt/disk --megabytes 4000

processes  the same file by two processes of one thread and by one of two threads, in alternation: seconds from the
           start to the end of the last process, and of the same on a file of one row for each, which is the start-up
merge      ``merge_shards`` of a folder of random vectors beside a copy of the same files, and beside their hash
           alone, which merging also computes: megabytes a second. Before each, the parts are dropped from the cache of
           the file system; what is written counts once it is on the disk
memory     peak MiB of rank 0 of two, and of encoding to one ``.npy``, on a quarter of the rows and on all
scan       seconds for a GB of text: the first pass, which checks, splits and hashes it, and the hash alone, which is
           what a later start needs; from a plain file and from a ``.gz``, whose GB counts after decompression

Times are medians of rounds in which all sides take turns. Every output is checked: all vectors are there, those of
different processes and threads are equal within 2e-6, the merged file has the bytes that were written to the parts.
"""

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks import machine
from benchmarks.parts_files import Found, merge_speed, require, scan_speed
from benchmarks.peers import turns
from benchmarks.stream_memory import short_texts
from minisbert.corpus.shard_vectors import merge_shards
from minisbert.data.texts import read_texts
from minisbert.system.console import bounded, run_command, say

KINDS = ("processes", "merge", "memory", "scan")
SAME = 2e-6  # between vectors that other threads computed: the tolerance for unit vectors in float32
CHUNK = 10_000  # rows compared at a time
# subtle: a process's peak begins with that of the process that started it, so one that is small stands in between
SMALL_PARENT = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(done.returncode)
"""


# ---------------------------------------------------------------------------------------- processes


def encode_command(model: str, file: Path, out: Path, part_rows: int | None, threads: int) -> list[str]:
    command = [sys.executable, "-m", "minisbert", "encode", "--model", model, "--device", "cpu", "--file", str(file)]
    parts = ["--part-rows", str(part_rows)] if part_rows else []
    return [*command, "--out", str(out), *parts, "--threads", str(threads)]


def environment(rank: int = 0, size: int = 1) -> dict[str, str]:
    """This process's, with another rank; none for a process alone."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return kept | ({"RANK": str(rank), "WORLD_SIZE": str(size)} if size > 1 else {})


def seconds_of(command: list[str], size: int) -> float:
    """From the start of ``size`` processes, all at once, to the end of the last."""
    output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    started = time.perf_counter()
    running = [subprocess.Popen(command, env=environment(rank, size), **output) for rank in range(size)]
    errors = [process.communicate()[1] for process in running]
    seconds = time.perf_counter() - started
    for process, error in zip(running, errors, strict=True):
        require(process.returncode == 0, f"an encoding failed: {error}")
    return seconds


def processes(model: str, texts: list[str], part_rows: int, size: int, rounds: int, place: Path) -> dict:
    """Seconds of every run, medians, and the ratios of several processes to one; checks all vectors."""
    rows, file, few = len(texts), place / "texts.txt", place / "few.txt"
    write_lines(file, texts)
    write_lines(few, texts[:size])
    shapes = {f"{size} x 1 thread": (size, 1), f"1 x {size} threads": (1, size)}
    sides = {f"{name}, {what}": (name, what) for what in ("start", "all") for name in shapes}
    seconds: dict[str, dict[str, list[float]]] = {name: {"start": [], "all": []} for name in shapes}
    merged: dict[str, Path] = {}
    for _, _, (name, what) in turns("processes", rounds, sides):
        out, (count, threads) = place / "parts", shapes[name]
        source, height = (file, part_rows) if what == "all" else (few, 1)
        seconds[name][what].append(seconds_of(encode_command(model, source, out, height, threads), count))
        if what == "all":
            now, path = place / "merged.npy", place / f"{count}.npy"
            require(merge_shards(out, now)[0] == rows, f"{name} wrote another number of vectors than {rows:,}")
            require(name not in merged or same_bytes(now, path), f"{name} wrote other bytes in another round")
            merged[name] = now.replace(path)
        shutil.rmtree(out)
    one, other = (np.load(path, mmap_mode="r") for path in merged.values())
    difference = float(max(abs(one[i : i + CHUNK] - other[i : i + CHUNK]).max() for i in range(0, rows, CHUNK)))
    require(difference <= SAME, f"the vectors of several processes and of one differ by {difference:.0e}")
    sides = {name: {what: statistics.median(times) for what, times in runs.items()} for name, runs in seconds.items()}
    several, single = sides.values()
    ratios = {
        "with_start": several["all"] / single["all"],
        "without_start": (several["all"] - several["start"]) / (single["all"] - single["start"]),
    }
    checked = {"rows": rows, "part_rows": part_rows, "difference": difference}
    return checked | {"sides": sides, "ratio": ratios, "runs": seconds}


def same_bytes(one: Path, other: Path) -> bool:
    with open(one, "rb") as first, open(other, "rb") as second:
        return hashlib.file_digest(first, "sha256").digest() == hashlib.file_digest(second, "sha256").digest()


# ------------------------------------------------------------------------------------------- memory


def peak_of(command: list[str], size: int) -> float:
    """The peak memory in MiB of a command, as rank 0 of ``size``."""
    command = [sys.executable, "-c", SMALL_PARENT, *command]
    done = subprocess.run(command, env=environment(0, size), capture_output=True, text=True)
    require(done.returncode == 0, f"an encoding failed: {done.stderr}")
    return int(done.stdout) / (2**20 if sys.platform == "darwin" else 2**10)  # bytes on macOS, KiB elsewhere


def memory(model: str, texts: list[str], part_rows: int, place: Path) -> Found:
    """Peak MiB of both ways, one thread each, by number of rows; checks that the vectors are there."""
    found: Found = {"rank 0 of 2, parts": {}, "one .npy": {}}
    for count in (len(texts) // 4, len(texts)):
        file, out, one = place / f"{count}.txt", place / "ranks", place / "one.npy"
        write_lines(file, texts[:count])
        found["rank 0 of 2, parts"][str(count)] = peak_of(encode_command(model, file, out, part_rows, 1), 2)
        found["one .npy"][str(count)] = peak_of(encode_command(model, file, one, None, 1), 1)
        vectors = np.load(one, mmap_mode="r")
        require(len(vectors) == count, f"one.npy has {len(vectors):,} rows, not {count:,}")
        for part in range(0, -(-count // part_rows), 2):
            rows, path = vectors[part * part_rows : (part + 1) * part_rows], out / f"part-{part:05}.npy"
            require(abs(np.load(path) - rows).max() <= SAME, f"{path.name} has other vectors than one.npy")
        shutil.rmtree(out)
    return found


def write_lines(path: Path, texts: Sequence[str]) -> None:
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


# ------------------------------------------------------------------------------------------- output


def show(found: dict) -> None:
    print(machine.lines(found["machine"]))
    if "processes" in found:
        part = found["processes"]
        print(f"\n{part['rows']:,} rows in parts of {part['part_rows']:,}, {found['model']}\n")
        print("| | seconds | start | texts a second | without the start |\n|---|---|---|---|---|")
        for name, row in part["sides"].items():
            rates = part["rows"] / row["all"], part["rows"] / (row["all"] - row["start"])
            print(f"| {name} | {row['all']:.1f} | {row['start']:.1f} | {rates[0]:,.0f} | {rates[1]:,.0f} |")
        ratio = part["ratio"]
        print(f"\nratio of the seconds {ratio['with_start']:.3f}, without the start {ratio['without_start']:.3f}")
        print(f"largest difference of two vectors {part['difference']:.0e}")
    if "merge" in found:
        part = found["merge"]
        cache = "from the disk" if part["cache_dropped"] else "from the cache of the file system"
        print(f"\n{part['megabytes']:,.0f} MB in {part['parts']} parts, read {cache}\n\n| | MB a second |\n|---|---|")
        for name, row in part["sides"].items():
            print(f"| {name} | {row['megabytes_per_second']:,.0f} |")
    if "memory" in found:
        columns = list(next(iter(found["memory"].values())))
        print(f"\npeak MiB\n\n| rows | {' | '.join(f'{int(n):,}' for n in columns)} |\n|---|{'---|' * len(columns)}")
        for name, row in found["memory"].items():
            print(f"| {name} | {' | '.join(f'{value:,.0f}' for value in row.values())} |")
    if "scan" in found:
        print("\n| | seconds for a GB of text |\n|---|---|")
        for name, row in found["scan"].items():
            print(f"| {name} | {row['seconds_per_gigabyte']:.1f} |")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.parts_speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    at_least_1 = bounded(int, 1)
    parser.add_argument("--what", nargs="+", choices=KINDS, default=KINDS, help="what to measure (default: all)")
    parser.add_argument("--file", help="one text per line, .txt or .txt.gz (default: from sentences of STS-B)")
    parser.add_argument("--rows", type=bounded(int, 4), default=20_000, help="number of texts (default: %(default)s)")
    parser.add_argument("--parts", type=at_least_1, default=8, help="number of parts (default: %(default)s)")
    parser.add_argument("--processes", type=bounded(int, 2), default=2, metavar="W", help="default: %(default)s")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="name or folder (default: %(default)s)")
    parser.add_argument("--rounds", type=at_least_1, default=3, help="number of rounds (default: %(default)s)")
    parser.add_argument("--megabytes", type=at_least_1, default=1000, help="to merge (default: %(default)s)")
    parser.add_argument("--text-megabytes", type=at_least_1, default=200, help="to scan (default: %(default)s)")
    parser.add_argument("--place", type=Path, help="a folder on the disk to use (default: the temporary folder)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    count = options.rows
    texts = read_texts(options.file, count)[0] if options.file else list(islice(short_texts(count), count))
    if len(texts) < count:
        say(f"{options.file}: {len(texts):,} rows, fewer than {count:,}; all are taken")
    part_rows = -(-len(texts) // options.parts)
    found: dict = {"model": options.model, "machine": machine.measure()}
    with tempfile.TemporaryDirectory(dir=options.place) as name:
        place, rounds = Path(name), options.rounds
        if "processes" in options.what:
            found["processes"] = processes(options.model, texts, part_rows, options.processes, rounds, place)
        if "merge" in options.what:
            found["merge"] = merge_speed(options.megabytes, rounds, place)
        if "memory" in options.what:
            found["memory"] = memory(options.model, texts, part_rows, place)
        if "scan" in options.what:
            found["scan"] = scan_speed(texts, part_rows, options.text_megabytes, rounds, place)
    if options.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    run_command(main)
