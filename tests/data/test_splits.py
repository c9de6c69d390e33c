"""Dev chooses, test reports: what is held out, of how many rows, and without leakage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisbert.core import InputError
from minisbert.data.columns import Columns
from minisbert.data.rows import Table
from minisbert.data.splits import (
    check_classes,
    default_sources,
    held_out_sizes,
    hold_out,
    linked_rows,
    overlap_remarks,
    read_splits,
    shared_rows,
)

PAIR = Columns(2, more_texts=True)
SCORED = Columns(2, "score")
BINARY = Columns(2, "binary")
CLASSES = Columns(2, "class")


def pairs_file(write, count: int, name: str = "pairs.csv"):
    """Pairs of which no two share a text."""
    lines = ["id,anchor,positive"]
    lines += [f"{i},question {name} {i},answer {name} {i}" for i in range(count)]
    return write(name, "\n".join(lines))


def scored_file(write, count: int, name: str = "scored.csv", scale: int = 5):
    lines = ["sentence1,sentence2,score"]
    lines += [f"first {name} {i},second {name} {i},{i % (scale + 1)}" for i in range(count)]
    return write(name, "\n".join(lines))


def test_shares_leave_rows_to_train_on(write):
    """More rows would not help, so the message is about the shares."""
    path = pairs_file(write, 1_000)
    with pytest.raises(InputError, match=r"--dev 0\.4 and --test 0\.4"):
        read_splits(path, "0.4", "0.4", PAIR)


# -------------------------------------------------------------------------- rows of another loss


def test_scores_are_not_read_as_wrong_answers(write):
    """``--columns`` of a file of scores, with the loss of pairs: the scores are no texts."""
    lines = ["left,right,stars"]
    lines += [f"first {i},second {i},{i % 6}" for i in range(20)]
    path = write("stars.csv", "\n".join(lines))
    with pytest.raises(InputError, match="stars"):
        read_splits(path, "none", "none", PAIR, "left,right,stars")


def test_numbers_may_be_answers(write):
    """As in a file of sums: then the right answers are numbers, too."""
    lines = ["question,answer,wrong"]
    lines += [f"what is {i} + {i}?,{2 * i},{2 * i + 1}" for i in range(20)]
    path = write("sums.csv", "\n".join(lines))
    splits = read_splits(path, "none", "none", PAIR, "question,answer,wrong")
    assert splits.train[1] == ("what is 1 + 1?", "2", "3")


# --------------------------------------------------------------------------------- the defaults


@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (2, {}),
        (5, {}),
        (6, {"dev": 2}),
        (30, {"dev": 10}),
        (100, {"dev": 20}),
        (199, {"dev": 20}),
        (200, {"dev": 50, "test": 50}),
        (300, {"dev": 50, "test": 50}),
        (1_000, {"dev": 100, "test": 100}),
        (500_000, {"dev": 2_000, "test": 2_000}),
    ],
)
def test_how_many_rows_are_held_out_by_default(count, sizes):
    """A tenth, at least 50 and at most 2,000; of fewer than 200 rows there is no test."""
    assert held_out_sizes(count, {"dev": None, "test": None}) == sizes


def test_too_few_rows_are_told_how_many_would_do(write):
    """Otherwise a gain on the rows that chose the step is taken for one."""
    assert read_splits(pairs_file(write, 100), columns=PAIR).notes[3:] == [
        "100 rows are too few to hold out a test: a gain on dev, which chooses the step, cannot be "
        "told from chance; 200 rows would do, or --test FILE"
    ]
    assert read_splits(pairs_file(write, 200), columns=PAIR).notes[3:] == []


def test_rows_that_all_share_a_text_are_not_said_to_share_none(write):
    """A group of linked rows has to be divided, and all rows count."""
    lines = ["anchor,positive", *(f"one question,answer {i}" for i in range(20))]
    splits = read_splits(write("a.csv", "\n".join(lines)), columns=PAIR)
    assert splits.notes[3].startswith("20 rows are too few to hold out a test")


def test_a_share_that_the_user_gives():
    assert held_out_sizes(1_000, {"dev": 0.2}) == {"dev": 200}
    assert held_out_sizes(100, {"dev": 0.01, "test": 0.01}) == {"dev": 20, "test": 20}


@pytest.mark.parametrize(
    ("data", "dev", "columns", "expected"),
    [
        ("stsb", None, SCORED, {"dev": "stsb", "test": "stsb"}),
        ("snli", None, CLASSES, {"dev": "snli", "test": "snli"}),
        ("snli,multinli", None, CLASSES, {"dev": "snli", "test": "snli"}),
        ("multinli", None, CLASSES, {"dev": None, "test": None}),
        ("quora", None, BINARY, {"dev": None, "test": None}),
        ("snli", None, PAIR, {"dev": "stsb", "test": "stsb"}),
        ("my.txt", None, Columns(1), {"dev": "stsb", "test": "stsb"}),
        ("my.csv", None, PAIR, {"dev": None, "test": None}),
        ("my.csv", "dev.csv", PAIR, {"dev": None, "test": None}),
        ("my.csv", "none", PAIR, {"dev": None, "test": "none"}),
    ],
)
def test_what_dev_and_test_are_if_nobody_says_it(data, dev, columns, expected):
    """None holds rows out. A text alone says nothing of what it should be near to."""
    assert default_sources(data, dev, columns) == expected


# ---------------------------------------------------------------------------------- a run's rows


def test_data_of_ones_own_has_a_dev_and_a_test(write):
    """The number that is printed as training rows is the number trained on."""
    path = pairs_file(write, 300)
    splits = read_splits(path, columns=PAIR)
    assert [len(rows) for rows in splits.rows.values()] == [200, 50, 50]
    assert splits.notes == [
        f"train  {path}: 200 of 300 rows; anchor, positive; not read: id",
        f"dev    50 rows held out of {path}; they choose the step",
        f"test   50 rows held out of {path}; they report the gain",
    ]
    everything = splits.train + splits.dev + splits.test
    assert sorted(everything) == sorted(
        (f"question pairs.csv {i}", f"answer pairs.csv {i}") for i in range(300)
    )


def test_few_rows_have_no_test(write):
    splits = read_splits(pairs_file(write, 60), columns=PAIR)
    assert [len(rows) for rows in splits.rows.values()] == [40, 20, 0]
    assert splits.notes[2] == "test   none"
    assert "200 rows would do" in splits.notes[3]


def test_rows_that_share_a_text_stay_in_training(write):
    """Half of the rows have one answer. If dev and test took all others, no batch would have a
    negative.
    """
    lines = ["anchor,positive"]
    lines += [f"question {i},{'contact us' if i % 2 else f'answer {i}'}" for i in range(200)]
    splits = read_splits(write("a.csv", "\n".join(lines)), columns=PAIR)
    assert [len(rows) for rows in splits.rows.values()] == [180, 20, 0]
    assert "contact us" not in {positive for _, positive in splits.dev}
    assert splits.notes[-1].startswith("101 of 200 rows share no text, too few to hold out a test")


def test_a_text_in_two_of_200_rows_takes_no_test_away(write):
    """The file has the 200 rows that the documentation asks for."""
    lines = ["anchor,positive", "one question,same answer", "another question,same answer"]
    lines += [f"question {i},answer {i}" for i in range(198)]
    splits = read_splits(write("a.csv", "\n".join(lines)), columns=PAIR)
    assert [len(rows) for rows in splits.rows.values()] == [100, 50, 50]
    assert splits.notes[3:] == []


def test_two_pairs_are_both_trained_on(write):
    """Of one pair no loss has a negative, and a dev of one pair is always right."""
    splits = read_splits(pairs_file(write, 2), columns=PAIR)
    assert [len(rows) for rows in splits.rows.values()] == [2, 0, 0]
    assert splits.notes[3].startswith("2 rows are too few to hold out a dev and a test")


def test_files_for_dev_and_test(write):
    data = pairs_file(write, 300)
    dev = pairs_file(write, 30, "dev.csv")
    splits = read_splits(data, dev, "none", PAIR)
    assert [len(rows) for rows in splits.rows.values()] == [300, 30, 0]
    assert splits.notes[1] == f"dev    {dev}: 30 rows; anchor, positive; not read: id"


def test_a_test_is_held_out_beside_a_file_for_dev(write):
    data = pairs_file(write, 300)
    dev = pairs_file(write, 30, "dev.csv")
    splits = read_splits(data, dev, None, PAIR)
    assert [len(rows) for rows in splits.rows.values()] == [250, 30, 50]


def test_dev_may_be_scored_pairs_of_any_scale(write):
    """Where the loss has no scores they are only compared by rank."""
    data = pairs_file(write, 300)
    dev = scored_file(write, 30, "dev.csv", scale=7)
    splits = read_splits(data, dev, "none", PAIR, judged_by=[SCORED])
    assert splits.columns["dev"] == SCORED
    assert max(row[-1] for row in splits.dev) == 7.0


def test_one_scale_for_all_files(write):
    """It is that of the training rows, and named in the line."""
    data = scored_file(write, 300, scale=5)
    dev = scored_file(write, 30, "dev.csv", scale=1)
    splits = read_splits(data, dev, "none", SCORED)
    assert splits.scale == 5
    assert {row[-1] for row in splits.train} == {0.0, 0.2, 0.4, 0.6, 0.8, 1.0}
    assert {row[-1] for row in splits.dev} == {0.0, 0.2}
    assert splits.notes[0].endswith("300 rows; sentence1, sentence2, score / 5")


NAMED = "sentence1,sentence2,rating 0-10"


def test_a_header_with_another_scale_is_remarked(write):
    """Scores up to 10 of which none is above 5 would be divided by 5, and nobody would notice."""
    lines = ["sentence1,sentence2,rating 0-10"]
    for row in range(60):
        lines.append(f"a{row},b{row},{row % 6}")
    data = write("a.csv", "\n".join(lines))
    splits = read_splits(data, "none", "none", SCORED, NAMED)
    assert splits.scale == 5
    assert "--scale 10" in splits.notes[0]
    assert "--scale" not in read_splits(data, "none", "none", SCORED, NAMED, scale=10).notes[0]


def test_dev_beyond_the_scale_of_training(write):
    data = scored_file(write, 300, scale=1)
    dev = scored_file(write, 30, "dev.csv", scale=5)
    with pytest.raises(InputError, match=r"dev.csv, line 4: the score 2 is beyond the scale of 1"):
        read_splits(data, dev, "none", SCORED)
    assert read_splits(data, dev, "none", SCORED, scale=5).scale == 5


def test_a_limit_does_not_change_the_scale(write):
    """The highest score may stand in any row."""
    splits = read_splits(scored_file(write, 300), "none", "none", SCORED, limit=2)
    assert [row[-1] for row in splits.train] == [0.0, 0.2]


def test_columns_of_the_training_rows_hold_for_dev_that_has_them(write):
    """A dev file with other names is read by its own."""
    data = write("a.csv", "Frage,Antwort\n" + "".join(f"a {i},b {i}\n" for i in range(9)))
    dev = write("b.csv", "Nr,Frage,Antwort\n1,c,d\n")
    test = scored_file(write, 10)
    splits = read_splits(data, dev, test, PAIR, "Frage,Antwort", judged_by=[SCORED])
    assert splits.dev == [("c", "d")]
    assert splits.columns["test"] == SCORED


def test_one_file_with_a_column_split(write):
    lines = ["split,anchor,positive"]
    lines += [f"train,a {i},b {i}" for i in range(20)]
    lines += ["validation,c,d", "test,e,f"]
    path = write("a.csv", "\n".join(lines))
    splits = read_splits(path, path, path, PAIR)
    assert [len(rows) for rows in splits.rows.values()] == [20, 1, 1]


def test_rows_that_dev_shares_with_training_are_counted(write):
    """A pair that was trained on says little about new ones."""
    data = pairs_file(write, 300)
    splits = read_splits(data, data, "none", PAIR)
    assert splits.notes[-1] == (
        "warning: 300 rows of dev are training rows too, so its score is too high: drop them"
    )


@pytest.mark.parametrize(
    ("train", "dev", "remark"),
    [
        ("a.csv", "stsb", "warning: {}, so its score is too high: drop them from a.csv"),
        ("stsb", "b.csv", "warning: {}, so its score is too high: drop them"),
        ("stsb", "stsb", "{}: stsb is published so"),
        ("snli,multinli", "stsb", "{}: stsb and snli,multinli are published so"),
    ],
)
def test_nobody_is_told_to_drop_rows_of_a_published_data_set(train, dev, remark):
    """It is as it is, and scores on it are compared with those of others."""
    remarks = overlap_remarks(Table(train, SCORED, []), Table(dev, SCORED, []), "dev", 7)
    assert remarks == [remark.format("7 rows of dev are training rows too")]


def test_rows_from_python(write):
    rows = [(f"a {i}", f"b {i}") for i in range(300)]
    splits = read_splits(rows, [("c", "d")], "none", PAIR)
    assert splits.train == rows
    assert splits.dev == [("c", "d")]


def test_classes_are_those_of_the_training_rows(write):
    data = write("a.csv", "sentence1,sentence2,label\n" + "a,b,refund\nc,d,praise\ne,f,bug\n" * 30)
    splits = read_splits(data, "none", "none", CLASSES)
    assert splits.classes == ["bug", "praise", "refund"]
    dev = write("b.csv", "sentence1,sentence2,label\na,b,bug\na,b,rage\n")
    with pytest.raises(
        InputError, match=r"b\.csv, line 3: the class 'rage' is not one of bug, praise, refund"
    ):
        read_splits(data, dev, "none", CLASSES)


def test_rows_of_one_class_are_not_kept_together(write):
    """The name of a class is no text that rows share."""
    lines = ["sentence1,sentence2,label"]
    lines += [f"a {i},b {i},{('bug', 'praise')[i % 2]}" for i in range(300)]
    splits = read_splits(write("a.csv", "\n".join(lines)), columns=CLASSES)
    assert [len(rows) for rows in splits.rows.values()] == [200, 50, 50]
    assert "texts are in training too" not in splits.notes[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": ""}, "--data, --dev or --test is empty"),
        ({"dev": ""}, "--data, --dev or --test is empty"),
        ({"dev": "0.5"}, "0.5: a share that is held out must be above 0 and below 0.5"),
        ({"dev": "missing.csv"}, "missing.csv does not exist"),
    ],
)
def test_bad_names_of_splits(write, arguments, message):
    arguments = {"data": pairs_file(write, 10), "columns": PAIR} | arguments
    with pytest.raises(InputError, match=message):
        read_splits(**arguments)


def test_equal_scores_cannot_be_correlated(write):
    data = scored_file(write, 300)
    dev = write("dev.csv", "sentence1,sentence2,score\na,b,3\nc,d,3\n")
    with pytest.raises(InputError, match=r"dev .*different scores"):
        read_splits(data, dev, "none", SCORED)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a", "b", "bug")] * 3, "all rows have the class 'bug'"),
        (
            [(f"bug {i % 2}", f"text {i}", f"other text {i}") for i in range(40)],
            "40 classes in 40 rows.*name the texts first",
        ),
    ],
)
def test_classes_that_cannot_be_learned(rows, message):
    with pytest.raises(InputError, match=message):
        check_classes(Table("a.csv", CLASSES, rows))


# -------------------------------------------------------------------------------- without leakage


@given(
    st.lists(st.tuples(*[st.sampled_from("abcdefghijklmnopqrstuvwxyz")] * 2), max_size=60),
    st.integers(0, 2**31),
)
def test_rows_held_out_share_no_text_with_the_others(letters, seed):
    rows = letters + [(f"left {i}", f"right {i}") for i in range(80)]
    sizes = {"dev": 20, "test": 20}
    parts, remark = hold_out(rows, sizes, seed)
    assert sorted(parts["train"] + parts["dev"] + parts["test"]) == sorted(rows)
    texts = {}
    for split, some in parts.items():
        texts[split] = {text for row in some for text in row}
    assert not texts["train"] & (texts["dev"] | texts["test"])
    assert not texts["dev"] & texts["test"]
    assert len(parts["dev"]) >= 20
    assert len(parts["test"]) >= 20
    assert hold_out(rows, sizes, seed) == (parts, "")
    assert remark == ""


def test_what_is_held_out_is_random():
    """The last rows of a file may be of one kind; their mean here would be 949.5."""
    rows = [(str(i), f"b {i}") for i in range(1000)]
    held_out = hold_out(rows, {"dev": 100}, seed=1)[0]["dev"]
    assert len(held_out) == 100
    assert 350 < sum(int(first) for first, _ in held_out) / 100 < 650
    assert hold_out(rows, {"dev": 100}, seed=2)[0]["dev"] != held_out


def test_rows_that_hang_together_are_divided_by_copies():
    """Where all rows share a text, the least is that no copy of a row is on both sides."""
    rows = []
    for i in range(100):
        row = ("a dog", f"b {i % 20}")
        if i // 20 % 2:
            row = (row[1], row[0])
        rows.append(row)
    parts, remark = hold_out(rows, {"dev": 20}, seed=3)
    assert (len(parts["train"]), len(parts["dev"])) == (80, 20)
    trained = {frozenset(row) for row in parts["train"]}
    assert not trained & {frozenset(row) for row in parts["dev"]}
    assert "texts are in training too" in remark


def test_copies_of_one_row_cannot_be_divided():
    with pytest.raises(InputError, match=r"30 rows are too few.*--dev FILE or none"):
        hold_out([("a", "b")] * 30, {"dev": 3}, seed=1)


def test_one_row_cannot_be_divided(write):
    with pytest.raises(InputError, match="one row is too few to train on"):
        read_splits(pairs_file(write, 1), columns=PAIR)


def test_linked_rows_by_hand():
    rows = [("a", "b"), ("c", "d"), ("e", "b")]
    assert linked_rows(rows) == [[("a", "b"), ("e", "b")], [("c", "d")]]
    labelled = [("a", "b", "x"), ("c", "d", "x")]
    assert linked_rows(labelled, is_labelled=True) == [[labelled[0]], [labelled[1]]]


def test_shared_rows_by_hand():
    assert shared_rows([("a", "b")], [("b", "a", "c"), ("a", "c")]) == 1
