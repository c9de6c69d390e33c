"""Where rows come from: data sets by name, and files by path."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from minisbert.core import InputError
from minisbert.data.formats import LABELLED, PAIRS, SCORED, Format, Row
from minisbert.data.reader import RowReader
from minisbert.folder.settings import MAX_SCORE
from minisbert.system.assets import asset, assets, ensure

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


def score_scale(text: str) -> float:
    """The type of an option ``--scale``: scores are 0 to S, for -S they are -S to S."""
    scale = float(text)
    if not 1e-4 <= abs(scale) < float("inf"):
        raise ValueError
    return scale


score_scale.__name__ = "scale, such as 1, 5 or -1"


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
