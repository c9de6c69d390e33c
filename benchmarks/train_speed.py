"""The default run compared with sentence-transformers' trainer, with the same settings.

    python -m benchmarks.train_speed    all sides, in alternation, three times each: 25 minutes
    python -m benchmarks.train_speed --steps 20
    python -m benchmarks.train_speed --only "minisbert float32" --only "minisbert, two processes"
    python -m benchmarks.train_speed --device cuda      without the two processes

Sides: minisbert in float32; with bfloat16 if the hardware supports it (auto); in float32 in two
processes of one thread each; sentence-transformers' trainer in float32 with the same settings,
which needs the ``reference`` extra. Each run is a separate process. Seconds are training alone,
without loading and evaluation; memory is the peak of the whole process. The quality of all saved
models is measured by ``minisbert evaluate``. Prints a table of medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from minisbert.data.rows import load_scored_pairs
from minisbert.system.assets import ensure

REFERENCE = "sentence-transformers"
TWO = "minisbert, two processes"
SIDES = ("minisbert float32", "minisbert auto", TWO, REFERENCE)


def reference(folder: str, steps: int, device: str) -> None:
    """One run of sentence-transformers, which prints its seconds."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets
    import sentence_transformers as st
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss

    pairs = load_scored_pairs("stsb", "train")
    rows = {
        "sentence1": [pair.sentence1 for pair in pairs],
        "sentence2": [pair.sentence2 for pair in pairs],
        "label": [pair.score / 5 for pair in pairs],
    }
    model = st.SentenceTransformer(str(ensure("all-MiniLM-L6-v2")), device=device)
    trainer = st.SentenceTransformerTrainer(
        model=model,
        args=st.SentenceTransformerTrainingArguments(
            output_dir=folder,
            num_train_epochs=1,
            max_steps=steps,
            per_device_train_batch_size=32,
            learning_rate=2e-5,
            warmup_steps=0.1,  # below 1, it is a share of the steps
            seed=42,
            use_cpu=device == "cpu",
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=datasets.Dataset.from_dict(rows),
        loss=CosineSimilarityLoss(model),
    )
    started = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - started
    model.save(f"{folder}/model")
    print(json.dumps({"seconds": seconds}))


def measured(command: list[str]) -> tuple[str, float]:
    """The output of a process and its peak memory in MiB."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    return printed, usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def run(side: str, folder: Path, steps: int, device: str) -> tuple[float, float]:
    """Training seconds of one side, and the peak memory in MiB of its larger process."""
    limit = ["--max-steps", str(steps)] if steps > 0 else []
    train = ["-m", "minisbert", "train", "--device", device, "--out", str(folder), *limit]
    if side == REFERENCE:
        settings = ["--reference", str(folder), "--steps", str(steps), "--device", device]
        printed, memory = measured(["-m", "benchmarks.train_speed", *settings])
        return json.loads(printed.splitlines()[-1])["seconds"], memory
    if side == TWO:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
        _, memory = measured([*torchrun, *train, "--dtype", "float32"])
    else:
        _, memory = measured([*train, "--dtype", side.removeprefix("minisbert ")])
    return json.loads((folder / "results.json").read_text())["training_seconds"], memory


def quality(model: Path) -> dict[str, float]:
    """Cosine Spearman on dev and test."""
    scores = {}
    for split in ("dev", "test"):
        command = [sys.executable, "-m", "minisbert", "evaluate"]
        command += ["--model", str(model), "--split", split, "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        scores[split] = json.loads(done.stdout)["spearman_cosine"]
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.train_speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", metavar="SIDE", action="append", choices=SIDES, help="one of " + ", ".join(SIDES)
    )
    parser.add_argument(
        "--steps", type=int, default=-1, help="number of steps (default: one epoch, 180)"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="runs of each side, in alternation (default: 3)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--reference", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reference:
        reference(options.reference, options.steps, options.device)
        return

    several = SIDES if options.device == "cpu" else [side for side in SIDES if side != TWO]
    sides = [side for side in several if options.only is None or side in options.only]
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    memory: dict[str, list[float]] = {side: [] for side in sides}
    scores = {}
    with tempfile.TemporaryDirectory() as folder:
        for round_ in range(options.rounds):
            for side in sides:
                out = Path(folder) / f"{side.replace(' ', '-')}-{round_}"
                time_, peak = run(side, out, options.steps, options.device)
                seconds[side].append(time_)
                memory[side].append(peak)
                if side not in scores:
                    scores[side] = quality(out / "model")
                line = f"round {round_ + 1}, {side}: {time_:.1f} s, {peak:.0f} MiB"
                print(line, file=sys.stderr, flush=True)
    medians = {side: statistics.median(times) for side, times in seconds.items()}
    peaks = {side: statistics.median(values) for side, values in memory.items()}
    if options.json:
        found = {"seconds": seconds, "medians": medians, "peak_mib": peaks, "spearman": scores}
        print(json.dumps(found))
        return
    base = REFERENCE if REFERENCE in sides else sides[0]
    head = f"| {'':<24} | seconds, median of {options.rounds} | times as fast | peak MiB "
    print(head + "| Spearman dev | test |")
    print("|---|---|---|---|---|---|")
    for side in sides:
        ratio = medians[base] / medians[side]
        speed = f"{medians[side]:.1f} | {ratio:.2f} | {peaks[side]:.0f}"
        spearman = f"{100 * scores[side]['dev']:.2f} | {100 * scores[side]['test']:.2f}"
        print(f"| {side:<24} | {speed} | {spearman} |")


if __name__ == "__main__":
    main()
