"""The rows that a training run needs: its files or data sets by name, split into training, dev and test rows.

Most functions return rows and notes by split; a note says where the rows come from and how many they are.
"""

import os
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from minisbert.core import InputError, one_line
from minisbert.data.formats import LABELLED, MULTILABEL, NLI, PAIRS, SCORED, SENTENCES, Format, Row, class_names
from minisbert.data.lines import read_texts
from minisbert.data.reader import RowReader, recognise
from minisbert.models.similarity import MAX_SCORE
from minisbert.system.assets import asset, assets, ensure

HELD_OUT = 0.1  # share of the labelled rows that dev and test each get if they have no file


def texts_of(row: Row | tuple[str, ...]) -> frozenset[str]:
    """What copies of a row have in common: its texts in any order."""
    return frozenset(row.texts if isinstance(row, Row) else row)


def hold_out(
    rows: Sequence[Any], splits: Sequence[str], seed: int, key: Callable[[Any], Hashable] = texts_of
) -> tuple[Sequence[Any], dict[str, list[Any]]]:
    """The rows without a tenth for each split, and these tenths; ``ValueError`` if one would be empty."""
    if not splits:
        return rows, {}
    rows, held_out = split_rows(rows, 1 - HELD_OUT * len(splits), seed, key)
    if len(splits) == 1:
        return rows, {splits[0]: held_out}
    first, second = split_rows(held_out, 0.5, seed, key)
    return rows, {splits[0]: first, splits[1]: second}


def split_rows(
    rows: Sequence[Any], share: float, seed: int, key: Callable[[Any], Hashable] = texts_of
) -> tuple[list[Any], list[Any]]:
    """Rows shuffled and split in two: about ``round(share * N)`` rows and the rest, the same for the same seed.

    Rows with the same ``key`` are on the same side. Raises ``ValueError`` if one side would be empty.
    """
    groups: dict[Hashable, list[Any]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    blocks = list(groups.values())
    cut = round(share * len(rows))
    first: list[Any] = []
    rest: list[Any] = []
    for i in torch.randperm(len(blocks), generator=torch.Generator().manual_seed(seed)).tolist():
        side = first if len(first) < cut else rest
        side += blocks[i]
    if not first or not rest:
        raise ValueError(f"a share of {share} of {len(rows)} rows leaves one side empty")
    return first, rest


def shared_rows(train: Iterable[Any], other: Iterable[Any]) -> int:
    """The number of rows of ``other`` whose first two texts share a row of ``train``, in either order.

    A row is a ``Row`` or a tuple of texts:
    ``shared_rows([("a", "b")], [("b", "a", "c"), ("a", "c")]) = 1``.
    """
    known = {pair_of(row) for row in train}
    return sum(pair_of(row) in known for row in other)


def pair_of(row: Row | tuple[str, ...]) -> frozenset[str]:
    """The first two texts of a row in any order."""
    return frozenset((row.texts if isinstance(row, Row) else row)[:2])


SPLITS = ("train", "dev", "test")
NLI_ARCHIVES = {"snli": "snli_1.0.zip", "multinli": "multinli_1.0.zip"}


class Table(NamedTuple):
    """The rows of a file, how many it has that are skipped, and its columns that are not read."""

    rows: list[Row]
    skipped: int
    unread: list[str]

    def note(self, name: str, what: str) -> str:
        """``pairs.csv (20 pairs, 1 skipped; not read: genre)``."""
        return note(name, len(self.rows), what, self.skipped, self.unread)


def note(name: str, count: int, what: str, skipped: int = 0, unread: Sequence[str] = ()) -> str:
    text = f"{name} ({count:,} {what}"
    if skipped:
        text += f", {skipped:,} skipped"
    if unread:
        text += f"; not read: {', '.join(unread)}"
    return text + ")"


def read_file(
    path: str | Path,
    form: Format,
    limit: int | None = None,
    split: str = "",
    scale: float | None = MAX_SCORE,
    columns: str | None = None,
) -> Table:
    """The rows of a file without those that training skips, an empty text or no gold label; ``limit`` counts both.

    If JSON lists negatives, and not as many in each row, all rows get as many as the one with the fewest has.
    """
    reader = RowReader(path, form, scale, columns, split)
    rows = list(islice(reader, limit))
    usable = [row for row in rows if not reader.skips(row)]
    if not usable:
        raise InputError(f"{path} holds no usable rows" + (f" ({len(rows)} were skipped)" if rows else ""))
    fewest = min(len(row.texts) for row in usable)
    if form is PAIRS and any(len(row.texts) > fewest for row in usable):
        usable = [Row(row.texts[:fewest], None, row.line) for row in usable]
        reader.unread.append(f"negatives beyond {fewest - 2} of a row")
    return Table(usable, len(rows) - len(usable), reader.unread)


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where the rows of a run come from: names of data sets or files, by default those of the format.

    ``columns`` names those to read, ``limit`` takes the first training rows, ``seed`` chooses rows that are held out.
    """

    data: str | None = None
    dev: str | None = None
    test: str | None = None
    columns: str | None = None
    limit: int | None = None
    seed: int = 42

    def of_file(self, data: str) -> "Sources":
        """The same for another file of which all rows are read."""
        return replace(self, data=data, limit=None)

    def named(self) -> dict[str, str | None]:
        return {"train": self.data, "dev": self.dev, "test": self.test}


# ------------------------------------------------------------------------------------- scored pairs


def load_scored_pairs(data: str, split: str = "", scale: float | None = MAX_SCORE) -> list[Row]:
    """``data`` is ``stsb`` (fetched if it is missing), with ``split`` train, dev or test, or the path of a file.

    A file's scores are 0 to ``scale``; those of the rows are always 0 to 5. With None they are what the file has.
    """
    return scored_table(data, split, scale).rows


def scored_table(data: str, split: str, scale: float | None, columns: str | None = None) -> Table:
    if data == "stsb":
        return read_file(ensure("stsb") / f"sts-{split}.csv", SCORED)
    return read_file(data, SCORED, scale=scale, columns=columns)


def check_scores(rows: Sequence[Row], source: str) -> None:
    """Raise ``InputError`` if no correlation with the scores is defined; call it before encoding."""
    if len({row.score for row in rows}) < 2:
        raise InputError(f"{source}: a correlation needs at least two pairs with different scores")


# --------------------------------------------------------------------------------- labels and classes


def load_several(data: str, form: Format, split: str, limit: int | None, columns: str | None = None) -> Table:
    """The rows of each name in ``data``, one after the other; ``limit`` is for all of them together."""
    rows: list[Row] = []
    skipped, unread = 0, []
    for name in several(data):
        left = None if limit is None else limit - len(rows) - skipped
        if left == 0:
            break
        table = load_labelled(name, form, split, left, columns)
        rows += table.rows
        skipped += table.skipped
        unread += [column for column in table.unread if column not in unread]
    return Table(rows, skipped, unread)


def load_labelled(
    data: str | Path, form: Format, split: str = "train", limit: int | None = None, columns: str | None = None
) -> Table:
    """The rows of ``snli``, ``multinli`` or ``quora``, fetched if missing, or of a file.

    From a .zip of SNLI or MultiNLI ``split`` selects train, dev, test, dev_matched, ... (of MultiNLI dev is
    dev_matched, test is dev_mismatched). The label of an NLI row is the name of its class.
    """
    name = str(data)
    if name in NLI_ARCHIVES:
        return read_file(ensure(name) / NLI_ARCHIVES[name], form, limit, split)
    if name == "quora":
        table = read_file(find_quora(), form, limit)
        return table._replace(unread=[])
    return read_file(data, form, limit, split, columns=columns)


def find_quora() -> Path:
    """Quora's release; ``InputError`` names its address and the alternative."""
    try:
        return ensure("quora") / asset("quora").files[0].name
    except InputError as error:
        address = asset("quora").sources[0]["url"]
        raise InputError(f"{error} (from {address}; or --data FILE of {LABELLED.needs})") from error


def check_labels(rows: Iterable[Row], source: str) -> None:
    """Raise ``InputError`` if no F1 is defined; call it before encoding."""
    if not any(row.label for row in rows):
        raise InputError(f"{source}: no pair has label 1, so F1 is not defined; give more rows")


def nli_triplets(rows: Iterable[Row]) -> list[tuple[str, ...]]:
    """(premise, entailment, contradiction) for every premise that has both; neutral does not count.

    Each premise gives one triplet, with its first entailment and its first contradiction, in the order in which
    premises first appear. The first 100,000 rows of SNLI's training file give 27,195.
    """
    premises: dict[str, dict[str, str]] = {}
    for row in rows:
        premise, hypothesis = row.texts
        premises.setdefault(premise, {}).setdefault(row.label, hypothesis)
    triplets = []
    for premise, hypotheses in premises.items():
        if "entailment" in hypotheses and "contradiction" in hypotheses:
            triplets.append((premise, hypotheses["entailment"], hypotheses["contradiction"]))
    return triplets


# ----------------------------------------------------------------------------------- names and files


def source_for(name: str | None, form: Format) -> str:
    """``name``, or the format's data set if it is None; NLI rows may have several names, as in ``A,B``.

    Raises ``InputError`` for a data set of another format.
    """
    if name is None and form.dataset is None:
        raise InputError(f"--data FILE is needed: {form.needs}")
    if name is None or name == form.dataset:
        return form.dataset
    if form.dataset == "snli":
        wrong = [one for one in several(name) if one in assets() and one not in NLI_ARCHIVES]
    else:
        wrong = [name] if name in assets() else []
    if wrong:
        needed = f"{form.dataset} or a file" if form.dataset else "a file"
        raise InputError(f"{wrong[0]} has no rows of the kind that is needed: give {needed} of {form.needs}")
    return name


def several(data: str) -> list[str]:
    """``A,B`` to its names; a file with a comma in its own name is one."""
    if os.path.exists(data):
        return [data]
    return [name for name in data.split(",") if name]


Notes = dict[str, str]


def scored_rows(
    sources: Sources, scale: float = MAX_SCORE, splits: Collection[str] = SPLITS
) -> tuple[dict[str, list[Row]], Notes]:
    """Scored pairs of ``splits``, 0 to ``scale`` in files and 0 to 5 here; a split without a file comes from stsb.

    Scores that no row is trained on, as without ``train``, are only compared by rank: their scale may be any.
    """
    rows, notes = {}, {}
    for split in splits:
        name = source_for(sources.named()[split], SCORED)
        columns = sources.columns if "train" in splits else None  # otherwise they are those of another format
        table = scored_table(name, split, scale if "train" in splits else None, columns)
        rows[split], notes[split] = table.rows, table.note(name, "pairs")
        if split != "train":
            check_scores(table.rows, name)
            rows[split] = on_any_scale(table.rows)
            continue
        if scale > 1 and max(row.score for row in table.rows) <= MAX_SCORE / scale:
            raise InputError(
                f"{name}: no score is above 1, but the scale is 0 to {scale:g}: give --scale 1 "
                "(labels 0 and 1 alone are for --objective binary or contrastive)"
            )
        rows[split] = table.rows[: sources.limit]
        notes[split] = table._replace(rows=rows[split]).note(name, "pairs")
    return rows, notes


def on_any_scale(rows: list[Row]) -> list[Row]:
    """The rows with scores of at most 5, of which those close to 5 mean the same: 0 to 100 is divided by 20."""
    most = max(abs(row.score) for row in rows)
    if most <= MAX_SCORE:
        return rows
    return [replace(row, label=row.score * MAX_SCORE / most) for row in rows]


# --------------------------------------------------------------------------------- labels and classes


def duplicate_rows(sources: Sources) -> tuple[dict[str, list[Row]], Notes]:
    """Duplicate or not: Quora's release, or a file."""
    rows, notes = labelled_rows(sources, LABELLED)
    for split in ("dev", "test"):
        check_labels(rows[split], f"{split} {notes[split]}")
    return rows, notes


def class_rows(sources: Sources) -> tuple[dict[str, list[Row]], Notes, tuple[str, ...]]:
    """Entailment, contradiction or neutral: SNLI, or files; or classes of one's own. Also the names of the classes.

    The label of a row is the number of its class. NLI's are numbered as in ``NLI_LABELS``, others in sorted order.
    """
    rows, notes = labelled_rows(sources, NLI)
    try:
        classes = class_names(row.label for row in naming_rows(rows, sources))
    except ValueError as error:
        raise InputError(f"{notes['train']}: {error}") from error
    if len(classes) < 2:
        raise InputError(f"{notes['train']}: all rows have the class {one_line(classes[0])}")
    numbers = {name: i for i, name in enumerate(classes)}
    for split, some in rows.items():
        for row in some:
            check_known(row, [row.label], classes, f"{split} {notes[split]}")
        rows[split] = [replace(row, label=numbers[row.label]) for row in some]
    return rows, notes, classes


def multilabel_rows(sources: Sources) -> tuple[dict[str, list[Row]], Notes, tuple[str, ...]]:
    """Pairs of which each has any number of labels. A row's label is a 1 or 0 for each of the names, also given."""
    rows, notes = labelled_rows(sources, MULTILABEL)
    names = {name for row in naming_rows(rows, sources) for name in row.label}
    if len(names) < 2:
        raise InputError(f"{notes['train']}: two labels or more are needed, not {one_line(sorted(names))}")
    order = int if all(map(str.isdecimal, names)) else str
    labels = tuple(sorted(names, key=order))
    for split, some in rows.items():
        if split != "train":
            check_labels(some, f"{split} {notes[split]}")
        for row in some:
            check_known(row, row.label, labels, f"{split} {notes[split]}")
        rows[split] = [replace(row, label=[int(name in row.label) for name in labels]) for row in some]
    return rows, notes, labels


def naming_rows(rows: dict[str, list[Row]], sources: Sources) -> list[Row]:
    """The rows that say which classes or labels there are: of training, and what is held out of them, or SNLI's."""
    named = [*rows["train"]]
    for split in ("dev", "test"):
        if sources.named()[split] is None:
            named += rows[split]
    return named


def check_known(row: Row, found: Iterable[str], known: Sequence[str], source: str) -> None:
    for name in found:
        if name not in known:
            message = f"the class {one_line(name)} is not one of {', '.join(known)}, as in the training rows"
            raise InputError(f"{source}, line {row.line}: {message}")


def labelled_rows(sources: Sources, form: Format) -> tuple[dict[str, list[Row]], Notes]:
    """The rows of classes or of duplicates. Only ``snli`` comes with splits.

    Otherwise a split without a file gets a share of the training rows, the same for the same seed.
    """
    names = {"train": source_for(sources.data, form)}
    for split, given in (("dev", sources.dev), ("test", sources.test)):
        if given or "snli" in several(names["train"]):
            names[split] = source_for(given, form)
    rows, notes = {}, {}
    for split, name in names.items():
        limit = sources.limit if split == "train" else None
        table = load_several(name, form, split, limit, sources.columns)
        rows[split], notes[split] = table.rows, table.note(name, "pairs")
    missing = [split for split in ("dev", "test") if split not in rows]
    try:
        rows["train"], held_out = hold_out(rows["train"], missing, sources.seed)
    except ValueError as error:
        raise InputError(
            f"{names['train']}: {len(rows['train'])} pairs are too few to hold some out as {' and '.join(missing)}: "
            "give more, or --dev FILE and --test FILE"
        ) from error
    for split in missing:
        notes[split] = note("held out of it", len(held_out[split]), "pairs")
    return rows | held_out, notes


# ------------------------------------------------------------------------------------ rows of texts


def triplet_rows(sources: Sources, only_triplets: bool = False) -> tuple[list[tuple[str, ...]], str]:
    """Training rows of an anchor, a positive and negatives, read from a file or built from NLI rows, and a note.

    For losses with in-batch negatives a file may have pairs as well, or several negatives in a row.
    """
    data = source_for(sources.data, PAIRS)
    if sources.columns is None and all(holds_nli(name) for name in several(data)):
        labelled = load_several(data, NLI, "train", sources.limit)
        rows = nli_triplets(labelled.rows)
        counts = f"{len(labelled.rows):,} NLI rows; {labelled.skipped:,} had no gold label"
        if not rows:
            message = f"none of {len(labelled.rows):,} rows has a premise with both entailment and contradiction"
            raise InputError(f"{data}: {message}")
        return rows, f"{data} ({len(rows):,} triplets of {counts})"
    table = read_file(data, PAIRS, sources.limit, columns=sources.columns)
    width = len(table.rows[0].texts)
    if only_triplets and width != 3:
        line = table.rows[0].line
        raise InputError(f"{data}, line {line}: {width} texts; anchor, positive and negative are needed")
    what = {2: "pairs", 3: "triplets"}.get(width, f"rows of {width - 2} negatives")
    return [row.texts for row in table.rows], table.note(data, what)


def translation_rows(sources: Sources) -> tuple[list[tuple[str, ...]], str]:
    """Sentences, or sentences with their translations, and a note; without ``--data`` the sentences of stsb."""
    data = sources.data
    if data in (None, "stsb"):
        texts, about = plain_texts(sources)
        return [(text,) for text in texts], about
    if data not in assets() and sources.columns is None and recognise(data) is SENTENCES:
        texts, about = sentence_rows(sources)
        return [(text,) for text in texts], about
    rows, about = triplet_rows(sources)
    if len(rows[0]) != 2:
        raise InputError(f"{data}: rows of {len(rows[0])} texts; a teacher's vectors need a sentence and a translation")
    return rows, about.replace(" pairs", " translations", 1)


def plain_texts(sources: Sources) -> tuple[list[str], str]:
    """Texts to learn the language from, and a note: a file of sentences, or each text of a data set's rows once."""
    data = sources.data or "stsb"
    if data == "stsb":
        rows = [pair.texts for pair in load_scored_pairs("stsb", "train")]
    elif data not in assets() and sources.columns is None and recognise(data) is SENTENCES:
        return sentence_rows(sources)
    else:
        rows, _ = triplet_rows(replace(sources, limit=None))
    texts = list(dict.fromkeys(text for row in rows for text in row))[: sources.limit]
    return texts, note(data, len(texts), "sentences")


def sentence_rows(sources: Sources) -> tuple[list[str], str]:
    """Plain training sentences and a note."""
    data = source_for(sources.data, SENTENCES)
    lines = [text for _, text in islice(read_texts(data), sources.limit)]
    texts = [text for text in lines if text]
    if "\t" in texts[0] and Path(data).suffix == ".txt":
        raise InputError(f"{data}, line 1: a table; needed are {SENTENCES.needs}")
    return texts, note(data, len(texts), "sentences", len(lines) - len(texts))


def holds_nli(data: str) -> bool:
    if data in NLI_ARCHIVES or Path(data).suffix == ".zip":
        return True
    return recognise(data) is NLI


def holds_pairs(path: str) -> bool:
    """Whether a file holds pairs or triplets without scores; a dataset's name does not."""
    return Path(path).is_file() and recognise(path) is PAIRS
