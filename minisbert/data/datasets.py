"""The rows that a training run needs: its files or data sets by name, split into training, dev and test rows.

Most functions return rows and notes by split; a note says where the rows come from and how many they are.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from minisbert.core import InputError, one_line
from minisbert.data.formats import LABELLED, MULTILABEL, NLI, PAIRS, SCORED, SENTENCES, Format, Row, class_names
from minisbert.data.recognition import recognise
from minisbert.data.sources import (
    NLI_ARCHIVES,
    SPLITS,
    Sources,
    check_labels,
    check_scores,
    load_scored_pairs,
    load_several,
    nli_triplets,
    note,
    read_file,
    scored_table,
    several,
    source_for,
)
from minisbert.data.splits import hold_out
from minisbert.data.texts import read_texts
from minisbert.folder.settings import MAX_SCORE
from minisbert.system.assets import assets

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
