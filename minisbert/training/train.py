"""A training run from its options to its results: set up, step through ``fit``, act between two steps."""

import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from minisbert.core import InputError, reading
from minisbert.core.loop import adamw, fit
from minisbert.evaluation import plots
from minisbert.system.devices import choose_precision, save_training_memory, use_threads
from minisbert.training.command_line import list_recipes, parse
from minisbert.training.distributed import ProcessGroup, lost_contact, process_group, restarts, say_once
from minisbert.training.gradient_cache import Cut, cut, whole
from minisbert.training.objectives.base import Objective
from minisbert.training.objectives.registry import load_encoder, make_objective
from minisbert.training.run import Run, resume, start
from minisbert.training.run_folder import STATE, describe, recover_run
from minisbert.training.schedules import SCHEDULES
from minisbert.training.settings import RunSettings
from minisbert.training.trainable import count_parameters, freeze

MICRO_TOKENS = 768  # per process and micro-batch: no slower on a CPU, and memory stops growing with the batch
CACHED_TOKENS = 4096  # per process: a larger batch whose loss compares rows is cached, for a quarter more time


def main(arguments: list[str] | None = None) -> None:
    """``python -m minisbert.train``."""
    save_training_memory()
    options = parse_again(parse(arguments), arguments)
    if options.recipe == "list" and options.resume is None:
        print(list_recipes())
        return
    if options.plots:
        plots.require()  # now, not after the training
    use_threads(options.threads)
    with process_group(options.device) as group:
        train(options, group)


def parse_again(options: RunSettings, arguments: list[str] | None) -> RunSettings:
    """The options after a restart by ``torchrun --max-restarts``: the run in ``--out`` continues from its state."""
    if options.resume or not (options.out and restarts()):
        return options
    recover_run(Path(options.out))
    if not (Path(options.out) / STATE / "state.json").is_file():  # it ended before its state was saved
        return options
    return parse([*(sys.argv[1:] if arguments is None else arguments), "--resume", options.out])


def train(options: RunSettings, group: ProcessGroup) -> None:
    """Train what the options say; ``group`` is the processes of the run, usually one."""
    torch.manual_seed(options.seed)
    precision, reason = choose_precision(options.precision, group.device)
    objective, counts = prepare(options, group.device, precision)
    optimizer = adamw(objective.parameter_groups(options.lr, options.head_lr), options.lr, options.weight_decay)
    with (resume if options.resume else start)(options, objective, optimizer, group) as run:
        if options.threads not in (None, torch.get_num_threads()):  # a resumed run has its own number by now
            say_once(f"threads: {options.threads}, before {torch.get_num_threads()}: the last bits may differ")
            torch.set_num_threads(options.threads)
        if group.rank == 0:
            describe(options, objective, counts, run.total, f"{str(precision).removeprefix('torch.')} ({reason})")
        try:
            step_through(run, options)
            run.save()  # so that a run interrupted in its last evaluation can be resumed
        except (KeyboardInterrupt, InputError, RuntimeError, OSError) as error:  # OSError: a closed pipe, a full disk
            if not isinstance(error, RuntimeError) or lost_contact(error):
                run.stop()
            raise
        run.finish()


def prepare(options: RunSettings, device: torch.device, precision: torch.dtype) -> tuple[Objective, tuple[int, int]]:
    """The objective, ready to train, and the model's number of parameters, all and trainable."""
    encoder = load_encoder(options, device)
    with reading("--freeze-layers"):
        freeze(encoder.bert, options.freeze_layers, options.freeze_embeddings)
    objective = make_objective(options, encoder, precision)
    longest = max(range(len(objective.lengths)), key=lambda row: objective.lengths[row])
    if options.micro_tokens is not None and objective.lengths[longest] > options.micro_tokens:
        raise InputError(
            f"--micro-tokens {options.micro_tokens}: training row {longest}, counted from 0, alone has "
            f"{objective.lengths[longest]} tokens; give at least that many, or shorten texts by --max-length"
        )
    counts = count_parameters(objective.model)
    for parameter in objective.unused_parameters():
        parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in objective.network.parameters()):
        raise InputError("nothing is left to train: freeze fewer layers")
    for parameter in objective.network.parameters():
        # subtle: loaded weights have any offset in their file, and an address can change the last bit of a product
        parameter.data = parameter.data.clone()
    return objective, counts


def step_through(run: Run, options: RunSettings) -> None:
    """Step by step to the end, logging, saving and evaluating on the way."""
    warmup = math.ceil(options.warmup if options.warmup >= 1 else options.warmup * run.total)
    if options.warmup >= run.total:
        say_once(f"--warmup {warmup}: the run has {run.total} steps, so the learning rate never reaches its peak")
    schedule = lambda step: SCHEDULES[options.schedule](step, warmup, run.total)  # noqa: E731
    loss, clip = run.objective.nested_loss if run.objective.prefixes else run.objective.loss, options.clip or math.inf
    cut_batch, network = divide(run.objective, options, run.group)
    network.train()
    while True:
        if run.evaluation_due:
            run.evaluate()
        if run.finished:
            return
        steps = fit(network, loss, run.epoch(), run.optimizer, schedule, run.state.step, clip, cut_batch)
        for step in run.record_steps(steps):
            run.show(step)
            if step.number % options.save_every == 0 and step.number < run.total:
                run.save()
            if run.evaluation_due:
                run.evaluate()
            if run.finished:
                break


def divide(objective: Objective, options: RunSettings, group: ProcessGroup) -> tuple[Cut, nn.Module]:
    """The micro-batches of ``fit``, and the network, shared out; if rows are compared, it caches gradients instead."""
    cut_batch = partial(micro_batches, objective=objective, options=options, device=group.device)
    if objective.separable:
        return partial(cut_batch, processes=group.size), group.wrap(objective.network)
    return whole, group.wrap(objective.network, cut_batch)


def micro_batches(
    rows: Sequence[int], objective: Objective, options: RunSettings, device: torch.device, processes: int = 1
) -> list[list[int]]:
    """The micro-batches of a batch, which ``processes`` compute one after the other.

    ``--accumulate`` of them, or as many as ``--micro-tokens`` per process allow. Without both, on a CPU, as many as a
    long batch needs: one if its loss compares rows and it has up to ``CACHED_TOKENS``, since gradient caching costs
    another forward.
    """
    if options.micro_tokens is not None:
        return cut(rows, objective.lengths, options.micro_tokens * processes)
    count, tokens = options.accumulate or 1, sum(objective.lengths[row] for row in rows) / processes
    if options.accumulate is None and device.type == "cpu" and (objective.separable or tokens > CACHED_TOKENS):
        count = math.ceil(tokens / MICRO_TOKENS)
    size = math.ceil(len(rows) / count)
    return [list(rows[start : start + size]) for start in range(0, len(rows), size)]
