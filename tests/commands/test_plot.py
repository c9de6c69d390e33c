"""Plots show exactly what was computed or logged, and say so if they cannot."""

import json
import sys

import numpy as np
import pytest

from minisbert.commands.train import plot as main
from minisbert.commands.train import read_run
from minisbert.core import InputError
from minisbert.evaluation.plots import by_likeness, draw_curves, draw_heatmap, draw_histograms

CONFIG = {"loss": "cosine", "head": None, "model": "weights/tiny", "warmup": 0.1}
ENTRIES = [
    {"step": 0, "dev": {"pearson": 0.9, "spearman": 0.25}, "metric": "spearman"},
    {"step": 10, "loss": 8.0, "lr": 0.001},
    {"step": 20, "loss": 4.0, "lr": 0.002},
    {"step": 20, "dev": {"pearson": 0.2, "spearman": 0.5}, "metric": "spearman"},
    {"step": 20, "loss": 3.0, "lr": 0.002},  # logged again by a run that was resumed
]


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "$a_{$"  # must not be read as a formula
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    lines = "".join(json.dumps(entry) + "\n" for entry in ENTRIES)
    (folder / "metrics.jsonl").write_text(lines + '{"step": 30, "lo')  # killed while it wrote
    return folder


def test_the_curves_of_a_run(run):
    title, curves = read_run(run)
    assert title == "cosine on tiny"
    # the learning rate begins at 0
    rates = {1: 0, 10: 0.001, 20: 0.002}
    assert curves == {
        "loss (cosine)": {10: 8, 20: 3},
        "dev spearman x 100": {0: 25, 20: 50},
        "learning rate": rates,
    }
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    other = {
        "loss (ranking)": {10: 1.0},
        "dev spearman x 100": {0: 20.0},
        "learning rate": {10: 0.1},
    }
    figure = draw_curves({"a": curves, "b": other}, title)
    labels = ["loss (cosine)", "loss (ranking)", "dev spearman x 100", "learning rate"]
    assert [axes.get_ylabel() for axes in figure.axes] == labels
    assert [[len(line.get_xdata()) for line in axes.lines] for axes in figure.axes] == [
        [2],
        [1],
        [2, 1],
        [3, 1],
    ]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


@pytest.mark.parametrize(
    ("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_the_command_writes_a_picture(run, ending, start):
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    main([str(run), str(run), "--out", str(run / "new" / f"both.{ending}")])
    assert (run / "new" / f"both.{ending}").read_bytes().startswith(start)
    main([str(run)])
    assert (run / "curves.png").is_file()
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
    monkeypatch.setitem(
        sys.modules, "matplotlib.figure", None
    )  # importing it fails, installed or not
    with pytest.raises(InputError, match=r"\.\[plots\]"):
        main([str(run)])


def test_every_length_is_in_a_bar():
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    lengths = [1, 1, 7, 150]
    figure = draw_histograms(
        {"a": lengths, "empty": []}, "tokens", {"a": [0.5, 4.0, 4.0], "empty": []}
    )
    assert [axes.get_visible() for axes in figure.axes] == [True, True, True, False]
    assert sum(bar.get_height() for bar in figure.axes[1].patches) == 3
    axes = figure.axes[0]
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


def test_like_texts_are_beside_each_other():
    """Two pairs and a text between them; each group turned so that the most alike are
    neighbours.
    """
    matrix = np.eye(5)
    for i, j, value in (
        (0, 3, 0.9),
        (1, 4, 0.8),
        (0, 2, 0.5),
        (1, 2, 0.1),
        (2, 3, 0.2),
        (2, 4, 0.3),
    ):
        matrix[i, j] = matrix[j, i] = value
    assert by_likeness(matrix) in ([3, 0, 2, 4, 1], [1, 4, 2, 0, 3])
    assert by_likeness(np.eye(1)) == [0]
