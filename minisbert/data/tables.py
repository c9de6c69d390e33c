"""A file to its records.

What counts as a line, a cell and a value is decided here, for all commands:

- A file is UTF-8, with or without a byte order mark. A .gz is unpacked, and of SNLI's .zip a split.
- A line ends in LF or CRLF; other line separators in it are text. Cells are stripped of spaces.
- A table has a header. Of tab, semicolon and comma the first that the header has outside quotation
  marks separates its cells. Quotation marks enclose a cell and are doubled in it, as RFC 4180 and
  pandas have it; with ``quotes=False`` they are text.
- JSON is an object in each line, or in a .json one array of objects. A string is a text.
- Parquet needs pyarrow; a folder that ``datasets`` saved needs that package.

Which of the columns are read is decided in ``columns``.
"""

import csv
import gzip
import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any

from minisbert.core import InputError, one_line
from minisbert.data.records import (
    ROWS_AT_A_TIME,
    Record,
    Records,
    Refuse,
    is_saved_dataset,
    object_records,
    place_of,
    refusal,
    saved_dataset,
)
from minisbert.system.console import warn
from minisbert.system.files import decode, listed, open_bytes

LONGEST_LINE = 2**22  # bytes; tokenizing a text takes over a hundred times its size
LARGEST_ARRAY = 2**30  # bytes of a .json, which is read whole
# Commas and opening brackets in it. There is about one for each value, and the smallest value takes
# some 60 bytes of memory.
MOST_VALUES = 2**25
# Text shrinks to a third or a twentieth in a .gz or .zip. A file that grows 300 times when it is
# unpacked, to more than 1 MiB, was made to fill a memory.
LARGEST_GROWTH = 300
UNCHECKED_GROWTH = 2**20  # bytes

SEPARATORS = {"\t": "tabs", ";": "semicolons", ",": "commas"}  # in the order of preference
TABLE_ENDINGS = (".csv", ".tsv")
JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
# The first line says that a file of another name, such as a pipe, is JSON: "{", "[", "[{", an
# object with a key, or an array of texts or arrays. "[1] a note" is text.
JSON_START = re.compile(r'\[?\s*(\{\s*("|$)|$)|\[\s*[\["].*\]$')
ARRAY_START = re.compile(r"\ufeff?\s*\[")
# MultiNLI has two dev files, and the labels of its test files are secret
TWO_DEVS = {"dev": "dev_matched", "test": "dev_mismatched"}

# Files whose bytes may be text but that hold no texts: how they begin, what they are, what to do.
NO_TEXTS = {
    b"\xff\xfe": "UTF-16: save it as UTF-8",
    b"\xfe\xff": "UTF-16: save it as UTF-8",
    b"<!doctype html": "a web page: fetch the file itself, or extract the texts",
    b"<html": "a web page: fetch the file itself, or extract the texts",
    b"<?xml": "XML: extract the texts, one per line, or write a .csv or .jsonl",
    b"{\\rtf": "rich text (RTF): save it as plain text in UTF-8",
    b"version https://git-lfs.github.com/spec/v1": "a Git LFS pointer: fetch what it points to "
    "(git lfs pull)",
}

Lines = Iterator[tuple[int, str]]  # the number and the text of each line
TableRows = Iterator[tuple[int, list[str]]]  # the number of each row's first line, and its cells


def open_records(
    path: str | Path,
    *,
    quotes: bool = True,
    last_number: int = 0,
    is_text: bool = False,
    split: str = "",
    strict: bool = True,
    refuse: Refuse | None = None,
) -> Records:
    """Open a file once, look at its beginning, and return its records.

    ``last_number`` is the number of the last column that is read of a table without a header; 0 is
    a table with one. ``is_text``: a file that is not called a table and is no JSON has a text in
    each line. ``split`` selects from an archive or a saved data set. Without ``strict``, text may
    follow a closing quotation mark. ``refuse`` takes rows that are no records; by default they are
    errors.
    """
    if is_saved_dataset(path):
        return saved_dataset(path, split)
    ending = ending_of(path)
    if ending == ".parquet":
        return parquet_records(path)

    # A .json that begins with a bracket is one array; any other has an object in each line.
    stream, name = open_stream(path, split)
    if ending == ".json" and ARRAY_START.match(stream.peek(512).decode(errors="replace")):
        return object_records(name, array_values(stream, name), "item", refuse)

    # The first line that is not blank says what the file holds.
    lines = read_lines(stream, name)
    first_number, first_line = first_line_of(lines, name)
    lines = all_lines(first_number, first_line, lines)

    is_table = ending in TABLE_ENDINGS
    if ending in JSON_ENDINGS or (not is_table and JSON_START.match(first_line.strip())):
        return object_records(name, json_values(lines, name), "line", refuse)
    if is_text and not is_table:
        return text_records(name, lines)

    # What is left is a table.
    separator = separator_of(first_line, quotes)
    rows = table_rows(lines, separator, name, quotes, strict)
    refuse = refuse or refusal(name)
    if last_number:
        return numbered_records(name, rows, separator, last_number, refuse)
    return table_records(name, rows, separator, refuse)


def ending_of(path: str | Path) -> str:
    """The ending of a name in lower case, without that of a compression."""
    name = Path(str(path).lower())
    if name.suffix == ".gz":
        name = Path(name.stem)
    return name.suffix


def first_line_of(lines: Lines, name: str) -> tuple[int, str]:
    """The first line that is not blank, and its number; ``InputError`` if there is none."""
    for number, line in lines:
        if line.strip(" \t"):
            return number, line
    raise InputError(f"{name} is empty: it holds no text")


def all_lines(first_number: int, first_line: str, rest: Lines) -> Lines:
    """All lines of a file whose first that is not blank has been looked at.

    The blank ones before it count too: text i of a file of texts is in line i.
    """
    for number in range(1, first_number):
        yield number, ""
    yield first_number, first_line
    yield from rest


def text_records(name: str, lines: Lines) -> Records:
    """A text in each line."""

    def items() -> Iterator[tuple[int, Record]]:
        for number, line in lines:
            yield number, {"text": line}

    return Records(name, ["text"], items(), is_text=True)


# -------------------------------------------------------------------------------- bytes and lines


def file_lines(path: str | Path) -> Lines:
    """The number and the text of each line of a file."""
    stream, name = open_stream(path)
    return read_lines(stream, name)


def open_stream(path: str | Path, split: str = "") -> tuple[Any, str]:
    """Open a file, unpacked: a buffered stream of bytes, and its name with the file in an archive.

    Raises ``InputError`` for what is no file, and for files that are known to hold no texts.
    """
    name = str(path)
    stream: Any = open_bytes(path)
    ending = Path(name).suffix.lower()
    try:
        if ending == ".gz":
            # buffered, because its own readline takes several times as long
            stream = BufferedReader(gzip.GzipFile(fileobj=stream))
        elif ending == ".zip":
            stream, name = open_member(stream, name, split)
        start = stream.peek(64).lower()
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise damaged(name, error) from error

    for mark, meaning in NO_TEXTS.items():
        if start.startswith(mark):
            raise InputError(f"{name} is {meaning}")
    return stream, name


def open_member(stream: Any, name: str, split: str) -> tuple[Any, str]:
    """Open the file of a split in an NLI archive: ``snli_1.0/snli_1.0_dev.jsonl``."""
    archive = zipfile.ZipFile(stream)

    # subtle: the NLI archives were made on a Mac, so every file has a twin,
    # __MACOSX/snli_1.0/._snli_1.0_dev.jsonl
    files = []
    for member in archive.namelist():
        if not member.startswith("__MACOSX/") and not member.endswith("/"):
            files.append(member)

    endings = [f"_{split}.jsonl"]
    if split in TWO_DEVS:
        endings.append(f"_{TWO_DEVS[split]}.jsonl")
    chosen = [member for member in files if member.endswith(tuple(endings))]
    if len(chosen) != 1:
        raise InputError(
            f"{name} has {listed(files, 5)}, not one file of a split {one_line(split)}: unpack it, "
            f"and give one of them"
        )

    # No more bytes than the archive says are read.
    name = f"{name}/{chosen[0]}"
    sizes = archive.getinfo(chosen[0])
    limit = max(UNCHECKED_GROWTH, LARGEST_GROWTH * sizes.compress_size)
    if sizes.file_size > limit:
        raise grown(name, sizes.file_size, sizes.compress_size)

    try:
        opened: Any = archive.open(chosen[0])
    except (RuntimeError, NotImplementedError) as error:  # a password, or an unusual compression
        raise InputError(f"{name}: {error}") from error
    # subtle: buffered, because an archive's own readline with a limit takes ten times as long
    return BufferedReader(opened), name


def damaged(name: str, error: Exception) -> InputError:
    return InputError(f"{name}: {error}; the file is damaged, or not what its name says")


def read_lines(stream: Any, name: str, longest: int = LONGEST_LINE) -> Lines:
    """Yield the number and the text of each line, without its end; close the stream at its end."""
    total = 0
    number = 0
    try:
        with stream:
            # subtle: text streams also split at other separators, such as U+0085 and U+2028,
            # inside a sentence
            while content := stream.readline(longest + 1):
                number += 1
                total += len(content)
                if total > UNCHECKED_GROWTH:
                    check_growth(stream, total, name)

                # few lines have one of these, and most of those are no error
                if b"\0" in content or len(content) > longest or b"\r" in content[:-2]:
                    check_line(content, place_of(name, "line", number), number, longest)

                line = decode(content, name, number).removesuffix("\n").rstrip("\r")
                # a byte order mark may also stand where one file was appended to another
                yield number, line.lstrip("\ufeff")
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise damaged(name, error) from error


def check_line(content: bytes, place: str, number: int, longest: int) -> None:
    """Raise ``InputError`` for bytes that are no line of a text."""
    if b"\0" in content:
        raise InputError(f"{place}: a NUL byte, so this is no text; save it as UTF-8, or unpack it")
    if number == 1 and not content.endswith(b"\n") and b"\r" in content.rstrip(b"\r"):
        raise InputError(f"{place}: lines end in CR alone; convert them: tr '\\r' '\\n'")
    if len(content) > longest:
        raise InputError(f"{place}: longer than {longest:,} bytes; split the text")


def check_growth(stream: Any, total: int, name: str) -> None:
    """Raise ``InputError`` for a .gz that has grown out of proportion."""
    unpacked = getattr(stream, "raw", None)
    if not isinstance(unpacked, gzip.GzipFile):
        return
    packed: Any = unpacked.fileobj
    if packed.seekable() and total > LARGEST_GROWTH * packed.tell():
        raise grown(name, total, packed.tell())


def grown(name: str, unpacked: int, packed: int) -> InputError:
    return InputError(
        f"{name}: {unpacked:,} bytes came out of {packed:,}, more than {LARGEST_GROWTH} times as "
        f"many; unpack it first, if that is right"
    )


# ----------------------------------------------------------------------------------------- tables


def table_records(name: str, rows: TableRows, separator: str, refuse: Refuse) -> Records:
    """The rows of a table by the names in its header."""
    _, header = next(rows)  # there is one: the first line is not blank

    def items() -> Iterator[tuple[int, Record]]:
        for number, cells in rows:
            if len(cells) != len(header):
                between = f"{len(cells)} cells between {SEPARATORS[separator]}"
                refuse(number, f"{between}; the header has {len(header)}")
            elif cells == header:
                refuse(number, "the header again; delete the line")
            else:
                yield number, dict(zip(header, cells, strict=True))

    return Records(name, header, items(), separator=separator)


def numbered_records(
    name: str, rows: TableRows, separator: str, last_number: int, refuse: Refuse
) -> Records:
    """The rows of a table without a header, whose columns are called "1", "2" and so on.

    A row must have the cells that are read; others may lack.
    """
    first_number, first_cells = next(rows)  # there is one: the first line is not blank
    width = len(first_cells)
    names = [str(i) for i in range(1, 1 + max(width, last_number))]

    def fits(cells: list[str]) -> bool:
        """Whether a row has the cells that are read, where the first row has them.

        Between tabs a row may be longer than the first, as in the STS Benchmark's own files; a
        comma in a text that is not quoted would shift the columns.
        """
        if len(cells) < last_number:
            return False
        return len(cells) <= width or separator == "\t"

    def items() -> Iterator[tuple[int, Record]]:
        for number, cells in chain([(first_number, first_cells)], rows):
            if fits(cells):
                yield number, dict(zip(names, cells, strict=False))
            else:
                refuse(
                    number,
                    f"{len(cells)} cells between {SEPARATORS[separator]}; the first line has "
                    f"{width}, --columns needs {last_number}",
                )

    return Records(name, names, items(), separator=separator, is_numbered=True)


def separator_of(header: str, quotes: bool = True) -> str:
    """Of tab, semicolon and comma the first that stands outside quotation marks; else a comma.

    ``separator_of('"a;b",c') = ","``
    """
    if quotes:
        header = re.sub('"[^"]*"', "", header)
    for separator in SEPARATORS:
        if separator in header:
            return separator
    return ","


def table_rows(lines: Lines, separator: str, name: str, quotes: bool, strict: bool) -> TableRows:
    """The rows of a table, whose quotation marks enclose cells or are text."""
    if quotes:
        return quoted_rows(lines, separator, name, strict)
    return bare_rows(lines, separator)


def bare_rows(lines: Iterable[tuple[int, str]], separator: str) -> TableRows:
    """Yield line number and cells of each row; quotation marks are text."""
    for number, line in lines:
        if separator in line or line.strip(" \t"):  # a line of tabs is a row of empty cells
            yield number, [cell.strip() for cell in line.split(separator)]


class RowLines:
    """The lines of a table for ``csv.reader``, which tell where the current row begins.

    Whoever reads calls ``start_row`` before each row: between rows a blank line is skipped, within
    a cell it is text.
    """

    def __init__(self, lines: Iterable[tuple[int, str]], separator: str, longest: int):
        self.lines = iter(lines)
        self.separator = separator
        self.longest = longest
        self.begin = 0  # the number of the first line of the row
        self.size = 0  # the length of its lines so far

    def start_row(self) -> None:
        self.size = 0

    def __iter__(self) -> "RowLines":
        return self

    def __next__(self) -> str:
        number, line = next(self.lines)
        if self.size == 0:  # the row begins
            while self.separator not in line and not line.strip(" \t"):
                number, line = next(self.lines)
            self.begin = number
        self.size += len(line) + 1
        if self.size > self.longest:
            raise csv.Error(f"a row longer than {self.longest:,} characters")
        # The end of the line is part of a cell that goes on: without it the last word of the line
        # would run into the first of the next.
        return line + "\n"


def quoted_rows(
    lines: Iterable[tuple[int, str]],
    separator: str,
    name: str,
    strict: bool = True,
    longest: int = LONGEST_LINE,
) -> TableRows:
    """Yield the number of each row's first line and its cells, which may span several lines."""
    csv.field_size_limit(max(csv.field_size_limit(), longest))  # 128 KiB by default
    row_lines = RowLines(lines, separator, longest)
    reader = csv.reader(row_lines, delimiter=separator, strict=strict)
    looks_for_swallowed_rows = strict
    while True:
        row_lines.start_row()
        try:
            cells = next(reader, None)
        except csv.Error as error:
            reason = str(error)
            if reason == "unexpected end of data":
                reason = "a quotation mark is never closed"
            raise InputError(
                f"{name}, line {row_lines.begin}: {reason}; a mark at the start of a cell encloses "
                f"it and is doubled in it; if it is text: --no-quotes"
            ) from error
        if cells is None:
            return
        cells = [cell.strip() for cell in cells]
        if looks_for_swallowed_rows and may_have_swallowed_rows(cells):
            looks_for_swallowed_rows = False  # told once
            warn(
                f"{name}, line {row_lines.begin}: a cell in quotation marks holds a tab and a line "
                f"end; give --no-quotes if marks are text in this file"
            )
        yield row_lines.begin, cells


def may_have_swallowed_rows(cells: Sequence[str]) -> bool:
    """Whether a mark that opens a text may have been closed by that of another text."""
    return any("\t" in cell and "\n" in cell for cell in cells)


# ------------------------------------------------------------------------------- JSON and Parquet


def json_values(lines: Iterable[tuple[int, str]], name: str) -> Iterator[tuple[int, Any]]:
    """The value of each line that is not blank."""
    for number, line in lines:
        if line.strip():
            yield number, parse_json(line, name, number)


def array_values(
    stream: Any, name: str, most_values: int = MOST_VALUES
) -> Iterator[tuple[int, Any]]:
    """The values of one array, which is read whole."""
    content = bytearray()
    count = 0  # of values, at most
    try:
        with stream:
            while chunk := stream.read(UNCHECKED_GROWTH):
                content += chunk
                count += chunk.count(b",") + chunk.count(b"[") + chunk.count(b"{")
                if count > most_values:
                    raise InputError(
                        f"{name}: more than {most_values:,} values in one array; write an object "
                        f"in each line of a .jsonl"
                    )
                if len(content) > UNCHECKED_GROWTH:
                    check_growth(stream, len(content), name)
                if len(content) > LARGEST_ARRAY:
                    raise InputError(
                        f"{name}: more than {LARGEST_ARRAY:,} bytes in one array; write an object "
                        f"in each line of a .jsonl"
                    )
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise damaged(name, error) from error
    text = decode(bytes(content), name).lstrip("\ufeff")
    yield from enumerate(parse_json(text, name, 1), start=1)


def parse_json(text: str, name: str, number: int) -> Any:
    """The value of JSON that begins in that line; ``InputError`` with the line of what is wrong."""
    try:
        value = json.loads(text)
        if "\\u" in text:
            # UnicodeEncodeError for a lone surrogate, which JSON can escape and no UTF-8 has
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        line = number + getattr(error, "lineno", 1) - 1
        reason = getattr(error, "msg", str(error))
        if isinstance(error, UnicodeEncodeError):
            reason = f"a lone surrogate, \\u{ord(error.object[error.start]):x}"
        elif getattr(error, "pos", 0) >= len(text.rstrip()):
            reason = (
                "the line ends within a row; write each row in one line, or all in one array of a "
                ".json"
            )
        raise InputError(f"{name}, line {line}: not valid JSON: {reason}") from error
    return value


def parquet_records(path: str | Path) -> Records:
    """The rows of a Parquet file, a part of a row group after the other."""
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise InputError(
            f"{path}: Parquet needs pyarrow ({error}): pip install -e '.[parquet]'"
        ) from error

    def values() -> Iterator[Record]:
        with open_bytes(path) as file:
            try:
                for batch in ParquetFile(file).iter_batches(ROWS_AT_A_TIME):
                    yield from batch.to_pylist()
            except (ValueError, OSError, NotImplementedError) as error:  # pyarrow's are of these
                raise InputError(
                    f"{path} is damaged, or no Parquet: {one_line(str(error))}"
                ) from error

    return object_records(str(path), enumerate(values(), start=1), "row")
