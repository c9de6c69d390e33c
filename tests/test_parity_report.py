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
from tests.parity_report import catch, fold, folded, main, pages, run_checks
from tests.test_parity import assert_equal

FEW_CHECKS = ("gelu", "layer_norm", "correlations")
FEW_MISTAKES = ("tanh GELU", "no beta", "Pearson not centred", "one layer short")  # FEW_CHECKS miss the last


@pytest.fixture
def few(monkeypatch, tmp_path) -> None:
    """Three quick checks, four mistakes, no real weights."""
    monkeypatch.setattr(checks, "CHECKS", {name: checks.CHECKS[name] for name in FEW_CHECKS})
    monkeypatch.setattr(parity_report, "MISTAKES", {name: MISTAKES[name] for name in FEW_MISTAKES})
    monkeypatch.setattr(parity_report, "MINILM", tmp_path)


def difference(name: str, largest: float, tolerance: float = 1e-10) -> Comparison:
    return Comparison(name, (2, 3), torch.float64, largest, largest / 2, (1, 2), tolerance)


def row(report: str, *cells: str) -> list[str]:
    """The cells of the only table row that begins with these."""
    rows = [line for line in report.splitlines() if line.startswith(f"| {' | '.join(cells)} |")]
    assert len(rows) == 1, rows
    cells = re.split(r"(?<!\\)\|", rows[0].strip("|"))  # a bar after a backslash is text
    return [cell.strip().replace("\\|", "|") for cell in cells]


def test_report_and_picture_of_a_run(few, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    report, picture = tmp_path / "a" / "parity.md", tmp_path / "b" / "parity.png"
    main(["--out-markdown", str(report), "--out-picture", str(picture)])
    text = report.read_text(encoding="utf-8")
    assert "](../b/parity.png)" in text
    names = ("parity.md", "parity-mistakes.md", "parity-pieces.md")
    assert {path.name for path in report.parent.iterdir()} == {*names}
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "3 checks, 4 mistakes, 1 not caught" in capsys.readouterr().out


def test_every_check_and_mistake_is_in_the_report(few):
    catches = [catch(mistake) for mistake in parity_report.MISTAKES.values()]
    report = "".join(pages(run_checks(), catches).values())
    for name in FEW_CHECKS:
        assert f"\n| {name} |" in report
    for name in FEW_MISTAKES:
        assert row(report, name)[1] == MISTAKES[name].meaning
    assert "4 known mistakes planted one at a time, 3 caught" in report
    assert row(report, "one layer short")[3] == "**nothing**"


def test_numbers_come_from_the_run(few):
    """A check that is off by 3e-11, within its tolerance, and one that is off by 3e-9."""
    checks.CHECKS["gelu"] = lambda: iter([difference("gelu", 3e-11)])
    report = "".join(pages(run_checks(), []).values())
    assert row(report, "gelu", "gelu")[2:] == ["1", "2 × 3", "float64", "3.0e-11", "1.5e-11", "1e-10", "30", "1, 2"]
    assert "none beyond" in report
    checks.CHECKS["gelu"] = lambda: iter([difference("gelu", 3e-9)])
    assert "1 beyond their tolerance" in pages(run_checks(), [])["parity.md"]


def test_parameters_and_gradients_are_folded_into_their_worst():
    gradients = [difference("gradient of layers.0.attention.query.weight", 1e-12, 1e-9)]
    gradients.append(difference("gradient of embeddings", 4e-10, 1e-9))
    lines = fold([*gradients, difference("gelu", 2e-11), difference("gelu, gradient of input 0", 1e-13, 1e-9)])
    found = [(line.name, line.count, line.worst.largest) for line in lines]
    assert found == [("gradients", 2, 4e-10), ("gelu", 1, 2e-11), ("gelu, gradients", 1, 1e-13)]
    names = {
        "attention, masked, gradient of input 2": "attention, masked, gradients",
        "tiny-roberta gradient of layers.0.attention.key.bias": "tiny-roberta, gradients",
        "after 10 steps layers.1.feed_forward.up.bias": "parameters after 10 steps",
        "10 losses": "10 losses",
    }
    assert {name: folded(name) for name in names} == names


def test_not_a_number_is_the_worst_of_all():
    lines = fold([difference("a", 1.0), difference("b", math.nan), difference("b", 2.0)])
    assert [line.name for line in lines] == ["b", "a"]
    assert math.isnan(lines[0].worst.largest)


def test_option_of_pytest(request, monkeypatch):
    """Every comparison of a run is in its report."""
    shown: list[str] = []
    reporter = SimpleNamespace(write_line=shown.append, section=shown.append)
    before = len(COMPARISONS)
    assert_equal("gelu")
    monkeypatch.setattr(parity, "COMPARISONS", COMPARISONS[before:])
    for wanted in (False, True):
        shown.clear()
        assert request.config.getoption("--parity-report") is not None
        monkeypatch.setattr(request.config.option, "parity_report", wanted)
        pytest_terminal_summary(reporter, request.config)
        assert ("parity with the reference" in shown) == wanted
    assert "\ngelu, gradients" in shown[-1]
    assert "2 tensors compared" in shown[-1]


def test_the_committed_report_is_not_stale():
    report = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in pages({}, []))
    for name, mistake in MISTAKES.items():
        again = "python -m tests.parity_report"
        assert row(report, name)[1:3] == [mistake.meaning, f"`{mistake.target}`"], again
    for name in checks.CHECKS:
        assert f"\n| {name} |" in report
    assert "**nothing**" not in report
    assert f"\n{parity_report.BITS.read_text(encoding='utf-8')}" in report
