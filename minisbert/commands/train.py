"""``minisbert train``, and ``minisbert plot`` for the curves of its runs."""

import json
import sys
from pathlib import Path

from minisbert.core import InputError
from minisbert.evaluation import plots
from minisbert.system.console import command_parser, say
from minisbert.system.files import check_ending, check_no_link, check_output, read_text
from minisbert.system.reading import reading
from minisbert.training import RUN_CONFIG, RUN_LOG
from minisbert.training.options import parse


def main(arguments: list[str] | None = None) -> None:
    """Fine-tune a model: ``minisbert/train.py``, with the help before torch is imported."""
    words = arguments
    if words is None:
        words = sys.argv[1:]
    if "-h" in words or "--help" in words:
        parse(words)  # prints the help and ends
    from minisbert.train import main as train
    from minisbert.training.distributed import run_distributed_command

    run_distributed_command(lambda: train(arguments))


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
        title, curves[str(run)] = read_run(run)
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
    rates: dict[int, float] = {}
    # ``train`` called from Python writes no config.
    if (folder / RUN_CONFIG).is_file():
        with reading(folder / RUN_CONFIG):
            config = json.loads(read_text(folder / RUN_CONFIG))
            name = config["head"] or config["loss"]
            title = f"{name} on {Path(config['model']).name}"
            # The first step of a warm-up has the rate 0, and is logged only if every step is.
            if config["warmup"]:
                rates[1] = 0.0

    metric = "score"
    losses: dict[int, float] = {}
    scores: dict[int, float] = {}
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
    if not losses:
        raise InputError(
            f"{folder} has no losses yet: training logs them every few steps (--log-every)"
        )
    curves = {f"loss ({name})": losses, f"dev {metric} x 100": scores, "learning rate": rates}
    return title, curves
