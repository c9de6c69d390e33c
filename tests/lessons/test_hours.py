"""The hours of the course: pages and plans say what the table and the cards add up to."""

import pytest

from lessons import hours
from lessons.grader.pieces import LESSONS, PIECES, lesson_file
from lessons.parts import NEEDS

# Lessons whose page says its minutes in parts.
SAID = [n for n in LESSONS if "Reading " in lesson_file(n).read_text(encoding="utf-8")[:900]]


@pytest.mark.parametrize("lesson", SAID)
def test_a_page_says_what_the_table_adds_up_to(lesson):
    """A reader plans an evening by it. ``python -m lessons.hours --write`` writes it."""
    text = lesson_file(lesson).read_text(encoding="utf-8")
    assert hours.page_with_minutes(text, hours.hours()[lesson]) == text


def test_the_second_half_says_its_minutes_in_parts():
    assert {*range(15, 35)} <= {*SAID}


def test_the_teacher_s_example_of_results_counts_the_pieces():
    assert f'"of": {len(PIECES)}' in hours.TEACHING.read_text(encoding="utf-8")


def test_the_teacher_s_plans_are_added_up():
    """A teacher plans a term by it. ``python -m lessons.hours --write`` writes it."""
    text = hours.TEACHING.read_text(encoding="utf-8")
    assert hours.teaching_with_hours(text) == text


def test_minutes_by_hand():
    """20 of reading, cards of 10 and 20 times 1.3, an exercise of half an hour: 20, 40, 30."""
    assert hours.to_five(1.3 * 30) == 40
    minutes = hours.Hours(reading=20, chapter=0, pieces=40, exercises=30)
    assert minutes.needed == 60
    assert minutes.sentence() == "Reading 20, pieces 40, exercises 30 minutes."
    page = "# %% [markdown]\n# # Lesson\n#\n# Steps through it. About 9 minutes. See.\n\n# %%\n"
    expected = page.replace("About 9 minutes.", "Reading 20, pieces 40, exercises 30 minutes.")
    assert hours.page_with_minutes(page, minutes) == expected


def test_every_lesson_of_a_plan_comes_after_what_it_needs():
    """In the weeks of the longest plan everything is there once."""
    plans = {plan["name"]: plan["weeks"] for plan in hours.read_table()["plans"]}
    taught = [lesson for week in plans["Fourteen weeks"] for lesson in week]
    assert sorted(taught) == sorted(LESSONS)
    for weeks in plans.values():
        before = {0}
        for week in weeks:
            before |= {*week}
            for lesson in week:
                assert {*NEEDS[lesson]} <= before | {3, 14}, lesson
