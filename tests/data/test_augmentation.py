"""Rows made of other rows: by hand, and by properties that every seed must have."""

import random
from functools import partial

import pytest

from minisbert.core import InputError
from minisbert.data.batches import (
    augment,
    crop,
    delete,
    delete_words,
    make_change,
    read_synonyms,
    replace_word,
    shuffled_negatives,
)
from minisbert.data.formats import Row

TEN = "a b c d e f g h i j"


def outcomes(change, text: str) -> set[str]:
    """What 200 seeds make of a text."""
    return {change(text, generator=random.Random(seed)) for seed in range(200)}


@pytest.mark.parametrize(
    ("change", "text", "expected"),
    [
        (partial(crop, share=0.1), TEN, {TEN[:-2], TEN[2:]}),
        (partial(crop, share=0.3), "a b c d", {"a b c", "b c d"}),  # 2.8 words are 3
        (partial(crop, share=0.9), "a  b", {"a", "b"}),
        (partial(delete, share=0.2), "a b c d e", {"b c d e", "a c d e", "a b d e", "a b c e", "a b c d"}),
        (partial(delete, share=0.1), "a b c d", {"a b c d"}),
        (partial(delete, share=0.9), "a b", {"a", "b"}),
        (partial(delete_words, count=1), "a b\tc", {"b c", "a c", "a b"}),
        (partial(delete_words, count=1), "a", {"a"}),
        (
            partial(replace_word, synonyms={"big": ["large", "huge"], "dog": ["hound"]}),
            "A Big, big dog!",
            {"A large, big dog!", "A huge, big dog!", "A Big, large dog!", "A Big, huge dog!", "A Big, big hound!"},
        ),
        (partial(replace_word, synonyms={"big": ["large"]}), "A bigger dog.", {"A bigger dog."}),
    ],
)
def test_every_outcome_of_a_change(change, text, expected):
    assert outcomes(change, text) == expected


@pytest.mark.parametrize(("form", "words"), [("crop:.3", 7), ("delete:0.2", 8), ("delete-one", 9)])
def test_each_text_is_changed_at_random_and_a_seed_decides_all(form, words):
    first, again, other = (augment([TEN] * 20, form, seed) for seed in (1, 1, 2))
    assert {len(text.split()) for text in first} == {words}
    assert len({*first}) > 3
    assert first == again != other


@pytest.mark.parametrize("form", ["", "crop", "crop:0", "crop:1", "delete:x", "delete:nan", "drop:.1", "synonym:"])
def test_an_unknown_form_lists_the_known_ones(form):
    with pytest.raises(InputError, match=r"--augment .*: expected crop:SHARE, delete:SHARE, delete-one or synonym"):
        make_change(form)


def test_synonyms_of_a_file(tmp_path):
    path = tmp_path / "synonyms.txt"
    path.write_text("Big, large,huge\n\nlarge\t , sizeable\ncat, Cat\n")
    expected = {"big": ["large", "huge"], "large": ["Big", "huge", "sizeable"], "huge": ["Big", "large"]}
    assert read_synonyms(str(path)) == expected | {"sizeable": ["large"]}
    assert augment(["a huge cat"], f"synonym:{path}", 0)[0] in {"a Big cat", "a large cat"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("big, large\nsmall,\n", r"synonyms\.txt, line 2: one word; expected several"),
        ("cat, CAT\n", r"synonyms\.txt holds no synonyms"),
    ],
)
def test_a_file_without_synonyms_is_an_error(tmp_path, content, message):
    path = tmp_path / "synonyms.txt"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_synonyms(str(path))


# ------------------------------------------------------------------------------------- shuffled pairs


def parallel(letters: str) -> list[Row]:
    return [Row((letter, letter.upper()), 5.0) for letter in letters]


@pytest.mark.parametrize("seed", range(5))
def test_no_combination_is_right_or_there_twice(seed):
    negatives = shuffled_negatives(parallel("abcde"), 3, seed)
    assert {pair.score for pair in negatives} == {0.0}
    found = [(pair.sentence1, pair.sentence2) for pair in negatives]
    assert len(found) == len({*found}) == 15
    assert all(first.upper() != second for first, second in found)
    assert sorted(first for first, _ in found) == sorted("abcde" * 3)
    assert sorted(second for _, second in found) == sorted("ABCDE" * 3)


def test_a_seed_decides_the_order_and_there_are_at_most_the_others():
    rows = parallel("abcdefghij")
    assert shuffled_negatives(rows, 2, 1) == shuffled_negatives(rows, 2, 1) != shuffled_negatives(rows, 2, 2)
    assert len(shuffled_negatives(rows, 9, 0)) == 90
    with pytest.raises(InputError, match="--shuffled-negatives 10: 10 pairs give at most 9 for each"):
        shuffled_negatives(rows, 10, 0)


def test_translations_of_a_repeated_sentence_and_equal_texts_are_left_out():
    """Of the six combinations of three pairs, (a, A'), (a, A) twice over are right and (x, x) is one text."""
    rows = [Row(("a", "A"), 5.0), Row(("a", "A'"), 5.0), Row(("A", "x"), 5.0)]
    found = {(pair.sentence1, pair.sentence2) for pair in shuffled_negatives(rows, 2, seed=0)}
    assert found == {("a", "x"), ("A", "A'")}
