"""The rows of train, dev and test: from files, from a published data set, or held out.

Dev chooses the step, test reports the gain, and neither shares a text with the training rows that
are held out of the same file. A score on the rows that chose is no estimate: on 30 dev rows 61
became 70 where 200 others stayed at 62.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from minisbert.core import InputError, one_line
from minisbert.data.columns import Columns, listed_names, proposal
from minisbert.data.published import PUBLISHED, check_has_name, is_published
from minisbert.data.rows import (
    Table,
    as_needs,
    choose_scale,
    divide_scores,
    highest_in_name,
    read_rows,
    scale_setting,
)
from minisbert.data.values import as_number

# the sizes of dev and test that are held out by default
DEFAULT_SHARE = 0.1  # of the rows
FEWEST_HELD_OUT = 50  # rows: fewer say nothing about a gain
MOST_HELD_OUT = 2000  # rows: more say little more, and take time at each evaluation
ENOUGH_ROWS = 4 * FEWEST_HELD_OUT  # of the file: when both are held out, half is left to train on
ENOUGH_FREE_ROWS = 3 * FEWEST_HELD_OUT  # so many of them share no text with the others
MOST_OF_SMALL_DEV = 20  # rows, where there are not enough for a test
LEAST_OF_SMALL_DEV = 2  # rows: a single one has no order that could be right or wrong

PURPOSES = {"dev": "they choose the step", "test": "they report the gain"}


@dataclass
class Splits:
    """The rows to train on, to choose the step by, and to report; an empty list is none.

    ``notes`` are lines to print as they are: one each for train, dev and test, then what a reader
    should know of them. Scores are divided by ``scale``; classes are the strings of the file, and
    ``classes`` are those of the training file, sorted.
    """

    rows: dict[str, list[tuple]]  # by split
    notes: list[str] = field(default_factory=list)
    # split -> the line behind its name: "pairs.csv: 200 of 300 rows; ..."
    described: dict[str, str] = field(default_factory=dict)
    # split -> what its rows are: those of dev may be scored pairs where the loss reads no score
    columns: dict[str, Columns] = field(default_factory=dict)
    scale: float | None = None
    classes: list[str] = field(default_factory=list)

    @property
    def train(self) -> list[tuple]:
        return self.rows["train"]

    @property
    def dev(self) -> list[tuple]:
        return self.rows["dev"]

    @property
    def test(self) -> list[tuple]:
        return self.rows["test"]


def read_splits(
    data: Any,
    dev: Any = None,
    test: Any = None,
    columns: Columns | Sequence[Columns] = (),
    names: str | None = None,
    scale: float | None = None,
    *,
    judged_by: Sequence[Columns] = (),
    judges_itself: bool = True,
    quotes: bool = True,
    limit: int | None = None,
    seed: int = 42,
) -> Splits:
    """Read the rows of a run.

    ``data``, ``dev`` and ``test`` are what ``read_rows`` reads. ``dev`` and ``test`` may also be a
    share of the training rows ("0.1") or "none". None is the default: of a published data set its
    own dev and test, of one's own data a part of it where there are rows enough. ``judged_by``:
    other columns that dev and test may have, such as ``Columns(2, "score")`` for a loss without
    scores; without ``judges_itself`` they may not be rows like the training's. ``limit`` takes the
    first training rows, ``seed`` chooses the rows that are held out.
    """
    # before any file is read, which may take long
    for source in (data, dev, test):
        if isinstance(source, str):
            check_has_name(source)
    table = training_table(data, columns, names, scale, quotes, limit)

    # The names in a header tell a score from a class, so what fits the training rows is tried
    # first. Tuples from Python have no names (``training.base_loss.read_dev``).
    needs = [*judged_by]
    if judges_itself:
        needs = [*needs_that_judge(columns, judged_by, table), *judged_by]
    return split_table(table, dev, test, needs, names, quotes=quotes, seed=seed)


def needs_that_judge(
    columns: Columns | Sequence[Columns], judged_by: Sequence[Columns], train: Table
) -> list[Columns]:
    """Which of the needs of the training rows the rows of dev and test may have, too.

    A text alone says nothing of what it should be near to, so it judges no model that is
    ``judged_by`` other rows.
    """
    needs = as_needs(columns)
    if not judged_by:
        return [*needs]
    if train.columns.texts == 1:
        return []
    return [need for need in needs if need.texts > 1]


def split_table(
    table: Table,
    dev: Any,
    test: Any,
    needs: Sequence[Columns],
    names: str | None = None,
    *,
    quotes: bool = True,
    seed: int = 42,
) -> Splits:
    """Give the training rows a dev and a test, of files that hold one of the needs, or held out."""
    splits = Splits({"train": table.rows, "dev": [], "test": []}, scale=table.scale)
    splits.columns["train"] = table.columns
    if table.columns.label == "class":
        splits.classes = table.classes()

    sources = default_sources(table.name, dev, table.columns)
    if dev is not None:
        sources["dev"] = dev
    if test is not None:
        sources["test"] = test

    # each split is none, a share of the training rows (None is the default share), or a table
    shares: dict[str, float | None] = {}
    tables: dict[str, Table] = {}
    for split, source in sources.items():
        if is_none(source):
            continue
        share = held_out_share(source)
        if source is None or share is not None:
            shares[split] = share
        else:
            other = read_rows(source, needs, names, split=split, quotes=quotes, names_may_lack=True)
            tables[split] = checked_like(other, table, split)

    remarks = take_held_out(splits, table, shares, seed)
    for split, other in tables.items():
        splits.rows[split] = other.rows
        splits.columns[split] = other.columns
        splits.described[split] = other.note()
        remarks += overlap_remarks(table, other, split, shared_rows(splits.train, other.rows))

    for split in splits.rows:
        if split not in splits.described:
            splits.described[split] = "none"
        splits.notes.append(f"{split:<6} {splits.described[split]}")
    splits.notes += remarks
    return splits


def overlap_remarks(train: Table, other: Table, split: str, count: int) -> list[str]:
    """What to say of ``count`` rows of dev or test that are training rows too.

    Nobody can drop a row of a published data set.
    """
    if not count:
        return []
    start = f"{count:,} rows of {split} are training rows too"
    if not is_published(other.name):
        return [f"warning: {start}, so its score is too high: drop them"]
    if not is_published(train.name):
        return [f"warning: {start}, so its score is too high: drop them from {train.name}"]
    if other.name == train.name:
        return [f"{start}: {other.name} is published so"]
    return [f"{start}: {other.name} and {train.name} are published so"]


def training_table(
    data: Any,
    columns: Columns | Sequence[Columns],
    names: str | None,
    scale: float | None,
    quotes: bool,
    limit: int | None,
) -> Table:
    """The training rows before some are held out, their scores divided by the scale."""
    needs = as_needs(columns)
    has_scores = needs[0].label == "score"
    read_limit = limit
    if has_scores:
        read_limit = None  # the highest score of all rows decides on the scale, also of a few
    table = read_rows(data, needs, names, split="train", quotes=quotes, limit=read_limit)
    table = ready_to_train(table, scale)
    if has_scores:
        table = table.limited(limit)
    return table


def ready_to_train(table: Table, scale: float | None = None) -> Table:
    """The table with its scores divided by the scale, without one by that of ``choose_scale``.

    Raises ``InputError`` for scores beyond the scale, and for rows of a single class.
    """
    if table.columns.label == "score":
        if scale is None:
            scale = choose_scale([row[-1] for row in table.rows], table.name, table.unit)
            table = remark_other_scale(table, scale)
        table = divide_scores(table, scale)
    if table.columns.label == "class":
        check_classes(table)
    if table.columns.label is None:
        check_no_scores_among_texts(table)
    return table


def check_no_scores_among_texts(table: Table) -> None:
    """Raise ``InputError`` if the last of three or more texts is a number in all rows.

    The right answers are no numbers, so that column holds scores. As a text it would be a wrong
    answer.
    """
    if not table.names or len(table.names) < 3:
        return
    for row in table.rows:
        if as_number(row[-1]) is None:
            return
    if all(as_number(row[1]) is not None for row in table.rows):
        return
    *texts, last = table.names
    raise InputError(
        f"{table.name}: {last} would be read as a text, a wrong answer, and holds only numbers: "
        f"{proposal(table.unit, texts)} leaves it out, and --loss cosine reads it as a score"
    )


def remark_other_scale(table: Table, scale: float) -> Table:
    """Add a remark if the header states another highest score than the one that was chosen."""
    if not table.names:
        return table
    highest = highest_in_name(table.names[-1])
    if highest is None or highest == scale:
        return table
    remark = (
        f"the header says up to {highest:g}: {scale_setting(table.unit, highest)} divides by it"
    )
    return replace(table, remarks=[*table.remarks, remark])


# -------------------------------------------------------------------------- which rows are dev


def default_sources(data: str, dev: Any, columns: Columns) -> dict[str, Any]:
    """What dev and test are if nobody says it: a data set's name, "none", or None.

    None holds out a part of the training rows.
    """
    names = [name for name in data.split(",") if name in PUBLISHED]
    if columns.texts == 1 or (names and columns.label is None):
        # nothing says what a text alone should be near to: people's scores do
        return {"dev": "stsb", "test": "stsb"}
    for name in ("stsb", "snli"):
        if name in names:
            return {"dev": name, "test": name}
    if is_none(dev):  # who wants no dev has no rows to spare
        return {"dev": None, "test": "none"}
    return {"dev": None, "test": None}


def is_none(source: Any) -> bool:
    return isinstance(source, str) and source == "none"


def held_out_share(source: Any) -> float | None:
    """The share of the training rows that ``--dev 0.1`` names; None for anything else."""
    if not isinstance(source, str | float) or os.path.exists(str(source)):
        return None
    try:
        share = float(source)
    except ValueError:
        return None
    if not 0 < share < 0.5:
        raise InputError(f"{source}: a share that is held out must be above 0 and below 0.5")
    return share


def checked_like(table: Table, train: Table, split: str = "") -> Table:
    """Rows of dev or test on the scale of training.

    Raises ``InputError`` for classes that training lacks, and for scores that are all the same.
    Its messages begin with the ``split``; rows from Python need none, their table is called dev.
    """
    start = ""
    if split:
        start = f"{split} "
    label = table.columns.label
    if label == "score":
        if train.scale is not None:
            table = divide_scores(table, train.scale)
        if len({row[-1] for row in table.rows}) < 2:
            raise InputError(
                f"{start}{table.name}: a correlation needs at least two rows with different scores"
            )
    if label == "class" and train.columns.label == "class":
        classes = train.classes()
        for index, row in enumerate(table.rows):
            if row[-1] not in classes:
                raise InputError(
                    f"{start}{table.place(index)}: the class {one_line(row[-1])} is not one of "
                    f"{listed_names(classes)}, as in the training rows"
                )
    return table


def check_classes(table: Table) -> None:
    """Raise ``InputError`` for a single class, and if most classes stand in one row only."""
    counts = Counter(row[-1] for row in table.rows)
    if len(counts) < 2:
        raise InputError(f"{table.name}: all rows have the class {one_line(table.rows[0][-1])}")
    single = [name for name, count in counts.items() if count == 1]
    if len(counts) > 20 and len(single) > len(table.rows) / 2:
        raise InputError(
            f"{table.name}: {len(counts):,} classes in {len(table.rows):,} rows, such as "
            f"{one_line(single[0])}: name the texts first, then the class"
        )


# ----------------------------------------------------------------------------------- held out


def take_held_out(
    splits: Splits, table: Table, shares: dict[str, float | None], seed: int
) -> list[str]:
    """Move rows of the training file to the splits that get a share of them; return remarks."""
    if not shares:
        splits.described["train"] = table.note()
        return []

    is_labelled = table.columns.label is not None
    check_shares(shares)
    groups = linked_rows(table.rows, is_labelled)
    count = len(table.rows)
    if count == 1:
        raise InputError(f"{table.name}: one row is too few to train on: give more")
    free = free_rows(groups)
    if free < count / 3:
        # The largest group stays in training, unless less than a third of the rows would be free:
        # then all rows count, and it is divided if the others do not suffice.
        free = count

    sizes = held_out_sizes(count, shares, free)
    if sizes:
        parts, remark = hold_out(table.rows, sizes, seed, is_labelled, groups)
        splits.rows.update(parts)
        for split in sizes:
            rows = parts[split]
            held_out = f"{len(rows):,} rows held out of {table.name}{remark}"
            if table.columns.label == "score" and len({row[-1] for row in rows}) < 2:
                raise InputError(
                    f"{split}, {held_out}: all have the same score, and a correlation needs "
                    f"different ones: give more rows, or --{split} FILE or none"
                )
            splits.columns[split] = table.columns
            splits.described[split] = f"{held_out}; {PURPOSES[split]}"
        table = replace(table, rows=splits.train, total=len(table.rows))
    splits.described["train"] = table.note()
    missing = [split for split in shares if split not in sizes]
    if missing:
        return [too_few(count, free, missing)]
    return []


def check_shares(shares: dict[str, float | None]) -> None:
    """Raise ``InputError`` for shares that leave less than a third of the rows to train on."""
    held_out = 0.0
    for share in shares.values():
        held_out += share or DEFAULT_SHARE
    if held_out > 2 / 3:
        given = " and ".join(f"--{split} {share}" for split, share in shares.items() if share)
        raise InputError(f"{given} leave less than a third of the rows to train on: give less")


def too_few(count: int, free: int, missing: Sequence[str]) -> str:
    """What to say if dev, test or both could not be held out."""
    wanted = " and ".join(f"a {split}" for split in missing)
    if count >= ENOUGH_ROWS:
        text = f"{free:,} of {count:,} rows share no text, too few to hold out {wanted}: "
    else:
        text = f"{count:,} rows are too few to hold out {wanted}: "
    if "dev" in missing:
        text += "the last weights are the model, and nothing tells if they are better"
    else:
        text += "a gain on dev, which chooses the step, cannot be told from chance"
    if count >= ENOUGH_ROWS:
        text += f"; {ENOUGH_FREE_ROWS} of them would do"
    else:
        text += f"; {ENOUGH_ROWS} rows would do"
    for split in missing:
        text += f", or --{split} FILE"
    return text


def free_rows(groups: Sequence[list[tuple]]) -> int:
    """How many rows can be held out without leakage: all but the largest group of linked rows.

    One more, so that rows that share nothing, each a group of its own, are all free.
    """
    sizes = [len(group) for group in groups]
    return sum(sizes) - max(sizes) + 1


def held_out_sizes(
    count: int, shares: dict[str, float | None], free: int | None = None
) -> dict[str, int]:
    """How many of ``count`` rows each split gets; ``free`` of them can be held out, or all.

    A share of None is the default: a tenth, at least 50 and at most 2,000 rows. Of fewer than 200
    rows, or 150 free ones, there is no test, and dev gets 20 rows, or a third of fewer than 60. Of
    fewer than 6 there is none.
    """
    if free is None:
        free = count
    sizes = {}
    for split, share in shares.items():
        if share is not None:
            # a part for each of the splits, and as much as two of them for training
            part = free // (2 + len(shares))
            fewest = max(1, min(MOST_OF_SMALL_DEV, part))
            sizes[split] = max(round(share * free), fewest)
        elif count >= ENOUGH_ROWS and free >= ENOUGH_FREE_ROWS:
            sizes[split] = min(max(round(DEFAULT_SHARE * free), FEWEST_HELD_OUT), MOST_HELD_OUT)
        elif split == "dev" and free // 3 >= LEAST_OF_SMALL_DEV:
            sizes[split] = min(MOST_OF_SMALL_DEV, free // 3)
    return sizes


def hold_out(
    rows: Sequence[tuple],
    sizes: dict[str, int],
    seed: int,
    is_labelled: bool = False,
    groups: Sequence[list[tuple]] = (),
) -> tuple[dict[str, list[tuple]], str]:
    """Divide rows into "train" and the splits of ``sizes``, which share no text with each other.

    If rows hang together by texts that they share, so that this cannot be, only copies of a row
    stay on one side, and the remark that is returned says so. The same seed holds out the same.
    The last value of a row is no text if it ``is_labelled``; ``groups`` are the ``linked_rows`` if
    they are known. Raises ``InputError`` if a split would be empty.
    """
    if not groups:
        groups = linked_rows(rows, is_labelled)
    parts = divide_groups(groups, sizes, seed)
    remark = ""
    if not are_filled(parts, sizes, len(rows)):
        copies: dict[frozenset[str], list[tuple]] = {}
        for row in rows:
            copies.setdefault(texts_of(row, is_labelled), []).append(row)
        parts = divide_groups(list(copies.values()), sizes, seed)
        remark = ", some of whose texts are in training too, because the rows share them"
    if not are_filled(parts, sizes, len(rows)):
        ways = " and ".join(f"--{split} FILE or none" for split in sizes)
        raise InputError(
            f"{len(rows)} rows are too few to hold some out as {' and '.join(sizes)}: give more, "
            f"or {ways}"
        )
    return parts, remark


def divide_groups(
    groups: Sequence[list[tuple]], sizes: dict[str, int], seed: int
) -> dict[str, list[tuple]]:
    """Give each split groups of rows, in random order, until it has enough; the rest is "train".

    A group that is larger than a split stays in training.
    """
    parts: dict[str, list[tuple]] = {split: [] for split in sizes}
    parts["train"] = []
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed)).tolist()
    for i in order:
        side = "train"
        for split, size in sizes.items():
            if len(parts[split]) < size and len(groups[i]) <= size:
                side = split
                break
        parts[side] += groups[i]
    return parts


def are_filled(parts: dict[str, list[tuple]], sizes: dict[str, int], count: int) -> bool:
    """Whether each split has its rows, and training at least a third of all."""
    full = all(len(parts[split]) >= size for split, size in sizes.items())
    return full and len(parts["train"]) >= count / 3


def linked_rows(rows: Sequence[tuple], is_labelled: bool = False) -> list[list[tuple]]:
    """Group rows so that rows of two groups have no text in common.

    ``[("a", "b"), ("c", "d"), ("e", "b")]`` gives ``[[("a", "b"), ("e", "b")], [("c", "d")]]``.
    """
    parent: dict[str, str] = {}  # each text points towards one that stands for its group

    def root(text: str) -> str:
        while parent[text] != text:
            parent[text] = parent[parent[text]]  # half the way for the next time
            text = parent[text]
        return text

    for row in rows:
        # In any order: the groups come in the order of the rows.
        first, *rest = texts_of(row, is_labelled)
        parent.setdefault(first, first)
        for text in rest:
            parent.setdefault(text, text)
            parent[root(text)] = root(first)

    groups: dict[str, list[tuple]] = {}
    for row in rows:
        groups.setdefault(root(row[0]), []).append(row)
    return list(groups.values())


def texts_of(row: tuple, is_labelled: bool = False) -> frozenset[str]:
    """The texts of a row, without their order; a label is no text."""
    if is_labelled:
        row = row[:-1]
    return frozenset(row)


def shared_rows(train: Iterable[tuple], other: Iterable[tuple]) -> int:
    """Count the rows of ``other`` whose first two texts share a row of ``train``, in either order.

    ``shared_rows([("a", "b")], [("b", "a", "c"), ("a", "c")]) = 1``.
    """
    trained = {first_two_texts(row) for row in train}
    return sum(first_two_texts(row) in trained for row in other)


def first_two_texts(row: tuple) -> frozenset[str]:
    return frozenset(value for value in row[:2] if isinstance(value, str))
