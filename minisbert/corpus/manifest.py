"""The manifest of a folder of shards: the texts, the model and the options that its vectors come from.

manifest.json       the input with its hash, the model's hash, every option that changes a vector, the shards' places
part-00017.npy      the vectors of rows 17 N to 18 N - 1 of the input, if a shard has N rows
part-00017.json     its number, the hash of that file and of the manifest that it belongs to; written after it
.rank-00003.lock    locked while rank 3 encodes

The texts are those of the file after decompression, so a file and its ``.gz`` have the same hash and offsets.
"""

import dataclasses
import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np

from minisbert.core import InputError, one_line, read_json
from minisbert.data.rows import open_texts, text_lines
from minisbert.system.console import Bar
from minisbert.system.files import atomic_file, write_json

MANIFEST, VERSION = "manifest.json", 1


@dataclass(frozen=True)
class Manifest:
    """What a folder of shards is made from. Equal manifests have equal ``identity``, however the input is called."""

    input: dict[str, Any]  # name, sha256, bytes and rows of the text, in newer ones a hash of its lines
    model: str  # hash, see corpus/index.py
    options: dict[str, Any]  # part_rows and whatever else decides about a vector
    width: int
    dtype: str
    parts: list[dict[str, Any]]  # offset, bytes and sha256 of each shard's text

    @cached_property
    def identity(self) -> str:
        content = dataclasses.asdict(self)
        content["input"] = {key: value for key, value in self.input.items() if key != "name"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def is_consistent(self) -> bool:
        """Do the numbers have the right types, and do they fit each other?"""
        rows, size = self.input["rows"], self.options["part_rows"]
        counts, places = [rows, size, self.width], [part[key] for part in self.parts for key in ("offset", "bytes")]
        whole = all(type(n) is int for n in counts + places) and min(counts) > 0 and min(places) >= 0
        return whole and len(self.parts) == -(-rows // size) and np.dtype(self.dtype).kind == "f"

    def shape(self, shard: int) -> tuple[int, int]:
        """(n, D) of a shard; the last one may have fewer rows."""
        rows = self.options["part_rows"]
        return min(rows, self.input["rows"] - shard * rows), self.width

    def path(self, folder: Path, shard: int) -> Path:
        return folder / f"part-{shard:05}.npy"


def read_manifest(folder: Path, overwrite: bool = False) -> Manifest | None:
    """The manifest of a folder of shards; None if there is none yet, or one of another version to be overwritten.

    Raises ``InputError`` for a damaged manifest, and one of another version.
    """
    path = folder / MANIFEST
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is not a folder; with --shard-rows, one is needed")
    if not path.is_file():
        return None
    content: dict[str, Any] = {"minisbert": "parts", "version": VERSION}  # what one that cannot be read is taken for
    with suppress(LookupError, TypeError, ValueError, AttributeError):  # a damaged one
        content = read_json(path)
        if content.get("minisbert") == "parts" and content.get("version") == VERSION:
            found = Manifest(**{field.name: content[field.name] for field in dataclasses.fields(Manifest)})
            if content["sha256"] == found.identity and found.is_consistent():
                return found
    if content.get("minisbert") != "parts":
        raise InputError(f"{path} is not the manifest of a folder of shards: choose another folder")
    if content.get("version") == VERSION:
        raise InputError(f"{path} is damaged: remove it and run encode again, which keeps the intact shards")
    if overwrite:
        return None
    raise InputError(
        f"{path} has version {one_line(content.get('version'))}, this minisbert reads version {VERSION}: "
        "use the minisbert that wrote it, or --overwrite to start over"
    )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    content = {"minisbert": "parts", "version": VERSION, "sha256": manifest.identity} | dataclasses.asdict(manifest)
    with atomic_file(folder / MANIFEST) as partial:
        write_json(partial, content)


def differences(found: Manifest, model: str, options: dict[str, Any]) -> list[str]:
    """What a folder was made with and is not to be made with now, by name."""
    changed = [
        f"{name.replace('part_', 'shard_')} {one_line(found.options.get(name))}, not {one_line(value)}"
        for name, value in options.items()
        if found.options.get(name) != value
    ]
    if found.model != model and not any(name.startswith(("pooling ", "max_length ")) for name in changed):
        changed.append("another model")  # its hash covers these two options
    return changed


class Scan:
    """A stream of lines that notes where every shard begins, and hashes what is read."""

    def __init__(self, stream: IO[bytes], shard_rows: int):
        self.stream, self.shard_rows = stream, shard_rows
        self.rows = self.bytes = 0
        self.whole, self.lines = hashlib.sha256(), hashlib.sha256()
        self.parts: list[dict[str, Any]] = []
        self.part = hashlib.sha256()

    def readline(self, limit: int = -1) -> bytes:
        line = self.stream.readline(limit)
        if line and self.rows % self.shard_rows == 0:
            self.part = hashlib.sha256()
            self.parts.append({"offset": self.bytes, "bytes": 0})
        self.whole.update(line)
        self.lines.update(plain_line(line, first=not self.rows))
        self.part.update(line)
        self.rows += bool(line)
        self.bytes += len(line)
        if line:
            self.parts[-1] |= {"bytes": self.bytes - self.parts[-1]["offset"], "sha256": self.part}
        return line


def scan(path: str, shard_rows: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A manifest's ``input`` and ``parts``; checks every line: raises ``InputError`` as ``text_lines``."""
    with open_texts(path) as stream:
        lines = Scan(stream, shard_rows)
        for _ in Bar(text_lines(lines, path), desc=f"reading {path}", unit=" texts"):
            pass
    source = {"name": Path(path).name, "sha256": lines.whole.hexdigest(), "bytes": lines.bytes, "rows": lines.rows}
    return source | {"lines": lines.lines.hexdigest()}, [
        part | {"sha256": part["sha256"].hexdigest()} for part in lines.parts
    ]


def plain_line(line: bytes, first: bool) -> bytes:
    """A line as ``lines_hash`` counts it: with LF at its end, without a byte order mark, nothing if it is blank."""
    text = (line.removeprefix(b"\xef\xbb\xbf") if first else line).rstrip(b"\r\n")
    return text + b"\n" if text.strip() else b""


def lines_hash(path: str) -> str:
    """sha256 of the texts of a file, whatever ends its lines."""
    digest = hashlib.sha256()
    with open_texts(path) as stream:
        for number, line in enumerate(stream):
            digest.update(plain_line(line, first=number == 0))
    return digest.hexdigest()


def text_hash(path: str) -> str:
    """sha256 of a text file, after decompression."""
    with open_texts(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
