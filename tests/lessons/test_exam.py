"""The table of lessons/EXAM.md is what the ports return."""

import re

import pytest

from lessons.exam import PORTS, table
from tests.conftest import ROOT


def numbers(text: str) -> dict[str, list[float]]:
    """The cells of each row after its number of tokens, by text; of the rows that have one for each port."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {
        row[0]: [float(x) for x in row[2:]] for row in rows if len(row) == 2 + len(PORTS) and re.match(r"-?\d", row[2])
    }


@pytest.mark.weights
def test_the_page_has_what_the_ports_return(minilm):
    page = numbers((ROOT / "lessons" / "EXAM.md").read_text(encoding="utf-8"))
    found = numbers(table())
    *texts, largest = found
    assert list(page) == list(found)
    assert len(texts) == 6
    for text in texts:
        assert page[text] == pytest.approx(found[text], abs=2e-4)  # the CPU's rounding
    assert page[largest] == pytest.approx(found[largest], rel=0.5)
