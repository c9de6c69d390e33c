"""What a cell or a JSON value may be."""

import time
from decimal import Decimal

import numpy as np
import pytest

from minisbert.data.values import as_number, parse_binary, parse_class, parse_score, parse_text


@pytest.mark.parametrize("value", ["a cat", " a cat\t", "[MASK] is a [token]", "b'c", "4.5"])
def test_a_text_is_stripped(value):
    assert parse_text(value) == value.strip()


@pytest.mark.parametrize("value", [None, "", "  ", float("nan")])
def test_nothing_is_no_text(value):
    """pandas has NaN for an empty cell of a column of texts."""
    assert parse_text(value) == ""


@pytest.mark.parametrize("value", [5, 4.5, ["a"], {"text": "a"}, True])
def test_another_value_is_no_text(value):
    with pytest.raises(ValueError, match="a text is needed, not"):
        parse_text(value)


@pytest.mark.parametrize("value", ["['a', 'b']", "['a' 'b']", "[{'a': 1}]", "[]"])
def test_a_list_that_pandas_wrote_is_no_text(value):
    """It would be trained as one text with brackets."""
    with pytest.raises(ValueError, match="a text is needed"):
        parse_text(value)


def test_bytes_that_python_printed_are_no_text():
    with pytest.raises(ValueError, match=r"bytes.*decode"):
        parse_text("b'\\xc3'")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("4.5", 4.5),
        (".5e1", 5.0),
        ("-0", 0.0),
        (7, 7.0),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (Decimal("1.5"), 1.5),
    ],
)
def test_a_number(value, expected):
    assert as_number(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        *("4,5", "nan", "1e999", "", "7 of 10", "1_000", "\u0663", "1" * 65),
        *(10**400, float("inf"), True, None, [1]),
    ],
)
def test_no_number(value):
    assert as_number(value) is None


def test_a_decimal_comma_counts_where_it_may():
    """Between semicolons, as spreadsheets write in half of Europe."""
    assert as_number("-4,5", comma=True) == -4.5
    assert as_number("1,000,5", comma=True) is None


def test_a_million_digits_are_refused_at_once():
    """A pattern that goes back for each digit needed days."""
    start = time.perf_counter()
    assert as_number("7" * 1_000_000 + "x") is None
    assert time.perf_counter() - start < 5


def test_a_missing_score_is_none_and_nan_an_error():
    assert parse_score("") is None
    assert parse_score(None) is None
    for value in ("nan", float("nan"), "high", True):
        with pytest.raises(ValueError, match=r"is not a number, such as 4.5"):
            parse_score(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("1", 1), ("0.0", 0), (1.0, 1), (True, 1), ("False", 0), ("", None), (None, None)],
)
def test_a_binary_label(value, expected):
    assert parse_binary(value) == expected


@pytest.mark.parametrize("value", ["2", "-1", "-", "yes", [0, 1]])
def test_no_binary_label(value):
    with pytest.raises(ValueError, match="is not 0 or 1"):
        parse_binary(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("refund", "refund"),
        ("3", "3"),
        (3.0, "3"),
        ("3.0", "3"),
        ("-", None),
        ("", None),
        (None, None),
        (float("nan"), None),
    ],
)
def test_a_class_is_a_string(value, expected):
    """A column of numbers with a gap has 3.0 for 3 in pandas; "-" is SNLI's for no agreement."""
    assert parse_class(value) == expected


@pytest.mark.parametrize("value", ["4.2", 4.2, [0, 1], {"x": []}, True])
def test_no_class(value):
    with pytest.raises(ValueError, match="is not one class"):
        parse_class(value)
