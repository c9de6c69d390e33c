"""The reader of every file with one row per line: plain texts, tables, lines of JSON.

What counts as a line, a cell and a value is decided here, for all commands:

- A file is UTF-8, with or without a byte order mark; .gz and .zip files are decompressed.
- A line ends in LF or CRLF. Everything else in it is text: NUL bytes, other line separators, spaces at its ends.
- Blank lines are skipped. The cells of a table are stripped of white space.
- Tabs separate the columns if the first line has one, else commas. Quotation marks enclose a cell between commas and
  in Quora's release; between tabs they are text.
"""

import codecs
import csv
import gzip
import json
import re
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import IO, Any

from minisbert.core import InputError, one_line, reading
from minisbert.data.findings import PROBLEM
from minisbert.system.files import decode, open_bytes

LONGEST_LINE = 2**22  # bytes; tokenizing a text takes over a hundred times its size
SURROGATE = re.compile("[\ud800-\udfff]")
TWO_DEVS = {"dev": "dev_matched", "test": "dev_mismatched"}  # MultiNLI: two dev files, the labels of test are secret


class Rows:
    """A file of rows. ``split`` selects a file of a .zip.

    An unreadable row goes to ``on_fault(name, line, text)``, and reading continues with the next one. Without
    ``on_fault`` it raises ``InputError`` with file and line.
    """

    def __init__(self, path: str | Path, split: str = "", on_fault: Callable[..., None] | None = None):
        self.path, self.split, self.on_fault = Path(path), split, on_fault
        self.where = str(path)

    def fault(self, name: str, line: int, message: str, text: object = None) -> None:
        if self.on_fault is None:
            raise InputError(f"{self.where}, line {line}: {message}")
        self.on_fault(name, line, text, level=PROBLEM)

    def lines(self) -> Iterator[str]:
        """Yield the text of each line without its line end."""
        try:
            with ExitStack() as stack:
                for number, content in enumerate(byte_lines(self._open(stack), self.where), start=1):
                    yield self._text(content, number)
        except InputError as error:  # cut off, not compressed, a line that is too long
            if self.on_fault is None or not self.path.is_file():
                raise
            self.on_fault("damaged", str(error))

    def _open(self, stack: ExitStack) -> IO[bytes]:
        stream = stack.enter_context(open_texts(self.path))
        stack.enter_context(reading(self.path))
        if self.path.suffix != ".zip":
            return stream
        archive = stack.enter_context(zipfile.ZipFile(stream))
        member = split_member(self.where, archive.namelist(), self.split)
        self.where = f"{self.where}/{member}"
        # subtle: buffered, because an archive's own readline with a limit takes ten times as long
        return stack.enter_context(BufferedReader(archive.open(member)))

    def _text(self, content: bytes, number: int) -> str:
        if self.on_fault:
            mark = number == 1 and content.startswith(codecs.BOM_UTF8)
            found = {"byte-order-mark": mark, "crlf": content.endswith(b"\r\n"), "nul-bytes": b"\0" in content}
            for name in filter(found.get, found):
                self.on_fault(name, number)
        try:
            text = decode(content, self.where, number)
        except InputError:
            if not self.on_fault:
                raise
            text = content.decode("latin-1")
            self.on_fault("not-utf8", number, text.strip())
        return text.removesuffix("\n").rstrip("\r")

    def values(self) -> Iterator[tuple[int, Any]]:
        """Line number and value of each line of JSON."""
        for number, line in enumerate(self.lines(), start=1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                self.fault("not-json", number, f"not valid JSON: {getattr(error, 'msg', error)}", line.strip())
            else:
                yield number, value

    def cells(self, delimiter: str = "") -> Iterator[tuple[int, list[str]]]:
        """Line number and cells of each row of a table; a cell in quotation marks may span several lines.

        ``delimiter`` is a tab or a comma unless it is given.
        """
        lines = self.lines()
        head: list[str] = []
        while not (head and head[-1].strip()) and (line := next(lines, None)) is not None:
            head.append(line)
        first = head[-1] if head else ""
        lines = chain(head, lines)
        delimiter = delimiter or ("\t" if "\t" in first else ",")
        quora = "is_duplicate" in [cell.strip(' "\r') for cell in first.split("\t")]
        if delimiter != "\t" or quora:
            rows = self._quoted(lines, delimiter)
        else:
            rows = ((number, line.split("\t")) for number, line in enumerate(lines, start=1))
        for number, cells in rows:
            cells = [cell.strip() for cell in cells]
            if any(cells):
                yield number, cells

    def _quoted(self, lines: Iterator[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
        again: deque[str] = deque()  # lines that a bad row has swallowed

        def taken(row: list[str]) -> Iterator[str]:
            while again or (line := next(lines, None)) is not None:
                row.append(again.popleft() if again else line)
                # subtle: with an end, or the last word of one line of a cell would run into the first of the next
                yield row[-1] + "\n"

        start = 1
        while True:
            row: list[str] = []  # its lines; csv's limit of a cell, 128 KiB, keeps them few
            try:
                # text after a closing quotation mark is an error, except in Quora's tab-separated release
                cells = next(csv.reader(taken(row), delimiter=delimiter, strict=delimiter != "\t"), None)
            except csv.Error as error:
                kind = "tab" if delimiter == "\t" else "comma"
                self.fault("stray-quotes", start, f"not {kind}-separated values: {error}", row[0])
                again.extendleft(reversed(row[1:]))
                del row[1:]
                cells = []
            if cells is None:
                return
            yield start, cells
            start += len(row)


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


def file_lines(path: str | Path) -> Iterator[str]:
    """``text_lines`` of a file or a ``.gz``."""
    with open_texts(path) as stream:
        yield from text_lines(stream, str(path))


def split_member(where: str, names: list[str], split: str) -> str:
    """The file of an NLI archive that holds a split: ``snli_1.0/snli_1.0_dev.jsonl``."""
    # subtle: the archives were made on a Mac, so every file has a twin, __MACOSX/snli_1.0/._snli_1.0_dev.jsonl
    tables = [name for name in names if name.endswith(".jsonl") and not name.startswith("__MACOSX/")]
    found = [[name for name in tables if name.endswith(f"_{one}.jsonl")] for one in (split, TWO_DEVS.get(split))]
    chosen = found[0] or found[1]
    if len(chosen) != 1:
        raise InputError(f"{where} has no split {one_line(split)}; its tables are {', '.join(tables) or 'none'}")
    return chosen[0]


def ignore(*_: object, **__: object) -> None:
    """An ``on_fault`` for looking at a file that ``read_rows`` reads afterwards."""


def first_line(path: str | Path, split: str = "") -> str:
    """The first line that is not blank, without an error for the others."""
    return next((line for line in Rows(path, split, on_fault=ignore).lines() if line.strip()), "")


def holds_json(path: str | Path) -> bool:
    """Whether a file holds lines of JSON objects or lists: by its name, else by its first line."""
    if {".jsonl", ".json", ".zip"} & set(Path(path).suffixes):
        return True
    try:
        return isinstance(json.loads(first_line(path)), dict | list)
    except (ValueError, RecursionError):
        return False


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
