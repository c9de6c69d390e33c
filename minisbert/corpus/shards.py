"""Encode a file in shards: a folder of ``.npy`` files that survives a kill at any time.

    minisbert encode --file sentences.txt --out shards --shard-rows 100000

Shards and manifest (``corpus/shards.py``) are replaced atomically, and a shard counts only if its file has the hash
in the manifest; so a second start encodes only what is missing or damaged.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib.format import open_memmap

from minisbert.core import InputError, read_json, reading
from minisbert.corpus.index import differences, made_from, text_line, texts_hash
from minisbert.data.lines import every_text
from minisbert.loading import Encoder
from minisbert.models.prompts import choose_prompt
from minisbert.search.dense import Stacked
from minisbert.search.vector_files import write_header, write_npy
from minisbert.system.assets import file_hash
from minisbert.system.console import say
from minisbert.system.devices import choose_dtype
from minisbert.system.files import LITTER, atomic_file, listed, lock, remove_leftovers, write_json
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


def encode_shards(
    encoder: Encoder, file: str, folder: Path, shard_rows: int, overwrite: bool = False, **options: Any
) -> None:
    """Encode the shards of ``file`` that ``folder`` lacks. ``options`` are those of ``encode``.

    Raises ``InputError`` for a folder that was made with another input, model or option, which ``overwrite`` replaces,
    for one that holds other files, and for an input that changes while it is read. Complete shards stay in any case.
    """
    if encoder.vectors_are != "dense":
        raise InputError(f"--shard-rows is for arrays of vectors, not for those of a {type(encoder).__name__}")
    check_foreign(folder)  # before anything is created there
    planned = plan(encoder, file, folder, shard_rows, options)
    with locked(folder):
        manifest = read_manifest(folder)
        if manifest is None or manifest.made != planned.made:
            changed = manifest and differences(manifest.made, planned.made)
            if changed and not overwrite:
                remedy = "give what it was made with, choose another --out, or --overwrite to start over"
                raise InputError(f"{folder} was made with {changed}: {remedy}")
            planned.write()
            manifest = planned
        clean_up(manifest)
        written, truncated = write_shards(encoder, file, manifest, options)
    rows = sum(manifest.shape(shard)[0] for shard in written)
    if truncated:
        say(encoder.tokenizer.cut_message(truncated, rows))
    said = f"wrote {len(written):,} shards with {rows:,} vectors of width {manifest.made['width']} to {folder}"
    if len(written) < len(manifest.shards):
        said += f"; {len(manifest.shards) - len(written):,} were complete"
    say(said)


def plan(encoder: Encoder, file: str, folder: Path, shard_rows: int, options: dict[str, Any]) -> Manifest:
    """The manifest of shards that are still to be encoded. Reads the whole file, and so checks every line."""
    example = encoder.encode(["a"], **options)  # (1, D); an option that is out of range is found here
    computed = getattr(encoder, "compiled_dtype", None)
    if computed is None:
        computed = str(choose_dtype(options.get("dtype") or "float32", encoder.device)[0]).removeprefix("torch.")
    prompt = choose_prompt(encoder.settings, options.get("prompt"), options.get("prompt_name"))
    made = made_from(encoder, prompt) | {
        "normalize_embeddings": str(bool(options.get("normalize_embeddings"))),
        "computed": computed,
        "shard_rows": str(shard_rows),
        "dtype": str(example.dtype),
    }
    texts = iter(Bar(every_text(file), desc=f"reading {file}", unit=" texts"))
    whole, rows, shards = hashlib.sha256(), 0, []
    while batch := list(islice(texts, shard_rows)):
        rows += len(batch)
        shards.append({"texts": texts_hash(batch), "file": ""})
        for text in batch:
            whole.update(text_line(text))
    return Manifest(folder, made | {"texts": whole.hexdigest()}, rows, shards)


def write_shards(encoder: Encoder, file: str, manifest: Manifest, options: dict[str, Any]) -> tuple[list[int], int]:
    """Encode what is missing or damaged; the numbers of those shards, and how many of their texts were cut."""
    written, truncated = [], 0
    texts = every_text(file)
    with Bar(total=manifest.rows, unit=" texts") as bar:
        for shard in range(len(manifest.shards)):
            batch = islice(texts, manifest.shard_rows)
            if manifest.is_complete(shard):
                bar.update(sum(1 for _ in batch))
                continue
            write_shard(encoder, batch, manifest, shard, bar, options)
            written.append(shard)
            truncated += encoder.truncated
    return written, truncated


def write_shard(
    encoder: Encoder, texts: Iterable[str], manifest: Manifest, shard: int, bar: Bar, options: dict[str, Any]
) -> None:
    """Write a shard's file and then its hash to the manifest, which makes it count."""
    digest, path = hashlib.sha256(), manifest.path(shard)

    def hashed() -> Iterator[str]:
        for text in texts:
            digest.update(text_line(text))
            yield text
            bar.update()

    with atomic_file(path) as partial:
        write_npy(encoder.encode_stream(hashed(), **options), manifest.shape(shard)[0], partial)
        if digest.hexdigest() != manifest.shards[shard]["texts"]:
            raise InputError("the file changed while it was being read: run encode again")
    manifest.note(shard)


def check_foreign(folder: Path) -> None:
    """Raise ``InputError`` if a folder has a damaged manifest, or none and anything but hidden files."""
    foreign = sorted(path.name for path in folder.glob("[!.]*") if path.name not in LITTER)
    if read_manifest(folder) is None and foreign:
        raise InputError(
            f"{folder} is not a folder of shards: it holds {listed(foreign)}, which encode did not write; "
            "choose another --out"
        )


def clean_up(manifest: Manifest) -> None:
    """Remove what killed processes were writing, and shards of a manifest that was replaced and had more of them."""
    for path in manifest.folder.glob(".*.partial-*"):
        remove_leftovers(manifest.folder / path.name[1:].rpartition(".partial-")[0])
    current = {manifest.path(shard) for shard in range(len(manifest.shards))}
    for path in manifest.folder.glob("shard-?????.npy"):
        if path not in current:
            path.unlink()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second process from writing into the same folder; raises ``InputError`` in that process."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a") as file:
        try:
            lock(file)
        except BlockingIOError as error:
            raise InputError(
                f"{folder}: another process is encoding there; wait for it to finish or stop it"
            ) from error
        yield
