"""Reading a damaged file to its end: the rows that can be read, in which form they are, and what is wrong elsewhere.

The readers (``corpora``, ``scored_pairs``, ``tuples``) stop at the first line they cannot use. This goes on, with the
same functions for lines and cells.
"""

import codecs
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from minisbert.core import InputError
from minisbert.data.corpora import check_unicode, file_lines
from minisbert.data.faults import PROBLEM, Findings
from minisbert.data.forms import NLI, NOTHING, PAIRS, SENTENCES, TRIPLETS, Form, is_header, json_form, table_form
from minisbert.data.scored_pairs import quoted_rows, tab_rows
from minisbert.data.tuples import as_list, named
from minisbert.system.files import decode, open_bytes

HEAD = 100  # rows that decide the form


class Row(NamedTuple):
    """A row as it is written: texts with their white space, the label's cell."""

    line: int
    texts: list[str]
    label: str | None


def read_lenient(path: Path, findings: Findings) -> tuple[Form, Iterator[Row]]:
    """The form of a file by its first rows, and all rows that can be read; what is wrong goes to ``findings``.

    Raises ``InputError`` only for a file that cannot be opened.
    """
    open_bytes(path).close()
    lines = decoded_lines(path, findings)
    start = list(islice(lines, HEAD))
    first = next((line for line in start if line.strip()), "")
    lines = chain(start, lines)
    if path.suffix in (".json", ".zip") or ".jsonl" in path.suffixes or re.match(r'\s*[{\[]\s*"', first):
        return json_rows(path, lines, findings)
    mark = delimiter(path, start, findings)
    if mark is None:
        return Form(SENTENCES, "one a line", [0], width=1), sentences(lines, findings)
    if mark == "\t" and "is_duplicate" not in first:
        cells = unquoted(lines, findings)
    else:
        cells = going_on(path, lines, mark, findings)
    head = list(islice(cells, HEAD))
    if not head:
        return Form(NOTHING, "no rows", []), iter(())
    form = table_form(head, mark, findings)
    return form, table_rows(chain(head, cells), form, findings)


# -------------------------------------------------------------------------------------------- lines


def decoded_lines(path: Path, findings: Findings) -> Iterator[str]:
    """Each line's text; what is not UTF-8 is read as Latin-1."""

    def to_text(content: bytes, where: str, number: int) -> str:
        if number == 1 and content.startswith(codecs.BOM_UTF8):
            findings.add("byte-order-mark", number)
        if content.endswith(b"\r\n"):
            findings.add("crlf", number)
        if b"\0" in content:
            findings.add("nul-bytes", number)
        try:
            return decode(content, where, number)
        except InputError:
            text = content.decode("latin-1")
            findings.add("not-utf8", number, text.strip())
            return text

    try:
        for _, line in file_lines(path, "train", to_text):
            yield line.removesuffix("\r")
    except InputError as error:  # cut off, not compressed, a line of more than 4 MiB
        findings.add("damaged", str(error))


def delimiter(path: Path, start: list[str], findings: Findings) -> str | None:
    """What separates the columns, by the first lines; None for a file of sentences."""
    lines = [line for line in start if line.strip()]
    if not lines or "\t" in lines[0]:
        return "\t" if lines else None
    table = bool({".csv", ".tsv"} & set(path.suffixes))
    commas = {line.count(",") for line in lines}
    for other in ";|":
        counts = {line.count(other) for line in lines}
        numbered = all(re.match(rf"-?[\d.]+ *{re.escape(other)}", line) for line in lines[1:] or lines)
        if len(counts) == 1 and counts != {0} and (len(commas) > 1 or commas == {0}) and (table or numbered):
            findings.add("wrong-delimiter", 1, lines[0])
            return other
    numbered = all(re.match(r"-?[\d.]+,[^,]+,", line) for line in lines[1:] or lines)
    return "," if table or numbered else None


def sentences(lines: Iterable[str], findings: Findings) -> Iterator[Row]:
    """The lines of a file of sentences; empty ones are counted."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield Row(number, [line], None)
        else:
            findings.add("empty-text", number)


# -------------------------------------------------------------------------------------------- cells


def unquoted(lines: Iterable[str], findings: Findings) -> Iterator[tuple[int, list[str]]]:
    """The cells of a tab-separated file, in which quotation marks are text."""
    for number, cells in tab_rows(lines):
        quoted = [cell for cell in cells if len(cell) > 2 and cell[0] == cell[-1] == '"']
        if any('""' in cell or '"' not in cell[1:-1] for cell in quoted):
            findings.add("quoted-tabs", number, quoted[0])
        yield number, cells


def going_on(path: Path, lines: Iterable[str], mark: str, findings: Findings) -> Iterator[tuple[int, list[str]]]:
    """``quoted_rows`` that goes on after an error, with the line after the one where the bad row begins."""
    source = iter(lines)
    again: deque[str] = deque()  # lines that a bad row has swallowed
    row: list[str] = []  # lines of the row that is being read; csv's limit of a cell, 128 KiB, keeps it short

    def recorded() -> Iterator[str]:
        while again or (line := next(source, None)) is not None:
            row.append(again.popleft() if again else line)
            yield row[-1]

    passed = 0  # lines before the first that this reader has
    while True:
        done = 0
        try:
            for number, cells in quoted_rows(path, recorded(), mark):
                done += len(row)
                row.clear()
                yield passed + number, cells
            return
        except InputError as error:
            found = re.search(r"line (\d+): (?=not \w+-separated)(.*)", str(error))
            bad = int(found[1])
            findings.add("stray-quotes", passed + bad, row[bad - done - 1])
            again.extendleft(reversed(row[bad - done :]))
            row.clear()
            passed += bad


def table_rows(rows: Iterable[tuple[int, list[str]]], form: Form, findings: Findings) -> Iterator[Row]:
    """The rows of a table that have its columns; counts the others, and headers among them."""
    loose = form.label == 4 and form.width >= 7  # STS-B's rows end in sources, which some have and some do not
    for position, (line, cells) in enumerate(rows):
        names = [cell.strip().lower() for cell in cells]
        if position == 0 and form.header is not None and len(cells) == form.width:
            continue
        if len(cells) != form.width and not (loose and len(cells) >= 7):
            findings.add("ragged", line, f"{len(cells)} columns, not {form.width}")
        elif names == form.header or (len(names) > 1 and form.header is None and is_header(names)):
            findings.add("header-inside", line, level=PROBLEM if form.label is not None else "")
        else:
            label = None if form.label is None else cells[form.label].strip()
            yield Row(line, [cells[i] for i in form.texts], label)


# --------------------------------------------------------------------------------------------- JSON


def json_rows(path: Path, lines: Iterable[str], findings: Findings) -> tuple[Form, Iterator[Row]]:
    """The form and the rows of lines of JSON."""
    values = json_lines(lines, findings)
    head = list(islice(values, HEAD))
    form = json_form((value for _, value in head), findings)
    if form.kind in (PAIRS, TRIPLETS) and ".jsonl" not in path.suffixes:
        findings.add("json-name", 1)
    return form, checked_values(chain(head, values), form, findings)


def json_lines(lines: Iterable[str], findings: Findings) -> Iterator[tuple[int, Any]]:
    """Line number and value of each line that is JSON; counts the others."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError):
            findings.add("not-json", number, line.strip())


def checked_values(values: Iterable[tuple[int, Any]], form: Form, findings: Findings) -> Iterator[Row]:
    """The rows among the values; counts those that lack a key, are no texts, or have more negatives than the first."""
    width = 0
    for line, value in values:
        label, texts = parts(value, form)
        if len(texts) < 1 or not all(isinstance(text, str) for text in (*texts, label or "")):
            findings.add("missing-key", line, value)
            continue
        width = width or len(texts)
        if len(texts) != width:
            findings.add("ragged", line, f"{len(texts)} texts, not {width}")
            continue
        try:
            check_unicode("".join(texts), str(line))
        except InputError:
            findings.add("surrogate", line)
            continue
        yield Row(line, texts, label)


def parts(value: Any, form: Form) -> tuple[Any, list[Any]]:
    """The label and the texts of a value; no texts if it is of another form."""
    if form.kind in (PAIRS, TRIPLETS):
        keys = named(list(value)) if isinstance(value, dict) else None
        texts = [text for key in keys for text in as_list(value[key])] if keys else value
        return None, texts if isinstance(texts, list) and len(texts) > 1 else []
    if form.kind == SENTENCES and isinstance(value, str):
        return None, [value]
    if not isinstance(value, dict) or not {*form.texts, form.label or form.texts[0]} <= set(value):
        return None, []
    label = value[form.label] if form.label else None
    return label if form.kind == NLI or label is None else str(label), [value[key] for key in form.texts]
