"""The manifest of weights and data sets, and how they are fetched and verified.

``assets.toml`` is the manifest. ``fetch`` tries an asset's sources in order and writes to a temporary folder, which is
renamed only once every hash matches: an interrupted or corrupted download never looks complete. On the command line:
``python -m minisbert.assets``.
"""

import hashlib
import os
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from minisbert.core import InputError, one_line
from minisbert.system.console import say
from minisbert.system.files import BROKEN_DISK, atomic_folder, foreign_entries, listed
from minisbert.system.hub import offline, reason
from minisbert.system.sources import SOURCES, AssetFile

MANIFEST = Path(__file__).with_name("assets.toml")


@dataclass(frozen=True)
class Asset:
    name: str
    kind: str  # weights or data
    about: str
    licence: str
    upstream: str
    sources: tuple[dict, ...]
    files: tuple[AssetFile, ...]

    @property
    def folder(self) -> Path:
        return home() / self.kind / self.name

    def state(self) -> str:
        """``complete``, ``missing``, or what is wrong. Checks presence and size only; ``problems`` hashes."""
        if not self.folder.exists():
            return "missing"
        for file in self.files:
            path = self.folder / file.name
            if not path.is_file():
                return f"incomplete: {file.name} is missing"
            if file.size is not None and path.stat().st_size != file.size:
                return f"incomplete: {file.name} has {path.stat().st_size:,} bytes, not {file.size:,}"
        return "complete"


def assets() -> dict[str, Asset]:
    """Every asset of the manifest by name, in the manifest's order."""
    entries = tomllib.loads(MANIFEST.read_text(encoding="utf-8"))
    return {
        name: Asset(
            name=name,
            **{key: entry[key] for key in ("kind", "about", "licence", "upstream")},
            sources=tuple(entry["sources"]),
            files=tuple(AssetFile(**file) for file in entry["files"]),
        )
        for name, entry in entries.items()
    }


def asset(name: str) -> Asset:
    """One asset by name; ``InputError`` lists the known names."""
    known = assets()
    if name not in known:
        raise InputError(f"unknown asset {one_line(name)}; known assets: {', '.join(known)}")
    return known[name]


def home() -> Path:
    """The parent of ``weights/`` and ``data/``: ``MINISBERT_HOME``, else this checkout, else the user's cache."""
    if chosen := os.environ.get("MINISBERT_HOME"):
        folder = Path(os.path.expanduser(chosen))
        if str(folder).startswith("~") or (folder.exists() and not folder.is_dir()):
            raise InputError(f"MINISBERT_HOME={one_line(chosen)} is not a folder: name another one, or unset it")
        return folder
    checkout = Path(__file__).parents[2]
    if (checkout / "pyproject.toml").is_file() and (checkout / "weights").is_dir():
        return checkout
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "minisbert"
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"]) / "minisbert"
    if os.path.expanduser("~") == "~":
        raise InputError("this user has no home folder: set MINISBERT_HOME to a folder for weights and data")
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "minisbert"


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
    if offline():
        names = ", ".join(file.name for file in wanted.files)
        raise InputError(
            f"{wanted.name} is {wanted.state()} and MINISBERT_OFFLINE forbids fetching it; "
            f"put {names} into {wanted.folder}"
        )
    if foreign := foreign_entries(wanted.folder, [file.name for file in wanted.files]):
        raise InputError(
            f"{wanted.folder} also holds {listed(foreign)}, not part of {wanted.name}: fetching replaces the folder; "
            "move other files elsewhere first"
        )
    failures = []
    with atomic_folder(wanted.folder) as folder:
        for source in wanted.sources:
            named = " ".join(next(iter(source.items())))
            say(f"fetching {wanted.name} ({named}) to {wanted.folder}")
            failure = _fetch_from(source, wanted, folder)
            if not failure:
                return
            say(f"  {failure}")
            failures.append(f"{named}: {failure}")
        raise InputError(
            f"{wanted.name} could not be fetched:\n  "
            + "\n  ".join(failures)
            + f"\nOr put its files into {wanted.folder} by hand."
        )


def _fetch_from(source: dict, wanted: Asset, folder: Path) -> str:
    """Fill the folder from one source; what went wrong, or an empty string."""
    try:
        SOURCES[next(iter(source))](wanted.files, source, folder)
    except Exception as error:  # whatever servers, archives, pip and huggingface_hub do, the next source is tried
        if isinstance(error, OSError) and error.errno in BROKEN_DISK:
            raise
        return reason(error)
    return "; ".join(problems(wanted, folder)).replace(f"{folder}{os.sep}", "")


def problems(wanted: Asset, folder: Path | None = None) -> list[str]:
    """Everything wrong with an asset on disk; hashes every file."""
    found = []
    for file in wanted.files:
        path = (folder or wanted.folder) / file.name
        kind, expected = file.digest
        if not path.is_file():
            found.append(f"{path} is missing")
            continue
        with open(path, "rb") as stream:
            actual = hashlib.file_digest(stream, kind).hexdigest()
        if actual != expected:
            size = "" if file.size in (None, path.stat().st_size) else f" and {path.stat().st_size:,} bytes"
            right = f"{expected} and {file.size:,} bytes" if size else expected
            found.append(f"{path} has {kind} {actual}{size}, not {right}")
    return found
