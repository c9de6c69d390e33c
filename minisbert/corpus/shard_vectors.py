"""A folder of shards (``corpus/shards.py``) in place of an index: vectors read from disk, never encoded here.

It must be complete and belong to the text and the model in use. The hashes of the shards' files are not computed again:
that would read every byte before each search. ``encode`` and ``merge`` do it.

A file that is replaced or cut short while it is read is an ``InputError``. Hence ordinary reads: a memory map of it
would end the process with a bus error.
"""

from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap

from minisbert.core import InputError, one_line
from minisbert.corpus.manifest import MANIFEST, Manifest, differences, lines_hash, read_manifest, text_hash
from minisbert.corpus.notes import noted_hashes
from minisbert.fast.matrices import Stacked
from minisbert.models.prompts import choose_prompt
from minisbert.models.sentence_encoder import SentenceEncoder


def find_shards(folder: Path, file: str, count: int) -> Manifest:
    """The manifest of a complete folder of shards of ``file``, in which ``count`` texts were found.

    Raises ``InputError`` for a folder of something else, shards of another text, and shards that are missing or do not
    have the form that the manifest says. The model is not needed, so this comes before it is loaded.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise InputError(
            f"--index {folder} is a folder without {MANIFEST}: give one that python -m minisbert.encode --shard-rows "
            "wrote, or the name of a file that ends in .safetensors"
        )
    if not Path(file).is_file():
        raise InputError(f"{file} can be read only once; with the shards in {folder}, give a regular file")
    name, rows = manifest.input.get("name", "the input"), manifest.input["rows"]
    if text_hash(file) != manifest.input["sha256"] and lines_hash(file) != manifest.input.get("lines"):
        raise InputError(
            f"{folder} was made from {one_line(name)} with {rows:,} texts, and {file} is a different text: "
            f"give that one, or {remedy(file, manifest)}"
        )
    if count != rows:
        raise InputError(f"{file} had {count:,} texts when it was read, {folder} has {rows:,}: has it changed since?")
    noted_hashes(folder, manifest)
    for shard in range(len(manifest.parts)):
        check_shard(folder, manifest, shard)
    return manifest


def check_fit(folder: Path, manifest: Manifest, file: str, encoder: SentenceEncoder, model: str, prompt: str | None):
    """Raise ``InputError`` for shards that this model, with this hash, would not have made with this prompt.

    They may be normalized or not, as a cosine ignores lengths, and of any precision, as that only rounds them.
    """
    prompt = choose_prompt(encoder.settings, prompt)
    options = {"pooling": encoder.pooling_mode, "max_length": encoder.tokenizer.limit, "prompt": prompt}
    changed = differences(manifest, model, options)
    width = min(encoder.settings.truncate_dim or encoder.width, encoder.width)
    if manifest.width != width:
        changed.append(f"width {manifest.width}, not {width}")
    if changed:
        raise InputError(
            f"{folder} was made with {'; '.join(changed)}: give what it was made with, or {remedy(file, manifest)}"
        )


def remedy(file: str, manifest: Manifest) -> str:
    """Shards that do not fit are neither encoded nor replaced by a search."""
    rows = manifest.options["part_rows"]
    return (
        f"encode to another folder: python -m minisbert.encode --file {file} --out FOLDER --shard-rows {rows}, "
        "with the same model and options as this search"
    )


def check_shard(folder: Path, manifest: Manifest, shard: int) -> int:
    """Where a shard's vectors begin in its file; ``InputError`` if that has another shape, type or size."""
    path, expected = manifest.path(folder, shard), (manifest.shape(shard), np.dtype(manifest.dtype))
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


class Shards(Stacked):
    """All vectors (N, D) of a folder; ``check`` says whether they are still those that were there at first."""

    def __init__(self, folder: Path, manifest: Manifest):
        counts = [manifest.shape(shard)[0] for shard in range(len(manifest.parts))]
        super().__init__(lambda shard: ShardFile(self, shard), counts, manifest.width, manifest.dtype)
        self.folder, self.manifest = folder, manifest
        self.stamps = [self.stamp(shard) for shard in range(len(counts))]

    def stamp(self, shard: int) -> tuple[int, int, int]:
        found = self.manifest.path(self.folder, shard).stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def check(self) -> None:
        """Raise ``InputError`` if the manifest or a shard has been replaced or changed since."""
        current = read_manifest(self.folder)
        changed = current is None or current.identity != self.manifest.identity
        try:
            changed |= self.stamps != [self.stamp(shard) for shard in range(len(self.stamps))]
        except OSError:
            changed = True
        if changed:
            raise InputError(f"{self.folder} changed while it was being read: run this again once it is complete")


class ShardFile:
    """The vectors (n, D) in a shard's file."""

    def __init__(self, shards: Shards, shard: int):
        self.shards, self.shape = shards, shards.manifest.shape(shard)
        self.start = check_shard(shards.folder, shards.manifest, shard)
        self.file = open(shards.manifest.path(shards.folder, shard), "rb", buffering=0)  # noqa: SIM115 (kept open)

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """Some rows (R, D), by a slice of step 1 or by their numbers (R,)."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self.shape[0])
            return self._read(start, max(stop - start, 0))
        return np.concatenate([self._read(int(row), 1) for row in rows])

    def __del__(self) -> None:
        if hasattr(self, "file"):
            self.file.close()

    def _read(self, start: int, count: int) -> np.ndarray:
        found = np.empty((count, self.shape[1]), self.shards.dtype)
        self.file.seek(self.start + start * found.strides[0])
        if self.file.readinto(memoryview(found).cast("B")) != found.nbytes:
            self.shards.check()
            raise InputError(f"{self.file.name} was cut short while it was being read")
        return found
