"""Data sets that have a name: the STS Benchmark, SNLI, MultiNLI and Quora's question pairs.

Their published files are read as they are, after they have been fetched; any other file is read as
``tables`` does.
"""

from collections.abc import Iterator
from pathlib import Path

from minisbert.core import InputError
from minisbert.data.records import Record, Records
from minisbert.data.tables import open_records
from minisbert.system.assets import asset, assets, ensure

PUBLISHED = ("stsb", "snli", "multinli", "quora")
# genre, file, year, id, score, sentence1, sentence2, and in some rows two licences
STSB_COLUMNS = {"sentence1": "6", "sentence2": "7", "score": "5"}


def open_published(name: str, split: str) -> Records:
    """Open ``stsb``, ``snli``, ``multinli`` or ``quora``, fetched if it is missing.

    ``split`` is train, dev or test; of MultiNLI, whose test has no labels, dev is dev_matched and
    test is dev_mismatched. Quora's release is one file.
    """
    folder = ensure(name)
    if name == "stsb":
        records = stsb_records(folder, split)
    elif name == "quora":
        # after some closing quotation marks there is more text, which is refused in other files
        records = open_records(folder / asset("quora").files[0].name, strict=False)
    else:
        records = open_records(folder / f"{name}_1.0.zip", split=split)
    records.name = name
    return records


def stsb_records(folder: Path, split: str) -> Records:
    """A split of the STS Benchmark: tabs, no header, and quotation marks that are text."""
    records = open_records(folder / f"sts-{split}.csv", quotes=False, last_number=7)

    def items() -> Iterator[tuple[int, Record]]:
        for number, cells in records.items:
            record = {}
            for column, place in STSB_COLUMNS.items():
                record[column] = cells[place]
            yield number, record

    return Records("stsb", list(STSB_COLUMNS), items())


def is_published(data: object) -> bool:
    """Whether a name is that of a published data set, or several as in ``snli,multinli``."""
    if not isinstance(data, str):
        return False
    return all(name in PUBLISHED for name in data.split(","))


def check_no_asset(name: str | Path) -> None:
    """Raise ``InputError`` for the name of a model, or of a data set of another kind."""
    if str(name) in assets() and not Path(name).exists():
        raise InputError(
            f"{name} is no data set of rows; those that have a name are {', '.join(PUBLISHED)}"
        )


def check_has_name(source: object) -> None:
    """Raise ``InputError`` for an empty name, which a variable of the shell has that is not set."""
    if source == "":
        raise InputError("--data, --dev or --test is empty: name a file or a data set")
