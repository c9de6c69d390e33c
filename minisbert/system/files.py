"""Read with errors that name file and line; write files and folders complete or not at all."""

import ctypes
import errno
import glob
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from minisbert.core import InputError, one_line
from minisbert.system.reading import reading

MOST_BYTES = 2**28  # a model's file may have so many, if it does not hold weights
PARTIAL = "partial-"  # stands in the hidden name of what is being written
OLD = ".old"  # ends the hidden name of a folder that is being replaced
LOCKED_AFTER = 60  # seconds: a hidden folder that is younger may not have been locked yet
# Of Linux's headers: paths are relative to the current folder, and two names are exchanged.
AT_FDCWD = -100
RENAME_EXCHANGE = 2
# The numbers of the errors of a full or broken disk; Windows has no EDQUOT.
BROKEN_DISK = (errno.ENOSPC, errno.EFBIG, errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC))

# A model that is saved may lack these files of the one that it replaces. Older versions wrote
# vocabularies, which are now in tokenizer.json. macOS writes .DS_Store into every folder that
# somebody looks at.
OF_FORMER_MODEL = re.compile(
    r"\.gitattributes|vocab\.(txt|json)|merges\.txt|\d+_\w+/(config\.json|model\.safetensors)"
    r"|(.+/)?\.DS_Store"
)


def decode(content: bytes, where: str, line: int = 1) -> str:
    """Decode UTF-8 bytes that begin in the line number ``line`` of the file ``where``.

    Raises ``InputError`` with the first bad line.
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
    """Open a file for reading.

    Raises ``InputError`` if it is missing, a folder, or a named pipe, which may have no writer.
    """
    if Path(path).is_dir():
        raise InputError(f"{path} is a folder, a file is needed")
    # The shell's own pipes, /dev/stdin and /dev/fd/63, have a writer.
    if Path(path).is_fifo() and not str(path).startswith("/dev/"):
        raise InputError(f"{path} is a pipe, a file is needed")
    with reading(path):
        return open(path, "rb")


def read_text(path: str | Path) -> str:
    """Read a UTF-8 file, without a byte order mark.

    Raises ``InputError`` if it is missing, a folder, or not UTF-8 (with the line).
    """
    with open_bytes(path) as file:
        return decode(file.read(), str(path)).removeprefix("\ufeff")


def write_json(path: Path, content: object) -> None:
    """Write a JSON file that people can read."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    # Bytes of a file's name that UTF-8 cannot hold become JSON's own escapes.
    with naming(path):
        path.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Make errors of this block name the file ``path``, if they would help nobody otherwise.

    The error of a full or broken disk names no file. Others name the hidden file that is being
    written, whose name nobody knows.
    """
    try:
        yield
    except OSError as error:
        is_hidden = PARTIAL in str(error.filename)
        is_nameless = error.errno in BROKEN_DISK and error.filename is None
        if is_hidden or is_nameless:
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
        if not path or not os.path.exists(path):  # an option without a value, a model by its name
            continue
        source = Path(os.path.realpath(path))
        # samefile finds hard links, and names that differ in case on a disk that ignores it. It
        # gets the path as it was given: a pipe, /dev/fd/63, cannot be looked up by another name.
        same = target.exists() and os.path.samefile(target, path)
        if same or target.is_relative_to(source) or source.is_relative_to(target):
            raise InputError(
                f"{out} overlaps {path}, which this command reads: write to another place"
            )


def check_no_link(path: Path) -> None:
    """Raise ``InputError`` if a name that the program chose is a link to another place.

    In somebody else's folder ``curves.png`` may be a link to any file of the user. A path that the
    user gives may be a link: what it points to is replaced.
    """
    if path.is_symlink():
        raise InputError(
            f"{path} is a symbolic link, and what it points to would be overwritten: delete the "
            f"link, or choose another place"
        )


@contextmanager
def atomic_file(target: str | Path) -> Iterator[Path]:
    """Yield a temporary path; rename it to ``target`` on success, remove it on any failure."""
    if Path(target).exists() and not Path(target).is_file():
        raise InputError(f"{target} is a folder or a device, a file is needed")
    target = follow_link(target)
    with naming(target), hidden_folder(target) as folder:
        new = folder / target.name
        new.touch()
        yield new
        flush(new)
        os.replace(new, target)


@contextmanager
def atomic_folder(target: str | Path) -> Iterator[Path]:
    """Yield a temporary folder; rename it to ``target`` on success, remove it on any failure.

    A model that is there is replaced. Raises ``InputError`` if the folder has any other file that
    the new one lacks, which would be lost.
    """
    if not isinstance(target, str | os.PathLike):
        raise InputError(f"the path of a folder is needed, not {one_line(target)}")
    if Path(target).exists() and not Path(target).is_dir():
        raise InputError(f"{target} is a file or a device, a folder is needed")
    if Path.cwd().is_relative_to(os.path.realpath(target)):
        raise InputError(
            f"{target} cannot be replaced because it is the current folder; name another folder"
        )
    target = follow_link(target)
    with naming(target), hidden_folder(target) as new:
        yield new
        for path in new.rglob("*"):
            if path.is_file():
                flush(path)
        check_nothing_lost(target, new)
        replace_folder(target, new)


def follow_link(target: str | Path) -> Path:
    """Return the path that a link points to, which is replaced instead of the link."""
    return Path(os.path.realpath(target))


@contextmanager
def hidden_folder(target: Path) -> Iterator[Path]:
    """Yield a new hidden folder beside ``target``, locked, and remove it at the end.

    Only a process that is killed leaves one, and no lock on it: the next one that writes the same
    target removes it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)
    # Beside the target, because a rename to another file system is not atomic. With a random part,
    # because several processes may write.
    folder = target.with_name(f".{target.name}.{PARTIAL}{secrets.token_hex(4)}")
    try:
        folder.mkdir()
        with ExitStack() as stack:
            with suppress(OSError):  # Windows and some network disks have no locks
                stack.enter_context(locked(folder))
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(target: Path) -> None:
    """Remove the hidden folders of processes that were killed while they wrote ``target``."""
    hidden = f".{glob.escape(target.name)}.{PARTIAL}*"
    leftovers = [path for path in target.parent.glob(hidden) if path.is_dir()]
    # The old folders come first: whether one may be touched is seen from the new one beside it.
    for path in leftovers:
        if path.suffix == OLD:
            settle_replaced(path, target)
    for path in leftovers:
        if path.suffix != OLD and is_abandoned(path):
            shutil.rmtree(path, ignore_errors=True)


def settle_replaced(old: Path, target: Path) -> None:
    """Remove a folder that was being replaced; without a ``target`` it takes its place again.

    That is, if ``replace_folder`` was killed: between its two renames there is no target.
    """
    new = old.with_suffix("")
    if new.exists() and not is_abandoned(new):
        return  # a process is between the two renames now
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.replace(old, target)


def is_abandoned(folder: Path) -> bool:
    """Return whether no process is writing to a hidden folder, as far as one can know."""
    try:
        age = time.time() - folder.stat().st_mtime
        with locked(folder):
            return age > LOCKED_AFTER
    except OSError:  # it is in use or gone, or the disk has no locks
        return False


def check_nothing_lost(target: Path, new: Path) -> None:
    """Raise ``InputError`` for a file in ``target`` that is no model's and that ``new`` lacks."""
    for path in target.rglob("*"):
        if path.is_dir():
            continue
        name = path.relative_to(target)
        if not (new / name).exists() and not OF_FORMER_MODEL.fullmatch(name.as_posix()):
            raise InputError(
                f"{path} would be lost: move it away, or choose another folder than {target}"
            )


def replace_folder(target: Path, new: Path) -> None:
    """Rename the folder ``new`` to ``target``, and remove the folder that was there.

    Where the system cannot exchange the two in one step, the old one is renamed first, so that a
    kill or a full disk here loses neither.
    """
    if target.is_dir() and exchange(new, target):
        shutil.rmtree(new, ignore_errors=True)  # the name of what was there
        return
    old = new.with_name(f"{new.name}{OLD}")
    if target.is_dir():
        os.replace(target, old)
    try:
        os.replace(new, target)
    except OSError:
        if old.is_dir():
            os.replace(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two folders in one step; False where the system cannot.

    There is a folder of each name at every moment. Linux can, and Python has no function for it.
    """
    first_path = os.fsencode(first)
    second_path = os.fsencode(second)
    try:
        library = ctypes.CDLL(None)
        failed = library.renameat2(AT_FDCWD, first_path, AT_FDCWD, second_path, RENAME_EXCHANGE)
    except (OSError, AttributeError, TypeError):  # another system, or an old C library
        return False
    return failed == 0


def lock(file: IO[str]) -> None:
    """Lock an open file until it is closed. A system or disk without locks does nothing.

    Raises ``BlockingIOError`` if it is in use.
    """
    with suppress(ImportError):  # Windows
        import fcntl  # not FileLock, which may empty or delete the file

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # an OSError, too
            raise
        except OSError:  # some network disks have no locks
            pass


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder within this block; ``OSError`` if it is in use or cannot be locked."""
    try:
        import fcntl
    except ImportError as error:  # Windows
        raise OSError("this system has no locks") from error
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def listed(names: list[str], most: int = 3) -> str:
    """Format the first few names for a message: ``'.git', 'notes.txt', 'state' and 2 more``."""
    text = ", ".join(one_line(name) for name in names[:most])
    if len(names) > most:
        text += f" and {len(names) - most} more"
    return text


def flush(path: Path) -> None:
    """Force a file's bytes to disk, which must happen before the rename."""
    with open(path, "r+b") as file:  # Windows can only sync a writable file
        os.fsync(file.fileno())


def check_owner(path: Path) -> None:
    """Raise ``InputError`` if another user can change the file, or exchange it in its folder.

    Root may, who can do anything.
    """
    if not hasattr(os, "getuid"):  # Windows
        return
    own_group = private_group()
    file = Path(os.path.realpath(path))
    for place in (file, file.parent):
        if others_can_change(place, own_group):
            raise InputError(
                f"{path} is a program, and other users can change {place}: chown it, chmod go-w"
            )


def private_group() -> int | None:
    """Return the number of this user's own group, if there is no one else in it.

    Ubuntu and Fedora give each user a group of the same name, and make folders writable for it.
    """
    import grp
    import pwd

    with suppress(KeyError):  # a container may run under a number that has no name
        user = pwd.getpwuid(os.getuid())
        group = grp.getgrgid(user.pw_gid)
        others = set(group.gr_mem) - {user.pw_name}
        if group.gr_name == user.pw_name and not others:
            return group.gr_gid
    return None


def others_can_change(place: Path, own_group: int | None) -> bool:
    """Return whether a user other than this one and root can write to a file or folder."""
    status = place.stat()
    if status.st_uid not in (0, os.getuid()):
        return True
    # In a folder with the sticky bit, such as /tmp, others can add files but not exchange ours.
    if place.is_dir() and status.st_mode & stat.S_ISVTX:
        return False
    writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if status.st_gid == own_group:
        writable &= ~stat.S_IWGRP
    return writable != 0
