"""Encode a file in shards: a folder of ``.npy`` files that survives a kill at any time.

    minisbert encode --file sentences.txt --out shards --shard-rows 100000

A shard is written atomically, so it counts as done when its file is there with the right shape and size. The manifest
is written once, before the first shard, and says what all of them are made from. A second start with the same texts,
model and options encodes the shards that are missing; with others it is refused.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from minisbert.core import InputError, read_json, reading
from minisbert.corpus.index import differences, made_from, texts_hash
from minisbert.data.lines import every_text
from minisbert.loading import Encoder
from minisbert.models.prompts import choose_prompt
from minisbert.search.dense import Stacked
from minisbert.search.vector_files import write_header, write_npy
from minisbert.system.console import say
from minisbert.system.devices import choose_dtype
from minisbert.system.files import LITTER, atomic_file, listed, lock, remove_leftovers, write_json
from minisbert.system.progress import Bar

MANIFEST, SHARDS_MARK = "manifest.json", {"minisbert": "shards"}
COPIED = 2**22  # bytes at once
REPAIR = "is damaged or cut short: run encode again, which replaces it"


@dataclass(frozen=True)
class Shards:
    """A folder of shards, as its manifest describes it.

    ``made`` is what the vectors are made from: ``made_from``, the hash of all texts, the rows of a shard, and the
    dtypes of the arithmetic and of the files.
    """

    folder: Path
    made: dict[str, str]
    rows: int

    @property
    def shard_rows(self) -> int:
        return int(self.made["shard_rows"])

    def __len__(self) -> int:
        return -(-self.rows // self.shard_rows)

    def path(self, shard: int) -> Path:
        return self.folder / f"shard-{shard:05}.npy"

    def shape(self, shard: int) -> tuple[int, int]:
        """Return (n, D) of a shard; the last one may have fewer rows."""
        return min(self.shard_rows, self.rows - shard * self.shard_rows), int(self.made["width"])

    def load(self, shard: int) -> np.ndarray:
        """Map the vectors of a shard; ``InputError`` if its file has another shape, dtype or size."""
        path, fits = self.path(shard), False
        # which error a damaged header raises depends on its bytes
        with suppress(InputError), reading(path):
            vectors = open_memmap(path, mode="r")
            size = vectors.offset + vectors.nbytes  # a longer file could be mapped, too
            fits = (vectors.shape, str(vectors.dtype)) == (self.shape(shard), self.made["dtype"])
            fits = fits and path.stat().st_size == size
        if not fits:
            raise InputError(f"{path} {REPAIR}")
        return vectors

    def is_complete(self, shard: int) -> bool:
        """Return whether a shard needs no encoding, and report one that does because it is damaged."""
        if not self.path(shard).is_file():
            return False
        try:
            self.load(shard)
        except InputError:
            say(f"{self.path(shard)} is damaged or cut short: encoding it again")
            return False
        return True


def read_manifest(folder: Path) -> Shards | None:
    """Read the manifest of a folder; None without one, ``InputError`` if it is damaged."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    with suppress(LookupError, TypeError, ValueError, AttributeError):  # what a damaged one raises
        content = read_json(path)
        shards = Shards(folder, content["made"], content["rows"])
        sizes = [shards.rows, shards.shard_rows, int(shards.made["width"])]
        is_whole = all(type(size) is int and 0 < size < 2**40 for size in sizes) and "prompt" in shards.made
        if is_whole and SHARDS_MARK.items() <= content.items() and np.dtype(shards.made["dtype"]).kind == "f":
            return shards
    raise InputError(f"{path} is damaged, or not the manifest of a folder of shards: choose another folder")


def existing_manifest(folder: Path) -> Shards:
    """Read the manifest of a folder; ``InputError`` if there is none."""
    shards = read_manifest(folder)
    if shards is None:
        raise InputError(f"{folder} is not a folder of shards, which encode --shard-rows writes: it has no {MANIFEST}")
    return shards


# ------------------------------------------------------------------------------------------ reading shards


def open_shards(shards: Shards) -> Stacked:
    """Map the vectors (N, D) of a complete folder; ``InputError`` for shards that are missing or do not fit."""
    paths = [shards.path(shard) for shard in range(len(shards))]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise InputError(
            f"{shards.folder} lacks {len(missing):,} of {len(paths):,} shards, {listed(missing)}: encode them first, "
            f"with --out {shards.folder} --shard-rows {shards.shard_rows} and the other options of the first run"
        )
    # all of them now: a search must not end in its last minute
    for shard in range(len(shards)):
        shards.load(shard)

    def load(shard: int) -> np.ndarray:
        # only some shards are open at a time; meanwhile encode --overwrite may have written others
        if read_manifest(shards.folder) != shards:
            raise InputError(f"{shards.folder} changed while it was being read: run this again once it is complete")
        return shards.load(shard)

    counts = [shards.shape(shard)[0] for shard in range(len(shards))]
    return Stacked(load, counts, int(shards.made["width"]), shards.made["dtype"])


def shard_vectors(encoder: Encoder, texts: Sequence[str], folder: Path, prompt: str) -> Stacked:
    """Map the vectors of the texts in a folder of shards; ``InputError`` if they are others. Never encodes.

    They may be normalized or not, as a cosine ignores lengths, and of any precision, as that only rounds them.
    """
    shards = existing_manifest(folder)
    changed = differences(shards.made, made_from(encoder, prompt) | {"texts": texts_hash(texts)})
    if changed:
        raise InputError(f"{folder} was made with {changed}: give what it was made with, or encode to another folder")
    return open_shards(shards)


def merge_shards(folder: Path, out: Path) -> tuple[int, int]:
    """Copy all shards to one ``.npy``, a few MiB in memory at a time; return the shape, (N, D).

    Raises ``InputError``, and writes nothing, if a shard is missing or does not fit.
    """
    shards = existing_manifest(folder)
    shape = open_shards(shards).shape
    with atomic_file(out) as partial, open(partial, "wb") as target:
        write_header(target, np.dtype(shards.made["dtype"]), shape)
        for shard in Bar(range(len(shards)), desc=f"merging {folder}", unit=" shards"):
            offset = shards.load(shard).offset
            with open(shards.path(shard), "rb") as source:
                source.seek(offset)
                shutil.copyfileobj(source, target, COPIED)
    return shape


# ------------------------------------------------------------------------------------------ writing shards


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
    state = file_state(file)
    planned = plan(encoder, file, folder, shard_rows, options)
    with locked(folder):
        shards = read_manifest(folder)
        if shards != planned:
            changed = shards and differences(shards.made, planned.made)
            if changed and not overwrite:
                remedy = "give what it was made with, choose another --out, or --overwrite to start over"
                raise InputError(f"{folder} was made with {changed}: {remedy}")
            # subtle: the old shards go before the new manifest comes. A kill in between leaves a folder that lacks
            # shards; in the other order it would leave one whose shards are another model's
            for path in folder.glob("shard-?????.npy"):
                path.unlink()
            with atomic_file(folder / MANIFEST) as partial:
                write_json(partial, SHARDS_MARK | {"made": planned.made, "rows": planned.rows})
        for path in folder.glob(".*.partial-*"):  # what killed processes were writing
            remove_leftovers(folder / path.name[1:].rpartition(".partial-")[0])
        written, truncated = write_shards(encoder, file, state, planned, options)
    rows = sum(planned.shape(shard)[0] for shard in written)
    if truncated:
        say(encoder.tokenizer.cut_message(truncated, rows))
    message = f"wrote {len(written):,} shards with {rows:,} vectors of width {planned.made['width']} to {folder}"
    if len(written) < len(planned):
        message += f"; {len(planned) - len(written):,} were complete"
    say(message)


def plan(encoder: Encoder, file: str, folder: Path, shard_rows: int, options: dict[str, Any]) -> Shards:
    """Describe shards that are still to be encoded. Reads the whole file, and so checks every line."""
    # one text, (1, D), for the dtype of the vectors; an option that is out of range ends the work here
    example = encoder.encode(["a"], **options)
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
    texts = Bar(every_text(file), desc=f"reading {file}", unit=" texts")
    made["texts"] = texts_hash(texts)
    return Shards(folder, made, texts.n)


def write_shards(
    encoder: Encoder, file: str, state: tuple[int, ...], shards: Shards, options: dict[str, Any]
) -> tuple[list[int], int]:
    """Encode the shards that are missing or damaged; return their numbers, and how many of their texts were cut."""
    written, truncated = [], 0
    texts = every_text(file)
    with Bar(total=shards.rows, unit=" texts") as bar:
        for shard in range(len(shards)):
            batch = islice(texts, shards.shard_rows)
            if shards.is_complete(shard):
                bar.update(sum(1 for _ in batch))  # reads past its texts
                continue
            with atomic_file(shards.path(shard)) as partial:
                write_npy(encoder.encode_stream(counted(batch, bar), **options), shards.shape(shard)[0], partial)
                # now, not at the end: a shard that has been renamed into place counts
                check_unchanged(file, state)
            written.append(shard)
            truncated += encoder.truncated
    return written, truncated


def counted(texts: Iterable[str], bar: Bar) -> Iterator[str]:
    """Yield the texts and count them in the progress line."""
    for text in texts:
        yield text
        bar.update()


def check_unchanged(file: str, state: tuple[int, ...]) -> None:
    """Raise ``InputError`` if the file is not what it was in ``state``."""
    if file_state(file) != state:
        raise InputError(f"{file} changed while it was being read: run encode again")


def file_state(file: str) -> tuple[int, ...]:
    """Return numbers that change when somebody writes to the file or replaces it."""
    with reading(file):
        status = os.stat(file)
    return status.st_ino, status.st_size, status.st_mtime_ns


def check_foreign(folder: Path) -> None:
    """Raise ``InputError`` if a folder has a damaged manifest, or none and anything but hidden files."""
    foreign = sorted(path.name for path in folder.glob("[!.]*") if path.name not in LITTER)
    if read_manifest(folder) is None and foreign:
        raise InputError(
            f"{folder} is not a folder of shards: it holds {listed(foreign)}, which encode did not write; "
            "choose another --out"
        )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second process from writing into the same folder; raises ``InputError`` in that process."""
    folder.mkdir(parents=True, exist_ok=True)
    # a lock and not a file that exists: it ends with the process, also with kill -9
    with open(folder / ".lock", "a") as file:
        try:
            lock(file)
        except BlockingIOError as error:
            raise InputError(f"{folder}: another process is encoding there; wait for its end or stop it") from error
        yield
