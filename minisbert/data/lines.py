"""Read the rows of a file: lines, the cells of a table, or JSON; and the texts of a file of texts.

What counts as a line, a cell and a value is decided here, for all commands:

- A file is UTF-8, with or without a byte order mark; a .gz is decompressed.
- A line ends in LF or CRLF. Other line separators in it are text. Texts and cells are stripped of white space.
- Tabs separate the columns of a table if its first line has one, else commas. Between commas quotation marks enclose
  a cell; between tabs they are text.
- JSON is an object in each line, or in a .json one array of objects.
"""

import csv
import gzip
import json
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from io import BufferedReader, RawIOBase
from itertools import chain
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from minisbert.core import InputError, one_line
from minisbert.system.files import decode, open_bytes

LONGEST_LINE = 2**22  # bytes; tokenizing a text takes over a hundred times its size
TWO_DEVS = {"dev": "dev_matched", "test": "dev_mismatched"}  # MultiNLI: two dev files, the labels of test are secret
JSON_START = re.compile(r'\[?\s*(\{\s*("|$)|$)|\[\s*[\["].*\]$')  # a first line of JSON; "[1] a note" is text
LIST = re.compile(r"\[(\s*['\"{].*)?\]", re.DOTALL)  # in a cell, as pandas writes it; "[MASK] is a [token]" is text
QUOTED = re.compile(r'"[^"]*("")+.*"', re.DOTALL)  # what csv writes for a cell with quotation marks in it
AN_OBJECT = "object with keys (one in each line of a .jsonl, or all in one array of a .json)"
TEXT_NAMES = ("text", "sentence", "document", "passage")  # of the column or key of a file of texts


def byte_lines(stream: IO[bytes], where: str, longest: int = LONGEST_LINE) -> Iterator[bytes]:
    """Yield the lines of a stream, with their line feeds; ``InputError`` for one that is too long or is no text."""
    # subtle: text streams also split at other separators, such as U+0085 and U+2028, inside a sentence
    number = 0
    while line := stream.readline(longest + 1):
        number += 1
        if len(line) > longest:
            raise InputError(f"{where}, line {number}: longer than {longest:,} bytes; split the text")
        if b"\0" in line:
            raise InputError(f"{where}, line {number}: a NUL byte, so this is no UTF-8 text; save it as UTF-8")
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
    """Choose the file of an NLI archive that holds a split: ``snli_1.0/snli_1.0_dev.jsonl``."""
    # subtle: the archives were made on a Mac, so every file has a twin, __MACOSX/snli_1.0/._snli_1.0_dev.jsonl
    tables = [name for name in names if name.endswith(".jsonl") and not name.startswith("__MACOSX/")]
    chosen = [name for name in tables if name.endswith(f"_{split}.jsonl")]
    if not chosen:
        chosen = [name for name in tables if name.endswith(f"_{TWO_DEVS.get(split)}.jsonl")]
    if len(chosen) != 1:
        raise InputError(f"{where} has no split {one_line(split)}; its tables are {', '.join(tables) or 'none'}")
    return chosen[0]


def first_of(wanted: Sequence[str], names: Container[str]) -> str | None:
    """Find the first of the wanted names that is there."""
    return next((name for name in wanted if name in names), None)


# ------------------------------------------------------------------------------------------ rows


class Rows:
    """The rows of one file, read once, as lines, cells or JSON values; it is opened when the first is asked for.

    ``first_line``, ``names`` and ``holds_json`` look ahead and take nothing away, so a pipe can be recognised, too.
    ``split`` selects a file of an NLI archive; ``quoted`` is Quora's release, with quotation marks between tabs.
    Anything unreadable is an ``InputError`` that names the file and the place.
    """

    def __init__(self, path: str | Path, split: str = "", quoted: bool = False):
        self.path, self.split, self.quoted = Path(path), split, quoted
        self.where = str(path)
        self.ending = Path(self.path.name.lower().removesuffix(".gz")).suffix
        self._first = ""
        self._lines, self._values = self._read_lines(), self._read_values()

    @classmethod
    def of(cls, source: "str | Path | Rows", split: str = "") -> "Rows":
        """Return the rows of a path; rows are returned as they are."""
        return source if isinstance(source, Rows) else cls(source, split)

    def __str__(self) -> str:
        return str(self.path)

    # ---------------------------------------------------------------------------------- what is in the file

    @property
    def first_line(self) -> str:
        """The first line that is not blank; "" if there is none."""
        seen: list[tuple[int, str]] = []
        while not self._first and (line := next(self._lines, None)):
            seen.append(line)
        self._lines = chain(seen, self._lines) if seen else self._lines
        return self._first

    @cached_property
    def holds_json(self) -> bool:
        """Whether the rows are JSON: the name says so, or, of a pipe or a .txt, the first line."""
        if self.ending in (".jsonl", ".json", ".zip", ".csv", ".tsv"):
            return self.ending not in (".csv", ".tsv")
        return bool(self.first_line) and JSON_START.match(self.first_line.strip()) is not None

    @cached_property
    def is_array(self) -> bool:
        return self.ending == ".json" and self.first_line.lstrip().startswith("[")

    @property
    def holds_lines(self) -> bool:
        """Whether the file may hold a text in each line: it is neither JSON nor called a table."""
        return not self.holds_json and self.ending not in (".csv", ".tsv")

    @property
    def delimiter(self) -> str:
        return "\t" if "\t" in self.first_line else ","

    @cached_property
    def names(self) -> list[str]:
        """The names in the first line of a table, or the keys of the first JSON object, in lower case."""
        if not self.holds_json:
            quote = '"' if self.delimiter == "," or self.quoted else ""
            return [cell.strip().strip(quote).lower() for cell in self.first_line.split(self.delimiter)]
        first = next(self._values, None)
        if first is None:
            return []
        self._values = chain([first], self._values)
        return [key.lower() for key in first[1]] if isinstance(first[1], dict) else []

    def unknown_names(self, needed: str) -> InputError:
        """Show the first line or the first keys, which must have names that they have not."""
        if self.holds_json:
            found = f"the keys of the first row are {shown(self.names)}" if self.names else f"no {AN_OBJECT}"
            return InputError(f"{self.where}: {found}; needed are: {needed}")
        cells = shown(self.first_line.split(self.delimiter))
        return InputError(f"{self.where}: the first line, {cells}, must name columns, tabs or commas between: {needed}")

    @property
    def unit(self) -> str:
        return "item" if self.is_array else "line"

    def fail(self, number: int, message: str) -> NoReturn:
        """Raise ``InputError`` for a row: ``a.tsv, line 3: ...``, or ``a.json, item 3: ...`` of an array."""
        raise InputError(f"{self.where}, {self.unit} {number}: {message}")

    # ---------------------------------------------------------------------------------- lines

    def lines(self) -> Iterator[str]:
        """Yield the text of each line without its line end."""
        for _, line in self._lines:
            yield line

    def _read_lines(self) -> Iterator[tuple[int, str]]:
        longest = LONGEST_LINE
        if self.ending == ".json":
            longest = sys.maxsize - 1  # an array may be one line; its items are measured
        try:
            with ExitStack() as stack:
                stream = self._open(stack)
                for number, content in enumerate(byte_lines(stream, self.where, longest), start=1):
                    line = decode(content, self.where, number).removesuffix("\n").rstrip("\r")
                    self._first = self._first or (line if line.strip() else "")
                    yield number, line
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
            raise InputError(f"{self.where}: {error}; the file is damaged, or not what its name says") from error

    def _open(self, stack: ExitStack) -> IO[bytes]:
        stream: Any = stack.enter_context(open_bytes(self.path))
        if self.path.suffix == ".gz":
            return cast(IO[bytes], stack.enter_context(gzip.open(stream)))
        if self.path.suffix != ".zip":
            return cast(IO[bytes], stream)
        archive = stack.enter_context(zipfile.ZipFile(stream))
        member = split_member(str(self.path), archive.namelist(), self.split)
        self.where = f"{self.path}/{member}"
        try:
            opened = archive.open(member)
        except RuntimeError as error:  # it needs a password
            raise InputError(f"{self.where}: {error}") from error
        # subtle: buffered, because an archive's own readline with a limit takes ten times as long
        return cast(IO[bytes], stack.enter_context(BufferedReader(cast(RawIOBase, opened))))

    # ---------------------------------------------------------------------------------- JSON

    def values(self) -> Iterator[tuple[int, Any]]:
        """Yield the number and the value of each line of JSON, or of each item of an array."""
        return self._values

    def _read_values(self) -> Iterator[tuple[int, Any]]:
        if self.is_array:
            rows = enumerate(self._parsed(1, "\n".join(self.lines())), start=1)
        else:
            rows = ((number, self._parsed(number, line)) for number, line in self._lines if line.strip())
        for number, value in rows:
            if self.is_array and len(str(value)) > LONGEST_LINE:
                self.fail(number, f"longer than {LONGEST_LINE:,} characters; split the text")
            yield number, value

    def _parsed(self, number: int, content: str) -> Any:
        try:
            value = json.loads(content)
            if "\\u" in content:  # JSON can escape a lone surrogate, which no UTF-8 has
                json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            line = number + getattr(error, "lineno", 1) - 1
            message = getattr(error, "msg", error)
            if isinstance(error, UnicodeEncodeError):
                message = f"a lone surrogate, \\u{ord(error.object[error.start]):x}"
            elif content.strip() in ("[", "{"):
                message = "a row over several lines; write each in one line, or all in one array of a .json"
            raise InputError(f"{self.where}, line {line}: not valid JSON: {message}") from error
        return value

    # ---------------------------------------------------------------------------------- tables

    def cells(self, delimiter: str = "") -> Iterator[tuple[int, list[str]]]:
        """Yield the line number and the stripped cells of each row of a table that is not blank.

        ``delimiter`` is a tab or a comma unless it is given. A cell in quotation marks may span several lines.
        """
        mark = delimiter or self.delimiter
        if mark != "\t" or self.quoted:
            rows = self._quoted_cells(mark)
        else:
            rows = ((number, line.split("\t")) for number, line in self._lines)
        is_checked = not delimiter and mark == "\t" and not self.quoted
        for number, row in rows:
            row = [cell.strip() for cell in row]
            if is_checked and any('""' in cell and QUOTED.fullmatch(cell) for cell in row):
                self.fail(number, 'cells in quotation marks, with "" in them; save it as .csv, with commas between')
            if any(row):
                yield number, row

    def _quoted_cells(self, delimiter: str) -> Iterator[tuple[int, list[str]]]:
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))  # 128 KiB by default
        # With line ends, or the last word of one line of a cell would run into the first of the next. Strict: text
        # after a closing quotation mark is an error, except in Quora's tab-separated release.
        reader = csv.reader((line + "\n" for line in self.lines()), delimiter=delimiter, strict=delimiter != "\t")
        number = 1
        while True:
            try:
                cells = next(reader, None)
            except csv.Error as error:
                raise InputError(f"{self.where}, line {number}: not comma-separated values: {error}") from error
            if cells is None:
                return
            yield number, cells
            number = 1 + reader.line_num

    # ---------------------------------------------------------------------------------- by name

    def records(self, refuse: Callable[[int, str], None]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number of each row and its values by name, in lower case; other rows are passed to ``refuse``."""
        if self.holds_json:
            for number, value in self.values():
                if isinstance(value, dict):
                    yield number, {key.lower(): one for key, one in value.items()}
                else:
                    refuse(number, f"{one_line(value)} is no {AN_OBJECT}")
            return
        table = self.cells()
        _, header = next(table, (0, []))
        names = [cell.lower() for cell in header]
        for number, cells in table:
            if len(cells) != len(names):
                refuse(number, f"{len(cells)} columns; {len(names)} are needed, as in the first line")
            elif cells == header:
                refuse(number, "the header again; delete the line")
            else:
                yield number, dict(zip(names, cells, strict=True))

    def check_once(self, read: Sequence[str]) -> None:
        """Raise ``InputError`` if a column that is read has the name of another."""
        for name in read:
            if not self.holds_json and self.names.count(name) > 1:
                raise InputError(f"{self.where}: two columns are called {one_line(name)}: give each a name of its own")


def shown(names: Sequence[str]) -> str:
    return ", ".join(map(one_line, names))


def checked_text(value: Any) -> str:
    """Return a text, stripped; ``ValueError`` for anything else, also for a list that was written into a text."""
    if not isinstance(value, str) or LIST.fullmatch(value.strip()):
        raise ValueError(f"a text is needed, not {one_line(value)}")
    return value.strip()


# ------------------------------------------------------------------------------------------ texts


def read_texts(source: str | Path | Rows) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each row, stripped; a blank one is "".

    JSON and a .csv or .tsv have it under ``text`` (or one of ``TEXT_NAMES``); any other file, also a .txt.gz or a pipe,
    has a text in each line, or JSON. Raises ``InputError`` with file and line for what cannot be read, and for a file
    without a text.
    """
    rows = Rows.of(source)
    texts = enumerate(map(str.strip, rows.lines()), start=1) if rows.holds_lines else named_texts(rows)
    is_empty = True
    for line, text in texts:
        is_empty = is_empty and not text
        yield line, text
    if is_empty:
        raise InputError(f"{rows} is empty: it holds no text")


def named_texts(rows: Rows) -> Iterator[tuple[int, str]]:
    needed = f"{' or '.join(TEXT_NAMES)}; or a .txt with one text per line"
    if not rows.holds_json and first_of(TEXT_NAMES, rows.names) is None:
        raise rows.unknown_names(needed)
    rows.check_once([first_of(TEXT_NAMES, rows.names) or ""])
    for number, fields in rows.records(rows.fail):
        name = first_of(TEXT_NAMES, fields)
        if name is None:
            rows.fail(number, f"the keys are {shown(list(fields))}; needed are {needed}")
        if fields.get("title"):
            rows.fail(number, f"the title {one_line(fields['title'])} would not be read: put it before the text")
        try:
            yield number, checked_text(fields[name])
        except ValueError as error:
            rows.fail(number, str(error))


def every_text(source: str | Path | Rows) -> Iterator[str]:
    """Yield the texts of ``read_texts``; ``InputError`` for a blank one, so that text i is in the i-th line or row."""
    rows = Rows.of(source)
    for number, text in read_texts(rows):
        if not text:
            rows.fail(number, "an empty line has no text to encode; remove it")
        yield text
