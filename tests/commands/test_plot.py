"""Plots show exactly what the run logged, and say so if they cannot."""

import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisbert.commands.plot import main
from minisbert.core import InputError
from minisbert.evaluation.plots import draw_heatmap, draw_histogram, new_figure
from minisbert.training import train as train
from minisbert.training.curves import draw_curves, read_run, running_mean
from tests import toys
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def matplotlib(request: pytest.FixtureRequest) -> None:
    if not request.node.name.startswith("test_without_matplotlib"):
        pytest.importorskip("matplotlib", reason="needs the plots extra")


def dev(step: int, **scores: float) -> dict[str, Any]:
    return {"step": step, "epoch": 0, "dev": scores}


def logged(step: int, loss: float, lr: float = 0.5) -> dict[str, Any]:
    return {"step": step, "epoch": 0, "loss": loss, "lr": lr, "tokens_per_second": 1000}


LINES = [
    dev(0, pearson=0.9, spearman=0.25),
    logged(10, 8.0, 0.001),
    logged(20, 4.0, 0.002),
    dev(20, pearson=0.2, spearman=0.5),
    logged(30, 6.0, 0.001),
    logged(40, 2.0, 0.0),
    dev(40, pearson=0.1, spearman=0.375),
]


def write(folder: Path, lines: list = LINES, end: str = "", **config: Any) -> Path:
    """The folder of a run that logged ``lines``; ``end`` follows the last line break."""
    folder.mkdir(parents=True, exist_ok=True)
    scored = [line["dev"] for line in lines if "dev" in line and not isinstance(line, str)]
    metric = "spearman" if not scored or "spearman" in scored[0] else next(iter(scored[0]))
    (folder / "config.json").write_text(json.dumps({"objective": "cosine", "best_metric": metric} | config))
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + end)
    return folder


@pytest.fixture
def draw(tmp_path):
    """``draw(LINES, ...)``: the figure of runs that logged these lines, named a, b, c, ..."""

    def figure(*runs: list, **config: Any):
        return draw_curves([read_run(write(tmp_path / "abcdefghij"[i], run, **config)) for i, run in enumerate(runs)])

    return figure


def points(line) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]


def marked(axes, marker: str) -> list[tuple[float, float]]:
    return [point for line in axes.lines if line.get_marker() == marker for point in points(line)]


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


# ------------------------------------------------------------------------------------------- curves


def test_every_line_is_what_was_logged(draw):
    figure = draw(LINES)
    loss, score, rate = figure.axes
    assert points(loss.lines[0]) == [(10, 8), (20, 4), (30, 6), (40, 2)]
    assert points(loss.lines[1]) == [(10, 8), (20, 6), (30, 6), (40, 4)]  # window 3: 8, (8+4)/2, 18/3, 12/3
    assert points(rate.lines[0]) == [(10, 0.001), (20, 0.002), (30, 0.001), (40, 0)]
    assert [points(line) for line in score.lines if line.get_marker() != "*"] == [[(0, 25), (20, 50), (40, 37.5)]]
    assert marked(score, "*") == [(20, 50)]
    assert legend(figure) == ["a: best dev spearman 50.00 at step 20"]
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "dev spearman x 100", "learning rate"]
    assert rate.get_ylim()[0] == 0
    loss.set_xlim(3, 7)
    assert [axes.get_xlim() for axes in figure.axes] == [(3, 7)] * 3  # one axis of steps


def test_losses_on_dev_are_squares_of_the_runs_colour(draw):
    figure = draw([dev(0, spearman=0.5, loss=9.0), logged(5, 2.0), dev(5, spearman=0.25, loss=0.125)], LINES)
    loss = figure.axes[0]
    (squares,) = (line for line in loss.lines if line.get_marker() == "s")
    assert points(squares) == [(0, 9), (5, 0.125)]
    assert squares.get_color() == loss.lines[0].get_color()
    assert loss.get_yscale() == "log"  # from 9 to .125
    assert "squares: dev" in loss.get_title(loc="right")
    assert "squares" not in draw(LINES).axes[0].get_title(loc="right")


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=40), st.integers(1, 50))
def test_the_running_mean_equals_a_slow_loop(values, window):
    expected = [mean(values[max(0, i + 1 - window) : i + 1]) for i in range(len(values))]
    np.testing.assert_allclose(running_mean(values, window), expected, rtol=0, atol=1e-10)


def test_the_metric_that_selects_the_model_is_drawn(draw):
    scores = {"spearman": 0.25, "pearson": 0.5}
    figure = draw([dev(0, **scores), logged(10, 1.0), dev(20, **scores)], best_metric="pearson")
    assert marked(figure.axes[1], "*") == [(0, 50)]  # of equal scores the first is the best
    assert figure.axes[1].get_ylabel() == "dev pearson x 100"


def test_a_run_without_dev_scores_yet(draw):
    figure = draw([logged(10, 1.0)])
    assert marked(figure.axes[1], "*") == []
    assert legend(figure) == ["a"]
    assert [figure.axes[i].lines[0].get_marker() for i in (0, 2)] == ["o", "o"]  # a single point


def test_runs_are_compared(draw):
    figure = draw(LINES, [dev(0, accuracy=0.75), logged(7, 3.0), logged(14, 1.0), dev(14, accuracy=0.5)])
    loss, score, rate = figure.axes
    assert points(loss.lines[2]) == [(7, 3), (14, 1)]
    assert points(rate.lines[1]) == [(7, 0.5), (14, 0.5)]
    assert marked(score, "*") == [(20, 50), (0, 75)]
    assert score.get_ylabel() == "dev score x 100"  # different metrics are in the legend
    assert legend(figure) == ["a: best dev spearman 50.00 at step 20", "b: best dev accuracy 75.00 at step 0"]
    handles = figure.legends[0].legend_handles
    assert [handle.get_color() for handle in handles] == [line.get_color() for line in rate.lines]
    assert loss.lines[0].get_color() == loss.lines[1].get_color() != loss.lines[2].get_color()


def test_folders_of_the_same_name_and_of_bytes_that_are_not_utf8(tmp_path):
    folders = [write(tmp_path / "x" / "a"), write(tmp_path / "y" / "a"), write(tmp_path / "caf\udce9")]
    shown = [text.replace("\n", " ").split(": ")[0] for text in legend(draw_curves(list(map(read_run, folders))))]
    assert shown == [str(folders[0]), str(folders[1]), r"caf\udce9"]


@pytest.mark.parametrize(
    ("losses", "scale"),
    [
        ([[9.0, 0.5]], "linear"),
        ([[9.0, 8.0], [0.25, 0.2]], "log"),
        ([[9.0, 0.0]], "linear"),  # 0 has no logarithm
        ([[math.nan]], "linear"),
    ],
)
def test_losses_of_very_different_size_get_a_logarithmic_axis(draw, losses, scale):
    figure = draw(*([logged(step, loss) for step, loss in enumerate(run, 1)] for run in losses))
    assert figure.axes[0].get_yscale() == scale
    figure.draw_without_rendering()


# ------------------------------------------------------------------------------------------- the log


@pytest.mark.parametrize(
    ("end", "expected"),
    [("{", {}), ('{"step": 50, "loss": 3.0, "lr": 0.1', {}), (json.dumps(logged(50, 1.5)), {50: 1.5})],
)
def test_only_a_complete_last_line_counts(tmp_path, end, expected):
    assert read_run(write(tmp_path / "a", end=end)).losses == {10: 8, 20: 4, 30: 6, 40: 2} | expected


def test_what_a_resumed_run_logs_again_counts_once(tmp_path):
    run = read_run(write(tmp_path / "a", [*LINES, logged(30, 5.0), logged(40, 1.0), dev(40, spearman=0.625)]))
    assert list(run.losses.items()) == [(10, 8), (20, 4), (30, 5), (40, 1)]
    assert run.scores == {0: 25, 20: 50, 40: 62.5}


@pytest.mark.parametrize(
    "line",
    [
        *('{"step": 50, "loss"', "", "[1, 2]", '"dev"', "[" * 100_000, "9" * 5000),
        *({"step": 50, "loss": 1.0}, {"step": 50, "dev": [0.5]}, dev(50), logged("many", 1.0), logged(50, 10**400)),
        logged(50, 1e308),  # no axis can show it
    ],
    ids=lambda line: str(line)[:40],
)
def test_a_bad_line_is_reported_with_its_number(tmp_path, line):
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 8: ") as refused:
        read_run(write(tmp_path / "a", [*LINES, line]))
    assert "\n" not in str(refused.value)


def test_a_folder_that_is_not_a_run_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"a has no losses yet: training logs them every few steps \(--log-every\)"):
        read_run(write(tmp_path / "a", [dev(0, spearman=0.5)], end='{"step": 10'))
    (tmp_path / "a" / "config.json").unlink()
    with pytest.raises(InputError, match=r"config\.json does not exist"):
        read_run(tmp_path / "a")
    for folder in (tmp_path / "nowhere", tmp_path / "a" / "metrics.jsonl"):
        with pytest.raises(InputError, match=r"is not the folder of a run: it has no metrics\.jsonl"):
            read_run(folder)


# ------------------------------------------------------------------------------------------- lengths


def histogram(tokens, limit):
    axes = new_figure((9, 4.5)).subplots()
    draw_histogram(axes, tokens, limit)
    return axes


@settings(max_examples=30)
@given(st.lists(st.integers(1, 120) | st.integers(1, 2000), min_size=1, max_size=60))
def test_every_length_has_its_bar_and_there_are_at_most_100(tokens):
    (stairs,) = histogram(tokens, 512).patches
    counts, edges = stairs.get_data().values, stairs.get_data().edges
    assert counts.sum() == len(tokens)
    assert len(counts) <= 100
    for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
        assert count == sum(low < length < high for length in tokens)
    if max(tokens) <= 100:  # a bar for each
        starts = {int(edge + 0.5): int(count) for count, edge in zip(counts, edges[:-1], strict=True) if count}
        assert starts == Counter(tokens)


def test_median_95th_percentile_and_limit_are_marked():
    axes = histogram([*range(1, 21), 21], 20)  # 21 lengths: the 11th is the median, the 20th the 95th percentile
    assert [line.get_xdata()[0] for line in axes.lines] == [11, 20, 20]
    labels = axes.get_legend_handles_labels()[1]
    assert labels == ["median: 11", "95th percentile: 20", "the model's limit: 20 (reached by 2 of 21 texts)"]


# ------------------------------------------------------------------------------------------ heat map


def test_a_heat_map_shows_every_number_under_its_texts():
    matrix = np.array([[1.0, 0.25], [-0.5, 1.0]])
    figure = draw_heatmap(["costs $a$\nand $b$", "x" * 60], matrix, "cosine")
    axes = figure.axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), matrix)
    assert axes.images[0].get_clim() == (0, 1)
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [label.get_text() for label in labels] == ["costs $a$ and $b$", "x" * 45 + "..."]
        assert not any(label.get_parse_math() for label in labels)
    cells = {(text.get_position()[::-1]): text.get_text() for text in axes.texts}
    assert cells == {(0, 0): "1.00", (0, 1): "0.25", (1, 0): "-0.50", (1, 1): "1.00"}
    figure.draw_without_rendering()


# ------------------------------------------------------------------------------------------- files


def png_size(path: Path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


def test_the_command_writes_a_png(tmp_path, monkeypatch, capsys):
    run = write(tmp_path / "$a_{$")  # must not be read as a formula
    main([str(run)])
    assert png_size(run / "curves.png") == (990, 816)
    assert capsys.readouterr().err == f"wrote {run / 'curves.png'}\n"
    assert sorted(path.name for path in run.iterdir()) == ["config.json", "curves.png", "metrics.jsonl"]
    monkeypatch.chdir(tmp_path)
    saved = []
    monkeypatch.setattr("minisbert.commands.plot.save", lambda figure, target: saved.append(target))
    main([str(run), str(run)])
    main([str(run), str(run), "--out", "new/both.png"])
    with pytest.raises(InputError, match="--out"):
        main([str(run), "--out", "curves.jpg"])
    assert saved == [Path("curves.png"), Path("new/both.png")]


def test_a_failure_leaves_the_old_plot(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    def full_disk(*_, **__) -> None:
        raise OSError("No space left on device")

    run = write(tmp_path / "a")
    (run / "curves.png").write_text("the old picture")
    monkeypatch.setattr(Figure, "savefig", full_disk)
    with pytest.raises(OSError, match="No space left"):
        main([str(run)])
    assert (run / "curves.png").read_text() == "the old picture"
    assert sorted(path.name for path in run.iterdir()) == ["config.json", "curves.png", "metrics.jsonl"]


def test_the_command_draws_what_a_run_of_training_wrote(tiny, tmp_path, monkeypatch):
    files, out = toys.write_all(tmp_path), tmp_path / "run"
    data = ["--data", files["scored"], "--dev", files["dev"], "--test", files["test"]]
    train.main(["--model", str(tiny), *data, "--batch-size", "8", "--log-every", "2", "--out", str(out)])
    drawn = []
    monkeypatch.setattr("minisbert.commands.plot.save", lambda figure, target: drawn.append((figure, target)))
    main([str(out)])
    ((figure, target),) = drawn
    entries = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert target == out / "curves.png"
    assert points(figure.axes[0].lines[0]) == [(line["step"], line["loss"]) for line in entries if "loss" in line]
    assert marked(figure.axes[0], "s") == [(line["step"], line["dev"]["loss"]) for line in entries if "dev" in line]
    best = json.loads((out / "results.json").read_text())["after"]["dev"]["spearman"]
    assert marked(figure.axes[1], "*")[0][1] == pytest.approx(100 * best, abs=1e-4)


# ------------------------------------------------------------------------------------------- matplotlib


def test_without_matplotlib_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails, installed or not
    run = write(tmp_path / "a")
    for attempt in (lambda: main([str(run)]), lambda: new_figure((1, 1))):
        with pytest.raises(InputError, match=r"plots need matplotlib .*: pip install 'minisbert\[plots\]'"):
            attempt()
    assert sorted(path.name for path in run.iterdir()) == ["config.json", "metrics.jsonl"]


def test_no_window_and_no_state_of_pyplot(tmp_path):
    program = (
        "import sys; from minisbert.commands.plot import main; main(); "
        "print([name for name in ('matplotlib.pyplot', 'tkinter', 'torch') if name in sys.modules])"
    )
    command = [sys.executable, "-c", program, str(write(tmp_path / "a"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
