"""Fine-tune a sentence encoder.

    python -m minisbert.train                       all-MiniLM-L6-v2 on the STS Benchmark, a minute or two
    python -m minisbert.train --max-steps 20 --out runs/short
    python -m minisbert.train --data my_train.tsv --dev my_dev.tsv --test my_test.tsv --epochs 4
    python -m minisbert.train --objective siamese --epochs 2 --lr 5e-5 --head-lr 1e-3
    python -m minisbert.train --recipe list
    python -m minisbert.train --resume runs/short   continue a run that was stopped
    torchrun --nproc_per_node=2 -m minisbert.train  in several processes

The default is SBERT's regression objective (Reimers & Gurevych 2019, section 3): both sentences go through the same
encoder, and the cosine of their vectors is pulled to the score people gave, by mean squared error. The loop is ``fit``
in ``core/loop.py``; ``training/train.py`` acts between its steps.
"""

import sys

from minisbert.system.console import run_command
from minisbert.training.run_options import parse


def main(arguments: list[str] | None = None) -> None:
    given = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help", "--help-all"} & {*given}:
        parse(given)  # prints the help and ends without waiting for torch
    # inside ``run_command``: Ctrl-C while torch is imported is one line too, and OpenMP's threads do not spin for long
    from minisbert.training.distributed import run_distributed_command
    from minisbert.training.train import main as train

    run_distributed_command(lambda: train(arguments))


if __name__ == "__main__":
    run_command(main)
