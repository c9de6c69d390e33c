"""Reading with errors that name file and line; atomic writes: a file or folder appears complete or not at all."""

import errno
import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path, PurePosixPath
from typing import IO

from filelock import BaseFileLock, FileLock, Timeout

from minisbert.core import InputError, one_line, reading

MOST_BYTES = 2**28  # of a model's files other than weights
LITTER = (".DS_Store", "Thumbs.db", "desktop.ini")  # file managers put these into every folder that is opened
LOCK, NEW, OLD = "lock", "new", "old"  # in a workspace: held by its writer, what is written, and what it replaces
BROKEN_DISK = (errno.ENOSPC, errno.EFBIG, errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC))


def decode(content: bytes, where: str, line: int = 1) -> str:
    """UTF-8 bytes to text; ``InputError`` names the first bad line, where ``line`` is the number of the first line."""
    try:
        if line == 1:
            return content.decode("utf-8-sig")  # a byte order mark at the start is not text
        return content.decode()
    except UnicodeDecodeError as error:
        line += error.object[: error.start].count(b"\n")
        byte = f"0x{error.object[error.start]:02x}"
        raise InputError(f"{where}, line {line}: not UTF-8 (byte {byte}); save it as UTF-8") from error


def open_bytes(path: str | Path) -> IO[bytes]:
    """Open a file for reading; ``InputError`` if it is missing, a folder, or a named pipe, which may have no writer."""
    if Path(path).is_dir():
        raise InputError(f"{path} is a folder, a file is needed")
    if Path(path).is_fifo() and not str(path).startswith("/dev/"):  # the shell's own: /dev/stdin, /dev/fd/63
        raise InputError(f"{path} is a pipe, a file is needed")
    with reading(path):
        return open(path, "rb")


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file; ``InputError`` if it is missing, a folder, or not UTF-8 (with the line)."""
    with open_bytes(path) as file:
        return decode(file.read(), str(path))


def write_json(path: Path, content: object) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    with naming(path):  # backslashes: JSON's own escapes for what UTF-8 cannot hold, bytes of a file's name
        path.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Add the file's name to the error of a full or broken disk: that of a failed write has none."""
    try:
        yield
    except OSError as error:
        if error.errno in BROKEN_DISK and error.filename is None:
            error.filename = str(path)
        raise


def check_ending(option: str, path: Path | None, *endings: str) -> None:
    """Raise ``InputError`` if the path that an option gives has another ending."""
    if path and path.suffix not in endings:
        raise InputError(f"{option} {path}: the name must end in {' or '.join(endings)}")


def check_output(out: str | Path | None, *inputs: str | Path | None) -> None:
    """Raise ``InputError`` if ``out`` is one of a command's inputs, lies in one or contains one, links followed."""
    if not out:
        return
    target = Path(os.path.realpath(out))
    for path in inputs:
        if not path or not os.path.exists(path):  # a model by its name, "-" for stdin
            continue
        source = Path(os.path.realpath(path))
        if target == source or (target.exists() and os.path.samefile(target, source)):
            relation = "is"
        elif target.is_relative_to(source):
            relation = "lies in"
        elif source.is_relative_to(target):
            relation = "contains"
        else:
            continue
        raise InputError(f"{out} {relation} {path}, which this command reads: write to another place")


@contextmanager
def atomic_file(target: str | Path) -> Iterator[Path]:
    """Yield a temporary path; rename it to ``target`` on success, remove it on any failure."""
    if Path(target).exists() and not Path(target).is_file():
        raise InputError(f"{target} is a folder or a device, a file is needed")
    with _workspace(target) as (target, workspace):
        new = workspace / NEW
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
    if Path(target).exists() and not Path(target).is_dir():
        raise InputError(f"{target} is a file or a device, a folder is needed")
    if Path.cwd().is_relative_to(os.path.realpath(target)):
        raise InputError(f"{target} cannot be replaced because it is the current folder; name another folder")
    with _workspace(target) as (target, workspace):
        new = workspace / NEW
        new.mkdir()
        yield new
        for path in new.rglob("*"):
            if path.is_file():
                flush(path)
        _swap(new, target, workspace / OLD)


def recover(target: str | Path) -> None:
    """Clean up after processes that were killed while they wrote ``target``; files in use by others are left alone.

    If one was killed between the two renames of ``atomic_folder``, the folder that it was replacing comes back.
    """
    target = Path(os.path.realpath(target))
    for workspace in target.parent.glob(f".{escape(target.name)}.partial-{'[0-9a-f]' * 8}"):
        # A lock shows whether the writer is alive, a process id does not: in containers that share a disk, every run
        # may have the same id. If the lock cannot be acquired, which is an OSError, nothing is removed.
        with suppress(OSError, NotImplementedError), FileLock(workspace / LOCK, blocking=False):
            _settle(workspace, target)


def lock(file: IO[str]) -> None:
    """Lock an open file until it is closed; ``BlockingIOError`` if it is in use. Without locks do nothing."""
    with suppress(ImportError):  # Windows
        import fcntl  # not FileLock, which may empty or delete the file

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # some network disks have no locks
            pass


def foreign_entries(folder: Path, replaceable: Collection[str]) -> list[str]:
    """The files and folders that replacing ``folder`` would lose, sorted, without the contents of those folders.

    ``replaceable`` are patterns of paths that may be lost, relative to ``folder``: ``[0-9]_Dense/config.json``. Links
    are not followed. Files of the system's file manager do not count.
    """
    replaceable_folders = {str(parent) for path in replaceable for parent in PurePosixPath(path).parents} | {
        *replaceable
    }
    foreign = []
    pending = [folder] if folder.is_dir() else []
    while pending:
        for path in pending.pop().iterdir():
            name = path.relative_to(folder).as_posix()
            patterns = replaceable_folders if path.is_dir() else replaceable
            is_replaceable = any(fnmatchcase(name, pattern) for pattern in patterns)
            if path.is_dir() and is_replaceable and not path.is_symlink():
                pending.append(path)
            elif not is_replaceable and (path.is_dir() or path.name not in LITTER):
                foreign.append(name)
    return sorted(foreign)


def listed(names: list[str], most: int = 3) -> str:
    """The first few names for a message: ``'.git', 'notes.txt', 'state' and 2 more``."""
    text = ", ".join(one_line(name) for name in names[:most])
    if len(names) > most:
        text += f" and {len(names) - most} more"
    return text


@contextmanager
def _workspace(target: str | Path) -> Iterator[tuple[Path, Path]]:
    """The target, links followed, and a hidden folder next to it that is locked while this process writes."""
    target = Path(os.path.realpath(target))  # replace what a link points to, not the link
    target.parent.mkdir(parents=True, exist_ok=True)
    recover(target)
    workspace, held = _create_workspace(target)
    try:
        with naming(target):
            yield target, workspace
    finally:
        held.release()  # Windows cannot delete an open file
        _settle(workspace, target)


def _create_workspace(target: Path) -> tuple[Path, BaseFileLock]:
    """A new folder for what becomes ``target``, and its lock."""
    while True:  # next to target, because a rename to another file system is not atomic
        workspace = target.with_name(f".{target.name}.partial-{secrets.token_hex(4)}")
        workspace.mkdir()
        held = FileLock(workspace / LOCK, blocking=False, thread_local=False)
        try:
            held.acquire()
        except (FileNotFoundError, FileExistsError, Timeout):
            continue  # subtle: before it was locked, recover in another process took it for a dead one's
        except (OSError, NotImplementedError):
            pass  # a disk without locks: nothing is removed there
        return workspace, held


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
