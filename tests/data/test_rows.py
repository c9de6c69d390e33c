"""Rows from files: their texts, scores and classes, what is skipped, and the one line."""

import json

import pytest

from minisbert.core import InputError
from minisbert.data.columns import Columns
from minisbert.data.rows import (
    Table,
    choose_scale,
    divide_scores,
    highest_in_name,
    load_scored_pairs,
    nli_triplets,
    read_rows,
)

TEXT = Columns(1)
PAIR = Columns(2)
PAIR_OR_MORE = Columns(2, more_texts=True)
TRIPLET = Columns(3)
SCORED = Columns(2, "score")
BINARY = Columns(2, "binary")
CLASSES = Columns(2, "class")

# ---------------------------------------------------------------------------------- rows and lines


@pytest.mark.parametrize(
    ("content", "need", "rows", "line"),
    [
        (
            "sentence1,sentence2,score\na,b,4.5\nc,d,0\n",
            SCORED,
            [("a", "b", 4.5), ("c", "d", 0.0)],
            "a.csv: 2 rows; sentence1, sentence2, score",
        ),
        (
            "id,genre,sentence2,score,sentence1\n1,x,b,4.5,a\n",
            SCORED,
            [("a", "b", 4.5)],
            "a.csv: 1 rows; sentence1, sentence2, score; not read: id, genre",
        ),
        (
            "score;sentence1;sentence2\n0,5;sea, blue;rain\n",
            SCORED,
            [("sea, blue", "rain", 0.5)],
            "a.csv: 1 rows; sentence1, sentence2, score; separated by semicolons",
        ),
        (
            "question1,question2,is_duplicate\na,b,1\nc,d,0.0\n",
            BINARY,
            [("a", "b", 1), ("c", "d", 0)],
            "a.csv: 2 rows; question1, question2, is_duplicate",
        ),
        (
            "premise,hypothesis,label\na,b,1\nc,d,0\n",
            CLASSES,
            [("a", "b", "1"), ("c", "d", "0")],
            "a.csv: 2 rows; premise, hypothesis, label; 2 classes: 0, 1",
        ),
        (
            "sentence1,sentence2,label\na,b,refund\nc,d,praise\n",
            CLASSES,
            [("a", "b", "refund"), ("c", "d", "praise")],
            "a.csv: 2 rows; sentence1, sentence2, label; 2 classes: praise, refund",
        ),
        (
            "anchor,positive\na,b\n",
            PAIR_OR_MORE,
            [("a", "b")],
            "a.csv: 1 rows; anchor, positive",
        ),
        (
            "sent0,sent1,hard_neg\na,b,c\n",
            TRIPLET,
            [("a", "b", "c")],
            "a.csv: 1 rows; sent0, sent1, hard_neg",
        ),
        (
            "id,contents\n1,a\n",
            TEXT,
            [("a",)],
            "a.csv: 1 rows; contents; not read: id",
        ),
    ],
)
def test_rows_and_the_one_line(write, content, need, rows, line):
    """Texts first, then the label; the line says what was read and what was not."""
    table = read_rows(write("a.csv", content), need)
    assert table.rows == rows
    assert table.note().endswith(line)


def test_a_file_of_texts(write):
    table = read_rows(write("a.txt", "one, two\n\n[1] a note\n"), TEXT)
    assert table.rows == [("one, two",), ("[1] a note",)]
    assert table.note().endswith(
        "a.txt: 2 rows, 1 skipped (an empty text or no label); a text in each line"
    )


def test_a_table_without_a_header(write):
    table = read_rows(write("a.csv", "4,a,b\n3,c,d\n"), SCORED, "2,3,1")
    assert table.rows == [("a", "b", 4.0), ("c", "d", 3.0)]
    assert table.note().endswith("a.csv: 2 rows; column 2, column 3, column 1")


def test_what_is_skipped_is_counted(write):
    """Empty texts, missing labels, and the empty rows that spreadsheets write at the end."""
    path = write("a.csv", "sentence1,sentence2,is_duplicate\na,b,1\n,b,1\na,b,\na, ,0\n,,\nc,d,0\n")
    table = read_rows(path, BINARY)
    assert table.rows == [("a", "b", 1), ("c", "d", 0)]
    assert table.places == [2, 7]
    assert table.skipped == [3, 4, 5, 6]
    assert "2 rows, 4 skipped (an empty text or no label)" in table.note()


def test_null_is_nothing(write):
    """pandas writes null for a missing cell."""
    path = write("a.jsonl", '{"query": "a", "answer": null}\n{"query": "b", "answer": "c"}\n')
    assert read_rows(path, PAIR).rows == [("b", "c")]


def test_snli_without_agreement_is_skipped(write):
    lines = [
        '{"gold_label": "-", "sentence1": "a", "sentence2": "b"}',
        '{"gold_label": "neutral", "sentence1": "a", "sentence2": "c"}',
        '{"gold_label": "entailment", "sentence1": "a", "sentence2": "d"}',
    ]
    table = read_rows(write("a.jsonl", "\n".join(lines)), CLASSES)
    assert table.rows == [("a", "c", "neutral"), ("a", "d", "entailment")]
    assert table.skipped == [1]


@pytest.mark.parametrize(
    ("content", "need", "message"),
    [
        ("sentence1,sentence2,score\na,b,3\nc,d,high\n", SCORED, "line 3: the score 'high'"),
        ("sentence1,sentence2,score\na,b,nan\n", SCORED, "line 2: the score 'nan'"),
        ("sentence1,sentence2,score\na,b,entailment\n", SCORED, "line 2: the score 'entailment'"),
        ("sentence1,sentence2,label\na,b,2\n", BINARY, "line 2: the label '2' is not 0 or 1"),
        ("sentence1,sentence2,label\na,b,4.5\n", CLASSES, "line 2: the label '4.5'"),
        ("anchor,positive\na,\"['b', 'c']\"\n", PAIR, "line 2: a text is needed"),
        ("sentence1,sentence2,score\n", SCORED, "holds no usable rows"),
        ("anchor,positive\n,b\na,\n", PAIR, r"no usable rows \(2 were skipped"),
    ],
)
def test_a_row_that_cannot_be_read_names_file_line_and_value(write, content, need, message):
    with pytest.raises(InputError, match=rf"a\.csv.*{message}"):
        read_rows(write("a.csv", content), need)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"anchor": "a", "positive": "b"}\n{"anchor": "c"}', "line 2: no 'positive'; the keys"),
        ('{"anchor": "a", "positive": 5}', "line 1: a text is needed, not 5"),
        ('{"anchor": "a", "positive": {"text": "p"}}', "line 1: a text is needed"),
    ],
)
def test_an_object_that_cannot_be_read(write, content, message):
    with pytest.raises(InputError, match=rf"a\.jsonl, {message}"):
        read_rows(write("a.jsonl", content), PAIR)


def test_a_limit_counts_the_rows_that_are_skipped(write):
    """Nothing behind it is read."""
    path = write("a.csv", "anchor,positive\na,b\n,\nc,d\ne,f,broken\n")
    assert read_rows(path, PAIR, limit=3).rows == [("a", "b"), ("c", "d")]


def test_several_files_one_after_the_other(write):
    """A file with a comma in its name is one file."""
    first = write("a.csv", "anchor,positive\na,b\n")
    second = write("b.csv", "anchor,positive,id\nc,d,1\n")
    comma = write("a,b.csv", "anchor,positive\ne,f\n")
    table = read_rows(f"{first},{second}", PAIR)
    assert table.rows == [("a", "b"), ("c", "d")]
    assert table.note() == f"{first},{second}: 2 rows; anchor, positive; not read: id"
    assert read_rows(f"{first},{second}", PAIR, limit=1).rows == [("a", "b")]
    third = write("c.csv", "anchor,positive,negative\ne,f,g\n")
    with pytest.raises(InputError, match="no negative; other rows have some"):
        read_rows(f"{first},{third}", PAIR_OR_MORE)
    assert read_rows(str(comma), PAIR).rows == [("e", "f")]


# ------------------------------------------------------------------------------------- lists


def test_lists_of_positives_and_negatives(write):
    """FlagEmbedding's files: a row for each positive, as many negatives as the shortest list."""
    lines = [
        '{"query": "a", "pos": ["p", "q"], "neg": ["n", "m"]}',
        '{"query": "b", "pos": ["r"], "neg": ["k"]}',
    ]
    table = read_rows(write("a.jsonl", "\n".join(lines)), PAIR_OR_MORE)
    assert table.rows == [("a", "p", "n"), ("a", "q", "n"), ("b", "r", "k")]
    assert table.unread == ["negatives beyond 1 of a row"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": ["a", "b"], "pos": ["p"], "neg": ["n"]}, "line 2: one anchor is needed, not 2"),
        ({"query": "a", "pos": ["p"], "neg": []}, "line 2: no negative; other rows have some"),
        ({"query": "a", "pos": ["p"], "neg": [["n"]]}, "line 2: a text is needed"),
    ],
)
def test_lists_that_are_no_row(write, row, message):
    good = json.dumps({"query": "a", "pos": ["p"], "neg": ["n"]})
    with pytest.raises(InputError, match=message):
        read_rows(write("a.jsonl", f"{good}\n{json.dumps(row)}"), PAIR_OR_MORE)


# ------------------------------------------------------------------------------------- splits

SPLIT_FILE = (
    "split,sentence1,sentence2,label\n"
    "train,a,b,1\ntrain,c,d,0\nvalidation,e,f,1\ntest,g,h,1\ndev,i,j,0\n"
)


def test_a_column_split_chooses_the_rows(write):
    """One file serves as train, dev and test, under the names that data sets have for them."""
    path = write("a.csv", SPLIT_FILE)
    assert read_rows(path, BINARY, split="train").rows == [("a", "b", 1), ("c", "d", 0)]
    assert read_rows(path, BINARY, split="dev").rows == [("e", "f", 1), ("i", "j", 0)]
    line = read_rows(path, BINARY, split="test").note()
    assert line.endswith("split test, not the 4 rows of train, dev")


def test_a_split_that_is_not_there(write):
    with pytest.raises(InputError, match=r"no row has the split dev: .* are fold 1; write dev"):
        read_rows(write("a.csv", "split,anchor,positive\nfold 1,a,b\n"), PAIR_OR_MORE, split="dev")


def test_without_a_split_the_column_is_named(write):
    table = read_rows(write("a.csv", SPLIT_FILE), BINARY)
    assert (len(table.rows), table.unread) == (5, ["split"])


# --------------------------------------------------------------------------- numbers of classes


@pytest.mark.parametrize("header", ["premise,hypothesis,label", "sentence1,sentence2,label"])
@pytest.mark.parametrize("need", [CLASSES, SCORED])
def test_numbers_of_nli_are_refused(write, header, need):
    """0 is entailment at Hugging Face, and contradiction in SBERT's own script."""
    path = write("a.csv", f"{header}\na,b,0\na,c,1\na,d,2\na,e,-1\n")
    with pytest.raises(InputError, match=r"different orders.*--columns"):
        read_rows(path, need)


def test_numbers_that_the_user_names_are_classes(write):
    path = write("a.csv", "premise,hypothesis,label\na,b,0\na,c,1\na,d,2\n")
    table = read_rows(path, CLASSES, "premise,hypothesis,label")
    assert table.classes() == ["0", "1", "2"]


def test_labels_of_0_and_1_are_the_same_under_every_name(write):
    for header in ("premise,hypothesis,label", "sentence1,sentence2,label"):
        path = write("a.csv", f"{header}\na,b,0\nc,d,1\n")
        assert read_rows(path, SCORED).rows == [("a", "b", 0.0), ("c", "d", 1.0)]


# -------------------------------------------------------------------------------------- scales


@pytest.mark.parametrize(
    ("scores", "scale"),
    [([0, 0.4, 1], 1), ([-1, 0.5], 1), ([0, 1.1], 5), ([4.2, 5], 5), ([7], 10), ([0, 99.5], 100)],
)
def test_the_smallest_usual_scale_that_no_score_exceeds(scores, scale):
    assert choose_scale(scores) == scale


def test_a_scale_above_100_must_be_given():
    with pytest.raises(InputError, match=r"a.csv: the highest score is 250.*--scale 250"):
        choose_scale([0, 250], "a.csv")


def test_scores_are_divided_and_the_line_says_it():
    table = Table("a.csv", SCORED, [("a", "b", 4.0), ("c", "d", -5.0)], names=["x", "y", "s"])
    divided = divide_scores(table, 5)
    assert divided.rows == [("a", "b", 0.8), ("c", "d", -1.0)]
    assert divided.note() == "a.csv: 2 rows; x, y, s / 5"


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_none(scale):
    """Scores that are divided by it would be no numbers, which nothing notices."""
    with pytest.raises(InputError, match="a number above 0"):
        divide_scores(Table("a.csv", SCORED, [("a", "b", 0.0)], places=[2]), scale)


def test_a_score_beyond_the_scale_names_its_line(write):
    table = read_rows(write("a.csv", "sentence1,sentence2,score\na,b,1\nc,d,6\n"), SCORED)
    with pytest.raises(InputError, match=r"a\.csv, line 3: the score 6 is beyond the scale of 5"):
        divide_scores(table, 5)


def test_a_million_digits_do_not_hang(write):
    path = write("a.csv", "sentence1,sentence2,score\na,b," + "7" * 1_000_000 + "x\n")
    with pytest.raises(InputError, match="line 2: the score '777"):
        read_rows(path, SCORED)


# ----------------------------------------------------------------------------------- rows of NLI


def test_triplets_of_nli_by_hand():
    """First entailment with first contradiction; neutral does not count; premises in the order of
    their first row.
    """
    rows = [
        ("p", "p neutral", "neutral"),
        ("q", "q no 1", "contradiction"),
        ("p", "p no", "contradiction"),
        ("only neutral", "y", "entailment"),
        ("q", "q no 2", "contradiction"),
        ("q", "q yes 1", "entailment"),
        ("p", "p yes", "entailment"),
        ("q", "q yes 2", "entailment"),
    ]
    table = nli_triplets(Table("a.jsonl", CLASSES, rows, places=list(range(1, 9))))
    assert table.rows == [("p", "p yes", "p no"), ("q", "q yes 1", "q no 1")]
    assert table.places == [1, 2]


def test_a_file_as_snli_writes_it_gives_triplets(write):
    """gold_label is the name that only SNLI and MultiNLI have."""
    lines = []
    for label, text in (("entailment", "yes"), ("neutral", "maybe"), ("contradiction", "no")):
        lines.append(json.dumps({"gold_label": label, "sentence1": "p", "sentence2": text}))
    table = read_rows(write("a.jsonl", "\n".join(lines)), PAIR_OR_MORE)
    assert table.rows == [("p", "yes", "no")]
    assert table.note().endswith(
        "1 rows; premise, entailment, contradiction; made of 3 rows of NLI"
    )


def test_a_row_of_several_files_is_named_by_its_own(write):
    """Line 2 of both says nothing."""
    first = write("a.csv", "anchor,positive\nq,p\n")
    second = write("b.csv", "query,answer\nr,s\n")
    table = read_rows(f"{first},{second}", PAIR)
    assert table.place(0) == f"{first}, line 2"
    assert table.place(1) == f"{second}, line 2"
    assert table.note().endswith(f"2 rows; anchor, positive; of {second} query, answer")


def test_rows_of_nli_without_a_triplet(write):
    line = '{"gold_label": "neutral", "sentence1": "a", "sentence2": "b"}'
    with pytest.raises(InputError, match="none of 1 rows has a premise with both"):
        read_rows(write("a.jsonl", line), TRIPLET)


def test_scored_pairs_have_names(write):
    path = write("a.csv", "sentence1,sentence2,score\na,b,4.5\n")
    (pair,) = load_scored_pairs(path)
    assert (pair.sentence1, pair.sentence2, pair.score) == ("a", "b", 4.5)
    assert pair.texts == ("a", "b")


@pytest.mark.parametrize(
    ("column", "highest"),
    [
        ("score (0-10)", 10),
        ("rating 1 to 7", 7),
        ("score_0-5", 5),
        ("score v1-2", None),
        ("a", None),
    ],
)
def test_the_highest_score_in_a_header(column, highest):
    """A version or a year in a name is no scale."""
    assert highest_in_name(column) == highest
