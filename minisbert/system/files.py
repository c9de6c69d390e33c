"""Reading with errors that name file and line; atomic writes: a file or folder appears complete or not at all."""

import errno
import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from typing import IO

from minisbert.core import InputError, one_line

MOST_BYTES = 2**28  # of a text file that is read at once
LITTER = (".DS_Store", "Thumbs.db", "desktop.ini")  # file managers put these into every folder that is opened
LOCK, OLD = "lock", "old"  # in a workspace, beside what is being written: is its writer alive, and what is replaced
BROKEN_DISK = (errno.ENOSPC, errno.EFBIG, errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC))


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
    """Open a file for reading; ``InputError`` if it is missing, a folder, or a pipe with a name of its own.

    A pipe of the shell, such as ``/dev/stdin`` or ``/dev/fd/63``, can be opened; another may never have a writer.
    """
    if Path(path).is_fifo() and not str(path).startswith("/dev/"):
        raise InputError(f"{path} is a pipe, a file is needed")
    try:
        return open(path, "rb")
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder, a file is needed") from error


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file; ``InputError`` if it is missing, a folder, too large, or not UTF-8 (with the line)."""
    with open_bytes(path) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise InputError(f"{path} is larger than {MOST_BYTES:,} bytes, too large to be read at once")
    return decode(content, str(path))


def write_json(path: Path, content: object) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    with naming(path):  # backslashes: JSON's own escapes for what UTF-8 cannot hold, bytes of a file's name
        path.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Add the file's name to the error of a full or broken disk, which a failed write does not have."""
    try:
        yield
    except OSError as error:
        if error.errno in BROKEN_DISK and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def atomic_file(target: str | Path) -> Iterator[Path]:
    """Yield a temporary path; rename it to ``target`` on success, remove it on any failure."""
    if Path(target).exists() and not Path(target).is_file():
        raise InputError(f"{target} is a folder or a device, a file is needed")
    with _workspace(target) as (target, workspace):
        new = workspace / "new"
        new.touch()
        yield new
        flush(new)
        os.replace(new, target)


@contextmanager
def atomic_folder(target: str | Path) -> Iterator[Path]:
    """Yield a temporary folder; rename it to ``target`` on success, remove it on any failure.

    An existing folder is replaced only once the new one is complete. If several processes write the same target, the
    last one wins. If the process is killed between the two renames that this takes, ``recover`` restores the old one.
    """
    if Path(target).is_file():
        raise InputError(f"{target} is a file, a folder is needed")
    if Path.cwd().is_relative_to(os.path.realpath(target)):
        raise InputError(f"{target} cannot be replaced while you are in it; name another folder")
    with _workspace(target) as (target, workspace):
        new = workspace / "new"
        new.mkdir()
        yield new
        for path in new.rglob("*"):
            if path.is_file():
                flush(path)
        _swap(new, target, workspace / OLD)


def recover(target: str | Path) -> None:
    """Clean up after processes that were killed while they wrote ``target``; what a living one writes stays.

    If one was killed between the two renames of ``atomic_folder``, the folder that it was replacing comes back.
    """
    target = Path(os.path.realpath(target))
    for workspace in target.parent.glob(f".{escape(target.name)}.partial-{'[0-9a-f]' * 8}"):
        with suppress(OSError), open(workspace / LOCK, "a") as file:
            # A lock, not a process id, tells the living from the dead: in containers that share a disk, every run may
            # have the same id. Without locks (Windows, some network disks) nothing is removed.
            if lock(file) and _in_place(file, workspace):
                _settle(workspace, target)


def lock(file: IO[str]) -> bool:
    """Lock a file until it is closed or the process ends; False if the platform or the file system cannot.

    Raises ``BlockingIOError`` if it is locked already, by another process or another opening of it.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


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


@contextmanager
def _workspace(target: str | Path) -> Iterator[tuple[Path, Path]]:
    """The target itself, links followed, and a hidden folder next to it that is locked while this process writes.

    Next to it, because a rename to another file system is not atomic.
    """
    target = Path(os.path.realpath(target))  # replace what a link points to, not the link
    target.parent.mkdir(parents=True, exist_ok=True)
    recover(target)
    workspace, file = _create_workspace(target)
    try:
        with naming(target):
            yield target, workspace
    finally:
        file.close()  # Windows cannot delete an open file
        _settle(workspace, target)


def _create_workspace(target: Path) -> tuple[Path, IO[str]]:
    """A new folder for what becomes ``target``, and its locked file."""
    while True:
        workspace = target.with_name(f".{target.name}.partial-{secrets.token_hex(4)}")
        workspace.mkdir()
        # subtle: before it is locked, recover in another process may take it for a dead one's and remove it
        if file := _locked(workspace):
            return workspace, file


def _locked(workspace: Path) -> IO[str] | None:
    """A new workspace's file, locked; None if another process has it or has removed it."""
    with suppress(FileNotFoundError, BlockingIOError), ExitStack() as stack:
        file = stack.enter_context(open(workspace / LOCK, "a"))
        lock(file)
        if _in_place(file, workspace):
            stack.pop_all()
            return file
    return None


def _in_place(file: IO[str], workspace: Path) -> bool:
    """Whether the open file is still the workspace's; raises ``FileNotFoundError`` if the workspace has none."""
    # subtle: between opening and locking, another process may have removed the file, and the maker of the workspace may
    # have created and locked a new one; the lock on the removed file is then free, but says nothing
    return os.path.samestat(os.fstat(file.fileno()), os.stat(workspace / LOCK))


def _settle(workspace: Path, target: Path) -> None:
    """Remove the workspace; if it holds the old target and there is no new one, move that back first."""
    with suppress(OSError):  # nothing to move, or another process has just moved it or written a new target
        if not target.exists():
            os.replace(workspace / OLD, target)
    if target.exists() or not (workspace / OLD).exists():  # otherwise it holds the only copy and stays
        shutil.rmtree(workspace, ignore_errors=True)


def _swap(new: Path, target: Path, old: Path) -> None:
    """Move ``target`` to ``old``, if it exists, and ``new`` to ``target``."""
    while True:
        with suppress(FileNotFoundError):
            os.replace(target, old)
        try:
            os.replace(new, target)
            shutil.rmtree(old, ignore_errors=True)
            return
        except OSError as error:
            # subtle: another process may have created target since the line above; if so, try again
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) and not target.exists():
                raise
            shutil.rmtree(old, ignore_errors=True)


def flush(path: Path) -> None:
    """Force the file's bytes to disk, which must happen before the rename."""
    with open(path, "r+b") as file:  # Windows can only sync a writable file
        os.fsync(file.fileno())
