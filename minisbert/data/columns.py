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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

from minisbert.core import InputError, one_line
from minisbert.data.records import Record, Records
from minisbert.data.values import as_number

# ------------------------------------------------------------------------------ the table of names
# These are the names in the files of sentence-transformers, Hugging Face, GLUE, SICK, SimCSE,
# FlagEmbedding, Anserini and LangChain. Capital letters make no difference.

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
    "page_content",
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
# negatives: neg, negative, hard_neg, negatives, negative1, neg_2
MORE_TEXTS = re.compile(r"(hard_)?neg(ative)?s?(_?\d+)?")
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

# how messages name what is needed; more than three texts are "4 texts"
TEXTS_IN_WORDS = {1: "a text", 2: "two texts", 3: "three texts"}
LABEL_IN_WORDS = {"score": "a score", "binary": "a label of 0 or 1", "class": "a class"}
SAMPLE_SIZE = 20  # records that a message looks at before it proposes columns
LONGEST_COLUMN_NUMBER = 7  # digits


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
    """What a loss or a command needs in each row: so many texts, then maybe a label.

    ``label`` is "score" (a number), "binary" (0 or 1), "class" (a word) or None. With
    ``more_texts`` further texts may follow those that are needed: negatives. ``ignores_label`` is
    for commands that only look at the texts: a label beside them changes nothing.

    Functions call a ``Columns`` a *need*. A command that can read rows of several kinds has
    several needs, and the first that a file fits is the one that is read.
    """

    texts: int = 2
    label: str | None = None
    more_texts: bool = False
    ignores_label: bool = False

    def __str__(self) -> str:
        """``two texts and a score``."""
        words = texts_in_words(self.texts)
        if self.more_texts:
            words += " or more"
        if self.label:
            words += f" and {LABEL_IN_WORDS[self.label]}"
        return words

    def fits(self, count: int) -> bool:
        """Whether a row of so many columns can be what is needed."""
        texts = count
        if self.label:
            texts -= 1
        if self.more_texts:
            return texts >= self.texts
        return texts == self.texts


PAIRS = Columns(2, more_texts=True)  # anchor, positive, and any number of negatives


def texts_in_words(count: int) -> str:
    """``two texts``, ``4 texts``."""
    return TEXTS_IN_WORDS.get(count, f"{count} texts")


@dataclass(frozen=True)
class Choice:
    """The columns that are read: the names of the texts, and that of the label."""

    columns: Columns
    texts: list[str]
    label: str | None
    is_named: bool  # whether --columns named them

    @property
    def names(self) -> list[str]:
        """The texts, then the label."""
        if self.label is None:
            return self.texts
        return [*self.texts, self.label]


def choose_columns(records: Records, needs: Sequence[Columns], names: str | None = None) -> Choice:
    """Choose the columns to read, for the first of the needs that they fit.

    ``names`` is ``--columns``. Raises ``InputError`` with the header and the ``--columns`` that
    would read the file.
    """
    if not records.names:
        raise InputError(f"{records.name} is empty: it has no rows")
    if names is not None:
        return named_columns(records, needs, parse_names(names))

    by_role: dict[str, list[str]] = {"first": [], "second": [], "more": [], "label": [], "": []}
    for name in records.names:
        by_role[role_of(name)].append(name)

    first_doubt = None
    for need in needs:
        # Two ways are enough to see that there are several. A header may have thousands of names.
        ways = list(islice(ways_to_read(need, by_role), 2))
        if not ways:
            continue
        way = ways[0]
        check_names_differ(records, way)
        unread = unread_with_role(need, by_role, way)
        if len(ways) == 1 and not unread:
            return choice_of(need, way)

        # A later need may fit without a doubt. If none does, the first doubt is what is told.
        if first_doubt is None and len(ways) > 1:
            first_doubt = several_ways_error(records, need, ways, unread)
        elif first_doubt is None:
            first_doubt = unread_column_error(records, need, way, unread)
    if first_doubt is not None:
        raise first_doubt
    raise missing_column_error(records, needs)


def choice_of(need: Columns, names: list[str], is_named: bool = False) -> Choice:
    """The choice of these columns: texts, then the label if one is needed."""
    if need.label:
        return Choice(need, names[:-1], names[-1], is_named)
    return Choice(need, names, None, is_named)


class RowsDoNotFit(InputError):
    """The rows do not hold what is needed. They may be right, and another loss may read them."""


# ----------------------------------------------------------------------- columns by their names


def ways_to_read(need: Columns, by_role: Mapping[str, list[str]]) -> Iterator[list[str]]:
    """All choices of columns for a need among those that have a role: the texts, then the label."""
    for texts in choices_of_texts(need, by_role):
        if need.label is None:
            yield texts
            continue
        for label in by_role["label"]:
            yield [*texts, label]


def choices_of_texts(need: Columns, by_role: Mapping[str, list[str]]) -> Iterator[list[str]]:
    """A single text has any of the names; of several a first, a second, and negatives."""
    if need.texts == 1:
        for text in texts_with_role(by_role):
            yield [text]
        return
    negatives_of_rows = choices_of_negatives(need, by_role["more"])
    for first in by_role["first"]:
        for second in by_role["second"]:
            for negatives in negatives_of_rows:
                yield [first, second, *negatives]


def choices_of_negatives(need: Columns, negatives: list[str]) -> list[list[str]]:
    """Which negatives may follow anchor and positive: all of them, none, or any one."""
    if need.more_texts:
        if 2 + len(negatives) < need.texts:
            return []
        return [negatives]
    if need.texts == 2:
        return [[]]
    return [[negative] for negative in negatives]


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


def several_ways_error(
    records: Records, need: Columns, ways: list[list[str]], unread: list[str]
) -> InputError:
    """The error: columns have the names of one need in several ways."""
    first = proposal(records.unit, ways[0])
    second = proposal(records.unit, ways[1])
    return InputError(
        f"{records.name}: {listed_names(unread)} beside {listed_names(ways[0])}, and this needs "
        f"{need}: choose by {first} or {second}"
    )


def unread_column_error(
    records: Records, need: Columns, way: list[str], unread: list[str]
) -> InputError:
    """The error: a column that would not be read may change what the rows mean."""
    if need.label:
        *texts, label = way
        whole = [*texts, *unread, label]
    else:
        whole = [*way, *unread]
    without = proposal(records.unit, way)
    with_all = proposal(records.unit, whole)
    return InputError(
        f"{records.name}: {listed_names(unread)} beside {listed_names(way)} is not read for "
        f"{need}: {without} leaves it out, {with_all} is for what reads {words_for(whole)}"
    )


def words_for(names: Sequence[str]) -> str:
    """What these columns are, in words: ``two texts and a label``."""
    texts = [name for name in names if role_of(name) != "label"]
    words = texts_in_words(len(texts))
    if len(texts) < len(names):
        words += " and a label"
    return words


# --------------------------------------------------------------------------- columns by --columns


def parse_names(names: str) -> list[str]:
    """The names of ``--columns``; one that has a comma stands in quotation marks.

    ``parse_names('left, "a, b"') = ["left", "a, b"]``
    """
    if not isinstance(names, str):
        raise InputError(f"columns is one text, such as 'left,right,stars', not {one_line(names)}")
    cells = next(csv.reader([names], skipinitialspace=True), [])
    return [cell.strip() for cell in cells]


def last_number(names: str | None) -> int:
    """The largest of the numbers that ``--columns`` gives for a table without a header; else 0.

    ``last_number("6,7,5") = 7``, ``last_number("left,2") = 0``.
    """
    if names is None:
        return 0
    largest = 0
    for name in parse_names(names):
        if not re.fullmatch("[1-9][0-9]*", name) or len(name) > LONGEST_COLUMN_NUMBER:
            return 0  # columns have names
        largest = max(largest, int(name))
    return largest


def has_columns(records: Records, names: str) -> bool:
    """Whether the records have all columns of ``--columns``."""
    known = {name.lower() for name in records.names}
    return all(name.lower() in known for name in parse_names(names))


def named_columns(records: Records, needs: Sequence[Columns], wanted: list[str]) -> Choice:
    """The columns that the user names, for the first need that has as many."""
    option = proposal(records.unit, wanted)
    fitting = [need for need in needs if need.fits(len(wanted))]
    if not fitting:
        raise RowsDoNotFit(f"{records.name}: {option} names {len(wanted)}; needed: {either(needs)}")

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
        raise InputError(f"{records.name}: {option} names a column twice")
    check_names_differ(records, chosen)

    # Three columns may be two texts and a score, or a triplet. A column that has the name of a
    # text is no score.
    need = fitting[0]
    if role_of(chosen[-1]) in ("first", "second", "more"):
        unlabelled = [fit for fit in fitting if fit.label is None]
        if unlabelled:
            need = unlabelled[0]
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
    """Raise ``InputError`` if a column with the name of a label would be read as a text."""
    if role_of(chosen[-1]) == "label":
        return
    labels = [name for name in chosen if role_of(name) == "label"]
    if labels:
        in_order = [name for name in chosen if name != labels[0]]
        in_order.append(labels[0])
        raise InputError(
            f"{records.name}: {proposal(records.unit, chosen)}: the texts come first, then the "
            f"label: {proposal(records.unit, in_order)}"
        )


# ----------------------------------------------------------------------------- what would do


def missing_column_error(records: Records, needs: Sequence[Columns]) -> RowsDoNotFit:
    """The error: no column has the name of something that is needed.

    It proposes columns by what they hold.
    """
    needed = f"{records.name}: {described_header(records)}; needed: {either(needs)}"

    fitting = [need for need in needs if columns_of(need) <= len(records.names)]
    if not fitting:
        return RowsDoNotFit(f"{needed}: a column is missing")

    # the best advice is columns that hold what is needed
    sample = first_records(records)
    for need in needs:
        names = proposed_columns(records.names, sample, need)
        if names:
            advice = f"give {proposal(records.unit, names)}"
            if records.separator:
                numbers = [str(1 + records.names.index(name)) for name in names]
                advice += f"; if the first line is a row, {proposal(records.unit, numbers)}"
            return RowsDoNotFit(f"{needed}: {advice}")

    if records.unit == "index":
        return RowsDoNotFit(f"{needed}: name them in this order by columns=")
    advice = "name them in this order by --columns"
    if records.separator:
        numbers = [str(i) for i in range(1, 1 + columns_of(fitting[0]))]
        advice += f", without a header by numbers, such as {proposal(records.unit, numbers)}"
    # The texts may be there without a score, as in a file of questions and answers.
    for need in needs:
        if need.label and proposed_columns(records.names, sample, replace(need, label=None)):
            advice += f"; no column looks like a {need.label}"
            break
    return RowsDoNotFit(f"{needed}: {advice}")


def described_header(records: Records) -> str:
    """The names of the columns in words, and what a wrong separator may have made of them."""
    header = f"its columns are {listed_names(records.names)}"
    if records.separator == ";":
        header += ", separated by semicolons"
    if len(records.names) == 1 and "|" in records.names[0]:
        header += ", as a | separates no cells: tabs, semicolons and commas do"
    return header


def columns_of(need: Columns) -> int:
    """How many columns a row has at least."""
    if need.label:
        return need.texts + 1
    return need.texts


def either(needs: Sequence[Columns]) -> str:
    """``two texts and a score, or three texts``."""
    words = []
    for need in needs:
        if str(need) not in words:
            words.append(str(need))
    return ", or ".join(words)


def first_records(records: Records) -> list[Record]:
    """A few records. A broken row ends them: what is wrong with the header is told first."""
    sample: list[Record] = []
    try:
        for _, record in islice(records.items, SAMPLE_SIZE):
            sample.append(record)
    except InputError:
        pass
    return sample


def proposed_columns(
    all_names: Sequence[str], sample: Sequence[Record], need: Columns
) -> list[str]:
    """Columns that a message may propose, by what the sample holds; [] if there are not enough.

    The texts are the longest columns of texts. The label is a column of numbers, or for a class
    the column with the fewest different values. Nothing is read by this.
    """
    values = {}
    texts = []
    numbers = []
    for name in dict.fromkeys(all_names):  # a header may have a name twice
        column = [record.get(name) for record in sample]
        column = [value for value in column if value not in (None, "")]
        values[name] = column
        if not name:
            continue  # --columns cannot name it
        if holds_numbers(column):
            numbers.append(name)
        elif holds_texts(column):
            texts.append(name)

    texts.sort(key=lambda name: mean_length(values[name]), reverse=True)
    chosen = texts[: need.texts]
    if len(chosen) < need.texts:
        return []
    chosen.sort(key=all_names.index)
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
    return bool(column) and all(as_number(value, comma=True) is not None for value in column)


def holds_texts(column: Sequence[object]) -> bool:
    """Whether all values are texts; one that never changes is none."""
    if not all(isinstance(value, str) for value in column):
        return False
    return len(column) == 1 or len(set(column)) > 1


def mean_length(texts: Sequence[str]) -> float:
    return sum(len(text) for text in texts) / len(texts)


def is_running(column: Sequence[object]) -> bool:
    """Whether values count the rows, as an id does: ``is_running(["7", "8", "9"])``."""
    values = []
    for value in column:
        parsed = as_number(value, comma=True)
        if parsed is None:
            return False
        values.append(parsed)
    steps = {after - before for before, after in pairwise(values)}
    return steps == {1.0}


def listed_names(names: Collection[str], limit: int = 8) -> str:
    """The first few names as they stand there: ``id, text and 3 more``."""
    listed = ", ".join(plain_name(name) for name in islice(names, limit))
    if len(names) > limit:
        listed += f" and {len(names) - limit:,} more"
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
