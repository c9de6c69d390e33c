"""The reader of every file with one row per line: plain texts, tables, lines of JSON.

What counts as a line, a cell and a value is decided here, for all commands:

- A file is UTF-8, with or without a byte order mark; .gz and .zip files are decompressed.
- A line ends in LF or CRLF. Everything else in it is text: NUL bytes, other line separators, spaces at its ends.
- Blank lines are skipped. Texts and the cells of a table are stripped of white space.
- Tabs separate the columns if the first line has one, else commas. Quotation marks enclose a cell between commas and
  in Quora's release; between tabs they are text.
"""

import csv
import gzip
import json
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import IO, Any

from minisbert.core import InputError, one_line, reading
from minisbert.system.files import decode, open_bytes

LONGEST_LINE = 2**22  # bytes; tokenizing a text takes over a hundred times its size
TWO_DEVS = {"dev": "dev_matched", "test": "dev_mismatched"}  # MultiNLI: two dev files, the labels of test are secret


class Rows:
    """A file of rows. ``split`` selects a file of a .zip. An unreadable row is an ``InputError`` with file and line."""

    def __init__(self, path: str | Path, split: str = ""):
        self.path, self.split = Path(path), split
        self.where = str(path)

    def lines(self) -> Iterator[str]:
        """Yield the text of each line without its line end."""
        with ExitStack() as stack:
            stream = self._open(stack)
            for number, content in enumerate(byte_lines(stream, self.where), start=1):
                yield decode(content, self.where, number).removesuffix("\n").rstrip("\r")

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
        """Line number and value of each line of JSON."""
        for number, line in enumerate(self.lines(), start=1):
            if line.strip():
                yield number, self.json_value(number, line)

    def json_value(self, number: int, line: str) -> Any:
        """The value of a line of JSON; ``InputError`` if it is none, or holds a lone surrogate, which no UTF-8 has."""
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            message = getattr(error, "msg", error)
            raise InputError(f"{self.where}, line {number}: not valid JSON: {message}") from error
        if "\\u" in line:
            try:
                json.dumps(value, ensure_ascii=False).encode()
            except UnicodeEncodeError as error:
                lone = f"not valid Unicode: a lone surrogate in {one_line(value)}"
                raise InputError(f"{self.where}, line {number}: {lone}") from error
        return value

    def cells(self, delimiter: str = "") -> Iterator[tuple[int, list[str]]]:
        """Line number and stripped cells of each row of a table; a cell in quotation marks may span several lines.

        ``delimiter`` is a tab or a comma unless it is given.
        """
        lines, start = self.lines(), 1
        first = next(lines, "")
        for following in lines if not first.strip() else ():
            first, start = following, start + 1
            if first.strip():
                break
        lines = chain([first], lines)
        if not delimiter:
            delimiter = "\t" if "\t" in first else ","
        names = [cell.strip(' "\r') for cell in first.split("\t")]
        if delimiter != "\t" or "is_duplicate" in names:  # Quora's release
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


def byte_lines(stream: IO[bytes], where: str) -> Iterator[bytes]:
    """The lines of a stream, with their line feeds; ``InputError`` for one of more than 4 MiB."""
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
    """One text per line of a binary file or of standard input, yielded as it is read.

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


@contextmanager
def open_texts(path: str | Path) -> Iterator[IO[bytes]]:
    """A file to read bytes from, a ``.gz`` decompressed; ``InputError`` if it is missing or damaged."""
    with ExitStack() as stack:
        stream: IO[bytes] = stack.enter_context(open_bytes(path))
        if Path(path).suffix == ".gz":
            stream = stack.enter_context(gzip.open(stream))
        try:
            yield stream
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(f"{path} is damaged or not what its name says: {error}") from error


def split_member(where: str, names: list[str], split: str) -> str:
    """The file of an NLI archive that holds a split: ``snli_1.0/snli_1.0_dev.jsonl``."""
    # subtle: the archives were made on a Mac, so every file has a twin, __MACOSX/snli_1.0/._snli_1.0_dev.jsonl
    tables = [name for name in names if name.endswith(".jsonl") and not name.startswith("__MACOSX/")]
    chosen = [name for name in tables if name.endswith(f"_{split}.jsonl")]
    if not chosen:
        chosen = [name for name in tables if name.endswith(f"_{TWO_DEVS.get(split)}.jsonl")]
    if len(chosen) != 1:
        raise InputError(f"{where} has no split {one_line(split)}; its tables are {', '.join(tables) or 'none'}")
    return chosen[0]


NAMES = ("text", "sentence", "document", "passage")  # of the column or key of the texts


def read_texts(path: str | Path) -> Iterator[tuple[int, str]]:
    """The line and the text of each document, stripped; a blank one is "".

    A .jsonl has objects with a ``text``, a .csv or .tsv a header with a column of that name (or one of ``NAMES``); a
    ``title`` comes before it. Any other file, also a .txt.gz, has one text per line. Raises ``InputError`` with file
    and line for what cannot be read, and for a file without a text.
    """
    endings = {ending.lower() for ending in Path(path).suffixes}
    if endings & {".jsonl", ".json"}:
        documents = json_documents(path)
    elif endings & {".csv", ".tsv"}:
        documents = table_documents(path)
    else:
        documents = ((line, text.strip()) for line, text in enumerate(Rows(path).lines(), start=1))
    is_empty = True
    for line, text in documents:
        is_empty = is_empty and not text
        yield line, text
    if is_empty:
        raise InputError(f"{path} is empty: it holds no text")


def every_text(path: str | Path) -> Iterator[str]:
    """The texts of ``read_texts``; ``InputError`` for a blank one, so that text i is in the i-th line or row."""
    for line, text in read_texts(path):
        if not text:
            raise InputError(f"{path}, line {line}: an empty line has no text to encode; remove it")
        yield text


def json_documents(path: str | Path) -> Iterator[tuple[int, str]]:
    with reading(path) as at:
        for at.line, row in Rows(path).values():
            fields = row if isinstance(row, dict) else {}
            name = column_of(list(fields))
            yield at.line, titled(fields.get("title"), fields.get(name), row)


def table_documents(path: str | Path) -> Iterator[tuple[int, str]]:
    rows = Rows(path).cells()
    _, header = next(rows, (0, []))
    header = [cell.lower() for cell in header]
    name = column_of(header)
    if name not in header:
        columns = ", ".join(map(one_line, header)) or "none"
        raise InputError(f"{path}: a column {name} is needed, its columns are {columns}; or a .txt, one text per line")
    with reading(path) as at:
        for at.line, cells in rows:
            if len(cells) != len(header):
                raise InputError(f"{path}, line {at.line}: {len(cells)} cells, the header has {len(header)}")
            fields = dict(zip(header, cells, strict=True))
            yield at.line, titled(fields.get("title"), fields[name], fields)


def column_of(names: list[str]) -> str:
    """The first of ``NAMES`` that is there, else "text"."""
    return next((name for name in NAMES if name in names), NAMES[0])


def titled(title: Any, text: Any, row: Any) -> str:
    """The title and the text in one line; ``ValueError`` unless they are valid strings."""
    title = title or ""
    if not isinstance(text, str) or not isinstance(title, str):
        raise ValueError(f"text and maybe title are needed, both strings, not {one_line(row)}")
    whole = f"{title} {text}".strip()
    whole.encode()  # ValueError for a lone surrogate, which JSON can escape
    return whole
