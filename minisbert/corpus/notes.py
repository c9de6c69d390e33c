"""Whose are the files in a folder of shards? A note beside each vector file has its hash and claims it as ours.

What neither the manifest lists nor a note claims belongs to somebody else, and is never replaced or removed.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from minisbert.core import InputError, one_line, read_json
from minisbert.corpus.manifest import MANIFEST, Manifest
from minisbert.system.console import say
from minisbert.system.files import LITTER, listed, lock, recover

OWN = (MANIFEST, f".{MANIFEST}.partial-*", ".part-*.partial-*", ".rank-*.lock", *LITTER)
NAME = re.compile(r"part-(\d{5}|[1-9]\d{5,})\.(npy|json)")


def read_note(path: Path) -> dict[str, Any] | None:
    """The note of a shard's file; None if it is missing or damaged, or a file of somebody else."""
    path = path.with_suffix(".json")
    try:
        note = read_json(path) if path.is_file() else {}  # a pipe would wait for a writer
    except InputError:
        return None
    return note if {"sha256", "manifest"} <= note.keys() else None


def noted_hash(folder: Path, manifest: Manifest, shard: int) -> str | None:
    """The hash that was noted for a shard's file; None if there is none, or one of another manifest or shard."""
    note = read_note(manifest.path(folder, shard))
    if note is None or note["manifest"] != manifest.identity or note.get("part", shard) != shard:
        return None
    return note["sha256"]


def noted_hashes(folder: Path, manifest: Manifest) -> list[str]:
    """The hash that was noted for each shard's file; ``InputError`` names the shards that are missing."""
    paths = [manifest.path(folder, shard) for shard in range(len(manifest.parts))]
    notes = [noted_hash(folder, manifest, shard) for shard in range(len(paths))]
    if lacking := [path.name for path, note in zip(paths, notes, strict=True) if note is None or not path.is_file()]:
        raise InputError(
            f"{folder} lacks {len(lacking):,} of {len(paths):,} shards, {listed(lacking)}: encode them first, with "
            f"python -m minisbert.encode --file {one_line(manifest.input['name'])} --out {folder} "
            f"--shard-rows {manifest.options['part_rows']} and the other options of the first run"
        )
    return notes


def is_intact(folder: Path, manifest: Manifest, shard: int) -> bool:
    """Is a shard's file there, with the hash that was noted? Reports one that is damaged."""
    path, noted = manifest.path(folder, shard), noted_hash(folder, manifest, shard)
    if noted is None or not path.is_file():
        return False
    if hash_of(path) == noted:
        return True
    say(f"{path} is damaged or cut short: encoding it again")
    return False


def hash_of(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_foreign(folder: Path, before: Manifest | None, count: int = 0) -> None:
    """Raise ``InputError`` if the folder has files of somebody else where the first ``count`` shards are written.

    Ours are the shards of the manifest ``before``, and what a note claims. Without a manifest nothing else may be
    there.
    """
    foreign = []
    for path in folder.iterdir() if folder.is_dir() else ():
        name = NAME.fullmatch(path.name)
        if before and not (name and len(before.parts) <= int(name[1]) < count):
            continue
        if not any(fnmatchcase(path.name, own) for own in OWN) and not (name and read_note(path)):
            foreign.append(path.name)
    if foreign:
        raise InputError(
            f"{folder} is not a folder of shards: it holds {listed(sorted(foreign))}, which encode did not write; "
            "choose another --out"
        )


def clean_up(folder: Path, count: int, rank: int, size: int) -> None:
    """Remove what killed processes were writing, and this rank's shards from ``count`` on, of a manifest replaced."""
    for path in folder.glob(".*.partial-*"):
        recover(folder / path.name[1:].rpartition(".partial-")[0])
    for path in folder.glob("part-*.json"):
        name, note, vectors = NAME.fullmatch(path.name), read_note(path), path.with_suffix(".npy")
        if name and note and int(name[1]) >= count and int(name[1]) % size == rank:
            if vectors.is_file() and hash_of(vectors) == note["sha256"]:
                vectors.unlink(missing_ok=True)
            if not vectors.exists():
                path.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path, rank: int) -> Iterator[None]:
    """Keep a second process from encoding the same rank's shards; raises ``InputError`` in that process.

    A new folder is removed again if no manifest has been written to it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".rank-{rank:05}.lock"
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a file that can be locked: remove it")
    with open(path, "a") as file:
        try:
            lock(file)
        except BlockingIOError as error:
            raise InputError(
                f"{folder}: another process is encoding as rank {rank} there; wait for it to finish or stop it"
            ) from error
        try:
            yield
        finally:
            remove_unused(folder, path)


def remove_unused(folder: Path, path: Path) -> None:
    """Remove the lock and the folder if no manifest has been written."""
    with suppress(OSError):  # other ranks' locks are there, or this system removes no open files
        if not (folder / MANIFEST).exists():
            path.unlink()
            folder.rmdir()
