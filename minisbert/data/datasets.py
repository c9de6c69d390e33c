"""Find the rows of a training run: files or data sets by name, divided into training, dev and test
rows.

Most functions return rows and notes by split; a note says where the rows come from and how many
they are. The published files of STS-B, SNLI, MultiNLI and Quora are read by the name of the data
set; any other file has a header, keys or ``--columns``.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from minisbert.core import InputError, one_line
from minisbert.data.formats import (
    LABELLED,
    MAX_SCORE,
    NLI,
    PAIRS,
    SCORED,
    SENTENCES,
    Format,
    Row,
    Table,
    class_names,
    format_of,
    read_file,
    recognise,
)
from minisbert.data.lines import Rows, Source
from minisbert.system.assets import asset, assets, ensure

SPLITS = ("train", "dev", "test")
HELD_OUT = 0.1  # share of the training rows that dev or test gets

TextRows = list[tuple[str, ...]]
Notes = dict[str, str]  # by split
Splits = tuple[dict[str, list], Notes]  # the rows of train, dev and test


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where the rows of a run come from: names of data sets or files, by default those of the
    format.

    ``columns``, ``scale`` and ``quotes`` are those of ``Rows``, ``limit`` takes the first training
    rows, ``seed`` chooses rows that are held out. A file is opened once, so that a pipe can be
    read.
    """

    data: Source | None = None
    dev: Source | None = None
    test: Source | None = None
    columns: str | None = None
    scale: float = MAX_SCORE
    quotes: bool = True
    limit: int | None = None
    seed: int = 42
    opened: dict[str, list[Rows]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if "" in (self.data, self.dev, self.test):  # of a shell's variable that is not set
            raise InputError("--data, --dev or --test is empty: name a file or a data set")

    def named(self, split: str) -> Source | None:
        return {"train": self.data, "dev": self.dev, "test": self.test}[split]

    def of(self, split: str, form: Format) -> list[Rows]:
        """Open the data sets or files of a split; NLI rows may have several, as in ``A,B``.

        Raises ``InputError`` for a data set of another format.
        """
        name = self.named(split) or next(iter(form.datasets), None)
        if name is None:
            raise InputError(f"--data FILE is needed: {form.needs}")
        names = [name]
        if (
            isinstance(name, str) and len(form.datasets) > 1 and not os.path.exists(name)
        ):  # else the name has a comma
            names = [one for one in name.split(",") if one]
        for one in names:
            if one in assets() and one not in form.datasets:
                needed = " or ".join([*form.datasets[:1], f"a file of {form.needs}"])
                raise InputError(f"{one} has no rows of the kind that is needed: give {needed}")
        if split not in self.opened:
            how = {"columns": self.columns, "scale": self.scale, "quotes": self.quotes}
            self.opened[split] = [open_rows(one, split, **how) for one in names]
        return self.opened[split]


def open_rows(data: Source, split: str = "", **how: Any) -> Rows:
    """Open ``stsb``, ``snli``, ``multinli`` or ``quora``, fetched if it is missing, or a file, to
    be read as ``Rows``.

    Of stsb, and of a .zip of SNLI or MultiNLI, ``split`` selects train, dev, test, dev_matched, ...
    (of MultiNLI dev is dev_matched, test is dev_mismatched).
    """
    if data == "stsb":  # genre, file, year, id, score, sentence1, sentence2, and maybe two licences
        return Rows(ensure("stsb") / f"sts-{split}.csv", quotes=False, columns="5,6,7", name="stsb")
    if isinstance(data, str) and data in NLI.datasets:
        return Rows(ensure(data) / f"{data}_1.0.zip", split, name=data)
    if data == "quora":  # after some closing quotation marks there is more text
        return Rows(ensure("quora") / asset("quora").files[0].name, strict=False, name="quora")
    return Rows.of(data, split, **how)


def load_split(sources: Sources, split: str, form: Format) -> Table:
    """Read each source of a split in turn; the limit is for all the training rows together."""
    opened, limit = sources.of(split, form), sources.limit if split == "train" else None
    found = Table([], name=",".join(map(str, opened)))
    for rows in opened:
        left = None if limit is None else limit - len(found.rows) - found.skipped
        if left != 0:
            more = read_file(rows, form, left)
            unread = list(dict.fromkeys([*found.unread, *more.unread]))
            found = Table(found.rows + more.rows, found.skipped + more.skipped, unread, found.name)
    return found


# ------------------------------------------------------------------------- scores, labels and
# classes


def load_scored_pairs(data: Source, split: str = "", scale: float | None = MAX_SCORE) -> list[Row]:
    """Load ``stsb`` (fetched if it is missing), with ``split`` train, dev or test, or the file of
    that path.

    A file's scores are 0 to ``scale``; those of the rows are always 0 to 5. With None they are what
    the file has.
    """
    return read_file(open_rows(data, split, scale=scale), SCORED).rows


def check_scores(rows: Sequence[Row], source: str) -> None:
    """Raise ``InputError`` if no correlation with the scores is defined; call it before
    encoding.
    """
    if len({row.score for row in rows}) < 2:
        raise InputError(f"{source}: a correlation needs at least two pairs with different scores")


def scored_rows(sources: Sources) -> Splits:
    """Read scored pairs to train on, and those of dev and test."""
    table, scale = load_split(replace(sources, limit=None), "train", SCORED), sources.scale
    # Scores of 0 to 1 read as 0 to 5 would all be low, and training would go on without a word.
    if scale > 1 and max(row.score for row in table.rows) <= MAX_SCORE / scale:
        advice = "give minisbert train --scale 1 (labels 0 and 1 alone are for --objective binary)"
        raise InputError(
            f"{table.name}: no score is above 1, but the scale is 0 to {scale:g}: {advice}"
        )
    table = table._replace(rows=table.rows[: sources.limit])
    return judged_rows(table.rows, table.note("pairs"), sources)


def check_labels(rows: Iterable[Row], source: str) -> None:
    """Raise ``InputError`` if no F1 is defined; call it before encoding."""
    if not any(row.label for row in rows):
        raise InputError(f"{source}: no pair has label 1, so F1 is not defined; give more rows")


def duplicate_rows(sources: Sources) -> Splits:
    """Read pairs labelled as duplicates or not: Quora's release, or a file."""
    rows, notes = labelled_rows(load_split(sources, "train", LABELLED), sources, LABELLED)
    for split in ("dev", "test"):
        if rows[split]:
            check_labels(rows[split], f"{split} {notes[split]}")
    return rows, notes


def class_rows(sources: Sources) -> tuple[dict[str, list[Row]], Notes, tuple[str, ...]]:
    """Read pairs with a class, SNLI's or a file's, and return the names of the classes too.

    The label of a row is the number of its class. NLI's are numbered as in ``NLI_LABELS``, others
    in sorted order.
    """
    table = load_split(sources, "train", NLI)
    classes = class_names(table)
    rows, notes = labelled_rows(table, sources, NLI)
    for split, some in rows.items():
        for row in some:
            if row.label not in classes:
                message = f"the class {one_line(row.label)} is not one of {', '.join(classes)}, as in the training rows"
                raise InputError(f"{split} {notes[split]}, line {row.line}: {message}")
        rows[split] = [replace(row, label=classes.index(row.label)) for row in some]
    return rows, notes, classes


def labelled_rows(train: Table, sources: Sources, form: Format) -> Splits:
    """Divide rows of classes or of duplicates. Only ``snli`` comes with dev and test."""
    if "snli" in map(str, sources.of("train", form)):
        sources = replace(sources, dev=sources.dev or "snli", test=sources.test or "snli")

    def load(split: str) -> tuple[list, str]:
        table = load_split(sources, split, form)
        return table.rows, table.note("pairs")

    return divided(train.rows, train.note("pairs"), sources, load)


# ------------------------------------------------------------------------------------ rows of texts


def nli_triplets(rows: Iterable[Row]) -> TextRows:
    """Make (premise, entailment, contradiction) of every premise that has both; neutral does not
    count.

    Each premise gives one triplet, with its first entailment and its first contradiction, in the
    order in which premises first appear. The first 100,000 rows of SNLI's training file give
    27,195.
    """
    premises: dict[str, dict[str, str]] = {}
    for row in rows:
        premise, hypothesis = row.texts
        premises.setdefault(premise, {}).setdefault(row.label, hypothesis)
    triplets: TextRows = []
    for premise, hypotheses in premises.items():
        if "entailment" in hypotheses and "contradiction" in hypotheses:
            triplets.append((premise, hypotheses["entailment"], hypotheses["contradiction"]))
    return triplets


def triplet_rows(
    sources: Sources, split: str = "train", only_triplets: bool = False
) -> tuple[TextRows, str]:
    """Read anchors, positives and negatives from a file, or build them from NLI rows; return the
    rows and a note.

    For losses with in-batch negatives a file may have pairs as well, or several negatives in a row.
    """
    opened = sources.of(split, PAIRS)
    # a class and two texts, and no anchor and positive
    if sources.columns is None and all(
        recognise(rows) in (NLI, LABELLED) and PAIRS.columns(rows.names) is None for rows in opened
    ):
        table = load_split(sources, split, NLI)
        triplets = nli_triplets(table.rows)
        if not triplets:
            message = f"none of {len(table.rows):,} rows has a premise with both entailment and contradiction"
            raise InputError(f"{table.name}: {message}")
        return triplets, f"{len(triplets):,} triplets of {table.note('NLI rows')}"
    if len(opened) > 1:
        raise InputError(f"{sources.named(split)}: only NLI rows are read from several files")
    table = load_split(sources, split, PAIRS)
    width = len(table.rows[0].texts)
    if only_triplets and width != 3:
        line = table.rows[0].line
        raise InputError(
            f"{table.name}, line {line}: {width} texts; anchor, positive and negative are needed"
        )
    what = {2: "pairs", 3: "triplets"}.get(width, f"rows of {width - 2} negatives")
    return [row.texts for row in table.rows], table.note(what)


def translation_rows(sources: Sources) -> tuple[TextRows, str]:
    """Read sentences, or sentences with translations, and a note; without ``--data`` the sentences
    of stsb.
    """
    rows, note = text_rows(sources) if holds_sentences(sources) else triplet_rows(sources)
    if len(rows[0]) > 2:
        raise InputError(
            f"{note}: rows of {len(rows[0])} texts; a teacher's vectors need a sentence and a "
            f"translation"
        )
    return rows, note


def text_rows(sources: Sources, alone: bool = False) -> tuple[TextRows, str]:
    """Read texts, and a note: a file of sentences, or unless ``alone`` each text of other rows
    once, such as stsb's.
    """
    if sources.data in (None, "stsb") and not alone:
        rows = [pair.texts for pair in load_scored_pairs("stsb", "train")]
    elif holds_sentences(sources) or alone:
        table = load_split(sources, "train", SENTENCES)
        return [row.texts for row in table.rows], table.note("sentences")
    else:
        rows, _ = triplet_rows(replace(sources, limit=None))
    distinct = list(dict.fromkeys(text for row in rows for text in row))[
        : sources.limit
    ]  # as they first occur
    return [(text,) for text in distinct], f"{sources.data or 'stsb'} ({len(distinct):,} sentences)"


def holds_sentences(sources: Sources) -> bool:
    """Whether the training rows are sentences: those of stsb, the default, or a file of them."""
    if sources.data in (None, "stsb"):
        return True
    if sources.columns:
        return "," not in sources.columns
    opened = sources.of("train", PAIRS)
    return len(opened) == 1 and recognise(opened[0]) is SENTENCES


def bare_rows(
    loss: str, data: str | None, dev: str | None, test: str | None, seed: int, quotes: bool = True
) -> tuple[dict[str, list[tuple]], Notes]:
    """Read what ``minisbert.train`` reads: rows for training with a loss, for dev and for test, and
    a note of each.

    A row is a tuple of texts, then a score in 0..1, or for "softmax" the number of a class.
    """
    sources = Sources(data=data, dev=dev, test=test, seed=seed, quotes=quotes)
    if loss == "cosine":
        rows, notes = scored_rows(sources)
    elif loss == "simcse":
        rows, notes = judged_rows(*text_rows(sources), sources, can_judge=False)
    elif loss == "softmax":
        table = load_split(sources, "train", NLI)
        classes = class_names(table)
        classified = [(*row.texts, classes.index(row.label)) for row in table.rows]
        rows, notes = judged_rows(classified, table.note("pairs"), sources, can_judge=False)
    else:
        rows, notes = judged_rows(*triplet_rows(sources, only_triplets=loss == "triplet"), sources)
    for split, some in rows.items():
        rows[split] = [
            (*row.texts, row.score / MAX_SCORE) if isinstance(row, Row) else row for row in some
        ]
    return rows, notes


# ------------------------------------------------------------------------------------ dev and test


def judged_rows(
    train: list, note: str, sources: Sources, can_judge: bool = True, searched: bool = False
) -> Splits:
    """Return training rows with those of dev and test, and a note of each.

    These are those of a file or STS-B, a share of the training rows that shares no text with the
    others, or none. By default they are STS-B's; but of data of one's own a tenth is dev, and none
    is test, if they ``can_judge``: nothing says what a sentence alone should be near to.
    ``searched``: the run has a search of its own to be judged by.
    """
    scored = isinstance(train[0], Row)

    def holds_pairs(split: str) -> bool:
        """Whether a split is a file of pairs or triplets without scores."""
        name = sources.named(split)
        if scored or name in (None, "none", *assets()) or held_out_share(name):
            return False
        rows = sources.of(split, PAIRS)[0]
        # a file with other names has the columns of the training rows
        return (
            bool(rows.columns and format_of(rows.names) in (None, SENTENCES))
            or recognise(rows) is PAIRS
        )

    def load(split: str) -> tuple[list, str]:
        if holds_pairs(split):
            return triplet_rows(sources, split)
        if not scored and sources.named(split) != "stsb":
            for rows in sources.of(split, SCORED):
                rows.columns = None  # they name texts alone
                # without a --scale they may have any: nothing is trained on them, and they are
                # compared by rank
                rows.scale = sources.scale if sources.scale != MAX_SCORE else None
        table = load_split(sources, split, SCORED)
        return table.rows, table.note("pairs")

    dev, test = str(HELD_OUT), "none"
    known = sources.data is None or any(name in assets() for name in str(sources.data).split(","))
    if known or searched or not can_judge:
        # pairs as dev need no STS-B as test
        dev, test = "stsb", "none" if holds_pairs("dev") else "stsb"
    sources = replace(sources, dev=sources.dev or dev, test=sources.test or test)
    for split in ("dev", "test"):
        if not can_judge and held_out_share(sources.named(split)):
            name = f"--{split} {sources.named(split)}"
            raise InputError(
                f"{name}: these rows have no scores; give a FILE of scored pairs, or stsb"
            )
    rows, notes = divided(train, note, sources, load, "pairs" if scored else "rows")
    for split in ("dev", "test"):
        if rows[split] and isinstance(rows[split][0], Row):
            check_scores(rows[split], f"{split} {notes[split]}")
    return rows, notes


def divided(
    train: list,
    note: str,
    sources: Sources,
    load: Callable[[str], tuple[list, str]],
    what: str = "pairs",
) -> Splits:
    """Return the rows of train, dev and test: what ``load`` returns, a share of the training rows,
    or none.
    """
    rows, notes = {"train": train}, {"train": note}
    shares: dict[str, float] = {}
    for split in ("dev", "test"):
        given = sources.named(split) or str(HELD_OUT)
        if given == "none":
            rows[split], notes[split] = [], "none"
        elif share := held_out_share(given):
            shares[split] = share
        else:
            rows[split], notes[split] = load(split)
    if shares:
        held_out, shared = hold_out(train, shares, sources.seed)
        rows |= held_out
        for split in shares:
            notes[split] = f"held out of it ({len(rows[split]):,} {what}{shared})"
    return rows, notes


def held_out_share(name: Source | None) -> float | None:
    """The share of the training rows that ``--dev 0.1`` names; None for the name of a file or of a
    data set.
    """
    try:
        share = float(str(name or ""))
    except ValueError:
        return None
    if os.path.exists(str(name)):
        return None
    if not 0 < share < 0.5:
        raise InputError(f"{name}: a share that is held out must be above 0 and below 0.5")
    return share


def hold_out(
    rows: Sequence[Any], shares: dict[str, float], seed: int
) -> tuple[dict[str, list], str]:
    """Divide rows into train and the splits that get a share of them, and share no text with it or
    with each other.

    A split gets at least 20 rows if there are 60 (80 for two splits). If rows hang together by
    texts that they share, so that this cannot be, only copies of a row stay on one side, and the
    note that is returned says so. A row is a ``Row`` or a tuple of texts; the same seed holds out
    the same. Raises ``InputError`` if a side would be empty.
    """
    least = max(1, min(20, len(rows) // (2 + len(shares))))
    wanted = {split: max(round(share * len(rows)), least) for split, share in shares.items()}
    copies: dict[frozenset[str], list[Any]] = {}
    for row in rows:
        copies.setdefault(texts_of(row), []).append(row)
    choices = (
        (linked_rows(rows), ""),
        ([*copies.values()], ", some of whose texts are in training too"),
    )
    for groups, shared in choices:
        # in random order each split takes groups until it has enough; a group larger than that
        # stays in training
        order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed)).tolist()
        parts: dict[str, list[Any]] = {split: [] for split in (*shares, "train")}
        for i in order:
            short = [
                split for split in shares if len(parts[split]) < wanted[split] >= len(groups[i])
            ]
            side = short[0] if short else "train"
            parts[side] += groups[i]
        if len(parts["train"]) >= len(rows) / 3 and all(
            len(parts[split]) >= wanted[split] for split in shares
        ):
            return parts, shared
    ways = " and ".join(f"--{split} FILE or none" for split in shares)
    raise InputError(
        f"{len(rows)} rows are too few to hold some out as {' and '.join(shares)}: give more, or "
        f"{ways}"
    )


def linked_rows(rows: Sequence[Any]) -> list[list[Any]]:
    """Group rows so that rows of two groups have no text in common.

    ``[("a", "b"), ("c", "d"), ("e", "b")]`` gives ``[[("a", "b"), ("e", "b")], [("c", "d")]]``.
    """
    parent: dict[str, str] = {}  # each text points towards one that stands for its group

    def root(text: str) -> str:
        while parent[text] != text:
            parent[text] = text = parent[parent[text]]
        return text

    for row in rows:
        first, *others = texts_of(row)
        parent.setdefault(first, first)
        for other in others:
            parent[root(parent.setdefault(other, other))] = root(first)
    groups: dict[str, list[Any]] = {}
    for row in rows:
        groups.setdefault(root(next(iter(texts_of(row)))), []).append(row)
    return list(groups.values())


def shared_rows(train: Iterable[Any], other: Iterable[Any]) -> int:
    """Count the rows of ``other`` whose first two texts share a row of ``train``, in either order.

    ``shared_rows([("a", "b")], [("b", "a", "c"), ("a", "c")]) = 1``.
    """
    trained = {texts_of(row, 2) for row in train}
    return sum(texts_of(row, 2) in trained for row in other)


def texts_of(row: Row | Sequence[str], most: int | None = None) -> frozenset[str]:
    """The first texts of a row, or all of them, without their order; a number is no text."""
    return frozenset(
        x for x in (row.texts if isinstance(row, Row) else row)[:most] if isinstance(x, str)
    )
