"""The course can be read in order: no word, piece or hour comes before its place."""

import re
from pathlib import Path

import pytest

from lessons.grader.pieces import LESSONS, PIECES, lesson_file
from lessons.parts import CORE, NEEDS, OPTIONAL, PARTS, WEEKEND, needed
from tests.conftest import ROOT
from tests.lessons.test_lessons import header

ENTRY = re.compile(
    r"^- \*\*([^*]+)\*\* \(\[lesson\s+(\d\d)\]\(([^)]+)\)\):\s+(.+?)(?=\n- |\n*\Z)", re.MULTILINE | re.DOTALL
)
GLOSSARY = ENTRY.findall((ROOT / "lessons" / "GLOSSARY.md").read_text(encoding="utf-8"))
TEACHING = (
    (ROOT / "lessons" / "TEACHING.md").read_text(encoding="utf-8").partition("\n## Plans\n")[2].partition("\n## ")[0]
)
PLANS = dict(re.findall(r"^### (\w+) weeks\n(.*?)(?=^### |\Z)", TEACHING, re.MULTILINE | re.DOTALL))
MINUTES = {n: int(re.search(r"About (\d+)\s+(?:# )?minutes", header(lesson_file(n)))[1]) for n in LESSONS}


def paragraphs(path: Path) -> list[str]:
    """What a lesson says before its sources: its paragraphs without formulas, and the questions that it asks."""
    text = path.read_text(encoding="utf-8").partition("\n# ## Sources")[0]
    prose = re.sub(r"^#     .*$", "#", text, flags=re.MULTILINE)
    blocks = re.findall(r"(?:^# (?!%%).+\n)+", prose, re.MULTILINE)
    questions = re.findall(r"^guess = predict\((.*?)\)\n\n", text, re.MULTILINE | re.DOTALL)
    return [re.sub(r"\n# *", " ", block[2:]) for block in blocks] + questions


def used(term: str) -> re.Pattern:
    """The term as a word of its own, in the plural too."""
    return re.compile(rf"(?<![\w-]){re.escape(term)}(s|es|ting)?(?!\w)", re.IGNORECASE if term.islower() else 0)


def points_to(paragraph: str, lesson: int) -> bool:
    """Whether a paragraph names this lesson: "lesson 05", "lessons 04 to 06"."""
    found = re.findall(r"[Ll]essons? (\d\d)(?: to (\d\d))?", paragraph)
    return any(int(first) <= lesson <= int(last or first) for first, last in found)


def test_the_glossary_has_a_sentence_for_each_term_in_alphabetical_order():
    terms = [term for term, *_ in GLOSSARY]
    assert len(terms) >= 80
    assert terms == sorted(terms, key=str.lower)
    text = (ROOT / "lessons" / "GLOSSARY.md").read_text(encoding="utf-8")
    assert len(terms) == text.count("\n- ")
    for term, number, file, sentence in GLOSSARY:
        assert lesson_file(int(number)).name == file, term
        assert sentence.endswith("."), term
        assert ". " not in sentence, term


def test_no_term_comes_before_the_lesson_that_defines_it():
    texts = [[re.sub(r"`[^`]*`", "", text) for text in paragraphs(lesson_file(n))] for n in LESSONS]
    for term, lesson in [(term, int(number)) for term, number, *_ in GLOSSARY]:
        defined = re.compile(rf"\*\*[^*]*{used(term).pattern}[^*]*\*\*", re.IGNORECASE)
        assert any(defined.search(paragraph) for paragraph in texts[lesson]), f"{term}: in bold, where it is defined"
        for earlier in range(lesson):
            first = next((text for text in texts[earlier] if used(term).search(text)), None)
            assert first is None or points_to(first, lesson), f"{term}, lesson {earlier:02}: {first}"


def numbers_in(text: str) -> list[int]:
    """The lessons of "04 to 06, 09 and 11"."""
    found = re.findall(r"\b(\d\d)(?: to (\d\d))?", text)
    return [n for first, last in found for n in range(int(first), int(last or first) + 1)]


def hours(lessons: list[int], names: list[str]) -> float:
    return (sum(MINUTES[n] for n in lessons) + sum(PIECES[name].minutes for name in names)) / 60


def names_of(lessons: list[int], core: bool = False) -> list[str]:
    return [name for name, piece in PIECES.items() if piece.lesson in lessons and not (core and name in OPTIONAL)]


@pytest.mark.parametrize(("name", "weeks"), [("Six", 6), ("Ten", 10), ("Fourteen", 14)])
def test_a_plan_has_every_lesson_once_after_what_it_needs_with_its_pieces_and_hours(name, weeks):
    assert list(PLANS) == ["Six", "Ten", "Fourteen"]
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (\d+) \| ([\d.]+) \|$", PLANS[name], re.MULTILINE)
    assert [int(week) for week, *_ in rows] == list(range(1, weeks + 1))
    seen, total = [], 0.0
    for _, lessons, pieces, stated in rows:
        numbers = numbers_in(lessons)
        own = names_of(numbers, core=name == "Six")
        assert int(pieces) == len(own), lessons
        assert float(stated) == pytest.approx(hours(numbers, own), abs=0.051), lessons
        assert len(numbers) <= 3, lessons
        assert hours(numbers, own) < 6, lessons
        seen += numbers
        total += hours(numbers, own)
    assert float(re.search(r"^([\d.]+) hours: ", PLANS[name], re.MULTILINE)[1]) == pytest.approx(total, abs=0.051)
    assert [n for i, n in enumerate(seen) if not needed(n) - {0} <= {*seen[:i]}] == []
    left_out = numbers_in(PLANS[name].partition("\nLeft out: ")[2])
    assert sorted(seen + left_out) == list(LESSONS)
    assert name != "Fourteen" or not left_out
    assert name != "Six" or (sorted(seen) == list(CORE) and total <= 20)


def test_the_parts_have_every_lesson_once_after_what_it_needs_and_the_core_stands_alone():
    order = [n for part in PARTS.values() for n in part.lessons]
    assert sorted(order) == list(LESSONS) == sorted(NEEDS)
    assert [n for i, n in enumerate(order) if not needed(n) <= {*order[:i]}] == []
    assert 8 <= len(CORE) <= 12
    assert [n for n in CORE if not needed(n) - {0} <= {*CORE}] == []
    readme = (ROOT / "lessons" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\d\d) .+?\](?:\(\S+\))( \*\*core\*\*)? \|", readme, re.MULTILINE)
    assert [int(number) for number, _ in rows] == order
    assert [int(number) for number, core in rows if core] == list(CORE)
    assert [part.stop for part in PARTS.values() if f"Stop here and you have {part.stop}." not in readme] == []
    days = re.findall(r"^\| (S\w+ \w+) \| (.+?) \| (.+?) \| ([\d.]+) \|$", readme, re.MULTILINE)
    assert [day for day, *_ in days] == list(WEEKEND)
    for day, lessons, pieces, stated in days:
        numbers, names = WEEKEND[day]
        assert numbers_in(lessons) == list(numbers)
        assert re.findall(r"`(\w+)`", pieces) == [name.rpartition(".")[2] for name in names]
        assert float(stated) == pytest.approx(hours(numbers, names), abs=0.051)


def test_a_lesson_points_to_what_it_mentions_from_one_that_it_does_not_need():
    for lesson in LESSONS:
        skipped = {n for n in LESSONS if n < lesson} - needed(lesson)
        for term, home in [(term, int(number)) for term, number, *_ in GLOSSARY if int(number) in skipped]:
            texts = [re.sub(r"`[^`]*`", "", text) for text in paragraphs(lesson_file(lesson))]
            first = next((text for text in texts if used(term).search(text)), None)
            assert first is None or points_to(first, home), f"{term}, lesson {lesson:02}: {first}"
