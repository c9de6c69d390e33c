"""A folder of shards: what its manifest says, and its vectors, for a search or copied to one file.

manifest.json     what the vectors are made from, and for each shard the hash of its texts and, once it is written, of
                  its file
shard-00017.npy   the vectors of texts 17 N to 18 N - 1, if a shard has N rows
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib.format import open_memmap

from minisbert.core import InputError, read_json, reading
from minisbert.corpus.index import differences, made_from, texts_hash
from minisbert.loading import Encoder
from minisbert.search.vector_files import write_header
from minisbert.search.vectors import Stacked
from minisbert.system.assets import file_hash
from minisbert.system.console import say
from minisbert.system.files import atomic_file, listed, write_json
from minisbert.system.progress import Bar

MANIFEST, MARK = "manifest.json", {"minisbert": "shards"}
COPIED = 2**22  # bytes at once


@dataclass
class Manifest:
    """What a folder of shards is made from, and which shards are complete."""

    folder: Path
    made: dict[
        str, str
    ]  # as ``made_from``, and the hash of the texts, rows of a shard, dtypes of the arithmetic and of the file
    rows: int
    shards: list[dict[str, str]]  # the hashes of each shard's "texts" and "file"; "" for a file that is not there yet

    @property
    def shard_rows(self) -> int:
        return int(self.made["shard_rows"])

    def path(self, shard: int) -> Path:
        return self.folder / f"shard-{shard:05}.npy"

    def shape(self, shard: int) -> tuple[int, int]:
        """(n, D) of a shard; the last one may have fewer rows."""
        return min(self.shard_rows, self.rows - shard * self.shard_rows), int(self.made["width"])

    def write(self) -> None:
        content = MARK | {"made": self.made, "rows": self.rows, "shards": self.shards}
        with atomic_file(self.folder / MANIFEST) as partial:
            write_json(partial, content)

    def note(self, shard: int) -> None:
        """Write the hash of a shard's file, which makes it count."""
        self.shards[shard]["file"] = file_hash(self.path(shard))
        self.write()

    def is_complete(self, shard: int) -> bool:
        """Whether a shard's file has the hash that was noted. Reports one that is damaged."""
        path, noted = self.path(shard), self.shards[shard]["file"]
        if not noted or not path.is_file():
            return False
        if file_hash(path) != noted:
            say(f"{path} is damaged or cut short: encoding it again")
            return False
        return True

    def load(self, shard: int) -> np.ndarray:
        """The vectors of a shard, mapped; ``InputError`` if its file has another shape, type or size."""
        path, fits = self.path(shard), False
        with suppress(InputError), reading(path):  # which error a damaged header raises depends on its bytes
            vectors = open_memmap(path, mode="r")
            size = vectors.offset + vectors.nbytes  # a longer file could be mapped, too
            fits = (vectors.shape, str(vectors.dtype)) == (self.shape(shard), self.made["dtype"])
            fits = fits and path.stat().st_size == size
        if not fits:
            raise InputError(f"{path} is damaged or cut short: run encode again, which replaces it")
        return vectors


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder, None if there is none; ``InputError`` for a damaged one."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    with suppress(LookupError, TypeError, ValueError, AttributeError):  # what a damaged one raises
        content = read_json(path)
        manifest = Manifest(folder, content["made"], content["rows"], content["shards"])
        manifest.made["prompt"]
        hashes = [(shard["texts"], shard["file"]) for shard in manifest.shards]
        sizes = [manifest.rows, manifest.shard_rows, manifest.shape(0)[1]]
        whole = all(type(size) is int and size > 0 for size in sizes) and np.dtype(manifest.made["dtype"]).kind == "f"
        if MARK.items() <= content.items() and whole and len(hashes) == -(-manifest.rows // manifest.shard_rows):
            return manifest
    raise InputError(f"{path} is damaged, or not the manifest of a folder of shards: choose another folder")


def existing_manifest(folder: Path) -> Manifest:
    """The manifest of a folder; ``InputError`` if there is none."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise InputError(f"{folder} is not a folder of shards, which encode --shard-rows writes: it has no {MANIFEST}")
    return manifest


def open_shards(manifest: Manifest) -> Stacked:
    """The vectors (N, D) of a complete folder, mapped; ``InputError`` for shards that are missing or do not fit."""
    count, before = len(manifest.shards), (manifest.folder / MANIFEST).stat()
    files = [manifest.path(shard) for shard in range(count)]
    missing = [
        file.name for file, shard in zip(files, manifest.shards, strict=True) if not (shard["file"] and file.is_file())
    ]
    if missing:
        raise InputError(
            f"{manifest.folder} lacks {len(missing):,} of {count:,} shards, {listed(missing)}: encode them first, with "
            f"--out {manifest.folder} --shard-rows {manifest.shard_rows} and the other options of the first run"
        )
    for shard in range(count):
        manifest.load(shard)

    def load(shard: int) -> np.ndarray:
        with reading(manifest.folder / MANIFEST):
            now = (manifest.folder / MANIFEST).stat()
        if (now.st_ino, now.st_mtime_ns) != (before.st_ino, before.st_mtime_ns):
            raise InputError(f"{manifest.folder} changed while it was being read: run this again once it is complete")
        return manifest.load(shard)

    counts = [manifest.shape(shard)[0] for shard in range(count)]
    return Stacked(load, counts, int(manifest.made["width"]), manifest.made["dtype"])


def shard_vectors(encoder: Encoder, texts: Sequence[str], folder: Path, prompt: str) -> Stacked:
    """The vectors of the texts in a folder of shards; ``InputError`` if they are others. They are never encoded here.

    They may be normalized or not, as a cosine ignores lengths, and of any precision, as that only rounds them.
    """
    manifest = existing_manifest(folder)
    changed = differences(manifest.made, made_from(encoder, prompt) | {"texts": texts_hash(texts)})
    if changed:
        raise InputError(f"{folder} was made with {changed}: give what it was made with, or encode to another folder")
    return open_shards(manifest)


def merge_shards(folder: Path, out: Path) -> tuple[int, int]:
    """Copy all shards to one ``.npy``, a few MiB in memory at a time, and check their hashes; the shape, (N, D).

    Raises ``InputError``, and writes nothing, if a shard is missing or does not have the hash that was noted.
    """
    manifest = existing_manifest(folder)
    shape = open_shards(manifest).shape
    with atomic_file(out) as partial, open(partial, "wb") as target:
        write_header(target, np.dtype(manifest.made["dtype"]), shape)
        for shard in Bar(range(len(manifest.shards)), desc=f"merging {folder}", unit=" shards"):
            path = manifest.path(shard)
            if copy_vectors(path, manifest.load(shard).offset, target) != manifest.shards[shard]["file"]:
                raise InputError(f"{path} is damaged or cut short: run encode again, which replaces it")
    return shape


def copy_vectors(path: Path, start: int, target: IO[bytes]) -> str:
    """Copy the vectors of a file, which begin at ``start``; the sha256 of the whole file."""
    with open(path, "rb") as stream:
        digest = hashlib.sha256(stream.read(start))
        while block := stream.read(COPIED):
            digest.update(block)
            target.write(block)
    return digest.hexdigest()
