"""Appendix: say in one line what is wrong with a file, a text or an argument.

What the library runs: all of this chapter, except

- ``reading``, ``read_json``: those of ``system/reading.py``, which know more that can be wrong with
  a file. They say the same by ``test_the_books_messages_are_the_same``.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError


class InputError(ValueError):
    """The user's input cannot be used.

    The message says what is wrong, where, what was expected and what to do.
    """


def one_line(text: object, limit: int = 80) -> str:
    """``repr`` for error messages: at most ``limit`` characters, control characters escaped."""
    quoted = repr(text)
    if len(str(text)) > limit:
        quoted = repr(str(text)[:limit]) + "..."

    line = ""
    for character in quoted:
        if character.isprintable():
            line += character
        else:
            line += repr(character)[1:-1]  # a line break becomes a backslash and an n
    return line


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Turn what goes wrong while a file is read into one ``InputError`` that names the file.

        with reading("config.json"):
            width = json.loads(content)["hidden_size"]  # config.json: no key 'hidden_size'

    An ``InputError`` from inside passes through: it names its own place. So does a bug, such as a
    ``TypeError``.
    """
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{error.filename or path} does not exist") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: not valid JSON: {error.msg}") from error
    except KeyError as error:
        raise InputError(f"{path}: no key {one_line(error.args[0])}") from error
    except SafetensorError as error:
        message = f"{path} is cut short or is not a safetensors file ({error}); fetch it again"
        raise InputError(message) from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def read_json(path: str | Path, kind: type = dict) -> Any:
    """Read the object (or list) of a JSON file; ``InputError`` if it is damaged or another kind."""
    with reading(path):
        content = json.loads(Path(path).read_bytes())
        if not isinstance(content, kind):
            raise InputError(
                f"{path} must hold a JSON {kind.__name__}, not a {type(content).__name__}"
            )
        return content


def check_texts(texts: Sequence[str], start: int = 0) -> list[str]:
    """Return the texts as a list; ``InputError`` unless they are a list of valid Unicode strings.

    They are counted from ``start`` in the message.
    """
    if isinstance(texts, str):
        raise InputError("a list of texts is needed, not one string: put it in brackets")
    # A dictionary, a set or a table has a length, too, and is no list. A generator has none: it
    # would serve its first reader only.
    is_table = hasattr(texts, "columns")
    if isinstance(texts, dict | set) or is_table or not hasattr(texts, "__len__"):
        raise InputError(f"a list of texts is needed, not {type(texts).__name__}")

    texts = list(texts)  # read once: what has a length may still be an iterator
    for i, text in enumerate(texts, start):
        if not isinstance(text, str):
            raise InputError(
                f"text {i} is not a string but {type(text).__name__}: {one_line(text)}"
            )
        # ASCII is always valid, and Python sees it at once. Only other texts are encoded to check.
        if text.isascii():
            continue
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"text {i} is not valid Unicode: a lone surrogate at character {error.start}"
            ) from error
    return texts


def check_shape(name: str, x: Any, *sizes: int | None) -> None:
    """Raise ``ValueError`` unless a tensor or array has these sizes; None is any size but 0.

    ``check_shape("v", v, len(u), None)`` wants a matrix with a row for each row of u. What is no
    tensor or array is a ``TypeError``.
    """
    if not hasattr(x, "shape"):
        raise TypeError(f"{name} must be a tensor or an array, not {type(x).__name__}")
    fits = len(x.shape) == len(sizes)
    # If there are more sizes on one side, ``fits`` is already False, and what is left over is not
    # compared.
    for actual, wanted in zip(x.shape, sizes, strict=False):
        if actual == 0:
            fits = False
        if wanted is not None and wanted != actual:
            fits = False

    if not fits:
        words = []
        for size in sizes:
            words.append("any" if size is None else str(size))
        raise ValueError(f"{name} must have shape ({', '.join(words)}), not {tuple(x.shape)}")


def check_integer(name: str, value: object, least: int = 1) -> None:
    """Raise ``ValueError`` unless a size is an integer from ``least``, and below 2^31."""
    # ``isinstance`` would take True for the integer 1.
    if type(value) is not int or not least <= value < 2**31:
        raise ValueError(f"{name} must be an integer from {least}, not {one_line(value)}")


def check_number(name: str, value: object, least: float, below: float, above: bool = False) -> None:
    """Raise ``ValueError`` unless a number is at least ``least`` and below ``below``.

    With ``above=True`` it must be above ``least``: it may not be equal to it.
    """
    fits = False
    # True and False are integers in Python.
    if isinstance(value, int | float) and not isinstance(value, bool):
        fits = least <= value < below
        if above and value == least:
            fits = False
    if not fits:
        bound = f"above {least:g}" if above else f"at least {least:g}"
        raise ValueError(f"{name} must be {bound} and below {below:g}, not {one_line(value)}")


def check_one_of(name: str, value: object, allowed: Sequence[object]) -> None:
    """Raise ``ValueError`` unless a setting has one of the allowed values."""
    if value not in allowed:
        choices = " or ".join(str(choice) for choice in allowed)
        raise ValueError(f"{name} must be {choices}, not {one_line(value)}")
