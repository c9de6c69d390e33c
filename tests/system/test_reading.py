"""What is wrong with a file, in one line, whatever its parser raises."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from tokenizers import Tokenizer

from minisbert.core import InputError, checks
from minisbert.system.reading import read_json, reading

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


# A header whose dtype is an order to a terminal, which the library quotes in its message.
HEADER = json.dumps({"a": {"dtype": "\x1b[2J", "shape": [0], "data_offsets": [0, 0]}}).encode()
ODD_TYPE = len(HEADER).to_bytes(8, "little") + HEADER


def parse(path: Path) -> object:
    return json.loads(path.read_text(encoding="utf-8"))


def parse_text(path: Path) -> object:
    return json.loads(path.read_text(encoding="utf-8"))["text"]


def refuse_in_two_lines(path: Path) -> None:
    raise ValueError("two\nlines")


def end_early(path: Path) -> None:
    raise EOFError


@pytest.mark.parametrize(
    ("content", "read", "message"),
    [
        (None, parse, "f does not exist"),
        (b'{"a": 1,\n]', parse, "f, line 2: not valid JSON"),
        (b"a \xff", parse, "f: not UTF-8"),
        (b"{}", parse_text, "f: no key 'text'"),
        (b"[" * 200_000, parse, "f: "),
        (b"null", read_json, "f must hold a JSON dict"),
        (b"x", load_file, "f .*safetensors"),
        (ODD_TYPE, load_file, r"f .*\\x1b\[2J"),
        (LFS_POINTER, load_file, "f is a Git LFS pointer"),
        (LFS_POINTER, read_json, "f is a Git LFS pointer"),
        (b"\x93NUMPY\x01\0\x04\0(((\n", np.load, "f: "),
        (b"x", refuse_in_two_lines, r"f: two\\nlines$"),
        (b"x", end_early, "f: EOFError"),
    ],
)
def test_what_parsers_raise_names_the_file(tmp_path, content, read, message):
    """A traceback of a parser says neither which file it was nor what to do."""
    path = tmp_path / "f"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught, reading(path):
        read(path)
    assert "\n" not in str(caught.value)


def test_a_panic_of_the_tokenizers_library_is_damage():
    """It is no ``Exception``, so no ordinary handler sees it."""
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
    damaged = json.dumps({"model": model | {"continuing_subword_prefix": "##"}})
    message = r"^tokenizer\.json: (slice|byte) index"
    with pytest.raises(InputError, match=message), reading("tokenizer.json"):
        Tokenizer.from_str(damaged)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (['{"text": "a"}', "{}"], "line 2: no key 'text'$"),
        (["{\n\n"], "line 1: not valid JSON"),  # not the line of the text that is parsed
    ],
)
def test_the_line_of_a_file_that_is_read_line_by_line(rows, message):
    """Of a million rows one must learn which is wrong."""

    def read() -> None:
        with reading("rows") as at:
            for at.line, row in enumerate(rows, start=1):
                json.loads(row)["text"]

    with pytest.raises(InputError, match=f"^rows, {message}"):
        read()


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, NameError, TypeError, AttributeError, MemoryError]
)
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
    ("content", "read"),
    [
        (None, parse),
        (b'{"a": 1,\n]', parse),
        (b"{}", parse_text),
        (b"x", load_file),
        (b"x", np.load),
    ],
)
def test_the_books_messages_are_the_same(tmp_path, content, read):
    """The book's ``reading`` knows less that can be wrong, and says the same of what it knows."""
    path = tmp_path / "f"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as ours, checks.reading(path):
        read(path)
    with pytest.raises(InputError) as theirs, reading(path):
        read(path)
    assert str(ours.value) == str(theirs.value)
