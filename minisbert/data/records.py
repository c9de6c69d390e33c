"""Records: dictionaries from the names of columns to the values that stand there.

A file has them (``tables``), and so have rows from Python: tuples, dictionaries, a DataFrame, a
data set of the package ``datasets``. Which columns are read of them is decided in ``columns``.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

from minisbert.core import InputError, one_line
from minisbert.system.reading import reading

ROWS_AT_A_TIME = 1024  # of a data set, and of a Parquet file
# what data sets call their splits
SPLIT_NAMES = {
    "training": "train",
    "validation": "dev",
    "valid": "dev",
    "val": "dev",
    "development": "dev",
}

Record = dict[str, Any]
# Called with the number of a row that cannot be read, and with what is wrong. If it returns, the
# next row is read.
Refuse = Callable[[int, str], object]


@dataclass
class Records:
    """The records of a file, which can be gone through once, each with the number of its line.

    ``names`` are those of the header, or the keys of the first record; keys that only later records
    have are added as they are met.
    """

    name: str  # of the file or the data set, for messages
    names: list[str]
    items: Iterator[tuple[int, Record]]
    unit: str = "line"  # what the numbers count: line, item of an array, row, or Python's index
    separator: str = ""  # of a table
    is_numbered: bool = False  # a table without a header, or tuples: columns are "1", "2", ...
    is_text: bool = False  # a text in each line, called "text"
    # of a ``datasets.Dataset``: the names of the classes that its numbers stand for
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def fail(self, number: int, message: str) -> NoReturn:
        raise InputError(f"{place_of(self.name, self.unit, number)}: {message}")


def place_of(name: str, unit: str, number: int) -> str:
    """``a.tsv, line 3``, ``a.json, item 3`` of an array, or ``rows[3]`` in Python."""
    if unit == "index":
        return f"{name}[{number}]"
    return f"{name}, {unit} {number}"


def split_name(name: object) -> str:
    """train, dev or test for what data sets call them: ``split_name("Valid") = "dev"``."""
    plain = str(name).strip().lower()
    return SPLIT_NAMES.get(plain, plain)


def refusal(name: str, unit: str = "line") -> Refuse:
    """The function that makes an error of a row that cannot be read."""

    def refuse(number: int, message: str) -> NoReturn:
        raise InputError(f"{place_of(name, unit, number)}: {message}")

    return refuse


def object_records(
    name: str, values: Iterable[tuple[int, Any]], unit: str, refuse: Refuse | None = None
) -> Records:
    """Records of values that should be dictionaries; a string is a text.

    The first is read at once, because its keys are the names of the columns.
    """
    refuse = refuse or refusal(name, unit)
    names: list[str] = []  # The records share this list: it grows as other keys are met.
    known: set[str] = set()  # the same names, to look up

    def items() -> Iterator[tuple[int, Record]]:
        for number, value in values:
            if isinstance(value, str):
                value = {"text": value}
            if not isinstance(value, Mapping):
                refuse(
                    number,
                    f"{one_line(value)} is no object with keys (one in each line of a .jsonl, or "
                    f"all in one array of a .json)",
                )
                continue
            record = {str(key): item for key, item in value.items()}
            if not record.keys() <= known:
                for key in record:
                    if key not in known:
                        known.add(key)
                        names.append(key)
            yield number, record

    all_items = items()
    first = next(all_items, None)
    if first is None:
        return Records(name, [], iter(()), unit)
    return Records(name, names, chain([first], all_items), unit)


# ------------------------------------------------------------------------------ rows from Python


def python_records(rows: Any, name: str) -> Records:
    """The records of rows from Python, which are counted as Python does, from 0."""
    if isinstance(rows, str | bytes | PathLike):
        raise InputError(
            f"{name}: a list of tuples is needed, not {one_line(rows)}; "
            f"minisbert.data.rows.read_rows reads the rows of a file"
        )
    if isinstance(rows, Set):
        raise InputError(f"{name}: a list of tuples is needed, not a set, which has no order")
    if getattr(rows, "column_names", None) and hasattr(rows, "features"):  # a datasets.Dataset
        return dataset_records(rows, name, unit="index")
    rows = rows_of_table(rows, name)
    if not isinstance(rows, Iterable):
        raise InputError(f"{name}: a list of tuples is needed, not {one_line(rows)}")
    if isinstance(rows, Mapping):
        rows = rows_of_columns(rows, name)

    # the first row says of which kind all are
    values = iter(rows)
    first = next(values, None)
    if first is None:
        return Records(name, [], iter(()), "index")
    numbered = enumerate(chain([first], values))
    if isinstance(first, list | tuple) and first:
        return tuple_records(name, len(first), numbered)
    if not isinstance(first, Mapping):
        raise InputError(f"{place_of(name, 'index', 0)}: {not_a_row(first)}")
    return object_records(name, numbered, "index")


def rows_of_table(rows: Any, name: str) -> Any:
    """The rows of a DataFrame of pandas or polars, or of a table of pyarrow; others as they are.

    None of these packages need be installed, so they are known by their methods.
    """
    if hasattr(rows, "to_dicts"):  # polars
        return rows.to_dicts()
    if hasattr(rows, "to_pylist") and hasattr(rows, "column_names"):  # pyarrow
        return rows.to_pylist()
    if not (hasattr(rows, "to_dict") and hasattr(rows, "columns")):
        return rows
    for column, count in Counter(rows.columns).items():  # pandas
        if count > 1:  # it would leave out all but one of them
            raise InputError(
                f"{name}: two columns are called {one_line(column)}: give each a name of its own"
            )
    records = rows.to_dict("records")
    # pandas writes NaN for an empty cell, of numbers too.
    for record in records:
        for column, value in record.items():
            if isinstance(value, float) and math.isnan(value):
                record[column] = None
    return records


def tuple_records(name: str, width: int, rows: Iterable[tuple[int, Any]]) -> Records:
    """Tuples or lists, all of the same length; their columns are called "1", "2", ..."""
    names = [str(i) for i in range(1, 1 + width)]

    def items() -> Iterator[tuple[int, Record]]:
        for number, row in rows:
            place = place_of(name, "index", number)
            if not isinstance(row, list | tuple):
                raise InputError(f"{place}: {not_a_row(row)}")
            if len(row) != width:
                raise InputError(f"{place}: {len(row)} values; the first row has {width}")
            yield number, dict(zip(names, row, strict=True))

    return Records(name, names, items(), "index", is_numbered=True)


def not_a_row(value: Any) -> str:
    if isinstance(value, str):
        return f"{one_line(value)} is a text; a row is a tuple of texts: ({one_line(value)},)"
    if hasattr(value, "texts") and hasattr(value, "label"):  # an InputExample
        kind = type(value).__name__
        return (
            f"an {kind} is no row: give (*example.texts, example.label), or tuple(example.texts) "
            f"if the loss reads no label"
        )
    if hasattr(value, "tolist"):  # an array
        return f"{one_line(value)} is no row; lists are: give rows.tolist()"
    return f"{one_line(value)} is no row; a tuple of texts or a dictionary is needed"


def rows_of_columns(columns: Mapping, name: str) -> Iterator[Record]:
    """The rows of ``{"anchor": [...], "positive": [...]}``."""
    lengths = []
    for key, values in columns.items():
        if hasattr(values, "column_names"):  # a DatasetDict
            splits = ", ".join(str(split) for split in columns)
            raise InputError(f"{name}: several splits, {splits}: give one of them")
        if isinstance(values, str) or not hasattr(values, "__len__"):
            raise InputError(f"{name}[{key!r}]: a list is needed, not {one_line(values)}")
        lengths.append(len(values))
    if len(set(lengths)) > 1:
        raise InputError(f"{name}: columns of different lengths: {', '.join(map(str, lengths))}")
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


# ---------------------------------------------------------------------- data sets of ``datasets``


def dataset_records(dataset: Any, name: str, unit: str = "row") -> Records:
    """The records of a ``datasets.Dataset``, with the names of its classes."""
    dataset, columns = with_plain_values(dataset)

    def items() -> Iterator[tuple[int, Record]]:
        number = 0 if unit == "index" else 1
        # A data set takes long to give a single row, so many are taken by their columns.
        for batch in dataset.iter(ROWS_AT_A_TIME):
            for values in zip(*batch.values(), strict=True):
                yield number, dict(zip(batch, values, strict=True))
                number += 1

    classes = {}
    for column, feature in (dataset.features or {}).items():
        if hasattr(feature, "names"):  # a ClassLabel
            classes[column] = feature.names
    return Records(name, columns, items(), unit, classes=classes)


def with_plain_values(dataset: Any) -> tuple[Any, list[str]]:
    """A data set whose values are Python's own, and not tensors, and the columns that it gives."""
    columns = list(dataset.column_names)
    form = getattr(dataset, "format", None)  # a data set that is streamed has none
    if form is None:
        return dataset, columns
    columns = list(form["columns"])
    # A function of the user's own makes the values as they are wanted.
    if form["type"] in (None, "custom"):
        return dataset, columns
    return dataset.with_format(None, columns=columns), columns


def is_saved_dataset(path: str | Path) -> bool:
    """Whether ``datasets`` has saved a data set in this folder, by ``save_to_disk``."""
    folder = Path(path)
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def saved_dataset(path: str | Path, split: str = "") -> Records:
    """The records of a data set's folder; of several splits those of the one that is asked for."""
    try:
        from datasets import load_from_disk
    except ImportError as error:
        raise InputError(
            f"{path}: a data set's folder needs the package datasets ({error}): "
            f"pip install -e '.[datasets]'"
        ) from error
    with reading(path):
        dataset = load_from_disk(str(path))
    if not isinstance(dataset, Mapping):
        return dataset_records(dataset, str(path))
    for name in dataset:
        if split and split in (name, split_name(name)):
            return dataset_records(dataset[name], f"{path}/{name}")
    wanted = "no split is chosen"
    if split:
        wanted = f"no split {split}"
    raise InputError(f"{path}: {wanted}; it has {', '.join(map(str, dataset))}")
