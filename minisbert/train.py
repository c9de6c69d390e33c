"""Fine-tune a sentence encoder: one flat loop.

    python -m minisbert.train                       all-MiniLM-L6-v2 on the STS Benchmark, about 2 minutes
    python -m minisbert.train --max-steps 20 --out runs/short
    python -m minisbert.train --data my_train.tsv --dev my_dev.tsv --test my_test.tsv --epochs 4

The recipe is SBERT's regression objective (Reimers & Gurevych 2019, section 3): both sentences go through the
same encoder, and the cosine of their vectors is pulled to the score people gave, by mean squared error.
"""

import argparse
import json
import math
import shutil
import time
from collections import deque
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from minisbert import __version__
from minisbert.console import InputError, LiveLine, duration, run_command, say
from minisbert.data import MAX_SCORE, length_grouped_batches, load_scored_pairs, pad_batch
from minisbert.encoder import SentenceEncoder, choose_device
from minisbert.evaluate import check_scores, evaluate
from minisbert.files import atomic_file, write_json
from minisbert.losses import cosine_mse_loss


def linear_schedule(step: int, warmup: int, total: int) -> float:
    """The share of the full learning rate at a step, counted from 0: up in a line over ``warmup``, then down to 0.

    With ``warmup=2, total=6`` steps 0 to 6 have 0, .5, 1, .75, .5, .25, 0 (BERT, A.2).
    """
    if step < warmup:
        return step / warmup
    return max(0.0, (total - step) / max(1, total - warmup))


def adamw(parameters: list[torch.nn.Parameter], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2), betas .9 and .999, eps 1e-8."""
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay)


def train(options: argparse.Namespace) -> None:
    torch.manual_seed(options.seed)
    order = torch.Generator().manual_seed(options.seed)  # its own: dropout must not change which rows meet
    device = choose_device(options.device)
    pairs = {split: load_scored_pairs(data, split) for split, data in data_of(options).items()}
    for split in ("dev", "test"):
        check_scores(pairs[split], data_of(options)[split])
    encoder = SentenceEncoder.load(options.model, options.pooling, device)
    tokenizer = encoder.tokenizer
    first = tokenizer.encode([pair.sentence1 for pair in pairs["train"]])
    second = tokenizer.encode([pair.sentence2 for pair in pairs["train"]])
    targets = torch.tensor([pair.score / MAX_SCORE for pair in pairs["train"]])  # 0..1

    parameters = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    optimizer = adamw(parameters, options.lr, options.weight_decay)
    steps_per_epoch = math.ceil(len(targets) / options.batch_size)
    total = min(steps_per_epoch * options.epochs, options.max_steps or math.inf)
    warmup = math.ceil(options.warmup * total)

    out = prepare(options, device)
    describe(options, encoder, {split: len(rows) for split, rows in pairs.items()}, total)
    if first.truncated + second.truncated:
        say(tokenizer.cut_message(first.truncated + second.truncated, 2 * len(targets)))

    log = open(out / "metrics.jsonl", "w", encoding="utf-8")  # noqa: SIM115 (closed below)
    step, best, tokens, seconds = 0, -math.inf, 0, 0.0  # seconds of training alone, not of evaluation
    recent, unlogged = deque(maxlen=20), []  # losses: for the live line, and since the last logged line
    line = LiveLine()

    def record(**values: Any) -> None:
        log.write(json.dumps({"step": step, "epoch": round(step / steps_per_epoch, 3)} | values) + "\n")
        log.flush()

    def check_dev() -> dict[str, Any]:
        """Evaluate on dev; the best model so far, the untrained one included, stands in model/."""
        nonlocal best
        scores = evaluate(encoder, pairs["dev"], progress=True)
        record(dev={metric: values["cosine"] for metric, values in scores.items()})
        line.clear()
        say(f"step {step:>5}  dev Spearman {100 * scores['spearman']['cosine']:.2f}")
        if scores["spearman"]["cosine"] > best:
            best = scores["spearman"]["cosine"]
            encoder.save(out / "model")
        return scores

    try:
        before = {"dev": check_dev(), "test": evaluate(encoder, pairs["test"], progress=True)}
        lengths = [max(len(a), len(b)) for a, b in zip(first.ids, second.ids, strict=True)]
        while step < total:
            encoder.train()
            for rows in length_grouped_batches(lengths, options.batch_size, order):
                started = time.monotonic()
                # both sentences of every pair in one forward: 2B rows, the first B are the first sentences
                texts = [first.ids[row] for row in rows] + [second.ids[row] for row in rows]
                ids, mask = pad_batch(texts, tokenizer.pad_id)  # (2B, T)
                vectors = encoder(ids.to(device), None if mask is None else mask.to(device))  # (2B, D)
                u, v = vectors.chunk(2)  # (B, D) each
                loss = cosine_mse_loss(u, v, targets[rows].to(device))

                lr = options.lr * linear_schedule(step, warmup, total)
                for group in optimizer.param_groups:
                    group["lr"] = lr
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, options.clip or math.inf)
                optimizer.step()

                step += 1
                recent.append(loss.item())
                unlogged.append(recent[-1])
                tokens += sum(len(text) for text in texts)
                seconds += time.monotonic() - started
                rate = step / seconds
                line.show(
                    f"step {step:>5} of {total}  loss {mean(recent):.4f}  lr {lr:.2e}  "
                    f"{tokens / step * rate:,.0f} tokens/s  {duration((total - step) / rate)} left"
                )
                if step % options.log_every == 0 or step == total:
                    record(loss=mean(unlogged), lr=lr, tokens_per_second=round(tokens / step * rate))
                    unlogged.clear()
                if step == total:
                    break
            check_dev()
    except KeyboardInterrupt:
        line.clear()
        encoder.save(out / "last")
        also = f", the best by dev in {out / 'model'}" if (out / "model").exists() else ""
        say(f"stopped at step {step}: its weights are in {out / 'last'}{also}")
        raise
    finally:
        line.clear()
        log.close()

    best_encoder = SentenceEncoder.load(out / "model", device=device)
    after = {split: evaluate(best_encoder, pairs[split], progress=True) for split in ("dev", "test")}
    results = {"before": before, "after": after, "steps": step, "training_seconds": round(seconds, 2)}
    with atomic_file(out / "results.json") as partial:
        write_json(partial, results)
    print(f"\ntrained {step} steps in {duration(seconds)}; best by dev in {out / 'model'}\n")
    print_table(before, after)


def print_table(before: dict, after: dict) -> None:
    """Pearson and Spearman of the cosine on dev and test, before training and of the best model."""
    print(f"{'cosine x 100':<14}{'Pearson':>17}{'Spearman':>19}")
    for split in ("dev", "test"):
        shown = [
            f"{100 * before[split][metric]['cosine']:.2f} -> {100 * after[split][metric]['cosine']:.2f}"
            for metric in ("pearson", "spearman")
        ]
        print(f"{split:<14}{shown[0]:>17}{shown[1]:>19}")


def data_of(options: argparse.Namespace) -> dict[str, str]:
    """Where each split comes from: ``--data``, and for dev and test ``--dev`` and ``--test`` or stsb's own."""
    return {"train": options.data, "dev": options.dev or "stsb", "test": options.test or "stsb"}


def prepare(options: argparse.Namespace, device: torch.device) -> Path:
    """The run's folder with its ``config.json``; ``InputError`` where it would overwrite something unasked."""
    out = Path(options.out or f"runs/{Path(options.data).stem}-{Path(options.model).name}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if not options.overwrite:
            raise InputError(f"{out} exists: choose another --out, or --overwrite to replace that run")
        if not (out / "metrics.jsonl").is_file():
            raise InputError(f"{out} is not the folder of a run (it has no metrics.jsonl) and is not overwritten")
        for name in ("config.json", "metrics.jsonl", "results.json"):
            (out / name).unlink(missing_ok=True)
        for name in ("model", "last"):
            shutil.rmtree(out / name, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    resolved = {"out": str(out), "device": str(device), "minisbert": __version__, "torch": torch.__version__}
    write_json(out / "config.json", vars(options) | {"data": data_of(options)} | resolved)
    return out


def describe(options: argparse.Namespace, encoder: SentenceEncoder, counts: dict[str, int], total: int) -> None:
    """What is about to happen, in three lines."""
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    sources = data_of(options)
    say(f"model  {options.model}, {encoder.pooling.mode} pooling, {parameters:,} parameters, {encoder.device}")
    say("data   " + ", ".join(f"{split} {sources[split]} ({count:,} pairs)" for split, count in counts.items()))
    say(f"plan   {total} steps of {options.batch_size} pairs, AdamW {options.lr:g}, seed {options.seed}")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m minisbert.train",
        description="Fine-tune a sentence encoder on scored sentence pairs (cosine, mean squared error).",
        epilog="Example: python -m minisbert.train --epochs 4 --seed 7 --out runs/four-epochs",
    )

    def at_least(kind: type, smallest: float, below: float = math.inf) -> Any:
        def convert(text: str) -> Any:
            value = kind(text)
            if not smallest <= value < below:
                raise ValueError
            return value

        convert.__name__ = f"{kind.__name__} in [{smallest:g}, {below:g})"
        return convert

    group = parser.add_argument_group("what")
    group.add_argument(
        "--model", default="all-MiniLM-L6-v2", help="name or folder to start from (default: %(default)s)"
    )
    group.add_argument("--pooling", help="override the model's pooling: mean, cls or max")
    group.add_argument("--data", default="stsb", help="training pairs: stsb, or a file score, sentence1, sentence2")
    group.add_argument("--dev", metavar="FILE", help="pairs that choose the best checkpoint (default: stsb's dev)")
    group.add_argument("--test", metavar="FILE", help="pairs for the last table (default: stsb's test)")
    group.add_argument("--out", help="folder of the run (default: runs/DATA-MODEL)")
    group.add_argument("--overwrite", action="store_true", help="replace the run that stands there")
    group = parser.add_argument_group("how long")
    group.add_argument("--epochs", type=at_least(int, 1), default=1, help="default: 1")
    group.add_argument("--max-steps", type=at_least(int, 1), help="stop after so many steps")
    group = parser.add_argument_group("how")
    group.add_argument("--batch-size", type=at_least(int, 1), default=32, help="pairs a step (default: 32)")
    group.add_argument("--lr", type=at_least(float, 0), default=2e-5, help="peak learning rate (default: 2e-5)")
    group.add_argument("--warmup", type=at_least(float, 0, 1), default=0.1, help="share of the steps (default: 0.1)")
    group.add_argument("--weight-decay", type=at_least(float, 0), default=0.0, help="default: 0")
    group.add_argument("--clip", type=at_least(float, 0), default=1.0, help="largest gradient norm, 0: any; default: 1")
    group.add_argument("--seed", type=at_least(int, 0, 2**64), default=42, help="of dropout and order (default: 42)")
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (default: auto)")
    group.add_argument("--log-every", type=at_least(int, 1), default=10, help="steps a line of metrics.jsonl")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    train(parse(arguments))


if __name__ == "__main__":
    run_command(main)
