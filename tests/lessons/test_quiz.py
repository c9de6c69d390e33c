"""The quiz: every choice has its reason, the questions can be asked and shown, and wrong answers
lead to a section.
"""

import sys

import pytest

from lessons import check
from lessons.grader.pieces import lesson_file
from lessons.quiz import questions
from minisbert.core import InputError

QUIZ = questions()


def test_every_choice_has_its_reason_and_every_question_a_section_to_read():
    for lesson in QUIZ:
        text = lesson_file(lesson).read_text(encoding="utf-8")
        assert [question.at for question in QUIZ[lesson]] == [
            f"{lesson:02}.{n}" for n in range(1, 6)
        ]
        for question in QUIZ[lesson]:
            assert len({*question.choices}) == len(question.choices) == len(question.why), (
                question.at
            )
            assert 1 <= question.right <= len(question.choices), question.at
            assert f"\n# ## {question.read}\n" in text, question.at


def test_a_right_answer_a_wrong_one_and_a_skipped_one(replies, capsys):
    first, second, third, fourth, fifth = QUIZ[0]
    wrong = 1 + second.right % len(second.choices)
    replies[:] = [
        str(first.right),
        "9",
        "first",
        str(wrong),
        str(third.right),
        "",
        str(fifth.right),
    ]
    check.main(["quiz", "00"])
    said = capsys.readouterr().out
    assert said.count(f"A number from 1 to {len(second.choices)}, please.") == 2
    assert f"Right: {first.why[first.right - 1]}" in said
    assert (
        f"No: {second.why[wrong - 1]}\nRight is {second.right}: {second.why[second.right - 1]}"
        in said
    )
    assert said.endswith(f"\n3 of 5 right. Read: {second.read}, {fourth.read}.\n")
    replies[:] = [str(question.right) for question in QUIZ[0]]
    check.main(["quiz", "00"])
    assert capsys.readouterr().out.endswith("\n5 of 5 right. Go on to the next lesson.\n")


def test_without_a_terminal_the_questions_are_shown_without_answers_and_a_missing_quiz_is_named(
    monkeypatch, capsys
):
    monkeypatch.setattr(sys, "stdin", None)
    check.main(["quiz", "00"])
    said = capsys.readouterr().out
    assert "Nobody answered." in said
    assert "of 5 right" not in said
    assert all(choice in said for question in QUIZ[0] for choice in question.choices)
    assert not any(reason in said for question in QUIZ[0] for reason in question.why)
    monkeypatch.setattr("lessons.quiz.questions", lambda: {0: QUIZ[0]})
    with pytest.raises(InputError, match="lesson 07 has no quiz; these have one: 00"):
        check.main(["quiz", "07"])
