"""Appendix: say in one line what is wrong with a file, a text, an argument or a setting.

The chapters call these functions before their formulas, so that no check stands between a formula's lines.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
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


@contextmanager
def reading(path: str | Path) -> Iterator[Place]:
    """Turn any exception raised while reading a file into one ``InputError`` that names the file.

        with reading(path) as at:
            for at.line, line in enumerate(open(path), start=1):
                rows.append(json.loads(line)["text"])  # InputError: rows.jsonl, line 3: no key 'text'

    An ``InputError`` from inside passes through: it names its own place.
    """
    at = Place(path)
    try:
        yield at
    except (InputError, NameError, AssertionError):  # the latter two are bugs of this package
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of the tokenizers library
            raise
        raise InputError(damage(at, error)) from error


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


# What ``check("u (B, D), target (B) in 0..1, distance euclidean|cosine", u, target, distance)`` reads: a name; a shape
# if it is a tensor, where a letter is one size in all shapes and no size is 0; then, if not every value will do, one of
# these rules, or a list of values between bars.
RULES = {
    "0": lambda x: x == 0,
    "0 or 1": lambda x: (x == 0) | (x == 1),
    "True in every row": lambda x: x.bool().any(dim=1),
    "above 0 and at most 2": lambda x: 0 < x <= 2,
    "above 0 and below 1": lambda x: 0 < x < 1,
    "above 0 and finite": lambda x: 0 < x < math.inf,
    "an integer from 1": lambda x: type(x) is int and 0 < x < 2**31,
    "an integer from 0": lambda x: type(x) is int and 0 <= x < 2**31,
    "at least 0 and below 1": lambda x: 0 <= x < 1,
    "finite and not constant": lambda x: np.isfinite(x).all() and x.min() < x.max(),
    "finite": lambda x: abs(x) < math.inf,
    "in -1..1": lambda x: abs(x) <= 1,
    "in 0..1": lambda x: (x >= 0) & (x <= 1),
    "of finite length": lambda x: x.norm(dim=-1).isfinite(),
    "int8": lambda x: x.dtype == np.int8,
    "uint8": lambda x: x.dtype == np.uint8,
    "whole": lambda x: not x.is_floating_point(),
}


def check(rules: str, *values: Any) -> None:
    """Raise ``ValueError`` unless the values satisfy the rules; None, an optional argument left out, always does."""
    sizes: dict[str, int] = {}
    for spec, value in zip(re.split(r", (?=[a-z])", rules), values, strict=True):  # a rule begins with a name
        name, _, rule = spec.partition(" ")
        if value is None:
            continue
        if rule.startswith("("):
            shape, _, rule = rule[1:].partition(")")
            given = "".join(f", {letter} = {size}" for letter, size in sizes.items())
            expected = tuple(sizes.setdefault(*pair) for pair in zip(shape.split(", "), value.shape, strict=False))
            if expected != value.shape or value.ndim != shape.count(",") + 1 or 0 in expected:
                raise ValueError(f"{name} must be ({shape}){given}, not {tuple(value.shape)}")
        if rule:
            check_rule(name, value, rule.strip())


def check_rule(name: str, value: Any, rule: str) -> None:
    try:
        fits = RULES[rule](value) if rule in RULES or " " in rule else value in rule.split("|")
    except (TypeError, AttributeError):  # a string where a number is needed, a list instead of a tensor
        fits = False
    if not (fits.all() if hasattr(fits, "all") else fits):
        raise ValueError(f"{name} must be {rule}, not {one_line(value)}")


def check_fields(settings: Any) -> None:
    """Raise ``ValueError`` unless each field of a dataclass that is ``Annotated`` with a rule satisfies it."""
    for name, kind in get_type_hints(type(settings), include_extras=True).items():
        for rule in getattr(kind, "__metadata__", ()):
            check_rule(name, getattr(settings, name), rule)


def check_negatives(anchors: Sized, hard_negatives: Sized | None = None) -> None:
    if len(anchors) < 2 and hard_negatives is None:
        raise ValueError("a batch of one has no negatives, so its loss is always 0: give 2 rows or more")
