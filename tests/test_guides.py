"""The guides that build a program block by block: each block uses the names of those above it.

With the tiny model every block runs; with the real one it prints what the page shows.
"""

import contextlib
import io
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import ROOT

GUIDES = ("long-documents", "hybrid-search", "vector-databases")
# A block of Python, and the block below it with what it prints, if there is one.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
LIBRARIES = ("faiss", "qdrant_client", "chromadb")
each_guide = pytest.mark.parametrize("guide", GUIDES)


def run(guide: str, model: Path) -> list[tuple[str, str]]:
    """Return what each block prints and what the page shows, without blocks that lack a library."""
    text = (ROOT / "docs" / f"{guide}.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    results = []
    for code, shown in BLOCK.findall(text):
        imported = set(re.findall(r"^(?:from|import) (\w+)", code, re.MULTILINE))
        needed = imported.intersection(LIBRARIES)
        if any(find_spec(library) is None for library in needed):
            continue
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code.replace("all-MiniLM-L6-v2", model.as_posix()), names)
        results.append((printed.getvalue(), shown))
    return results


@each_guide
def test_the_blocks_of_a_guide_run_one_after_the_other(guide, tiny, tmp_path, monkeypatch):
    """A reader who copies them from the top meets no name that is missing."""
    monkeypatch.chdir(tmp_path)
    assert run(guide, tiny)


@pytest.mark.weights
@each_guide
def test_a_guide_prints_what_it_shows(guide, minilm, tmp_path, monkeypatch):
    """Its scores have two digits, which are the same on every CPU."""
    monkeypatch.chdir(tmp_path)
    for printed, shown in run(guide, minilm):
        assert printed == shown
