"""Plots show exactly what was computed or logged, and say so if they cannot."""

import json
import sys

import numpy as np
import pytest

from minisbert.commands.train import plot as main
from minisbert.commands.train import read_run
from minisbert.core import InputError
from minisbert.evaluation.plots import draw_curves, draw_heatmap, draw_lengths

ENTRIES = [
    {"step": 0, "dev": {"pearson": 0.9, "spearman": 0.25}},
    {"step": 10, "loss": 8.0, "lr": 0.001},
    {"step": 20, "loss": 4.0, "lr": 0.002},
    {"step": 20, "dev": {"pearson": 0.2, "spearman": 0.5}},
    {"step": 20, "loss": 3.0, "lr": 0.002},  # logged again by a run that was resumed
]


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "$a_{$"  # must not be read as a formula
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"best_metric": "spearman"}))
    lines = "".join(json.dumps(entry) + "\n" for entry in ENTRIES)
    (folder / "metrics.jsonl").write_text(lines + '{"step": 30, "lo')  # killed while it wrote
    return folder


def test_the_curves_of_a_run(run):
    curves = read_run(run)
    assert curves == [{10: 8, 20: 3}, {0: 25, 20: 50}, {10: 0.001, 20: 0.002}]
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    figure = draw_curves({"a": curves, "b": curves}, ("loss", "score", "rate"))
    assert [[len(line.get_xdata()) for line in axes.lines] for axes in figure.axes] == [[2, 2], [2, 2], [2, 2]]
    assert figure.axes[1].lines[0].get_ydata().tolist() == [25, 50]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


def test_the_command_writes_a_png(run, capsys):
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    main([str(run)])
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    main([str(run), str(run), "--out", str(run / "new" / "both.png")])
    assert (run / "new" / "both.png").is_file()
    with pytest.raises(InputError, match="--out"):
        main([str(run), "--out", "curves.jpg"])


def test_what_is_no_run_is_refused(run, monkeypatch):
    (run / "metrics.jsonl").write_text('{"step": 10}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 1: .*loss"):
        read_run(run)
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(InputError, match="no losses"):
        read_run(run)
    with pytest.raises(InputError, match=r"metrics\.jsonl"):
        read_run(run / "nowhere")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # importing it fails, installed or not
    with pytest.raises(InputError, match=r"minisbert\[plots\]"):
        main([str(run)])


def test_every_length_is_in_a_bar():
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    lengths = [1, 1, 7, 150]
    axes = draw_lengths({"a": lengths, "empty": []}, "tokens").axes[0]
    bars = [(bar.get_x(), bar.get_x() + bar.get_width(), bar.get_height()) for bar in axes.patches]
    assert len(bars) <= 100
    for low, high, height in bars:
        assert height == sum(low < length < high for length in lengths)
    assert sum(height for _, _, height in bars) == 4


def test_a_heat_map_shows_every_number_under_its_texts():
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    matrix = np.array([[1.0, 0.25], [-0.5, 1.0]])
    figure = draw_heatmap(["costs $a$\nand $b$", "x" * 60], matrix, "cosine")
    axes = figure.axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), matrix)
    assert axes.images[0].get_clim() == (0, 1)
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [label.get_text() for label in labels] == ["costs $a$ and $b$", "x" * 45 + "..."]
    cells = {(text.get_position()[::-1]): text.get_text() for text in axes.texts}
    assert cells == {(0, 0): "1.00", (0, 1): "0.25", (1, 0): "-0.50", (1, 1): "1.00"}
    figure.draw_without_rendering()
