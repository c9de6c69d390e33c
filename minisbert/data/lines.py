"""Read the lines of a file: plain texts, the cells of a table, or JSON.

What counts as a line, a cell and a value is decided here, for all commands:

- A file is UTF-8, with or without a byte order mark; .gz and .zip files are decompressed.
- A line ends in LF or CRLF. Everything else in it is text: NUL bytes, other line separators, spaces at its ends.
- Blank lines are skipped. Texts and the cells of a table are stripped of white space.
- Tabs separate the columns if the first line has one, else commas. Quotation marks enclose a cell between commas and
  in Quora's release; between tabs they are text.
- JSON is a value in each line, or one array of all values.
"""

import csv
import gzip
import json
import re
import zipfile
import zlib
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from minisbert.core import InputError, one_line, reading
from minisbert.system.files import decode, open_bytes

LONGEST_LINE = 2**22  # bytes; tokenizing a text takes over a hundred times its size
TWO_DEVS = {"dev": "dev_matched", "test": "dev_mismatched"}  # MultiNLI: two dev files, the labels of test are secret
RECORDS = re.compile(rb'\[\s*(\{\s*("|$)|$)')  # how an array of objects begins; ["a", "b"] may be one of several rows
NO_TEXT = {  # how files that are no text begin: what they are, and what to do
    b"PAR1": ("a Parquet file", "pandas.read_parquet(...).to_json('rows.jsonl', orient='records', lines=True)"),
    b"ARROW1": ("an Arrow file", "dataset.to_json('rows.jsonl')"),
    b"\xff\xff\xff\xff": ("an Arrow file", "dataset.to_json('rows.jsonl')"),
    b"PK\x03\x04": ("an Excel workbook or another archive", "save the sheet as CSV UTF-8, or unpack the archive"),
    b"\xd0\xcf\x11\xe0": ("an old Excel workbook", "save the sheet as CSV UTF-8"),
    b"\x80": ("a pickle", "pandas.read_pickle(...).to_json('rows.jsonl', orient='records', lines=True)"),
    b"\x93NUMPY": ("a NumPy array", "write its texts to a .txt, one per line"),
    b"SQLite": ("an SQLite database", "sqlite3 -csv -header FILE 'select ...' > rows.csv"),
    b"\x1f\x8b": ("compressed with gzip", "name it .gz"),
    b"\xff\xfe": ("UTF-16", "save it as UTF-8"),
    b"\xfe\xff": ("UTF-16", "save it as UTF-8"),
    b"<!doctype": ("a web page", "take its text out, or download the file that it stands for"),
    b"<html": ("a web page", "take its text out, or download the file that it stands for"),
    b"<?xml": ("XML", "write its texts to a .txt, one per line, or its rows to a .jsonl"),
}
TEXT_NAMES = ("text", "sentence", "document", "passage")  # of the column or key of a file of texts


# ------------------------------------------------------------------------------------------ bytes


@contextmanager
def open_texts(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes, decompressing a ``.gz``; ``InputError`` if it is missing, damaged or no text."""
    with ExitStack() as stack:
        stream: Any = stack.enter_context(open_bytes(path))
        if Path(path).suffix == ".gz":
            stream = stack.enter_context(gzip.open(stream))
        with reading(path):
            start = stream.peek(16)
        if len(start) >= 8 and not (any(start[:8:2]) and any(start[1:8:2])):  # every second byte is NUL
            start = b"\xff\xfe"
        for magic, (kind, remedy) in NO_TEXT.items():
            if start.lower().startswith(magic.lower()) and Path(path).suffix != ".zip":
                raise InputError(f"{path} is {kind}, not text that is read here: {remedy}")
        try:
            yield stream
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(f"{path} is damaged or not what its name says: {error}") from error


def byte_lines(stream: IO[bytes], where: str) -> Iterator[bytes]:
    """Yield the lines of a stream, with their line feeds; ``InputError`` for one of more than 4 MiB."""
    # subtle: text streams also split at other separators, such as U+0085 and U+2028, inside a sentence
    number = 0
    while line := stream.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise InputError(f"{where}, line {number}: longer than {LONGEST_LINE:,} bytes; split the text")
        if number == 1 and not line.endswith(b"\n") and b"\r" in line.rstrip(b"\r\n"):
            raise InputError(f"{where}: lines end in CR alone, as on old Macs; convert them: tr '\\r' '\\n'")
        yield line


def text_lines(stream: IO[bytes], where: str) -> Iterator[str]:
    """Yield one text per line of a binary file or of standard input, as it is read.

    Raises ``InputError`` for a line that is not UTF-8 or too long, a blank line, and a stream without lines.
    """
    number = 0
    for number, line in enumerate(byte_lines(stream, where), start=1):
        text = decode(line, where, number).strip()
        if not text:
            raise InputError(f"{where}, line {number}: an empty line has no text to encode; remove it")
        yield text
    if not number:
        raise InputError(f"{where} is empty")


def split_member(where: str, names: list[str], split: str) -> str:
    """Return the file of an NLI archive that holds a split: ``snli_1.0/snli_1.0_dev.jsonl``."""
    # subtle: the archives were made on a Mac, so every file has a twin, __MACOSX/snli_1.0/._snli_1.0_dev.jsonl
    tables = [name for name in names if name.endswith(".jsonl") and not name.startswith("__MACOSX/")]
    chosen = [name for name in tables if name.endswith(f"_{split}.jsonl")]
    if not chosen:
        chosen = [name for name in tables if name.endswith(f"_{TWO_DEVS.get(split)}.jsonl")]
    if len(chosen) != 1:
        raise InputError(f"{where} has no split {one_line(split)}; its tables are {', '.join(tables) or 'none'}")
    return chosen[0]


# ------------------------------------------------------------------------------------------ lines


class Rows:
    """The lines of a file as text, cells or JSON values. ``split`` selects a file of a .zip.

    Anything unreadable is an ``InputError`` that names the file and the place. What the cells and values mean, a
    ``reader.RowReader`` decides.
    """

    def __init__(self, path: str | Path, split: str = ""):
        self.path, self.split = Path(path), split
        self.where = str(path)

    @cached_property
    def is_array(self) -> bool:
        """Whether the file holds one array of all rows, as pandas' ``to_json(orient="records")`` writes it."""
        is_named = ".json" in self.path.suffixes
        if not is_named and (self.path.suffix == ".zip" or not self.path.is_file()):
            return False  # a pipe can be read only once
        with open_texts(self.path) as stream, reading(self.path):
            for line in byte_lines_of_any_length(stream):
                content = line.lstrip(b"\xef\xbb\xbf").strip()  # without a byte order mark
                if content and (is_named or RECORDS.match(content)):
                    return content.startswith(b"[")
                if content:
                    break
        lines = [*islice(filter(str.strip, self.lines()), 2)]
        return len(lines) == 1 and is_container(lines[0])

    def place(self, number: int) -> str:
        """Name a row for a message: ``a.tsv, line 3``, or ``a.json, item 3`` of an array."""
        return f"{self.where}, {self.unit} {number}"

    @property
    def unit(self) -> str:
        return "item" if self.is_array else "line"

    def lines(self) -> Iterator[str]:
        """Yield the text of each line without its line end."""
        with ExitStack() as stack:
            stream = self._open(stack)
            for number, content in enumerate(byte_lines(stream, self.where), start=1):
                yield decode(content, self.where, number).removesuffix("\n").rstrip("\r")

    def first_line(self) -> str:
        """Return the first line that is not blank, "" if there is none."""
        for line in self.lines():
            if line.strip():
                return line
        return ""

    def holds_objects(self) -> bool:
        """Whether a file of any name holds objects or lists of JSON, by its first line; a pipe, read once, does not."""
        if self.is_array or not self.path.is_file():
            return self.is_array
        try:
            return isinstance(json.loads(self.first_line()), dict | list)
        except (ValueError, RecursionError):
            return False

    def _open(self, stack: ExitStack) -> IO[bytes]:
        stream = stack.enter_context(open_texts(self.path))
        stack.enter_context(reading(self.path))
        if self.path.suffix != ".zip":
            return stream
        archive = stack.enter_context(zipfile.ZipFile(stream))
        member = split_member(str(self.path), archive.namelist(), self.split)
        self.where = f"{self.path}/{member}"
        # subtle: buffered, because an archive's own readline with a limit takes ten times as long
        return stack.enter_context(BufferedReader(archive.open(member)))

    def values(self) -> Iterator[tuple[int, Any]]:
        """Yield the number and the value of each line of JSON, or of each item of an array."""
        if self.is_array:
            yield from self._items()
            return
        for number, line in enumerate(self.lines(), start=1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                message = getattr(error, "msg", error)
                if line.strip() == "{":
                    message = "an object over several lines; write each in one line, or all in one array"
                raise InputError(f"{self.where}, line {number}: not valid JSON: {message}") from error
            if "\\u" in line:
                self._check_unicode(number, value)
            yield number, value

    def _items(self) -> Iterator[tuple[int, Any]]:
        with ExitStack() as stack:
            content = decode(self._open(stack).read(), self.where)
        try:
            items = json.loads(content)
        except (ValueError, RecursionError) as error:
            message, line = getattr(error, "msg", error), getattr(error, "lineno", 1)
            if message == "Extra data":  # rows in lines, which only look like an array at their beginning
                message = "text after the end of the array; name the file .jsonl if each line is a row"
            raise InputError(f"{self.where}, line {line}: not valid JSON: {message}") from error
        for number, value in enumerate(items, start=1):
            if len(str(value)) > LONGEST_LINE:
                raise InputError(f"{self.place(number)}: longer than {LONGEST_LINE:,} characters; split the text")
            if "\\u" in content:
                self._check_unicode(number, value)
            yield number, value

    def _check_unicode(self, number: int, value: Any) -> None:
        """Raise ``InputError`` for a lone surrogate, which JSON can escape and no UTF-8 has."""
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            lone = f"not valid Unicode: a lone surrogate in {one_line(value)}"
            raise InputError(f"{self.place(number)}: {lone}") from error

    def cells(self, delimiter: str = "") -> Iterator[tuple[int, list[str]]]:
        """Yield the line number and the stripped cells of each row of a table.

        ``delimiter`` is a tab or a comma unless it is given. A cell in quotation marks may span several lines.
        """
        lines, first, start = self.lines(), "", 0
        while not first.strip():
            following = next(lines, None)
            if following is None:
                return
            first, start = following, start + 1
        lines = chain([first], lines)
        if not delimiter:
            delimiter = "\t" if "\t" in first else ","
        names = [cell.strip(' "\r') for cell in first.split("\t")]
        if delimiter != "\t" or "is_duplicate" in names:  # only Quora's release has quotation marks between tabs
            rows = self._quoted(lines, delimiter, start)
        else:
            rows = enumerate((line.split("\t") for line in lines), start)
        for number, cells in rows:
            cells = [cell.strip() for cell in cells]
            if any(cells):
                yield number, cells

    def _quoted(self, lines: Iterator[str], delimiter: str, start: int) -> Iterator[tuple[int, list[str]]]:
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))  # 128 KiB by default
        # With line ends, or the last word of one line of a cell would run into the first of the next. Strict: text
        # after a closing quotation mark is an error, except in Quora's tab-separated release.
        reader = csv.reader((line + "\n" for line in lines), delimiter=delimiter, strict=delimiter != "\t")
        number = start
        while True:
            try:
                cells = next(reader, None)
            except csv.Error as error:
                kind = "tab" if delimiter == "\t" else "comma"
                raise InputError(f"{self.where}, line {number}: not {kind}-separated values: {error}") from error
            if cells is None:
                return
            yield number, cells
            number = start + reader.line_num


def is_container(line: str) -> bool:
    """Whether the only line of a file is an array of rows or texts: ``[["a", "b"], ...]``, or more than a triplet.

    A row may have more texts, but no file has one such row alone.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, list):
        return False
    kinds = set(map(type, value))
    return kinds == {list} or (kinds == {str} and len(value) > 3)


def byte_lines_of_any_length(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a stream in pieces of at most 64 KiB: an array may be one line of a gigabyte."""
    while piece := stream.readline(2**16):
        yield piece


def header_error(where: str, header: Sequence[str], needed: str) -> InputError:
    """Say that a table's first line has none of the names that are needed, or that semicolons separate its columns."""
    shown = ", ".join(map(one_line, header)) or "empty"
    if ";" in shown and sum(cell.count(";") for cell in header) >= len(header):
        # what Excel writes where the comma is the decimal mark
        return InputError(f"{where}: semicolons separate its columns; save it with commas or tabs between them")
    return InputError(f"{where}: the first line, {shown}, must name the columns: {needed}")


# ------------------------------------------------------------------------------------------ texts


def first_of(wanted: Sequence[str], names: Container[str]) -> str | None:
    """Return the first of the wanted names that is there."""
    for name in wanted:
        if name in names:
            return name
    return None


def read_texts(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each document, stripped; a blank one is "".

    JSON has strings, or objects with a ``text``, a .csv or .tsv a header with a column of that name (or one of
    ``TEXT_NAMES``); a ``title`` comes before it. Any other file, also a .txt.gz, has one text per line, or JSON
    by its first line. Raises ``InputError`` with file and line for what cannot be read, and for a file without
    a text.
    """
    rows = Rows(path)
    endings = {ending.lower() for ending in Path(path).suffixes}
    if endings & {".csv", ".tsv"}:
        documents = table_documents(rows)
    elif endings & {".jsonl", ".json"} or rows.holds_objects():
        documents = json_documents(rows)
    else:
        documents = enumerate(map(str.strip, rows.lines()), start=1)
    is_empty = True
    for line, text in documents:
        is_empty = is_empty and not text
        yield line, text
    if is_empty:
        raise InputError(f"{path} is empty: it holds no text")


def every_text(path: str | Path) -> Iterator[str]:
    """Yield the texts of ``read_texts``; ``InputError`` for a blank one, so that text i is in the i-th line or row."""
    for line, text in read_texts(path):
        if not text:
            raise InputError(f"{Rows(path).place(line)}: an empty line has no text to encode; remove it")
        yield text


def json_documents(rows: Rows) -> Iterator[tuple[int, str]]:
    for number, value in rows.values():
        fields = value
        if isinstance(value, str):
            fields = {"text": value}
        if not isinstance(fields, dict):
            fields = {}  # which has no text
        name = first_of(TEXT_NAMES, fields)
        title, text = fields.get("title") or "", fields.get(name)
        if not isinstance(text, str) or not isinstance(title, str):
            needed = "a text is needed, or an object with text and maybe title, both strings"
            raise InputError(f"{rows.place(number)}: {needed}, not {one_line(value)}")
        yield number, joined(rows, number, title, text)


def table_documents(rows: Rows) -> Iterator[tuple[int, str]]:
    table = rows.cells()
    _, first = next(table, (0, []))
    header = [cell.lower() for cell in first]
    name = first_of(TEXT_NAMES, header)
    if name is None:
        raise header_error(rows.where, first, "text is needed, and maybe title; or a .txt, one text per line")
    if header.count(name) > 1:
        raise InputError(f"{rows.where}: two columns are called {one_line(name)}: give each a name of its own")
    column = header.index(name)
    for line, cells in table:
        if len(cells) != len(header):
            raise InputError(f"{rows.where}, line {line}: {len(cells)} cells, the header has {len(header)}")
        title = cells[header.index("title")] if "title" in header else ""
        yield line, joined(rows, line, title, cells[column])


def joined(rows: Rows, line: int, title: str, text: str) -> str:
    """Join title and text. Raises ``InputError`` for a list that pandas has written into a text: it is no text."""
    if text.startswith(("['", '["')) and text.rstrip().endswith("]"):
        raise InputError(f"{rows.place(line)}: a text is needed, not the list {one_line(text)}")
    return f"{title} {text}".strip()
