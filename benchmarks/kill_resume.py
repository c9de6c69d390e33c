"""Kill a run at random steps, resume it, and compare it bit for bit with an uninterrupted run.

    python -m benchmarks.kill_resume    20 kills, all-MiniLM-L6-v2: some minutes
    python -m benchmarks.kill_resume --model weights/tiny --kills 5

Each run is a process that is killed with kill -9 (no handler runs, nothing is cleaned up) once it
has logged a random step; ``--resume`` then finishes it. Every logged loss, every dev score and
every weight of the saved model must equal those of the uninterrupted run. Dropout is on, and the
run ends in the middle of an epoch.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from minisbert.data.rows import load_scored_pairs

STEPS = 30


def write_pairs(folder: Path, most: int) -> list[str]:
    """Write the first pairs of each split of STS-B to files; return the flags that name them."""
    flags = []
    for split, count in (("train", most), ("dev", 40), ("test", 40)):
        path = folder / f"{split}.jsonl"
        pairs = load_scored_pairs("stsb", split)[:count]
        rows = [
            {"score": pair.score, "sentence1": pair.sentence1, "sentence2": pair.sentence2}
            for pair in pairs
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        flags += ["--data" if split == "train" else f"--{split}", str(path)]
    return flags


def lines(run: Path) -> list[dict]:
    """The lines of metrics.jsonl without speeds; an incomplete last line does not count."""
    found = []
    for line in (
        (run / "metrics.jsonl").read_text().split("\n")[:-1]
        if (run / "metrics.jsonl").exists()
        else []
    ):
        found.append(
            {key: value for key, value in json.loads(line).items() if key != "tokens_per_second"}
        )
    return found


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def killed_at(step: int, command: list[str], run: Path) -> int:
    """Start a run, kill it once it has logged ``step`` losses, and return how many it logged."""
    process = subprocess.Popen(
        [*command, "--out", str(run)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and sum("loss" in line for line in lines(run)) < step:
        time.sleep(0.01)
    process.kill()
    process.wait()
    return sum("loss" in line for line in lines(run))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kill_resume",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model", default="all-MiniLM-L6-v2", help="name or folder (default: %(default)s)"
    )
    parser.add_argument(
        "--kills", type=int, default=20, help="number of runs to kill (default: 20)"
    )
    parser.add_argument("--seed", type=int, default=0, help="for the steps to kill at (default: 0)")
    options = parser.parse_args()

    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [
            sys.executable,
            "-m",
            "minisbert",
            "train",
            "--model",
            options.model,
            *write_pairs(folder, 88),
        ]
        command += [
            "--batch-size",
            "8",
            "--epochs",
            "3",
            "--max-steps",
            str(STEPS),
            "--eval-every",
            "7",
        ]
        command += [
            "--save-every",
            "4",
            "--log-every",
            "1",
            "--dtype",
            "float32",
            "--device",
            "cpu",
        ]
        whole = folder / "whole"
        subprocess.run([*command, "--out", str(whole)], check=True, capture_output=True)
        same = 0
        for _ in range(options.kills):
            run = folder / "killed"
            shutil.rmtree(run, ignore_errors=True)
            reached = killed_at(chance.randint(5, STEPS - 2), command, run)
            resume = [sys.executable, "-m", "minisbert", "train", "--resume", str(run)]
            done = subprocess.run(resume, capture_output=True, text=True)
            equal = done.returncode == 0 and lines(run) == lines(whole)
            equal = equal and weights(run) == weights(whole)
            same += equal
            print(
                f"killed after step {reached:>2}: "
                f"{'identical' if equal else 'DIFFERENT ' + done.stderr}",
                flush=True,
            )
    print(
        f"{same} of {options.kills} identical to the uninterrupted run of {STEPS} steps, "
        f"{options.model}"
    )
    sys.exit(same != options.kills)


if __name__ == "__main__":
    main()
