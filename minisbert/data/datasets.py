"""The rows of a run: ``--data``, ``--dev``, ``--test`` and ``--limit`` to training, dev and test rows.

Each function returns rows and notes by split; a note names the source of the rows and their number.
"""

import argparse
import os
from collections.abc import Iterable, Sequence, Sized
from pathlib import Path
from typing import Any

from minisbert.core import InputError
from minisbert.data.corpora import (
    NLI_ARCHIVES,
    LabelledPair,
    Triplet,
    check_labels,
    load_duplicates,
    load_nli,
    nli_triplets,
    read_sentences,
    read_triplets,
    read_tuples,
    split_rows,
)
from minisbert.data.findings import Findings
from minisbert.data.formats import LABELLED, NLI, PAIRS, SCORED, SENTENCES, TRIPLETS, Format
from minisbert.data.recognition import recognise
from minisbert.data.rows import first_line, holds_json, is_number
from minisbert.data.scored_pairs import SPLITS, ScoredPair, check_scores, load_scored_pairs
from minisbert.models.pair_scorer import MAX_SCORE
from minisbert.system.assets import assets

HELD_OUT = 0.1  # share of the labelled rows that dev and test each get if they have no file

Notes = dict[str, str]


def scored_rows(
    options: argparse.Namespace, splits: Iterable[str] = SPLITS
) -> tuple[dict[str, list[ScoredPair]], Notes]:
    """Scored pairs of ``splits``; a split without a file comes from stsb."""
    given = {"train": options.data, "dev": options.dev, "test": options.test}
    names = {split: source_for(options, given[split], SCORED) for split in splits}
    rows = {split: load_scored_pairs(name, split, options.scale) for split, name in names.items()}
    for split in ("dev", "test"):
        if split in rows:
            check_scores(rows[split], names[split])
    if "train" in rows:
        if options.scale > 1 and max(pair.score for pair in rows["train"]) <= MAX_SCORE / options.scale:
            raise InputError(
                f"{names['train']}: no score is above 1, but the scale is 0 to {options.scale:g}: give --scale 1 "
                "(labels 0 and 1 alone are for --objective binary or contrastive)"
            )
        rows["train"] = rows["train"][: options.limit]
    return rows, {split: note(name, rows[split], "pairs") for split, name in names.items()}


def nli_rows(options: argparse.Namespace) -> tuple[dict[str, list[LabelledPair]], Notes]:
    """Entailment, contradiction or neutral: SNLI, or files."""
    return labelled_rows(options, NLI)


def duplicate_rows(options: argparse.Namespace) -> tuple[dict[str, list[LabelledPair]], Notes]:
    """Duplicate or not: Quora's release, or a file."""
    rows, notes = labelled_rows(options, LABELLED)
    for split in ("dev", "test"):
        check_labels(rows[split], f"{split} {notes[split]}")
    return rows, notes


def labelled_rows(options: argparse.Namespace, form: Format) -> tuple[dict[str, list[LabelledPair]], Notes]:
    """The rows of NLI or of duplicates. Only ``snli`` comes with splits.

    Otherwise a split without a file gets a share of the training rows, the same for the same seed.
    """
    names = {"train": source_for(options, options.data, form)}
    for split, given in (("dev", options.dev), ("test", options.test)):
        if given or "snli" in several(names["train"]):
            names[split] = source_for(options, given, form)
    rows, notes = {}, {}
    for split, name in names.items():
        limit = options.limit if split == "train" else None
        rows[split], skipped = load_all_nli(name, split, limit) if form is NLI else load_duplicates(name, limit)
        notes[split] = note(name, rows[split], "pairs", skipped)
    missing = [split for split in ("dev", "test") if split not in rows]
    try:
        rows["train"], held_out = hold_out(rows["train"], missing, options.seed)
    except ValueError as error:
        raise InputError(
            f"{names['train']}: {len(rows['train'])} pairs are too few to hold some out as {' and '.join(missing)}: "
            "give more, or --dev FILE and --test FILE"
        ) from error
    notes |= {split: note("held out of it", held_out[split], "pairs") for split in missing}
    return rows | held_out, notes


def hold_out(rows: list[Any], splits: Sequence[str], seed: int) -> tuple[list[Any], dict[str, list[Any]]]:
    """The rows without a tenth for each split, and these tenths; ``ValueError`` if one would be empty."""
    if not splits:
        return rows, {}
    rows, held_out = split_rows(rows, 1 - HELD_OUT * len(splits), seed)
    shares = split_rows(held_out, 0.5, seed) if len(splits) == 2 else (held_out,)
    return rows, dict(zip(splits, shares, strict=True))


def triplet_rows(options: argparse.Namespace) -> tuple[list[Triplet] | list[tuple[str, ...]], str]:
    """Training triplets, read from a file or built from NLI rows, and a note.

    For losses with in-batch negatives a file may have pairs as well, or several negatives in a row.
    """
    form = TRIPLETS if options.objective == "triplet" else PAIRS
    data = source_for(options, options.data, form)
    if not all(name in NLI_ARCHIVES or holds_nli(name) for name in several(data)):
        rows, skipped = tuple_rows(options, data, form)
        what = {2: "pairs", 3: "triplets"}.get(len(rows[0]), f"rows of {len(rows[0]) - 2} negatives")
        return rows, note(data, rows, what, skipped)
    labelled, skipped = load_all_nli(data, "train", options.limit)
    rows = nli_triplets(labelled)
    if not rows:
        raise InputError(f"{data}: none of {len(labelled):,} rows has a premise with both entailment and contradiction")
    return rows, f"{data} ({len(rows):,} triplets of {len(labelled):,} NLI rows; {skipped:,} had no gold label)"


def tuple_rows(options: argparse.Namespace, data: str, form: Format) -> tuple[Sequence[tuple[str, ...]], int]:
    rows, skipped = (read_triplets if form is TRIPLETS else read_tuples)(data, options.limit)
    if all_numbers([is_number(row[0]) for row in rows]):
        raise InputError(
            f"{data}: the first column holds numbers: scores or labels of pairs? "
            f"Objective {options.objective} reads {form.file}"
        )
    return rows, skipped


def translation_rows(options: argparse.Namespace) -> tuple[list[tuple[str, ...]], str]:
    """Sentences, or sentences with their translations, and a note; without ``--data`` the sentences of stsb."""
    if options.data in (None, "stsb"):
        pairs = load_scored_pairs("stsb", "train")
        texts = dict.fromkeys(text for pair in pairs for text in (pair.sentence1, pair.sentence2))
        rows = [(text,) for text in texts][: options.limit]
        return rows, note("stsb", rows, "sentences")
    data = options.data
    if not ("\t" in first_line(data) or {".csv", ".tsv"} & set(Path(data).suffixes) or holds_json(data)):
        texts, about = sentence_rows(options)
        return [(text,) for text in texts], about
    rows, skipped = tuple_rows(options, source_for(options, data, PAIRS), PAIRS)
    if len(rows[0]) != 2:
        raise InputError(f"{data}: rows of {len(rows[0])} texts; a teacher's vectors need a sentence and a translation")
    return rows, note(data, rows, "translations", skipped)


def sentence_rows(options: argparse.Namespace) -> tuple[list[str], str]:
    """Plain training sentences and a note."""
    data = source_for(options, options.data, SENTENCES)
    if "\t" in first_line(data):
        raise InputError(f"{data}, line 1: a table; objective {options.objective} reads {SENTENCES.file}")
    rows, skipped = read_sentences(data, options.limit)
    return rows, note(data, rows, "sentences", skipped)


# ----------------------------------------------------------------------------------- names and files


def source_for(options: argparse.Namespace, name: str | None, form: Format) -> str:
    """``name``, or the format's data set if it is None; NLI rows may have several names, as in ``A,B``.

    Raises ``InputError`` for a dataset or file of another form.
    """
    if name is None and form.dataset is None:
        raise InputError(f"objective {options.objective} needs --data FILE: {form.file}")
    if name is None or name == form.dataset:
        return form.dataset
    if form.dataset == "snli" and name in NLI_ARCHIVES:
        return name
    if form.dataset == "snli" and len(names := several(name)) > 1:
        return ",".join(source_for(options, one, form) for one in names)
    if name in assets():
        wrong = "has no rows of the kind that is needed"
    elif form.json is not None and Path(name).suffix != ".zip" and holds_json(name) != form.json:
        wrong = f"holds {'no ' if form.json else ''}lines of JSON"
    else:
        return name
    reads = f"{form.dataset} or a file" if form.dataset else "a file"
    raise InputError(f"{name} {wrong}: objective {options.objective} reads {reads} of {form.file}")


def all_numbers(flags: Sequence[bool]) -> bool:
    """Whether the first texts are numbers, as of scores or labels; that of the first row may be a header."""
    return all(flags[1:] or flags)


def holds_nli(path: str) -> bool:
    return Path(path).suffix == ".zip" or recognise(Path(path), Findings())[0] is NLI


def holds_tuples(path: str) -> bool:
    """Whether a file holds pairs or triplets without scores; a dataset's name does not."""
    return Path(path).is_file() and recognise(Path(path), Findings())[0] in (PAIRS, TRIPLETS)


def several(data: str) -> list[str]:
    """``A,B`` to its names; a file with a comma in its own name is one."""
    return [data] if os.path.exists(data) else [name for name in data.split(",") if name]


def load_all_nli(data: str, split: str, limit: int | None) -> tuple[list[LabelledPair], int]:
    """``load_nli`` for each name in ``data``, one after the other; ``limit`` is for all of them together."""
    rows, skipped = [], 0
    for name in several(data):
        left = None if limit is None else limit - len(rows) - skipped
        if left != 0:
            more, passed = load_nli(name, split, left)
            rows, skipped = rows + more, skipped + passed
    return rows, skipped


def note(name: str, rows: Sized, what: str, skipped: int = 0) -> str:
    return f"{name} ({len(rows):,} {what}{f', {skipped:,} skipped' if skipped else ''})"
