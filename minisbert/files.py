"""Reading and writing files so that nothing half-written ever looks whole."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minisbert.console import InputError


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file; ``InputError`` where it is missing, a folder, or not UTF-8 (with the line)."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder, a file is needed") from error
    return decode(content, str(path))


def decode(content: bytes, where: str) -> str:
    """UTF-8 bytes to text; ``InputError`` says in which line of ``where`` they are not UTF-8."""
    try:
        return content.decode("utf-8-sig")  # a byte order mark at the start is not text
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        byte = f"0x{content[error.start]:02x}"
        raise InputError(f"{where}, line {line}: not UTF-8 (byte {byte}); save it as UTF-8") from error


def read_json(path: str | Path, kind: type = dict) -> Any:
    """The object (or list) in a JSON file; ``InputError`` names the file where there is none."""
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: not valid JSON: {error.msg}") from error
    if not isinstance(content, kind):
        raise InputError(f"{path} must hold a JSON {kind.__name__}, not a {type(content).__name__}")
    return content


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def atomic_file(target: str | Path) -> Iterator[Path]:
    """A temporary path beside ``target`` to write to; renamed to ``target`` on success, removed on any failure."""
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
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

    A folder that stands at ``target`` is replaced, and stays as it was until the new one is complete.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    replaced = target.with_name(f".{target.name}.replaced-{os.getpid()}")
    partial.mkdir()
    try:
        yield partial
        for path in partial.rglob("*"):
            if path.is_file():
                _flush(path)
        if target.exists():
            os.replace(target, replaced)
        try:
            os.replace(partial, target)
        except OSError:
            if replaced.exists():
                os.replace(replaced, target)
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)


def _flush(path: Path) -> None:
    """Wait until the file's bytes are on the disk: a rename must not outrun them."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
