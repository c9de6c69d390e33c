"""Plot training runs: one, or several compared. Needs matplotlib, from the ``plots`` extra.

minisbert plot runs/cosine-all-MiniLM-L6-v2        writes curves.png to the run's folder
minisbert plot runs/A runs/B runs/C --out compared.png
"""

from pathlib import Path

from minisbert.evaluation.plots import require, save
from minisbert.system.command_line import command_parser
from minisbert.system.console import run_command, say
from minisbert.system.files import check_ending, check_output
from minisbert.training.curves import draw_curves, read_run


def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("plot", __doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, finished or in progress")
    parser.add_argument("--out", type=Path, metavar="F.png", help="default: curves.png; for one run, in its folder")
    options = parser.parse_args(arguments)
    target = options.out or (options.runs[0] if len(options.runs) == 1 else Path()) / "curves.png"
    check_ending("--out", target, ".png")
    check_output(target, *(path for run in options.runs for path in run.glob("*.json*")))
    require()  # before the runs are read
    save(draw_curves([read_run(run) for run in options.runs]), target)
    say(f"wrote {target}")


if __name__ == "__main__":
    run_command(main)
