"""docs/sources.md: each item of the five texts is where it says, and each work that is cited stands on the page."""

import re

from docs.make_sources import PAGE, STATUSES, replaced, texts
from tests.conftest import ROOT

ITEMS = [(f"{name}-{n:02}", *item) for name, text in texts().items() for n, item in enumerate(text["items"], 1)]
CITED = [
    path
    for folder, kind in (("minisbert", "*.py"), ("lessons", "*.py"), ("docs", "*.md"))
    for path in (ROOT / folder).rglob(kind)
    if path != PAGE and "mine" not in path.parts
]
AUTHORS = r"((?:[A-Z][^\W\d_]+(?:, | and | & ))*[A-Z][^\W\d_]+(?: et al\.)?),? \(?((?:19|20)\d\d)\b"
NO_AUTHORS = {"DBF", "Face", "OpenVINO", "March", "Xiv"}  # the last of arXiv and a number


def words(text: str) -> str:
    return " ".join(text.split())


def test_each_item_is_where_it_says():
    for item, lines, what, status, path, anchor in ITEMS:
        assert status in STATUSES, item
        assert re.fullmatch(r"\d+(-\d+)?(, \d+(-\d+)?)*", lines), item
        assert what, item
        if status == "missing":
            assert not path, item
            assert not anchor, item
        else:
            assert anchor, item
            assert words(anchor) in words((ROOT / path).read_text(encoding="utf-8")), f"{item}: {what}"


def test_the_page_has_the_items_as_they_are_and_at_most_three_are_left_out():
    page = PAGE.read_text(encoding="utf-8")
    assert replaced(page) == page, "run python docs/make_sources.py"
    assert sum(status == "out" for _, _, _, status, _, _ in ITEMS) <= 3


def test_every_cited_work_stands_on_the_page():
    lines = PAGE.read_text(encoding="utf-8").replace("é", "e").splitlines()
    found = {
        (re.split(", | and | & | et al", authors)[0], year)
        for path in CITED
        for authors, year in re.findall(AUTHORS, words(path.read_text(encoding="utf-8").replace("\n#", "\n")))
    }
    found = {(author, year) for author, year in found if author not in NO_AUTHORS}
    assert len(found) > 40, "else the pattern finds no citations"
    lost = [work for work in sorted(found) if not any(all(part in line for part in work) for line in lines)]
    assert lost == []
