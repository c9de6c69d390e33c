"""Read the rows of a file: lines, the cells of a table, JSON, or Parquet.

What counts as a line, a cell and a value is decided here, for all commands:

- A file is UTF-8, with or without a byte order mark. A .gz, .bz2 or .xz is decompressed, and a .zip of one file.
- A line ends in LF or CRLF. Other line separators in it are text. Texts and cells are stripped of white space.
- Tabs separate the columns of a table if its first line has one, else commas. Quotation marks enclose a cell and are
  doubled in it, as RFC 4180 and pandas have it; ``--no-quotes`` reads them as text.
- JSON is an object in each line, or in a .json one array of objects.
"""

import csv
import importlib
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
from minisbert.system.console import say
from minisbert.system.files import decode, listed, open_bytes

try:
    from lzma import LZMAError
except ImportError:  # not every Python has it
    LZMAError = OSError  # type: ignore[misc, assignment]  # only caught

LONGEST_LINE = 2**22  # bytes; tokenizing a text takes over a hundred times its size
ROWS_OF_PARQUET = 1024  # that are converted at a time
TWO_DEVS = {"dev": "dev_matched", "test": "dev_mismatched"}  # MultiNLI: two dev files, the labels of test are secret
JSON_START = re.compile(r'\[?\s*(\{\s*("|$)|$)|\[\s*[\["].*\]$')  # a first line of JSON; "[1] a note" is text
ARRAY_START, ARRAY_COMMA = re.compile(r"\s*\[\s*"), re.compile(r"\s*(,\s*|(?=\]))")  # of JSON
ARRAY_END = re.compile(r"\]\s*\Z")
AN_OBJECT = "object with keys (one in each line of a .jsonl, or all in one array of a .json)"

DECOMPRESSORS = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma"}  # not every Python has the last two
CONTAINERS = (  # what is no text: where its mark stands, the mark, the usual ending, what it is and what to do
    (0, b"\x1f\x8b\x08", ".gz", "compressed by gzip: gunzip"),
    (4, b"1AY&SY", ".bz2", "compressed by bzip2: bunzip2"),
    (0, b"\xfd7zXZ\0", ".xz", "compressed by xz: unxz"),
    (0, b"PK\x03\x04", ".zip", "a zip archive: unzip"),
    (0, b"\x28\xb5\x2f\xfd", ".zst", "compressed by zstd: unzstd"),
    (257, b"ustar", ".tar", "a tar archive: unpack it (tar xf), and give the file with the texts or the table"),
    (0, b"7z\xbc\xaf\x27\x1c", ".7z", "a 7-Zip archive: unpack it, and give the file with the texts or the table"),
    (0, b"Rar!\x1a\x07", ".rar", "a RAR archive: unpack it, and give the file with the texts or the table"),
    (0, b"PAR1\x15", ".parquet", "a Parquet file: call it .parquet, without compression around it"),
    (0, b"ARROW1\0\0", ".arrow", "an Arrow file: write a .parquet, .csv or .jsonl"),
    (0, b"\xff\xff\xff\xff", ".arrow", "an Arrow stream, as datasets saves it: write a .parquet, .csv or .jsonl"),
    (0, b"\x93NUMPY", ".npy", "an array of NumPy: texts are a .txt, .csv, .jsonl or .parquet"),
    (0, b"\xd0\xcf\x11\xe0", ".xls", "a file of Excel or Word: save it as CSV UTF-8"),
    (0, b"%PDF-", ".pdf", "a PDF: extract its text (pdftotext), one text per line"),
    (0, b"<!doctype html", ".html", "a web page: fetch the file itself, or extract the texts"),
    (0, b"<html", ".html", "a web page: fetch the file itself, or extract the texts"),
    (0, b"<?xml", ".xml", "XML: extract the texts, one per line, or write a .csv or .jsonl"),
    (0, b"{\\rtf", ".rtf", "rich text (RTF): save it as plain text in UTF-8"),
    (0, b"version https://git-lfs.github.com/spec/v1", "", "a Git LFS pointer: fetch what it points to (git lfs pull)"),
)


def container_of(stream: Any) -> tuple[str, str]:
    """Recognise what a buffered stream begins with: an ending, and what it is; ("", "") for text."""
    start = stream.peek(512)
    for offset, mark, ending, what in CONTAINERS:
        if start[offset : offset + len(mark)].lower() == mark.lower():  # HTML has no case
            return ending, what
    return "", ""


def ending_of(name: str) -> str:
    """The ending of a name in lower case, without that of a compression."""
    path = Path(name.lower())
    return Path(path.stem).suffix if path.suffix in DECOMPRESSORS else path.suffix


def first_of(wanted: Sequence[str], names: Container[str]) -> str | None:
    """Find the first of the wanted names that is there."""
    return next((name for name in wanted if name in names), None)


def shown(names: Sequence[str]) -> str:
    return ", ".join(map(one_line, names))


class Rows:
    """The rows of one file, read once, as lines, cells or JSON values; it is opened when the first is asked for.

    ``first_line``, ``names`` and ``holds_json`` look ahead and take nothing away, so a pipe can be recognised, too.
    ``split`` selects a file of an NLI archive, or rows by their column of that name. Without ``quotes`` quotation marks
    are text; if not ``strict``, text may follow a closing one, as in Quora's release. ``stream`` is read instead of a
    file. Anything unreadable is an ``InputError`` that names the file and the place.
    """

    def __init__(
        self,
        path: str | Path,
        split: str = "",
        quotes: bool = True,
        strict: bool = True,
        stream: IO[bytes] | None = None,
    ):
        self.path, self.split, self.quotes, self.strict, self.stream = Path(path), split, quotes, strict, stream
        self.where = str(path)
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
    def ending(self) -> str:
        """The ending of the file's name, of a .zip that of the file in it."""
        if self.path.suffix.lower() == ".zip":
            _ = self.first_line  # opens it
        return ending_of(self.where)

    @property
    def is_empty(self) -> bool:
        return not (self.names if self.holds_parquet else self.first_line)

    @property
    def holds_parquet(self) -> bool:
        return self.ending == ".parquet"

    @cached_property
    def holds_json(self) -> bool:
        """Whether rows are objects: the name says so, or, of a pipe or a .txt, the first line."""
        if self.ending in (".jsonl", ".json", ".parquet", ".csv", ".tsv"):
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
            cells = self.first_line.split(self.delimiter)
            if self.quotes:
                cells = next(csv.reader([self.first_line.replace("\r", " ")], delimiter=self.delimiter), [])
            return [cell.strip().lower() for cell in cells]
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
        if self.holds_parquet:
            return "row"
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
        if ending_of(self.where) == ".parquet":  # it has none
            return
        try:
            with ExitStack() as stack:
                stream = self._open(stack)
                longest, number = LONGEST_LINE, 0
                if ending_of(self.where) == ".json":
                    longest = sys.maxsize - 1  # an array may be one line; its items are measured
                # subtle: text streams also split at other separators, such as U+0085 and U+2028, inside a sentence
                while content := stream.readline(longest + 1):
                    number += 1
                    place = f"{self.where}, line {number}"
                    if len(content) > longest:
                        raise InputError(f"{place}: longer than {longest:,} bytes; split the text")
                    if b"\0" in content:
                        raise InputError(f"{place}: a NUL byte, so this is no UTF-8 text; save it as UTF-8")
                    if number == 1 and not content.endswith(b"\n") and b"\r" in content.rstrip(b"\r\n"):
                        raise InputError(
                            f"{place}: lines end in CR alone, as on old Macs; convert them: tr '\\r' '\\n'"
                        )
                    line = decode(content, self.where, number).removesuffix("\n").rstrip("\r")
                    line = line.lstrip("\ufeff")  # of a file that was appended to another
                    self._first = self._first or (line if line.strip() else "")
                    yield number, line
        except (OSError, EOFError, zlib.error, LZMAError, zipfile.BadZipFile) as error:
            raise InputError(f"{self.where}: {error}; the file is damaged, or not what its name says") from error
        except ImportError as error:
            raise InputError(f"{self.where} cannot be decompressed, because this Python has no {error.name}") from error

    def _open(self, stack: ExitStack) -> IO[bytes]:
        """Open the file, decompressed; what is in it must then be text."""
        stream: Any = self.stream or stack.enter_context(open_bytes(self.path))
        ending, what = container_of(stream)
        ending = ending or self.path.suffix.lower()
        if ending in DECOMPRESSORS:
            stream = stack.enter_context(importlib.import_module(DECOMPRESSORS[ending]).open(stream))
        elif ending == ".zip":
            stream = self._open_member(stack.enter_context(zipfile.ZipFile(stream)), stack)
        elif what:
            raise InputError(f"{self.where} is {what}")
        if ending in (".zip", *DECOMPRESSORS) and (what := container_of(stream)[1]):
            raise InputError(f"{self.where}: what is in it is {what}")
        return cast(IO[bytes], stream)

    def _open_member(self, archive: zipfile.ZipFile, stack: ExitStack) -> IO[bytes]:
        """Open the only file of an archive, or of an NLI archive that of a split: ``snli_1.0/snli_1.0_dev.jsonl``."""
        # subtle: the NLI archives were made on a Mac, so every file has a twin, __MACOSX/snli_1.0/._snli_1.0_dev.jsonl
        files = [name for name in archive.namelist() if not name.startswith("__MACOSX/") and not name.endswith("/")]
        if "[Content_Types].xml" in files:
            raise InputError(f"{self.where} is a file of Excel or Word: save it as CSV UTF-8")
        chosen = files
        for wanted in (self.split, TWO_DEVS.get(self.split)):
            if len(chosen) != 1:
                chosen = [name for name in files if name.endswith(f"_{wanted}.jsonl")]
        if len(chosen) != 1:
            found = f"{len(files)} files: {listed(files, 5)}, none of a split {one_line(self.split)}"
            raise InputError(f"{self.where} has {found}: unpack it, and give one of them")
        self.where += f"/{chosen[0]}"
        try:
            opened = archive.open(chosen[0])
        except (RuntimeError, NotImplementedError) as error:  # it needs a password, or an unusual decompressor
            raise InputError(f"{self.where}: {error}") from error
        # subtle: buffered, because an archive's own readline with a limit takes ten times as long
        return cast(IO[bytes], stack.enter_context(BufferedReader(cast(RawIOBase, opened))))

    # ---------------------------------------------------------------------------------- JSON and Parquet

    def values(self) -> Iterator[tuple[int, Any]]:
        """Yield the number and the value of each line of JSON, item of an array, or row of a Parquet file."""
        return self._values

    def _read_values(self) -> Iterator[tuple[int, Any]]:
        if self.holds_parquet:
            yield from enumerate(self._read_parquet(), start=1)
        elif self.is_array:
            yield from enumerate(self._read_array(), start=1)
        else:
            for number, line in self._lines:
                if line.strip():
                    try:
                        value = json.loads(line)
                        check_unicode(line, value)
                    except (ValueError, RecursionError) as error:
                        raise self._invalid(number, line, error) from error
                    yield number, value

    def _read_parquet(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of a part of a row group after the other."""
        try:
            from pyarrow.parquet import ParquetFile
        except ImportError as error:
            raise InputError(f"{self.path}: Parquet needs pyarrow ({error}): pip install -e '.[parquet]'") from error
        with open_bytes(self.path) as file:
            try:
                for batch in ParquetFile(file).iter_batches(ROWS_OF_PARQUET):
                    yield from batch.to_pylist()
            except (ValueError, OSError, NotImplementedError) as error:  # pyarrow's are of these
                message = f"{one_line(str(error))}; the file is damaged, or no Parquet"
                raise InputError(f"{self.path}: {message}") from error

    def _read_array(self) -> Iterator[Any]:
        """Yield the items one by one: as a single value an array may take 25 times the memory of its text."""
        content = "\n".join(self.lines())
        start = ARRAY_START.match(content).end()  # type: ignore[union-attr]  # of an array
        while not ARRAY_END.match(content, start):
            try:
                value, end = json.JSONDecoder().raw_decode(content, start)
                check_unicode(content[start:end], value)
                separator = ARRAY_COMMA.match(content, end)
                if separator is None:
                    raise json.JSONDecodeError("Expecting ',' delimiter", content, end)
            except (ValueError, RecursionError) as error:
                raise self._invalid(1, content, error) from error
            if end - start > LONGEST_LINE:
                raise InputError(f"{self.where}: an item is longer than {LONGEST_LINE:,} characters; split the text")
            yield value
            start = separator.end()

    def _invalid(self, number: int, content: str, error: Exception) -> InputError:
        line = number + getattr(error, "lineno", 1) - 1
        message = getattr(error, "msg", error)
        if isinstance(error, UnicodeEncodeError):
            message = f"a lone surrogate, \\u{ord(error.object[error.start]):x}"
        elif getattr(error, "pos", 0) >= len(content.rstrip()):
            message = "the line ends within a row; write each row in one line, or all in one array of a .json"
        return InputError(f"{self.where}, line {line}: not valid JSON: {message}")

    # ---------------------------------------------------------------------------------- tables

    def cells(self, delimiter: str = "") -> Iterator[tuple[int, list[str]]]:
        """Yield the line number and the stripped cells of each row of a table that is not a blank line.

        ``delimiter`` is a tab or a comma unless it is given. A cell in quotation marks may span several lines.
        """
        delimiter = delimiter or self.delimiter
        if self.quotes:
            rows = self._quoted_cells(delimiter)
        else:
            rows = (
                (number, line.split(delimiter)) for number, line in self._lines if delimiter in line or line.strip()
            )
        for number, row in rows:
            yield number, [cell.strip() for cell in row]

    def _quoted_cells(self, delimiter: str) -> Iterator[tuple[int, list[str]]]:
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))  # 128 KiB by default
        last = ""

        def ended() -> Iterator[str]:
            nonlocal last
            for last in self.lines():
                # with its end, or the last word of one line of a cell would run into the first of the next
                yield last + "\n"

        reader = csv.reader(ended(), delimiter=delimiter, strict=self.strict)
        number, is_told = 1, not self.strict
        while True:
            try:
                cells = next(reader, None)
            except csv.Error as error:
                why = {"unexpected end of data": "a quotation mark is never closed"}.get(str(error), str(error))
                if "expected after" in why:
                    why = "text after a closing quotation mark"
                raise InputError(
                    f"{self.where}, line {number}: {why}; a mark at the start of a cell encloses it and is doubled in "
                    "it: correct the line, or give --no-quotes if marks are text in this file"
                ) from error
            if cells is None:
                return
            # a row of several lines between tabs: a mark that opens a text may have been closed by another text's
            if not is_told and reader.line_num > number and any("\t" in cell and "\n" in cell for cell in cells):
                is_told = True
                say(
                    f"{self}, line {number}: a cell in quotation marks holds a tab and a line end; "
                    "give --no-quotes if marks are text in this file"
                )
            if cells and (len(cells) > 1 or not last.isspace()):  # a cell in marks may be blank, too
                yield number, cells
            number = 1 + reader.line_num

    # ---------------------------------------------------------------------------------- by name

    def records(
        self, refuse: Callable[[int, str], None], needed: Sequence[str] = ()
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number of each row and its values by name, in lower case; other rows are passed to ``refuse``.

        A row of a table may only be shorter than its header if it has the ``needed`` columns.
        """
        if self.holds_json:
            for number, value in self.values():
                fields = {key.lower(): one for key, one in value.items()} if isinstance(value, dict) else {}
                if not isinstance(value, dict):
                    refuse(number, f"{one_line(value)} is no {AN_OBJECT}")
                elif len(fields) < len(value):
                    refuse(number, f"two keys differ in case alone: {shown(sorted(value))}")
                else:
                    yield number, fields
            return
        table = self.cells()
        names = [cell.lower() for cell in next(table, (0, []))[1]]
        least = 1 + max(map(names.index, needed), default=len(names) - 1)
        for number, cells in table:
            if not least <= len(cells) <= len(names):
                refuse(number, f"{len(cells)} columns; {len(names)} are needed, as in the first line")
            elif [cell.lower() for cell in cells] == names:
                refuse(number, "the header again; delete the line")
            else:
                yield number, dict(zip(names, cells, strict=False))


def check_unicode(content: str, value: Any) -> None:
    """Raise ``UnicodeEncodeError`` for a lone surrogate, which JSON can escape and no UTF-8 has."""
    if "\\u" in content:
        json.dumps(value, ensure_ascii=False).encode()
