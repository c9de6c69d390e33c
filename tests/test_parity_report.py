"""The parity report has the numbers of its run, and says what no check has caught."""

import math
import re

import pytest
import torch

from lessons.mistakes import MISTAKES
from tests import checks, parity_report
from tests.parity import Comparison
from tests.parity_report import fold, folded, main

FEW_MISTAKES = ("tanh GELU", "no beta", "Pearson not centred", "one layer short")  # the checks below miss the last


def difference(name: str, largest: float, tolerance: float = 1e-10) -> Comparison:
    return Comparison(name, (2, 3), torch.float64, largest, largest / 2, (1, 2), tolerance)


def row(report: str, *cells: str) -> list[str]:
    """The cells of the only table row that begins with these."""
    (line,) = [line for line in report.splitlines() if line.startswith(f"| {' | '.join(cells)} |")]
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]


def test_the_report_of_a_run(monkeypatch, tmp_path, capsys):
    """Of four quick checks, one of them off by 3e-11, and four mistakes, without the real weights."""
    few = {name: checks.CHECKS[name] for name in ("gelu", "layer_norm", "correlations")}
    few["off"] = lambda: iter([difference("off", 3e-11)])
    monkeypatch.setattr(checks, "CHECKS", few)
    monkeypatch.setattr(parity_report, "MISTAKES", {name: MISTAKES[name] for name in FEW_MISTAKES})
    monkeypatch.setattr(parity_report, "MINILM", tmp_path)
    main(["--out", str(tmp_path / "a")])
    printed = capsys.readouterr().out
    assert "none beyond its tolerance" in printed
    assert "4 known mistakes planted one at a time, 3 caught" in printed
    pieces, mistakes = ((tmp_path / "a" / f"{name}.md").read_text() for name in ("pieces", "mistakes"))
    assert row(mistakes, "one layer short")[3] == "**nothing**"
    assert row(mistakes, "tanh GELU")[3] == "gelu"
    numbers = ["1", "2 × 3", "float64", "3.0e-11", "1.5e-11", "1e-10", "30", "1, 2"]
    assert row(pieces, "off", "off")[2:] == numbers


def test_gradients_are_folded_into_their_worst_and_nan_is_the_worst_of_all():
    gradients = [difference("gradient of layers.0.attention.query.weight", 1e-12, 1e-9)]
    gradients.append(difference("gradient of embeddings", 4e-10, 1e-9))
    lines = fold([*gradients, difference("gelu", 2e-11), difference("gelu, gradient of input 0", 1e-13, 1e-9)])
    values = [(line.name, line.count, line.worst.largest) for line in lines]
    assert values == [("gradients", 2, 4e-10), ("gelu", 1, 2e-11), ("gelu, gradients", 1, 1e-13)]
    assert folded("after 10 steps layers.1.feed_forward.up.bias") == "parameters after 10 steps"
    lines = fold([difference("a", 1.0), difference("b", math.nan), difference("b", 2.0)])
    assert [line.name for line in lines] == ["b", "a"]


@pytest.mark.parametrize("largest", [3e-9, math.nan])
def test_a_number_beyond_its_tolerance_is_counted(largest):
    (first, *_) = parity_report.results({"off": [difference("off", largest)]}, [])
    assert "1 beyond their tolerance" in first
