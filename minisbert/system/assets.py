"""Weights and data sets: where they come from, and the proof that they are the right ones.

``assets.toml`` is the manifest. A fetch tries an asset's sources in order; every file is hashed while it is
written to a temporary folder, and the folder is renamed only when all of them are right. So an interrupted or
corrupted fetch leaves nothing that looks complete.

    python -m minisbert.assets list
    python -m minisbert.assets fetch all-MiniLM-L6-v2
    python -m minisbert.assets path stsb
    python -m minisbert.assets verify
"""

import argparse
import hashlib
import os
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from minisbert.core import InputError, one_line
from minisbert.system.console import LiveLine, run_command, say
from minisbert.system.files import atomic_folder
from minisbert.system.sources import SOURCES, AssetFile, FetchError, megabytes, write_verified

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
        """``complete``, ``missing``, or what is wrong; by presence and size (``verify`` hashes)."""
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
    """The manifest, in its order."""
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
    """One entry of the manifest; ``InputError`` lists the names for any other."""
    known = assets()
    if name not in known:
        raise InputError(f"no asset is called {one_line(name)}; known are {', '.join(known)}")
    return known[name]


def home() -> Path:
    """Where ``weights/`` and ``data/`` stand: ``MINISBERT_HOME``, else this checkout, else the user's cache folder."""
    if os.environ.get("MINISBERT_HOME"):
        return Path(os.environ["MINISBERT_HOME"]).expanduser()
    checkout = Path(__file__).parents[2]
    if (checkout / "pyproject.toml").is_file() and (checkout / "weights").is_dir():
        return checkout
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "minisbert"
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"]) / "minisbert"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "minisbert"


def ensure(name: str) -> Path:
    """The folder of an asset, fetched first where it is not there; says so in one line.

    Raises ``InputError`` where it cannot be had, and with ``MINISBERT_OFFLINE=1`` where it would need the network.
    """
    wanted = asset(name)
    if wanted.state() != "complete":
        fetch(wanted)
    return wanted.folder


def fetch(wanted: Asset) -> None:
    """Bring an asset from the first source that serves it, whatever stands in its folder now."""
    if os.environ.get("MINISBERT_OFFLINE", "0") not in ("", "0"):
        names = ", ".join(file.name for file in wanted.files)
        raise InputError(
            f"{wanted.name} is {wanted.state()} and MINISBERT_OFFLINE forbids fetching it; "
            f"put {names} into {wanted.folder}"
        )
    failures = []
    for source in wanted.sources:
        kind, address = next(iter(source.items()))
        say(f"fetching {wanted.name} ({kind} {address}) to {wanted.folder}")
        try:
            with atomic_folder(wanted.folder) as folder, LiveLine() as line:
                for file, stream in SOURCES[kind](wanted.files, source, line):
                    write_verified(stream, folder / file.name, file, line)
            return
        except FetchError as error:
            say(f"  {error}")
            failures.append(f"{kind} {address}: {error}")
    raise InputError(
        f"{wanted.name} could not be fetched:\n  "
        + "\n  ".join(failures)
        + f"\nOr put its files into {wanted.folder} by hand."
    )


# ----------------------------------------------------------------------------------------- command


def problems(wanted: Asset) -> list[str]:
    """What is wrong with an asset on disk, every file hashed."""
    found = []
    for file in wanted.files:
        path = wanted.folder / file.name
        kind, expected = file.digest
        if not path.is_file():
            found.append(f"{path} is missing")
            continue
        with open(path, "rb") as stream:
            actual = hashlib.file_digest(stream, kind).hexdigest()
        if actual != expected:
            found.append(f"{path} has {kind} {actual}, not {expected}")
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m minisbert.assets",
        description="Fetch and check the weights and data sets of the manifest.",
        epilog="MINISBERT_HOME moves the folders, MINISBERT_OFFLINE=1 forbids the network, HF_ENDPOINT names a mirror.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what there is, with licence and state on this machine")
    for command, text in (("fetch", "bring an asset, again where it is already there"), ("path", "print its folder")):
        commands.add_parser(command, help=text).add_argument("name", metavar="NAME")
    verify = commands.add_parser("verify", help="hash every file that is there")
    verify.add_argument("name", metavar="NAME", nargs="?", help="only this asset")
    options = parser.parse_args(arguments)

    if options.command == "list":
        for entry in assets().values():
            total = sum(file.size or 0 for file in entry.files)
            print(f"{entry.name}  ({entry.kind}{', ' + megabytes(total) if total else ''}, {entry.state()})")
            print(f"  {entry.about}\n  {entry.upstream}; licence: {entry.licence}")
            print("  from " + ", else ".join(" ".join(next(iter(source.items()))) for source in entry.sources))
            if any(file.md5 for file in entry.files):
                print("  checked by md5 only: its publisher gave no sha256")
    elif options.command == "fetch":
        fetch(asset(options.name))
        print(asset(options.name).folder)
    elif options.command == "path":
        print(asset(options.name).folder)
    else:
        verify_command(options.name)


def verify_command(name: str | None) -> None:
    chosen = [asset(name)] if name else [entry for entry in assets().values() if entry.folder.exists()]
    if not chosen:
        print("nothing has been fetched yet")
    bad = []
    for entry in chosen:
        found = problems(entry)
        bad += [entry.name] if found else []
        print(f"{entry.name}: " + ("; ".join(found) or f"{len(entry.files)} files, all as the manifest says"))
    if bad:
        raise InputError(
            f"not as the manifest says: {', '.join(bad)}; fetch again: python -m minisbert.assets fetch {bad[0]}"
        )


if __name__ == "__main__":
    run_command(main)
