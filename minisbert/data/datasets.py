"""Find the rows of a training run: files or data sets by name, divided into training, dev and test rows.

Most functions return rows and notes by split; a note says where the rows come from and how many they are. The
published files of STS-B, SNLI, MultiNLI and Quora are read by the name of the data set; any other file has a header,
keys or ``--columns``.
"""

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from minisbert.core import InputError, one_line, reading
from minisbert.data.formats import (
    HUGGING_FACE_NLI,
    LABELLED,
    MULTILABEL,
    NLI,
    PAIRS,
    SCORED,
    SENTENCES,
    Format,
    Row,
    class_names,
    parse_score,
)
from minisbert.data.lines import Rows, read_texts
from minisbert.data.reader import Table, note, read_file, recognise
from minisbert.data.splits import hold_out
from minisbert.models.similarity import MAX_SCORE
from minisbert.system.assets import asset, assets, ensure

SPLITS = ("train", "dev", "test")
NLI_ARCHIVES = {"snli": "snli_1.0.zip", "multinli": "multinli_1.0.zip"}

Notes = dict[str, str]  # by split


# ----------------------------------------------------------------------------------- names and files


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


def source_for(name: str | None, form: Format) -> str:
    """Return ``name``, or the format's data set if it is None; NLI rows may have several names, as in ``A,B``.

    Raises ``InputError`` for a data set of another format.
    """
    if name is None and form.dataset is None:
        raise InputError(f"--data FILE is needed: {form.needs}")
    if name is None or name == form.dataset:
        return form.dataset
    names, fitting = [name], []
    if form.dataset == "snli":
        names, fitting = several(name), list(NLI_ARCHIVES)
    for one in names:
        if one in assets() and one not in fitting:
            needed = f"a file of {form.needs}"
            if form.dataset:
                needed = f"{form.dataset} or {needed}"
            raise InputError(f"{one} has no rows of the kind that is needed: give {needed}")
    return name


def several(data: str) -> list[str]:
    """Split ``A,B`` into its names; a file with a comma in its name is one."""
    if os.path.exists(data):
        return [data]
    return [name for name in data.split(",") if name]


# ------------------------------------------------------------------------------------- scored pairs


def load_scored_pairs(data: str | Path, split: str = "", scale: float | None = MAX_SCORE) -> list[Row]:
    """Load ``stsb`` (fetched if it is missing), with ``split`` train, dev or test, or the file of that path.

    A file's scores are 0 to ``scale``; those of the rows are always 0 to 5. With None they are what the file has.
    """
    return scored_table(data, split, scale).rows


def scored_table(data: str | Path, split: str, scale: float | None, columns: str | None = None) -> Table:
    if data == "stsb":
        return Table(read_stsb(ensure("stsb") / f"sts-{split}.csv"), 0, [])
    if columns is None and Path(data).is_file():  # not a pipe, which can be read only once
        form = recognise(data)
        if form in (NLI, MULTILABEL):  # whose numbers are no similarities
            raise InputError(f"{data} holds classes; scores, or labels of 0 and 1, are needed: {SCORED.names}")
    return read_file(data, SCORED, scale=scale, columns=columns)


def read_stsb(path: Path) -> list[Row]:
    """Read a file of the STS Benchmark: genre, file, year, id, score, sentence1, sentence2, and maybe two licences."""
    rows = []
    with reading(path) as at:
        for at.line, cells in Rows(path).cells("\t"):
            if len(cells) < 7:
                raise ValueError(
                    f"{len(cells)} columns; STS-B has 7: genre, file, year, id, score, sentence1, sentence2"
                )
            rows.append(Row((cells[5], cells[6]), parse_score(cells[4]), at.line))
    if not rows:
        raise InputError(f"{path} holds no usable rows")
    return rows


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
        name = source_for(sources.named()[split], SCORED)
        table = scored_table(name, split, read_scale, columns)
        rows[split], notes[split] = table.rows, table.note(name, "pairs")
        if split != "train":
            check_scores(table.rows, name)
            rows[split] = on_any_scale(table.rows)
            continue
        # Scores of 0 to 1 read as 0 to 5 would all be low, and training would go on without a word.
        if scale > 1 and max(row.score for row in table.rows) <= MAX_SCORE / scale:
            raise InputError(
                f"{name}: no score is above 1, but the scale is 0 to {scale:g}: give --scale 1 "
                "(labels 0 and 1 alone are for --objective binary or contrastive)"
            )
        rows[split] = table.rows[: sources.limit]
        notes[split] = table._replace(rows=rows[split]).note(name, "pairs")
    return rows, notes


def on_any_scale(rows: list[Row]) -> list[Row]:
    """Rescale scores to at most 5: those of 0 to 100 are divided by 20."""
    most = max(abs(row.score) for row in rows)
    if most <= MAX_SCORE:
        return rows
    return [replace(row, label=row.score * MAX_SCORE / most) for row in rows]


# --------------------------------------------------------------------------------- labels and classes


def load_several(data: str, form: Format, split: str, limit: int | None, columns: str | None = None) -> Table:
    """Read the rows of each name in ``data`` in turn; ``limit`` is for all of them together."""
    rows: list[Row] = []
    skipped, unread = 0, []
    for name in several(data):
        left = None
        if limit is not None:
            left = limit - len(rows) - skipped
            if left == 0:
                break
        table = load_labelled(name, form, split, left, columns)
        rows += table.rows
        skipped += table.skipped
        unread += table.unread
    return Table(rows, skipped, list(dict.fromkeys(unread)))


def load_labelled(
    data: str | Path, form: Format, split: str = "train", limit: int | None = None, columns: str | None = None
) -> Table:
    """Load ``snli``, ``multinli`` or ``quora``, fetched if missing, or a file.

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
    """Find Quora's release; ``InputError`` names its address and the alternative."""
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
    """Make (premise, entailment, contradiction) of every premise that has both; neutral does not count.

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


def duplicate_rows(sources: Sources) -> tuple[dict[str, list[Row]], Notes]:
    """Read pairs labelled as duplicates or not: Quora's release, or a file."""
    rows, notes = labelled_rows(sources, LABELLED)
    for split in ("dev", "test"):
        check_labels(rows[split], f"{split} {notes[split]}")
    return rows, notes


def class_rows(sources: Sources) -> tuple[dict[str, list[Row]], Notes, tuple[str, ...]]:
    """Read pairs with a class, SNLI's or a file's, and return the names of the classes too.

    The label of a row is the number of its class. NLI's are numbered as in ``NLI_LABELS``, others in sorted order.
    """
    rows, notes = labelled_rows(sources, NLI)
    # 0 and 1 alone under premise and hypothesis are no entailment and neutral: NLI has a third class
    train = several(source_for(sources.data, NLI))[0]
    names = {row.label for row in naming_rows(rows, sources)}
    if names == {"entailment", "neutral"} and Path(train).is_file() and recognise(train) is LABELLED:
        for split, some in rows.items():
            rows[split] = [replace(row, label=str(HUGGING_FACE_NLI.index(row.label))) for row in some]
    try:
        classes = class_names(row.label for row in naming_rows(rows, sources))
    except ValueError as error:
        raise InputError(f"{notes['train']}: {error}") from error
    if len(classes) < 2:
        raise InputError(f"{notes['train']}: all rows have the class {one_line(classes[0])}")
    numbers = {name: i for i, name in enumerate(classes)}
    for split, some in rows.items():
        for row in some:
            check_classes(row, [row.label], classes, f"{split} {notes[split]}")
        rows[split] = [replace(row, label=numbers[row.label]) for row in some]
    return rows, notes, classes


def multilabel_rows(sources: Sources) -> tuple[dict[str, list[Row]], Notes, tuple[str, ...]]:
    """Read pairs with any number of labels each, and return the labels' names; a row's label is a 0 or 1 for each."""
    rows, notes = labelled_rows(sources, MULTILABEL)
    names: set[str] = set()
    for row in naming_rows(rows, sources):
        names.update(row.label)
    if len(names) < 2:
        raise InputError(f"{notes['train']}: two labels or more are needed, not {one_line(sorted(names))}")
    labels = tuple(sorted(names))
    if all(map(str.isdecimal, names)):  # places in lists of 0 and 1: 2 comes before 10
        labels = tuple(sorted(names, key=int))
    for split, some in rows.items():
        if split != "train":
            check_labels(some, f"{split} {notes[split]}")
        for row in some:
            check_classes(row, row.label, labels, f"{split} {notes[split]}")
        rows[split] = []
        for row in some:
            one_hot = [int(name in row.label) for name in labels]
            rows[split].append(replace(row, label=one_hot))
    return rows, notes, labels


def naming_rows(rows: dict[str, list[Row]], sources: Sources) -> list[Row]:
    """Collect the rows that name the classes: of training, with what is held out of them, or SNLI's splits."""
    named = [*rows["train"]]
    for split in ("dev", "test"):
        if sources.named()[split] is None:
            named += rows[split]
    return named


def check_classes(row: Row, labels: Iterable[str], classes: Sequence[str], source: str) -> None:
    for name in labels:
        if name not in classes:
            message = f"the class {one_line(name)} is not one of {', '.join(classes)}, as in the training rows"
            raise InputError(f"{source}, line {row.line}: {message}")


def labelled_rows(sources: Sources, form: Format) -> tuple[dict[str, list[Row]], Notes]:
    """Read the rows of classes or of duplicates. Only ``snli`` comes with splits.

    Otherwise a split without a file gets a share of the training rows, the same for the same seed.
    """
    names = {"train": source_for(sources.data, form)}
    for split, given in (("dev", sources.dev), ("test", sources.test)):
        if given or "snli" in several(names["train"]):
            names[split] = source_for(given, form)
    rows, notes = {}, {}
    for split, name in names.items():
        limit = None
        if split == "train":
            limit = sources.limit
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
    """Read anchors, positives and negatives from a file, or build them from NLI rows; return the rows and a note.

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
    """Read sentences, or sentences with translations, and a note; without ``--data`` the sentences of stsb."""
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
    """Read texts to learn a language from, and a note: a file of sentences, or each text of a data set's rows once."""
    data = sources.data or "stsb"
    if data == "stsb":
        rows = [pair.texts for pair in load_scored_pairs("stsb", "train")]
    elif data not in assets() and sources.columns is None and recognise(data) is SENTENCES:
        return sentence_rows(sources)
    else:
        rows, _ = triplet_rows(replace(sources, limit=None))
    distinct: dict[str, None] = {}  # in the order in which they first occur
    for row in rows:
        distinct.update(dict.fromkeys(row))
    texts = list(distinct)[: sources.limit]
    return texts, note(data, len(texts), "sentences")


def sentence_rows(sources: Sources) -> tuple[list[str], str]:
    """Read plain training sentences and a note."""
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
