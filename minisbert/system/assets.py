"""The manifest of weights and data sets, and how they are fetched and verified.

``assets.toml`` is the manifest. ``fetch`` tries an asset's sources in order and writes to a temporary folder, which is
renamed only once every hash matches: an interrupted or corrupted download never looks complete. On the command line:
``minisbert assets``.
"""

import hashlib
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

from minisbert.core import InputError, one_line
from minisbert.system.console import say
from minisbert.system.files import BROKEN_DISK, atomic_folder, foreign_entries, listed
from minisbert.system.hub import offline, reason
from minisbert.system.sources import DOWNLOADERS, AssetFile

ASSETS_TOML = Path(__file__).with_name("assets.toml")


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
        """``complete``, ``missing``, or what is wrong, without hashing."""
        if not self.folder.exists():
            return "missing"
        damage = problems(self, hashed=False)
        if damage:
            return f"incomplete: {damage[0]}"
        return "complete"


def assets() -> dict[str, Asset]:
    """Every asset of the manifest by name, in the manifest's order."""
    manifest = tomllib.loads(ASSETS_TOML.read_text(encoding="utf-8"))
    for entry in manifest.values():
        entry["files"] = tuple(AssetFile(**file) for file in entry["files"])
    return {name: Asset(name, **entry) for name, entry in manifest.items()}


def asset(name: str) -> Asset:
    """One asset by name; ``InputError`` lists the known names."""
    manifest = assets()
    if name not in manifest:
        raise InputError(f"unknown asset {one_line(name)}; known assets: {', '.join(manifest)}")
    return manifest[name]


def home() -> Path:
    """The parent of ``weights/`` and ``data/``: ``MINISBERT_HOME``, else this checkout, else ~/.cache/minisbert."""
    checkout = Path(__file__).parents[2]
    folder = os.environ.get("MINISBERT_HOME")
    if not folder:
        if (checkout / "pyproject.toml").is_file() and (checkout / "weights").is_dir():
            return checkout
        folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "minisbert")
    path = Path(os.path.expanduser(folder))  # stays ~ if the user has no home folder
    if str(path).startswith("~") or (path.exists() and not path.is_dir()):
        raise InputError(f"{one_line(folder)} is not a folder: set MINISBERT_HOME to one for weights and data")
    return path


def local_path(model: str) -> Path:
    """Where a model of the manifest is, or will be once it is fetched; any other name is a path."""
    manifest = assets()
    if model in manifest:
        return manifest[model].folder
    return Path(model)


def ensure(name: str) -> Path:
    """The folder of an asset, which is fetched first unless it is complete.

    Raises ``InputError`` if no source can serve it, or if ``MINISBERT_OFFLINE=1`` forbids the download.
    """
    wanted = asset(name)
    if wanted.state() != "complete":
        fetch(wanted)
    return wanted.folder


def fetch(wanted: Asset) -> None:
    """Download an asset from the first source that serves it, replacing the files of the asset that are there.

    Raises ``InputError`` if the folder holds anything else, which would be lost.
    """
    names = [file.name for file in wanted.files]
    if offline():
        raise InputError(
            f"{wanted.name} is {wanted.state()} and MINISBERT_OFFLINE forbids fetching it; "
            f"put {', '.join(names)} into {wanted.folder}"
        )
    foreign = foreign_entries(wanted.folder, names)
    if foreign:
        raise InputError(
            f"{wanted.folder} also holds {listed(foreign)}, not part of {wanted.name}: fetching replaces the folder; "
            "move other files elsewhere first"
        )
    failures = ""
    with atomic_folder(wanted.folder) as folder:
        for source in wanted.sources:
            named = " ".join(next(iter(source.items())))
            say(f"fetching {wanted.name} ({named}) to {wanted.folder}")
            failure = _fetch_from(source, wanted, folder)
            if not failure:
                return
            say(f"  {failure}")
            failures += f"\n  {named}: {failure}"
        raise InputError(
            f"{wanted.name} could not be fetched:{failures}\nOr put its files into {wanted.folder} by hand."
        )


def _fetch_from(source: dict, wanted: Asset, folder: Path) -> str:
    """Fill the folder from one source; what went wrong, or an empty string."""
    try:
        DOWNLOADERS[next(iter(source))](wanted.files, source, folder)
    except Exception as error:  # whatever servers, archives, pip and huggingface_hub do, the next source is tried
        if isinstance(error, OSError) and error.errno in BROKEN_DISK:
            raise
        return reason(error)
    return "; ".join(problems(wanted, folder)).replace(f"{folder}{os.sep}", "")


def problems(wanted: Asset, folder: Path | None = None, hashed: bool = True) -> list[str]:
    """Everything wrong with an asset on disk: hashes every file, or checks presence and size only."""
    folder = folder or wanted.folder
    checked = [(file, _problem(file, folder / file.name, hashed)) for file in wanted.files]
    return [f"{folder / file.name} {problem}" for file, problem in checked if problem]


def _problem(file: AssetFile, path: Path, hashed: bool) -> str:
    """What is wrong with one file, or an empty string."""
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    if file.size not in (None, size):
        return f"has {size:,} bytes, not {file.size:,}"
    if not hashed:
        return ""
    algorithm, expected = "sha256", file.sha256
    if not expected:
        algorithm, expected = "md5", file.md5
    actual = file_hash(path, algorithm)
    if actual != expected:
        return f"has {algorithm} {actual}, not {expected}"
    return ""


def file_hash(path: str | Path, algorithm: str = "sha256") -> str:
    """The hash of a file's bytes, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
