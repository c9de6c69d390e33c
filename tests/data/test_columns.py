"""A column that says what a row means is read, or the file is refused; a container is rows, and never a text."""

import json
import pickle
from pathlib import Path

import pytest

from minisbert.core import InputError
from minisbert.data.datasets import Sources, class_rows, load_scored_pairs, multilabel_rows, sentence_rows, triplet_rows
from minisbert.data.formats import LABELLED, MULTILABEL, NLI, PAIRS, SCORED, Row, class_names
from minisbert.data.lines import every_text
from minisbert.data.reader import read_file, recognise
from minisbert.diagnosis.inspection import inspect
from minisbert.evaluation.sts import load_rows
from tests.conftest import ROOT

MINED = [{"query": f"cat {i} sleeps", "answers": [f"yes {i}", f"no {i}", f"never {i}"]} for i in range(4)]
TRIPLETS = [(f"cat {i} sleeps", f"yes {i}", f"no {i}", f"never {i}") for i in range(4)]


def table(header: str, *rows: str, count: int = 12) -> str:
    """A .csv whose rows take turns; {} is the number of the row."""
    lines = [rows[i % len(rows)].replace("{}", str(i)) for i in range(count)]
    return "\n".join([header, *lines, ""])


def mined_lists(**more: object) -> list[dict[str, object]]:
    return [row | more for row in MINED]


# --------------------------------------------------------------------------- labels beside query and answers


@pytest.mark.parametrize("name", ["labels", "label"])
def test_a_list_of_labels_divides_the_answers_into_positives_and_negatives(write, name):
    rows = mined_lists(**{name: [1, 0, 0]})
    lines = "\n".join(map(json.dumps, rows))
    cells = "\n".join(f'{row["query"]},"{row["answers"]}","[1, 0, 0]"' for row in rows)  # as pandas writes lists
    for file, content in (
        ("a.jsonl", lines),
        ("a.json", json.dumps(rows, indent=2)),
        ("pretty.jsonl", json.dumps(rows, indent=2)),
        ("line.jsonl", json.dumps(rows)),
        ("array.txt", json.dumps(rows, indent=1)),
        ("a.csv", f"query,answers,{name}\n{cells}\n"),
    ):
        path = write(file, content)
        assert triplet_rows(Sources(data=str(path)))[0] == TRIPLETS
        assert inspect(path).usable


def test_what_sentence_transformers_mines_is_the_same_in_each_of_its_layouts(write):
    mine = pytest.importorskip("sentence_transformers.util", reason="needs the reference extra").mine_hard_negatives
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer

    words = "cat dog park music rain house small the".split()
    pairs = {"query": [f"the {word}" for word in words], "answer": [f"a {word} is here" for word in words]}
    model = SentenceTransformer(str(ROOT / "weights" / "tiny"), device="cpu")
    rows = {}
    for layout in ("n-tuple", "labeled-list", "labeled-pair"):
        mined = mine(Dataset.from_dict(pairs), model, num_negatives=2, output_format=layout, verbose=False)
        rows[layout] = write(f"{layout}.jsonl", "\n".join(json.dumps(row) for row in mined))
    expected = [row.texts for row in read_file(rows["n-tuple"], PAIRS).rows]
    assert [len(row) for row in expected] == [4] * 8
    assert triplet_rows(Sources(data=str(rows["labeled-list"])))[0] == expected
    assert recognise(rows["labeled-pair"]) is LABELLED
    labels = [row.label for row in read_file(rows["labeled-pair"], LABELLED).rows]
    assert (labels.count(1), labels.count(0)) == (8, 16)


@pytest.mark.parametrize("header", ["query,answer,label", "anchor,positive,label", "question,pos,is_duplicate"])
def test_pairs_with_a_label_are_labelled_pairs_and_not_positives(write, header):
    path = write("a.csv", table(header, "cat {},kitten {},1", "cat {},rain {},0"))
    assert recognise(path) is LABELLED
    assert load_rows(str(path))[1].rows[:2] == [Row(("cat 0", "kitten 0"), 1), Row(("cat 1", "rain 1"), 0)]
    with pytest.raises(InputError, match=r"line 3: .*--columns"):
        triplet_rows(Sources(data=str(path)))
    first, second, _ = header.split(",")
    rows, _ = triplet_rows(Sources(data=str(path), columns=f"{first},{second}"))
    assert len(rows) == 12


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (table("anchor,positive,score", "cat {},kitten {},0.9"), "score"),
        (table("query,passage,relevance", "cat {},kitten {},2", "cat {},rain {},0"), "relevance"),
        (table("query,passage,is_selected", "cat {},kitten {},1", "cat {},rain {},0"), "is_selected"),
        (table("question,answer", "what is {},{}"), "'0'"),
        (table("anchor,positive,negative", "cat {},kitten {},0", "cat {},kitten {},1"), "'0'"),
    ],
)
def test_a_score_or_a_number_is_no_text_of_a_pair(write, content, word):
    path = write("a.csv", content)
    with pytest.raises(InputError, match=word):
        triplet_rows(Sources(data=str(path)))
    if "score" not in content:
        assert not inspect(path).usable
    names = ",".join(content.split("\n")[0].split(",")[:2])
    assert len(triplet_rows(Sources(data=str(path), columns=names))[0]) == 12


def test_short_answers_that_differ_are_texts(write):
    path = write("a.csv", table("question,answer,views", "what is {},word{},1{}"))
    rows, about = triplet_rows(Sources(data=str(path)))
    assert (rows[0], "views" in about) == (("what is 0", "word0"), True)


def test_a_list_without_names_whose_last_item_is_a_class(write):
    path = write("a.jsonl", "\n".join(json.dumps([f"a text {i}", ("sports", "news")[i % 2]]) for i in range(8)))
    with pytest.raises(InputError, match="sports"):
        recognise(path)


# ------------------------------------------------------------------------------------------------- classes


def test_0_and_1_alone_under_premise_and_hypothesis_are_similar_or_not(write):
    content = table("premise,hypothesis,label", "cat {},dog {},0", "cat {},kitten {},1", count=20)
    found = {}
    for header in ("premise,hypothesis", "sentence1,sentence2"):
        path = write("a.csv", content.replace("premise,hypothesis", header))
        rows, _, classes = class_rows(Sources(data=str(path)))
        found[header] = (recognise(path), rows, classes, load_rows(str(path))[1].rows)
    assert found["premise,hypothesis"] == found["sentence1,sentence2"]
    assert found["premise,hypothesis"][2] == ("0", "1")
    path = write("b.csv", content + "x,y,2\n")
    assert set(class_rows(Sources(data=str(path)))[2]) == {"entailment", "neutral", "contradiction"}


def test_minus_1_is_no_gold_label_as_pandas_writes_it(write):
    content = table(
        "premise,hypothesis,label", *(f"cat {{}},dog {{}},{label}" for label in ("-1.0", "0.0", "1.0", "2.0"))
    )
    table_of_nli = read_file(write("a.csv", content), NLI)
    assert table_of_nli.skipped == 3
    assert [row.label for row in table_of_nli.rows[:3]] == ["entailment", "neutral", "contradiction"]
    own = read_file(write("a.jsonl", '{"sentence1": "a", "sentence2": "b", "label": 3.0}'), NLI)
    assert own.rows[0].label == "3"  # the same class as 3


def test_classes_of_ones_own_beside_neutral(write):
    labels = ("positive", "neutral", "negative")
    path = write("a.csv", table("text1,text2,label", *(f"cat {{}},dog {{}},{label}" for label in labels), count=30))
    assert class_rows(Sources(data=str(path)))[2] == ("negative", "neutral", "positive")
    assert inspect(path).usable
    with pytest.raises(ValueError, match="Neutral"):
        class_names(["entailment", "neutral", "Neutral"])


@pytest.mark.parametrize("label", ["neutral", "2"])
def test_classes_are_no_scores(write, label):
    path = write("a.csv", table("premise,hypothesis,label", "a {},b {},0", f"c {{}},d {{}},{label}"))
    for read in (lambda: load_rows(str(path)), lambda: load_scored_pairs(path)):
        with pytest.raises(InputError, match="classes"):
            read()


# --------------------------------------------------------------------------------------- lists in a cell


def test_lists_in_a_cell_are_lists(write):
    path = write(
        "a.csv", table("anchor,positive,negatives", '''cat {},kitten {},"['dog {}', ""the cat's"", 'a, b']"''')
    )
    assert triplet_rows(Sources(data=str(path)))[0][0] == ("cat 0", "kitten 0", "dog 0", "the cat's", "a, b")
    content = table("text1,text2,labels", '''a {},b {},"['rude', 'spam']"''', "c {},d {},[]", "e {},f {},['mild']")
    rows, _, names = multilabel_rows(Sources(data=str(write("a.csv", content))))
    assert names == ("mild", "rude", "spam")
    assert {tuple(row.label) for row in rows["train"]} == {(0, 1, 1), (0, 0, 0), (1, 0, 0)}
    path = write("b.csv", table("tags,left,right", '"[0, 1, 1]",a {},b {}', '"[1, 0, 0]",c {},d {}'))
    assert multilabel_rows(Sources(data=str(path), columns="tags,left,right"))[2] == ("0", "1", "2")


@pytest.mark.parametrize(
    "content",
    [
        table("anchor,positive,negatives", "cat {},kitten {},['dog' 'rain']"),  # NumPy's
        table("anchor,positive,negatives", "cat {},kitten {},['dog' ... 'rain']"),
        table("text1,text2,labels", "a {},b {},[0 1 0]"),
        table("text1,text2,label", "a {},\"['b', 'c']\",1"),
        table("text", "\"['a', 'b']\""),
    ],
)
def test_a_list_that_cannot_be_read_is_no_text(write, content):
    path = write("a.csv", content)
    assert not inspect(path).usable
    assert "list" in str(inspect(path).findings) or "two texts" in str(inspect(path).findings)


def test_brackets_in_a_text_are_text(write):
    path = write("a.csv", "anchor,positive\n[MASK] is a [token],[deleted]\n[1],[2020] and\n")
    assert triplet_rows(Sources(data=str(path)))[0] == [("[MASK] is a [token]", "[deleted]"), ("[1]", "[2020] and")]


# ------------------------------------------------------------------------------------------ whole files


@pytest.mark.parametrize(
    "content", [json.dumps(["a b", "c d"]), json.dumps([{"text": "a b"}, {"text": "c d"}], indent=2)]
)
def test_an_array_of_texts_is_texts(write, content):
    path = write("a.json", content)
    assert list(every_text(path)) == sentence_rows(Sources(data=str(path)))[0] == ["a b", "c d"]
    assert [len(inspect(path).lines), inspect(path).name] == [2, "sentences"]


@pytest.mark.parametrize("end", ["", "\n", "\n\n \n"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_the_only_line_of_a_file_is_a_container(write, name, end):
    texts = ["a b", "c d", "e f", "g h"]
    path = write(name, end + json.dumps(texts) + end)
    assert list(every_text(path)) == sentence_rows(Sources(data=str(path)))[0] == texts
    with pytest.raises(InputError, match=f"{name}, item 1"):
        read_file(path, PAIRS)
    rows = write("b.jsonl", json.dumps([texts[:2], texts[2:]]) + end)
    assert [row.texts for row in read_file(rows, PAIRS).rows] == [("a b", "c d"), ("e f", "g h")]
    # several lines are rows, and so are two or three texts alone
    lines = write("c.jsonl", f"{json.dumps(texts)}\n{end}{json.dumps(texts)}\n")
    assert [row.texts for row in read_file(lines, PAIRS).rows] == [tuple(texts)] * 2
    alone = write("d.jsonl", json.dumps(texts[:3]) + end)
    assert [row.texts for row in read_file(alone, PAIRS).rows] == [tuple(texts[:3])]


def test_objects_of_a_txt_are_no_lines_of_text(write):
    path = write("a.txt", '{"text": "a b"}\n{"text": "c d"}\n')
    assert list(every_text(path)) == sentence_rows(Sources(data=str(path)))[0] == ["a b", "c d"]
    with pytest.raises(InputError, match="a text is needed"):  # rows, each a list
        list(every_text(write("c.txt", '["a b", "c d"]\n["e f", "g h"]\n')))
    path = write("b.txt", "[1] a note\n[a list]\n")
    assert list(every_text(path)) == ["[1] a note", "[a list]"]


def test_an_object_over_several_lines(write):
    with pytest.raises(InputError, match="several lines"):
        recognise(write("a.json", json.dumps({"data": MINED}, indent=2)))


ROWS = 6
NAMED = {  # the first line, what each row has after two texts, and what the file is: a format, or a word of the refusal
    "other classes of NLI": ("premise,hypothesis,label", [1, 2, 3], NLI),  # whose 3 the reader refuses
    "NLI's": ("premise,hypothesis,label", [0, 1, 2, -1.0], NLI),
    "fractions": ("premise,hypothesis,label", [0.5, 1, 2.25], SCORED),
    "classes or scores": ("sentence1,sentence2,label", [0, 1, 2], "call the column score"),
    "with no gold label": ("sentence1,sentence2,label", [0, 1, 2, -1], "call the column score"),
    "called scores": ("sentence1,sentence2,score", [0, 1, 2], SCORED),
    "whole scores": ("sentence1,sentence2,label", [1, 2, 3, 4, 5], SCORED),
    "of pandas": ("sentence1,sentence2,label", [True, False], LABELLED),
    "a gap": ("sentence1,sentence2,label", [0, 1, ""], LABELLED),  # which the reader refuses
}


@pytest.mark.parametrize("name", NAMED)
def test_whole_numbers_as_labels(write, name):
    header, labels, expected = NAMED[name]
    rows = [f"a cat {i},a dog {i},{labels[i % len(labels)]}" for i in range(ROWS)]
    path = write("a.csv", "\n".join([header, *rows]))
    if isinstance(expected, str):
        with pytest.raises(InputError, match=f"a.csv.*{expected}"):
            recognise(path)
        return
    assert recognise(path) is expected
    if name in ("other classes of NLI", "a gap"):
        with pytest.raises(InputError, match=r"a\.csv, line 4"):
            read_file(path, expected)
    else:
        assert len(read_file(path, expected).rows) + read_file(path, expected).skipped == ROWS


def test_true_and_false_are_1_and_0(write):
    rows = [{"sentence1": "a", "sentence2": "b", "label": True}, {"sentence1": "c", "sentence2": "d", "label": False}]
    lines = write("a.jsonl", "\n".join(map(json.dumps, rows)))
    cells = write("a.csv", "sentence1,sentence2,label\na,b,True\nc,d,False\n")
    for path in (lines, cells):
        assert recognise(path) is LABELLED
        assert [row.label for row in read_file(path, LABELLED).rows] == [1, 0]
    mined = write("b.jsonl", json.dumps({"query": "a", "answers": ["b", "c", "d"], "label": [True, False, False]}))
    assert read_file(mined, PAIRS).rows[0].texts == ("a", "b", "c", "d")


def test_two_columns_of_one_name(write):
    path = write("a.csv", "text,text\na cat,a dog\n")
    with pytest.raises(InputError, match="two columns"):
        list(every_text(path))
    for content in ("anchor,positive,positive\na,b,c\n", "anchor,positive,anchor\na,b,c\n"):
        with pytest.raises(InputError, match="two columns"):
            read_file(write("b.csv", content), PAIRS)
    # of columns that are not read, any number may have the same name, or none
    assert read_file(write("c.csv", "anchor,positive,,\na,b,,\n"), PAIRS).rows[0].texts == ("a", "b")


def test_identifiers_are_no_texts(write):
    ids = "\n".join(f"q{i}\td{i}\td{i + 9}" for i in range(ROWS))
    with pytest.raises(InputError, match=r"'q0' .*identifiers"):
        recognise(write("a.tsv", "anchor\tpositive\tnegative\n" + ids))
    texts = "\n".join(f"what is {i}?\td{i}" for i in range(ROWS))  # short answers
    assert recognise(write("b.tsv", "anchor\tpositive\n" + texts)) is PAIRS


def test_a_list_in_a_string_of_json_is_a_list_as_in_a_cell(write):
    row = {"anchor": "a", "positive": "['b', 'c']", "negative": "[MASK] is a [token]"}
    rows = read_file(write("a.jsonl", json.dumps(row)), PAIRS).rows
    assert [one.texts for one in rows] == [("a", "b", row["negative"]), ("a", "c", row["negative"])]
    labelled = {"sentence1": "a", "sentence2": "b", "labels": "[0, 1]"}
    assert read_file(write("b.jsonl", json.dumps(labelled)), MULTILABEL).rows[0].label == ("1",)
    numpys = {"anchor": "a", "positive": "['b' 'c']"}
    with pytest.raises(InputError, match=r"c\.jsonl, line 1: .*list that cannot be read"):
        read_file(write("c.jsonl", json.dumps(numpys)), PAIRS)


FOREIGN = {
    "a.txt": (b"<!DOCTYPE html>\n<p>not found</p>", "web page"),
    "b.txt": (b"<html><body>", "web page"),
    "c.txt": (b'<?xml version="1.0"?>', "XML"),
    "b.csv": ("anchor,positive\na,b\n".encode("utf-16-le"), "UTF-16"),
    "c.csv": ("anchor,positive\na,b\n".encode("utf-16-be"), "UTF-16"),
    "a.parquet": (b"PAR1\x15\x04\x15", "Parquet"),
    "a.xlsx": (b"PK\x03\x04\x14\x00", "Excel"),
    "a.xls": (b"\xd0\xcf\x11\xe0\xa1\xb1", "Excel"),
    "a.pkl": (pickle.dumps(MINED), "pickle"),
    "a.arrow": (b"\xff\xff\xff\xff\x00", "Arrow"),
    "a.npy": (b"\x93NUMPY\x01\x00", "NumPy"),
    "a.jsonl": (b"\x1f\x8b\x08\x00", "gzip"),
    "a.csv": ("anchor,positive\na,b\n".encode("utf-16"), "UTF-16"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_that_is_no_text_is_called_what_it_is(write, name):
    content, kind = FOREIGN[name]
    path = write(name, content)
    for read in (recognise, lambda path: read_file(path, SCORED), lambda path: list(every_text(path))):
        with pytest.raises(InputError, match=kind):
            read(path)


def test_the_files_that_pandas_writes(tmp_path: Path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(mined_lists(labels=[1, 0, 0]))
    frame.to_csv(tmp_path / "a.csv")
    frame.to_json(tmp_path / "a.json", orient="records", indent=1)
    for name in ("a.csv", "a.json"):
        assert triplet_rows(Sources(data=str(tmp_path / name)))[0] == TRIPLETS
    frame.to_pickle(tmp_path / "a.pkl")
    with pytest.raises(InputError, match="pickle"):
        recognise(tmp_path / "a.pkl")
