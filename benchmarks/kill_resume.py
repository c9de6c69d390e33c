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
        rows = [json.dumps(pair._asdict()) for pair in pairs]
        path.write_text("\n".join(rows) + "\n")
        flags += ["--data" if split == "train" else f"--{split}", str(path)]
    return flags


def lines(run: Path) -> list[dict]:
    """The lines of metrics.jsonl without speeds; an incomplete last line does not count."""
    log = run / "metrics.jsonl"
    if not log.exists():
        return []
    complete = log.read_text().split("\n")[:-1]
    entries = [json.loads(line) for line in complete]
    for entry in entries:
        entry.pop("tokens_per_second", None)
    return entries


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
        command = [sys.executable, "-m", "minisbert", "train", "--model", options.model]
        command += write_pairs(folder, 88)
        command += ["--batch-size", "8", "--epochs", "3", "--max-steps", str(STEPS)]
        command += ["--eval-every", "7", "--save-every", "4", "--log-every", "1"]
        command += ["--dtype", "float32", "--device", "cpu"]
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
            if equal:
                same += 1
            verdict = "identical" if equal else f"DIFFERENT {done.stderr}"
            print(f"killed after step {reached:>2}: {verdict}", flush=True)
    whole_run = f"the uninterrupted run of {STEPS} steps"
    print(f"{same} of {options.kills} identical to {whole_run}, {options.model}")
    if same != options.kills:
        sys.exit(1)


if __name__ == "__main__":
    main()
