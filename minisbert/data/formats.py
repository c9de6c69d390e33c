"""The formats of training data: which columns or keys hold labels and texts, what their values may be, and the rows.

The names below are those that the libraries of the field write. A file with other names, or without any, is refused:
``--columns`` says which to read.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal  # a type of Parquet
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from minisbert.core import InputError, one_line
from minisbert.data.lines import Rows, first_of, shown
from minisbert.system.console import say

MAX_SCORE = 5.0  # 0: nothing in common, 5: the same meaning, as in STS
NLI_LABELS = ("contradiction", "entailment", "neutral")  # numbered 0, 1, 2 as in SBERT's own script
HUGGING_FACE_NLI = ("entailment", "neutral", "contradiction")  # numbered so under premise and hypothesis
NO_GOLD = -1  # the number of an NLI row on which the annotators did not agree; its name is "-"
SCORE_NAMES = ("score", "similarity_score", "similarity", "relatedness_score")
LABEL_NAMES = ("gold_label", "label", "is_duplicate")
TEXT_NAMES = ("text", "sentence", "document", "passage")  # of the column or key of a file of texts
# beside a text these are the other half of a pair
SECOND_TEXTS = ("summary", "simplified", "translation", "paraphrase", "highlights", "abstract", "description", "target")
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
SPLIT_NAMES = {"training": "train", "validation": "dev", "valid": "dev", "val": "dev", "development": "dev"}
# columns that nobody expects to be read
IDENTITY = re.compile(
    r"|(.*[-_]|[a-z]?|[gu]u|uu|doc|pair|text|caption|prompt)id[s\d]?|index|idx|unnamed: 0|__index.*"
    r"|annotator_labels|sentence[12](_binary)?_parse"
)
LIST = re.compile(r"\[(\s*['\"{].*)?\]", re.DOTALL)  # in a cell, as pandas writes it; "[MASK] is a [token]" is text
BYTES = re.compile(r"b(['\"]).*\1", re.DOTALL)  # in a cell, as Python prints bytes
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
        if self is SENTENCES:
            text = first_of(TEXT_NAMES, names)
            return [text] if text else None
        if not self.labels:
            pair = two_texts(names, ())
            return [*pair, *filter(NEGATIVE.fullmatch, names)] if pair else None
        label, pair = first_of(self.labels, names), two_texts(names)
        return [label, *pair] if label and pair else None


SCORED = Format("scored pairs", "stsb", "scored pairs (score, sentence1, sentence2)", SCORE_NAMES + LABEL_NAMES)
LABELLED = Format(
    "labelled pairs", "quora", "labelled pairs (label: 0 or 1, sentence1, sentence2)", LABEL_NAMES + SCORE_NAMES
)
NLI = Format("NLI", "snli", "classes, such as NLI's (gold_label, sentence1, sentence2)", LABEL_NAMES)
PAIRS = Format("pairs", "snli", "pairs or triplets (anchor, positive, negatives), or NLI rows")
SENTENCES = Format("sentences", None, f"plain texts: {' or '.join(TEXT_NAMES)}, or a .txt with one per line")
FORMS = {  # the name of a label's column beside two texts -> the format that it stands for; the first that is there
    "gold_label": NLI,
    **dict.fromkeys(SCORE_NAMES, SCORED),
    "label": LABELLED,  # under premise and hypothesis NLI
    "is_duplicate": LABELLED,
}


def two_texts(names: Sequence[str], known: Sequence[tuple[str, str]] = TEXT_PAIRS) -> list[str] | None:
    """Choose the columns of two texts: a known pair of names, or an anchor and a positive."""
    for pair in (*known, (first_of(ANCHOR_NAMES, names), first_of(POSITIVE_NAMES, names))):
        if set(pair) <= set(names):
            return [str(name) for name in pair]
    return None


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
    others = {*ANCHOR_NAMES, *POSITIVE_NAMES, *JUDGEMENTS} - set(TEXT_NAMES)
    return SENTENCES if set(TEXT_NAMES) & set(names) and not others & set(names) else None


# ------------------------------------------------------------------------------------------- values


def checked_text(value: Any) -> str:
    """Return a text, stripped; ``ValueError`` for anything else, also for a list or bytes written into a text."""
    if not isinstance(value, str) or LIST.fullmatch(value.strip()):
        raise ValueError(f"a text is needed, not {one_line(value)}")
    if BYTES.fullmatch(value.strip()):
        raise ValueError(
            f"a text is needed, not Python's bytes, {one_line(value)}: decode them before writing the file"
        )
    return value.strip()


def number(value: Any) -> float | None:
    """Convert a cell or a JSON value to a finite number, if it is one: ``number("4.5") = 4.5``, else None."""
    if isinstance(value, Decimal) or (isinstance(value, str) and NUMBER.fullmatch(value)):
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


# --------------------------------------------------------------------------------------------- rows


def recognise(source: str | Path | Rows) -> Format:
    """Find the format of a file by its header or keys. Raises ``InputError`` if training reads no such file."""
    rows = Rows.of(source, "train")
    form = format_of(rows.names)
    if rows.is_empty:
        raise InputError(f"{rows} holds no usable rows")
    if form in (None, SENTENCES) and rows.holds_lines and "\t" not in rows.first_line:
        return SENTENCES  # one text per line, commas and all
    if form is None or (form is SENTENCES and rows.holds_lines):  # a table that is not called one
        raise rows.unknown_names(f"{SCORED.needs}, {PAIRS.needs}; train and evaluate read others by --columns")
    text, second = first_of(TEXT_NAMES, rows.names), first_of((*SECOND_TEXTS, *TEXT_NAMES[::-1]), rows.names)
    if form is SENTENCES and second not in (None, text):
        raise InputError(
            f"{rows.where}: {second} beside {text} may be the other half of a pair: --columns {text},{second} reads "
            f"pairs, --columns {text} the texts alone"
        )
    return form


class RowReader:
    """Iterate over the rows of a file in one format, those that training skips included.

    ``columns``, as in ``"score,left,right"``, names the columns or keys to read, in the order of a row; numbers from 1
    stand for the columns of a table without a header, or the places in lists of JSON. A row that cannot be read is
    passed to ``refuse(line, message)``, or is an ``InputError`` with file and line. ``unread`` lists the columns that
    are not read, and the splits: of a column ``split`` those rows are read that have the split of the ``source``.
    """

    def __init__(
        self,
        source: str | Path | Rows,
        form: Format,
        scale: float | None = MAX_SCORE,
        columns: str | None = None,
        split: str = "",
        refuse: Callable[[int, str], None] | None = None,
    ):
        self.rows, self.form, self.scale = Rows.of(source, split), form, scale
        self.columns = [name.strip() for name in columns.lower().split(",")] if columns else []
        self.unread: list[str] = []
        self.refuse = refuse or self.rows.fail
        self.texts = 0  # of the first row
        self.numbered: set[float | None] = set()  # the labels that may be numbers of NLI's classes; None for others

    def __iter__(self) -> Iterator[Row]:
        if self.form is SENTENCES and self.rows.holds_lines and not self.columns:
            for line, text in enumerate(self.rows.lines(), start=1):
                yield Row((text.strip(),), None, line)
            return
        fields = self.fields_by_name()
        if self.columns and all(map(str.isdecimal, self.columns)):
            fields = self.fields_by_number()
        for line, names, values in fields:
            try:
                rows = [self.labelled(line, names, values)] if self.form.labels else self.unlabelled(line, values)
            except ValueError as error:
                self.refuse(line, str(error))
            else:
                yield from rows
        self.check_numbers()

    def skips(self, row: Row) -> bool:
        """Whether training skips a row: it has an empty text, or no gold label."""
        return not all(row.texts) or (row.label is None and bool(self.form.labels))

    def check_numbers(self) -> None:
        """Raise ``InputError`` for numbers that may be NLI's classes, or scores, or labels: the names do not say it."""
        if self.form is SCORED and self.numbered - {NO_GOLD} == {0, 1, 2}:
            raise InputError(
                f"{self.rows.where}: labels of 0, 1 and 2: if they are scores, call the column score; if they are "
                "classes, write their names, because libraries number those of NLI differently"
            )
        if self.form is NLI and self.numbered == {0, 1}:
            raise InputError(
                f"{self.rows.where}: labels of 0 and 1 under premise and hypothesis: call the texts sentence1 and "
                "sentence2 if 1 stands for similar, or write entailment and neutral if 0 and 1 stand for these"
            )

    # ---------------------------------------------------------------------------------- fields of a row

    def fields_by_name(self) -> Iterator[tuple[int, list[str], list[Any]]]:
        """Yield line, names and values of what is read, the label's first."""
        if self.rows.is_empty:
            return
        needed = ", ".join(self.columns) or self.form.needs
        if not self.rows.holds_json:
            names = self.columns or self.form.columns(self.rows.names)
            if names is None or not set(names) <= set(self.rows.names):
                if self.form is not SENTENCES:
                    example = ",".join(("1", "2", "3")[: len(self.rows.names)])
                    needed += f"; or --columns NAMES, or without a header --columns {example}"
                raise self.rows.unknown_names(needed)
            for name in names:
                if self.rows.names.count(name) > 1:
                    message = f"two columns are called {one_line(name)}: give each a name of its own"
                    raise InputError(f"{self.rows.where}: {message}")
        seen: list[str] | None = None
        splits: set[str] = set()
        for line, fields in self.rows.records(self.refuse, self.columns):
            if list(fields) != seen:  # in a table only once
                seen = list(fields)
                names = self.columns or self.form.columns(seen)
                judgement = first_of(JUDGEMENTS, seen)
                if self.form is PAIRS and not self.columns and names and len(names) == 2 and judgement:
                    pair = ",".join(names)
                    raise InputError(
                        f"{self.rows.where}: {judgement} may say that not every pair is a positive: train with binary "
                        f"or cosine, which read it (--columns {judgement},{pair}), or without it: --columns {pair}"
                    )
                self.note_unread([name for name in seen if name not in (names or seen)])
            if names is None or not set(names) <= fields.keys():
                self.refuse(line, f"the keys are {shown(seen)}; needed are {needed}, or --columns")
            elif self.form is SENTENCES and not self.columns and fields.get("title"):
                self.refuse(line, f"the title {one_line(fields['title'])} is not read: put it before the text")
            elif "split" not in fields or "split" in names or self.takes(str(fields["split"]), splits):
                yield line, names, [fields[name] for name in names]
        if self.rows.split and splits and self.rows.split not in splits:
            found = f"no row has the split {self.rows.split}: in the column split are {shown(sorted(splits))}"
            raise InputError(f"{self.rows.where}: {found}; write {self.rows.split} there, or leave the column out")

    def note_unread(self, names: Sequence[str]) -> None:
        # a title is refused unless it is empty, and a split chooses rows
        known = {"title"} if self.form is SENTENCES else set()
        known |= {"split"} if self.rows.split else set()
        for name in names:
            if name not in {*known, *self.unread} and not IDENTITY.fullmatch(name):
                self.unread.append(name)

    def takes(self, split: str, splits: set[str]) -> bool:
        """Whether a row of this split is read; ``splits`` collects those of the rows before."""
        split = SPLIT_NAMES.get(split.strip().lower(), split.strip().lower())
        splits.add(split)
        if self.rows.split:
            if split != self.rows.split:
                self.note_unread([f"rows of {split}"])
            return split == self.rows.split
        if len(splits) > 1 and self.form is not SENTENCES and not self.columns:
            raise InputError(f"{self.rows.where}: rows of {shown(sorted(splits))} in one file: choose a --split")
        return True

    def fields_by_number(self) -> Iterator[tuple[int, list[str], list[Any]]]:
        """Yield line and values of the columns with these numbers; they have no names."""
        named = self.form.columns(self.rows.names)
        if named and not self.rows.holds_json:  # the header would become a row
            columns = f"--columns {','.join(named)}"
            raise InputError(f"{self.rows.where}: the first line is a header, so name its columns: {columns}")
        places, width = [int(column) - 1 for column in self.columns], 0
        for line, values in self.rows.values() if self.rows.holds_json else self.rows.cells():
            if not isinstance(values, list):
                self.refuse(line, f"columns by number need a list, not {one_line(values)}")
                continue
            width = width or len(values)
            if len(values) > width and not self.rows.holds_json and self.rows.delimiter == ",":
                # a comma in a text that is not quoted would shift the columns
                self.refuse(line, f"{len(values)} columns; {width} are needed, as in the first line")
            elif min(places) < 0 or max(places) >= len(values):
                self.refuse(line, f"--columns {','.join(self.columns)}, but there are {len(values)} columns")
            else:
                yield line, [], [values[place] for place in places]

    # ---------------------------------------------------------------------------------- rows

    def unlabelled(self, line: int, values: list[Any]) -> list[Row]:
        """Make a row of a text, or for each positive one of anchor, positive and negatives."""
        if self.form is SENTENCES:
            if len(values) != 1:
                raise ValueError(f"{len(values)} columns; one with texts is needed")
            return [Row((checked_text(values[0]),), None, line)]
        if len(values) < 2:
            raise ValueError("1 column; anchor and positive are needed")
        anchor, positives, *others = (
            [checked_text(one) for one in (value if isinstance(value, list) else [value])] for value in values
        )
        if len(anchor) != 1:
            raise ValueError(f"one anchor is needed, not {len(anchor)}")
        negatives = [text for texts in others for text in texts]
        count = 2 + len(negatives)
        self.texts = self.texts or count
        # lists of negatives may have different lengths, unless one is empty: training cuts them to the shortest
        is_listed = any(isinstance(value, list) for value in values[2:])
        if count != self.texts and not (is_listed and min(count, self.texts) > 2):
            raise ValueError(f"{count} texts; the first row has {self.texts}")
        return [Row((*anchor, positive, *negatives), None, line) for positive in positives or [""]]

    def labelled(self, line: int, names: Sequence[str], values: list[Any]) -> Row:
        """Make the row of a label and two texts; ``ValueError`` says what is wrong."""
        if len(values) != 3:
            raise ValueError(f"{len(values)} columns; 3 are needed: {self.form.needs}")
        if all(value == "" for value in values):  # as spreadsheets write at the end: skipped
            return Row(("", ""), None, line)
        label, first, second = values[0], checked_text(values[1]), checked_text(values[2])
        if (self.form is NLI and tuple(names[1:]) == PREMISE) or (
            self.form is SCORED and not self.columns and names[0] == "label"
        ):
            code = number(label)
            self.numbered.add(code if code in (NO_GOLD, 0, 1, 2) else None)
        if self.form is SCORED:
            label = parse_score(label, self.scale)
            if not (first and second):
                raise ValueError("an empty sentence")
        elif self.form is LABELLED:
            label = parse_label(label)
        else:
            label = parse_class(label, names[1:])
        return Row((first, second), label, line)


# ---------------------------------------------------------------------------------- a whole file


class Table(NamedTuple):
    """The rows of a file, how many it has that are skipped, and its columns that are not read."""

    rows: list[Row]
    skipped: int
    unread: list[str]

    def note(self, name: object, what: str) -> str:
        """``pairs.csv (20 pairs, 1 skipped; not read: genre)``."""
        return note(name, len(self.rows), what, self.skipped, self.unread)


def note(name: object, count: int, what: str, skipped: int = 0, unread: Sequence[str] = ()) -> str:
    text = f"{name} ({count:,} {what}"
    if skipped:
        text += f", {skipped:,} skipped"
    if unread:
        text += f"; not read: {', '.join(unread)}"
    return text + ")"


def read_file(
    source: str | Path | Rows,
    form: Format,
    limit: int | None = None,
    split: str = "",
    scale: float | None = MAX_SCORE,
    columns: str | None = None,
) -> Table:
    """Read a file, leaving out what training skips: rows with an empty text or no gold label. ``limit`` counts both.

    If JSON lists negatives, and not as many in each row, all rows are cut to the fewest.
    """
    reader = RowReader(source, form, scale, columns, split)
    rows = list(islice(reader, limit))
    reader.check_numbers()  # also if the limit has ended the reading
    usable = [row for row in rows if not reader.skips(row)]
    if not usable:
        skipped = f" ({len(rows)} were skipped)" if rows else ""
        raise InputError(f"{reader.rows} holds no usable rows{skipped}")
    fewest = min(len(row.texts) for row in usable)
    if form is PAIRS and any(len(row.texts) > fewest for row in usable):
        usable = [Row(row.texts[:fewest], None, row.line) for row in usable]
        reader.unread.append(f"negatives beyond {fewest - 2} of a row")
    return Table(usable, len(rows) - len(usable), reader.unread)


# ------------------------------------------------------------------------------------------ texts


def read_texts(source: str | Path | Rows, is_told: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each row, stripped; a blank one is "".

    JSON and tables have it under ``text`` (or one of ``TEXT_NAMES``); any other file, also a .txt.gz or a pipe, has a
    text in each line, or JSON. Columns that are not read are named at the end unless the user ``is_told`` already.
    Raises ``InputError`` with file and line for what cannot be read, and for a file without a text.
    """
    reader = RowReader(source, SENTENCES)
    is_empty = True
    for row in reader:
        is_empty = is_empty and not row.texts[0]
        yield row.line, row.texts[0]
    if is_empty:
        raise InputError(f"{reader.rows} is empty: it holds no text")
    if reader.unread and not is_told:
        say(f"{reader.rows}: not read: {', '.join(reader.unread)}")


def every_text(source: str | Path | Rows, is_told: bool = False) -> Iterator[str]:
    """Yield the texts of ``read_texts``; ``InputError`` for a blank one, so that text i is in the i-th line or row."""
    rows = Rows.of(source)
    for number, text in read_texts(rows, is_told):
        if not text:
            rows.fail(number, "an empty line has no text to encode; remove it")
        yield text
