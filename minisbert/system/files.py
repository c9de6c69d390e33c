"""Reading with errors that name file and line; atomic writes: a file or folder appears complete or not at all."""

import errno
import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from minisbert.core import InputError, one_line

LITTER = (".DS_Store", "Thumbs.db", "desktop.ini")  # file managers put these into every folder that is opened


def decode(content: bytes, where: str, line: int = 1) -> str:
    """UTF-8 bytes to text; ``InputError`` names the first bad line, where ``line`` is the number of the first line."""
    try:
        return content.decode("utf-8-sig" if line == 1 else "utf-8")  # a byte order mark at the start is not text
    except UnicodeDecodeError as error:
        read = error.object  # without the byte order mark: the error counts from there
        line += read[: error.start].count(b"\n")
        byte = f"0x{read[error.start]:02x}"
        raise InputError(f"{where}, line {line}: not UTF-8 (byte {byte}); save it as UTF-8") from error


def open_bytes(path: str | Path) -> IO[bytes]:
    """Open a file for reading; ``InputError`` if it is missing or a folder."""
    try:
        return open(path, "rb")
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder, a file is needed") from error


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file; ``InputError`` if it is missing, a folder, or not UTF-8 (with the line)."""
    with open_bytes(path) as file:
        return decode(file.read(), str(path))


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def atomic_file(target: str | Path) -> Iterator[Path]:
    """Yield a temporary path next to ``target``; rename it to ``target`` on success, remove it on any failure."""
    if Path(target).exists() and not Path(target).is_file():
        raise InputError(f"{target} is a folder or a device, a file is needed")
    target = Path(target).resolve()  # replace what a link points to, not the link
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _beside(target, "partial")
    partial.touch()  # fail before the work if the folder is not writable
    try:
        yield partial
        _flush(partial)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(target: str | Path) -> Iterator[Path]:
    """Yield a temporary folder next to ``target``; rename it to ``target`` on success, remove it on any failure.

    An existing folder is replaced only once the new one is complete. If several processes write the same target, the
    last one wins.
    """
    target = Path(target).resolve()  # replace what a link points to, not the link
    if target.is_file():
        raise InputError(f"{target} is a file, a folder is needed")
    if Path.cwd().is_relative_to(target):
        raise InputError(f"{target} cannot be replaced while you are in it; name another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _beside(target, "partial")
    partial.mkdir()
    try:
        yield partial
        for path in partial.rglob("*"):
            if path.is_file():
                _flush(path)
        _take_place(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def foreign_entries(folder: Path, known: Collection[str]) -> list[str]:
    """The files and folders that replacing ``folder`` would lose, sorted; a folder stands for all that it holds.

    ``known`` are the paths that may be lost, relative to ``folder``, with slashes; ``[0-9]_Dense/config.json`` is a
    pattern. A link counts as an entry of its own and is not followed. Files of the system's file manager do not count.
    """
    if not folder.is_dir():
        return []
    prefixes = {"/".join(path.split("/")[:depth]) for path in known for depth in range(1, path.count("/") + 2)}
    found = []
    for parent, folders, files in os.walk(folder, onerror=_fail):
        within = Path(parent).relative_to(folder)
        foreign = [name for name in folders if not _matches(within / name, prefixes)]
        folders[:] = [name for name in folders if name not in foreign]  # the walk does not enter those
        foreign += [name for name in files if name not in LITTER and not _matches(within / name, known)]
        found += [(within / name).as_posix() for name in foreign]
    return sorted(found)


def listed(names: list[str], most: int = 3) -> str:
    """The first few names for a message: ``'.git', 'notes.txt', 'state' and 2 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(one_line, names[:most])) + more


def _matches(path: Path, patterns: Collection[str]) -> bool:
    name, depth = path.as_posix(), len(path.parts)
    return any(depth == pattern.count("/") + 1 and fnmatchcase(name, pattern) for pattern in patterns)


def _fail(error: OSError) -> None:
    raise error  # a folder that cannot be listed may hold anything


def _take_place(partial: Path, target: Path) -> None:
    """Rename ``partial`` to ``target``. A folder already there is removed, or restored on failure."""
    replaced = _beside(target, "replaced")
    try:
        _swap(partial, target, replaced)
    except BaseException:
        if replaced.exists() and not target.exists():
            os.replace(replaced, target)
        raise
    finally:
        shutil.rmtree(replaced, ignore_errors=True)


def _swap(partial: Path, target: Path, replaced: Path) -> None:
    """Move ``target`` to ``replaced``, if it exists, and ``partial`` to ``target``."""
    while True:
        with suppress(FileNotFoundError):
            os.replace(target, replaced)
        try:
            os.replace(partial, target)
            return
        except OSError as error:
            # subtle: another process may have created target since the line above; if so, try again
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) and not target.exists():
                raise
            shutil.rmtree(replaced, ignore_errors=True)


def _beside(target: Path, role: str) -> Path:
    """A hidden sibling of ``target``, random so that it collides with no other process or killed run."""
    return target.with_name(f".{target.name}.{role}-{secrets.token_hex(4)}")


def _flush(path: Path) -> None:
    """Force the file's bytes to disk, which must happen before the rename."""
    with open(path, "r+b") as file:  # Windows can only sync a writable file
        os.fsync(file.fileno())
