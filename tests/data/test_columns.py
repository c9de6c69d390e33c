"""The one rule: which columns are read, and what is said if a file is refused."""

import pytest

from minisbert.core import InputError
from minisbert.data.columns import Columns, choose_columns, listed_names, parse_names, role_of
from minisbert.data.records import Records

TEXT = Columns(1)
PAIR = Columns(2)
TRIPLET = Columns(3)
PAIR_OR_MORE = Columns(2, more_texts=True)
SCORED = Columns(2, "score")
CLASSES = Columns(2, "class")


def table(header: str, *rows: str) -> Records:
    """A table with commas."""
    names = header.split(",")
    items = []
    for number, row in enumerate(rows, start=2):
        items.append((number, dict(zip(names, row.split(","), strict=True))))
    return Records("a.csv", names, iter(items), separator=",")


def chosen(header: str, *needs: Columns, names: str | None = None) -> list[str]:
    return choose_columns(table(header), needs, names).names


# ----------------------------------------------------------------------------- columns by name


@pytest.mark.parametrize(
    ("header", "need", "names"),
    [
        ("sentence1,sentence2,score", SCORED, ["sentence1", "sentence2", "score"]),
        ("id,score,sentence2,Sentence1", SCORED, ["Sentence1", "sentence2", "score"]),
        ("sentence1,sentence2,label,idx", CLASSES, ["sentence1", "sentence2", "label"]),
        ("premise,hypothesis,label", CLASSES, ["premise", "hypothesis", "label"]),
        (
            "pair_ID,sentence_A,sentence_B,relatedness_score",
            SCORED,
            ["sentence_A", "sentence_B", "relatedness_score"],
        ),
        (
            "id,qid1,qid2,question1,question2,is_duplicate",
            Columns(2, "binary"),
            ["question1", "question2", "is_duplicate"],
        ),
        ("anchor,positive", PAIR_OR_MORE, ["anchor", "positive"]),
        ("query,answer", PAIR_OR_MORE, ["query", "answer"]),
        ("title,query,passage", PAIR_OR_MORE, ["query", "passage"]),
        ("text,simplified", PAIR_OR_MORE, ["text", "simplified"]),
        ("sent0,sent1,hard_neg", TRIPLET, ["sent0", "sent1", "hard_neg"]),
        ("negative,anchor,positive", PAIR_OR_MORE, ["anchor", "positive", "negative"]),
        (
            "neg_2,query,pos,neg_1",
            PAIR_OR_MORE,
            ["query", "pos", "neg_2", "neg_1"],
        ),
        ("id,text", TEXT, ["text"]),
        ("id,contents", TEXT, ["contents"]),
        ("query", TEXT, ["query"]),
        ("text,label", TEXT, ["text"]),
        ("question1,question2,label", Columns(2, ignores_label=True), ["question1", "question2"]),
    ],
)
def test_names_that_the_files_of_the_field_have(header, need, names):
    assert chosen(header, need) == names


@pytest.mark.parametrize(
    "name",
    [
        "neg",
        "negative",
        "negatives",
        "negative1",
        "neg_1",
        "hard_negative",
        "hard_neg",
        "hard_neg2",
    ],
)
def test_names_of_negatives(name):
    assert role_of(name) == "more"


def test_the_first_need_that_the_header_has():
    """evaluate measures what a file holds, and dev may be scored pairs where training has none."""
    needs = [SCORED, TRIPLET, PAIR]
    assert choose_columns(table("query,answer,label"), needs).columns == SCORED
    assert choose_columns(table("anchor,positive,negative"), needs).columns == TRIPLET
    assert choose_columns(table("anchor,positive"), needs).columns == PAIR


@pytest.mark.parametrize(
    ("header", "need", "first", "second"),
    [
        (
            "query,answer,label",
            PAIR_OR_MORE,
            "--columns query,answer leaves it out",
            "--columns query,answer,label is for what reads two texts and a label",
        ),
        (
            "anchor,positive,negative,score",
            SCORED,
            "--columns anchor,positive,score leaves it out",
            "--columns anchor,positive,negative,score is for",
        ),
        ("text,summary", TEXT, "--columns text or", "--columns summary"),
        ("query,document", TEXT, "--columns query or", "--columns document"),
        (
            "sentence1,sentence2,score,label",
            SCORED,
            "--columns sentence1,sentence2,score or",
            "--columns sentence1,sentence2,label",
        ),
        (
            "anchor,positive,neg1,neg2",
            TRIPLET,
            "--columns anchor,positive,neg1 or",
            "--columns anchor,positive,neg2",
        ),
        ("question,answer,passage", PAIR, "--columns question,answer or", "question,passage"),
    ],
)
def test_a_column_of_the_table_that_is_not_read_is_refused(header, need, first, second):
    """It may say what the rows mean: which pairs are positives, what a text belongs to."""
    with pytest.raises(InputError) as error:
        chosen(header, need)
    assert first in str(error.value)
    assert second in str(error.value)


# ------------------------------------------------------------------------------------- --columns


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("left,right,stars", ["left", "right", "stars"]),
        (" LEFT , right,stars", ["left", "right", "stars"]),
        ('left,right,"a, b"', ["left", "right", "a, b"]),
    ],
)
def test_columns_that_the_user_names(names, expected):
    records = Records("a.csv", ["stars", "left", "right", "a, b"], iter(()), separator=",")
    assert choose_columns(records, [SCORED], names).names == expected


def test_the_first_need_with_as_many_columns():
    records = table("a,b,c")
    assert choose_columns(records, [SCORED, PAIR], "a,b").columns == PAIR
    assert choose_columns(records, [PAIR_OR_MORE], "a,b,c").texts == ["a", "b", "c"]


def test_the_name_of_a_text_is_no_score():
    """evaluate reads three columns as two texts and a score, or as a triplet."""
    records = table("anchor,positive,negative,stars")
    needs = [SCORED, TRIPLET]
    assert choose_columns(records, needs, "anchor,positive,negative").columns == TRIPLET
    assert choose_columns(records, needs, "anchor,positive,stars").columns == SCORED


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("left,right", "--columns left,right names 2; needed: two texts and a score"),
        ("left,right,middle", "no column 'middle'; its columns are label, left, right"),
        ("left,left,label", "names a column twice"),
        ("label,left,right", "the texts come first.*--columns left,right,label"),
    ],
)
def test_columns_that_cannot_be_read(names, message):
    with pytest.raises(InputError, match=f"a.csv: .*{message}"):
        chosen("label,left,right", SCORED, names=names)


def test_two_columns_of_one_name():
    """Only one of them would be read. Of those that nobody reads any number may be alike."""
    with pytest.raises(InputError, match="two columns are called positive"):
        chosen("anchor,positive,positive", PAIR, names="anchor,positive")
    with pytest.raises(InputError, match="two columns are called positive"):
        chosen("anchor,positive,positive", PAIR)
    assert chosen("anchor,positive,,", PAIR) == ["anchor", "positive"]


def test_a_name_with_a_comma_stands_in_quotation_marks():
    assert parse_names('left, "a, b",c') == ["left", "a, b", "c"]


# ----------------------------------------------------------------------------- what would do


@pytest.mark.parametrize(
    ("header", "row", "need", "columns"),
    [
        (
            "Match (0-10),Customer wording,Our wording,agent",
            ["5.4,what do I do now,my password is wrong,agent 2", "0.1,is it late,it is,agent 3"],
            SCORED,
            "--columns 'Customer wording,Our wording,Match (0-10)'",
        ),
        (
            "Nr,Frage,Antwort",
            ["1,wie geht das,gut so", "2,wer ist da,nur ich"],
            PAIR_OR_MORE,
            "--columns Frage,Antwort",
        ),
        (
            "Nr,links,rechts,Note",
            ["1,wie geht das,gut so,4", "2,wer ist da,nur ich,3"],
            SCORED,
            "--columns links,rechts,Note",
        ),
        (
            "art,links,rechts",
            ["refund,wie geht das,gut so jetzt", "praise,wer ist da,nur ich allein"],
            CLASSES,
            "--columns links,rechts,art",
        ),
        ("doc", ["a cat", "a dog"], TEXT, "--columns doc"),
    ],
)
def test_a_file_without_the_names_is_refused_with_the_columns_that_read_it(
    header, row, need, columns
):
    with pytest.raises(InputError) as error:
        choose_columns(table(header, *row), [need])
    assert f"a.csv: its columns are {header.replace(',', ', ')}; needed: {need}" in str(error.value)
    assert columns in str(error.value)
    # what is proposed can be read
    names = columns.removeprefix("--columns ").strip("'")
    assert choose_columns(table(header, *row), [need], names)


def test_a_first_line_that_is_a_row_is_read_by_numbers():
    """A text and its class must not become anchor and positive without a word."""
    records = table("slow dog cat small,sports", "dog warm old new,news", "fast sky,tech")
    with pytest.raises(InputError, match="if the first line is a row, --columns 1,2"):
        choose_columns(records, [PAIR_OR_MORE])


def test_a_file_without_enough_columns_is_told_so():
    with pytest.raises(InputError, match="needed: three texts: a column is missing"):
        choose_columns(table("anchor,positive", "a,b"), [TRIPLET])


def test_semicolons_are_named_with_the_header():
    records = Records("a.csv", ["Satz A", "Satz B"], iter(()), separator=";")
    with pytest.raises(InputError, match="Satz A, Satz B, separated by semicolons"):
        choose_columns(records, [PAIR])


def test_thousands_of_names_with_a_role_are_refused_at_once():
    """All ways to choose three of them would fill the memory."""
    names = [f"{word}{i}" for word in ("neg", "negative_", "hard_neg") for i in range(2_000)]
    names += ["anchor"] * 3_000 + ["positive"] * 3_000
    with pytest.raises(InputError, match="two columns are called anchor"):
        choose_columns(Records("a.csv", names, iter(())), [Columns(3)])


def test_a_million_columns_make_a_short_message():
    names = [f"c{i}" for i in range(1_000_000)]
    with pytest.raises(InputError, match=r"c0, c1, .* and 999,992 more") as error:
        choose_columns(Records("a.csv", names, iter(()), separator=","), [SCORED])
    assert len(str(error.value)) < 500


def test_names_that_are_no_names_are_quoted():
    assert listed_names(["a b", "c\td", "x" * 70]) == "a b, 'c\\td', '" + "x" * 60 + "'..."


def test_python_is_told_in_its_own_words():
    records = Records("rows", ["a", "b"], iter([(0, {"a": "x y", "b": "z"})]), unit="index")
    with pytest.raises(InputError, match="rows: its columns are a, b; needed: two texts"):
        choose_columns(records, [PAIR])
    with pytest.raises(InputError, match="columns='a,b,c'"):
        choose_columns(records, [PAIR], "a,b,c")
