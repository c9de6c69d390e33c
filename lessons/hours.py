"""How long the course takes: minutes of each lesson, hours of each plan; estimates, not measured.

    python -m lessons.hours              the minutes of each lesson, and the plans' hours
    python -m lessons.hours --measure    what ``hours.toml`` might say of each lesson's reading
    python -m lessons.hours --write      write the minutes into the pages and the teacher's plans

``hours.toml`` has the minutes of reading and of the chapter, and the plans. The pieces' minutes are
those of their cards, the exercises' those of their difficulty.
"""

import argparse
import re
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path

from lessons.grader.pieces import EXERCISES, LESSONS, PIECES, lesson_file

TABLE = Path(__file__).with_name("hours.toml")
TEACHING = Path(__file__).with_name("TEACHING.md")
# How a page says its minutes, in one line.
SENTENCE = re.compile(r"(About|Reading) \d[^.]*? minutes\.")
PAGE_WIDTH = 116
# A card's minutes are those of somebody who writes such functions every day. A student who knows
# torch takes longer.
PIECES_FACTOR = 1.3
EXERCISE_MINUTES = {1: 10, 2: 30, 3: 90}  # by difficulty, as answers.toml explains it
# Of a reader who knows torch, runs each cell, and looks at what it prints.
WORDS_A_MINUTE = 100
LINES_A_MINUTE = 6
PREDICTION_MINUTES = 2


@dataclass(frozen=True)
class Hours:
    """The minutes of one lesson."""

    reading: int  # the page: its words, its code, its predictions
    chapter: int  # the code of the package that it prints
    pieces: int
    exercises: int  # those that nobody grades

    @property
    def needed(self) -> int:
        """Without the exercises, which a student chooses among."""
        return self.reading + self.chapter + self.pieces

    def sentence(self) -> str:
        """As it stands at the beginning of the lesson's page."""
        parts = [f"Reading {self.reading}"]
        if self.chapter:
            parts.append(f"chapter {self.chapter}")
        if self.pieces:
            parts.append(f"pieces {self.pieces}")
        if self.exercises:
            parts.append(f"exercises {self.exercises}")
        return ", ".join(parts) + " minutes."


def to_five(minutes: float) -> int:
    """Rounded to five minutes: nobody knows it better."""
    return 5 * round(minutes / 5)


def read_table() -> dict:
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def hours() -> dict[int, Hours]:
    """The minutes of each lesson, by its number."""
    found = {}
    for row in read_table()["lessons"]:
        lesson = int(row["at"])
        cards = sum(piece.minutes for piece in PIECES.values() if piece.lesson == lesson)
        exercises = 0
        for at, exercise in EXERCISES.items():
            if int(at[:2]) == lesson:
                exercises += EXERCISE_MINUTES[exercise["hard"]]
        pieces = to_five(PIECES_FACTOR * cards)
        found[lesson] = Hours(row["reading"], row["chapter"], pieces, exercises)
    return found


def plans() -> dict[str, list[float]]:
    """The hours of each week of each plan: reading, chapters and pieces, without exercises."""
    of_lesson = hours()
    found = {}
    for plan in read_table()["plans"]:
        weeks = []
        for lessons in plan["weeks"]:
            weeks.append(sum(of_lesson[lesson].needed for lesson in lessons) / 60)
        found[plan["name"]] = weeks
    return found


def measured(lesson: int) -> int:
    """The minutes of a page's reading by its words, its lines of code and its predictions."""
    text = lesson_file(lesson).read_text(encoding="utf-8")
    words = 0
    lines = 0
    for line in text.splitlines():
        if line.startswith("#"):
            words += len(re.findall(r"[A-Za-z]+", line))
        elif line.strip():
            lines += 1
    predictions = len(re.findall(r"\bpredict\(", text))
    minutes = words / WORDS_A_MINUTE + lines / LINES_A_MINUTE
    return to_five(minutes + PREDICTION_MINUTES * predictions)


def page_with_minutes(text: str, minutes: Hours) -> str:
    """A lesson's file whose first cell says its minutes; unchanged if no sentence says any."""
    lines = text.splitlines(keepends=True)
    first = 3  # after the mark, the title and an empty line of comment
    last = first
    while lines[last].startswith("# "):
        last += 1
    paragraph = " ".join(line[2:].strip() for line in lines[first:last])
    if not SENTENCE.search(paragraph):
        return text
    paragraph = SENTENCE.sub(minutes.sentence(), paragraph, count=1)
    wrapped = [f"# {line}\n" for line in textwrap.wrap(paragraph, PAGE_WIDTH)]
    return "".join(lines[:first] + wrapped + lines[last:])


def teaching_with_hours(text: str) -> str:
    """The teacher's page whose tables of weeks have the number of pieces and the hours."""
    for plan in read_table()["plans"]:
        before, heading, after = text.partition(f"### {plan['name']}\n")
        section, end, rest = after.partition("\n#")
        weeks = zip(plan["weeks"], plans()[plan["name"]], strict=True)
        for number, (lessons, week) in enumerate(weeks, start=1):
            pieces = sum(piece.lesson in lessons for piece in PIECES.values())
            row = re.compile(rf"^\| {number} \| (.*) \| \d+ \| [\d.]+ \|$", re.MULTILINE)
            section = row.sub(rf"| {number} | \g<1> | {pieces} | {week:.1f} |", section)
        total = sum(plans()[plan["name"]])
        section = re.sub(r"^\n[\d.]+ hours", f"\n{total:.1f} hours", section)
        text = before + heading + section + end + rest
    return text


def write() -> None:
    """Write the minutes into the pages, and the hours into the teacher's plans."""
    for lesson, minutes in hours().items():
        path = lesson_file(lesson)
        path.write_text(page_with_minutes(path.read_text(encoding="utf-8"), minutes), "utf-8")
    TEACHING.write_text(teaching_with_hours(TEACHING.read_text(encoding="utf-8")), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lessons.hours", description=__doc__)
    parser.add_argument("--measure", action="store_true", help="print what the table might say")
    parser.add_argument("--write", action="store_true", help="write pages and plans")
    options = parser.parse_args()
    if options.write:
        write()
        return
    if options.measure:
        for lesson in LESSONS:
            print(f"{lesson:02}  reading {measured(lesson)}")
        return
    for lesson, minutes in hours().items():
        print(f"{lesson:02}  {minutes.sentence()}")
    for name, weeks in plans().items():
        print(f"\n{name}: {sum(weeks):.1f} hours")
        for number, week in enumerate(weeks, start=1):
            print(f"  week {number:2}  {week:.1f}")


if __name__ == "__main__":
    main()
