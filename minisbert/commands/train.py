"""Fine-tune a model, with all objectives, named recipes, resume and several processes."""

import sys

from minisbert.system.console import run_command
from minisbert.training.settings import parse


def main(arguments: list[str] | None = None) -> None:
    given = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help", "--help-all"} & {*given}:
        parse(given)  # prints the help and ends without waiting for torch
    from minisbert.training.distributed import run_distributed_command
    from minisbert.training.train import main as train

    run_distributed_command(lambda: train(arguments))


if __name__ == "__main__":
    run_command(main)
