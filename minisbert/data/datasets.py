"""Find the rows of a training run: files or data sets by name, divided into training, dev and test rows.

Most functions return rows and notes by split; a note says where the rows come from and how many they are. The
published files of STS-B, SNLI, MultiNLI and Quora are read by the name of the data set; any other file has a header,
keys or ``--columns``.
"""

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
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
    RowReader,
    Table,
    class_names,
    format_of,
    note,
    read_file,
    recognise,
)
from minisbert.data.lines import Rows
from minisbert.system.assets import asset, assets, ensure

SPLITS = ("train", "dev", "test")
NLI_ARCHIVES = {"snli": "snli_1.0.zip", "multinli": "multinli_1.0.zip"}
HELD_OUT = 0.1  # share of the labelled rows that dev and test each get if they have no file

Notes = dict[str, str]  # by split
Source = str | Rows  # a data set or a file by name, or a file that was opened to see what it holds


# ----------------------------------------------------------------------------------- names and files


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where the rows of a run come from: names of data sets or files, by default those of the format.

    ``columns`` names those to read, ``limit`` takes the first training rows, ``seed`` chooses rows that are held out,
    ``quotes`` says that quotation marks enclose cells. A file is opened once, so that a pipe can be read.
    """

    data: Source | None = None
    dev: Source | None = None
    test: Source | None = None
    columns: str | None = None
    limit: int | None = None
    seed: int = 42
    quotes: bool = True
    opened: dict[str, list[Source]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if "" in (self.data, self.dev, self.test):  # of a shell's variable that is not set
            raise InputError("--data, --dev or --test is empty: name a file or a data set")

    def named(self, split: str) -> Source | None:
        return {"train": self.data, "dev": self.dev, "test": self.test}[split]

    def of(self, split: str, form: Format) -> list[Source]:
        """Return the sources of a split, data sets by name or files; NLI rows may have several, as in ``A,B``.

        Raises ``InputError`` for a data set of another format.
        """
        name = self.named(split) or form.dataset
        if name is None:
            raise InputError(f"--data FILE is needed: {form.needs}")
        names, fitting = [name], [form.dataset]
        if form.dataset == "snli":
            fitting = list(NLI_ARCHIVES)
            if isinstance(name, str) and not os.path.exists(name):  # a file with a comma in its name is one
                names = [one for one in name.split(",") if one]
        for one in names:
            if one in assets() and one not in fitting:
                needed = f"{form.dataset} or a file of {form.needs}" if form.dataset else f"a file of {form.needs}"
                raise InputError(f"{one} has no rows of the kind that is needed: give {needed}")
        if split not in self.opened:
            self.opened[split] = [
                one if one in fitting or isinstance(one, Rows) else Rows(one, split, self.quotes) for one in names
            ]
        return self.opened[split]

    def of_split(self, split: str) -> "Sources":
        """The same with all rows of a split as training rows."""
        return replace(self, data=self.named(split), limit=None, opened={"train": self.of(split, PAIRS)})


# ------------------------------------------------------------------------------------- scored pairs


def load_scored_pairs(data: str | Path, split: str = "", scale: float | None = MAX_SCORE) -> list[Row]:
    """Load ``stsb`` (fetched if it is missing), with ``split`` train, dev or test, or the file of that path.

    A file's scores are 0 to ``scale``; those of the rows are always 0 to 5. With None they are what the file has.
    """
    return scored_table(data, split, scale).rows


def scored_table(data: str | Path | Rows, split: str, scale: float | None, columns: str | None = None) -> Table:
    if data == "stsb":  # genre, file, year, id, score, sentence1, sentence2, and maybe two licences
        return read_file(Rows(ensure("stsb") / f"sts-{split}.csv", quotes=False), SCORED, columns="5,6,7")
    rows = Rows.of(data, split)
    if columns is None and format_of(rows.names) is NLI:  # whose numbers are no similarities
        raise InputError(f"{rows} holds classes; needed are {SCORED.needs}, or labels of 0 and 1")
    return read_file(rows, SCORED, scale=scale, columns=columns)


def check_scores(rows: Sequence[Row], source: str) -> None:
    """Raise ``InputError`` if no correlation with the scores is defined; call it before encoding."""
    if len({row.score for row in rows}) < 2:
        raise InputError(f"{source}: a correlation needs at least two pairs with different scores")


def scored_rows(
    sources: Sources, scale: float = MAX_SCORE, splits: Collection[str] = SPLITS
) -> tuple[dict[str, list[Row]], Notes]:
    """Read the scored pairs of ``splits``, 0 to ``scale`` in files and 0 to 5 here; stsb has those without a file.

    Scores that no row is trained on, as without ``train``, are only compared by rank: their scale may be any.
    """
    rows, notes = {}, {}
    columns, read_scale = sources.columns, scale
    if "train" not in splits:  # the columns are those of training rows in another format
        columns, read_scale = None, None
    for split in splits:
        name = sources.of(split, SCORED)[0]
        table = scored_table(name, split, read_scale, columns)
        rows[split], notes[split] = table.rows, table.note(name, "pairs")
        if split != "train":
            check_scores(table.rows, str(name))
            most = max(abs(row.score) for row in table.rows)
            if most > MAX_SCORE:  # such as 0 to 100
                rows[split] = [replace(row, label=row.score * MAX_SCORE / most) for row in table.rows]
            continue
        # Scores of 0 to 1 read as 0 to 5 would all be low, and training would go on without a word.
        if scale > 1 and max(row.score for row in table.rows) <= MAX_SCORE / scale:
            raise InputError(
                f"{name}: no score is above 1, but the scale is 0 to {scale:g}: give --scale 1 "
                "(labels 0 and 1 alone are for --objective binary)"
            )
        rows[split] = table.rows[: sources.limit]
        notes[split] = table._replace(rows=rows[split]).note(name, "pairs")
    return rows, notes


# --------------------------------------------------------------------------------- labels and classes


def load_several(data: Sequence[Source], form: Format, split: str, limit: int | None, columns: str | None) -> Table:
    """Read the rows of each name or file in turn; ``limit`` is for all of them together."""
    found = Table([], 0, [])
    for name in data:
        left = None if limit is None else limit - len(found.rows) - found.skipped
        if left != 0:
            more = load_labelled(name, form, split, left, columns)
            found = Table(found.rows + more.rows, found.skipped + more.skipped, found.unread + more.unread)
    return found._replace(unread=list(dict.fromkeys(found.unread)))


def load_labelled(
    data: str | Path | Rows, form: Format, split: str = "train", limit: int | None = None, columns: str | None = None
) -> Table:
    """Load ``snli``, ``multinli`` or ``quora``, fetched if missing, or a file.

    From a .zip of SNLI or MultiNLI ``split`` selects train, dev, test, dev_matched, ... (of MultiNLI dev is
    dev_matched, test is dev_mismatched). The label of an NLI row is the name of its class.
    """
    if isinstance(data, str) and data in NLI_ARCHIVES:
        return read_file(ensure(data) / NLI_ARCHIVES[data], form, limit, split)._replace(unread=[])
    if data == "quora":  # after some closing quotation marks there is more text
        path = ensure("quora") / asset("quora").files[0].name
        return read_file(Rows(path, strict=False), form, limit)._replace(unread=[])
    return read_file(data, form, limit, split, columns=columns)


def check_labels(rows: Iterable[Row], source: str) -> None:
    """Raise ``InputError`` if no F1 is defined; call it before encoding."""
    if not any(row.label for row in rows):
        raise InputError(f"{source}: no pair has label 1, so F1 is not defined; give more rows")


def nli_triplets(rows: Iterable[Row]) -> list[tuple[str, ...]]:
    """Make (premise, entailment, contradiction) of every premise that has both; neutral does not count.

    Each premise gives one triplet, with its first entailment and its first contradiction, in the order in which
    premises first appear. The first 100,000 rows of SNLI's training file give 27,195.
    """
    premises: dict[str, dict[str, str]] = {}
    for row in rows:
        premise, hypothesis = row.texts
        premises.setdefault(premise, {}).setdefault(row.label, hypothesis)
    triplets: list[tuple[str, ...]] = []
    for premise, hypotheses in premises.items():
        if "entailment" in hypotheses and "contradiction" in hypotheses:
            triplets.append((premise, hypotheses["entailment"], hypotheses["contradiction"]))
    return triplets


def duplicate_rows(sources: Sources) -> tuple[dict[str, list[Row]], Notes]:
    """Read pairs labelled as duplicates or not: Quora's release, or a file."""
    rows, notes = labelled_rows(sources, LABELLED)
    for split in ("dev", "test"):
        if rows[split]:
            check_labels(rows[split], f"{split} {notes[split]}")
    return rows, notes


def class_rows(sources: Sources) -> tuple[dict[str, list[Row]], Notes, tuple[str, ...]]:
    """Read pairs with a class, SNLI's or a file's, and return the names of the classes too.

    The label of a row is the number of its class. NLI's are numbered as in ``NLI_LABELS``, others in sorted order.
    """
    rows, notes = labelled_rows(sources, NLI)
    naming = [*rows["train"]]  # the rows that name the classes: with what is held out of training, or SNLI's splits
    for split in ("dev", "test"):
        given = sources.named(split)
        if given is None or held_out_share(given):
            naming += rows[split]
    try:
        classes = class_names(row.label for row in naming)
    except ValueError as error:
        raise InputError(f"{notes['train']}: {error}") from error
    if len(classes) < 2:
        raise InputError(f"{notes['train']}: all rows have the class {one_line(classes[0])}")
    numbers = {name: i for i, name in enumerate(classes)}
    for split, some in rows.items():
        for row in some:
            if row.label not in numbers:
                message = f"the class {one_line(row.label)} is not one of {', '.join(classes)}, as in the training rows"
                raise InputError(f"{split} {notes[split]}, line {row.line}: {message}")
        rows[split] = [replace(row, label=numbers[row.label]) for row in some]
    return rows, notes, classes


def labelled_rows(sources: Sources, form: Format) -> tuple[dict[str, list[Row]], Notes]:
    """Read the rows of classes or of duplicates. Only ``snli`` comes with splits.

    Otherwise a split without a file gets a share of the training rows, the same for the same seed.
    """
    rows, notes = {}, {}
    for split in SPLITS:
        given = sources.named(split)
        if given == "none" or held_out_share(given):
            continue
        if split != "train" and given is None and "snli" not in sources.of("train", form):
            continue
        limit = sources.limit if split == "train" else None
        table = load_several(sources.of(split, form), form, split, limit, sources.columns)
        rows[split], notes[split] = table.rows, table.note(",".join(map(str, sources.of(split, form))), "pairs")
    hold_out_missing(rows, notes, sources, "pairs")
    return rows, notes


# ------------------------------------------------------------------------------------ rows of texts


def triplet_rows(sources: Sources, only_triplets: bool = False) -> tuple[list[tuple[str, ...]], str]:
    """Read anchors, positives and negatives from a file, or build them from NLI rows; return the rows and a note.

    For losses with in-batch negatives a file may have pairs as well, or several negatives in a row.
    """
    opened = sources.of("train", PAIRS)
    data = ",".join(map(str, opened))
    files = [one for one in opened if isinstance(one, Rows)]
    # a class and two texts, and no anchor and positive
    if sources.columns is None and all(
        recognise(rows) in (NLI, LABELLED) and PAIRS.columns(rows.names) is None for rows in files
    ):
        labelled = load_several(opened, NLI, "train", sources.limit, None)
        triplets = nli_triplets(labelled.rows)
        if not triplets:
            message = f"none of {len(labelled.rows):,} rows has a premise with both entailment and contradiction"
            raise InputError(f"{data}: {message}")
        counts = f"{len(labelled.rows):,} NLI rows; {labelled.skipped:,} had no gold label"
        unread = "".join(f"; not read: {name}" for name in [", ".join(labelled.unread)] if name)
        return triplets, f"{data} ({len(triplets):,} triplets of {counts}{unread})"
    if len(opened) > 1:
        raise InputError(f"{data}: only NLI rows are read from several files")
    table = read_file(opened[0], PAIRS, sources.limit, columns=sources.columns)
    width = len(table.rows[0].texts)
    if only_triplets and width != 3:
        line = table.rows[0].line
        raise InputError(f"{data}, line {line}: {width} texts; anchor, positive and negative are needed")
    what = {2: "pairs", 3: "triplets"}.get(width, f"rows of {width - 2} negatives")
    return [row.texts for row in table.rows], table.note(data, what)


def translation_rows(sources: Sources) -> tuple[list[tuple[str, ...]], str]:
    """Read sentences, or sentences with translations, and a note; without ``--data`` the sentences of stsb."""
    if sources.data in (None, "stsb") or holds_sentences(sources):
        texts, about = plain_texts(sources)
        return [(text,) for text in texts], about
    rows, about = triplet_rows(sources)
    if len(rows[0]) != 2:
        raise InputError(
            f"{about}: rows of {len(rows[0])} texts; a teacher's vectors need a sentence and a translation"
        )
    return rows, about.replace(" pairs", " translations", 1)


def plain_texts(sources: Sources) -> tuple[list[str], str]:
    """Read texts to learn a language from, and a note: a file of sentences, or each text of a data set's rows once."""
    data = sources.data or "stsb"
    if data == "stsb":
        rows = [pair.texts for pair in load_scored_pairs("stsb", "train")]
    elif holds_sentences(sources):
        return sentence_rows(sources)
    else:
        rows, _ = triplet_rows(replace(sources, limit=None))
    distinct = dict.fromkeys(text for row in rows for text in row)  # in the order in which they first occur
    texts = list(distinct)[: sources.limit]
    return texts, note(data, len(texts), "sentences")


def holds_sentences(sources: Sources) -> bool:
    """Whether the training rows are a file of sentences."""
    if sources.columns:
        return "," not in sources.columns
    data = sources.of("train", PAIRS)
    return isinstance(data[0], Rows) and len(data) == 1 and recognise(data[0]) is SENTENCES


def sentence_rows(sources: Sources) -> tuple[list[str], str]:
    """Read plain training sentences and a note."""
    (data,) = sources.of("train", SENTENCES)
    reader = RowReader(data, SENTENCES, columns=sources.columns)
    if sources.columns is None and recognise(data) is not SENTENCES:
        raise reader.rows.unknown_names(SENTENCES.needs)
    lines = [row.texts[0] for row in islice(reader, sources.limit)]
    texts = [text for text in lines if text]
    if not texts:
        raise InputError(f"{data} holds no usable rows")
    return texts, note(data, len(texts), "sentences", len(lines) - len(texts), reader.unread)


def bare_rows(
    loss: str, data: str | None, dev: str | None, test: str | None, seed: int, quotes: bool = True
) -> tuple[dict[str, list[tuple]], Notes]:
    """Read what ``minisbert.train`` reads: rows for training with a loss, for dev and for test, and a note of each.

    A row is a tuple of texts, then a score in 0..1, or for "softmax" the number of a class.
    """
    sources = Sources(data=data, dev=dev, test=test, seed=seed, quotes=quotes)
    rows: dict[str, list] = {}
    notes: Notes = {}
    if loss == "simcse":
        texts, notes["train"] = plain_texts(sources)
        rows["train"] = [(text,) for text in texts]
    elif loss in ("ranking", "triplet"):
        rows["train"], notes["train"] = triplet_rows(sources, only_triplets=loss == "triplet")
    elif loss == "softmax":
        table = load_several(sources.of("train", NLI), NLI, "train", None, None)
        classes, notes["train"] = class_names(row.label for row in table.rows), table.note(data or "snli", "pairs")
        rows["train"] = [(*row.texts, classes.index(row.label)) for row in table.rows]
    else:
        rows, notes = scored_rows(sources, splits=["train"])
    judged_rows(rows, notes, sources, can_judge=loss not in ("softmax", "simcse"))
    for split, some in rows.items():
        rows[split] = [(*row.texts, row.score / MAX_SCORE) if isinstance(row, Row) else row for row in some]
    return rows, notes


def judged_rows(
    rows: dict[str, list],
    notes: Notes,
    sources: Sources,
    scale: float = MAX_SCORE,
    can_judge: bool = True,
    searched: bool = False,
) -> None:
    """Add the rows of dev and test to ``rows``, and a note of each.

    They are those of a file or STS-B, a share of the training rows that shares no text with the others, or none. By
    default they are STS-B's; but of data of one's own a tenth is dev, and none is test, if they ``can_judge``: nothing
    says what a sentence alone should be near to. ``searched``: the run has a search of its own to be judged by.
    """
    scored = isinstance(rows["train"][0], Row)
    own = sources.data is not None and not any(name in assets() for name in str(sources.data).split(","))
    for split, usual in (("dev", "0.1"), ("test", "none")):
        if not own or not can_judge or searched:
            # pairs as dev need no STS-B as test
            usual = "none" if isinstance(next(iter(rows.get("dev", ())), None), tuple) else "stsb"
        name = sources.named(split) or usual
        share = held_out_share(name)
        sources = replace(sources, dev=name) if split == "dev" else replace(sources, test=name)
        if share and not can_judge:
            raise InputError(f"--{split} {name}: these rows have no scores; give a FILE of scored pairs, or stsb")
        if share or name == "none":
            continue
        is_file = not scored and name not in assets()
        if is_file and recognise(sources.of(split, PAIRS)[0]) is PAIRS:  # pairs or triplets without scores
            rows[split], notes[split] = triplet_rows(sources.of_split(split))
        else:
            read, read_notes = scored_rows(sources, scale, [split])
            rows[split], notes[split] = read[split], read_notes[split]
    hold_out_missing(rows, notes, sources, "pairs" if scored else "rows")
    for split in ("dev", "test"):
        if scored and rows[split]:
            check_scores(rows[split], f"{split} {notes[split]}")


def held_out_share(name: Source | None) -> float | None:
    """The share of the training rows that ``--dev 0.1`` names; None for the name of a file or of a data set."""
    try:
        share = float(str(name or ""))
    except ValueError:
        return None
    if os.path.exists(str(name)):
        return None
    if not 0 < share < 0.5:
        raise InputError(f"{name}: a share that is held out must be above 0 and below 0.5")
    return share


# ------------------------------------------------------------------------------ splits, and what they share


def hold_out(
    rows: Sequence[Any], splits: Sequence[str], seed: int, share: float = HELD_OUT
) -> tuple[list[Any], dict[str, list[Any]], str]:
    """Hold out rows for each split that share no text with the rows left for training, or with another split.

    Returns the rows for training, those of each split, and a note. A split gets ``share`` of all rows, and at least 20
    if there are 60 (80 for two splits). If rows hang together by texts that they share, so that this cannot be, only
    copies of a row stay on one side, and the note says so. A row is a ``Row`` or a tuple of texts; the same seed holds
    out the same. Raises ``ValueError`` if a side would be empty.
    """
    wanted = max(round(share * len(rows)), min(20, len(rows) // (2 + len(splits))), 1)
    copies: dict[frozenset[str], list[Any]] = {}
    for row in rows:
        copies.setdefault(texts_of(row), []).append(row)
    choices = (linked_rows(rows), ""), ([*copies.values()], ", some of whose texts are in training too")
    for groups, shared in choices:
        # in random order each split takes groups until it has enough; a group larger than that stays in training
        order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed)).tolist()
        held_out: dict[str, list[Any]] = {split: [] for split in splits}
        training: list[Any] = []
        for i in order:
            short = [split for split in splits if len(held_out[split]) < wanted and len(groups[i]) <= wanted]
            side = held_out[short[0]] if short else training
            side += groups[i]
        if len(training) >= len(rows) / 3 and all(len(held_out[split]) >= wanted for split in splits):
            return training, held_out, shared
    raise ValueError(f"{len(rows)} rows are too few to hold some out as {' and '.join(splits)}")


def hold_out_missing(rows: dict[str, list], notes: Notes, sources: Sources, what: str) -> None:
    """Give dev and test, where they have no rows yet, the share of the training rows that ``sources`` says, or none."""
    shares: dict[float, list[str]] = {}
    for split, given in (("dev", sources.dev), ("test", sources.test)):
        if split not in rows and given == "none":
            rows[split], notes[split] = [], "none"
        elif split not in rows:
            shares.setdefault(held_out_share(given) or HELD_OUT, []).append(split)
    for share, splits in shares.items():
        try:
            rows["train"], held_out, shared = hold_out(rows["train"], splits, sources.seed, share)
        except ValueError as error:
            ways = " and ".join(f"--{split} FILE or none" for split in splits)
            raise InputError(f"{notes['train']}: {error}: give more, or {ways}") from error
        for split in splits:
            rows[split], notes[split] = held_out[split], note("held out of it", len(held_out[split]), f"{what}{shared}")


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

    A row is a ``Row`` or a tuple of texts:
    ``shared_rows([("a", "b")], [("b", "a", "c"), ("a", "c")]) = 1``.
    """
    trained = {texts_of(row, 2) for row in train}
    return sum(texts_of(row, 2) in trained for row in other)


def texts_of(row: Row | Sequence[str], most: int | None = None) -> frozenset[str]:
    """The first texts of a row, or all of them, without their order; a number is no text."""
    return frozenset(x for x in (row.texts if isinstance(row, Row) else row)[:most] if isinstance(x, str))
