"""The default recipe beside sentence-transformers' own trainer: same data, batch, epochs, learning rate, seed.

    python -m tests.benchmarks.train_speed                    both, in alternation, twice each: about 12 minutes
    python -m tests.benchmarks.train_speed --steps 20 --rounds 3

Needs the ``reference`` extra. Each side runs in a process of its own, one after the other, with the same threads.
Seconds are those of training alone, without loading and without evaluation; quality is measured on both saved
models by the same code, ``minisbert.evaluate``. Prints medians and the ratio.
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

from minisbert.assets import ensure
from minisbert.data import load_scored_pairs


def reference(folder: str, steps: int) -> None:
    """One run of sentence-transformers; prints its seconds."""
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
    model = st.SentenceTransformer(str(ensure("all-MiniLM-L6-v2")), device="cpu")
    trainer = st.SentenceTransformerTrainer(
        model=model,
        args=st.SentenceTransformerTrainingArguments(
            output_dir=folder,
            num_train_epochs=1,
            max_steps=steps,
            per_device_train_batch_size=32,
            learning_rate=2e-5,
            warmup_steps=0.1,  # a share of the steps, where it is below 1
            seed=42,
            use_cpu=True,
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


def run(side: str, folder: Path, steps: int) -> float:
    """Seconds that one side trained."""
    if side == "minisbert":
        limit = ["--max-steps", str(steps)] if steps > 0 else []
        command = ["-m", "minisbert.train", "--device", "cpu", "--out", str(folder), *limit]
    else:
        command = ["-m", "tests.benchmarks.train_speed", "--reference", str(folder), "--steps", str(steps)]
    done = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, check=True, text=True)
    if side == "minisbert":
        return json.loads((folder / "results.json").read_text())["training_seconds"]
    return json.loads(done.stdout.splitlines()[-1])["seconds"]


def quality(model: Path) -> dict[str, float]:
    """Cosine Spearman on dev and test."""
    scores = {}
    for split in ("dev", "test"):
        command = [sys.executable, "-m", "minisbert.evaluate", "--model", str(model), "--split", split, "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        scores[split] = json.loads(done.stdout)["spearman"]["cosine"]
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.train_speed", description=__doc__)
    parser.add_argument("--steps", type=int, default=-1, help="stop after so many steps (default: one epoch, 180)")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each side, in alternation (default: 2)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--reference", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reference:
        reference(options.reference, options.steps)
        return

    seconds: dict[str, list[float]] = {"minisbert": [], "sentence-transformers": []}
    scores = {}
    with tempfile.TemporaryDirectory() as folder:
        for round_ in range(options.rounds):
            for side, times in seconds.items():
                out = Path(folder) / f"{side}-{round_}"
                times.append(run(side, out, options.steps))
                scores[side] = scores.get(side) or quality(out / "model")
    medians = {side: statistics.median(times) for side, times in seconds.items()}
    ratio = medians["minisbert"] / medians["sentence-transformers"]
    if options.json:
        print(json.dumps({"seconds": seconds, "medians": medians, "ratio": ratio, "spearman": scores}))
        return
    for side, times in seconds.items():
        print(
            f"{side:<22} median {medians[side]:6.1f} s of {', '.join(f'{time:.1f}' for time in times)}; "
            f"Spearman dev {100 * scores[side]['dev']:.2f}, test {100 * scores[side]['test']:.2f}"
        )
    print(f"minisbert needs {ratio:.2f} of sentence-transformers' time")


if __name__ == "__main__":
    main()
