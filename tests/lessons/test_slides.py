"""Slides: every lesson makes a deck of its own words and pictures, which needs nothing else and fits the screen."""

import re
import sys
from html.parser import HTMLParser
from importlib.util import find_spec

import pytest

from lessons import slides
from lessons.grader.pieces import LESSONS, lesson_file
from lessons.quiz import questions
from minisbert.core import InputError
from tests.lessons.test_order import used
from tests.test_site import BROWSER, PHONE, require

VERBS = (
    "Build Choose Compare Compute Count Cut Draw Explain Find Graft Identify Keep Make Measure Mine Name Predict Prove "
    "Put Read Recognise Say Show Tell Train Write"
).split()


class Deck(HTMLParser):
    """The lines of text, each as words, the pictures, and every address that a browser could load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.pictures: list[str] = []
        self.addresses: list[str] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.inside |= tag == "main"
        self.pictures += [found["alt"]] if tag == "img" else []
        self.addresses += [found[key] for key in ("src", "href", "srcset", "data", "poster") if found.get(key)]

    def handle_endtag(self, tag):
        self.inside &= tag != "main"

    def handle_data(self, data):
        if self.inside:
            self.lines += [" ".join(re.findall(r"\w+", line)).lower() for line in data.splitlines()]


def wording(lesson: int) -> str:
    """All words of a lesson, its objectives and its quiz, with one space between any two."""
    text = lesson_file(lesson).read_text(encoding="utf-8")
    quiz = (f"Quiz {one.at} {one.ask} {' '.join(one.choices)} {' '.join(one.why)}" for one in questions()[lesson])
    said = [re.sub(r"^# |\]\([^)]*\)", "", text, flags=re.MULTILINE), *slides.objectives(lesson), *quiz]
    return " ".join(re.findall(r"\w+", " ".join(said))).lower()


@pytest.mark.parametrize("lesson", LESSONS)
def test_objectives_are_testable_and_in_the_words_of_the_lesson(lesson):
    body = slides.OBJECTIVES.read_text(encoding="utf-8").partition(f"\n## [{lesson:02} ")[2].partition("\n## ")[0]
    file, lines = re.search(r"\]\((.+?)\)", body)[1], re.findall(r"^- (.+)$", body, re.MULTILINE)
    assert file == lesson_file(lesson).name
    assert 3 <= len(lines) <= 5
    text = re.sub(r"\n# *", " ", lesson_file(lesson).read_text(encoding="utf-8"))
    assert [line for line in lines if line.split()[0].strip("*") not in VERBS or line[-1] != "."] == []
    terms = [code or word for code, word in re.findall(r"`([^`]+)`|\*([^*]+)\*", body)]
    assert len(terms) >= 2
    assert [term for term in terms if not used(term.rstrip("s").lower()).search(text.lower())] == []


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_deck_has_the_words_pictures_and_questions_of_its_lesson(lesson):
    page, text = slides.deck(lesson), lesson_file(lesson).read_text(encoding="utf-8")
    deck = Deck(page)
    assert [address[:11] for address in deck.addresses] == ["data:image/"] * len(deck.pictures)
    assert not re.search(r"@import|url\(|fetch\(", page)
    assert deck.pictures == re.findall(r"!\[([^\]]*)\]", text)
    own = f" {wording(lesson)} "
    assert [line for line in deck.lines if line and f" {line} " not in own] == ["after this lesson you can"]
    for one in questions()[lesson]:
        assert page.count(f"<h2>Quiz {one.at}</h2>") == 2
    asked = len(re.findall(r"^guess\.answer\(", text, re.MULTILINE))
    right = re.findall(r"<li class=right>", page)
    assert len(right) == asked + 5
    assert page.count('<ol class="choices">') == 2 * len(right)


def test_a_question_comes_before_its_answer_and_the_answer_is_the_lessons():
    page = slides.deck(5)
    first = page.index("The same vector added to every key: the probabilities ...")
    answer = page.index("<li class=right>stay</li>")
    assert page.index("<li>stay</li>") > first
    assert first < page.index("<li>stay</li>") < answer
    assert "A key bias has no effect" not in page[:answer]
    assert "A key bias has no effect" in page[answer:]


def test_the_command_writes_one_file_and_names_the_lessons(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["slides", "05", "--out", str(tmp_path / "new")])
    slides.main()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["05_attention.html"]
    for wrong in ("99", "five"):
        monkeypatch.setattr(sys, "argv", ["slides", wrong, "--out", str(tmp_path)])
        with pytest.raises(InputError, match=f"lesson {wrong}"):
            slides.main()


OVERFLOWING = """() => [...document.querySelectorAll('.slide')].flatMap((slide, i) => [slide,
    ...slide.querySelectorAll('pre')].filter(x => x.scrollHeight > x.clientHeight + 1 || x.scrollWidth > x.clientWidth)
    .map(x => `${i + 1}: ${x.tagName} ${x.scrollWidth - x.clientWidth} ${x.scrollHeight - x.clientHeight}`))"""
SMALL = "() => [...document.images].filter(x => x.clientHeight < 250).map(x => x.alt)"


@pytest.mark.site
def test_every_deck_fits_the_screen_and_turns_its_pages(tmp_path):
    require(BROWSER, "needs a browser: apt-get install chromium")
    require(find_spec("playwright"), "needs the site extra: pip install '.[site]'")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 720}, color_scheme="dark")
        requests: list[str] = []
        tab.on("request", lambda request: requests.append(request.url))
        wrong = {}
        for lesson in LESSONS:
            (tmp_path / "deck.html").write_text(slides.deck(lesson), encoding="utf-8")
            tab.goto((tmp_path / "deck.html").as_uri())
            wrong[lesson] = tab.evaluate(OVERFLOWING) + tab.evaluate(SMALL)
        assert {lesson: found for lesson, found in wrong.items() if found} == {}
        for key, place in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1)):
            tab.keyboard.press(key)
            tab.wait_for_function(f"() => Math.round(scrollY / innerHeight) === {place}")
        pages = tab.pdf(prefer_css_page_size=True, print_background=True).count(b"/Type /Page\n")
        assert pages == tab.locator(".slide").count()
        tab.set_viewport_size(PHONE["viewport"])
        assert tab.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
        assert [url for url in requests if not url.startswith(("data:", "file:"))] == []
        browser.close()
