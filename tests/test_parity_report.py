"""The parity report: complete, with the numbers of the run, and not stale."""

import math
import re
from types import SimpleNamespace

import pytest
import torch

from lessons.mistakes import MISTAKES
from tests import checks, parity, parity_report
from tests.conftest import ROOT, pytest_terminal_summary
from tests.parity import COMPARISONS, Comparison
from tests.parity_report import fold, folded, main, pages
from tests.test_parity import assert_equal

FEW_MISTAKES = ("tanh GELU", "no beta", "Pearson not centred", "one layer short")  # the checks below miss the last


def difference(name: str, largest: float, tolerance: float = 1e-10) -> Comparison:
    return Comparison(name, (2, 3), torch.float64, largest, largest / 2, (1, 2), tolerance)


def row(report: str, *cells: str) -> list[str]:
    """The cells of the only table row that begins with these."""
    (line,) = [line for line in report.splitlines() if line.startswith(f"| {' | '.join(cells)} |")]
    # a bar after a backslash is text
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip("|"))]


def test_report_and_picture_of_a_run(monkeypatch, tmp_path, capsys):
    """Of four quick checks, one of them off by 3e-11, and four mistakes, without the real weights."""
    pytest.importorskip("matplotlib")
    few = {name: checks.CHECKS[name] for name in ("gelu", "layer_norm", "correlations")}
    few["off"] = lambda: iter([difference("off", 3e-11)])
    monkeypatch.setattr(checks, "CHECKS", few)
    monkeypatch.setattr(parity_report, "MISTAKES", {name: MISTAKES[name] for name in FEW_MISTAKES})
    monkeypatch.setattr(parity_report, "MINILM", tmp_path)
    main(["--out-markdown", str(tmp_path / "a" / "parity.md"), "--out-picture", str(tmp_path / "b" / "parity.png")])
    assert (tmp_path / "b" / "parity.png").read_bytes().startswith(b"\x89PNG")
    written = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "a").iterdir()}
    assert sorted(written) == ["parity-mistakes.md", "parity-pieces.md", "parity.md"]
    assert "](../b/parity.png)" in written["parity.md"]
    assert "none beyond" in written["parity.md"]
    assert "1 beyond their tolerance" in pages({"off": [difference("off", 3e-9)]}, [])["parity.md"]
    assert "4 known mistakes planted one at a time, 3 caught" in written["parity.md"]
    assert row(written["parity-mistakes.md"], "one layer short")[3] == "**nothing**"
    for name in few:
        assert f"\n| {name} |" in written["parity-pieces.md"]
    numbers = ["1", "2 × 3", "float64", "3.0e-11", "1.5e-11", "1e-10", "30", "1, 2"]
    assert row(written["parity-pieces.md"], "off", "off")[2:] == numbers
    for name in FEW_MISTAKES:
        assert row(written["parity-mistakes.md"], name)[1] == MISTAKES[name].meaning
    assert "4 checks, 4 mistakes, 1 not caught" in capsys.readouterr().out


def test_gradients_are_folded_into_their_worst_and_nan_is_the_worst_of_all():
    gradients = [difference("gradient of layers.0.attention.query.weight", 1e-12, 1e-9)]
    gradients.append(difference("gradient of embeddings", 4e-10, 1e-9))
    lines = fold([*gradients, difference("gelu", 2e-11), difference("gelu, gradient of input 0", 1e-13, 1e-9)])
    values = [(line.name, line.count, line.worst.largest) for line in lines]
    assert values == [("gradients", 2, 4e-10), ("gelu", 1, 2e-11), ("gelu, gradients", 1, 1e-13)]
    assert folded("after 10 steps layers.1.feed_forward.up.bias") == "parameters after 10 steps"
    lines = fold([difference("a", 1.0), difference("b", math.nan), difference("b", 2.0)])
    assert [line.name for line in lines] == ["b", "a"]
    assert math.isnan(lines[0].worst.largest)


@pytest.mark.parametrize("wanted", [False, True])
def test_option_of_pytest(wanted, request, monkeypatch):
    """Every comparison of a run is in its report."""
    shown: list[str] = []
    before = len(COMPARISONS)
    assert_equal("gelu")
    monkeypatch.setattr(parity, "COMPARISONS", COMPARISONS[before:])
    monkeypatch.setattr(request.config.option, "parity_report", wanted)
    pytest_terminal_summary(SimpleNamespace(write_line=shown.append, section=shown.append), request.config)
    assert any("2 tensors compared" in line for line in shown) == wanted


def test_the_committed_report_is_not_stale():
    report = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in pages({}, []))
    for name, mistake in MISTAKES.items():
        assert row(report, name)[1:3] == [mistake.meaning, f"`{mistake.target}`"], "python -m tests.parity_report"
    for name in checks.CHECKS:
        assert f"\n| {name} |" in report
    assert "**nothing**" not in report
    assert f"\n{parity_report.BITS.read_text(encoding='utf-8')}" in report
