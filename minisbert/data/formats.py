"""The formats of training data: which columns or keys hold labels and texts, what their values may
be, and the rows.

The names below are those that the libraries of the field write. A file with other names, or without
any, is refused: ``--columns`` says which to read.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal  # a type of Parquet
from itertools import islice
from typing import Any, NamedTuple

from minisbert.core import InputError, one_line
from minisbert.data.lines import MAX_SCORE, Rows, Source, first_of, shown
from minisbert.system.console import say

NLI_LABELS = ("contradiction", "entailment", "neutral")  # numbered 0, 1, 2 as in SBERT's own script
HUGGING_FACE_NLI = (
    "entailment",
    "neutral",
    "contradiction",
)  # numbered so under premise and hypothesis
NO_GOLD = -1  # the number of an NLI row on which the annotators did not agree; its name is "-"
SCORE_NAMES = ("score", "similarity_score", "similarity", "relatedness_score")
LABEL_NAMES = ("gold_label", "label", "is_duplicate")
TEXT_NAMES = ("text", "sentence", "document", "passage")  # of the column or key of a file of texts
# beside a text these are the other half of a pair
SECOND_TEXTS = (
    "summary",
    "simplified",
    "translation",
    "paraphrase",
    "highlights",
    "abstract",
    "description",
    "target",
)
PREMISE = ("premise", "hypothesis")
TEXT_PAIRS: list[tuple[str, str]] = [
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("text1", "text2"),
]
TEXT_PAIRS += [("sentence_a", "sentence_b"), ("text_a", "text_b"), PREMISE]
ANCHOR_NAMES = ("anchor", "query", "question", "sent0")
POSITIVE_NAMES = (
    "positive",
    "positives",
    "pos",
    "positive_passages",
    "answer",
    "sent1",
    "passage",
    "document",
)
NEGATIVE = re.compile(r"(hard_)?neg(ative)?s?(_passages?)?(_?\d+)?")
# beside anchor and positive these say of a row whether it is a positive at all
JUDGEMENTS = (
    *(*LABEL_NAMES, "labels", *SCORE_NAMES, "scores"),
    *("relevance", "relevant", "is_relevant", "is_positive", "is_correct", "class"),
)
SPLIT_NAMES = {
    "training": "train",
    "validation": "dev",
    "valid": "dev",
    "val": "dev",
    "development": "dev",
}
# columns that nobody expects to be read
IDENTITY = re.compile(
    r"|(.*[-_]|[a-z]?|[gu]u|uu|doc|pair|text|caption|prompt)id[s\d]?|index|idx|unnamed: 0|__index.*"
    r"|annotator_labels|sentence[12](_binary)?_parse"
)
LIST = re.compile(
    r"\[(\s*['\"{].*)?\]", re.DOTALL
)  # in a cell, as pandas writes it; "[MASK] is a [token]" is text
BYTES = re.compile(r"b(['\"]).*\1", re.DOTALL)  # in a cell, as Python prints bytes
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Row:
    """Texts that belong together, and their label: a score of 0 to 5, 0 or 1, or the name of a
    class.
    """

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
    """A format: its name, the data sets that have it, what a file needs, and the names of its
    label's column.

    The default or preferred names come first. Without labels, a row is an anchor, a positive and
    maybe negatives.
    """

    name: str
    datasets: tuple[str, ...]
    needs: str
    labels: tuple[str, ...] = ()

    def columns(self, names: Sequence[str]) -> list[str] | None:
        """Choose the columns to read, in the order of a row: the label's first. None if one is
        missing.
        """
        if self is SENTENCES:
            text = first_of(TEXT_NAMES, names)
            return [text] if text else None
        if not self.labels:
            pair = two_texts(names, ())
            return [*pair, *filter(NEGATIVE.fullmatch, names)] if pair else None
        label, pair = first_of(self.labels, names), two_texts(names)
        return [label, *pair] if label and pair else None


NLI_SETS = ("snli", "multinli")
SCORED = Format(
    "scored pairs",
    ("stsb",),
    "scored pairs (score, sentence1, sentence2)",
    SCORE_NAMES + LABEL_NAMES,
)
LABELLED = Format(
    "labelled pairs",
    ("quora",),
    "labelled pairs (label: 0 or 1, sentence1, sentence2)",
    LABEL_NAMES + SCORE_NAMES,
)
NLI = Format(
    "NLI", NLI_SETS, "classes, such as NLI's (gold_label, sentence1, sentence2)", LABEL_NAMES
)
PAIRS = Format("pairs", NLI_SETS, "pairs or triplets (anchor, positive, negatives), or NLI rows")
SENTENCES = Format(
    "sentences", (), f"plain texts: {' or '.join(TEXT_NAMES)}, or a .txt with one per line"
)
# the name of a label's column beside two texts -> the format that it stands for; the first that is
# there
FORMS = {
    "gold_label": NLI,
    **dict.fromkeys(SCORE_NAMES, SCORED),
    "label": LABELLED,  # under premise and hypothesis NLI
    "is_duplicate": LABELLED,
}


def two_texts(
    names: Sequence[str], known: Sequence[tuple[str, str]] = TEXT_PAIRS
) -> list[str] | None:
    """Choose the columns of two texts: a known pair of names, or an anchor and a positive."""
    for pair in (*known, (first_of(ANCHOR_NAMES, names), first_of(POSITIVE_NAMES, names))):
        if set(pair) <= set(names):
            return [str(name) for name in pair]
    return None


def format_of(names: Sequence[str]) -> Format | None:
    """Find the format of a file by the names of its columns or keys alone; None if they are those
    of no format.

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
    """Return a text, stripped; ``ValueError`` for anything else, also for a list or bytes written
    into a text.
    """
    if not isinstance(value, str) or LIST.fullmatch(value.strip()):
        raise ValueError(f"a text is needed, not {one_line(value)}")
    if BYTES.fullmatch(value.strip()):
        raise ValueError(
            f"a text is needed, not Python's bytes, {one_line(value)}: decode them first"
        )
    return value.strip()


def number(value: Any) -> float | None:
    """Convert a cell or a JSON value to a finite number, if it is one: ``number("4.5") = 4.5``,
    else None.
    """
    if isinstance(value, Decimal) or (isinstance(value, str) and NUMBER.fullmatch(value)):
        value = float(value)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) <= sys.float_info.max
    ):
        return None
    return float(value)


def parse_score(value: Any, scale: float | None = MAX_SCORE) -> float:
    """Convert a score of 0 to ``scale`` to 0 to 5, or for a ``scale`` of -S one of -S to S to -5 to
    5.

    Without a scale any number, unchanged. ``ValueError`` for anything else.
    """
    score = number(value)
    if score is None:
        raise ValueError(f"the score {one_line(value)} is not a number, such as 4.5")
    if scale is None:
        return score
    low, high = min(scale, 0.0), abs(scale)
    if not low <= score <= high:
        raise ValueError(
            f"the score {value} is not on the scale of {low:g} to {high:g}; give its --scale"
        )
    return score * (MAX_SCORE / high)


def parse_label(value: Any) -> int:
    """Convert a label of 0 or 1, also as ``1.0`` or ``True``; ``ValueError`` for anything else."""
    label = {"true": 1, "false": 0}.get(str(value).lower(), number(value))
    if label not in (0, 1):
        raise ValueError(
            f"the label {one_line(value)} is not 0 or 1; name the column score, or gold_label of "
            f"classes"
        )
    return int(label == 1)


def parse_class(value: Any, texts: Sequence[str]) -> str | None:
    """Name a class, None if the annotators did not agree; ``texts`` are the columns of the
    texts.
    """
    label = number(value)  # a column of numbers with a gap has -1.0 in pandas
    if value == "-" or label == NO_GOLD:
        return None
    # subtle: Hugging Face numbers NLI's classes in another order than SBERT's script, and only the
    # columns tell which
    if label is not None and tuple(texts) == PREMISE:
        if label not in (0, 1, 2):
            raise ValueError(
                f"the label {one_line(value)} is not 0, 1 or 2: {', '.join(HUGGING_FACE_NLI)}"
            )
        return HUGGING_FACE_NLI[int(label)]
    if (
        isinstance(value, list | dict | bool | type(None))
        or value == ""
        or (label is not None and label % 1)
    ):
        raise ValueError(f"the label {one_line(value)} is not one class")
    return str(value) if label is None else str(int(label))


def recognise(source: Source) -> Format:
    """Find the format of a file by its header or keys. Raises ``InputError`` if training reads no
    such file.
    """
    rows = Rows.of(source, "train")
    form = format_of(rows.names)
    if not rows.first_line and rows.kind != "parquet":
        raise InputError(f"{rows} holds no usable rows")
    # a tab before or after a text separates no columns
    first = rows.first_line if form else rows.first_line.strip()
    if form in (None, SENTENCES) and rows.kind == "lines" and "\t" not in first:
        return SENTENCES  # one text per line, commas and all
    if form is None or (
        form is SENTENCES and rows.kind == "lines"
    ):  # a table that is not called one
        raise rows.unknown_names(
            f"{SCORED.needs}, {PAIRS.needs}; train and evaluate read others by --columns"
        )
    text, second = (
        first_of(TEXT_NAMES, rows.names),
        first_of((*SECOND_TEXTS, *TEXT_NAMES[::-1]), rows.names),
    )
    if form is SENTENCES and second not in (None, text):
        advice = f"--columns {text},{second} reads pairs, --columns {text} the texts alone"
        raise InputError(
            f"{rows.where}: {second} beside {text} may be the other half of a pair: {advice}"
        )
    return form


class RowReader:
    """Iterate over the rows of a file in one format, those that training skips included.

    A row that cannot be read is passed to ``refuse(line, message)``, which raises an ``InputError``
    with file and line. ``unread`` lists the columns that are not read, and the splits: of a column
    ``split`` those rows are read that have the split of the ``source``.
    """

    def __init__(self, source: Source, form: Format):
        self.rows, self.form = Rows.of(source), form
        self.refuse: Callable[[int, str], object] = self.rows.fail
        self.unread: dict[str, None] = {}  # without values: a set with an order
        self.texts = 0  # of the first row
        self.numbers: set[float | None] = (
            set()
        )  # the labels that may be numbers of NLI's classes; None for others

    def __iter__(self) -> Iterator[Row]:
        if self.form is SENTENCES and self.rows.kind == "lines" and not self.rows.columns:
            for line, text in self.rows.lines:
                yield Row((text.strip(),), None, line)
            return
        for line, names, values in self.fields():
            try:
                rows = (
                    [self.labelled(line, names, values)]
                    if self.form.labels
                    else self.unlabelled(line, values)
                )
            except ValueError as error:
                self.refuse(line, str(error))
            else:
                yield from rows

    def skips(self, row: Row) -> bool:
        """Whether training skips a row: it has an empty text, or no gold label."""
        return not all(row.texts) or (row.label is None and bool(self.form.labels))

    def check_numbers(self) -> None:
        """Raise ``InputError`` for numbers that may be NLI's classes, or scores, or labels: the
        names do not say it.
        """
        if self.form is SCORED and self.numbers - {NO_GOLD} == {0, 1, 2}:
            advice = "write the names of classes, which libraries number differently, or call the column score"
            raise InputError(
                f"{self.rows.where}: labels of 0, 1 and 2 may be scores or classes: {advice}"
            )
        if self.form is NLI and self.numbers == {0, 1}:
            advice = "write entailment and neutral, or call the texts sentence1 and sentence2 if 1 stands for similar"
            raise InputError(
                f"{self.rows.where}: labels of 0 and 1 under premise and hypothesis: {advice}"
            )

    def fields(self) -> Iterator[tuple[int, list[str], list[Any]]]:
        """Yield line, names and values of what is read, the label's first."""
        rows, form = self.rows, self.form
        if not rows.first_line and rows.kind != "parquet":
            return
        count, needed = len(rows.wanted), rows.columns or form.needs
        fits = {PAIRS: count > 1, SENTENCES: count == 1}.get(form, count == 3)
        if count and not fits:
            raise InputError(
                f"{rows.where}: --columns {rows.columns} are {count}; needed are {form.needs}"
            )
        if not rows.holds_json:
            self.check_header(needed)
        seen: list[str] | None = None
        splits: set[str] = set()
        for line, fields in rows.records(self.refuse):
            if list(fields) != seen:  # in a table only once
                seen = list(fields)
                names = self.chosen(seen)
            if names is None or not set(names) <= fields.keys():
                self.refuse(line, f"the keys are {shown(seen)}; needed are {needed}, or --columns")
                continue
            if form is SENTENCES and not rows.columns and fields.get("title"):
                self.refuse(
                    line,
                    f"the title {one_line(fields['title'])} is not read: put it before the text",
                )
                continue
            if "split" in fields and "split" not in names:
                split = str(fields["split"]).strip().lower()
                split = SPLIT_NAMES.get(split, split)
                splits.add(split)
                if rows.split not in ("", split):
                    self.unread[f"rows of {split}"] = None
                    continue
                if (
                    not rows.split
                    and len(splits) > 1
                    and form is not SENTENCES
                    and not rows.columns
                ):
                    raise InputError(
                        f"{rows.where}: rows of {shown(sorted(splits))} in one file: choose a "
                        f"--split"
                    )
            yield line, names, [fields[name] for name in names]
        if rows.split and splits and rows.split not in splits:
            found = f"no row has the split {rows.split}: in the column split are {shown(sorted(splits))}"
            raise InputError(
                f"{rows.where}: {found}; write {rows.split} there, or leave the column out"
            )

    def chosen(self, found: list[str]) -> list[str] | None:
        """Choose the columns or keys to read, and note the others; None if one is missing."""
        rows, form = self.rows, self.form
        names, judgement = rows.wanted or form.columns(found), first_of(JUDGEMENTS, found)
        if form is PAIRS and not rows.columns and names and len(names) == 2 and judgement:
            pair = ",".join(names)
            advice = f"--columns {judgement},{pair} reads it (binary, cosine), --columns {pair} leaves it out"
            raise InputError(
                f"{rows.where}: {judgement} may say that not every pair is a positive: {advice}"
            )
        known = {*(names or found)}
        if form is SENTENCES:
            known.add("title")  # refused unless it is empty
        if rows.split:
            known.add("split")  # chooses rows
        if not rows.numbered:
            self.unread |= dict.fromkeys(
                x for x in found if x not in known and not IDENTITY.fullmatch(x)
            )
        return names

    def check_header(self, needed: str) -> None:
        """Raise ``InputError`` if the first line of a table lacks a name that is needed, or names
        numbered columns.
        """
        rows, found = self.rows, self.form.columns(self.rows.names)
        names = rows.wanted or found
        if rows.numbered:
            if found:  # the header would become a row
                columns = f"--columns {','.join(found)}"
                raise InputError(
                    f"{rows.where}: the first line is a header, so name its columns: {columns}"
                )
        elif names is None or not set(names) <= set(rows.names):
            if self.form is not SENTENCES:
                example = ",".join(("1", "2", "3")[: len(rows.names)])
                needed += f"; or --columns NAMES, or without a header --columns {example}"
            raise rows.unknown_names(needed)
        elif twice := [name for name in names if rows.names.count(name) > 1]:
            raise InputError(
                f"{rows.where}: two columns are called {one_line(twice[0])}: give each a name of "
                f"its own"
            )

    def unlabelled(self, line: int, values: list[Any]) -> list[Row]:
        """Make a row of a text, or for each positive one of anchor, positive and negatives."""
        if self.form is SENTENCES:
            return [Row((checked_text(values[0]),), None, line)]
        anchor, positives, *others = (
            [checked_text(one) for one in (value if isinstance(value, list) else [value])]
            for value in values
        )
        if len(anchor) != 1:
            raise ValueError(f"one anchor is needed, not {len(anchor)}")
        negatives = [text for texts in others for text in texts]
        count = 2 + len(negatives)
        self.texts = self.texts or count
        # lists of negatives may have different lengths, unless one is empty: training cuts them to
        # the shortest
        is_listed = any(isinstance(value, list) for value in values[2:])
        if count != self.texts and not (is_listed and min(count, self.texts) > 2):
            raise ValueError(f"{count} texts; the first row has {self.texts}")
        return [Row((*anchor, positive, *negatives), None, line) for positive in positives or [""]]

    def labelled(self, line: int, names: Sequence[str], values: list[Any]) -> Row:
        """Make the row of a label and two texts; ``ValueError`` says what is wrong."""
        if all(value == "" for value in values):  # as spreadsheets write at the end: skipped
            return Row(("", ""), None, line)
        label, first, second = values[0], checked_text(values[1]), checked_text(values[2])
        unnamed = self.form is SCORED and not self.rows.columns and names[0] == "label"
        if unnamed or (self.form is NLI and tuple(names[1:]) == PREMISE):
            code = number(label)
            self.numbers.add(code if code in (NO_GOLD, 0, 1, 2) else None)
        if self.form is SCORED:
            label = parse_score(label, self.rows.scale)
            if not (first and second):
                raise ValueError("an empty sentence")
        elif self.form is LABELLED:
            label = parse_label(label)
        else:
            label = parse_class(label, names[1:])
        return Row((first, second), label, line)


class Table(NamedTuple):
    """The rows of a file, how many it has that are skipped, its columns that are not read, and its
    name.
    """

    rows: list[Row]
    skipped: int = 0
    unread: Sequence[str] = ()
    name: str = ""

    def note(self, what: str) -> str:
        """``pairs.csv (20 pairs, 1 skipped; not read: genre)``."""
        text = f"{self.name} ({len(self.rows):,} {what}"
        if self.skipped:
            text += f", {self.skipped:,} skipped"
        if self.unread:
            text += f"; not read: {', '.join(self.unread)}"
        return text + ")"


def read_file(source: Source, form: Format, limit: int | None = None) -> Table:
    """Read a file, leaving out what training skips: rows with an empty text or no gold label.
    ``limit`` counts both.

    If JSON lists negatives, and not as many in each row, all rows are cut to the fewest.
    """
    reader = RowReader(source, form)
    if (
        form is SCORED and not reader.rows.columns and format_of(reader.rows.names) is NLI
    ):  # classes are no scores
        raise InputError(
            f"{reader.rows} holds classes; needed are {SCORED.needs}, or labels of 0 and 1"
        )
    rows = list(islice(reader, limit))
    reader.check_numbers()
    usable = [row for row in rows if not reader.skips(row)]
    if not usable:
        skipped = f" ({len(rows)} were skipped)" if rows else ""
        raise InputError(f"{reader.rows} holds no usable rows{skipped}")
    unread, fewest = [*reader.unread], min(len(row.texts) for row in usable)
    if form is PAIRS and any(len(row.texts) > fewest for row in usable):
        usable = [Row(row.texts[:fewest], None, row.line) for row in usable]
        unread.append(f"negatives beyond {fewest - 2} of a row")
    return Table(usable, len(rows) - len(usable), unread, str(reader.rows))


def class_names(table: Table) -> tuple[str, ...]:
    """Order the classes by their numbers: NLI's as in ``NLI_LABELS``, others sorted.

    Raises ``InputError`` for a class beside those of NLI, and if there is only one.
    """
    classes = sorted({row.label for row in table.rows})
    if len(classes) < 2:
        raise InputError(f"{table.name}: all rows have the class {one_line(classes[0])}")
    # negative, neutral and positive are classes of one's own: only two of NLI's names show that it
    # is NLI
    if len(set(NLI_LABELS) & set(classes)) < 2:
        return tuple(classes)
    if others := [name for name in classes if name not in NLI_LABELS]:
        raise InputError(
            f"{table.name}: the label {one_line(others[0])} is not {' or '.join(NLI_LABELS)}"
        )
    return NLI_LABELS


def every_text(source: Source, is_told: bool = False, blanks: bool = False) -> Iterator[str]:
    """Yield the text of each row, stripped; text i is in the i-th line or row.

    JSON and tables have it under ``text`` (or one of ``TEXT_NAMES``); any other file, also a
    .txt.gz or a pipe, has a text in each line, or JSON. Columns that are not read are named at the
    end unless the user ``is_told`` already. Raises ``InputError`` for a blank text, unless
    ``blanks`` are wanted, which are "", and for a file without a text.
    """
    reader, is_empty = RowReader(source, SENTENCES), True
    for row in reader:
        text = row.texts[0]
        if not text and not blanks:
            reader.rows.fail(row.line, "an empty line has no text to encode; remove it")
        is_empty = is_empty and not text
        yield text
    if is_empty:
        raise InputError(f"{reader.rows} is empty: it holds no text")
    if reader.unread and not is_told:
        say(f"{reader.rows}: not read: {', '.join(reader.unread)}")
