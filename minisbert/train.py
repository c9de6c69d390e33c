"""Fine-tune a sentence encoder: one flat loop.

    python -m minisbert.train                       all-MiniLM-L6-v2 on the STS Benchmark, about 2 minutes
    python -m minisbert.train --max-steps 20 --out runs/short
    python -m minisbert.train --data my_train.tsv --dev my_dev.tsv --test my_test.tsv --epochs 4
    python -m minisbert.train --objective siamese --epochs 2 --lr 5e-5 --head-lr 1e-3
    python -m minisbert.train --recipe list

The default is SBERT's regression objective (Reimers & Gurevych 2019, section 3): both sentences go through the
same encoder, and the cosine of their vectors is pulled to the score people gave, by mean squared error. What other
objectives read and compute is in ``objectives.py``; the loop is the same for all.
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
from minisbert.device import choose_device
from minisbert.encoder import SentenceEncoder
from minisbert.files import atomic_file, write_json
from minisbert.heads import count_parameters, freeze
from minisbert.objectives import load_encoder, make_task
from minisbert.options import list_recipes, parse
from minisbert.tasks import Task


def linear_schedule(step: int, warmup: int, total: int) -> float:
    """The share of the full learning rate at a step, counted from 0: up in a line over ``warmup``, then down to 0.

    With ``warmup=2, total=6`` steps 0 to 6 have 0, .5, 1, .75, .5, .25, 0 (BERT, A.2).
    """
    if step < warmup:
        return step / warmup
    return max(0.0, (total - step) / max(1, total - warmup))


def cosine_schedule(step: int, warmup: int, total: int) -> float:
    """The same warm-up, then down to 0 along half a cosine (Loshchilov & Hutter 2017): half-way down it is .5."""
    if step < warmup:
        return step / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup))))


def constant_schedule(step: int, warmup: int, total: int) -> float:
    """The same warm-up, then 1."""
    return min(1.0, step / warmup) if warmup else 1.0


SCHEDULES = {"linear": linear_schedule, "cosine": cosine_schedule, "constant": constant_schedule}


def adamw(parameters: list, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2), betas .9 and .999, eps 1e-8."""
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay)


def train(options: argparse.Namespace) -> None:
    torch.manual_seed(options.seed)
    order = torch.Generator().manual_seed(options.seed)  # its own: dropout must not change which rows meet
    device = choose_device(options.device)
    encoder = load_encoder(options, device)
    try:
        freeze(encoder.bert, options.freeze_layers, options.freeze_embeddings)
    except ValueError as error:
        raise InputError(f"--freeze-layers: {error}") from error
    task = make_task(options, encoder)
    if options.freeze_embeddings and not task.trains():
        raise InputError("nothing is left to train: freeze fewer layers")

    optimizer = adamw(task.parameter_groups(options.lr, options.head_lr), options.lr, options.weight_decay)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    # counted, not computed: batches without repeated texts can be a few more than rows / batch size
    steps_per_epoch = len(task.batches(options.batch_size, torch.Generator().manual_seed(options.seed)))
    total = min(steps_per_epoch * options.epochs, options.max_steps or math.inf)
    warmup = math.ceil(options.warmup * total)

    out = prepare(options, device, task)
    describe(options, encoder, task, total)
    log = open(out / "metrics.jsonl", "w", encoding="utf-8")  # noqa: SIM115 (closed below)
    step, best, tokens, seconds = 0, -math.inf, 0, 0.0  # seconds of training alone, not of evaluation
    recent, unlogged = deque(maxlen=20), []  # losses: for the live line, and since the last logged line
    line = LiveLine()

    def record(**values: Any) -> None:
        log.write(json.dumps({"step": step, "epoch": round(step / steps_per_epoch, 3)} | values) + "\n")
        log.flush()

    def check_dev() -> dict[str, float]:
        """Evaluate on dev; the best model so far, the untrained one included, stands in model/."""
        nonlocal best
        scores = task.evaluate("dev")
        record(dev=scores)
        line.clear()
        say(f"step {step:>5}  dev {task.best} {100 * scores[task.best]:.2f}")
        if scores[task.best] > best:
            best = scores[task.best]
            task.model.save(out / "model")
        return scores

    try:
        before = {"dev": check_dev(), "test": task.evaluate("test")}
        while step < total:
            for rows in task.batches(options.batch_size, order):
                started = time.monotonic()
                task.model.train()
                loss = task.loss(rows)
                share = SCHEDULES[options.schedule](step, warmup, total)
                for group in optimizer.param_groups:
                    group["lr"] = group["peak"] * share
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, options.clip or math.inf)
                optimizer.step()

                step += 1
                recent.append(loss.item())
                unlogged.append(recent[-1])
                tokens += sum(task.lengths[row] for row in rows)
                seconds += time.monotonic() - started
                rate, lr = step / seconds, options.lr * share
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
        task.model.save(out / "last")
        also = f", the best by dev in {out / 'model'}" if (out / "model").exists() else ""
        say(f"stopped at step {step}: its weights are in {out / 'last'}{also}")
        raise
    finally:
        line.clear()
        log.close()

    task.model.load_state_dict(type(task.model).load(out / "model", device=device).state_dict())
    after = {split: task.evaluate(split) for split in ("dev", "test")}
    results = {"before": before, "after": after, "steps": step, "training_seconds": round(seconds, 2)}
    with atomic_file(out / "results.json") as partial:
        write_json(partial, results)
    print(f"\ntrained {step} steps in {duration(seconds)}; best by dev in {out / 'model'}\n")
    print_table(before, after)


def print_table(before: dict[str, dict[str, float]], after: dict[str, dict[str, float]]) -> None:
    """Every metric on dev and test, before training and of the best model."""
    print(f"{'x 100':<16}{'dev':>17}{'test':>19}")
    for metric in [metric for metric in before["dev"] if metric in before["test"]]:  # alignment needs alike pairs
        shown = [f"{100 * before[split][metric]:.2f} -> {100 * after[split][metric]:.2f}" for split in ("dev", "test")]
        print(f"{metric:<16}{shown[0]:>17}{shown[1]:>19}")


def prepare(options: argparse.Namespace, device: torch.device, task: Task) -> Path:
    """The run's folder with its ``config.json``; ``InputError`` where it would overwrite something unasked."""
    stem = f"{Path(options.data).stem}-" if options.data else ""
    name = options.recipe or f"{stem}{options.objective}"
    out = Path(options.out or f"runs/{name}-{Path(options.model).name}")
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
    write_json(out / "config.json", vars(options) | {"rows": task.notes} | resolved)
    return out


def describe(options: argparse.Namespace, encoder: SentenceEncoder, task: Task, total: int) -> None:
    """What is about to happen, in a few lines."""
    parameters, trainable = count_parameters(task.model)
    frozen = "" if trainable == parameters else f" ({trainable:,} trained)"
    say(f"model  {options.model}, {encoder.pooling.mode} pooling, {parameters:,} parameters{frozen}, {encoder.device}")
    say("data   " + ", ".join(f"{split} {note}" for split, note in task.notes.items()))
    say(f"plan   {total} steps of {options.batch_size} rows, AdamW {options.lr:g}, seed {options.seed}")
    if task.truncated:
        texts = sum(len(encoded) for encoded in task.encoded)
        say(encoder.tokenizer.cut_message(task.truncated, texts))


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.recipe == "list":
        print(list_recipes())
        return
    train(options)


if __name__ == "__main__":
    run_command(main)
