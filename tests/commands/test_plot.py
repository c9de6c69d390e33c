"""Plots show exactly what was computed or logged, and say so if they cannot."""

import json
import sys

import numpy as np
import pytest

from minisbert.commands.train import plot as main
from minisbert.commands.train import read_run
from minisbert.core import InputError
from minisbert.evaluation.plots import by_likeness, draw_curves, draw_heatmap, draw_histograms

CONFIG = {
    "loss": "cosine",
    "head": None,
    "model": "weights/tiny",
    "lr": 0.004,
    "schedule": "linear",
    "warmup": 2,
}
ENTRIES = [
    {"step": 0, "dev": {"pearson": 0.9, "spearman": 0.25}, "metric": "spearman"},
    {"step": 3, "loss": 8.0, "lr": 0.004, "total": 10},
    {"step": 6, "loss": 4.0, "lr": 0.0025, "total": 10},
    {"step": 6, "dev": {"pearson": 0.2, "spearman": 0.5}, "metric": "spearman"},
    {"step": 6, "loss": 3.0, "lr": 0.0025, "total": 10},  # again, by a run that was resumed
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
    """A step that is logged twice counts once; a line that is cut off is left out."""
    title, curves = read_run(run)
    assert title == "cosine on tiny"
    assert curves["loss (cosine)"] == {3: 8, 6: 3}
    assert curves["dev spearman x 100"] == {0: 25, 6: 50}


def test_the_learning_rate_is_that_of_every_step(run):
    """Up in two steps, then down to 0 after ten; the log has only the third and the sixth."""
    _, curves = read_run(run)
    expected = {1: 0.0, 2: 0.002, 3: 0.004, 4: 0.0035, 5: 0.003, 6: 0.0025}
    assert curves["learning rate"] == pytest.approx(expected)


def test_a_training_from_python_has_the_logged_learning_rates(run):
    """It writes no settings, so its schedule is not known."""
    (run / "config.json").unlink()
    _, curves = read_run(run)
    assert curves["learning rate"] == {3: 0.004, 6: 0.0025}


@pytest.mark.parametrize(("step", "shown"), [(8, {3: 8.0, 6: 3.0}), (9, {3: 8.0, 6: 3.0, 9: 1.0})])
def test_a_last_loss_of_fewer_steps_is_left_out(run, step, shown):
    """The mean of two steps beside means of three looks like a change, and is noise."""
    log = (run / "metrics.jsonl").read_text().rpartition("\n")[0]
    entry = {"step": step, "loss": 1.0, "lr": 0.001, "total": step}
    (run / "metrics.jsonl").write_text(f"{log}\n{json.dumps(entry)}\n")
    _, curves = read_run(run)
    assert curves["loss (cosine)"] == shown


def test_a_finished_run_shows_its_gain_on_test(run, monkeypatch):
    """The curve is that of dev, which chose the step."""
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    gain = {"metric": "spearman", "gain": 0.0279, "low": 0.0191, "high": 0.0368, "rows": 1379}
    (run / "results.json").write_text(json.dumps({"gain": gain}))
    titles = []

    def keep_title(figure, target):
        titles.append(figure.get_suptitle())

    monkeypatch.setattr("minisbert.evaluation.plots.save", keep_title)
    main([str(run)])
    assert titles == ["cosine on tiny: test spearman +2.79 (+1.91 to +3.68)"]


def test_runs_may_have_different_numbers_of_curves():
    """A run without dev rows is compared with one that has them."""
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    runs = {
        "without dev": {"loss": {1: 2.0}, "learning rate": {1: 0.1}},
        "with dev": {"loss": {1: 3.0}, "dev": {1: 0.5}, "learning rate": {1: 0.2}},
    }
    figure = draw_curves(runs, "two")
    lines = {axes.get_ylabel(): len(axes.lines) for axes in figure.axes}
    assert lines == {"loss": 2, "learning rate": 2, "dev": 1}


def test_a_picture_is_not_written_through_a_link_in_the_runs_folder(run, tmp_path):
    """The folder may be somebody else's, and ``curves.png`` in it a link to a file of yours."""
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    (tmp_path / "mine").write_text("mine")
    (run / "curves.png").symlink_to(tmp_path / "mine")
    with pytest.raises(InputError, match="link"):
        main([str(run)])
    assert (tmp_path / "mine").read_text() == "mine"
    (tmp_path / "chosen.png").symlink_to(tmp_path / "elsewhere.png")
    main([str(run), "--out", str(tmp_path / "chosen.png")])
    assert (tmp_path / "elsewhere.png").is_file()


def test_curves_of_several_runs_share_their_axes(run):
    """Losses have an axis for each kind; the others are compared on one."""
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    title, curves = read_run(run)
    other = {
        "loss (ranking)": {10: 1.0},
        "dev spearman x 100": {0: 20.0},
        "learning rate": {10: 0.1},
    }
    figure = draw_curves({"a": curves, "b": other}, title)
    points = {}
    for axes in figure.axes:
        points[axes.get_ylabel()] = [len(line.get_xdata()) for line in axes.lines]
    assert points == {
        "loss (cosine)": [2],
        "loss (ranking)": [1],
        "dev spearman x 100": [2, 1],
        "learning rate": [6, 1],
    }
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


@pytest.mark.parametrize(
    ("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_the_command_writes_a_picture(run, ending, start):
    """The ending chooses the format."""
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    path = run / "new" / f"both.{ending}"
    main([str(run), str(run), "--out", str(path)])
    assert path.read_bytes().startswith(start)


def test_the_picture_of_one_run_is_in_its_folder(run):
    """Without ``--out``."""
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    main([str(run)])
    assert (run / "curves.png").is_file()


def test_another_ending_is_refused(run):
    """The message names the option."""
    with pytest.raises(InputError, match="--out"):
        main([str(run), "--out", "curves.jpg"])


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ('{"step": 10}\n', r"metrics\.jsonl, line 1: .*loss"),
        ("", "no losses"),
        (None, r"metrics\.jsonl"),
    ],
)
def test_what_is_no_run_is_refused(run, log, message):
    """A damaged log, one without a loss yet, and none."""
    path = run / "metrics.jsonl"
    if log is None:
        path.unlink()
    else:
        path.write_text(log)
    with pytest.raises(InputError, match=message):
        read_run(run)


def test_a_missing_extra_is_told_before_the_run_is_read(run, monkeypatch):
    """Importing matplotlib fails here, whether it is installed or not."""
    (run / "metrics.jsonl").unlink()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"\.\[plots\]"):
        main([str(run)])


def test_every_length_is_in_a_bar():
    """No text is lost at the edge of a bar."""
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    lengths = [1, 1, 7, 150]
    figure = draw_histograms({"a": lengths}, "tokens", {"a": []})
    bars = figure.axes[0].patches
    assert len(bars) <= 100
    for bar in bars:
        low = bar.get_x()
        high = low + bar.get_width()
        assert bar.get_height() == sum(low < length < high for length in lengths)
    assert sum(bar.get_height() for bar in bars) == 4


def test_one_long_text_does_not_squeeze_the_others():
    """The axis goes on to the limit, and the title counts what lies beyond it."""
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    lengths = {"train": [10] * 399 + [776], "dev": [20] * 50}
    figure = draw_histograms(lengths, "tokens", {"train": [], "dev": []}, limit=256)
    train, dev = figure.axes
    assert 256 < train.get_xlim()[1] < 350
    assert dev.get_xlim() == train.get_xlim()
    assert [line.get_xdata()[0] for line in train.lines] == [256]
    assert "cuts 1 of 400; 1 beyond this axis" in train.get_title(loc="left")


def test_a_limit_far_beyond_all_texts_has_no_line():
    """An axis up to there would squeeze the bars; the title says that nothing is cut."""
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    figure = draw_histograms({"a": [10, 20, 30]}, "tokens", {"a": []}, limit=8192)
    (axes,) = figure.axes
    assert not axes.lines
    assert axes.get_xlim()[1] < 40
    assert "cuts 0 of 3" in axes.get_title(loc="left")


def test_a_file_without_scores_has_no_axes_for_them():
    """An empty picture would look like a mistake."""
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    lengths = {"a": [1, 1, 7, 150], "empty": []}
    scores = {"a": [0.5, 4.0, 4.0], "empty": []}
    figure = draw_histograms(lengths, "tokens", scores)
    assert [axes.get_visible() for axes in figure.axes] == [True, True, True, False]
    assert sum(bar.get_height() for bar in figure.axes[1].patches) == 3


def test_a_heat_map_shows_every_number_under_its_texts():
    """A dollar sign is no formula, and a long text is cut."""
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    matrix = np.array([[1.0, 0.25], [-0.5, 1.0]])
    figure = draw_heatmap(["costs $a$\nand $b$", "x" * 60], matrix, "cosine")
    axes = figure.axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), matrix)
    assert axes.images[0].get_clim() == (0, 1)
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [label.get_text() for label in labels] == ["costs $a$ and $b$", "x" * 45 + "..."]
    cells = {}
    for text in axes.texts:
        column, row = text.get_position()
        cells[row, column] = text.get_text()
    assert cells == {(0, 0): "1.00", (0, 1): "0.25", (1, 0): "-0.50", (1, 1): "1.00"}
    figure.draw_without_rendering()


def test_like_texts_are_beside_each_other():
    """Two pairs and a text between them, each group turned so that like texts are neighbours."""
    matrix = np.array(
        [
            [1.0, 0.0, 0.5, 0.9, 0.0],
            [0.0, 1.0, 0.1, 0.0, 0.8],
            [0.5, 0.1, 1.0, 0.2, 0.3],
            [0.9, 0.0, 0.2, 1.0, 0.0],
            [0.0, 0.8, 0.3, 0.0, 1.0],
        ]
    )
    assert by_likeness(matrix) in ([3, 0, 2, 4, 1], [1, 4, 2, 0, 3])


def test_the_order_of_one_text():
    """There is nothing to compare."""
    assert by_likeness(np.eye(1)) == [0]
