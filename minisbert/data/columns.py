"""Which columns of a file are read: one rule for all commands.

A loss needs so many texts, and maybe a score or a class: ``Columns`` says what. They are the
columns that ``--columns`` names, texts first; without it those whose names stand in the table
below; else the file is refused with its header and the ``--columns`` that would read it. A column
that stands in the table and is not read may change what a row means, so it is refused too; all
others are named in the one line that tells what was read (``rows.Table.note``).
"""

import csv
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from minisbert.core import InputError, one_line
from minisbert.data.records import Record, Records
from minisbert.data.values import number

# ------------------------------------------------------------------------------ the table of names
# Those that the files of sentence-transformers, Hugging Face, GLUE, SICK, SimCSE, FlagEmbedding and
# Anserini have. Capital letters make no difference.

FIRST_TEXTS = (
    "sentence1",
    "sentence_a",
    "question1",
    "text1",
    "text_a",
    "premise",
    "anchor",
    "query",
    "question",
    "sent0",
    "text",
    "sentence",
    "contents",
)
SECOND_TEXTS = (
    "sentence2",
    "sentence_b",
    "question2",
    "text2",
    "text_b",
    "hypothesis",
    "positive",
    "pos",
    "answer",
    "sent1",
    "passage",
    "document",
    "summary",
    "simplified",
)
MORE_TEXTS = re.compile(r"(hard_)?neg(ative)?s?(_?\d+)?")  # negative, negative_2, hard_neg, neg
LABELS = (
    "score",
    "similarity_score",
    "relatedness_score",
    "similarity",
    "label",
    "labels",
    "gold_label",
    "is_duplicate",
)

COUNTS = {1: "a text", 2: "two texts", 3: "three texts"}
LABEL_WORDS = {"score": "a score", "binary": "a label of 0 or 1", "class": "a class"}
SAMPLE = 20  # records that a proposal looks at


def role_of(name: str) -> str:
    """What a column of that name is: "first", "second" or "more" of the texts, "label", or ""."""
    name = name.lower()
    if name in FIRST_TEXTS:
        return "first"
    if name in SECOND_TEXTS:
        return "second"
    if MORE_TEXTS.fullmatch(name):
        return "more"
    if name in LABELS:
        return "label"
    return ""


# -------------------------------------------------------------------------------- what is needed


@dataclass(frozen=True)
class Columns:
    """What a row must hold: so many texts, then maybe a label.

    ``label`` is "score" (a number), "binary" (0 or 1), "class" (a word) or None. With
    ``more_texts`` further texts may follow those that are needed: negatives. ``ignores_label``: a
    label beside the texts changes nothing, for commands that only look at the texts.
    """

    texts: int = 2
    label: str | None = None
    more_texts: bool = False
    ignores_label: bool = False

    def __str__(self) -> str:
        """``two texts and a score``."""
        words = COUNTS[self.texts]
        if self.more_texts:
            words += " or more"
        if self.label:
            words += f" and {LABEL_WORDS[self.label]}"
        return words

    def fits(self, count: int) -> bool:
        """Whether so many columns can be those of a row."""
        if self.label:
            count -= 1
        return count == self.texts or (self.more_texts and count > self.texts)


@dataclass(frozen=True)
class Choice:
    """The columns that are read: the names of the texts, and that of the label."""

    columns: Columns
    texts: list[str]
    label: str | None
    is_named: bool  # by --columns

    @property
    def names(self) -> list[str]:
        if self.label is None:
            return self.texts
        return [*self.texts, self.label]


def choose_columns(records: Records, needs: Sequence[Columns], names: str | None = None) -> Choice:
    """Choose the columns to read, for the first of the needs that they fit.

    Raises ``InputError`` with the header and the ``--columns`` that would read the file.
    """
    if not records.names:
        raise InputError(f"{records.name} is empty: it has no rows")
    if names is not None:
        return named_columns(records, needs, parse_names(names))

    by_role: dict[str, list[str]] = {"first": [], "second": [], "more": [], "label": [], "": []}
    for name in records.names:
        by_role[role_of(name)].append(name)
    refusal = None
    for need in needs:
        ways = ways_to_read(need, by_role)
        if not ways:
            continue
        check_names_differ(records, ways[0])
        unread = unread_with_role(need, by_role, ways[0])
        if len(ways) == 1 and not unread:
            return choice_of(need, ways[0])
        if refusal is None:
            refusal = undecided(records, need, ways, unread)
    if refusal is None:
        refusal = missing(records, needs)
    raise refusal


def choice_of(need: Columns, names: list[str], is_named: bool = False) -> Choice:
    """The choice of these columns: texts, then the label if one is needed."""
    if need.label:
        return Choice(need, names[:-1], names[-1], is_named)
    return Choice(need, names, None, is_named)


# ----------------------------------------------------------------------- columns by their names


def ways_to_read(need: Columns, by_role: Mapping[str, list[str]]) -> list[list[str]]:
    """All choices of columns for a need among those that have a role: the texts, then the label."""
    ways = []
    negatives = by_role["more"]
    if need.texts == 1:
        for text in texts_with_role(by_role):
            ways.append([text])
    else:
        for first in by_role["first"]:
            for second in by_role["second"]:
                if need.more_texts and 2 + len(negatives) >= need.texts:
                    ways.append([first, second, *negatives])
                elif need.texts == 2:
                    ways.append([first, second])
                elif not need.more_texts:
                    ways += [[first, second, negative] for negative in negatives]
    if need.label:
        ways = [[*way, label] for way in ways for label in by_role["label"]]
    return ways


def texts_with_role(by_role: Mapping[str, list[str]]) -> list[str]:
    return [*by_role["first"], *by_role["second"], *by_role["more"]]


def unread_with_role(
    need: Columns, by_role: Mapping[str, list[str]], way: Sequence[str]
) -> list[str]:
    """The columns that have a role and are not read: they may change what a row means.

    A label beside a single text changes nothing.
    """
    columns = texts_with_role(by_role)
    if need.texts > 1 and not need.ignores_label:
        columns += by_role["label"]
    return [name for name in columns if name not in way]


def undecided(
    records: Records, need: Columns, ways: list[list[str]], unread: list[str]
) -> InputError:
    """Several ways to read a file, or a column that may change what its rows mean."""
    start = f"{records.name}: {listed_names(unread)} beside {listed_names(ways[0])}"
    first = proposal(records.unit, ways[0])
    if len(ways) > 1:
        second = proposal(records.unit, ways[1])
        return InputError(f"{start}, and this needs {need}: choose by {first} or {second}")
    other = [*ways[0], *unread]
    if need.label:  # the label stays last
        other = [*ways[0][:-1], *unread, ways[0][-1]]
    second = proposal(records.unit, other)
    return InputError(
        f"{start} is not read for {need}: {first} leaves it out, {second} is for what reads "
        f"{words_for(other)}"
    )


def words_for(names: Sequence[str]) -> str:
    """What these columns are, in words: ``two texts and a label``."""
    texts = [name for name in names if role_of(name) != "label"]
    words = COUNTS.get(len(texts), f"{len(texts)} texts")
    if len(texts) < len(names):
        words += " and a label"
    return words


# --------------------------------------------------------------------------- columns by --columns


def parse_names(names: str) -> list[str]:
    """The names of ``--columns``; one that has a comma stands in quotation marks.

    ``parse_names('left, "a, b"') = ["left", "a, b"]``
    """
    cells = next(csv.reader([names], skipinitialspace=True), [])
    return [cell.strip() for cell in cells]


def last_number(names: str | None) -> int:
    """The largest of the numbers that ``--columns`` gives for a table without a header; else 0."""
    if names is None:
        return 0
    wanted = parse_names(names)
    if not wanted or not all(re.fullmatch("[1-9][0-9]{0,6}", name) for name in wanted):
        return 0
    return max(int(name) for name in wanted)


def has_columns(records: Records, names: str) -> bool:
    """Whether the records have all columns of ``--columns``."""
    known = {name.lower() for name in records.names}
    return all(name.lower() in known for name in parse_names(names))


def named_columns(records: Records, needs: Sequence[Columns], wanted: list[str]) -> Choice:
    """The columns that the user names, for the first need that has as many."""
    asked = proposal(records.unit, wanted)
    fitting = [need for need in needs if need.fits(len(wanted))]
    if not fitting:
        raise InputError(f"{records.name}: {asked} names {len(wanted)}; needed: {either(needs)}")

    by_lower_name: dict[str, str] = {}
    for name in records.names:
        by_lower_name.setdefault(name.lower(), name)
    chosen = []
    for name in wanted:
        if name.lower() not in by_lower_name:
            raise InputError(
                f"{records.name}: no column {one_line(name)}; its columns are "
                f"{listed_names(records.names)}"
            )
        chosen.append(by_lower_name[name.lower()])
    if len(set(chosen)) < len(chosen):
        raise InputError(f"{records.name}: {asked} names a column twice")
    check_names_differ(records, chosen)
    # three columns may be two texts and a score, or a triplet: the name of a text is no score
    need = fitting[0]
    if role_of(chosen[-1]) in ("first", "second", "more"):
        unlabelled = [one for one in fitting if one.label is None]
        need = [*unlabelled, need][0]
    if need.label:
        check_label_is_last(records, chosen)
    return choice_of(need, chosen, is_named=True)


def check_names_differ(records: Records, chosen: Sequence[str]) -> None:
    """Raise ``InputError`` if two columns have a name that is read."""
    counts = Counter(name.lower() for name in records.names)
    for name in chosen:
        if counts[name.lower()] > 1:
            raise InputError(
                f"{records.name}: two columns are called {plain_name(name)}: give each a name of "
                f"its own"
            )


def check_label_is_last(records: Records, chosen: Sequence[str]) -> None:
    """Raise ``InputError`` if the name of a label stands before the texts: it would be one."""
    *texts, label = chosen
    labels = [name for name in texts if role_of(name) == "label"]
    if labels and role_of(label) != "label":
        in_order = [name for name in chosen if name != labels[0]]
        in_order.append(labels[0])
        raise InputError(
            f"{records.name}: {proposal(records.unit, chosen)}: the texts come first, then the "
            f"label: {proposal(records.unit, in_order)}"
        )


# ----------------------------------------------------------------------------- what would do


def missing(records: Records, needs: Sequence[Columns]) -> InputError:
    """No column has the name of something that is needed; propose columns by what they hold."""
    header = f"its columns are {listed_names(records.names)}"
    if records.separator == ";":
        header += ", separated by semicolons"
    needed = f"{records.name}: {header}; needed: {either(needs)}"

    least = min(need.texts + bool(need.label) for need in needs)
    if len(records.names) < least:
        return InputError(f"{needed}: a column is missing")
    sample = first_records(records)
    for need in needs:
        example = proposed_columns(records.names, sample, need)
        if example:
            advice = f"give {proposal(records.unit, example)}"
            if records.separator:
                numbers = [str(1 + records.names.index(name)) for name in example]
                advice += f"; if the first line is a row, {proposal(records.unit, numbers)}"
            return InputError(f"{needed}: {advice}")
    advice = "name them in this order by --columns"
    if records.unit == "index":
        advice = "name them in this order by columns="
    elif records.separator:
        numbers = [str(i) for i in range(1, 1 + least)]
        advice += f", without a header by numbers: {proposal(records.unit, numbers)}"
    return InputError(f"{needed}: {advice}")


def either(needs: Sequence[Columns]) -> str:
    """``two texts and a score or three texts``."""
    words = []
    for need in needs:
        if str(need) not in words:
            words.append(str(need))
    return " or ".join(words)


def first_records(records: Records) -> list[Record]:
    """A few records. A broken row ends them: what is wrong with the header is told first."""
    sample: list[Record] = []
    try:
        for _, record in islice(records.items, SAMPLE):
            sample.append(record)
    except InputError:
        pass
    return sample


def proposed_columns(
    all_names: Sequence[str], sample: Sequence[Record], need: Columns
) -> list[str]:
    """Columns that a message may propose: the longest texts, and as the label a number, or the
    words with the fewest different values. [] if there are not enough. Nothing is read by this.
    """
    values = {}
    for name in dict.fromkeys(all_names):
        column = [record.get(name) for record in sample]
        values[name] = [value for value in column if value not in (None, "")]
    numbers = [name for name in values if name and holds_numbers(values[name])]
    texts = [name for name in values if name and holds_texts(values[name])]
    texts = [name for name in texts if name not in numbers]

    texts.sort(key=lambda name: mean_length(values[name]), reverse=True)
    chosen = sorted(texts[: need.texts], key=all_names.index)
    if len(chosen) < need.texts:
        return []
    if not need.label:
        return chosen
    labels = [name for name in numbers if not is_running(values[name])]
    if need.label == "class":
        labels += texts[need.texts :]
        labels.sort(key=lambda name: len(set(values[name])))
    if not labels:
        return []
    return [*chosen, labels[0]]


def holds_numbers(column: Sequence[object]) -> bool:
    return bool(column) and all(number(value, comma=True) is not None for value in column)


def holds_texts(column: Sequence[object]) -> bool:
    """Whether all values are texts; one that never changes is none."""
    if not all(isinstance(value, str) for value in column):
        return False
    return len(column) == 1 or len(set(column)) > 1


def mean_length(texts: Sequence[str]) -> float:
    return sum(len(text) for text in texts) / len(texts)


def is_running(column: Sequence[object]) -> bool:
    """Whether values count the rows, as an id does: ``is_running(["7", "8", "9"])``."""
    values = [number(value, comma=True) or 0.0 for value in column]
    steps = {after - before for before, after in pairwise(values)}
    return steps == {1.0}


def listed_names(names: Iterable[str], most: int = 8) -> str:
    """The first few names as they stand there: ``id, text and 3 more``."""
    names = list(names)
    listed = ", ".join(plain_name(name) for name in names[:most])
    if len(names) > most:
        listed += f" and {len(names) - most:,} more"
    return listed


def plain_name(name: str) -> str:
    """A name as it stands there, in quotation marks if it needs them, and cut if it is long."""
    if re.fullmatch(r"[\w .()/#-]{1,60}", name):
        return name
    return one_line(name, 60)


def proposal(unit: str, names: Sequence[str]) -> str:
    """``--columns left,right,stars``, or in Python ``columns='left,right,stars'``."""
    quoted = []
    for name in names:
        if "," in name or '"' in name:
            name = '"' + name.replace('"', '""') + '"'
        quoted.append(name)
    wanted = ",".join(quoted)
    if unit == "index":
        return f"columns={wanted!r}"
    return f"--columns {shlex.quote(wanted)}"
