"""Appendix: say in one line what is wrong with a file, a text or an argument."""

import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tokenize import TokenError
from types import SimpleNamespace
from typing import Any
from zipfile import BadZipFile

from safetensors import SafetensorError


class InputError(ValueError):
    """The user's input cannot be used. The message says what is wrong, where, what was expected and
    what to do.
    """


def one_line(text: object, most: int = 80) -> str:
    """``repr`` for error messages: at most ``most`` characters, control characters escaped."""
    shown = repr(text) if len(str(text)) <= most else repr(str(text)[:most]) + "..."
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in shown
    )


# what parsers raise; the last two come from headers of NumPy's files
PARSING = (
    ValueError,
    KeyError,
    OSError,
    EOFError,
    RecursionError,
    BadZipFile,
    zlib.error,
    SafetensorError,
)
PARSING += (SyntaxError, TokenError)


@contextmanager
def reading(path: str | Path) -> Iterator[SimpleNamespace]:
    """Turn what parsers raise at a damaged file into one ``InputError`` that names the file.

        with reading(path) as at:
            for at.line, line in enumerate(open(path), start=1):
                rows.append(json.loads(line)["text"])  # InputError: rows.jsonl, line 3: no key 'text'

    An ``InputError`` from inside passes through: it names its own place. So does a bug, such as a
    ``TypeError``.
    """
    at = SimpleNamespace(line=0)
    try:
        yield at
    except BaseException as error:
        # the tokenizers library raises a bare Exception, and panics at damaged tables
        panic = type(error) is Exception or type(error).__name__ == "PanicException"
        if isinstance(error, InputError) or not (panic or isinstance(error, PARSING)):
            raise
        raise InputError(damage(path, at.line, error)) from error


def damage(path: str | Path, line: int, error: BaseException) -> str:
    """Describe an exception in one line: where it happened and what was wrong."""
    at = f"{path}, line {line}" if line else str(path)
    with suppress(OSError, ValueError):  # the file may be missing, or the path a description
        if 0 < Path(path).stat().st_size < 1024 and Path(path).read_bytes().startswith(
            b"version https://git-lfs"
        ):
            return f"{path} is a Git LFS pointer, not the file itself: git lfs pull fetches it"
    match error:
        case json.JSONDecodeError():
            return f"{path}, line {line or error.lineno}: not valid JSON: {error.msg}"
        case UnicodeDecodeError():
            return f"{at}: not UTF-8 ({error.reason}); save it as UTF-8"
        case SafetensorError():
            return f"{at} is cut short or is not a safetensors file ({error}); fetch it again"
        case KeyError():
            return f"{at}: no key {one_line(error.args[0])}"
        case FileNotFoundError():
            return f"{error.filename or path} does not exist"
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"{at}: {one_line(said, 200)[1:-1]}"


def read_json(path: str | Path, kind: type = dict) -> Any:
    """Read the object (or list) of a JSON file; ``InputError`` says what is wrong with it, and in
    which line.
    """
    with reading(path):
        content = json.loads(Path(path).read_bytes())
        if not isinstance(content, kind):
            raise InputError(
                f"{path} must hold a JSON {kind.__name__}, not a {type(content).__name__}"
            )
        return content


def check_texts(texts: Sequence[str], start: int = 0) -> list[str]:
    """Return the texts, counted from ``start``, as a list; ``InputError`` unless all are valid
    Unicode strings.
    """
    if (
        isinstance(texts, str | dict | set)
        or hasattr(texts, "columns")
        or not hasattr(texts, "__len__")
    ):
        found = "one string: put it in brackets" if isinstance(texts, str) else type(texts).__name__
        raise InputError(
            f"a list of texts is needed, not {found}"
        )  # a generator would serve its first reader only
    texts = list(texts)  # read once: what has a length may still be an iterator
    for i, text in enumerate(texts, start):
        if not isinstance(text, str):
            raise InputError(
                f"text {i} is not a string but {type(text).__name__}: {one_line(text)}"
            )
        try:
            text.isascii() or text.encode()  # ASCII is valid
        except UnicodeEncodeError as error:
            raise InputError(
                f"text {i} is not valid Unicode: a lone surrogate at character {error.start}"
            ) from error
    return texts


def check_shape(name: str, x: Any, *sizes: int | None) -> None:
    """Raise ``ValueError`` unless a tensor or array has these sizes; None stands for any size but
    0.
    """
    fits = [
        given > 0 and wanted in (None, given) for given, wanted in zip(x.shape, sizes, strict=False)
    ]
    if len(x.shape) != len(sizes) or not all(fits):
        expected = ", ".join("any" if size is None else str(size) for size in sizes)
        raise ValueError(f"{name} must have shape ({expected}), not {tuple(x.shape)}")


def check_integer(name: str, value: object, least: int = 1) -> None:
    """Raise ``ValueError`` unless a size is an integer from ``least``, and below 2^31."""
    if type(value) is not int or not least <= value < 2**31:
        raise ValueError(f"{name} must be an integer from {least}, not {one_line(value)}")


def check_number(name: str, value: object, least: float, below: float, above: bool = False) -> None:
    """Raise ``ValueError`` unless a number is at least ``least``, or above it, and below
    ``below``.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (least < value if above else least <= value) or not value < below:  # type: ignore[operator]
        bound = f"above {least:g}" if above else f"at least {least:g}"
        raise ValueError(f"{name} must be {bound} and below {below:g}, not {one_line(value)}")


def check_one_of(name: str, value: object, allowed: Sequence[object]) -> None:
    """Raise ``ValueError`` unless a setting has one of the allowed values."""
    if value not in allowed:
        raise ValueError(f"{name} must be {' or '.join(map(str, allowed))}, not {one_line(value)}")
