"""Reading and writing files so that nothing half-written ever looks whole."""

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from minisbert.core import InputError


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def atomic_file(target: str | Path) -> Iterator[Path]:
    """A temporary path beside ``target`` to write to; renamed to ``target`` on success, removed on any failure."""
    if Path(target).exists() and not Path(target).is_file():
        raise InputError(f"{target} is a folder or a device, a file is needed")
    target = Path(target).resolve()  # a link stays a link
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _beside(target, "partial")
    partial.touch()  # a folder that cannot be written to is told before the work is done
    try:
        yield partial
        _flush(partial)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(target: str | Path) -> Iterator[Path]:
    """A temporary folder beside ``target`` to fill; takes ``target``'s place on success, is removed on any failure.

    A folder that stands at ``target`` is replaced, and stays as it was until the new one is complete. Of several
    processes that write the same target at once, the last one stays.
    """
    target = Path(target).resolve()  # a link stays a link
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


def _take_place(partial: Path, target: Path) -> None:
    """Rename the folder ``partial`` to ``target``; the folder there before is removed, or put back on failure."""
    replaced = _beside(target, "replaced")
    try:
        while True:
            with suppress(FileNotFoundError):
                os.replace(target, replaced)
            try:
                os.replace(partial, target)
                return
            except OSError as error:
                # subtle: another process may have put its folder there since our last line; then ours replaces it
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) and not target.exists():
                    raise
                shutil.rmtree(replaced, ignore_errors=True)
    except BaseException:
        if replaced.exists() and not target.exists():
            os.replace(replaced, target)
        raise
    finally:
        shutil.rmtree(replaced, ignore_errors=True)


def _beside(target: Path, role: str) -> Path:
    """A hidden name next to ``target`` that no other process and no earlier, killed run uses."""
    return target.with_name(f".{target.name}.{role}-{secrets.token_hex(4)}")


def _flush(path: Path) -> None:
    """Wait until the file's bytes are on the disk: a rename must not outrun them."""
    with open(path, "r+b") as file:  # writable: Windows asks for it
        os.fsync(file.fileno())
