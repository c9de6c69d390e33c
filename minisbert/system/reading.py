"""Say in one line what is wrong with a file, whatever its parser raises.

The book has a plain ``reading`` for the files that it opens itself. This one knows more that can
be wrong: zip archives, NumPy's headers, Git LFS pointers, panics of the ``tokenizers`` library,
and the line of a file that is read line by line.
"""

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tokenize import TokenError
from types import SimpleNamespace
from typing import Any
from zipfile import BadZipFile

from safetensors import SafetensorError

from minisbert.core.checks import InputError, one_line

PARSING_ERRORS = (
    ValueError,
    KeyError,
    OSError,
    EOFError,
    RecursionError,
    BadZipFile,
    zlib.error,
    SafetensorError,
    SyntaxError,  # NumPy evaluates the header of its files, and raises this or the next
    TokenError,
)
LFS_POINTER = b"version https://git-lfs"
LONGEST_LFS_POINTER = 1024  # bytes


@contextmanager
def reading(path: str | Path) -> Iterator[SimpleNamespace]:
    """Turn what parsers raise at a damaged file into one ``InputError`` that names the file.

        with reading(path) as at:
            for at.line, line in enumerate(open(path), start=1):
                rows.append(json.loads(line)["text"])  # rows.jsonl, line 3: no key 'text'

    An ``InputError`` from inside passes through: it names its own place. So does everything else,
    such as a ``TypeError`` or ``MemoryError``: it is a bug of this package, or not the file's.
    """
    at = SimpleNamespace(line=0)
    try:
        yield at
    except InputError:
        raise
    except PARSING_ERRORS as error:
        raise InputError(damage(path, at.line, error) + cache_advice(path, error)) from error
    except BaseException as error:
        # The tokenizers library raises a bare Exception, and panics at damaged tables. The class of
        # a panic cannot be imported.
        if type(error) is Exception or type(error).__name__ == "PanicException":
            raise InputError(damage(path, at.line, error)) from error
        raise


def damage(path: str | Path, line: int, error: BaseException) -> str:
    """Describe an exception in one line: where it happened and what was wrong."""
    if is_lfs_pointer(path):
        return f"{path} is a Git LFS pointer, not the file itself: git lfs pull fetches it"

    place = str(path)
    if line:
        place = f"{path}, line {line}"
    match error:
        case json.JSONDecodeError():
            return f"{path}, line {line or error.lineno}: not valid JSON: {error.msg}"
        case UnicodeDecodeError():
            return f"{place}: not UTF-8 ({error.reason}); save it as UTF-8"
        case SafetensorError():
            reason = printable(str(error))
            return f"{place} is cut short or is not a safetensors file ({reason}); fetch it again"
        case KeyError():
            return f"{place}: no key {one_line(error.args[0])}"
        case FileNotFoundError():
            return f"{error.filename or path} does not exist"

    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    quoted = one_line(reason, 200)
    return f"{place}: {quoted[1:-1]}"  # without the quotation marks


def cache_advice(path: str | Path, error: Exception) -> str:
    """Say which file to delete if a damaged one is in the Hub's cache; "" for any other error."""
    if isinstance(error, SafetensorError | json.JSONDecodeError | UnicodeDecodeError):
        with suppress(OSError, ValueError):  # the path may be a description
            # The file itself, and not the link to it, which a download would only make again.
            file = Path(path).resolve()
            if any(part.startswith("models--") for part in file.parts):
                return f"; delete {file}, and the next load downloads it again"
    return ""


def printable(text: str, limit: int = 200) -> str:
    """Make a name out of somebody's file fit for a message: no control characters, and not long.

    As ``one_line``, but without quotation marks: ``printable("a\\x1b[2J") = "a\\\\x1b[2J"``.
    """
    line = ""
    for character in text[:limit]:
        if character.isprintable():
            line += character
        else:
            line += repr(character)[1:-1]
    if len(text) > limit:
        line += "..."
    return line


def is_lfs_pointer(path: str | Path) -> bool:
    """Return whether a file is the few lines that Git stores in place of a large file."""
    with suppress(OSError, ValueError):  # it may be missing, or the path a description
        if 0 < Path(path).stat().st_size < LONGEST_LFS_POINTER:
            return Path(path).read_bytes().startswith(LFS_POINTER)
    return False


def read_json(path: str | Path, kind: type = dict) -> Any:
    """Read the object (or list) of a JSON file; ``InputError`` if it is damaged or another kind."""
    with reading(path):
        content = json.loads(Path(path).read_bytes())
        if not isinstance(content, kind):
            raise InputError(
                f"{path} must hold a JSON {kind.__name__}, not a {type(content).__name__}"
            )
        return content
