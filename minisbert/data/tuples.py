"""A reader for (anchor, positive) pairs, with any number of negatives: what losses with in-batch negatives train on.

A table has two or more columns, a line of .jsonl is an object or a list; all rows of a file have as many negatives.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minisbert.core import InputError, one_line
from minisbert.data.corpora import collect, table
from minisbert.data.rows import Rows, check_unicode

NAMES = (("anchor", "positive"), ("query", "positive"), ("query", "answer"), ("question", "answer"), ("sent0", "sent1"))
NEGATIVES = re.compile(r"(negatives?|hard_neg)(_?\d+)?")  # negative_1, negative_2, ... are sentence-transformers'
FORMS = "an object with anchor, positive and, if there are any, negatives, or a list of two or more texts"


def read_tuples(path: str | Path, limit: int | None = None) -> tuple[list[tuple[str, ...]], int]:
    """Rows (anchor, positive, negative, ...) of texts, and how many were skipped because a text is empty.

    Tab- or comma-separated, with or without a header. The header names the columns (``anchor`` and ``positive``, or
    another pair of ``NAMES``, then ``negative``, ``negative_1``, ... or ``hard_neg``) and may name others. Or .jsonl
    with objects of these keys, in which ``negative`` may be a list, or with lists of texts. A .gz is decompressed.
    """
    rows = json_tuples(path) if ".jsonl" in Path(path).suffixes else table(path, named)
    return collect(path, (cells if all(cells) else None for cells in equally_wide(rows)), limit)


def named(keys: list[str]) -> list[str] | None:
    """The keys of anchor, positive and negatives among these, in this order, or None if there is no pair."""
    pair = next((pair for pair in NAMES if set(pair) <= set(keys)), None)
    return pair and [*pair, *(key for key in keys if NEGATIVES.fullmatch(key))]


def json_tuples(path: str | Path) -> Iterator[tuple[str, list[str]]]:
    """``FILE, line N`` and the texts of each line of JSON."""
    rows = Rows(path)
    for line, row in rows.values():
        where = rows.at(line)
        if isinstance(row, dict) and (keys := named(list(row))):
            texts: list[Any] = [text for key in keys for text in as_list(row[key])]
        elif isinstance(row, list) and len(row) > 1:
            texts = row
        else:
            raise InputError(f"{where}: expected {FORMS}, not {one_line(row)}")
        for text in texts:
            if not isinstance(text, str):
                raise InputError(f"{where}: {one_line(text)} is not a text; expected {FORMS}")
            check_unicode(text, where)
        yield where, [text.strip() for text in texts]


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def equally_wide(rows: Iterator[tuple[str, list[str]]]) -> Iterator[tuple[str, ...]]:
    """The rows' texts; ``InputError`` for a row with more or fewer than the first."""
    width = 0
    for where, texts in rows:
        width = width or len(texts)
        if width < 2:
            raise InputError(f"{where}: {width} columns; anchor and positive are needed")
        if len(texts) != width:
            raise InputError(f"{where}: {len(texts) - 2} negatives, the first row has {width - 2}: all need as many")
        yield tuple(texts)
