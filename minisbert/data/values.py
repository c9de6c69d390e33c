"""What a cell or a JSON value may be: a text, a score, 0 or 1, a class.

Each ``parse_`` function returns None (for a text "") if there is nothing, as in an empty cell, and
raises ``ValueError`` for what cannot be used.
"""

import math
import re
from decimal import Decimal  # a type of Parquet
from numbers import Real  # of NumPy's numbers too
from typing import Any

from minisbert.core import one_line

# a list in a cell, as pandas writes it, is no text; "[MASK] is a [token]" is one
LIST = re.compile(r"\[(\s*['\"{].*)?\]", re.DOTALL)
BYTES = re.compile(r"b(['\"]).*\1", re.DOTALL)  # bytes in a cell, as Python prints them
LONGEST_NUMBER = 64  # characters; a float64 has 17 digits that count
DECIMAL_COMMA = re.compile(r"[-+]?[0-9]*,[0-9]+")


def parse_text(value: Any) -> str:
    """A text without the white space around it; no list or bytes that somebody wrote as a text."""
    if not isinstance(value, str):
        if is_missing(value):
            return ""
        raise ValueError(f"a text is needed, not {one_line(value)}")
    text = value.strip()
    if not text.isascii():
        check_unicode(text)
    if text.startswith("[") and LIST.fullmatch(text):
        raise ValueError(f"a text is needed, not {one_line(value)}")
    if text.startswith("b") and BYTES.fullmatch(text):
        raise ValueError(
            f"a text is needed, not Python's bytes, {one_line(value)}: decode them first"
        )
    return text


def check_unicode(text: str) -> None:
    """Raise ``ValueError`` for half of a UTF-16 pair, which Python may hold and no UTF-8 has."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{one_line(text)} is not valid Unicode: a lone surrogate at character {error.start}"
        ) from error


def is_missing(value: Any) -> bool:
    """Whether a value is nothing: None, an empty text, or pandas' NaN in a column of texts."""
    return is_empty(value) or (isinstance(value, float) and math.isnan(value))


def is_empty(value: Any) -> bool:
    """Whether a value is None, an empty text, or pandas' ``NA`` or ``NaT``."""
    if isinstance(value, str):
        return value == ""
    # pandas need not be installed, and its NA is neither equal to itself nor different
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def as_number(value: Any, comma: bool = False) -> float | None:
    """A cell or a JSON value as a finite number, ``as_number("4.5") = 4.5``; None if it is none.

    With ``comma`` also ``as_number("4,5", comma=True) = 4.5``.
    """
    if isinstance(value, str):
        # The length comes first: a cell of a million digits would take long to read. ``float`` also
        # takes 1_000, and the digits of other scripts.
        if len(value) > LONGEST_NUMBER or not value.isascii() or "_" in value:
            return None
        if comma and DECIMAL_COMMA.fullmatch(value):
            value = value.replace(",", ".")
    elif isinstance(value, bool) or not isinstance(value, Real | Decimal):
        return None
    try:
        finite = float(value)
    except (ValueError, OverflowError):  # a word, or a whole number with over 300 digits
        return None
    if not math.isfinite(finite):
        return None
    return finite


def parse_score(value: Any, comma: bool = False) -> float | None:
    """A score, which is any number: ``parse_score("4.5") = 4.5``.

    NaN is an error, unlike in a column of texts: there pandas writes it for nothing.
    """
    if is_empty(value):
        return None
    score = as_number(value, comma)
    if score is None:
        advice = ""
        if isinstance(value, str):
            advice = "; words are classes, which the loss softmax reads"
        raise ValueError(f"the score {one_line(value)} is not a number, such as 4.5{advice}")
    return score


def parse_binary(value: Any) -> int | None:
    """0 or 1, also as ``1.0`` or ``True``."""
    if is_empty(value):
        return None
    if str(value).lower() == "true":
        return 1
    if str(value).lower() == "false":
        return 0
    label = as_number(value)
    if label not in (0.0, 1.0):
        raise ValueError(f"the label {one_line(value)} is not 0 or 1")
    return int(label)


def parse_class(value: Any) -> str | None:
    """The name of a class: ``parse_class(3.0) = "3"``. "-" is SNLI's for no agreement, so none."""
    if is_missing(value) or (isinstance(value, str) and value == "-"):
        return None
    whole = as_number(value)
    if isinstance(value, str) and whole is None:
        return value.strip()
    if whole is None or whole % 1:
        raise ValueError(f"the label {one_line(value)} is not one class")
    return str(int(whole))
