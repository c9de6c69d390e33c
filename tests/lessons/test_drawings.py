"""The drawings in git are what the code draws, and need nothing else."""

import re

from lessons.drawings import all_drawings
from tests.conftest import ROOT

DRAWN = all_drawings()


def test_those_in_git_are_what_the_code_draws():
    committed = {
        path.name: path.read_text(encoding="utf-8")
        for path in (ROOT / "lessons" / "drawings").glob("*.svg")
    }
    assert committed.keys() == DRAWN.keys()
    assert [name for name in DRAWN if committed[name] != DRAWN[name]] == [], (
        "python -m lessons.drawings"
    )
    assert [
        name for name, drawn in DRAWN.items() if re.search(r"url\(|href|@import|<script", drawn)
    ] == []
