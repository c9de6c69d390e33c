"""Answers as learners write them, in their file: wrong ones fail with their mistake's name, right
ones pass.

``answers.toml`` has them. An answer is the body of a piece; it is put into the lesson's stubs and
graded as the grader's process does it.
"""

import pytest
import torch

from lessons.grader.cases import describe
from lessons.grader.result import RUNGS
from tests.lessons.answers import ANSWERS, graded, result_of

pytestmark = [
    pytest.mark.usefixtures("folder"),
    pytest.mark.exact("answers are graded at the rounding of their numbers"),
]


def each(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("answer", ANSWERS[kind], ids=lambda answer: answer["piece"])


@each("right")
def test_a_right_answer_passes(answer):
    result = result_of(answer)
    assert result.status == "passed", result.rungs[-1]


@each("mistake")
def test_a_wrong_answer_fails_with_its_mistakes_name(answer):
    result = result_of(answer)
    _, holds, _ = result.rungs[
        -1
    ]  # a mistake that only the bonus shows is named in a piece that passes
    assert (holds, result.mistakes) == (False, [answer["name"]]), result.rungs[-1]


@each("nearly_right")
def test_a_nearly_right_answer_fails(answer):
    result = result_of(answer)
    assert result.status == "failed", result
    assert sum(holds for _, holds, _ in result.rungs) >= 2, result.rungs[
        -1
    ]  # and it is nearly right


@each("unnamed")
def test_no_mistake_is_named_that_was_not_made(answer):
    result = result_of(answer)
    assert (result.status, result.mistakes) == ("failed", []), result.rungs[-1]


@each("message")
def test_the_message(answer):
    title, holds, seen = result_of(answer).rungs[-1]
    assert (title, holds) == (RUNGS[answer["rung"]], False)
    assert answer["says"] in seen
    assert seen.count("line ") <= 1


def test_a_static_method_is_explained():
    seen = graded("bert.FeedForward.forward", "return x", before="@staticmethod").rungs[-1][2]
    assert "FeedForward.forward is a staticmethod: write it as a plain method" in seen


def test_a_difference_is_shown_with_the_digits_and_the_entry_that_tell():
    assert describe(0.1234567891, 0.1234567892, 0.0) == "yours 0.1234567891, expected 0.1234567892"
    ours, expected = (torch.tensor([x], dtype=torch.float64) for x in (0.1234567891, 0.1234567892))
    assert "yours 0.1234567891, reference 0.1234567892" in describe(ours, expected, 0.0)
    right = {"a": "b", "c": "d"}
    assert describe({"a": "b", "c": "x"}, right, 0.0) == "'c': yours 'x', expected 'd'"
    assert (
        describe(right | {"e": 1}, right, 0.0) == "'e' should not be there; 3 entries, expected 2"
    )
