"""What is wrong with a file or an argument, in one line."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from minisbert.core import InputError, one_line, read_json, reading
from minisbert.core.checks import (
    check_integer,
    check_number,
    check_one_of,
    check_shape,
    check_texts,
)


@pytest.mark.parametrize(
    ("content", "read", "message"),
    [
        (None, Path.read_text, "f does not exist"),
        (b'{"a": 1,\n]', lambda path: json.loads(path.read_text()), "f, line 2: not valid JSON"),
        (b"a \xff", lambda path: path.read_text(encoding="utf-8"), "f: not UTF-8"),
        (b"{}", lambda path: json.loads(path.read_text())["text"], "f: no key 'text'"),
        (b"[" * 200_000, read_json, "f: "),
        (b"null", read_json, "f must hold a JSON dict"),
        (b"x", load_file, "f .*safetensors"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
            load_file,
            "f is a Git LFS pointer",
        ),
        (b"\x93NUMPY\x01\0\x04\0(((\n", np.load, "f: "),
        (b"x", lambda path: (_ for _ in ()).throw(ValueError("two\nlines")), r"f: two\\nlines$"),
        (b"x", lambda path: (_ for _ in ()).throw(EOFError()), "f: EOFError"),
    ],
)
def test_what_parsers_raise_names_the_file(tmp_path, content, read, message):
    path = tmp_path / "f"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught, reading(path):
        read(path)
    assert "\n" not in str(caught.value)


def test_a_panic_of_the_tokenizers_library_is_damage():
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
    with (
        pytest.raises(InputError, match=r"^tokenizer\.json: (slice|byte) index"),
        reading("tokenizer.json"),
    ):
        Tokenizer.from_str(json.dumps({"model": model | {"continuing_subword_prefix": "##"}}))


def test_the_line_and_an_error_that_names_its_own_place(tmp_path):
    def texts(rows: list[str]) -> None:
        with reading("rows") as at:
            for at.line, row in enumerate(rows, start=1):
                json.loads(row)["text"]

    for rows, message in (
        (['{"text": "a"}', "{}"], "line 2: no key 'text'$"),
        (
            ["{\n\n"],
            "line 1: not valid JSON",
        ),  # the line of the file, not of the text that is parsed
    ):
        with pytest.raises(InputError, match=f"^rows, {message}"):
            texts(rows)
    for other in (KeyboardInterrupt, NameError, TypeError, AttributeError, MemoryError):
        with pytest.raises(other), reading("rows"):
            raise other
    with pytest.raises(InputError, match=r"^other: wrong$"), reading("rows"):
        raise InputError("other: wrong")
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


def test_numbers_on_either_side_of_their_bounds():
    for value in (1, 2**31 - 1):
        check_integer("n", value)
    for value in (0, 2**31, 1.0, True, "1", None):
        with pytest.raises(ValueError, match="n must be"):
            check_integer("n", value)
    check_integer("n", 0, least=0)
    for value in (0, 0.999):
        check_number("x", value, 0, 1)
    for value in (-5e-324, 1, math.nan, "0.1", None, False):
        with pytest.raises(ValueError, match="x must be"):
            check_number("x", value, 0, 1)
    check_number("x", 5e-324, 0, math.inf, above=True)
    for value in (0, math.inf):
        with pytest.raises(ValueError, match="x must be"):
            check_number("x", value, 0, math.inf, above=True)
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
    with pytest.raises(InputError, match=message):
        check_texts(texts)
