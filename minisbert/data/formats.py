"""The formats of training data: which columns or keys of a file are its labels and texts, and its rows as ``Row``.

The names below are those that the libraries of the field write. A file without any of them has the label first, if its
format has one, and then the texts. A first line that looks like other names is refused, never read as a row.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from minisbert.core import one_line
from minisbert.models.similarity import MAX_SCORE

NLI_LABELS = ("contradiction", "entailment", "neutral")  # numbered 0, 1, 2 as in SBERT's own script
HUGGING_FACE_NLI = ("entailment", "neutral", "contradiction")  # numbered so under premise and hypothesis
NO_GOLD = ("-", "-1")  # the label of an NLI row on which the annotators did not agree
SCORE_NAMES = ("score", "similarity_score", "similarity", "relatedness_score")
LABEL_NAMES = ("gold_label", "label", "is_duplicate")
PREMISE = ("premise", "hypothesis")
TEXT_PAIRS = (
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("sentence_a", "sentence_b"),
    ("text_a", "text_b"),
    PREMISE,
    ("query", "passage"),
    ("query", "document"),
    ("query", "answer"),
    ("question", "answer"),
)
ANCHORS = ("anchor", "query", "question", "sent0")
POSITIVES = ("positive", "positives", "pos", "positive_passages", "answer", "sent1", "passage", "document")
NEGATIVE = re.compile(r"(hard_)?neg(ative)?s?(_passages?)?(_?\d+)?")
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
# also what a column of scores may hold by mistake: 4,5  80%  0x3  true
LIKE_A_NUMBER = re.compile(
    r"[-+]?[0-9][0-9.,_]*([eE][-+]?[0-9]+)?\s*%?|[-+]?\.[0-9]+|0x[0-9a-f]+|true|false|nan|", re.I
)
MOSTLY = 0.8  # of the cells of a column, to say what it holds
NAME = re.compile(r"[^\W\d][^?!,;\"]{0,40}(?<![.])")  # of a column, unless it has more than three words


@dataclass(frozen=True, slots=True)
class Row:
    """Texts that belong together, and their label: a score of 0 to 5, 0 or 1, or the name of a class."""

    texts: tuple[str, ...]
    label: Any = None
    line: int = field(default=0, compare=False, repr=False)  # of the file

    @property
    def sentence1(self) -> str:
        return self.texts[0]

    @property
    def sentence2(self) -> str:
        return self.texts[1]

    @property
    def score(self) -> float:
        """The label of a scored pair."""
        return self.label


@dataclass(frozen=True)
class Format:
    """A format: its name, the data set that has it by default, its contents in words, the names of its labels."""

    name: str
    dataset: str | None
    needs: str
    labels: tuple[str, ...] = ()  # the preferred ones first; empty: rows have no label

    def columns(self, names: Sequence[str]) -> list[str] | None:
        """Those of the names that are read, in the order of a row; None if texts or labels are missing."""
        if self.labels:
            label = first_of(self.labels, names)
            texts = next((list(pair) for pair in TEXT_PAIRS if set(pair) <= set(names)), None)
            if label is None or texts is None:
                return None
            return [label, *texts]
        anchor, positive = first_of(ANCHORS, names), first_of(POSITIVES, names)
        if anchor is None or positive is None:
            return None
        return [anchor, positive, *filter(NEGATIVE.fullmatch, names)]

    @property
    def example(self) -> str:
        """The columns of a row in words, from ``needs``."""
        return self.needs.partition("(")[2].removesuffix(")")

    @property
    def names(self) -> str:
        """The names that would do, for a message."""
        if self.labels:
            pairs = " or ".join(map(" and ".join, TEXT_PAIRS[:3]))
            return f"{' or '.join(self.labels[:3])}, with {pairs}"
        return f"{' or '.join(ANCHORS[:3])}, then {' or '.join(POSITIVES[:4])}, and maybe negative, negative_2"


SCORED = Format("scored pairs", "stsb", "scored pairs (score, sentence1, sentence2)", SCORE_NAMES + LABEL_NAMES)
LABELLED = Format("labelled pairs", "quora", "labels (0 or 1, sentence1, sentence2)", LABEL_NAMES + SCORE_NAMES)
MULTILABEL = Format("multi-label pairs", None, "labels (labels, sentence1, sentence2)", ("labels", *LABEL_NAMES))
NLI = Format("NLI", "snli", "classes, such as NLI's (gold_label, sentence1, sentence2)", LABEL_NAMES)
PAIRS = Format("pairs", "snli", "pairs or triplets (anchor, positive, negatives), or NLI rows")
SENTENCES = Format("sentences", None, "plain texts (.txt, or .jsonl or .csv with a text)")


def first_of(wanted: Sequence[str], names: Sequence[str]) -> str | None:
    return next((name for name in wanted if name in names), None)


# ------------------------------------------------------------------------------------------- values


def number(value: Any) -> float | None:
    """The number that a cell or a JSON value is, else None: ``number("4.5") = 4.5``, ``number("4,5") = None``."""
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return float(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf"):
        return float(value)
    return None


def parse_score(value: Any, scale: float | None = MAX_SCORE) -> float:
    """A score of 0 to ``scale``, converted to 0 to 5; of -S to S for a ``scale`` of -S, converted to -5 to 5.

    Without a scale any number, unchanged. ``ValueError`` for anything else.
    """
    score = number(value)
    if score is None:
        raise ValueError(f"the score {one_line(value)} is not a number, such as 4.5")
    if scale is None:
        return score
    low, high = min(scale, 0.0), abs(scale)
    if not low <= score <= high:
        raise ValueError(f"the score {value} is not on the scale of {low:g} to {high:g}; give its --scale")
    return score * (MAX_SCORE / high)


def parse_label(value: Any) -> int:
    """0 or 1, also as ``1.0``."""
    label = number(value)
    if label not in (0, 1):
        raise ValueError(f"the label {one_line(value)} is not 0 or 1")
    return int(label)


def parse_class(value: Any, texts: Sequence[str]) -> str | None:
    """The name of a class; None for a row without a gold label. ``texts`` are the names of the texts' columns."""
    if str(value) in NO_GOLD:
        return None
    label = number(value)
    if label is not None and tuple(texts) == PREMISE:
        if label not in (0, 1, 2):
            raise ValueError(f"the label {one_line(value)} is not 0, 1 or 2: {', '.join(HUGGING_FACE_NLI)}")
        return HUGGING_FACE_NLI[int(label)]
    if isinstance(value, list | dict | bool | type(None)) or value == "" or (label is not None and label % 1):
        raise ValueError(f"the label {one_line(value)} is not one class")
    return str(value)


def parse_labels(value: Any) -> tuple[str, ...]:
    """The labels of a pair: a list of names, a cell with commas between them, or a 0 or 1 for each label.

    ``parse_labels("rude, spam") = ("rude", "spam")``, ``parse_labels([1, 0, 1]) = ("0", "2")``.
    """
    if isinstance(value, str):
        value = [name.strip() for name in value.split(",") if name.strip()]
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    if not isinstance(value, list) or not {number(one) for one in value} <= {0, 1}:
        raise ValueError(f"the labels {one_line(value)} are neither names nor a 0 or 1 for each label")
    return tuple(str(place) for place, one in enumerate(value) if one)


def class_names(labels: Iterable[str]) -> tuple[str, ...]:
    """The classes in the order of their numbers: NLI's as in ``NLI_LABELS``, others sorted.

    Raises ``ValueError`` for a class beside those of NLI.
    """
    classes = sorted(set(labels))
    if not {"neutral", "contradiction"} & set(classes):
        return tuple(classes)
    for name in classes:
        if name not in NLI_LABELS:
            raise ValueError(f"the label {one_line(name)} is not {' or '.join(NLI_LABELS)}")
    return NLI_LABELS


def as_texts(value: Any) -> list[str]:
    """The texts of a cell or a JSON value: a string, a passage with ``text`` and maybe ``title``, or a list of them."""
    if isinstance(value, str):
        return [value.strip()]
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return [f"{value.get('title') or ''} {value['text']}".strip()]
    if isinstance(value, list):
        texts = [as_texts(one) for one in value if not isinstance(one, list)]
        if len(texts) == len(value):
            return [text for one in texts for text in one]
    raise ValueError(f"a text is needed, not {one_line(value)}")


# ------------------------------------------------------------------------------------------ columns


def mostly_numbers(cells: Sequence[Any]) -> bool:
    """Whether a column holds numbers, or what was meant as numbers."""
    like = [cell for cell in cells if not isinstance(cell, str) or LIKE_A_NUMBER.fullmatch(cell)]
    return len(like) >= MOSTLY * len(cells) and any(number(cell) is not None or cell for cell in like)


def is_index(cells: Sequence[str]) -> bool:
    """Whether ten cells or more count the rows, as pandas writes it: 0, 1, 2, ..."""
    if len(cells) < 10 or not all(cell.isdecimal() for cell in cells):
        return False
    first = int(cells[0])
    return [int(cell) for cell in cells] == list(range(first, first + len(cells)))


def is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row of a table looks like names of columns, and few of the others do.

    Names have at most three words and no sentence's punctuation; a known name is one in any company.
    """
    first = [cell.lower() for cell in rows[0]]
    known = {*SCORE_NAMES, *LABEL_NAMES, *ANCHORS, *POSITIVES, *(name for pair in TEXT_PAIRS for name in pair)}
    if known & set(first) and not any(map(NUMBER.fullmatch, first)):
        return True
    others = sum(map(like_names, rows[1:]))
    return like_names(rows[0]) and len(rows) > 1 and others <= (1 - MOSTLY) * (len(rows) - 1)


def like_names(cells: Sequence[str]) -> bool:
    cells = [cell for cell in cells if cell]  # an index has no name
    if len({cell.lower() for cell in cells}) < len(cells):
        return False
    return all(NAME.fullmatch(cell) and len(cell.split()) <= 3 for cell in cells)
