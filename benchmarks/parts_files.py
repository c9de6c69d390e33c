"""What ``parts_speed`` measures without a model: merging parts beside copying them, and the first pass over a text."""

import gzip
import hashlib
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.peers import turns
from minisbert.core import InputError
from minisbert.corpus.shard_vectors import merge_shards
from minisbert.corpus.sharding import scan, write_shard
from minisbert.corpus.shards import Manifest, file_hash

Found = dict[str, dict[str, float]]  # the columns of a table by row
WIDTH, PARTS, CHUNK = 384, 7, 10_000  # of the random vectors; rows made at a time


def require(true: bool, words: str) -> None:
    if not true:
        raise InputError(f"nothing is reported, because {words}")


def random_rows(part: int, rows: int) -> Iterator[np.ndarray]:
    """The vectors of a part in chunks (n, D); the same ones at every call."""
    generator = np.random.default_rng(part)
    for start in range(0, rows, CHUNK):
        yield generator.standard_normal((min(CHUNK, rows - start), WIDTH), np.float32)


def write_parts(folder: Path, rows: int) -> list[Path]:
    """A complete folder of parts with random vectors, made by the functions that write real ones."""
    part_rows = -(-rows // PARTS)
    text = {"name": "none", "sha256": hashlib.sha256().hexdigest(), "bytes": 0, "rows": rows}
    place = {"offset": 0, "bytes": 0, "sha256": text["sha256"]}
    places = [place for _ in range(0, rows, part_rows)]
    manifest = Manifest(folder, text, "random", {"part_rows": part_rows}, WIDTH, "float32", places)
    folder.mkdir()
    manifest.write()
    for part in range(len(places)):
        write_shard(random_rows(part, manifest.shape(part)[0]), manifest, part)
    return [manifest.path(part) for part in range(len(places))]


def drop_from_cache(paths: Sequence[Path]) -> bool:
    """Let the next reading of these files come from the disk; False if this system cannot be asked to."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for path in paths:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def copy(paths: Sequence[Path], out: Path) -> None:
    """What ``cat`` does, to the disk."""
    with open(out, "wb") as target:
        for path in paths:
            with open(path, "rb") as source:
                shutil.copyfileobj(source, target, 2**22)
        target.flush()
        os.fsync(target.fileno())


def hash_all(paths: Sequence[Path]) -> None:
    for path in paths:
        with open(path, "rb") as file:
            hashlib.file_digest(file, "sha256")


def merge_speed(megabytes: int, rounds: int, place: Path) -> dict:
    """Megabytes a second of each side; checks the merged bytes."""
    rows = max(PARTS, megabytes * 10**6 // (4 * WIDTH))
    folder, out = place / "random", place / "merged.npy"
    paths = write_parts(folder, rows)
    sides: dict[str, Callable] = {
        "merge": lambda: merge_shards(folder, out),
        "copy": lambda: copy(paths, out),
        "hash alone": lambda: hash_all(paths),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _, name, run in turns(f"merge, {megabytes:,} MB", rounds, sides):
        dropped = drop_from_cache(paths)
        started = time.perf_counter()
        run()
        seconds[name].append(time.perf_counter() - started)
        if name == "merge":
            check_merged(out, rows, -(-rows // PARTS))
        out.unlink(missing_ok=True)
    moved = sum(path.stat().st_size for path in paths) / 1e6
    speeds = {name: {"megabytes_per_second": moved / statistics.median(times)} for name, times in seconds.items()}
    return {"megabytes": moved, "parts": len(paths), "cache_dropped": dropped, "sides": speeds, "seconds": seconds}


def check_merged(out: Path, rows: int, part_rows: int) -> None:
    merged, row = np.load(out, mmap_mode="r"), 0
    require(merged.shape == (rows, WIDTH), f"the merged file has shape {merged.shape}")
    for part in range(-(-rows // part_rows)):
        for chunk in random_rows(part, min(part_rows, rows - row)):
            require(np.array_equal(merged[row : row + len(chunk)], chunk), f"part {part} was merged to other numbers")
            row += len(chunk)


def scan_speed(texts: list[str], part_rows: int, megabytes: int, rounds: int, place: Path) -> Found:
    """Seconds for 1e9 bytes of text, plain and compressed; checks hash and number of rows."""
    block = "".join(f"{text}\n" for text in texts).encode()
    times = max(1, megabytes * 10**6 // len(block))
    plain, packed, digest = place / "long.txt", place / "long.txt.gz", hashlib.sha256()
    with open(plain, "wb") as file, gzip.open(packed, "wb", compresslevel=6) as compressed:
        for _ in range(times):
            file.write(block)
            compressed.write(block)
            digest.update(block)
    ways: dict[str, Callable] = {"first pass": lambda path: scan(path, part_rows), "hash alone": file_hash}
    sides = {f"{way}, {path.suffix}": (way, path) for path in (plain, packed) for way in ways}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _, name, (way, path) in turns("first pass", rounds, sides):
        started = time.perf_counter()
        found = ways[way](str(path))
        seconds[name].append(time.perf_counter() - started)
        source = found[0] if way == "first pass" else {"sha256": found, "rows": len(texts) * times}
        require(source["sha256"] == digest.hexdigest(), f"{name} found another hash")
        require(source["rows"] == len(texts) * times, f"{name} found {source['rows']:,} rows")
    size = len(block) * times / 1e9
    return {name: {"seconds_per_gigabyte": statistics.median(runs) / size} for name, runs in seconds.items()}
