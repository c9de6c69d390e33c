"""What is wrong with a file or an argument, in one line."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from minisbert.core import InputError, one_line, read_json, reading
from minisbert.core.checks import RULES, check, check_fields, check_negatives, check_texts


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
        (b"\x93NUMPY\x01\0\x04\0(((\n", np.load, "f: "),
        (b"x", lambda path: (_ for _ in ()).throw(RuntimeError("two\nlines")), r"f: two\\nlines$"),
        (b"x", lambda path: (_ for _ in ()).throw(EOFError()), "f: EOFError"),
    ],
)
def test_whatever_reading_raises_names_the_file(tmp_path, content, read, message):
    path = tmp_path / "f"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught, reading(path):
        read(path)
    assert "\n" not in str(caught.value)


def test_a_panic_of_the_tokenizers_library_is_damage():
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
    with pytest.raises(InputError, match=r"^tokenizer\.json: (slice|byte) index"), reading("tokenizer.json"):
        Tokenizer.from_str(json.dumps({"model": model | {"continuing_subword_prefix": "##"}}))


def test_the_line_and_an_error_that_names_its_own_place(tmp_path):
    def texts(rows: list[str]) -> None:
        with reading("rows") as at:
            for at.line, row in enumerate(rows, start=1):
                json.loads(row)["text"]

    for rows, message in (
        (['{"text": "a"}', "{}"], "line 2: no key 'text'$"),
        (["{\n\n"], "line 1: not valid JSON"),  # the line of the file, not of the text that is parsed
    ):
        with pytest.raises(InputError, match=f"^rows, {message}"):
            texts(rows)
    for other in (KeyboardInterrupt, NameError):
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


ROWS, FLAT = torch.ones(2, 3), torch.ones(2)


def test_arguments_that_fit():
    check("u (B, D), v (B, D), target (B) in 0..1, weight above 0 and finite", ROWS, ROWS, FLAT, 2.0)
    check("u (N, D) finite, bits (Q, W) uint8, mode a|b", None, np.ones((2, 9), np.uint8), "b")


@pytest.mark.parametrize(
    ("rules", "values", "message"),
    [
        ("u (B, D), target (B)", (ROWS, torch.ones(3)), r"target must be \(B\), B = 2, D = 3, not \(3,\)"),
        ("u (B, B)", (ROWS,), r"u must be \(B, B\), not \(2, 3\)"),
        ("u (B)", (ROWS,), r"u must be \(B\), not \(2, 3\)"),
        ("u (B, D)", (FLAT,), r"u must be \(B, D\), not \(2,\)"),
        ("u (B, D)", (ROWS[:0],), r"u must be \(B, D\), not \(0, 3\)"),
        ("a above 0 and finite", (torch.inf,), "a must be above 0 and finite, not inf"),
        ("a at least 0 and below 1", ("0.1",), "a must be at least 0 and below 1, not '0.1'"),
        ("codes int8", ([1],), "codes must be int8"),
        ("mode ab|b", ("a",), r"mode must be ab\|b, not 'a'"),
        ("u (B), v (B)", (FLAT,), "zip"),
    ],
)
def test_arguments_that_do_not_fit(rules, values, message):
    with pytest.raises(ValueError, match=message):
        check(rules, *values)


T = torch.tensor
TINY, HUGE = 5e-324, 1.7e308  # the smallest and about the largest float64
BOUNDS = {  # on either side of each bound of a rule: what it keeps, what it refuses
    "0": ([0, 0.0], [TINY, -1, 1]),
    "0 or 1": ([0, 1, T([0, 1])], [TINY, -1, 2, T([0, 2])]),
    "True in every row": ([T([[0, 1], [1, 0]])], [T([[0, 0], [1, 1]])]),
    "above 0 and at most 2": ([TINY, 2], [-TINY, 0, 2.01, torch.nan]),
    "above 0 and below 1": ([TINY, 0.999], [0, -TINY, 1]),
    "above 0 and finite": ([TINY, HUGE], [0, -TINY, torch.inf, torch.nan]),
    "an integer from 1": ([1, 2**31 - 1], [0, -1, 2**31, 1.0, True]),
    "an integer from 0": ([0, 2**31 - 1], [-1, 2**31, 0.0, False]),
    "at least 0 and below 1": ([0, 0.999], [-TINY, 1, torch.nan]),
    "finite and not constant": ([np.array([0, TINY])], [np.ones(2), np.array([0, np.inf]), np.array([0, np.nan])]),
    "finite": ([HUGE, -HUGE, T([1e38, -1e38])], [torch.inf, -torch.inf, torch.nan, T([0, -torch.inf])]),
    "in -1..1": ([-1, 1, T([-1.0, 1.0])], [1.01, -1.01, T([0, torch.nan])]),
    "in 0..1": ([T([0.0, 1.0])], [T([0.5, -1e-44]), T([0.5, -1.0]), T([0.5, 1.01]), T([0.5, torch.nan])]),
    "of finite length": ([T([[1.2e19]] * 3)], [T([[0, 0], [1e20, 1e20]])]),
    "int8": ([np.int8([1])], [np.uint8([1]), np.int16([1])]),
    "uint8": ([np.uint8([1])], [np.int8([1]), np.uint16([1])]),
    "whole": ([T([1]), T([True])], [T([1.0])]),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_on_either_side_of_its_bounds(rule):
    kept, refused = BOUNDS[rule]
    for value in kept:
        check(f"x {rule}", value)
    for value in refused:
        with pytest.raises(ValueError, match=f"x must be {rule}, not"):
            check(f"x {rule}", value)


def test_fields_are_checked_by_their_annotations():
    @dataclass
    class Settings:
        size: Annotated[int, "an integer from 1"]
        name: str = ""

    check_fields(Settings(1))
    with pytest.raises(ValueError, match="size must be an integer from 1, not 0"):
        check_fields(Settings(0))
    with pytest.raises(KeyError, match="an integer above 0"):  # an unknown rule is not a list of values
        check("n an integer above 0", 1)


def test_one_row_has_negatives_only_if_they_are_given():
    check_negatives(ROWS)
    check_negatives(ROWS[:1], ROWS)
    with pytest.raises(ValueError, match="a batch of one has no negatives"):
        check_negatives(ROWS[:1])


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
