"""Draw the curves of runs from their ``metrics.jsonl``. Needs matplotlib (the ``plots`` extra)."""

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
from minisbert.evaluation.plots import COLOURS, new_figure, tidy
from minisbert.system.files import read_text
from minisbert.training import RUN_CONFIG, RUN_LOG

STYLES = ("-", "--", "-.", ":")  # dashes let a line underneath show through
MAX_MARKERS = 50  # points; on longer lines markers would overlap


@dataclass(frozen=True)
class History:
    """The entries of a run's ``metrics.jsonl``, by step."""

    folder: Path
    metric: str  # the one that selects the best model
    losses: dict[int, float]  # means since the previous entry
    rates: dict[int, float]
    scores: dict[int, float]  # on dev, x 100
    dev_losses: dict[int, float]  # of objectives whose loss dev rows have

    @property
    def best(self) -> int:
        """Return the step of the best dev score; the first if several are equal, as in training."""
        return max(self.scores, key=self.scores.__getitem__)


def read_run(folder: Path) -> History:
    """Read a run's history; ``InputError`` if the folder is not a run, a line is bad, or no loss is logged yet."""
    log = folder / RUN_LOG
    if not log.is_file():
        raise InputError(f"{folder} is not the folder of a run: it has no {RUN_LOG}, which training writes")
    with reading(folder / RUN_CONFIG):
        metric = read_json(folder / RUN_CONFIG)["best_metric"]
    lines = read_text(log).split("\n")
    # what follows the last line break is empty, or what a run that was killed could still write of a line
    rest = lines.pop()
    with suppress(ValueError, RecursionError):
        json.loads(rest)
        lines.append(rest)
    # by step, so what a resumed run logs again counts once
    losses, rates, scores, dev_losses = {}, {}, {}, {}
    with reading(log) as at:
        for at.line, line in enumerate(lines, 1):
            entry = json.loads(line)
            step, dev = int(number_in(entry, "step")), entry.get("dev")
            if dev is None:
                losses[step], rates[step] = number_in(entry, "loss"), number_in(entry, "lr")
                continue
            scores[step] = 100 * number_in(dev, metric)
            if "loss" in dev:
                dev_losses[step] = number_in(dev, "loss")
    if not losses:
        raise InputError(f"{folder} has no losses yet: training logs them every few steps (--log-every)")
    return History(folder, metric, losses, rates, scores, dev_losses)


def number_in(entry: dict[str, Any], name: str) -> float:
    """Return a number of an entry, which may be NaN or infinite; ``ValueError`` for one that no axis can show."""
    value = float(entry[name])
    if 1e100 < abs(value) < math.inf:
        raise ValueError(f"{name} {value} is too large")
    return value


def running_mean(values: Sequence[float], window: int) -> np.ndarray:
    """Average each value and the ``window - 1`` before it: ``running_mean([1, 2, 6, 7], 3) = [1, 1.5, 3, 5]``."""
    # differences of two running sums: one pass, whatever the window
    sums = np.concatenate([[0.0], np.cumsum(values)])
    end = np.arange(1, len(sums))
    start = np.maximum(0, end - window)
    return (sums[end] - sums[start]) / (end - start)


def draw_curves(runs: Sequence[History]) -> Any:
    """Return a ``Figure`` of three panels over the steps, one colour per run; the legend has each best score."""
    figure = new_figure((9, 7.2 + 0.22 * len(runs)))  # a line of the legend for each run
    loss, dev, rate = panels = figure.subplots(3, sharex=True, height_ratios=(3, 3, 1.6))
    names = [run.folder.resolve().name for run in runs]
    handles, labels = [], []
    for i, (run, name) in enumerate(zip(runs, names, strict=True)):
        handles.append(draw_run(panels, run, COLOURS[i % len(COLOURS)], STYLES[i % len(STYLES)]))
        label = name if names.count(name) == 1 else str(run.folder)
        if run.scores:
            label += f": best dev {run.metric} {run.scores[run.best]:.2f} at step {run.best:,}"
        # two $ would enclose a formula, and a folder's name may hold bytes that are not UTF-8
        label = label.replace("$", r"\$").encode(errors="backslashreplace").decode()
        labels.append(fill(label, 100, break_on_hyphens=False))

    logged = []
    for run in runs:
        logged += filter(math.isfinite, (*run.losses.values(), *run.dev_losses.values()))
    # losses of different kinds, or one that falls far
    if logged and 0 < 30 * min(logged) < max(logged):
        loss.set_yscale("log")
    title = "training loss: pale as logged, bold running mean"
    if any(run.dev_losses for run in runs):
        title += ", squares: dev"
    loss.set_title(title, fontsize=9, loc="right")
    loss.set_ylabel("loss")
    metrics = {run.metric for run in runs}
    metric = metrics.pop() if len(metrics) == 1 else "score"
    dev.set_title("star: the best", fontsize=9, loc="right")
    dev.set_ylabel(f"dev {metric} x 100")
    rate.yaxis.get_major_locator().set_params(nbins=5)
    rate.yaxis.set_major_formatter("{x:g}")
    rate.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    tidy(panels, integer_axes=[rate.xaxis])
    figure.legend(handles, labels, loc="outside upper left", frameon=False, handlelength=3)
    return figure


def draw_run(panels: Sequence[Any], run: History, colour: str, style: str) -> Any:
    """Draw one run and return its line of dev scores. The running mean spans a twentieth of it, at least 3 points."""
    loss, dev, rate = panels

    def line(axes: Any, points: dict[int, float], values: Any, **look: Any) -> Any:
        # a line of one point would not show; evaluations are few, and each is marked
        is_marked = len(points) == 1 or (axes is dev and len(points) <= MAX_MARKERS)
        look |= {"color": colour, "marker": "o" if is_marked else None, "markersize": 4}
        return axes.plot(list(points), list(values), **look)[0]

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
