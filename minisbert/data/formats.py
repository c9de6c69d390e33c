"""List the formats of training data: which columns or keys hold labels and texts, and what their values may be.

The names below are those that the libraries of the field write. A file with other names, or without any, is refused:
``--columns`` says which to read.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from minisbert.core import one_line
from minisbert.data.lines import TEXT_NAMES, first_of

MAX_SCORE = 5.0  # 0: nothing in common, 5: the same meaning, as in STS
NLI_LABELS = ("contradiction", "entailment", "neutral")  # numbered 0, 1, 2 as in SBERT's own script
HUGGING_FACE_NLI = ("entailment", "neutral", "contradiction")  # numbered so under premise and hypothesis
NO_GOLD = -1  # the number of an NLI row on which the annotators did not agree; its name is "-"
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
)
ANCHOR_NAMES = ("anchor", "query", "question", "sent0")
POSITIVE_NAMES = ("positive", "positives", "pos", "positive_passages", "answer", "sent1", "passage", "document")
NEGATIVE = re.compile(r"(hard_)?neg(ative)?s?(_passages?)?(_?\d+)?")
# beside anchor and positive these say of a row whether it is a positive at all
JUDGEMENTS = (
    *(*LABEL_NAMES, "labels", *SCORE_NAMES, "scores"),
    *("relevance", "relevant", "is_relevant", "is_positive", "is_correct", "class"),
)
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


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
        return float(self.label)


@dataclass(frozen=True)
class Format:
    """A format: its name, its default data set, what a file needs, and the names of its label's column.

    The preferred names come first. Without names of labels, a row is an anchor, a positive and maybe negatives.
    """

    name: str
    dataset: str | None
    needs: str
    labels: tuple[str, ...] = ()

    def columns(self, names: Sequence[str]) -> list[str] | None:
        """Choose the columns to read, in the order of a row: the label's first. None if one is missing."""
        anchor, positive = first_of(ANCHOR_NAMES, names), first_of(POSITIVE_NAMES, names)
        if not self.labels:
            if anchor is None or positive is None:
                return None
            return [anchor, positive, *filter(NEGATIVE.fullmatch, names)]
        label = first_of(self.labels, names)
        for first, second in (*TEXT_PAIRS, (anchor, positive)):
            if label is not None and first in names and second in names:
                return [label, str(first), str(second)]
        return None


SCORED = Format("scored pairs", "stsb", "scored pairs (score, sentence1, sentence2)", SCORE_NAMES + LABEL_NAMES)
LABELLED = Format(
    "labelled pairs", "quora", "labelled pairs (label: 0 or 1, sentence1, sentence2)", LABEL_NAMES + SCORE_NAMES
)
MULTILABEL = Format(
    "multi-label pairs", None, "multi-label pairs (labels, sentence1, sentence2)", ("labels", *LABEL_NAMES)
)
NLI = Format("NLI", "snli", "classes, such as NLI's (gold_label, sentence1, sentence2)", LABEL_NAMES)
PAIRS = Format("pairs", "snli", "pairs or triplets (anchor, positive, negatives), or NLI rows")
SENTENCES = Format("sentences", None, "plain texts (.txt, or .jsonl or .csv with a text)")
FORMS = {  # the name of a label's column beside two texts -> the format that it stands for; the first that is there
    "gold_label": NLI,
    **dict.fromkeys(SCORE_NAMES, SCORED),
    "labels": MULTILABEL,
    "label": LABELLED,  # under premise and hypothesis NLI
    "is_duplicate": LABELLED,
}


def format_of(names: Sequence[str]) -> Format | None:
    """Find the format of a file by the names of its columns or keys alone; None if they are those of no format.

    ``format_of(["score", "text1", "text2"]) = SCORED``, ``format_of(["query", "answer"]) = PAIRS``.
    """
    pairs, label = PAIRS.columns(names), first_of(list(FORMS), names)
    if pairs and len(pairs) > 2:  # with a negative, whatever else there is
        return PAIRS
    if label and FORMS[label].columns(names):
        return NLI if label == "label" and set(PREMISE) <= set(names) else FORMS[label]
    if pairs:
        return PAIRS
    # query and document are the names of a pair, not of a text with something else beside it
    others = {*ANCHOR_NAMES, *POSITIVE_NAMES, *SCORED.labels} - set(TEXT_NAMES)
    return SENTENCES if set(TEXT_NAMES) & set(names) and not others & set(names) else None


# ------------------------------------------------------------------------------------------- values


def number(value: Any) -> float | None:
    """Convert a cell or a JSON value to a finite number, if it is one: ``number("4.5") = 4.5``, else None."""
    if isinstance(value, str) and NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        return None
    return float(value)


def parse_score(value: Any, scale: float | None = MAX_SCORE) -> float:
    """Convert a score of 0 to ``scale`` to 0 to 5, or for a ``scale`` of -S one of -S to S to -5 to 5.

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
    """Convert a label of 0 or 1, also as ``1.0`` or ``True``; ``ValueError`` for anything else."""
    label = {"true": 1, "false": 0}.get(str(value).lower(), number(value))
    if label not in (0, 1):
        raise ValueError(
            f"the label {one_line(value)} is not 0 or 1; call the column score if it is a score, gold_label if a class"
        )
    return int(label == 1)


def parse_class(value: Any, texts: Sequence[str]) -> str | None:
    """Name a class, None if the annotators did not agree; ``texts`` are the columns of the texts."""
    label = number(value)  # a column of numbers with a gap has -1.0 in pandas
    if value == "-" or label == NO_GOLD:
        return None
    # subtle: Hugging Face numbers NLI's classes in another order than SBERT's script, and only the columns tell which
    if label is not None and tuple(texts) == PREMISE:
        if label not in (0, 1, 2):
            raise ValueError(f"the label {one_line(value)} is not 0, 1 or 2: {', '.join(HUGGING_FACE_NLI)}")
        return HUGGING_FACE_NLI[int(label)]
    if isinstance(value, list | dict | bool | type(None)) or value == "" or (label is not None and label % 1):
        raise ValueError(f"the label {one_line(value)} is not one class")
    return str(value) if label is None else str(int(label))


def parse_labels(value: Any) -> tuple[str, ...]:
    """Read the labels of a pair: a list of names, a cell with commas between them, or a 0 or 1 for each label.

    ``parse_labels("rude, spam") = ("rude", "spam")``, ``parse_labels([1, 0, 1]) = ("0", "2")``.
    """
    if isinstance(value, str) and not value.startswith("["):  # a list in a cell is text
        value = [name.strip() for name in value.split(",") if name.strip()]
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    if not isinstance(value, list) or not {number(one) for one in value} <= {0, 1}:
        raise ValueError(f"the labels {one_line(value)} are neither names nor a 0 or 1 for each label")
    return tuple(str(place) for place, one in enumerate(value) if one)


def class_names(labels: Iterable[str]) -> tuple[str, ...]:
    """Order classes by their numbers: NLI's as in ``NLI_LABELS``, others sorted.

    Raises ``ValueError`` for a class beside those of NLI.
    """
    classes = sorted(set(labels))
    # negative, neutral and positive are classes of one's own: only two of NLI's names show that it is NLI
    if len(set(NLI_LABELS) & set(classes)) < 2:
        return tuple(classes)
    for name in classes:
        if name not in NLI_LABELS:
            raise ValueError(f"the label {one_line(name)} is not {' or '.join(NLI_LABELS)}")
    return NLI_LABELS
