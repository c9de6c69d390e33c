"""Texts to encode or to search, as every command reads them: one per line, or the documents of a .jsonl or a table."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minisbert.core import InputError, one_line, reading
from minisbert.data.rows import Rows

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
