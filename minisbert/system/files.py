"""Reading with errors that name file and line; atomic writes: a file or folder appears complete or
not at all.
"""

import errno
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from minisbert.core import InputError, one_line
from minisbert.system.reading import reading

MOST_BYTES = 2**28  # of a model's files other than weights
NEW = "partial-"  # in the hidden name of what is being written
BROKEN_DISK = (errno.ENOSPC, errno.EFBIG, errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC))


def decode(content: bytes, where: str, line: int = 1) -> str:
    """Decode UTF-8 bytes; ``InputError`` names the first bad line, where ``line`` is the number of
    the first line.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line += error.object[: error.start].count(b"\n")
        byte = f"0x{error.object[error.start]:02x}"
        raise InputError(
            f"{where}, line {line}: not UTF-8 (byte {byte}); save it as UTF-8, or unpack it"
        ) from error


def open_bytes(path: str | Path) -> IO[bytes]:
    """Open a file for reading; ``InputError`` if it is missing, a folder, or a named pipe, which
    may have no writer.
    """
    if Path(path).is_dir():
        raise InputError(f"{path} is a folder, a file is needed")
    # the shell's own: /dev/stdin, /dev/fd/63
    if Path(path).is_fifo() and not str(path).startswith("/dev/"):
        raise InputError(f"{path} is a pipe, a file is needed")
    with reading(path):
        return open(path, "rb")


def read_text(path: str | Path) -> str:
    """Read a UTF-8 file; ``InputError`` if it is missing, a folder, or not UTF-8 (with the
    line).
    """
    with open_bytes(path) as file:
        return decode(file.read(), str(path)).removeprefix("\ufeff")  # a byte order mark


def write_json(path: Path, content: object) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    # backslashes: JSON's own escapes for what UTF-8 cannot hold, bytes of a file's name
    with naming(path):
        path.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Name the file in the error of a full or broken disk, which has no name, and in that of a
    hidden new file.
    """
    try:
        yield
    except OSError as error:
        if NEW in str(error.filename) or (error.errno in BROKEN_DISK and error.filename is None):
            error.filename = str(path)
        raise


def check_ending(option: str, path: Path | None, *endings: str) -> None:
    """Raise ``InputError`` unless the path that an option gives has one of these endings."""
    if path and path.suffix not in endings:
        raise InputError(f"{option} {path}: the name must end in {' or '.join(endings)}")


def check_output(out: str | Path | None, *inputs: str | Path | None) -> None:
    """Raise ``InputError`` if ``out`` overlaps one of a command's inputs, after resolving links."""
    if not out:
        return
    target = Path(os.path.realpath(out))
    for path in inputs:
        if not path or not os.path.exists(path):  # a model by its name
            continue
        source = Path(os.path.realpath(path))
        # samefile finds hard links and names that differ in case on a disk that ignores it; of a
        # pipe, /dev/fd/63, only the name as it was given can be opened
        same = target.exists() and os.path.samefile(target, path)
        if same or target.is_relative_to(source) or source.is_relative_to(target):
            raise InputError(
                f"{out} overlaps {path}, which this command reads: write to another place"
            )


@contextmanager
def atomic_file(target: str | Path) -> Iterator[Path]:
    """Yield a temporary path; rename it to ``target`` on success, remove it on any failure."""
    if Path(target).exists() and not Path(target).is_file():
        raise InputError(f"{target} is a folder or a device, a file is needed")
    target, new = beside(target)
    try:
        with naming(target):
            new.touch()
            yield new
            flush(new)
            os.replace(new, target)
    finally:
        with suppress(OSError):  # a read-only disk's, which would hide the error that is told
            new.unlink(missing_ok=True)


# what a model that is replaced may take along; tokenizer.json has what is in the vocabularies of
# older versions
OF_FORMER_MODEL = re.compile(
    r"\.gitattributes|vocab\.(txt|json)|merges\.txt|\d+_\w+/(config\.json|model\.safetensors)"
)


@contextmanager
def atomic_folder(target: str | Path) -> Iterator[Path]:
    """Yield a temporary folder; rename it to ``target`` on success, remove it on any failure.

    A model that is there is replaced; ``InputError`` if the folder has any other file that the new
    one lacks, which would be lost.
    """
    if not isinstance(target, str | os.PathLike):
        raise InputError(f"the path of a folder is needed, not {one_line(target)}")
    if Path(target).exists() and not Path(target).is_dir():
        raise InputError(f"{target} is a file or a device, a folder is needed")
    if Path.cwd().is_relative_to(os.path.realpath(target)):
        raise InputError(
            f"{target} cannot be replaced because it is the current folder; name another folder"
        )
    target, new = beside(target)
    try:
        with naming(target):
            new.mkdir()
            yield new
            flush(*(path for path in new.rglob("*") if path.is_file()))
            for path in [path for path in target.rglob("*") if not path.is_dir()]:
                name = path.relative_to(target)
                if not (new / name).exists() and not OF_FORMER_MODEL.fullmatch(name.as_posix()):
                    raise InputError(
                        f"{path} would be lost: move it away, or choose another folder than "
                        f"{target}"
                    )
            old = new.with_name(
                f"{new.name}.old"
            )  # renamed, so that a kill or a full disk here loses neither
            if target.is_dir():
                os.replace(target, old)
            try:
                os.replace(new, target)
            except OSError:
                if old.is_dir():
                    os.replace(old, target)
                raise
            shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def beside(target: str | Path) -> tuple[Path, Path]:
    """Return the target, links followed, and a new hidden name next to it, whose parent folder is
    made.
    """
    target = Path(os.path.realpath(target))  # replace what a link points to, not the link
    target.parent.mkdir(parents=True, exist_ok=True)
    # next to it, because a rename to another file system is not atomic; a token, because several
    # processes may write
    return target, target.with_name(f".{target.name}.{NEW}{secrets.token_hex(4)}")


def lock(file: IO[str]) -> None:
    """Lock an open file until it is closed; ``BlockingIOError`` if it is in use. Without locks do
    nothing.
    """
    with suppress(ImportError):  # Windows
        import fcntl  # not FileLock, which may empty or delete the file

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # some network disks have no locks
            pass


def listed(names: list[str], most: int = 3) -> str:
    """Format the first few names for a message: ``'.git', 'notes.txt', 'state' and 2 more``."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(one_line(name) for name in names[:most]) + rest


def flush(*paths: Path) -> None:
    """Force the files' bytes to disk, which must happen before the rename."""
    for path in paths:
        with open(path, "r+b") as file:  # Windows can only sync a writable file
            os.fsync(file.fileno())


def check_owner(path: Path) -> None:
    """Raise ``InputError`` if a user other than this one and root can change the file, or exchange
    it in its folder.
    """
    if not hasattr(os, "getuid"):  # Windows
        return
    import grp
    import pwd

    # Ubuntu and Fedora give each user a group of the same name, and make folders writable for it:
    # it has no one else
    private_group = None
    with suppress(KeyError):  # a container may run under a number that has no name
        user = pwd.getpwuid(os.getuid())
        group = grp.getgrgid(user.pw_gid)
        if group.gr_name == user.pw_name and not {*group.gr_mem} - {user.pw_name}:
            private_group = group.gr_gid
    file = Path(os.path.realpath(path))
    for place in (file, file.parent):
        status = place.stat()
        writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if status.st_gid == private_group:
            writable &= ~stat.S_IWGRP
        # in a folder with the sticky bit, such as /tmp, others can add files but not exchange ours
        if place.is_dir() and status.st_mode & stat.S_ISVTX:
            writable = 0
        if status.st_uid not in (0, os.getuid()) or writable:
            raise InputError(
                f"{path} is a program, and other users can change {place}: chown it, chmod go-w"
            )
