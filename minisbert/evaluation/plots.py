"""Plots: curves of runs, text lengths, similarities as a heat map. Needs matplotlib (the ``plots`` extra)."""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from minisbert.core import InputError, read_json, reading
from minisbert.system.files import atomic_file, read_text

# a palette for every kind of colour vision (Okabe & Ito 2008); dashes let a line underneath show through
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
STYLES = ("-", "--", "-.", ":")
MAX_MARKERS = 50  # points; on longer lines markers would overlap
MAX_NUMBERS = 15  # texts of a heat map; in more cells numbers would overlap


def require() -> None:
    """``InputError`` if matplotlib is missing. Call it before the work, not after."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise InputError(f"plots need matplotlib ({error}): pip install 'minisbert[plots]'") from error


def new_figure(inches: tuple[float, float]) -> Any:
    require()
    from matplotlib.figure import Figure

    return Figure(figsize=inches, dpi=110, layout="constrained")


@dataclass(frozen=True)
class History:
    """The contents of ``metrics.jsonl``, by step."""

    folder: Path
    metric: str  # the one that selects the best model
    losses: dict[int, float]  # means since the previous entry
    rates: dict[int, float]
    scores: dict[int, float]  # on dev, x 100
    dev_losses: dict[int, float]  # of objectives whose loss dev rows have

    @property
    def best(self) -> int:
        """The step of the best dev score; the first if several are equal, as in training."""
        return max(self.scores, key=self.scores.__getitem__)


def read_run(folder: Path) -> History:
    """The history of a run; ``InputError`` if the folder is not a run, a line is bad, or no loss is logged yet."""
    log = folder / "metrics.jsonl"
    if not log.is_file():
        raise InputError(f"{folder} is not the folder of a run: it has no metrics.jsonl, which training writes")
    metric = read_json(folder / "config.json").get("best_metric")
    losses, rates, scores, dev_losses = {}, {}, {}, {}  # by step, so what a resumed run logs again counts once
    with reading(log) as at:
        for at.line, entry in enumerate(read_lines(log), 1):
            step, dev = int(number_in(entry, "step")), entry.get("dev")
            if dev is None:
                losses[step], rates[step] = number_in(entry, "loss"), number_in(entry, "lr")
                continue
            # old runs have no best_metric: Spearman was used, if there was one
            metric = metric or ("spearman" if "spearman" in dev else next(iter(dev), "spearman"))
            scores[step] = 100 * number_in(dev, metric)
            if "loss" in dev:
                dev_losses[step] = number_in(dev, "loss")
    if not losses:
        raise InputError(f"{folder} has no losses yet: training logs them every few steps (--log-every)")
    return History(folder, metric or "score", losses, rates, scores, dev_losses)


def number_in(entry: dict[str, Any], name: str) -> float:
    """A number of an entry, which may be NaN or infinite; ``ValueError`` for one that no axis can show."""
    value = float(entry[name])
    if 1e100 < abs(value) < math.inf:
        raise ValueError(f"{name} {value} is too large")
    return value


def read_lines(log: Path) -> list[Any]:
    """The content of each line of JSON, without an incomplete last line, left by a run that was killed."""
    *lines, rest = read_text(log).split("\n")
    with suppress(ValueError, RecursionError):
        json.loads(rest)
        lines.append(rest)
    with reading(log) as at:
        return [json.loads(line) for at.line, line in enumerate(lines, 1)]


def running_mean(values: Sequence[float], window: int) -> np.ndarray:
    """The mean of each value and the ``window - 1`` before it: ``running_mean([1, 2, 6, 7], 3) = [1, 1.5, 3, 5]``."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    end = np.arange(1, len(sums))
    start = np.maximum(0, end - window)
    return (sums[end] - sums[start]) / (end - start)


def curves(runs: Sequence[Path], target: Path) -> None:
    """Plot training loss, dev score and learning rate of the runs over steps, to ``target``, a PNG file."""
    require()
    save(draw_curves([read_run(Path(run)) for run in runs]), target)


def lengths(tokens: Sequence[int], limit: int, target: Path) -> None:
    """Plot a histogram of text lengths and the model's limit, in tokens, to ``target``, a PNG file."""
    save(draw_lengths(tokens, limit), target)


def heatmap(texts: Sequence[str], matrix: np.ndarray, similarity: str, target: Path) -> None:
    """Plot the ``similarity`` (N, N) of each text with each other to ``target``, a PNG file."""
    save(draw_heatmap(texts, matrix, similarity), target)


def draw_curves(runs: Sequence[History]) -> Any:
    """A ``Figure`` of three panels that share the step axis, one colour per run; the legend states each best score."""
    figure = new_figure((9, 7.2 + 0.22 * len(runs)))
    loss, dev, rate = panels = figure.subplots(3, sharex=True, height_ratios=(3, 3, 1.6))
    names = [run.folder.resolve().name for run in runs]
    handles, labels = [], []
    for i, (run, name) in enumerate(zip(runs, names, strict=True)):
        handles.append(draw_run(panels, run, COLOURS[i % len(COLOURS)], STYLES[i % len(STYLES)]))
        label = name if names.count(name) == 1 else str(run.folder)
        if run.scores:
            label += f": best dev {run.metric} {run.scores[run.best]:.2f} at step {run.best:,}"
        label = label.replace("$", r"\$").encode(errors="backslashreplace").decode()  # two $ would enclose a formula
        labels.append(fill(label, 100, break_on_hyphens=False))

    values = (value for run in runs for value in (*run.losses.values(), *run.dev_losses.values()))
    logged = [value for value in values if math.isfinite(value)]
    if logged and 0 < 30 * min(logged) < max(logged):  # losses of different kinds, or one that falls far
        loss.set_yscale("log")
    squares = ", squares: dev" if any(run.dev_losses for run in runs) else ""
    loss.set_title(f"training loss: pale as logged, bold running mean{squares}", fontsize=9, loc="right")
    loss.set_ylabel("loss")
    metrics = {run.metric for run in runs}
    dev.set_title("star: the best", fontsize=9, loc="right")
    dev.set_ylabel(f"dev {metrics.pop() if len(metrics) == 1 else 'score'} x 100")
    rate.yaxis.get_major_locator().set_params(nbins=5)
    rate.yaxis.set_major_formatter("{x:g}")
    rate.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    tidy(panels, integer_axes=[rate.xaxis])
    figure.legend(handles, labels, loc="outside upper left", frameon=False, handlelength=3)
    return figure


def draw_run(panels: Sequence[Any], run: History, colour: str, style: str) -> Any:
    """Draw one run; its line of dev scores. The running mean spans a twentieth of the run, at least 3 points."""
    loss, dev, rate = panels

    def line(axes: Any, points: dict[int, float], values: Any, **look: Any) -> Any:
        marker = "o" if len(points) == 1 or (axes is dev and len(points) <= MAX_MARKERS) else None
        return axes.plot(list(points), list(values), color=colour, marker=marker, markersize=4, **look)[0]

    logged = list(run.losses.values())
    line(loss, run.losses, logged, linewidth=0.8, alpha=0.4)
    line(loss, run.losses, running_mean(logged, max(3, len(logged) // 20)), linewidth=2, linestyle=style)
    if run.dev_losses:
        loss.plot(list(run.dev_losses), list(run.dev_losses.values()), color=colour, marker="s", linestyle="")
    line(rate, run.rates, run.rates.values(), linewidth=1.6, linestyle=style)
    if run.scores:
        look = {"marker": "*", "markersize": 15, "markeredgecolor": "white", "zorder": 3}
        dev.plot(run.best, run.scores[run.best], color=colour, **look)
    return line(dev, run.scores, run.scores.values(), linewidth=1.6, linestyle=style)


def draw_lengths(tokens: Sequence[int], limit: int) -> Any:
    """A ``Figure`` of a histogram."""
    figure = new_figure((9, 4.5))
    draw_histogram(figure.subplots(), tokens, limit)
    figure.legend(loc="outside upper left", ncols=3, frameon=False)
    return figure


def draw_histogram(axes: Any, tokens: Sequence[int], limit: int | None = None, unit: str = "tokens") -> None:
    """Lengths of texts; a limit beyond twice the longest text becomes an arrow at the right edge."""
    longest = max(tokens)
    width = -(-longest // 100)  # lengths per bar, for at most 100 bars
    edges = np.arange(longest, -width, -width)[::-1] + 0.5  # integers fall inside a bar, not on its edge
    axes.stairs(np.histogram(tokens, edges)[0], edges, fill=True, color="#b8cbd9")
    median, most = np.median(tokens), np.percentile(tokens, 95)
    axes.axvline(median, color=COLOURS[0], linewidth=2, label=f"median: {median:g}")
    axes.axvline(most, color=COLOURS[1], linewidth=2, linestyle="--", label=f"95th percentile: {most:g}")
    axes.set(xlim=(0, 1.02 * (longest + 0.5)), xlabel=f"{unit} of a text", ylabel=f"texts, in bars {width} wide")
    tidy([axes], integer_axes=[axes.xaxis, axes.yaxis])
    if limit is None:
        return
    reached = sum(length >= limit for length in tokens)
    label = f"the model's limit: {limit:,} (reached by {reached:,} of {len(tokens):,} texts)"
    if limit <= 2 * longest:
        axes.set_xlim(0, 1.02 * max(longest + 0.5, limit))
        axes.axvline(limit, color="black", linewidth=2, linestyle=":", label=label)
    else:
        axes.plot(1, 0.5, ">k", markersize=12, transform=axes.transAxes, clip_on=False, linestyle="", label=label)


def draw_heatmap(texts: Sequence[str], matrix: np.ndarray, similarity: str) -> Any:
    """A ``Figure``. Cosines are coloured on a fixed scale of 0 to 1, so that two pictures can be compared."""
    size = 0.55 * len(texts) if len(texts) <= MAX_NUMBERS else 0.28 * len(texts)  # inches
    figure = new_figure((size + 5, size + 3.5))
    axes = figure.subplots()
    scale = {"vmin": 0, "vmax": 1} if similarity == "cosine" else {}
    image = axes.imshow(matrix, cmap="viridis", **scale)
    labels = [shorten(" ".join(text.split()), 48) for text in texts]
    axes.set_xticks(range(len(texts)), labels, rotation=45, ha="right", rotation_mode="anchor", parse_math=False)
    axes.set_yticks(range(len(texts)), labels, parse_math=False)
    if len(texts) <= MAX_NUMBERS:
        for (row, column), value in np.ndenumerate(matrix):
            dark = image.norm(value) < 0.6  # the map runs from dark blue to yellow
            axes.text(column, row, f"{value:z.2f}", ha="center", va="center", color="white" if dark else "black")
    figure.colorbar(image, label=similarity, shrink=0.7, extend="min" if scale and matrix.min() < 0 else "neither")
    return figure


def shorten(text: str, most: int) -> str:
    """At most ``most`` characters, all of which a file can hold."""
    text = text if len(text) <= most else text[: most - 3] + "..."
    return text.encode(errors="backslashreplace").decode()


def tidy(panels: Sequence[Any], integer_axes: Sequence[Any]) -> None:
    """Keep only the lines that help to read a value; label ``integer_axes`` with whole numbers."""
    for axes in panels:
        axes.grid(color="#e5e5e5", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    for axis in integer_axes:
        axis.get_major_locator().set_params(integer=True)
        axis.set_major_formatter("{x:,.0f}")


def save(figure: Any, target: Path) -> None:
    with atomic_file(target) as partial:
        figure.savefig(partial, format="png", metadata={"Software": None})
