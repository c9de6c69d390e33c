"""``minisbert train``, and ``minisbert plot`` for the curves of its runs."""

import json
import sys
from pathlib import Path
from typing import Any

from minisbert.core import InputError
from minisbert.evaluation import plots
from minisbert.system.console import command_parser, say
from minisbert.system.files import check_ending, check_no_link, check_output, read_text
from minisbert.system.reading import reading
from minisbert.training import RESULTS, RUN_CONFIG, RUN_LOG
from minisbert.training.options import parse


def main(arguments: list[str] | None = None) -> None:
    """Fine-tune a model: ``minisbert/train.py``, with the help before torch is imported."""
    words = arguments
    if words is None:
        words = sys.argv[1:]
    if "-h" in words or "--help" in words:
        parse(words)  # prints the help and ends
    from minisbert.train import main as train
    from minisbert.training.distributed import leaving_the_group

    with leaving_the_group():
        train(arguments)


def plot(arguments: list[str] | None = None) -> None:
    """Plot training runs: one, or several compared. Needs matplotlib, from the plots extra.

    Examples:
      minisbert plot runs/cosine-all-MiniLM-L6-v2        # writes curves.png to the run's folder
      minisbert plot runs/A runs/B runs/C --out compared.png
    """
    parser = command_parser("plot", plot.__doc__)
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, finished or in progress"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="F",
        help="F.png, F.svg or F.pdf (default: curves.png; for one run, in its folder)",
    )
    options = parser.parse_args(arguments)
    if options.out:
        target = options.out
    elif len(options.runs) == 1:
        target = options.runs[0] / "curves.png"
    else:
        target = Path("curves.png")
    check_ending("--out", target, ".png", ".svg", ".pdf")
    for run in options.runs:
        check_output(target, *run.glob("*.json*"))
    if not options.out:
        check_no_link(target)
    plots.require()  # matplotlib is missed before the runs are read

    curves = {}
    titles = []
    for run in options.runs:
        title, curves_of_run = read_run(run)
        gain = read_gain(run)
        if len(options.runs) == 1:
            title += gain
            gain = ""
        curves[f"{run}{gain}"] = curves_of_run
        if title not in titles:
            titles.append(title)
    plots.save(plots.draw_curves(curves, ", ".join(titles)), target)
    say(f"wrote {target}")


def read_run(folder: Path) -> tuple[str, dict[str, dict[int, float]]]:
    """Read the title of a run and its curves: loss, dev score and learning rate by step.

    ``InputError`` if the folder is not a run or no loss is logged yet.
    """
    log = folder / RUN_LOG
    if not log.is_file():
        raise InputError(
            f"{folder} is not the folder of a run: it has no {RUN_LOG}, which training writes"
        )
    name = "training"
    title = folder.name
    config = None
    # ``train`` called from Python writes no config.
    if (folder / RUN_CONFIG).is_file():
        with reading(folder / RUN_CONFIG):
            config = json.loads(read_text(folder / RUN_CONFIG))
            name = config["head"] or config["loss"]
            title = f"{name} on {Path(config['model']).name}"

    metric = "score"
    total = None
    losses: dict[int, float] = {}
    scores: dict[int, float] = {}
    rates: dict[int, float] = {}
    with reading(log) as at:
        # Every whole line ends in a line break. What follows the last one is empty, or part of a
        # line that a killed run did not finish.
        lines = read_text(log).split("\n")[:-1]
        for at.line, line in enumerate(lines, start=1):
            entry = json.loads(line)
            # Entries are kept by step, so what a resumed run logs again counts once.
            if "dev" in entry:
                metric = entry["metric"]
                scores[entry["step"]] = 100 * float(entry["dev"][metric])
            else:
                losses[entry["step"]] = float(entry["loss"])
                rates[entry["step"]] = float(entry["lr"])
                total = int(entry["total"])
    if not losses or total is None:
        raise InputError(
            f"{folder} has no losses yet: training logs them every few steps (--log-every)"
        )

    if config is not None:
        with reading(folder / RUN_CONFIG):
            rates = scheduled_rates(config, last=max(losses), total=total)
    losses = without_short_window(losses)
    curves = {f"loss ({name})": losses, f"dev {metric} x 100": scores, "learning rate": rates}
    return title, curves


def scheduled_rates(config: dict[str, Any], last: int, total: int) -> dict[int, float]:
    """Return the learning rate of every step up to the ``last``.

    The log has that of every tenth step, and would show a peak that is too low and too late.
    """
    from minisbert.training.schedules import learning_rate  # imports torch

    multiplier = learning_rate(config["schedule"], config["warmup"], total)
    rates = {}
    for step in range(1, last + 1):
        # A schedule counts the steps from 0, the log from 1.
        rates[step] = config["lr"] * multiplier(step - 1)
    return rates


def without_short_window(losses: dict[int, float]) -> dict[int, float]:
    """Leave out the last loss if it is the mean of fewer steps than the one before.

    The mean of two batches is noise beside means of ten.
    """
    steps = [0, *sorted(losses)]
    if len(steps) < 3:
        return losses
    last_window = steps[-1] - steps[-2]
    window = steps[-2] - steps[-3]
    if last_window >= window:
        return losses
    return {step: loss for step, loss in losses.items() if step != steps[-1]}


def read_gain(folder: Path) -> str:
    """Read what a finished run gained on test, with its interval; "" if there is no test."""
    if not (folder / RESULTS).is_file():
        return ""
    with reading(folder / RESULTS):
        gain = json.loads(read_text(folder / RESULTS)).get("gain")
        if gain is None:
            return ""
        interval = f"{100 * gain['low']:+.2f} to {100 * gain['high']:+.2f}"
        return f": test {gain['metric']} {100 * gain['gain']:+.2f} ({interval})"
