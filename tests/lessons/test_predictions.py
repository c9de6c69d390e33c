"""Guesses: asked before the answer, kept once, added up."""

import builtins
import json
import sys

import pytest

from lessons import check, predictions
from lessons.predictions import predict
from minisbert.core import InputError


@pytest.fixture
def as_written(monkeypatch):
    """Choices in the order of the source, so that a test can name them by number."""
    monkeypatch.setattr(predictions, "shuffled", lambda number, count: range(count))


def guessed(replies, number, typed, right):
    replies[:] = [typed]
    predict(number, "How many?", ["one", "two", "three"]).answer(right)


def test_the_first_guess_is_kept_with_the_answer(replies, as_written, capsys):
    guessed(replies, "01.1", "2!", "two")
    guessed(replies, "01.2", " 3 ", "one")
    guessed(replies, "01.2", "1", "one")
    said = capsys.readouterr().out
    assert "01.1  How many?\n      1  one\n      2  two\n      3  three\n" in said
    assert "01.1  two, as you said" in said
    assert "01.2  one; you said: three" in said
    assert "your first guess: three" in said
    assert json.loads(predictions.FILE.read_text()) == {
        "01.1": {"guess": "two", "sure": True, "right": True, "choices": 3},
        "01.2": {"guess": "three", "sure": False, "right": False, "choices": 3},
    }


def test_what_is_no_choice_is_asked_again_and_nothing_skips(replies, capsys):
    replies[:] = ["0", "4", "two", "²", ""]
    predict("01.1", "How many?", ["one", "two", "three"]).answer("two")
    said = capsys.readouterr().out
    assert said.count("A number from 1 to 3, please.") == 4
    assert said.endswith("01.1  two\n")
    assert not predictions.FILE.exists()


@pytest.mark.parametrize("error", [EOFError, NotImplementedError])
def test_where_nobody_can_answer_the_lesson_goes_on(replies, monkeypatch, error):
    def closed(_):
        raise error

    monkeypatch.setattr(builtins, "input", closed)
    assert predict("01.1", "How many?", ["one", "two"]).given is None
    monkeypatch.setattr(sys, "stdin", None)
    assert predict("01.1", "How many?", ["one", "two"]).given is None


def test_the_sum_a_damaged_file_and_an_answer_that_is_no_choice(replies, as_written, capsys):
    check.main(["guesses"])
    assert "No guesses yet" in capsys.readouterr().out
    for number, (typed, right) in enumerate(
        [("1!", "one"), ("1!", "one"), ("2", "one"), ("1", "one")]
    ):
        guessed(replies, f"01.{number}", typed, right)
    capsys.readouterr()
    check.main(["guesses"])
    said = capsys.readouterr().out
    assert "sure      2 of 2 right (100%; by chance 33%)" in said
    assert "not sure  1 of 2 right (50%; by chance 33%)" in said
    with pytest.raises(ValueError, match="'four' is not one of the choices"):
        guessed(replies, "01.9", "1", "four")
    predictions.FILE.write_text("[1]")
    with pytest.raises(InputError, match=r"guesses\.json must hold a JSON dict"):
        check.main(["guesses"])


def test_choices_are_shown_in_an_order_of_their_own_which_stays(replies, capsys):
    orders = set()
    for number in range(1, 9):
        replies[:] = ["", ""]
        guesses = [predict(f"01.{number}", "How many?", ["one", "two", "three"]) for _ in range(2)]
        assert guesses[0].choices == guesses[1].choices
        assert sorted(guesses[0].choices) == ["one", "three", "two"]
        orders.add(tuple(guesses[0].choices))
    assert len(orders) >= 4
