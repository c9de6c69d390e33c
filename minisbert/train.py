"""Train a sentence encoder: from rows of texts to a table of scores.

    python -m minisbert.train                                  all-MiniLM-L6-v2 on the STS Benchmark
    python -m minisbert.train --loss ranking --data pairs.csv  holds out a part of your rows

``minisbert train`` is the same program. ``train`` is its loop, for Python; ``run`` is the script
around it: the rows, the model, the training, the table. What is long and not about training is one
call into ``minisbert/training/``; the losses are the classes in ``minisbert/training/table.py``.
"""

import math
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from minisbert.checkpoints.card import training_section
from minisbert.core.loop import Diverged, Step, adamw, fit
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.transformer_encoder import training_in_this_thread
from minisbert.replacements import TRAIN, explained
from minisbert.system import devices
from minisbert.system.console import Interrupts
from minisbert.system.progress import Bar
from minisbert.training import MODEL, base_loss, messages, run_folder, starting_model, state
from minisbert.training.base_loss import Loss
from minisbert.training.distributed import ProcessGroup, process_group, run_distributed_command
from minisbert.training.options import Settings, command_of, parse
from minisbert.training.recipes import list_recipes
from minisbert.training.run_data import read_run
from minisbert.training.schedules import learning_rate
from minisbert.training.scores import Scores, paired_gain
from minisbert.training.state import Progress
from minisbert.training.table import LossName, find_loss, loss_of

Model = TypeVar("Model", bound=SentenceEncoder | PairModel)


@explained(TRAIN)
def train(
    model: Model,
    rows: Any,
    dev: Any = None,
    loss: LossName | Loss = "ranking",
    epochs: int = 1,
    batch_size: int = 32,
    lr: float = 2e-5,
    max_steps: int | None = None,
    seed: int = 42,
    callback: Callable[[Step, Scores | None], object] | None = None,
    *,
    columns: str | None = None,
    scale: float | None = None,
    head_lr: float | None = None,
    warmup: float = 0.1,
    schedule: str = "linear",
    weight_decay: float = 0.0,
    clip: float = 1.0,
    eval_every: int | None = None,
    patience: int | None = None,
    micro_tokens: int | None = None,
    dtype: str = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    save_every: int = 100,
    log_every: int = 10,
    progress: Progress | None = None,
    group: ProcessGroup | None = None,
) -> Model:
    """Train a model in place; return it with the weights that were best on ``dev``, or the last.

    A row is a tuple: (anchor, positive, negative, ...) for the loss "ranking", three texts for
    "triplet", (text, text, score) for "cosine", (text, text, class) for "softmax", (text,) for
    "simcse"; ``LOSSES`` in training/table.py has all. Rows may also be dictionaries, a DataFrame, a
    ``datasets.Dataset`` or a dictionary of columns. They are read as the command reads a file: by
    the names of the columns or by ``columns``, such as "left,right,stars", and scores are divided
    by ``scale``, or by the smallest of 1, 5, 10 and 100 that none exceeds. A line says what was
    left out. ``loss`` may be a ``Loss`` of your own.

    ``dev`` is scored before the first step, and after each epoch or ``eval_every`` steps; training
    ends after ``patience`` scores without a better one. Its rows are pairs with a score, or like
    those of the loss.

    ``callback`` gets each step and the dev scores after it, if there are any; training ends when it
    returns something true. With a folder ``out`` losses and scores are logged there, and a state is
    saved every ``save_every`` steps and when the training ends: the same call with ``resume=True``
    continues from it, to the numbers of a training that nobody stopped. A ``progress`` of the
    caller's is filled in with the steps made and all dev scores.
    """
    # -----------------------------------------------------------------------------
    # Wrong settings are found before anything is computed.
    starting_model.check_is_model(model)
    base_loss.check_settings(
        epochs=epochs,
        batch_size=batch_size,
        max_steps=max_steps,
        lr=lr,
        head_lr=head_lr,
        warmup=warmup,
        schedule=schedule,
        weight_decay=weight_decay,
        clip=clip,
        seed=seed,
        eval_every=eval_every,
        patience=patience,
        micro_tokens=micro_tokens,
        save_every=save_every,
        log_every=log_every,
        resume=resume,
        out=out,
    )

    # -----------------------------------------------------------------------------
    # The loss decides what a row holds, so it comes before the rows.
    loss = find_loss(loss, isinstance(model, PairModel))
    table = base_loss.read_training_rows(rows, loss, columns, scale)
    rows = table.rows
    dev = base_loss.read_dev(dev, loss, table, columns)
    base_loss.check_patience(patience, dev)

    # -----------------------------------------------------------------------------
    # The device that computes, and the folder for the log and the state. Several processes all
    # read the state that is there; only the first one writes.
    device = model.device
    group = group or ProcessGroup(0, 1, device)
    progress = progress or Progress()
    folder = None
    if out is not None:
        folder = Path(out)
    written_folder = folder if group.rank == 0 else None

    # Until the end of the training: no other thread computes with the model, random numbers come
    # from the seed, parameters that the loss does not reach are frozen, Ctrl-C waits for the end of
    # a step, and the log is open (it is None without a folder).
    with (
        training_in_this_thread(model),
        devices.seeded(seed, device),
        starting_model.frozen_if_unused(model),
        Interrupts() as interrupts,
        run_folder.log_of(written_folder) as log,
    ):
        # -----------------------------------------------------------------------------
        # The network turns row numbers into what the loss's formula reads, such as vectors. The
        # texts are tokenized here, once. The weights are copied, because the last bits of a product
        # may depend on where its factors lie in memory.
        network = loss.prepare(model, rows)
        network.dtype, _ = devices.choose_dtype(dtype, device)
        base_loss.move_to_own_memory(network)

        # -----------------------------------------------------------------------------
        # The batches of all epochs are drawn beforehand: the schedule must know how many there are.
        plan = base_loss.draw_batches(
            loss, rows, network.lengths, epochs, batch_size, seed, max_steps, eval_every
        )
        batches = plan.batches
        total = len(batches)
        messages.describe_batches(loss, network, rows, plan, batch_size)

        # -----------------------------------------------------------------------------
        # The optimizer. ``multiplier`` gives the part of the learning rate that each step has.
        encoder = starting_model.encoder_of(model)
        parameters = starting_model.parameter_groups(network, encoder, lr, head_lr)
        optimizer = adamw(parameters, lr, weight_decay)
        multiplier = learning_rate(schedule, warmup, total)
        messages.describe_learning_rate(multiplier, total)

        # -----------------------------------------------------------------------------
        # A large batch is computed in parts, and by all processes together. The function
        # ``micro_batches`` cuts a batch into parts, whose gradients ``fit`` adds up. A loss that
        # compares rows needs the whole batch: there it returns the batch as one part, and the
        # wrapped network divides it and caches gradients instead.
        wrapped, micro_batches = base_loss.divide_batches(loss, network, group, micro_tokens)

        # -----------------------------------------------------------------------------
        # With ``resume`` a stopped training goes on, but only if all that decides its numbers is
        # the same. The identity is the hash of that.
        settings = [epochs, batch_size, lr, max_steps, seed, head_lr, warmup, schedule]
        settings += [weight_decay, clip, eval_every, patience, micro_tokens, str(network.dtype)]
        identity = state.run_identity(model, loss, network.encoded, dev, settings)
        best = state.BestWeights(written_folder)
        if resume:
            state.continue_run(folder, progress, network, optimizer, best, identity)
        run_folder.cut_log(log, progress.logged)  # a new training empties it

        # The state is saved with the random generator as it was after the last whole step: a step
        # that fails has drawn masks, too, and a resumed training draws them again.
        randomness = devices.random_state(device)

        def score_dev() -> Scores:
            """Score dev, log it, and keep the weights if they are the best so far."""
            evaluation = base_loss.evaluate(loss, model, dev, progress.step, group)
            with interrupts.defer():
                run_folder.write_line(
                    log, progress, dev=evaluation.scores, metric=evaluation.metric
                )
                best.update(model, progress, evaluation)
            return evaluation.scores

        def save() -> None:
            """Save all that ``resume`` needs, whole or not at all."""
            with interrupts.defer():
                state.save_state(
                    written_folder, progress, network, optimizer, best, randomness, identity
                )

        # -----------------------------------------------------------------------------
        # The loop. The untrained model is the first candidate on dev.
        progress.total = total
        wrapped.train()
        steps = fit(
            wrapped,
            loss.batch_loss,
            batches[progress.step :],
            optimizer,
            multiplier,
            start=progress.step,
            clip=clip or math.inf,  # 0 is no clipping
            micro_batches=micro_batches,
        )
        try:
            if dev and progress.must_evaluate(plan.evaluations):
                score_dev()
            bar = Bar(
                total=total,
                initial=progress.step,
                shown=group.rank == 0,
                unit="step",
                unit_scale=False,
            )
            while progress.step < total and progress.has_patience(patience):
                with interrupts.defer():
                    started = time.monotonic()
                    group.reseed(seed, progress.step)  # each process has dropout of its own
                    step = next_step(steps, batches[progress.step])
                    tokens = sum(network.lengths[row] for row in step.batch)
                    progress.count(step, tokens, time.monotonic() - started)
                    randomness = devices.random_state(device)
                    run_folder.log_loss(log, progress, lr * step.multiplier, log_every)
                bar.set_postfix_str(messages.bar_text(step.loss, progress), refresh=False)
                bar.update()

                scores = None
                if dev and step.number in plan.evaluations:
                    bar.clear()
                    scores = score_dev()
                    bar.unpause()  # the bar's seconds a step are without the evaluation
                if callback is not None and callback(step, scores):
                    break
                if step.number % save_every == 0 and step.number < total:  # the last is saved below
                    save()
            bar.close()
        finally:
            # However the training ends, by Ctrl-C too: the state holds the last weights, the model
            # gets the best ones.
            save()
            best.restore(model)
            model.eval()
    return model


def next_step(steps: Iterator[Step], batch: Sequence[int]) -> Step:
    """Make a step; if its loss or a gradient is not finite, name the rows of the batch."""
    try:
        return next(steps)
    except Diverged as error:
        rows = ", ".join(str(row) for row in batch[:8])
        if len(batch) > 8:
            rows += ", ..."
        advice = "a lower lr or a longer warmup may help"
        raise Diverged(f"{error} (training rows {rows}, counted from 0); {advice}") from error


def run(settings: Settings, loss: Loss | None = None) -> None:
    """Read the rows, train the model, and print the table; ``loss`` replaces the settings' one."""
    devices.save_training_memory()  # it must be called before the first tensor is made
    devices.use_threads(settings.threads)
    with process_group(settings.device) as group:
        writes = group.rank == 0  # of several processes the first prints and writes

        # -----------------------------------------------------------------------------
        # The rows of train, dev and test.
        loss = loss_of(settings, loss)
        data = read_run(settings, loss)

        # -----------------------------------------------------------------------------
        # The model, with a head around it if the settings name one. A new head's weights are drawn.
        torch.manual_seed(settings.seed)
        model = starting_model.load(settings, group.device, loss, data)

        # -----------------------------------------------------------------------------
        # The run's folder, and what the untrained model scores on test.
        out = run_folder.folder_of(settings)
        if writes:
            run_folder.new_folder(out, settings)
            messages.describe_run(settings, model, data)
        before = None
        if writes and data.test:
            before = loss.evaluate(model, data.test)

        # -----------------------------------------------------------------------------
        # The training. Its steps and dev scores come back in ``progress``. The rows are tuples now,
        # whose scores are divided already: ``train`` takes them as they are.
        progress = Progress()
        try:
            train(
                model,
                data.train,
                data.dev,
                loss,
                settings.epochs,
                settings.batch_size,
                settings.lr,
                settings.max_steps,
                settings.seed,
                head_lr=settings.head_lr,
                warmup=settings.warmup,
                schedule=settings.schedule,
                weight_decay=settings.weight_decay,
                clip=settings.clip,
                eval_every=settings.eval_every,
                patience=settings.patience,
                micro_tokens=settings.micro_tokens,
                dtype=settings.dtype,
                out=out,
                resume=settings.resume is not None,
                save_every=settings.save_every,
                log_every=settings.log_every,
                progress=progress,
                group=group,
            )
        except BaseException as error:
            if writes:
                run_folder.save_stopped(model, progress, out, error)
            raise
        if not writes:
            return

        # -----------------------------------------------------------------------------
        # The model, and its scores before and after. dev chose the step, so what counts is test:
        # its gain has an interval.
        model.save(out / MODEL)
        table: dict[str, tuple[Scores, Scores]] = {}
        if progress.history:
            untrained = run_folder.dev_scores(progress, 0)
            table["dev"] = (untrained, run_folder.dev_scores(progress, progress.best_step))
        gain = None
        gain_text = ""
        if before is not None:
            after = loss.evaluate(model, data.test)
            table["test"] = (before.scores, after.scores)
            gain = paired_gain(before, after)
            gain_text = gain.sentence()

        # -----------------------------------------------------------------------------
        # The card, the results, and the end of the state, which is not needed any more.
        command = shlex.join(command_of(settings))
        model.write_card(out / MODEL, training_section(command, data.notes, table, gain_text))
        run_folder.write_results(out, progress, table, gain)
        state.remove_state(out)
        messages.say_end(progress, out)
        messages.print_table(table, gain)


def main(arguments: list[str] | None = None, loss: Loss | None = None) -> None:
    """The command ``minisbert train``; ``loss`` replaces that of the options."""
    settings = parse(arguments)
    if settings.recipe == "list":
        print(list_recipes())
    else:
        run(settings, loss)


if __name__ == "__main__":
    run_distributed_command(main)
