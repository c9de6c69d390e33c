"""The reader of texts, for every command: one per line of a .txt, or the documents of a .jsonl, .csv or .tsv."""

import json
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from minisbert.core import InputError, one_line
from minisbert.data.rows import Rows

TEXT_NAMES = ("text", "sentence", "document", "passage", "content")  # what the column of texts may be called


def read_texts(path: str | Path, limit: int | None = None) -> tuple[list[str], int]:
    """The texts of a file without the empty ones, and how many those were; ``limit`` counts both.

    Raises ``InputError`` as ``numbered_texts`` does, and for a file without texts.
    """
    texts = [text for _, text in islice(numbered_texts(path), limit)]
    usable = [text for text in texts if text]
    skipped = len(texts) - len(usable)
    if not usable:
        raise InputError(f"{path} holds no usable rows" + (f" ({skipped} were skipped)" if skipped else ""))
    return usable, skipped


def stream_texts(path: str | Path) -> Iterator[str]:
    """The texts of a file, yielded as it is read; ``InputError`` for an empty text and for a file without texts."""
    line = 0
    for line, text in numbered_texts(path):
        if not text:
            raise InputError(f"{path}, line {line}: an empty line has no text to encode; remove it")
        yield text
    if not line:
        raise InputError(f"{path} is empty")


def numbered_texts(path: str | Path) -> Iterator[tuple[int, str]]:
    """Line number and text, stripped and perhaps empty, of each row; a .gz is decompressed, a pipe is read once.

    A .jsonl holds strings, or objects with one of ``TEXT_NAMES`` and maybe a ``title``, which is put before the text as
    in BEIR. A .csv or .tsv has the same names in a header. Any other file has one text per line, unless its first line
    is a JSON object. Raises ``InputError`` with the columns that there are if none of them holds texts.
    """
    rows, endings = Rows(path), set(Path(path).suffixes)
    if endings & {".csv", ".tsv"}:
        yield from table_texts(rows)
        return
    lines = rows.lines()
    first = next(lines, None)
    if first is None:
        return
    is_json = bool(endings & {".jsonl", ".json"}) or is_object(first)
    for number, line in enumerate(chain([first], lines), start=1):
        if not is_json:
            yield number, line.strip()
        elif line.strip():
            yield number, json_text(rows.json_value(number, line), f"{path}, line {number}")


def table_texts(rows: Rows) -> Iterator[tuple[int, str]]:
    cells = rows.cells()
    line, header = next(cells, (1, []))
    if not header:
        return
    names = [name.lower() for name in header]
    key = text_key(names, f"{rows.path}, line {line}")
    for line, values in cells:
        if len(values) != len(names):
            raise InputError(f"{rows.path}, line {line}: {len(values)} columns; the header has {len(names)}")
        yield line, with_title(dict(zip(names, values, strict=True)), key)


def json_text(value: Any, where: str) -> str:
    """The text of a line's JSON value."""
    if isinstance(value, dict):
        value = with_title(value, text_key(value, where))
    if not isinstance(value, str):
        raise InputError(f"{where}: a text, or an object with a text, is needed, not {one_line(value)}")
    return value.strip()


def text_key(names: Iterable[str], where: str) -> str:
    """Which of the names is that of the texts."""
    for name in TEXT_NAMES:
        if name in names:
            return name
    shown = ", ".join(map(one_line, names)) or "none"
    raise InputError(f"{where}: texts are needed, under {', '.join(TEXT_NAMES)}; the columns are {shown}")


def with_title(row: dict[str, Any], key: str) -> Any:
    title, text = row.get("title"), row[key]
    if isinstance(title, str) and isinstance(text, str):
        return f"{title} {text}".strip()
    return text


def is_object(line: str) -> bool:
    """Whether a line is a JSON object."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
