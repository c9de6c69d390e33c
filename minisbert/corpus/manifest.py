"""The manifest of a folder of parts: which texts, model and options its vectors come from, and which part has which.

manifest.json       the input with its hash, the model's hash, every option that changes a vector, and the parts' places
part-00017.npy      the vectors of rows 17 N to 18 N - 1 of the input, if a part has N rows
part-00017.json     the hash of that file and of the manifest that it belongs to; written after it
.rank-00003.lock    locked while rank 3 encodes

The texts are those of the file after decompression, so a file and its ``.gz`` have the same hash and offsets.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np

from minisbert.core import InputError, one_line
from minisbert.corpus.vectors import open_texts
from minisbert.data.rows import text_lines
from minisbert.system.console import LiveLine, say
from minisbert.system.files import LITTER, atomic_file, listed, lock, read_text, recover, write_json

MANIFEST, VERSION = "manifest.json", 1
OWN = ("part-*.npy", "part-*.json", ".part-*.partial-*", f".{MANIFEST}.partial-*", ".rank-*.lock", *LITTER)
BLOCK = 2**22  # bytes to hash or copy at once


@dataclass(frozen=True)
class Manifest:
    """What a folder of parts is made from. Equal manifests have equal ``identity``, however the input is called."""

    input: dict[str, Any]  # name, sha256, bytes and rows of the text
    model: str  # hash, see corpus/index.py
    options: dict[str, Any]  # part_rows and whatever else decides about a vector
    width: int
    dtype: str
    parts: list[dict[str, Any]]  # offset, bytes and sha256 of each part's text

    @cached_property
    def identity(self) -> str:
        content = dataclasses.asdict(self)
        content["input"] = {key: value for key, value in self.input.items() if key != "name"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def shape(self, part: int) -> tuple[int, int]:
        """(n, D) of a part; the last one may have fewer rows."""
        rows = self.options["part_rows"]
        return min(rows, self.input["rows"] - part * rows), self.width

    def path(self, folder: Path, part: int) -> Path:
        return folder / f"part-{part:05}.npy"

    def data_bytes(self, part: int) -> int:
        """Of a part's vectors, without the header of its file."""
        rows, width = self.shape(part)
        return rows * width * np.dtype(self.dtype).itemsize


def read_manifest(folder: Path, overwrite: bool = False) -> Manifest | None:
    """The manifest of a folder of parts; None if there is none yet, or one of another version to be overwritten.

    Raises ``InputError`` for a folder of other files, a damaged manifest, and one of another version.
    """
    path = folder / MANIFEST
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is not a folder; with --part-rows, one is needed")
    if not path.exists():
        names = [entry.name for entry in folder.iterdir()] if folder.exists() else []
        if foreign := sorted(name for name in names if not any(fnmatchcase(name, own) for own in OWN)):
            raise InputError(f"{folder} is not a folder of parts (it holds {listed(foreign)}): choose another --out")
        return None
    try:
        content = json.loads(read_text(path))
        marked = content.get("minisbert") == "parts"
        version = content.get("version")
    except (ValueError, AttributeError) as error:
        raise InputError(f"{damaged(path)} ({error})") from error
    if not marked:
        raise InputError(f"{path} is not the manifest of a folder of parts: choose another folder")
    if version != VERSION:
        if overwrite:
            return None
        raise InputError(
            f"{path} has version {one_line(version)}, this minisbert reads version {VERSION}: "
            "use the minisbert that wrote it, or --overwrite to start anew"
        )
    try:
        found = Manifest(**{field.name: content[field.name] for field in dataclasses.fields(Manifest)})
        intact = content["sha256"] == found.identity
    except (KeyError, TypeError, AttributeError):
        intact = False
    if not intact:
        raise InputError(damaged(path))
    return found


def damaged(path: Path) -> str:
    return f"{path} is damaged: remove it and start encoding again, which keeps the parts that verify"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    content = {"minisbert": "parts", "version": VERSION, "sha256": manifest.identity} | dataclasses.asdict(manifest)
    with atomic_file(folder / MANIFEST) as partial:
        write_json(partial, content)


def differences(found: Manifest, model: str, options: dict[str, Any]) -> list[str]:
    """What a folder was made with and is not to be made with now, by name."""
    changed = [
        f"{name} {one_line(found.options.get(name))}, not {one_line(value)}"
        for name, value in options.items()
        if found.options.get(name) != value
    ]
    if found.model != model and not any(name.startswith(("pooling ", "max_length ")) for name in changed):
        changed.append("another model")  # its hash covers these two options
    return changed


class Scan:
    """A stream of lines that notes where every part begins, and hashes what is read."""

    def __init__(self, stream: IO[bytes], part_rows: int):
        self.stream, self.part_rows = stream, part_rows
        self.rows = self.bytes = 0
        self.whole = hashlib.sha256()
        self.parts: list[tuple[int, int, str]] = []  # offset, bytes, sha256
        self.part, self.start = hashlib.sha256(), 0

    def readline(self, limit: int = -1) -> bytes:
        line = self.stream.readline(limit)
        if self.rows % self.part_rows == 0 or not line:
            self._close()
        self.whole.update(line)
        self.part.update(line)
        self.rows += bool(line)
        self.bytes += len(line)
        return line

    def _close(self) -> None:
        """End the part that was being read, if any."""
        if self.bytes > self.start:
            self.parts.append((self.start, self.bytes - self.start, self.part.hexdigest()))
        self.part, self.start = hashlib.sha256(), self.bytes


def scan(path: str, part_rows: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A manifest's ``input`` and ``parts``; checks every line: raises ``InputError`` as ``text_lines``."""
    with open_texts(path) as stream, LiveLine() as line:
        lines = Scan(stream, part_rows)
        for _ in text_lines(lines, path):
            if lines.rows % 2**16 == 0:
                line.show(f"reading {path}: {lines.rows:,} texts")
    source = {"name": Path(path).name, "sha256": lines.whole.hexdigest(), "bytes": lines.bytes, "rows": lines.rows}
    return source, [dict(zip(("offset", "bytes", "sha256"), part, strict=True)) for part in lines.parts]


def file_hash(stream: IO[bytes]) -> str:
    """sha256 of what is left in a stream."""
    digest = hashlib.sha256()
    while block := stream.read(BLOCK):
        digest.update(block)
    return digest.hexdigest()


def text_hash(path: str) -> str:
    """sha256 of a text file, after decompression."""
    with open_texts(path) as stream:
        return file_hash(stream)


def read_note(manifest: Manifest, folder: Path, part: int) -> str | None:
    """The hash that was noted for a part's file; None if there is none, or one of another manifest."""
    path = manifest.path(folder, part).with_suffix(".json")
    try:
        note = json.loads(read_text(path))
        return note["sha256"] if note["manifest"] == manifest.identity else None
    except (InputError, ValueError, KeyError, TypeError):  # missing or damaged: the part is encoded again
        return None


def noted_hashes(folder: Path, manifest: Manifest) -> list[str]:
    """The hash that was noted for each part's file; ``InputError`` names the parts that are missing."""
    paths = [manifest.path(folder, part) for part in range(len(manifest.parts))]
    notes = [read_note(manifest, folder, part) for part in range(len(paths))]
    if lacking := [path.name for path, note in zip(paths, notes, strict=True) if note is None or not path.is_file()]:
        raise InputError(
            f"{folder} lacks {len(lacking):,} of {len(paths):,} parts, {listed(lacking)}: encode them first, with "
            f"python -m minisbert.encode --file {one_line(manifest.input['name'])} --out {folder} "
            f"--part-rows {manifest.options['part_rows']} and the other options of the first start"
        )
    return notes


def is_intact(folder: Path, manifest: Manifest, part: int) -> bool:
    """Is a part's file there, with the hash that was noted? Reports one that is damaged."""
    path, noted = manifest.path(folder, part), read_note(manifest, folder, part)
    if noted is None or not path.is_file():
        return False
    with open(path, "rb") as stream:
        if file_hash(stream) == noted:
            return True
    say(f"{path} is damaged or cut short: encoding it again")
    return False


def clean_up(folder: Path, count: int, rank: int, size: int) -> None:
    """Remove what killed processes were writing, and this rank's parts beyond ``count``, of a manifest replaced."""
    for path in folder.glob(".*.partial-*"):
        recover(folder / path.name[1:].rpartition(".partial-")[0])
    for path in folder.glob("part-*"):
        number = path.stem.removeprefix("part-")
        if number.isdecimal() and int(number) >= count and int(number) % size == rank:
            path.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path, rank: int) -> Iterator[None]:
    """Keep a second process from encoding the same rank's parts; raises ``InputError`` in that process.

    A new folder is removed again if no manifest has been written to it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".rank-{rank:05}.lock"
    with open(path, "a") as file:
        try:
            lock(file)
        except BlockingIOError as error:
            raise InputError(
                f"{folder}: another process is encoding as rank {rank} there; wait for its end or stop it"
            ) from error
        try:
            yield
        finally:
            _remove_unused(folder, path)


def _remove_unused(folder: Path, path: Path) -> None:
    if (folder / MANIFEST).exists():
        return
    with suppress(OSError):  # other ranks' locks are there, or this system removes no open files
        path.unlink()
        folder.rmdir()
