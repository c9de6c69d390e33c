"""Appendix: say in one line what is wrong with a file, a text or an argument.

The chapters check before their formulas, so that no check stands between a formula's lines.
"""

import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

from safetensors import SafetensorError


class InputError(ValueError):
    """The user's input cannot be used. The message says what is wrong, where, what was expected and what to do."""


def one_line(text: object, most: int = 80) -> str:
    """``repr`` for error messages: at most ``most`` characters, control characters escaped."""
    shown = repr(text) if len(str(text)) <= most else repr(str(text)[:most]) + "..."
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in shown)


@dataclass
class Place:
    """The file that is being read, for error messages, and its line if the reader sets it."""

    path: str | Path
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}" if self.line else str(self.path)


# what parsers raise; the last two come from headers of NumPy's files
PARSING = (ValueError, KeyError, OSError, EOFError, RecursionError, BadZipFile, zlib.error, SafetensorError)
PARSING += (SyntaxError, TokenError)


@contextmanager
def reading(path: str | Path) -> Iterator[Place]:
    """Turn what parsers raise at a damaged file into one ``InputError`` that names the file.

        with reading(path) as at:
            for at.line, line in enumerate(open(path), start=1):
                rows.append(json.loads(line)["text"])  # InputError: rows.jsonl, line 3: no key 'text'

    An ``InputError`` from inside passes through: it names its own place. So does everything else, such as a
    ``TypeError`` or ``MemoryError``: it is a bug of this package, or no fault of the file.
    """
    at = Place(path)
    try:
        yield at
    except InputError:
        raise
    except PARSING as error:
        raise InputError(damage(at, error)) from error
    except BaseException as error:
        # the tokenizers library raises a bare Exception, and panics at damaged tables
        if type(error) is Exception or type(error).__name__ == "PanicException":
            raise InputError(damage(at, error)) from error
        raise


def damage(at: Place, error: BaseException) -> str:
    """Describe an exception in one line: where it happened and what was wrong."""
    match error:
        case json.JSONDecodeError():
            return f"{Place(at.path, at.line or error.lineno)}: not valid JSON: {error.msg}"
        case UnicodeDecodeError():
            return f"{at}: not UTF-8 ({error.reason}); save it as UTF-8"
        case SafetensorError():
            return f"{at} is cut short or is not a safetensors file ({error}); fetch it again"
        case KeyError():
            return f"{at}: no key {one_line(error.args[0])}"
        case FileNotFoundError():
            return f"{error.filename or at.path} does not exist"
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"{at}: {one_line(said, 200)[1:-1]}"


def read_json(path: str | Path, kind: type = dict) -> Any:
    """Read the object (or list) of a JSON file; ``InputError`` says what is wrong with it, and in which line."""
    with reading(path):
        content = json.loads(Path(path).read_bytes())
        if not isinstance(content, kind):
            raise InputError(f"{path} must hold a JSON {kind.__name__}, not a {type(content).__name__}")
        return content


def check_texts(texts: Sequence[str]) -> list[str]:
    """Return the texts as a list; ``InputError`` unless they are a sequence of valid Unicode strings."""
    if isinstance(texts, str | dict | set) or hasattr(texts, "columns") or not hasattr(texts, "__len__"):
        found = "one string: put it in brackets" if isinstance(texts, str) else type(texts).__name__
        raise InputError(f"a list of texts is needed, not {found}")  # a generator would serve its first reader only
    texts = list(texts)  # read once: what has a length may still be an iterator
    for i in [i for i, text in enumerate(texts) if type(text) is not str or not text.isascii()]:  # ASCII is valid
        check_text(i, texts[i])
    return texts


def check_text(i: int, text: str) -> None:
    """Raise ``InputError`` with the index i unless ``text`` is a valid Unicode string."""
    if not isinstance(text, str):
        raise InputError(f"text {i} is not a string but {type(text).__name__}: {one_line(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"character {error.start} of {one_line(text)}"
        raise InputError(f"text {i} is not valid Unicode: a lone surrogate at {where}") from error


def check_shape(name: str, x: Any, *sizes: int | None) -> None:
    """Raise ``ValueError`` unless a tensor or array has these sizes; None stands for any size but 0.

    ``check_shape("v", v, len(u), None)`` wants a matrix with a row for each row of u.
    """
    fits = len(x.shape) == len(sizes)
    for given, wanted in zip(x.shape, sizes, strict=False):
        fits = fits and given > 0 and wanted in (None, given)
    if not fits:
        expected = ", ".join("any" if size is None else str(size) for size in sizes)
        raise ValueError(f"{name} must have shape ({expected}), not {tuple(x.shape)}")


def check_integer(name: str, value: object, least: int = 1) -> None:
    """Raise ``ValueError`` unless a size is an integer from ``least``, and below 2^31."""
    if type(value) is not int or not least <= value < 2**31:
        raise ValueError(f"{name} must be an integer from {least}, not {one_line(value)}")


def check_number(name: str, value: object, least: float, below: float, above: bool = False) -> None:
    """Raise ``ValueError`` unless a number is at least ``least``, or above it, and below ``below``."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (least < value if above else least <= value) or not value < below:  # type: ignore[operator]
        bound = f"above {least:g}" if above else f"at least {least:g}"
        raise ValueError(f"{name} must be {bound} and below {below:g}, not {one_line(value)}")


def check_one_of(name: str, value: object, allowed: Sequence[object]) -> None:
    """Raise ``ValueError`` unless a setting has one of the allowed values."""
    if value not in allowed:
        raise ValueError(f"{name} must be {' or '.join(map(str, allowed))}, not {one_line(value)}")
