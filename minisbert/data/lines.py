"""Read the rows of a file: lines, the cells of a table, JSON, or Parquet.

What counts as a line, a cell and a value is decided here, for all commands:

- A file is UTF-8, with or without a byte order mark. A .gz is decompressed, and of SNLI's .zip a split.
- A line ends in LF or CRLF. Other line separators in it are text. Texts and cells are stripped of white space.
- Tabs separate the columns of a table if its first line has one, else commas. Quotation marks enclose a cell and are
  doubled in it, as RFC 4180 and pandas have it; ``--no-quotes`` reads them as text.
- JSON is an object in each line, or in a .json one array of objects.
"""

import csv
import gzip
import json
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from io import BufferedReader
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, NoReturn

from minisbert.core import InputError, one_line
from minisbert.system.console import say
from minisbert.system.files import decode, listed, open_bytes

MAX_SCORE = 5.0  # 0: nothing in common, 5: the same meaning, as in STS
LONGEST_LINE = 2**22  # bytes; tokenizing a text takes over a hundred times its size
ROWS_OF_PARQUET = 1024  # that are converted at a time
TWO_DEVS = {
    "dev": "dev_matched",
    "test": "dev_mismatched",
}  # MultiNLI: two dev files, the labels of test are secret
JSON_START = re.compile(
    r'\[?\s*(\{\s*("|$)|$)|\[\s*[\["].*\]$'
)  # a first line of JSON; "[1] a note" is text
ARRAY_START = re.compile(r"\ufeff?\s*\[")  # of JSON
COLUMN_NUMBER = re.compile("[1-9][0-9]*")
KINDS = {
    ".parquet": "parquet",
    ".csv": "table",
    ".tsv": "table",
    ".jsonl": "objects",
    ".json": "objects",
}
AN_OBJECT = "object with keys (one in each line of a .jsonl, or all in one array of a .json)"

# files that read as UTF-8 but hold no texts: how they begin, what they are, and what to do
MARKS = {
    b"<!doctype html": "a web page: fetch the file itself, or extract the texts",
    b"<html": "a web page: fetch the file itself, or extract the texts",
    b"<?xml": "XML: extract the texts, one per line, or write a .csv or .jsonl",
    b"{\\rtf": "rich text (RTF): save it as plain text in UTF-8",
    b"version https://git-lfs.github.com/spec/v1": "a Git LFS pointer: fetch what it points to "
    "(git lfs pull)",
}


def ending_of(name: str) -> str:
    """The ending of a name in lower case, without that of a compression."""
    path = Path(name.lower())
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


def first_of(wanted: Sequence[str], names: Container[str]) -> str | None:
    """Find the first of the wanted names that is there."""
    return next((name for name in wanted if name in names), None)


def shown(names: Iterable[str]) -> str:
    return ", ".join(map(one_line, names))


@dataclass(eq=False)
class Rows:
    """A file, how to read it, and its rows, read once; it is opened when the first row is asked
    for.

    ``lines`` yields the number and the text of each line, ``values`` the number and the value of
    each line of JSON, item of an array, or row of a Parquet file. ``first_line``, ``names`` and
    ``kind`` look ahead and take nothing away, so a pipe can be recognised, too. Anything unreadable
    is an ``InputError`` that names the file and the place.
    """

    path: str | Path
    split: str = (
        ""  # of the rows to read by a column of that name, or of the file in an NLI archive
    )
    quotes: bool = True  # quotation marks enclose cells, and are no text
    columns: str | None = None  # to read, by name or number: "score,left,right"
    scale: float | None = MAX_SCORE  # of scores: from 0 to this; None: any
    strict: bool = True  # no text follows a closing quotation mark
    name: str = ""  # of the data set, if it has one

    def __post_init__(self) -> None:
        self.where, self.is_array = (
            str(self.path),
            False,
        )  # with the file in a .zip; both are known once it is open
        self.lines, self.values = self._read_lines(), self._read_values()

    @classmethod
    def of(cls, source: "Source", split: str = "", **how: Any) -> "Rows":
        """Return the rows of a path; rows are returned as they are."""
        return source if isinstance(source, Rows) else cls(source, split, **how)

    def __str__(self) -> str:
        return self.name or str(self.path)

    @property
    def wanted(self) -> list[str]:
        """The names or numbers in ``columns``."""
        return [name.strip() for name in self.columns.lower().split(",")] if self.columns else []

    @property
    def numbered(self) -> bool:
        """Whether ``columns`` are numbers, from 1, in a table without a header."""
        return bool(self.columns) and all(map(COLUMN_NUMBER.fullmatch, self.wanted))

    @cached_property
    def first_line(self) -> str:
        """The first line that is not blank; "" if there is none."""
        number, line = 0, ""
        for number, line in self.lines:  # noqa: B007
            if line.strip(" \t"):
                break
        # the blank ones before it are counted, not kept: they may be many
        self.lines = chain(
            zip(range(1, number), repeat("")), [(number, line)] * bool(number), self.lines
        )
        return line if line.strip(" \t") else ""

    @cached_property
    def kind(self) -> str:
        """What the file holds: "parquet", an "array" or "objects" of JSON, a "table" if it is named
        so, or "lines".
        """
        first = self.first_line.strip()  # which opens the file, if it is not Parquet
        if self.is_array:
            return "array"
        # a pipe or a .txt may hold JSON, too
        return KINDS.get(ending_of(self.where)) or (
            "objects" if first and JSON_START.match(first) else "lines"
        )

    @property
    def holds_json(self) -> bool:
        """Whether rows are objects, as those of Parquet are, too."""
        return self.kind in ("objects", "array", "parquet")

    @property
    def delimiter(self) -> str:
        return "\t" if "\t" in self.first_line else ","

    @cached_property
    def names(self) -> list[str]:
        """The names in the first line of a table, or the keys of the first JSON object, in lower
        case.
        """
        if not self.holds_json:
            cells = self.first_line.split(self.delimiter)
            if self.quotes:
                cells = next(
                    csv.reader([self.first_line.replace("\r", " ")], delimiter=self.delimiter), []
                )
            return [cell.strip().lower() for cell in cells]
        first = list(islice(self.values, 1))
        self.values = chain(first, self.values)
        return (
            [key.lower() for key in first[0][1]] if first and isinstance(first[0][1], dict) else []
        )

    def unknown_names(self, needed: str) -> InputError:
        """Show the first line or the first keys, which must have names that they have not."""
        if self.holds_json:
            found = (
                f"the keys of the first row are {shown(self.names)}"
                if self.names
                else f"no {AN_OBJECT}"
            )
            return InputError(f"{self.where}: {found}; needed are: {needed}")
        cells = shown(self.first_line.split(self.delimiter))
        return InputError(
            f"{self.where}: the first line, {cells}, must name columns, tabs or commas between: "
            f"{needed}"
        )

    @property
    def unit(self) -> str:
        return {"parquet": "row", "array": "item"}.get(self.kind, "line")

    def fail(self, number: int, message: str) -> NoReturn:
        """Raise ``InputError`` for a row: ``a.tsv, line 3: ...``, or ``a.json, item 3: ...`` of an
        array.
        """
        raise InputError(f"{self.where}, {self.unit} {number}: {message}")

    def _read_lines(self) -> Iterator[tuple[int, str]]:
        if ending_of(self.where) == ".parquet":  # it has none
            return
        try:
            with ExitStack() as stack:
                stream = self._open(stack)
                if ending_of(self.where) == ".json" and ARRAY_START.match(
                    stream.peek(512).decode(errors="replace")
                ):
                    self.is_array = True
                    yield 1, decode(stream.read(), self.where).lstrip("\ufeff")
                # subtle: text streams also split at other separators, such as U+0085 and U+2028,
                # inside a sentence
                read = partial(stream.readline, LONGEST_LINE + 1)
                for number, content in enumerate(iter(read, b""), start=1):
                    place = f"{self.where}, line {number}"
                    if len(content) > LONGEST_LINE:
                        raise InputError(
                            f"{place}: longer than {LONGEST_LINE:,} bytes; split the text"
                        )
                    if b"\0" in content:
                        raise InputError(
                            f"{place}: a NUL byte, so this is no text; save it as UTF-8, or unpack "
                            f"it"
                        )
                    if (
                        number == 1
                        and not content.endswith(b"\n")
                        and b"\r" in content.rstrip(b"\r\n")
                    ):
                        raise InputError(
                            f"{place}: lines end in CR alone; convert them: tr '\\r' '\\n'"
                        )
                    line = decode(content, self.where, number).removesuffix("\n").rstrip("\r")
                    yield (
                        number,
                        line.lstrip("\ufeff"),
                    )  # of a file that was appended to another, too
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
            raise InputError(
                f"{self.where}: {error}; the file is damaged, or not what its name says"
            ) from error

    def _open(self, stack: ExitStack) -> Any:
        """Open the file, decompressed; what is in it must then be text."""
        stream: Any = stack.enter_context(open_bytes(self.path))
        ending = Path(self.path).suffix.lower()
        if ending == ".gz":
            stream = stack.enter_context(gzip.GzipFile(fileobj=stream))
        elif ending == ".zip":
            stream = self._open_member(stack.enter_context(zipfile.ZipFile(stream)), stack)
        for mark, what in MARKS.items():
            if stream.peek(64).lower().startswith(mark):
                raise InputError(f"{self.where} is {what}")
        return stream

    def _open_member(self, archive: zipfile.ZipFile, stack: ExitStack) -> Any:
        """Open the file of a split in an NLI archive: ``snli_1.0/snli_1.0_dev.jsonl``."""
        # subtle: the NLI archives were made on a Mac, so every file has a twin,
        # __MACOSX/snli_1.0/._snli_1.0_dev.jsonl
        files = [
            name
            for name in archive.namelist()
            if not name.startswith("__MACOSX/") and not name.endswith("/")
        ]
        wanted = tuple(f"_{split}.jsonl" for split in (self.split, TWO_DEVS.get(self.split)))
        chosen = [name for name in files if name.endswith(wanted)]
        if len(chosen) != 1:
            found = f"{listed(files, 5)}, not one file of a split {one_line(self.split)}"
            raise InputError(f"{self.where} has {found}: unpack it, and give one of them")
        self.where += f"/{chosen[0]}"
        try:
            opened: Any = archive.open(chosen[0])
        except (
            RuntimeError,
            NotImplementedError,
        ) as error:  # it needs a password, or an unusual decompressor
            raise InputError(f"{self.where}: {error}") from error
        # subtle: buffered, because an archive's own readline with a limit takes ten times as long
        return stack.enter_context(BufferedReader(opened))

    def _read_values(self) -> Iterator[tuple[int, Any]]:
        if self.kind == "parquet":
            yield from enumerate(self._read_parquet(), start=1)
        else:
            for number, line in self.lines:
                if line.strip():
                    try:
                        value = json.loads(line)
                        check_unicode(line, value)
                    except (ValueError, RecursionError) as error:
                        raise self._invalid(number, line, error) from error
                    yield from enumerate(value, start=1) if self.is_array else [(number, value)]

    def _read_parquet(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of a part of a row group after the other."""
        try:
            from pyarrow.parquet import ParquetFile
        except ImportError as error:
            raise InputError(
                f"{self.path}: Parquet needs pyarrow ({error}): pip install -e '.[parquet]'"
            ) from error
        with open_bytes(self.path) as file:
            try:
                for batch in ParquetFile(file).iter_batches(ROWS_OF_PARQUET):
                    yield from batch.to_pylist()
            except (ValueError, OSError, NotImplementedError) as error:  # pyarrow's are of these
                raise InputError(
                    f"{self.path} is damaged, or no Parquet: {one_line(str(error))}"
                ) from error

    def _invalid(self, number: int, content: str, error: Exception) -> InputError:
        line = number + getattr(error, "lineno", 1) - 1
        message = getattr(error, "msg", error)
        if isinstance(error, UnicodeEncodeError):
            message = f"a lone surrogate, \\u{ord(error.object[error.start]):x}"
        elif getattr(error, "pos", 0) >= len(content.rstrip()):
            message = "the line ends within a row; write each row in one line, or all in one array of a .json"
        return InputError(f"{self.where}, line {line}: not valid JSON: {message}")

    def cells(self, delimiter: str = "") -> Iterator[tuple[int, list[str]]]:
        """Yield the line number and the stripped cells of each row of a table that is not a blank
        line.

        ``delimiter`` is a tab or a comma unless it is given. A cell in quotation marks may span
        several lines.
        """
        delimiter = delimiter or self.delimiter
        if self.quotes:
            rows = self._quoted_cells(delimiter)
        else:
            rows = (
                (n, line.split(delimiter))
                for n, line in self.lines
                if delimiter in line or line.strip(" \t")
            )
        for number, row in rows:
            yield number, [cell.strip() for cell in row]

    def _quoted_cells(self, delimiter: str) -> Iterator[tuple[int, list[str]]]:
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))  # 128 KiB by default
        begin, size = 0, 0  # of a row: the number of its first line, and the length of all

        def lines_of_rows() -> Iterator[str]:
            nonlocal begin, size
            for number, line in self.lines:
                if size or delimiter in line or line.strip(" \t"):  # in a cell a line may be blank
                    begin = begin if size else number
                    size += len(line) + 1
                    if size > LONGEST_LINE:
                        raise csv.Error(f"a row longer than {LONGEST_LINE:,} characters")
                    # with its end, or the last word of one line of a cell would run into the first
                    # of the next
                    yield line + "\n"

        reader, is_told = (
            csv.reader(lines_of_rows(), delimiter=delimiter, strict=self.strict),
            not self.strict,
        )
        while True:
            size = 0
            try:
                cells = next(reader, None)
            except csv.Error as error:
                why = {"unexpected end of data": "a quotation mark is never closed"}.get(
                    str(error), str(error)
                )
                advice = "a mark at the start of a cell encloses it and is doubled in it; if it is text: --no-quotes"
                raise InputError(f"{self.where}, line {begin}: {why}; {advice}") from error
            if cells is None:
                return
            # a mark that opens a text may have been closed by another text's
            if not is_told and any("\t" in cell and "\n" in cell for cell in cells):
                is_told = True
                advice = "give --no-quotes if marks are text in this file"
                say(
                    f"{self}, line {begin}: a cell in quotation marks holds a tab and a line end; "
                    f"{advice}"
                )
            yield begin, cells

    def records(self, refuse: Callable[[int, str], object]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number of each row and its values by name, in lower case, or by number if they
        are ``numbered``.

        Other rows are passed to ``refuse``. A row of a table may only be shorter than the first if
        it has ``columns``.
        """
        if self.holds_json:
            for number, value in self.values:
                fields = (
                    {key.lower(): one for key, one in value.items()}
                    if isinstance(value, dict)
                    else {}
                )
                if not isinstance(value, dict):
                    refuse(number, f"{one_line(value)} is no {AN_OBJECT}")
                elif len(fields) < len(value):
                    refuse(number, f"two keys differ in case alone: {shown(sorted(value))}")
                else:
                    yield number, fields
            return
        rows, names, most = self.cells(), self.names, len(self.names)
        if self.numbered:
            names = [str(i) for i in range(1, 1 + max(most, *map(int, self.wanted)))]
            # a comma in a text that is not quoted would shift the columns; between tabs a row may
            # be longer
            most = most if self.delimiter == "," else sys.maxsize
        else:
            next(rows, None)
        least = 1 + max(map(names.index, self.wanted), default=len(names) - 1)
        for number, cells in rows:
            if not least <= len(cells) <= most:
                refuse(number, f"{len(cells)} columns; {len(names)} are needed")
            elif [cell.lower() for cell in cells] == self.names and not self.numbered:
                refuse(number, "the header again; delete the line")
            else:
                yield number, dict(zip(names, cells, strict=False))


Source = str | Path | Rows


def check_unicode(content: str, value: Any) -> None:
    """Raise ``UnicodeEncodeError`` for a lone surrogate, which JSON can escape and no UTF-8 has."""
    if "\\u" in content:
        json.dumps(value, ensure_ascii=False).encode()
