"""Readers for files of labelled pairs, triplets and plain sentences.

Every reader streams its file, decompresses .gz, and returns the rows and the number of rows that it skipped; its
docstring says which. ``limit`` takes the first rows of the file, skipped ones included. All raise ``InputError`` with
file and line for input they cannot read, and for a file without a usable row.
"""

import gzip
import json
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import torch

from minisbert.core import InputError, one_line
from minisbert.data.scored_pairs import byte_lines, quoted_rows, tab_rows
from minisbert.system.assets import ensure
from minisbert.system.files import decode, open_bytes

NLI_LABELS = ("contradiction", "entailment", "neutral")  # numbered 0, 1, 2 as in SBERT's own script
NLI_ARCHIVES = {"snli": "snli_1.0.zip", "multinli": "multinli_1.0.zip"}
TWO_DEVS = {"dev": "dev_matched", "test": "dev_mismatched"}  # MultiNLI: two dev files, the labels of test are secret
DUPLICATE_COLUMNS = (("is_duplicate", "question1", "question2"), ("label", "sentence1", "sentence2"))
TRIPLET_COLUMNS = (("anchor", "positive", "negative"), ("sent0", "sent1", "hard_neg"))  # the second is SimCSE's file


@dataclass(frozen=True)
class LabelledPair:
    """Two sentences and their class number."""

    sentence1: str
    sentence2: str
    label: int


class Triplet(NamedTuple):
    """A sentence, one with the same meaning, one with another."""

    anchor: str
    positive: str
    negative: str


Row = TypeVar("Row")

# ------------------------------------------------------------------------------------------- readers


def load_nli(data: str, split: str = "train", limit: int | None = None) -> tuple[list[LabelledPair], int]:
    """``data`` is ``snli`` or ``multinli`` (fetched if missing) or the path of a file; only a .zip has splits."""
    return read_nli(ensure(data) / NLI_ARCHIVES[data] if data in NLI_ARCHIVES else data, split, limit)


def read_nli(path: str | Path, split: str = "train", limit: int | None = None) -> tuple[list[LabelledPair], int]:
    """Rows of SNLI or MultiNLI: one JSON object per line with ``gold_label``, ``sentence1`` and ``sentence2``.

    ``path`` is a .jsonl, a .jsonl.gz, or the published .zip, from which ``split`` selects a file: train, dev, test,
    dev_matched, ... (of MultiNLI dev is dev_matched, test is dev_mismatched). Labels are numbered as in ``NLI_LABELS``.
    Rows whose annotators did not agree (``gold_label`` is "-") and rows with an empty sentence are skipped.
    """

    def pair(where: str, cells: list[str]) -> LabelledPair | None:
        label, *sentences = cells
        if label != "-" and label not in NLI_LABELS:
            raise InputError(f"{where}: unknown label {one_line(label)}; the labels are {', '.join(NLI_LABELS)} and -")
        return LabelledPair(*sentences, NLI_LABELS.index(label)) if label != "-" and all(sentences) else None

    rows = json_rows(path, ("gold_label", "sentence1", "sentence2"), split)
    return collect(path, (pair(where, cells) for where, cells in rows), limit)


def read_duplicates(path: str | Path, limit: int | None = None) -> tuple[list[LabelledPair], int]:
    """Pairs with label 1 (the same question) or 0: Quora's release, or a file of label, sentence1, sentence2.

    Tab- or comma-separated. The header names the columns (``is_duplicate``, ``question1``, ``question2``, or
    ``label``, ``sentence1``, ``sentence2``) and may name others; without a header the file must have these three, in
    this order. Quotation marks enclose a cell in comma-separated files and in Quora's; in other tab-separated files
    they are text. Rows with an empty text are skipped (Quora has a few).
    """

    def pair(where: str, cells: list[str]) -> LabelledPair | None:
        label, *sentences = cells
        if label not in ("0", "1"):
            raise InputError(f"{where}: the label {one_line(label)} is not 0 or 1")
        return LabelledPair(*sentences, int(label)) if all(sentences) else None

    rows = table(path, DUPLICATE_COLUMNS)
    return collect(path, (pair(where, cells) for where, cells in rows), limit)


def read_triplets(path: str | Path, limit: int | None = None) -> tuple[list[Triplet], int]:
    """Triplets in three columns: anchor, positive, negative.

    Tab- or comma-separated, with or without a header (see ``read_duplicates``; SimCSE's sent0, sent1, hard_neg also
    works), or .jsonl with objects of these three keys or lists of three. Rows with an empty text are skipped.
    """
    is_json = ".jsonl" in Path(path).suffixes
    rows = json_rows(path, TRIPLET_COLUMNS[0]) if is_json else table(path, TRIPLET_COLUMNS)
    return collect(path, (Triplet(*cells) if all(cells) else None for _, cells in rows), limit)


def read_sentences(path: str | Path, limit: int | None = None) -> tuple[list[str], int]:
    """One sentence per line, .txt or .txt.gz; duplicates are kept. Empty lines are skipped."""
    return collect(path, (line.strip() or None for _, line in file_lines(path)), limit)


def nli_triplets(rows: Iterable[LabelledPair]) -> list[Triplet]:
    """(premise, entailment, contradiction) for every premise that has both; neutral does not count.

    Rows with the same premise text belong together, wherever they are in the file. Each premise gives one triplet, with
    its first entailment and its first contradiction, in the order in which premises first appear. The first 100,000
    rows of SNLI's training file give 27,195. (Also pairing the second with the second and so on would give 33,091,
    with the same anchor in several rows.)
    """
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        found.setdefault(row.sentence1, {}).setdefault(NLI_LABELS[row.label], row.sentence2)
    return [
        Triplet(premise, hypotheses["entailment"], hypotheses["contradiction"])
        for premise, hypotheses in found.items()
        if "entailment" in hypotheses and "contradiction" in hypotheses
    ]


def split_rows(rows: Sequence[Row], share: float, seed: int) -> tuple[list[Row], list[Row]]:
    """Rows shuffled and split in two: ``round(share * N)`` of them, and the rest. The same seed gives the same split.

    Raises ``ValueError`` if one side would be empty.
    """
    cut = round(share * len(rows))
    if not 0 < cut < len(rows):
        raise ValueError(f"a share of {share} of {len(rows)} rows leaves one side empty")
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()
    return [rows[i] for i in order[:cut]], [rows[i] for i in order[cut:]]


# ------------------------------------------------------------------------------------- files to cells


def collect(path: str | Path, rows: Iterable[Row | None], limit: int | None) -> tuple[list[Row], int]:
    """The first ``limit`` rows without those that are None, and the number of those."""
    if limit is not None and limit < 1:
        raise InputError(f"limit must be at least 1, not {limit}")
    found = list(islice(rows, limit))
    kept = [row for row in found if row is not None]
    if not kept:
        raise InputError(f"{path} holds no usable rows" + (f" ({len(found)} were skipped)" if found else ""))
    return kept, len(found) - len(kept)


def file_lines(path: str | Path, split: str = "", to_text: Callable[..., str] = decode) -> Iterator[tuple[str, str]]:
    """``FILE, line N`` and each line's text (by ``to_text``), streamed from a plain file, a .gz or one in a .zip."""
    where = str(path)
    with ExitStack() as stack:
        stream: IO[bytes] = stack.enter_context(open_bytes(path))
        try:
            if Path(path).suffix == ".gz":
                stream = stack.enter_context(gzip.open(stream))
            elif Path(path).suffix == ".zip":
                archive = stack.enter_context(zipfile.ZipFile(stream))
                member = split_member(where, archive.namelist(), split)
                # subtle: buffered, because an archive's own readline with a limit takes ten times as long
                stream, where = stack.enter_context(BufferedReader(archive.open(member))), f"{where}/{member}"
            for number, content in enumerate(byte_lines(stream, where), start=1):
                yield f"{where}, line {number}", to_text(content, where, number).removesuffix("\n")
        except (gzip.BadGzipFile, zipfile.BadZipFile, EOFError, zlib.error, RuntimeError) as error:
            raise InputError(f"{where} is damaged or not what its name says: {error}") from error


def split_member(where: str, names: list[str], split: str) -> str:
    """The file of an NLI archive that holds a split: ``snli_1.0/snli_1.0_dev.jsonl``."""
    # subtle: the archives were made on a Mac, so every file has a twin, __MACOSX/snli_1.0/._snli_1.0_dev.jsonl
    tables = [name for name in names if name.endswith(".jsonl") and not name.startswith("__MACOSX/")]
    found = [[name for name in tables if name.endswith(f"_{one}.jsonl")] for one in (split, TWO_DEVS.get(split))]
    chosen = found[0] or found[1]
    if len(chosen) != 1:
        raise InputError(f"{where} has no split {one_line(split)}; its tables are {', '.join(tables) or 'none'}")
    return chosen[0]


def json_values(path: str | Path, split: str = "") -> Iterator[tuple[str, Any]]:
    """``FILE, line N`` and the value of each line that is not blank."""
    for where, line in file_lines(path, split):
        if not line.strip():
            continue
        try:
            yield where, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not valid JSON: {getattr(error, 'msg', error)}") from error


def json_rows(path: str | Path, keys: Sequence[str], split: str = "") -> Iterator[tuple[str, list[str]]]:
    """``FILE, line N`` and the stripped strings under ``keys`` of each line's JSON object (or list of just these)."""
    for where, row in json_values(path, split):
        if isinstance(row, list) and len(row) == len(keys):
            row = dict(zip(keys, row, strict=True))
        if not isinstance(row, dict):
            raise InputError(f"{where}: not an object with the keys {', '.join(keys)}: {one_line(row)}")
        for key in keys:
            if not isinstance(row.get(key), str):
                value = one_line(row[key]) if key in row else "missing"
                raise InputError(f"{where}: {key} is {value}, expected a string")
            check_unicode(row[key], f"{where}: {key}")
        yield where, [row[key].strip() for key in keys]


def check_unicode(text: str, where: str) -> None:
    """Raise ``InputError`` for a lone surrogate, which JSON can escape but no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where} is not valid Unicode: a lone surrogate in {one_line(text)}") from error


def cells_of(path: str | Path) -> Iterator[tuple[str, list[str]]]:
    """``FILE, line N`` and the stripped cells of each row, tab- or comma-separated."""
    content = (line for _, line in file_lines(path))
    first = next(content, "")
    content = chain([first], content)
    if "\t" not in first:
        rows = quoted_rows(Path(path), content)
    elif "is_duplicate" in first:
        rows = quoted_rows(Path(path), content, delimiter="\t")
    else:
        rows = tab_rows(content)
    for line, cells in rows:
        yield f"{path}, line {line}", [cell.strip() for cell in cells]


def table(path: str | Path, columns: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, list[str]]]:
    """``FILE, line N`` and the wanted cells of each row; ``columns`` lists the names a header may use."""
    wanted, width = list(range(len(columns[0]))), len(columns[0])
    expected = f"{width} are needed ({', '.join(columns[0])})"
    for number, (where, cells) in enumerate(cells_of(path)):
        header = [cell.lower() for cell in cells]
        names = next((names for names in columns if set(names) <= set(header)), None) if number == 0 else None
        if names:
            wanted, width = [header.index(name) for name in names], len(cells)
            expected = f"the header has {width}"
        elif len(cells) != width:
            raise InputError(f"{where}: {len(cells)} columns; {expected}")
        else:
            yield where, [cells[i] for i in wanted]
