"""Rows from Python: the same table, the same messages as for a file."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from minisbert.core import InputError
from minisbert.data.columns import Columns
from minisbert.data.rows import as_rows, read_rows

TEXT = Columns(1)
PAIR = Columns(2)
PAIR_OR_MORE = Columns(2, more_texts=True)
TRIPLET = Columns(3)
SCORED = Columns(2, "score")
BINARY = Columns(2, "binary")
CLASSES = Columns(2, "class")


@pytest.mark.parametrize(
    ("rows", "need", "expected"),
    [
        ([("a", "b", 0.5)], SCORED, [("a", "b", 0.5)]),
        ([["a", "b"]], PAIR_OR_MORE, [("a", "b")]),
        ([("a", "b", "c", "d")], PAIR_OR_MORE, [("a", "b", "c", "d")]),
        ([("a",), ("b",)], TEXT, [("a",), ("b",)]),
        ([("a", "b", "refund"), ("c", "d", "praise")], CLASSES, None),
        ([("a", "b", 1), ("c", "d", 0)], CLASSES, [("a", "b", "1"), ("c", "d", "0")]),
        ((("a", "b", i) for i in (1, 0)), BINARY, [("a", "b", 1), ("a", "b", 0)]),
    ],
)
def test_tuples_are_texts_and_then_the_label(rows, need, expected):
    if expected is None:
        expected = rows
    assert as_rows(rows, need).rows == expected


def test_dictionaries_are_read_by_their_names():
    """In another order a negative would be learned as the anchor."""
    rows = [{"negative": "n", "source": "faq", "anchor": "a", "positive": "p"}]
    table = as_rows(rows, PAIR_OR_MORE)
    assert table.rows == [("a", "p", "n")]
    assert table.note() == "rows: 1 rows; anchor, positive, negative; not read: source"


def test_columns_name_the_keys_of_dictionaries():
    rows = [{"stars": 4, "left": "a", "right": "b"}]
    assert as_rows(rows, SCORED, "left,right,stars").rows == [("a", "b", 4.0)]
    assert read_rows(rows, SCORED, "left,right,stars").rows == [("a", "b", 4.0)]


def test_a_dictionary_of_columns():
    rows = {"anchor": ["a", "c"], "positive": ["b", "d"]}
    assert as_rows(rows, PAIR_OR_MORE).rows == [("a", "b"), ("c", "d")]
    with pytest.raises(InputError, match="columns of different lengths: 2, 1"):
        as_rows({"anchor": ["a", "c"], "positive": ["b"]}, PAIR_OR_MORE)


def test_the_first_need_that_a_tuple_has():
    """dev may be scored pairs, or rows like those that are trained on."""
    needs = [SCORED, TRIPLET, PAIR]
    assert as_rows([("a", "b", 0.5)], needs).columns == SCORED
    assert as_rows([("a", "b", "c")], needs).columns == TRIPLET
    assert as_rows([("a", "b")], needs).columns == PAIR


@pytest.mark.parametrize(
    ("rows", "need", "message"),
    [
        ("a.csv", PAIR, "rows: a list of tuples is needed, not 'a.csv'; minisbert"),
        (Path("a.csv"), PAIR, r"rows: a list of tuples is needed, not .*read_rows"),
        ({("a", "b")}, PAIR, "a set, which has no order"),
        (np.array([["a", "b"]]), PAIR, r"rows\[0\]: array.* is no row; .*rows.tolist\(\)"),
        ([()], PAIR, r"rows\[0\]: \(\) is no row"),
        ([("a", "b", 0), ("c", "d", -1)], CLASSES, r"rows\[1\]: the label -1 .*leave out"),
        ([("a", "\ud800")], PAIR, r"rows\[0\]: .* lone surrogate at character 0"),
        (7, PAIR, "rows: a list of tuples is needed, not 7"),
        ([], PAIR, "rows is empty"),
        (["red cat", "old bus"], TEXT, r"rows\[0\]: 'red cat' is a text; .*\('red cat',\)"),
        ([("a", "b"), "c"], PAIR, r"rows\[1\]: 'c' is a text"),
        ([7], PAIR, r"rows\[0\]: 7 is no row"),
        ([("a", "b"), ("a", "b", "c")], PAIR_OR_MORE, r"rows\[1\]: 3 values; the first row has 2"),
        ([("a", "b")], TRIPLET, r"rows\[0\]: needed: three texts; not \('a', 'b'\)"),
        ([("a", "b", 0.5)], PAIR_OR_MORE, r"rows\[0\]: needed: two texts or more"),
        ([("a", "b", float("nan"))], SCORED, r"rows\[0\]: the score nan is not a number"),
        ([("a", "b", 1), ("c", "d", 2)], BINARY, r"rows\[1\]: the label 2 is not 0 or 1"),
        ([("a", 5), ("b", "c")], PAIR, r"rows\[0\]: needed: two texts"),
        ([("a", "b"), (5, "c")], PAIR, r"rows\[1\]: a text is needed, not 5"),
        ([{"a": "x", "b": "y"}], PAIR, "rows: its columns are a, b; needed: two texts"),
        (
            [{"anchor": "a", "positive": "b", "label": 1}],
            PAIR_OR_MORE,
            "columns='anchor,positive' leaves it out",
        ),
    ],
)
def test_what_is_no_row_is_named(rows, need, message):
    """With its place, as Python counts, its value, and what would do."""
    with pytest.raises(InputError, match=message):
        as_rows(rows, need)


def test_an_input_example_names_the_tuple_to_give():
    """sentence-transformers' former class has a label of 0 by default, which may mean nothing."""
    example = SimpleNamespace(texts=["a", "b"], label=0)
    with pytest.raises(InputError, match=r"rows\[0\]: .*\(\*example.texts, example.label\)"):
        as_rows([example], PAIR)


@pytest.mark.parametrize(
    ("rows", "need", "expected"),
    [
        ([("a", None), ("c", "d")], PAIR, [("c", "d")]),
        ([("a", float("nan")), ("c", "d")], PAIR, [("c", "d")]),
        ([("a", "b", None), ("c", "d", 0.5)], SCORED, [("c", "d", 0.5)]),
    ],
)
def test_the_first_row_may_lack_its_last_value(rows, need, expected):
    """It is skipped like any other row; the next one says what the rows are."""
    table = as_rows(rows, need)
    assert (table.rows, table.skipped) == (expected, [0])


def test_negatives_that_are_cut_off_are_told():
    """Rows have lists of different lengths, and all get as many as the shortest has."""
    table = as_rows([("a", "b", ["c", "d"]), ("e", "f", ["g"])], PAIR_OR_MORE)
    assert table.rows == [("a", "b", "c"), ("e", "f", "g")]
    assert table.note() == "rows: 2 rows; not read: negatives beyond 1 of a row"


def test_keys_that_are_numbers_are_named_as_texts():
    """A DataFrame without names has 0 and 1."""
    rows = [{0: "a", 1: "b"}]
    assert as_rows(rows, PAIR, "0,1").rows == [("a", "b")]
    with pytest.raises(InputError, match="columns='0,1'"):
        as_rows(rows, PAIR)


def test_rows_without_a_text_or_a_label_are_skipped():
    table = as_rows([("a", "b", 1.0), ("", "b", 1.0), ("a", "b", None)], SCORED)
    assert (table.rows, table.skipped) == ([("a", "b", 1.0)], [1, 2])


def test_a_dataframe():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"id": [1, 2], "anchor": ["a", "c"], "positive": ["b", None]})
    table = as_rows(frame, PAIR_OR_MORE)
    assert (table.rows, table.skipped, table.unread) == ([("a", "b")], [1], ["id"])


def test_a_row_of_a_dataframe_without_a_score_is_skipped():
    """pandas reads an empty cell of a file as NaN, and the command skips such a row."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"sentence1": ["a", "c"], "sentence2": ["b", "d"], "score": [0.5, float("nan")]}
    )
    table = as_rows(frame, SCORED)
    assert (table.rows, table.skipped) == ([("a", "b", 0.5)], [1])


def test_columns_are_one_text():
    with pytest.raises(InputError, match="columns is one text"):
        as_rows([{"a": "x", "b": "y"}], PAIR, ["a", "b"])


def test_a_dataframe_with_pandas_na():
    """NA is neither equal to itself nor different."""
    pandas = pytest.importorskip("pandas")
    texts = pandas.array(["a", pandas.NA], dtype="string")
    table = as_rows(pandas.DataFrame({"anchor": ["c", "d"], "positive": texts}), PAIR)
    assert (table.rows, table.skipped) == ([("c", "a")], [1])


def test_a_dataframe_with_a_name_twice():
    """pandas would leave out one of the two columns."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([["a", "b", "c"]], columns=["anchor", "positive", "positive"])
    with pytest.raises(InputError, match="two columns are called 'positive'"):
        as_rows(frame, PAIR)


def test_a_table_of_pyarrow():
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"positive": ["b", "d"], "anchor": ["a", "c"]})
    assert as_rows(table, PAIR).rows == [("a", "b"), ("c", "d")]


@pytest.fixture
def dataset():
    """A data set as the Hub has them, with names for its classes."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "idx": datasets.Value("int64"),
            "premise": datasets.Value("string"),
            "hypothesis": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["entailment", "neutral", "contradiction"]),
        }
    )
    columns = {
        "idx": [0, 1, 2],
        "premise": ["a", "a", "a"],
        "hypothesis": ["b", "c", "d"],
        "label": [0, -1, 2],
    }
    return datasets.Dataset.from_dict(columns, features=features)


def test_a_dataset_knows_the_names_of_its_classes(dataset):
    """So nobody has to know in which order its publisher numbers them; -1 is no class."""
    table = as_rows(dataset, CLASSES)
    assert table.rows == [("a", "b", "entailment"), ("a", "d", "contradiction")]
    assert (table.skipped, table.unread) == ([1], ["idx"])


@pytest.mark.parametrize("kind", ["torch", "numpy", "pandas"])
def test_a_dataset_that_gives_tensors(kind):
    """A score of another type than Python's is read all the same."""
    datasets = pytest.importorskip("datasets")
    columns = {"id": [7, 8], "sentence1": ["a", "c"], "sentence2": ["b", "d"], "score": [0.5, 1.0]}
    rows = datasets.Dataset.from_dict(columns).with_format(kind)
    assert as_rows(rows, SCORED).rows == [("a", "b", 0.5), ("c", "d", 1.0)]
    hidden = rows.with_format(kind, columns=["sentence1", "sentence2", "score"])
    assert as_rows(hidden, SCORED).unread == []


def test_one_split_of_a_dataset_is_needed(dataset):
    datasets = pytest.importorskip("datasets")
    splits = datasets.DatasetDict({"train": dataset, "validation": dataset})
    with pytest.raises(InputError, match="several splits, train, validation: give one of them"):
        as_rows(splits, CLASSES)


def test_a_folder_that_datasets_saved(dataset, tmp_path):
    """Whoever has odd data prepares it there."""
    datasets = pytest.importorskip("datasets")
    dataset.save_to_disk(tmp_path / "one")
    assert len(read_rows(tmp_path / "one", CLASSES).rows) == 2
    splits = datasets.DatasetDict({"train": dataset, "validation": dataset.select([0])})
    splits.save_to_disk(tmp_path / "two")
    assert len(read_rows(str(tmp_path / "two"), CLASSES, split="dev").rows) == 1
    with pytest.raises(InputError, match="no split test; it has train, validation"):
        read_rows(tmp_path / "two", CLASSES, split="test")


def test_a_saved_folder_without_datasets_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "dataset_dict.json").write_text("{}")
    with pytest.raises(InputError, match=r"pip install -e '\.\[datasets\]'"):
        read_rows(tmp_path, CLASSES)
