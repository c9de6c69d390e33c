"""Run a submission to the speedrun under its rules, and print its row of the table.

    python -m lessons.speedrun.verify lessons/speedrun/idf_bag.py

A submission is a file with a function ``train(data, seed)`` that returns a function from texts to vectors (N, D).
It is run in a process of its own for each seed, where no pretrained model opens; its CPU seconds are counted.
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from lessons.speedrun.judge import Judge
from lessons.speedrun.steps import read_corpus
from minisbert.checkpoints import layout as model_folder
from minisbert.core import InputError
from minisbert.data.datasets import load_scored_pairs
from minisbert.data.formats import Row
from minisbert.system.console import bounded, run_command, say

MINUTES = 30  # of CPU, of all cores together, for training and for encoding what the judge asks
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Data:
    """All that a submission may learn from."""

    pairs: list[Row]  # STS-B's training pairs, with their scores
    captions: list[str]  # their texts, each once
    names: list[str]  # of functions and classes, in words; none of those that dev and test ask for
    sentences: list[str]  # what each of these names is said to do


def refuse(*_: object, **__: object) -> None:
    raise InputError("a submission begins from random weights: no pretrained model is opened")


def run_once(path: Path, seed: int) -> dict[str, float]:
    """The scores of a submission and its CPU seconds, in this process."""
    pairs = load_scored_pairs("stsb", "train")
    captions = list(dict.fromkeys(text for row in pairs for text in row.texts))
    corpus = read_corpus(captions)
    data = Data(pairs, captions, corpus.names, corpus.sentences)
    judge = Judge()
    spec = importlib.util.spec_from_file_location("submission", path)
    submission = importlib.util.module_from_spec(spec)
    model_folder.ModelFolder.__init__ = refuse
    started = time.process_time()
    spec.loader.exec_module(submission)
    encode = submission.train(data, seed)
    vectors = np.asarray(encode(captions[:8]))
    if vectors.ndim != 2 or len(vectors) != 8 or not np.isfinite(vectors).all():
        raise InputError(f"{path}: the function must return finite vectors (N, D), not {vectors.shape}")
    scores = judge.scores(encode)
    return asdict(scores) | {"seconds": time.process_time() - started}


def verify(path: Path, seeds: Sequence[int]) -> list[dict[str, float]]:
    """One result for each seed, each from a process of its own."""
    results = []
    for seed in seeds:
        command = [sys.executable, "-m", "lessons.speedrun.verify", str(path), "--seed", str(seed)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise InputError(f"{path}, seed {seed}: the submission has failed")
        results.append(json.loads(done.stdout.splitlines()[-1]))
        say(f"seed {seed}: {results[-1]['search_dev']:.2f} in {results[-1]['seconds']:.0f} CPU seconds")
    return results


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m lessons.speedrun.verify", description=__doc__.splitlines()[0])
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
    for name in ("search_dev", "search_test", "sts_dev", "sts_test"):
        scores = [result[name] for result in results]
        cells.append(f"{statistics.mean(scores):.2f} ± {statistics.stdev(scores):.2f}")
    print(f"| {options.submission.stem} | {' | '.join(cells)} | {most:.0f} |")


if __name__ == "__main__":
    run_command(main)
