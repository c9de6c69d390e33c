"""Appendix: what is wrong with a file, a text, an argument or a setting, in one line.

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
    """A value for a message: quoted, cut at ``most`` characters, safe for any terminal."""
    shown = repr(text) if len(str(text)) <= most else repr(str(text)[:most]) + "..."
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in shown)


@dataclass
class Place:
    """Where a reader is, for its errors: the file, and the line if the reader sets it."""

    path: str | Path
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}" if self.line else str(self.path)


@contextmanager
def reading(path: str | Path) -> Iterator[Place]:
    """Any exception raised while reading a file becomes one ``InputError`` that names the file.

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
    """An error's place and meaning."""
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
    """The object (or list) in a JSON file; ``InputError`` says what is wrong with it, and in which line."""
    with reading(path):
        content = json.loads(Path(path).read_bytes())
        if not isinstance(content, kind):
            raise InputError(f"{path} must hold a JSON {kind.__name__}, not a {type(content).__name__}")
        return content


def check_texts(texts: Sequence[str]) -> list[str]:
    """The texts as a list; ``InputError`` unless they are a sequence of valid Unicode strings."""
    if isinstance(texts, str | dict | set) or hasattr(texts, "columns") or not hasattr(texts, "__len__"):
        found = "one string: put it in brackets" if isinstance(texts, str) else type(texts).__name__
        raise InputError(f"a list of texts is needed, not {found}")  # a generator would serve its first reader only
    texts = list(texts)  # read once: what has a length may still be an iterator
    for i, text in enumerate(texts):
        check_text(i, text)
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


# a rule -> whether a number or tensor satisfies it; any other rule lists the values allowed: "euclidean|cosine"
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
    """Raise ``ValueError`` unless the values satisfy the rules: ``check("u (B, D), target (B) in 0..1", u, target)``.

    Per value its name, its shape if it is a tensor, one of ``RULES`` if it has a range. A letter is the same size in
    every shape, and no size is 0. None is an optional argument that was left out.
    """
    sizes: dict[str, int] = {}
    for spec, value in zip(re.split(r", (?=[a-z])", rules), values, strict=True):
        ((name, shape, rule),) = re.findall(r"^(\w+)(?: (\([A-Z, ]+\)))?(?: (.+))?$", spec)
        if shape and value is not None:
            known = "".join(f", {letter} = {size}" for letter, size in sizes.items())
            letters = shape[1:-1].split(", ")
            fitting = tuple(sizes.setdefault(*pair) for pair in zip(letters, value.shape, strict=False))
            if fitting != value.shape or len(letters) != value.ndim or 0 in fitting:
                raise ValueError(f"{name} must be {shape}{known}, not {tuple(value.shape)}")
        if rule and value is not None:
            check_rule(name, value, rule)


def check_rule(name: str, value: Any, rule: str) -> None:
    try:
        kept = RULES[rule](value) if rule in RULES or " " in rule else value in rule.split("|")
    except (TypeError, AttributeError):  # a string where a number is needed, a list in place of a tensor
        kept = False
    if not (kept.all() if hasattr(kept, "all") else kept):
        raise ValueError(f"{name} must be {rule}, not {one_line(value)}")


def check_fields(settings: Any) -> None:
    """Raise ``ValueError`` unless each field of a dataclass that is ``Annotated`` with a rule satisfies it."""
    for name, kind in get_type_hints(type(settings), include_extras=True).items():
        for rule in getattr(kind, "__metadata__", ()):
            check_rule(name, getattr(settings, name), rule)


def check_negatives(anchors: Sized, hard_negatives: Sized | None = None) -> None:
    if len(anchors) < 2 and hard_negatives is None:
        raise ValueError("a batch of one has no negatives, so its loss is always 0: give 2 rows or more")
