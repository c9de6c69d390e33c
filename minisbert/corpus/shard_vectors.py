"""The vectors in a folder of shards: for a search in place of an index, or copied to one file.

For a search, the folder must be complete and belong to the text and the model in use: nothing is encoded here.
"""

import hashlib
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from minisbert.core import InputError, reading
from minisbert.corpus.hashes import model_hash
from minisbert.corpus.shards import Manifest, complete_manifest, file_hash, lines_hash
from minisbert.corpus.vectors import write_header
from minisbert.models.prompts import choose_prompt
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search.vectors import Stacked
from minisbert.system.console import Bar
from minisbert.system.files import atomic_file

COPIED = 2**22  # bytes at once


def find_shards(folder: Path, file: str, count: int) -> Manifest:
    """The manifest of a complete folder of shards of ``file``, in which ``count`` texts were found.

    Raises ``InputError`` for shards of another text. The model is not needed, so this comes before it is loaded.
    """
    manifest = complete_manifest(folder)
    rows = manifest.input["rows"]
    same = file_hash(file) == manifest.input["sha256"] or lines_hash(file) == manifest.input.get("lines")
    changed = [] if same and count == rows else [f"another text of {rows:,} lines"]
    manifest.check_unchanged(changed, encode_again(manifest, file))
    return manifest


def encode_again(manifest: Manifest, file: str) -> str:
    """What to do: shards that do not fit are neither encoded nor replaced by a search."""
    return (
        f"encode to another folder: minisbert encode --file {file} --out FOLDER --shard-rows "
        f"{manifest.options['part_rows']}, with the same model and options as this search"
    )


@contextmanager
def open_shards(manifest: Manifest, file: str, encoder: SentenceEncoder, prompt: str | None) -> Iterator[Stacked]:
    """The vectors (N, D) of shards.

    Raises ``InputError`` for shards that this model would not have made with this prompt; they may be normalized or
    not, as a cosine ignores lengths, and of any precision, as that only rounds them. Also raises it at the end of the
    block if a shard or the manifest has changed since.
    """
    prompt = choose_prompt(encoder.settings, prompt)
    options = {"pooling": encoder.pooling_mode, "max_length": encoder.tokenizer.limit, "prompt": prompt}
    width = min(encoder.settings.truncate_dim or encoder.width, encoder.width)
    changed = manifest.changed_options(model_hash(encoder, ""), options)
    changed += [f"width {manifest.width}, not {width}"] * (manifest.width != width)
    manifest.check_unchanged(changed, encode_again(manifest, file))
    before, counts = stamps(manifest), [manifest.shape(shard)[0] for shard in range(len(manifest.parts))]
    yield Stacked(lambda shard: ShardFile(manifest, shard), counts, manifest.width, manifest.dtype)
    manifest.check_current()
    if stamps(manifest) != before:
        raise InputError(f"{manifest.folder} changed while it was being read: run this again once it is complete")


def stamps(manifest: Manifest) -> list[tuple[int, int, int]]:
    """Each shard's inode, bytes and time of change: they differ once the file is replaced."""
    found = [manifest.path(shard).stat() for shard in range(len(manifest.parts))]
    return [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in found]


class ShardFile:
    """The vectors (n, D) of a shard, by ordinary reads: in a memory map, a file that is cut short is a bus error."""

    def __init__(self, manifest: Manifest, shard: int):
        self.shape, self.dtype = manifest.shape(shard), np.dtype(manifest.dtype)
        self.start = manifest.vectors_start(shard)
        self.file = open(manifest.path(shard), "rb", buffering=0)  # noqa: SIM115 (kept open)
        weakref.finalize(self, self.file.close)

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """Some rows (R, D), by a slice of step 1 or by their numbers (R,)."""
        if not isinstance(rows, slice):
            return np.concatenate([self[row : row + 1] for row in rows])
        start, stop, _ = rows.indices(self.shape[0])
        row = self.shape[1] * self.dtype.itemsize  # bytes
        self.file.seek(self.start + start * row)
        with reading(self.file.name):  # reshape: it has been cut short
            return np.frombuffer(self.file.read((stop - start) * row), self.dtype).reshape(stop - start, -1)


def merge_shards(folder: Path, out: Path) -> tuple[int, int]:
    """Copy all shards to one ``.npy``, a few MiB in memory at a time, and check their hashes; the shape, (N, D).

    Raises ``InputError``, and writes nothing, if a shard is missing or does not have the hash that was noted.
    """
    manifest = complete_manifest(folder)
    shape = manifest.input["rows"], manifest.width
    with atomic_file(out) as partial, open(partial, "wb") as target:
        write_header(target, np.dtype(manifest.dtype), shape)
        for shard in Bar(range(len(manifest.parts)), desc=f"merging {folder}", unit=" shards"):
            if copy_vectors(manifest.path(shard), manifest.vectors_start(shard), target) != manifest.noted_hash(shard):
                raise InputError(f"{manifest.path(shard)} is damaged or cut short: run encode again, which replaces it")
    return shape


def copy_vectors(path: Path, start: int, target: IO[bytes]) -> str:
    """Copy the vectors of a file, which begin at ``start``; the sha256 of the whole file."""
    with open(path, "rb") as stream:
        digest = hashlib.sha256(stream.read(start))
        while block := stream.read(COPIED):
            digest.update(block)
            target.write(block)
    return digest.hexdigest()
