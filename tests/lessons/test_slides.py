"""Slides: every lesson makes a deck that needs nothing else, asks before it answers and fits the
screen.
"""

import re
import sys
from importlib.util import find_spec

import pytest

from lessons import slides
from lessons.grader.pieces import LESSONS, lesson_file
from lessons.quiz import questions
from minisbert.core import InputError
from tests.browser import BROWSER, PHONE, require


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_deck_needs_nothing_else_and_asks_every_question_before_its_answer(lesson):
    page, text = slides.deck(lesson), lesson_file(lesson).read_text(encoding="utf-8")
    loaded = re.findall(r"<[^>]* (?:src|srcset|href|data|poster)=\"([^\"]*)", page)
    assert [address[:11] for address in loaded] == ["data:image/"] * text.count("![")
    assert not re.search(r"@import|url\(|fetch\(", page)
    asked = len(re.findall(r"^guess\.answer\(", text, re.MULTILINE)) + len(
        questions().get(lesson, [])
    )
    assert page.count("<li class=right>") == asked
    assert page.count('<ol class="choices">') == 2 * asked


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
