"""A folder of shards: its files, whose they are, and what they were made from.

manifest.json       the input with its hash, the model's hash, every option that changes a vector, the shards' places
part-00017.npy      the vectors of rows 17 N to 18 N - 1 of the input, if a shard has N rows
part-00017.json     its note: its number, the hash of that file and of the manifest; written after it
.rank-00003.lock    locked while rank 3 encodes

The texts are those of the file after decompression, so a file and its ``.gz`` have the same hash and offsets.
``sharding.py`` writes such a folder, ``shard_vectors.py`` reads its vectors.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from minisbert.core import InputError, one_line, read_json
from minisbert.data.rows import open_texts
from minisbert.system.files import LITTER, atomic_file, listed, lock, recover, write_json

MANIFEST, MARK = "manifest.json", {"minisbert": "parts", "version": 1}


@dataclass(frozen=True)
class Manifest:
    """What a folder of shards is made from. Equal manifests have equal ``identity``, for an input of any name."""

    folder: Path
    input: dict[str, Any]  # name, sha256, bytes and rows of the text, in newer ones a hash of its lines
    model: str  # hash, see corpus/hashes.py
    options: dict[str, Any]  # part_rows and every option that changes a vector
    width: int
    dtype: str
    parts: list[dict[str, Any]]  # offset, bytes and sha256 of each shard's text

    @property
    def name(self) -> str:
        return one_line(self.input.get("name", "the input"))

    @property
    def content(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("folder", "identity")}

    @cached_property
    def identity(self) -> str:
        about = self.content | {"input": {key: value for key, value in self.input.items() if key != "name"}}
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

    def is_consistent(self) -> bool:
        """Do the numbers have the right types, and do they fit each other?"""
        rows, size = self.input["rows"], self.options["part_rows"]
        counts, places = [rows, size, self.width], [part[key] for part in self.parts for key in ("offset", "bytes")]
        whole = all(type(n) is int for n in counts + places) and min(counts) > 0 and min(places) >= 0
        return whole and len(self.parts) == -(-rows // size) and np.dtype(self.dtype).kind == "f"

    def write(self) -> None:
        with atomic_file(self.folder / MANIFEST) as partial:
            write_json(partial, MARK | {"sha256": self.identity} | self.content)

    def check_current(self) -> None:
        """Raise ``InputError`` if there is another manifest in the folder, or none."""
        current = read_manifest(self.folder)
        if current is None or current.identity != self.identity:
            raise InputError(f"{self.folder / MANIFEST} was replaced by another run: run this again")

    def changed_options(self, model: str, options: dict[str, Any]) -> list[str]:
        """The options, by name, that differ from those of the folder, and whether the model does."""
        changed = [
            f"{name.replace('part_', 'shard_')} {one_line(self.options.get(name))}, not {one_line(value)}"
            for name, value in options.items()
            if self.options.get(name) != value
        ]
        if self.model != model and not any(name.startswith(("pooling ", "max_length ")) for name in changed):
            changed.append("another model")  # its hash covers these two options
        return changed

    def check_unchanged(self, changed: list[str], remedy: str) -> None:
        """Raise ``InputError`` if something differs from what the folder was made with."""
        if changed:
            what = f"{self.folder} was made from {self.name} with {'; '.join(changed)}"
            raise InputError(f"{what}: give what it was made with, or {remedy}")

    def path(self, shard: int) -> Path:
        return self.folder / f"part-{shard:05}.npy"

    def shape(self, shard: int) -> tuple[int, int]:
        """(n, D) of a shard; the last one may have fewer rows."""
        rows = self.options["part_rows"]
        return min(rows, self.input["rows"] - shard * rows), self.width

    def noted_hash(self, shard: int) -> str | None:
        """The hash that was noted for a shard's file; None if that or the note is missing or belongs elsewhere."""
        note = read_note(self.path(shard))
        own = note.get("manifest") == self.identity and note.get("part", shard) == shard  # older notes have no number
        return note["sha256"] if own and self.path(shard).is_file() else None

    def vectors_start(self, shard: int) -> int:
        """The byte at which a shard's vectors begin; ``InputError`` if its file has another shape, type or size."""
        path, expected = self.path(shard), (self.shape(shard), np.dtype(self.dtype))
        try:
            vectors = open_memmap(path, mode="r")
            size = vectors.offset + vectors.nbytes  # a longer file could be mapped, too
            fits = (vectors.shape, vectors.dtype) == expected and path.stat().st_size == size
        except OSError:
            raise
        except Exception:  # ValueError for a short file; for a damaged header also what its parser raises
            fits = False
        if not fits:
            raise InputError(f"{path} is damaged or cut short: run encode again, which replaces it")
        return vectors.offset


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder; None if there is none yet. Raises ``InputError`` for a damaged one."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    with suppress(LookupError, TypeError, ValueError):  # what a damaged one raises
        content = read_json(path)
        names = list(Manifest.__dataclass_fields__)[1:]
        found = Manifest(folder, **{name: content[name] for name in names})
        if MARK.items() <= content.items() and found.is_consistent() and content["sha256"] == found.identity:
            return found
    raise InputError(
        f"{path} is damaged, or not the manifest of a folder of shards of version {MARK['version']}: choose another "
        "folder, or remove it and run encode again, which keeps the intact shards"
    )


def complete_manifest(folder: Path) -> Manifest:
    """The manifest of a folder; ``InputError`` unless all shards are there and have the right shape, type and size.

    Their hashes are not computed: that would read every byte before each search. ``encode`` and ``merge`` do it.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise InputError(f"{folder} is not a folder of shards, which encode --shard-rows writes: it has no {MANIFEST}")
    shards = range(len(manifest.parts))
    if lacking := [manifest.path(shard).name for shard in shards if manifest.noted_hash(shard) is None]:
        raise InputError(
            f"{folder} lacks {len(lacking):,} of {len(shards):,} shards, {listed(lacking)}: encode them first, with "
            f"minisbert encode --file {manifest.name} --out {folder} "
            f"--shard-rows {manifest.options['part_rows']} and the other options of the first run"
        )
    for shard in shards:
        manifest.vectors_start(shard)
    return manifest


def read_note(path: Path) -> dict[str, Any]:
    """The note of a shard's file; empty if it is missing or damaged, or a file of another program."""
    path, note = path.with_suffix(".json"), {}
    with suppress(InputError):
        note = read_json(path) if path.is_file() else {}  # a pipe would wait for a writer
    return note if {"sha256", "manifest"} <= note.keys() else {}


def check_foreign(folder: Path, before: Manifest | None, count: int = 0) -> None:
    """Raise ``InputError`` if files of other programs would be replaced by the first ``count`` shards.

    The shards of the manifest ``before`` and those with a note are ours. Without a manifest the folder must hold
    nothing else but hidden files.
    """
    paths = [path for path in folder.glob("[!.]*") if path.name not in (MANIFEST, *LITTER)]
    if before:
        new = {before.path(shard).stem for shard in range(len(before.parts), count)}
        paths = [path for path in paths if path.stem in new and path.suffix in (".npy", ".json")]
    if foreign := sorted(path.name for path in paths if not read_note(path)):
        raise InputError(
            f"{folder} is not a folder of shards: it holds {listed(foreign)}, which encode did not write; "
            "choose another --out"
        )


def clean_up(manifest: Manifest) -> None:
    """Remove what killed processes were writing, and shards of a manifest that was replaced and had more of them."""
    for path in manifest.folder.glob(".*.partial-*"):
        recover(manifest.folder / path.name[1:].rpartition(".partial-")[0])
    current = {manifest.path(shard) for shard in range(len(manifest.parts))}
    for path in manifest.folder.glob("part-*.json"):
        if path.with_suffix(".npy") not in current and read_note(path):
            path.with_suffix(".npy").unlink(missing_ok=True)
            path.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path, rank: int) -> Iterator[None]:
    """Keep a second process from encoding the same rank's shards; raises ``InputError`` in that process."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".rank-{rank:05}.lock"
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


def file_hash(path: str | Path) -> str:
    """sha256 of a file, of a ``.gz`` after decompression."""
    with open_texts(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def lines_hash(path: str) -> str:
    """sha256 of the lines of a file: CRLF, blank lines and a byte order mark do not count."""
    digest = hashlib.sha256()
    with open_texts(path) as stream:
        for number, line in enumerate(stream):
            digest.update(plain_line(line, first=number == 0))
    return digest.hexdigest()


def plain_line(line: bytes, first: bool) -> bytes:
    """A line as ``lines_hash`` counts it: with LF at its end, without a byte order mark, nothing if it is blank."""
    text = (line.removeprefix(b"\xef\xbb\xbf") if first else line).rstrip(b"\r\n")
    return text + b"\n" if text.strip() else b""
