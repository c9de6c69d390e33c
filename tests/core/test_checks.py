"""What is wrong with a file, a text or an argument, in one line."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from minisbert.core import InputError, one_line, read_json, reading
from minisbert.core.checks import (
    check_integer,
    check_number,
    check_one_of,
    check_shape,
    check_texts,
)


def parse_text(path: Path) -> object:
    return json.loads(path.read_text())["text"]


@pytest.mark.parametrize(
    ("content", "read", "message"),
    [
        (None, read_json, "f does not exist"),
        (b'{"a": 1,\n]', read_json, "f, line 2: not valid JSON"),
        (b"a \xff", read_json, "f: .*utf-8"),
        (b"null", read_json, "f must hold a JSON dict"),
        (b"{}", parse_text, "f: no key 'text'"),
        (b"x", load_file, "f .*safetensors"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, read, message):
    """A traceback of a parser does not say which file it was."""
    path = tmp_path / "f"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message), reading(path):
        read(path)


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path):
    """The system's reason, without its number."""
    with pytest.raises(InputError, match=f"^{tmp_path}: [^\\[]"):
        read_json(tmp_path)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TypeError, MemoryError])
def test_a_bug_stays_a_traceback(error):
    """It is no fault of the file."""
    with pytest.raises(error), reading("rows"):
        raise error


def test_an_error_that_names_its_own_place_passes_through():
    """The innermost place is the most exact."""
    with pytest.raises(InputError, match=r"^other: wrong$"), reading("rows"):
        raise InputError("other: wrong")


def test_a_list_may_be_asked_for(tmp_path):
    """``modules.json`` is one."""
    (tmp_path / "list.json").write_text("[1]")
    assert read_json(tmp_path / "list.json", kind=list) == [1]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\nb", r"'a\nb'"),
        ("\x1b[31m", r"'\x1b[31m'"),
        ("x" * 81, f"'{'x' * 80}'..."),
        ("x" * 80, f"'{'x' * 80}'"),
        (3, "3"),
        (np.array([[1], [2]]), r"array([[1],\n       [2]])"),
    ],
)
def test_a_value_in_a_message_is_short_and_safe(value, shown):
    assert one_line(value) == shown


ROWS = torch.ones(2, 3)


@pytest.mark.parametrize("sizes", [(2, 3), (None, 3), (None, None)])
def test_shapes_that_fit(sizes):
    check_shape("u", ROWS, *sizes)
    check_shape("u", ROWS.numpy(), *sizes)


@pytest.mark.parametrize(
    ("x", "sizes"), [(ROWS, (3, None)), (ROWS, (2,)), (ROWS, (2, 3, None)), (ROWS[:0], (None, 3))]
)
def test_shapes_that_do_not_fit(x, sizes):
    with pytest.raises(ValueError, match="u must have shape"):
        check_shape("u", x, *sizes)


@pytest.mark.parametrize("x", [None, "ab", [[1.0, 2.0]], 1])
def test_what_is_no_tensor_has_no_shape(x):
    """A list in place of a tensor is the likeliest mistake with a loss."""
    with pytest.raises(TypeError, match="u must be a tensor or an array, not"):
        check_shape("u", x, 2)


@pytest.mark.parametrize("value", [1, 2**31 - 1])
def test_integers_in_range(value):
    check_integer("n", value)


@pytest.mark.parametrize("value", [0, 2**31, 1.0, True, "1", None])
def test_integers_out_of_range_or_of_another_type(value):
    with pytest.raises(ValueError, match="n must be"):
        check_integer("n", value)


def test_a_size_may_be_0_if_asked():
    """A model may have no token types."""
    check_integer("n", 0, least=0)


@pytest.mark.parametrize("value", [0, 0.999])
def test_numbers_in_range(value):
    check_number("x", value, 0, 1)


@pytest.mark.parametrize("value", [-5e-324, 1, math.nan, "0.1", None, False])
def test_numbers_out_of_range_or_of_another_type(value):
    with pytest.raises(ValueError, match="x must be at least 0 and below 1"):
        check_number("x", value, 0, 1)


def test_a_number_just_above_its_bound():
    """The smallest that a float can hold."""
    check_number("x", 5e-324, 0, math.inf, above=True)


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan])
def test_numbers_that_must_be_above_their_bound(value):
    with pytest.raises(ValueError, match="x must be above 0 and below inf"):
        check_number("x", value, 0, math.inf, above=True)


def test_one_of_several_settings():
    check_one_of("mode", "b", ["a", "b"])
    with pytest.raises(ValueError, match="mode must be a or b"):
        check_one_of("mode", "ab", ["a", "b"])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("a cat", "brackets"),
        (iter(["a cat"]), "list_iterator"),
        ({"text": "a cat"}, "dict"),
        ({"a cat"}, "set"),
        (type("DataFrame", (list,), {"columns": ["text"]})(["a cat"]), "DataFrame"),
        (["a cat", None], "text 1 is not a string"),
        (["a \ud800"], "text 0 .*surrogate"),
    ],
)
def test_texts_that_cannot_be_encoded(texts, message):
    """Each would be read as something else than a list of texts, or fail far from here."""
    with pytest.raises(InputError, match=message):
        check_texts(texts)
