"""Kill an encoding in shards at random moments, start it again, and compare every byte with an undisturbed one.

    python -m benchmarks.killed_shards                              20 kills, weights/tiny: some minutes
    python -m benchmarks.killed_shards --model all-MiniLM-L6-v2 --rows 4000 --kills 5

Each start is a process that is killed with kill -9: no handler runs, nothing is cleaned up. The moments are spread
over the whole time of the work, from the manifest of an undisturbed encoding to its end. A second start finishes; all
shards, the manifest and the merged file must have the same bytes, and nothing else may be left. One call
computes other batches, so its file is compared within 2e-6.
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.parity import MINILM_VECTOR

WORDS = "the a cat dog sits sleeps on under mat moon rain and snow woman eats an apple in garden small old".split()


def write_texts(path: Path, rows: int, chance: random.Random) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(rows):
            file.write(" ".join(chance.choices(WORDS, k=chance.randint(2, 14))) + "\n")


def contents(folder: Path) -> dict[str, bytes]:
    """Everything in a folder, hidden files and the files of folders included."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def start(command: list[str], folder: Path) -> subprocess.Popen:
    """Start an encoding and return once its manifest is there, when the shards begin."""
    process = subprocess.Popen([*command, "--out", str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (folder / "manifest.json").exists():
        time.sleep(0.001)
    return process


def kill(command: list[str], folder: Path, work: float, chance: random.Random) -> float:
    """Kill an encoding within ``work`` seconds; one that ends before is none, and another is started. The moment."""
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        process, moment = start(command, folder), chance.uniform(0, work)
        time.sleep(moment)
        process.kill()
        if process.wait() != 0:
            return moment


def merge(folder: Path, out: Path) -> bytes:
    command = [sys.executable, "-m", "minisbert", "encode", "merge", str(folder), "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    return out.read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.killed_shards",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="weights/tiny", help="name or folder (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=20_000, help="number of texts (default: %(default)s)")
    parser.add_argument("--shards", type=int, default=40, help="number of shards (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=20, help="number of encodings to kill (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="of the texts and the moments (default: 0)")
    options = parser.parse_args()

    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        write_texts(place / "texts.txt", options.rows, chance)
        shard_rows = -(-options.rows // options.shards)
        command = [sys.executable, "-m", "minisbert", "encode", "--model", options.model, "--device", "cpu"]
        command += ["--file", str(place / "texts.txt"), "--shard-rows", str(shard_rows)]
        whole = start(command, place / "whole")
        began = time.monotonic()
        if whole.wait():
            sys.exit("the undisturbed encoding failed")
        work = time.monotonic() - began
        subprocess.run([*command[:-2], "--out", str(place / "one.npy")], check=True, capture_output=True)
        expected = contents(place / "whole")
        merge(place / "whole", place / "merged.npy")
        off = float(abs(np.load(place / "merged.npy") - np.load(place / "one.npy")).max())
        one = off <= MINILM_VECTOR  # False for NaN
        print(f"undisturbed: merged differs from one call's file by {off:.1e}{'' if one else ', TOO MUCH'}", flush=True)
        same = 0
        for _ in range(options.kills):
            folder = place / "killed"
            moment = kill(command, folder, work, chance)
            complete = len(list(folder.glob("shard-*.npy")))
            done = subprocess.run([*command, "--out", str(folder)], capture_output=True, text=True)
            equal = done.returncode == 0 and contents(folder) == expected
            equal = equal and merge(folder, place / "again.npy") == (place / "merged.npy").read_bytes()
            same += equal
            state = f"killed at {moment:5.2f} s, {complete:>3} shards written"
            print(f"{state}: {'identical' if equal else 'DIFFERENT ' + done.stderr}", flush=True)
    print(
        f"{same} of {options.kills} identical to the undisturbed encoding in {options.shards} shards, {options.model}"
    )
    sys.exit(same != options.kills or not one)


if __name__ == "__main__":
    main()
