"""Which format a file has: by its header, or by what the columns of its first rows hold."""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from minisbert.data.findings import WARNING, Findings
from minisbert.data.formats import LABELLED, NLI, PAIRS, SCORED, SENTENCES, TRIPLETS, Format
from minisbert.data.rows import Rows, holds_json, ignore, is_number

SAMPLE = 100  # rows that decide the format
LABEL_NAMES = "score label is_duplicate similarity gold_label similarity_score relatedness_score".split()
INDEX_NAMES = ("", "unnamed: 0", "id", "index")  # pandas writes its index under the first two
HEADING = re.compile(  # what a cell of a header may say
    rf"({'|'.join(LABEL_NAMES)}|anchor|query|question|answer|positive|negatives?|hard_neg|sent|sentence|text|premise"
    r"|hypothesis|passage|document|title|q?id|index|genre|split)[_ ]?([ab]|\d+)?"
)
MOSTLY = 0.8  # of the cells of a column, to say what it holds


def recognise(path: Path, findings: Findings) -> tuple[Format | None, str]:
    """The format of a file and its layout in words. None, with a finding, if training reads no such file."""
    lines = [line for line in islice(Rows(path, "train", on_fault=ignore).lines(), SAMPLE) if line.strip()]
    if holds_json(path):
        return json_format(lines, findings)
    mark = delimiter(path, lines, findings)
    if mark == "":
        return SENTENCES, "one a line"
    sample = list(islice(Rows(path, on_fault=ignore).cells(), SAMPLE)) if mark else []
    if not sample:
        return None, "no table that training reads" if lines else "no rows"
    return table_format(sample, mark, findings)


def delimiter(path: Path, lines: list[str], findings: Findings) -> str | None:
    """What separates the columns; empty for sentences, None if it is one that training does not read."""
    if not lines or "\t" in lines[0]:
        return "\t" if lines else None
    table = bool({".csv", ".tsv"} & set(path.suffixes))
    commas = {line.count(",") for line in lines}
    for other in ";|":
        counts = {line.count(other) for line in lines}
        numbered = all(re.match(rf"-?[\d.]+ *{re.escape(other)}", line) for line in lines[1:] or lines)
        if len(counts) == 1 and counts != {0} and (len(commas) > 1 or commas == {0}) and (table or numbered):
            findings.add("wrong-delimiter", 1, lines[0])
            return None
    numbered = all(re.match(r"-?[\d.]+,[^,]+,", line) for line in lines[1:] or lines)
    return "," if table or numbered else ""


# ------------------------------------------------------------------------------------------- tables


def table_format(sample: Sequence[tuple[int, list[str]]], mark: str, findings: Findings) -> tuple[Format | None, str]:
    """The format of a table by its first rows (line number and cells each)."""
    width = Counter(len(cells) for _, cells in sample).most_common(1)[0][0]
    rows = [cells for _, cells in sample if len(cells) == width]
    first, line = [cell.lower() for cell in rows[0]], sample[0][0]
    columns = list(zip(*(rows[1:] or rows), strict=True))
    header = first if is_header(first) else None
    index = [i for i, cells in enumerate(columns) if is_index(cells) and (not header or header[i] in INDEX_NAMES)]
    label = None if header and PAIRS.columns(header) else label_column(header, columns, index)
    if header is None and label is not None and not (is_number(first[label]) or is_nli(first[label])):
        header = first if all(len(cell.split()) <= 2 for cell in first) else None  # with unknown names
    texts = [i for i in range(width) if i != label and i not in index and not mostly(columns[i], is_number)]
    layout = f"{width} columns separated by " + ("tabs" if mark == "\t" else "commas") + (", header" if header else "")
    form = None
    if index and header is None and label not in index:
        findings.add("index-column", line)
    elif label is None:
        form = unlabelled(header, width, mark, line, findings)
    elif len(texts) < 2:
        findings.add("one-text", line)
    elif mostly(columns[label], is_nli):
        findings.add("nli-table", line)
    else:
        form = labelled(first, header, label, columns[label], line, findings)
    return form, layout


def unlabelled(header: list[str] | None, width: int, mark: str, line: int, findings: Findings) -> Format | None:
    if width == 1 and mark == "\t":  # in the first row alone
        findings.add("ragged", line, "most rows have a single column")
        return None
    if width == 1:
        findings.add("one-column", line)
        return SENTENCES
    if header and not PAIRS.columns(header):
        findings.add("unknown-header", line, ", ".join(header), level=WARNING)  # it is read as a row of texts
    return PAIRS if len(PAIRS.layout(header or [""] * width).columns) == 2 else TRIPLETS


def labelled(
    first: list[str], header: list[str] | None, label: int, cells: Sequence[str], line: int, findings: Findings
) -> Format | None:
    """The format whose reader finds the label and the header in their places; a finding if there is none."""
    classes = mostly(cells, lambda cell: cell in LABELLED.classes)
    for form in (SCORED, LABELLED) if not classes or header is None else (LABELLED, SCORED):
        layout = form.layout(first)
        fits = layout.columns[0] == label and layout.header == (header is not None) and layout.width <= len(first)
        if fits and (form is SCORED or classes):
            return form
    named = header is not None and label == SCORED.layout(first).columns[0]
    findings.add("unknown-header" if named else "column-order", line, ", ".join(header) if header else None)
    return None


def is_header(cells: list[str]) -> bool:
    """Whether the cells of a row, in lower case, are names of columns."""
    plain = [cell for cell in cells if cell not in ("", "unnamed: 0")]
    return PAIRS.columns(cells) is not None or (len(plain) > 0 and all(HEADING.fullmatch(cell) for cell in plain))


def is_nli(cell: str) -> bool:
    return cell in NLI.classes


def mostly(cells: Sequence[str], holds: Callable[[str], bool]) -> bool:
    return sum(map(holds, cells)) / max(len(cells), 1) >= MOSTLY


def is_index(cells: Sequence[str]) -> bool:
    """Whether the cells count up by one: 0, 1, 2, ..."""
    numbers = [int(cell) for cell in cells if re.fullmatch(r"[0-9]{1,18}", cell)]
    return len(numbers) == len(cells) > 2 and all(b - a == 1 for a, b in pairwise(numbers))


def label_column(header: list[str] | None, columns: Sequence[Sequence[str]], index: list[int]) -> int | None:
    """The column of the labels: by its name, at STS-B's place, or the first of numbers or of NLI's words."""
    if header is not None:
        return next((header.index(name) for name in LABEL_NAMES if name in header), None)
    numbers = [i for i, cells in enumerate(columns) if mostly(cells, is_number) and i not in index]
    if len(columns) >= 7 and 4 in numbers:
        return 4
    words = [i for i, cells in enumerate(columns) if mostly(cells, is_nli)]
    return next(iter([*numbers, *words]), None) if len(columns) > 1 else None


# --------------------------------------------------------------------------------------------- JSON


def json_format(lines: list[str], findings: Findings) -> tuple[Format | None, str]:
    """The format of lines of JSON by the most frequent one among the first."""
    kinds = Counter(filter(None, map(line_format, lines)))
    if not kinds:
        if lines:
            findings.add("not-json", 1, lines[0])
        return None, "no lines of JSON that training reads"
    form, keys = kinds.most_common(1)[0][0]
    if form is None:
        findings.add("json-form", 1)
    return form, f"lines of JSON ({', '.join(keys) or 'lists'})"


def line_format(line: str) -> tuple[Format | None, tuple[str, ...]] | None:
    """The format of one line, None for an unknown one, and its keys; None if the line is not JSON."""
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    keys = list(value) if isinstance(value, dict) else []
    if names := NLI.columns(keys):
        return NLI, tuple(names)
    if texts := PAIRS.cells(value):
        return PAIRS if len(texts) == 2 else TRIPLETS, tuple(PAIRS.columns(keys) or ())
    return None, tuple(keys)
