"""List the formats of training data: which columns or keys hold labels and texts, and what their values may be.

The names below are those that the libraries of the field write. A file with other names, or without any, is refused:
``--columns`` says which to read.
"""

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from minisbert.core import one_line
from minisbert.data.lines import TEXT_NAMES, first_of
from minisbert.models.similarity import MAX_SCORE

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
POSITIVE_NAMES = (
    *("positive", "positives", "pos", "positive_passages", "positive_ctxs"),
    *("answer", "sent1", "passage", "document"),
)
# beside anchor and positive these say of each row, or of each text in a list, whether it is a positive at all
MEANINGS = (
    *(*LABEL_NAMES, "labels", *SCORE_NAMES, "scores"),
    *("relevance", "relevant", "is_relevant", "is_positive", "is_correct", "class"),
)
LISTED_NAMES = ("answers", "documents", "docs", "passages")  # of the texts that a list of labels belongs to
NEGATIVE = re.compile(r"(hard_)?neg(ative)?s?(_passages?|_ctxs)?(_?\d+)?")
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
IDENTIFIER = re.compile(r"(?=[!-~]*\d)[!-~]+")  # d12, doc-7: one word of ASCII with a digit
LIST_OF_TEXTS = re.compile(r"\[(\s*['\"{].*)?\]", re.DOTALL)  # in a cell; "[MASK] is a [token]" is a text
WITHOUT_COMMA = re.compile(r"['\"]\s+['\"]")  # NumPy's lists, which Python would read as one string


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
    """A format: its name, its default data set, its columns in words, and the names of its label's column.

    The preferred names come first. Without names of labels, a row is an anchor, a positive and maybe negatives.
    """

    name: str
    dataset: str | None
    needs: str
    labels: tuple[str, ...] = ()

    def columns(self, names: Sequence[str]) -> list[str] | None:
        """Choose the columns to read, in the order of a row: the label's first. None if one is missing."""
        anchor, positive = first_of(ANCHOR_NAMES, names), first_of(POSITIVE_NAMES, names)
        if self.labels:
            label = first_of(self.labels, names)
            for pair in (*TEXT_PAIRS, (anchor, positive)):
                if label is not None and set(pair) <= set(names):
                    return [label, *pair]
            return None
        meaning = first_of(MEANINGS, names)
        if positive is None and meaning is not None:
            positive = first_of(LISTED_NAMES, names)
        if anchor is None or positive is None:
            return None
        negatives = list(filter(NEGATIVE.fullmatch, names))
        if meaning is not None and not negatives:
            return [anchor, positive, meaning]
        return [anchor, positive, *negatives]

    @property
    def names(self) -> str:
        """List the names that would do, for a message."""
        if self.labels:
            pairs = " or ".join(map(" and ".join, TEXT_PAIRS[:3]))
            return f"{' or '.join(self.labels[:3])}, with {pairs}"
        return (
            f"{' or '.join(ANCHOR_NAMES[:3])}, then {' or '.join(POSITIVE_NAMES[:3])}, and maybe negative, negative_2"
        )


SCORED = Format("scored pairs", "stsb", "scored pairs (score, sentence1, sentence2)", SCORE_NAMES + LABEL_NAMES)
LABELLED = Format("labelled pairs", "quora", "labels (0 or 1, sentence1, sentence2)", LABEL_NAMES + SCORE_NAMES)
MULTILABEL = Format("multi-label pairs", None, "labels (labels, sentence1, sentence2)", ("labels", *LABEL_NAMES))
NLI = Format("NLI", "snli", "classes, such as NLI's (gold_label, sentence1, sentence2)", LABEL_NAMES)
PAIRS = Format("pairs", "snli", "pairs or triplets (anchor, positive, negatives), or NLI rows")
SENTENCES = Format("sentences", None, "plain texts (.txt, or .jsonl or .csv with a text)")


# ------------------------------------------------------------------------------------------- values


def number(value: Any) -> float | None:
    """Convert a cell or a JSON value to a number, if it is one: ``number("4.5") = 4.5``, ``number("4,5") = None``."""
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return float(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf"):
        return float(value)
    return None


def label_number(value: Any) -> float | None:
    """Convert a label to a number: True and False, as pandas writes them, are 1 and 0, all others as ``number``."""
    if str(value).lower() in ("true", "false"):
        return float(str(value).lower() == "true")
    return number(value)


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
    label = label_number(value)
    if label not in (0, 1):
        raise ValueError(f"the label {one_line(value)} is not 0 or 1")
    return int(label)


def parse_class(value: Any, texts: Sequence[str]) -> str | None:
    """Return the name of a class, or None if the annotators did not agree; ``texts`` are the columns of the texts."""
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
    if label is not None:
        return str(int(label))
    return str(value)


def parse_labels(value: Any) -> tuple[str, ...]:
    """Return the labels of a pair from a list of names, a cell with commas between them, or a 0 or 1 for each label.

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


def cell_value(cell: str, is_label: bool) -> Any:
    """Return the list that a cell holds, as pandas writes one: ``"['a', 'b']"``; any other cell stays a string.

    A list of labels may have numbers, "[1]" as a text is a text. ``ValueError`` for a list that cannot be read, such as
    NumPy's, which has no commas.
    """
    is_list = cell.startswith(("[", "{"))
    if not is_label:
        is_list = LIST_OF_TEXTS.fullmatch(cell) is not None
    if not is_list:
        return cell
    try:
        value = ast.literal_eval(cell)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        value = None
    if not isinstance(value, list) or WITHOUT_COMMA.search(cell):
        export = "df.to_json('rows.jsonl', orient='records', lines=True)"
        raise ValueError(f"a cell holds a list that cannot be read, {one_line(cell)}; export JSON instead: {export}")
    return value


def unpacked(value: Any, is_label: bool) -> Any:
    """Return ``cell_value`` of a string of JSON, which a table may have brought along, and any other value as it is."""
    if isinstance(value, str):
        return cell_value(value.strip(), is_label)
    return value


def check_once(names: Sequence[str], read: Sequence[str]) -> None:
    """Raise ``ValueError`` if a column that is read has the name of another."""
    for name in read:
        if list(names).count(name) > 1:
            raise ValueError(f"two columns are called {one_line(name)}: give each a name of its own")


def as_texts(value: Any) -> list[str]:
    """Return the texts of a cell or a JSON value: of a string, an object with ``text`` and ``title``, or a list."""
    if isinstance(value, str):
        return [value.strip()]
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return [f"{value.get('title') or ''} {value['text']}".strip()]
    texts = []
    if isinstance(value, list) and not any(isinstance(item, list) for item in value):  # lists do not nest
        for item in value:
            texts += as_texts(item)
        return texts
    raise ValueError(f"a text is needed, not {one_line(value)}")


# ------------------------------------------------------------------------------------------- the format of rows


def format_of(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> Format | None:
    """Find the format of ``rows`` with these columns, the first of this list that fits.

    1. anchor, positive and negatives, or lists of positives: triplets, whatever else there is
    2. a column of scores and two texts: scored pairs
    3. ``labels`` and two texts: multi-label pairs
    4. ``label``, ``gold_label`` or ``is_duplicate`` and two texts: as the labels say
    5. anchor and positive: pairs
    6. a text: sentences
    """
    pairs = PAIRS.columns(names)
    if pairs and (any(map(NEGATIVE.fullmatch, pairs)) or any(isinstance(row.get(pairs[1]), list) for row in rows)):
        return PAIRS
    columns = MULTILABEL.columns(names)
    score = SCORED.columns(names)
    if score and score[0] in SCORE_NAMES and "gold_label" not in names:
        return SCORED
    if columns:
        label, *texts = columns
        if label == "labels":
            return MULTILABEL
        return format_of_labels([row.get(label) for row in rows], texts)
    if pairs:
        return PAIRS
    # query and document are the names of a pair, not of a text with something else beside it
    others = {*ANCHOR_NAMES, *POSITIVE_NAMES, *SCORED.labels} - set(TEXT_NAMES)
    if set(TEXT_NAMES) & set(names) and not others & set(names):
        return SENTENCES
    return None


def format_of_labels(labels: Sequence[Any], texts: Sequence[str]) -> Format:
    """Tell lists of labels, NLI's numbers, 0 and 1, scores and names of classes apart."""
    if any(isinstance(label, list) for label in labels):
        return MULTILABEL
    numbers = [label_number(label) for label in labels if label not in ("", None)]  # gaps, which the reader refuses
    if set(numbers) <= {0, 1}:  # also of premise and hypothesis: NLI has a third class
        return LABELLED
    # other whole numbers than NLI's three are no classes of it: the reader refuses them
    if tuple(texts) == PREMISE and all(one is not None and one % 1 == 0 for one in numbers):
        return NLI
    if set(numbers) in ({0, 1, 2}, {0, 1, 2, NO_GOLD}):
        raise ValueError(
            "the labels are 0, 1 and 2: if they are scores, call the column score; if they are classes, write their "
            "names, because libraries number those of NLI differently"
        )
    # One score that cannot be read makes no classes of the others: the reader refuses its row.
    numeric = len(numbers) - numbers.count(None)
    if 2 * numeric > len(numbers):
        return SCORED
    return NLI
