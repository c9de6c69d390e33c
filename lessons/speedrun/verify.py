"""Run a submission to the speedrun under its rules, and print its row of the table.

    python -m lessons.speedrun.verify lessons/speedrun/idf_bag.py

A submission is a file with a function ``train(data, seed)`` that returns a function from texts to
vectors (N, D). It is run in a process of its own for each seed, where no pretrained model opens;
its CPU seconds are counted.
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lessons.search import docstrings
from lessons.speedrun.judge import Encode, Judge
from minisbert.checkpoints import layout as model_folder
from minisbert.core import InputError
from minisbert.core.loop import Step
from minisbert.system.console import bounded, run_command, say

MINUTES = 10  # of CPU, of all cores together, for training and for encoding what the judge asks
SEEDS = (0, 1, 2)


def pass_on(steps: Iterable[Step], total: int, encode: Encode) -> Iterable[Step]:
    return steps


@dataclass(frozen=True)
class Data:
    """All that a submission may learn from."""

    names: list[str]  # of functions and classes, in words; none of those that dev and test ask for
    sentences: list[str]  # what each of these names is said to do
    # may be put around the training steps, with their number and what encodes by now: draws a clock
    # in the run
    watch: Callable[[Iterable[Step], int, Encode], Iterable[Step]] = pass_on


def read_data() -> Data:
    """Names and sentences of Python's training modules, NumPy and PyTorch."""
    entries = docstrings.read_entries()
    entries = [entry for entry in entries if docstrings.split_of(entry.module) == "train"]
    for package in (np, sys.modules["torch"]):
        entries += docstrings.read_entries(Path(package.__file__).parent)
    return Data([entry.query for entry in entries], [entry.document for entry in entries])


def refuse(*_: object, **__: object) -> None:
    raise InputError("a submission begins from random weights: no pretrained model is opened")


def run_once(path: Path, seed: int) -> dict[str, float]:
    """The scores of a submission and its CPU seconds, in this process."""
    data = read_data()
    judge = Judge()
    spec = importlib.util.spec_from_file_location("submission", path)
    submission = importlib.util.module_from_spec(spec)
    model_folder.ModelFolder.__init__ = refuse
    started = time.process_time()
    spec.loader.exec_module(submission)
    encode = submission.train(data, seed)
    vectors = np.asarray(encode(data.names[:8]))
    if vectors.ndim != 2 or len(vectors) != 8 or not np.isfinite(vectors).all():
        raise InputError(
            f"{path}: the function must return finite vectors (N, D), not {vectors.shape}"
        )
    scores = judge.ndcg(judge.cosines(encode))
    return scores | {"seconds": time.process_time() - started}


def verify(path: Path, seeds: Sequence[int]) -> list[dict[str, float]]:
    """One result for each seed, each from a process of its own."""
    results = []
    for seed in seeds:
        command = [sys.executable, "-m", "lessons.speedrun.verify", str(path), "--seed", str(seed)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise InputError(f"{path}, seed {seed}: the submission has failed")
        result = json.loads(done.stdout.splitlines()[-1])
        results.append(result)
        say(f"seed {seed}: dev {result['dev']:.2f} in {result['seconds']:.0f} CPU seconds")
    return results


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lessons.speedrun.verify", description=__doc__.splitlines()[0]
    )
    parser.add_argument("submission", type=Path, metavar="FILE.py")
    parser.add_argument("--seed", type=bounded(int, 0), help="run this seed alone, and print JSON")
    options = parser.parse_args(arguments)
    if not options.submission.is_file():
        raise InputError(f"{options.submission} does not exist, or is not a file")
    if options.seed is not None:
        print(json.dumps(run_once(options.submission, options.seed)))
        return
    results = verify(options.submission, SEEDS)
    most = max(result["seconds"] for result in results)
    if most > 60 * MINUTES:
        raise InputError(f"{most / 60:.1f} CPU minutes: {MINUTES} are allowed")
    cells = []
    for split in ("dev", "test"):
        scores = [result[split] for result in results]
        cells.append(f"{statistics.mean(scores):.2f} ± {statistics.stdev(scores):.2f}")
    print(f"| {options.submission.stem} | {' | '.join(cells)} | {most:.0f} |")


if __name__ == "__main__":
    run_command(main)
