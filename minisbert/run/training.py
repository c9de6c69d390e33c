"""Fine-tune a sentence encoder: one flat loop.

    python -m minisbert.train                       all-MiniLM-L6-v2 on the STS Benchmark, a minute or two
    python -m minisbert.train --max-steps 20 --out runs/short
    python -m minisbert.train --data my_train.tsv --dev my_dev.tsv --test my_test.tsv --epochs 4
    python -m minisbert.train --objective siamese --epochs 2 --lr 5e-5 --head-lr 1e-3
    python -m minisbert.train --recipe list
    python -m minisbert.train --resume runs/short   go on with a run that was stopped
    torchrun --nproc_per_node=2 -m minisbert.train  in several processes

The default is SBERT's regression objective (Reimers & Gurevych 2019, section 3): both sentences go through the
same encoder, and the cosine of their vectors is pulled to the score people gave, by mean squared error. What other
objectives read and compute is in ``objectives.py``; the loop is the same for all.
"""

import argparse
import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from minisbert.core import InputError
from minisbert.core.heads import count_parameters, freeze
from minisbert.core.loop import SCHEDULES, adamw
from minisbert.objectives.objective import Task
from minisbert.objectives.registry import load_encoder, make_task
from minisbert.run import plots as plot
from minisbert.run.distributed import Team, leave, lost_contact, team
from minisbert.run.folder import Run, describe
from minisbert.run.options import list_recipes, parse
from minisbert.system.console import run_command
from minisbert.system.devices import autocast, choose_precision, keep_few_kernels

PART_TOKENS = 768  # of a process, for a step in parts: no slower on a CPU, and memory no longer grows with the batch


def parts(rows: list[int], task: Task, options: argparse.Namespace, ours: Team) -> list[list[int]]:
    """The rows of a step in parts that are computed one after the other, their gradients added up.

    ``--accumulate`` of them; unless it is given, on a CPU as many as a long batch needs. The whole in one part where
    its loss is not the mean of its rows' losses.
    """
    count = options.accumulate or 1
    if options.accumulate is None and task.separable and ours.device.type == "cpu":
        count = math.ceil(sum(task.lengths[row] for row in rows) / (PART_TOKENS * ours.size))
    size = math.ceil(len(rows) / count)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


class Diverged(InputError):
    """The loss, or its gradient, is no longer a number."""


def check(loss: float, norm: Tensor, trained: dict[str, Tensor], step: int, rows: Sequence[int]) -> None:
    """What a step must not go on with: numbers that are none, and parameters that would never learn."""
    if not (math.isfinite(loss) and norm.isfinite()):
        which = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
        raise Diverged(
            f"step {step + 1}: loss {loss:g}, gradient norm {norm.item():g}, on training rows {which} (counted from "
            "0). Not made; a lower --lr or a longer --warmup may help"
        )
    missed = [name for name, parameter in trained.items() if parameter.grad is None]
    if missed:
        raise InputError(f"the loss does not reach {len(missed)} of the parameters to train, such as {missed[0]}")


def train(options: argparse.Namespace, ours: Team) -> None:
    """A run, from its options to its results. ``ours`` is the team of processes that share it, mostly one."""
    torch.manual_seed(options.seed)
    dtype, reason = choose_precision(options.precision, ours.device)
    encoder = load_encoder(options, ours.device)
    try:
        freeze(encoder.bert, options.freeze_layers, options.freeze_embeddings)
    except ValueError as error:
        raise InputError(f"--freeze-layers: {error}") from error
    task = make_task(options, encoder)
    if not task.separable and (options.accumulate or 1) > 1:
        raise InputError(
            f"--accumulate: objective {options.objective} compares the rows of a batch with each other, and what it "
            "learns from two halves is not what it learns from the whole; take a smaller --batch-size"
        )
    counts = count_parameters(task.model)
    for parameter in task.idle():
        parameter.requires_grad_(False)
    if options.freeze_embeddings and not task.trains():
        raise InputError("nothing is left to train: freeze fewer layers")
    for parameter in task.network.parameters():
        # subtle: as loaded, weights lie anywhere in their file, and where a number lies can decide its last bit
        parameter.data = parameter.data.clone()

    network = ours.wrap(task.network).train()
    trained = {name: parameter for name, parameter in task.network.named_parameters() if parameter.requires_grad}
    optimizer = adamw(task.parameter_groups(options.lr, options.head_lr), options.lr, options.weight_decay)
    with Run(options, task, optimizer, ours) as run:
        now = run.now
        total = min(run.steps_per_epoch * options.epochs, options.max_steps or math.inf)
        warmup, patience = math.ceil(options.warmup * total), options.patience or math.inf
        if ours.leader:
            describe(options, task, counts, total, f"{str(dtype).removeprefix('torch.')} ({reason})")
        try:
            if now.evaluated < 0:
                run.evaluate()
            while now.step < total and now.waited < patience:
                for rows in run.epoch():
                    if options.eval_every and now.step % options.eval_every == 0 and now.evaluated < now.step:
                        run.evaluate()
                    if now.step == total or now.waited >= patience:
                        break
                    with run.held():  # Ctrl-C waits for the end of the step
                        started = time.monotonic()
                        share = SCHEDULES[options.schedule](now.step, warmup, total)
                        for group in optimizer.param_groups:
                            group["lr"] = group["peak"] * share
                        optimizer.zero_grad()
                        loss = 0.0
                        for part in parts(rows, task, options, ours):
                            with autocast(encoder.bert, dtype):
                                outputs = network(ours.share(part))  # (b, ...)
                            outputs = ours.gather(outputs, len(part))  # (B, ...)
                            part_loss = task.criterion(outputs, part) * (len(part) / len(rows))
                            ours.backward(part_loss)
                            loss += part_loss.item()
                        norm = torch.nn.utils.clip_grad_norm_(trained.values(), options.clip or math.inf)
                        check(loss, norm, trained, now.step, rows)
                        optimizer.step()
                        run.stepped(rows, loss, time.monotonic() - started)

                    run.show(total, options.lr * share)
                    if now.step % options.log_every == 0 or now.step == total:
                        run.record_losses(options.lr * share)
                    if now.step % options.save_every == 0 and now.step < total:
                        run.save()
                if now.evaluated < now.step and options.eval_every is None:
                    run.evaluate()
            if now.evaluated < now.step:
                run.evaluate()
        except (KeyboardInterrupt, Diverged, RuntimeError) as error:
            if not isinstance(error, RuntimeError) or lost_contact(error):
                run.stopped()
            raise
        run.finish()


def main(arguments: list[str] | None = None) -> None:
    keep_few_kernels()
    options = parse(arguments)
    if options.recipe == "list":
        print(list_recipes())
        return
    if options.plots:
        plot.require()  # now, not after the training
    with team(options.device) as ours:
        train(options, ours)
    if ours.size > 1:
        leave()


if __name__ == "__main__":
    run_command(main)
