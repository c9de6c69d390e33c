"""Run a submission to the speedrun under its rules, and print its row of the table.

    python -m lessons.speedrun.verify FILE.py                    the race: ten seeds, CPU seconds
    python -m lessons.speedrun.verify FILE.py --beside OLD.py    and an older record beside it
    python -m lessons.speedrun.verify FILE.py --track best       the best score in ten minutes
    python -m lessons.speedrun.verify FILE.py --log lessons/speedrun/logs

A submission is a file with a function ``train(data, seed)`` that returns a function from texts to
vectors (N, D). Each seed runs in a process of its own, which reads no file but Python's code, and
is stopped at the limit; its CPU seconds and those of its children are counted.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import pickle
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tokenizers
import torch

from benchmarks import machine
from lessons import engine
from lessons.speedrun.data import Data, read_data
from lessons.speedrun.guard import look, only_code_is_read
from lessons.speedrun.judge import Judge
from minisbert.core import InputError
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.assets import asset
from minisbert.system.console import bounded, run_command, say

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 10  # of CPU, of all processes together, for training and encoding what the judge asks
TARGET = 41.6  # nDCG@10 x 100 on test: all-MiniLM-L6-v2's
SEEDS = {"race": range(10), "best": range(3)}
# Student's t of ten seeds, 9 degrees of freedom: the mean is above the target with p < .01, one
# side. From a table.
LEAST_T = 2.821
PRODUCT = 1024  # rows and columns of the fixed product that measures a machine


# ------------------------------------------------------------------------ one seed, one process


def cpu_seconds() -> float:
    """Of this process and of those that it has started and waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def rate() -> float:
    """Billion operations that this machine computes in a CPU second, by products in float32.

    The best of ten: a number that another machine's seconds can be compared by.
    """
    a = torch.ones(PRODUCT, PRODUCT)
    best = 0.0
    for _ in range(10):
        started = cpu_seconds()
        for _ in range(5):
            a @ a
        best = max(best, 5 * 2 * PRODUCT**3 / 1e9 / max(cpu_seconds() - started, 0.01))
    return best


def run_once(path: Path, seed: int, data: Data, judge: Judge) -> dict[str, Any]:
    """A submission's scores and CPU seconds in this process, with test's score of each query."""
    spec = importlib.util.spec_from_file_location("submission", path)
    submission = importlib.util.module_from_spec(spec)
    look(path)
    measured = rate()
    started = cpu_seconds()
    with only_code_is_read():
        spec.loader.exec_module(submission)
        encode = submission.train(data, seed)
        vectors = np.asarray(encode(data.names[:8]))
        if vectors.ndim != 2 or len(vectors) != 8 or not np.isfinite(vectors).all():
            raise InputError(
                f"{path}: the function must return finite vectors (N, D), not {vectors.shape}"
            )
        each = judge.ndcg_of_each(judge.cosines(encode))
    seconds = cpu_seconds() - started
    return {
        "seed": seed,
        "dev": float(each["dev"].mean()),
        "test": float(each["test"].mean()),
        "seconds": seconds,
        "rate": measured,
        "digest": judge.digest(data.names, data.sentences),
        "each": each["test"].round(4).tolist(),
    }


def limit_seconds() -> None:
    """Stop this process, and each that it starts, after ``MINUTES`` of CPU."""
    with suppress(ImportError):  # on Windows: the seconds are counted, and nothing stops them
        import resource

        seconds = 60 * MINUTES + 60  # what comes before is not the submission's
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def run_in_process(path: Path, seed: int, material: Path) -> dict[str, Any]:
    """``run_once`` in a new process with a limit; ``InputError`` for what breaks the rules.

    ``material`` holds the data and the judge, which take half a minute to read.
    """
    command = [sys.executable, "-m", "lessons.speedrun.verify", str(path), "--seed", str(seed)]
    command += ["--material", str(material)]
    stop: dict[str, Any] = {}
    if os.name == "posix":
        stop = {"preexec_fn": limit_seconds, "start_new_session": True}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **stop) as process:
        try:
            printed, _ = process.communicate()
        finally:
            # After Ctrl-C too, which a session of its own does not see.
            were_left = end_session(process.pid)
    if were_left:
        raise InputError(f"{path}, seed {seed}: processes were left running, whose seconds count")
    if process.returncode in (-24, -9):  # SIGXCPU, or SIGKILL at the limit
        raise InputError(f"{path}, seed {seed}: stopped after {MINUTES} CPU minutes")
    if process.returncode:
        raise InputError(f"{path}, seed {seed}: the submission has failed")
    result = json.loads(printed.splitlines()[-1])
    if result["seconds"] > 60 * MINUTES:
        minutes = result["seconds"] / 60
        raise InputError(f"{path}, seed {seed}: {minutes:.1f} CPU minutes: {MINUTES} are allowed")
    return result


def end_session(session: int) -> bool:
    """End what is still running of a seed's session; whether anything was."""
    if os.name != "posix":
        return False
    try:
        os.killpg(session, 9)
    except (ProcessLookupError, PermissionError):  # there is none, as it should be
        return False
    return True


# ------------------------------------------------------------------------------ all the seeds


def spread(values: list[float]) -> tuple[float, float]:
    """Mean and standard deviation."""
    return statistics.mean(values), statistics.stdev(values)


def summary(name: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    """What a table shows of a submission's seeds; ``t`` says how sure its mean beats the target."""
    found: dict[str, Any] = {"submission": name}
    for key in ("dev", "test", "seconds"):
        mean, deviation = spread([result[key] for result in results])
        found[key] = round(mean, 2)
        found[f"{key}_deviation"] = round(deviation, 2)
    error = max(found["test_deviation"], 1e-6) / len(results) ** 0.5
    found["t"] = round((found["test"] - TARGET) / error, 1)
    return found


def run_all(paths: list[Path], track: str) -> dict[Path, list[dict[str, Any]]]:
    """Results of each file's seeds, in turn: a slow hour of the machine is slow for all of them."""
    results: dict[Path, list[dict[str, Any]]] = {path: [] for path in paths}
    with TemporaryDirectory() as folder:
        material = Path(folder, "material.pickle")
        material.write_bytes(pickle.dumps((read_data(), Judge())))
        for seed in SEEDS[track]:
            for path in paths:
                result = run_in_process(path, seed, material)
                results[path].append(result)
                scores = f"dev {result['dev']:.2f}, test {result['test']:.2f}"
                say(f"{path.stem}, seed {seed}: {scores}, {result['seconds']:.1f} CPU seconds")
    return results


def gain_over_minilm(results: list[dict[str, Any]]) -> str | None:
    """Test's mean of the seeds minus MiniLM's, with both intervals; None without its weights."""
    if asset(engine.MODEL).state() != "complete":
        return None
    judge = Judge()
    rival = judge.ndcg_of_each(judge.cosines(SentenceEncoder.load(engine.MODEL).encode, ["test"]))
    each = np.mean([result["each"] for result in results], axis=0)
    return judge.gain({"test": each}, rival)


def commit() -> str:
    """This checkout's commit, with a mark if files have changed; "unknown" without git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def write_log(path: Path, track: str, results: dict[Path, list], folder: Path) -> Path:
    """What somebody needs to run a record again and compare: one JSON file, for git."""
    own = results[path]
    cpu = machine.cpu()

    beside = []
    for other, of_other in results.items():
        if other != path:
            beside.append(summary(other.stem, of_other))

    seeds = []
    for result in own:
        kept = ("seed", "dev", "test", "seconds", "rate")
        seeds.append({key: round(result[key], 2) for key in kept})

    log: dict[str, Any] = {"date": str(date.today()), "track": track, "target": TARGET}
    log.update(summary(path.stem, own))

    # What was run.
    log["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    log["commit"] = commit()
    log["digest"] = own[0]["digest"]
    log["versions"] = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "tokenizers": tokenizers.__version__,
    }

    # Where it was run.
    log["cpu"] = cpu["cpu"]
    log["cores"] = cpu["cores"]
    log["threads"] = torch.get_num_threads()
    log["rate"] = round(statistics.median(result["rate"] for result in own), 1)

    # What came out.
    log["minus_minilm"] = gain_over_minilm(own)
    log["beside"] = beside
    log["seeds"] = seeds

    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{log['date']}_{track}_{path.stem}.json"
    file.write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")
    return file


def race_row(found: dict[str, Any]) -> str:
    """A row of the race's table, and why it is no record if it is none."""
    test = f"{found['test']:.2f} ± {found['test_deviation']:.2f}"
    seconds = f"{found['seconds']:.1f} ± {found['seconds_deviation']:.1f}"
    return f"| {found['submission']} | {seconds} | {test} | {found['t']:.1f} |"


def best_row(found: dict[str, Any]) -> str:
    cells = [f"{found[key]:.2f} ± {found[f'{key}_deviation']:.2f}" for key in ("dev", "test")]
    return f"| {found['submission']} | {' | '.join(cells)} | {found['seconds']:.0f} |"


ROWS: dict[str, Callable[[dict[str, Any]], str]] = {"race": race_row, "best": best_row}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lessons.speedrun.verify", description=__doc__.splitlines()[0]
    )
    parser.add_argument("submission", type=Path, metavar="FILE.py")
    parser.add_argument("--track", choices=ROWS, default="race", help="default: race")
    parser.add_argument(
        "--beside",
        type=Path,
        action="append",
        default=[],
        metavar="OLD.py",
        help="run an older record beside it, seed by seed; may be given several times",
    )
    parser.add_argument("--log", type=Path, metavar="FOLDER", help="write a JSON log there")
    parser.add_argument("--seed", type=bounded(int, 0), help="run this seed alone, and print JSON")
    parser.add_argument("--material", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    paths = [options.submission, *options.beside]
    for path in paths:
        if not path.is_file():
            raise InputError(f"{path} does not exist, or is not a file")
    if options.seed is not None:
        if options.material:
            # written by the process that started this one, in a folder of its own
            data, judge = pickle.loads(options.material.read_bytes())
        else:
            data, judge = read_data(), Judge()
        print(json.dumps(run_once(options.submission, options.seed, data, judge)))
        return
    results = run_all(paths, options.track)
    for path, some in results.items():
        print(ROWS[options.track](summary(path.stem, some)))
    found = summary(options.submission.stem, results[options.submission])
    if options.track == "race" and found["t"] < LEAST_T:
        say(f"no record: t is {found['t']:.1f}, and {LEAST_T} says that {TARGET} is reached")
    if options.log:
        say(f"{write_log(options.submission, options.track, results, options.log)} is for git")


if __name__ == "__main__":
    run_command(main)
