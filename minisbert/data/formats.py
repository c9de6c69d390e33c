"""Which form a file of training data has: by its header, or by what the columns of its first rows hold."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from minisbert.data.corpora import DUPLICATE_COLUMNS, NLI_LABELS
from minisbert.data.faults import WARNING, Findings
from minisbert.data.scored_pairs import is_number
from minisbert.data.tuples import as_list, named

SCORED, LABELLED, NLI, PAIRS, TRIPLETS, SENTENCES = FORMS = (
    "scored pairs",
    "labelled pairs",
    "NLI",
    "pairs",
    "triplets",
    "sentences",
)
ONE_TEXT, NOTHING = "labelled texts", "nothing known"  # nothing trains on these
WITH_LABELS = (SCORED, LABELLED, NLI, ONE_TEXT)
LABEL_NAMES = "score label is_duplicate similarity gold_label similarity_score relatedness_score".split()
NLI_KEYS = ("gold_label", "sentence1", "sentence2")
PAIR_NAMES = (
    *(("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"), ("text1", "text2")),
    *(("sentence_a", "sentence_b"), ("text_a", "text_b"), ("sentence_1", "sentence_2")),
)
INDEX_NAMES = ("", "unnamed: 0", "id", "index")  # pandas writes its index under the first two
HEADING = re.compile(  # what a cell of a header may say
    rf"({'|'.join(LABEL_NAMES)}|anchor|query|question|answer|positive|negatives?|hard_neg|sent|sentence|text|premise"
    r"|hypothesis|passage|document|title|q?id|index|genre|split)[_ ]?([ab]|\d+)?"
)
MOSTLY = 0.8  # share of the cells that decides what a column holds
MARKS = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars"}


@dataclass
class Form:
    """The form of a file, and which columns (or keys) hold the label and the texts."""

    kind: str  # one of FORMS, ONE_TEXT or NOTHING
    layout: str  # what separates the columns, in words
    texts: list[Any]
    label: Any = None
    width: int = 0  # columns of a row, 0 for JSON
    header: list[str] | None = None  # in lower case


# ------------------------------------------------------------------------------------------- tables


def table_form(head: Sequence[tuple[int, list[str]]], mark: str, findings: Findings) -> Form:
    """The form of a table by its first rows (line number and cells each)."""
    width = Counter(len(cells) for _, cells in head).most_common(1)[0][0]
    rows = [[cell.strip() for cell in cells] for _, cells in head if len(cells) == width]
    first, body = [cell.lower() for cell in rows[0]], rows[1:] or rows
    header = first if is_header(first) else None
    columns = list(zip(*body, strict=True))
    index = [i for i, cells in enumerate(columns) if is_index(cells) and (not header or header[i] in INDEX_NAMES)]
    label = label_column(header, columns, index)
    if header is None and label is not None and not (is_number(first[label]) or first[label] in (*NLI_LABELS, "-")):
        header = first if all(len(cell.split()) <= 2 for cell in first) else None  # of names that nobody knows
    if header is None and index and label not in index:
        findings.add("index-column", head[0][0])
    texts = text_columns(header, columns, label, index)
    known = header is not None and named(header) is not None
    layout = f"{width} columns separated by {MARKS[mark]}" + (", header" if header else "")
    if label is None or known:
        kind = {0: NOTHING, 1: SENTENCES, 2: PAIRS}.get(len(texts), TRIPLETS)
        if len(texts) < 2:
            findings.add("one-column", head[0][0])
        return Form(kind, layout, texts, None, width, header)
    if len(texts) < 2:
        findings.add("one-text", head[0][0])
        return Form(ONE_TEXT, layout, texts, label, width, header)
    words = share(columns[label], lambda cell: cell in (*NLI_LABELS, "-")) >= MOSTLY
    return Form(NLI if words else SCORED, layout, texts[:2], label, width, header)


def is_header(cells: list[str]) -> bool:
    """Whether the cells of a row, in lower case, are names of columns."""
    plain = [cell for cell in cells if cell not in ("", "unnamed: 0")]
    return named(cells) is not None or (len(plain) > 0 and all(HEADING.fullmatch(cell) for cell in plain))


def share(cells: Sequence[str], holds: Any) -> float:
    return sum(map(holds, cells)) / max(len(cells), 1)


def is_index(cells: Sequence[str]) -> bool:
    """Whether the cells count up by one: 0, 1, 2, ..."""
    numbers = [int(cell) for cell in cells if re.fullmatch(r"\d{1,18}", cell)]
    return len(numbers) == len(cells) > 2 and all(b - a == 1 for a, b in pairwise(numbers))


def label_column(header: list[str] | None, columns: Sequence[Sequence[str]], index: list[int]) -> int | None:
    """The column of the labels: by its name, at STS-B's place, or the first of numbers or of NLI's words."""
    if header is not None:
        return next((header.index(name) for name in LABEL_NAMES if name in header), None)
    numbers = [i for i, cells in enumerate(columns) if share(cells, is_number) >= MOSTLY and i not in index]
    if len(columns) >= 7 and 4 in numbers:
        return 4
    words = [i for i, cells in enumerate(columns) if share(cells, lambda cell: cell in (*NLI_LABELS, "-")) >= MOSTLY]
    return next(iter([*numbers, *words]), None) if len(columns) > 1 else None


def text_columns(
    header: list[str] | None, columns: Sequence[Sequence[str]], label: int | None, index: list[int]
) -> list[int]:
    """The columns of the texts: by their names, at STS-B's places, or all that hold no numbers."""
    if header is not None:
        known = named(header) or next((pair for pair in PAIR_NAMES if set(pair) <= set(header)), None)
        if known:
            return [header.index(name) for name in known]
    elif label == 4 and len(columns) >= 7:
        return [5, 6]
    rest = [i for i in range(len(columns)) if i != label and i not in index]
    return [i for i in rest if label is None or share(columns[i], is_number) < MOSTLY]


def check_columns(form: Form, findings: Findings) -> None:
    """Add the fault if training would look for the label or the texts elsewhere."""
    header, line = form.header, 1
    if form.kind in (PAIRS, TRIPLETS):
        if header is not None and named(header) is None:
            findings.add("unknown-header", line, ", ".join(header), level=WARNING)  # it is read as a row of texts
    elif form.kind == NLI:
        findings.add("nli-table", line)
    elif form.kind == LABELLED:
        if header is not None and not any(set(names) <= set(header) for names in DUPLICATE_COLUMNS):
            findings.add("unknown-header", line, ", ".join(header))
        elif header is None and (form.width, form.label, form.texts) != (3, 0, [1, 2]):
            findings.add("column-order", line)
    elif form.kind == SCORED:
        start = 4 if form.width >= 7 else 0
        if (form.label, form.texts) != (start, [start + 1, start + 2]) or 3 < form.width < 7:
            findings.add("column-order", line, ", ".join(header) if header else None)
        elif header is not None and header[start : start + 3] != ["score", "sentence1", "sentence2"]:
            findings.add("unknown-header", line, ", ".join(header))


# --------------------------------------------------------------------------------------------- JSON


def json_form(values: Iterable[Any], findings: Findings) -> Form:
    """The form of lines of JSON by the first values."""
    kinds = Counter(kind_of(value) for value in values)
    kinds.pop((NOTHING, ()), None)
    kind, keys = kinds.most_common(1)[0][0] if kinds else (NOTHING, ())
    layout = f"lines of JSON ({', '.join(keys) or 'lists'})" if kinds else "lines of JSON"
    if kind == NLI:
        return Form(NLI, layout, list(NLI_KEYS[1:]), NLI_KEYS[0])
    if kind in (SCORED, SENTENCES):
        findings.add("json-form", 1)
    if kind == SCORED:
        return Form(SCORED, layout, list(keys[1:]), keys[0])
    return Form(kind, layout, list(keys))


def kind_of(value: Any) -> tuple[str, tuple[str, ...]]:
    """The form of one value and its keys, the label's first."""
    if isinstance(value, list):
        good = len(value) > 1 and all(isinstance(text, str) for text in value)
        return ((PAIRS if len(value) == 2 else TRIPLETS) if good else NOTHING), ()
    if isinstance(value, str):
        return SENTENCES, ()
    if not isinstance(value, dict):
        return NOTHING, ()
    if set(NLI_KEYS) <= set(value):
        return NLI, NLI_KEYS
    if keys := named(list(value)):
        texts = sum(len(as_list(value[key])) for key in keys)
        return (PAIRS if texts == 2 else TRIPLETS), tuple(keys)
    label = next((name for name in LABEL_NAMES if name in value), None)
    pair = next((pair for pair in PAIR_NAMES if set(pair) <= set(value)), None)
    if label and pair:
        return SCORED, (label, *pair)
    text = next((key for key in ("text", "sentence", "title") if isinstance(value.get(key), str)), None)
    return (SENTENCES, (text,)) if text and not label else (NOTHING, ())
