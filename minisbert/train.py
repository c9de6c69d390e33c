"""Train a sentence encoder: from rows of texts to a table of scores.

    python -m minisbert.train                                    all-MiniLM-L6-v2 on the STS Benchmark
    python -m minisbert.train --loss ranking --data pairs.csv    a part of your rows is held out

``minisbert train`` is the same program. ``train`` is its loop, for Python; ``run`` is the script
around it: the rows, the model, the loop, the table. What is long and not about training is one call
into ``minisbert/training/``, and the losses are the classes of ``minisbert/training/table.py``.
"""

import math
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from minisbert.checkpoints.card import training_section
from minisbert.core import InputError
from minisbert.core.loop import Diverged, Step, adamw, fit
from minisbert.data.rows import as_rows
from minisbert.data.splits import read_splits
from minisbert.evaluation.retrieval import Retrieval, load_retrieval_folder
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import NotFinite, SentenceEncoder
from minisbert.system import devices
from minisbert.system.assets import local_path
from minisbert.system.console import Interrupts, say
from minisbert.system.files import check_output
from minisbert.system.progress import Bar
from minisbert.training import MODEL, STATE, distributed, run_folder
from minisbert.training.base_loss import Loss
from minisbert.training.distributed import ProcessGroup
from minisbert.training.gradient_cache import parts_of, whole
from minisbert.training.messages import describe_batches, describe_run, print_table, say_end
from minisbert.training.options import Settings, command_of, parse
from minisbert.training.recipes import list_recipes
from minisbert.training.schedules import SCHEDULES
from minisbert.training.scores import Scores, paired_gain
from minisbert.training.starting_model import (
    encoder_of,
    frozen_if_unused,
    parameter_groups,
    starting_model,
)
from minisbert.training.state import Progress, load_state, remove_state, run_identity, save_state
from minisbert.training.table import find_loss, loss_of

Model = TypeVar("Model", bound=SentenceEncoder | PairModel)


def train(
    model: Model,
    rows: Iterable,
    dev: Any = None,
    loss: str | Loss = "ranking",
    epochs: int = 1,
    batch_size: int = 32,
    lr: float = 2e-5,
    max_steps: int | None = None,
    seed: int = 42,
    callback: Callable[[Step, Scores | None], object] | None = None,
    *,
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
    """Train a model in place and return it, with the weights that were best on ``dev``, or without
    it with the last.

    A row is a tuple: (anchor, positive, negative, ...) for the loss "ranking", three texts for
    "triplet", (text, text, score in -1..1) for "cosine", (text, text, class) for "softmax", (text,)
    for "simcse"; ``LOSSES`` in training/table.py has all. Rows may also be dictionaries, or a
    ``datasets.Dataset``, with the columns' names. ``loss`` may be a ``Loss`` of your own. ``dev``,
    scored pairs or rows like those of the loss, is scored before the first step, and after each
    epoch or ``eval_every`` steps; training ends after ``patience`` scores without a better one.

    ``callback`` gets each step and the dev scores after it, if there are any; training ends when it
    returns something true. With a folder ``out`` losses and scores are logged there, and a state is
    saved every ``save_every`` steps and when the training is stopped: the same call with
    ``resume=True`` continues from it, to the numbers of a training that nobody stopped.
    """
    # -----------------------------------------------------------------------------
    # the loss, and the rows that it reads
    loss = find_loss(loss, isinstance(model, PairModel))
    rows = as_rows(rows, loss.columns).rows
    if dev is None:
        dev = []
    if not isinstance(dev, Retrieval) and len(dev):
        dev = as_rows(dev, [*loss.judged_by, loss.columns]).rows

    # -----------------------------------------------------------------------------
    # the machine: dropout and a new head are drawn from the seed, Ctrl-C waits for the end of a
    # step, and the first of several processes writes
    device = model.device
    group = group or ProcessGroup(0, 1, device)
    progress = progress or Progress()
    folder = Path(out) if out is not None and group.rank == 0 else None
    with (
        devices.seeded(seed, device),
        frozen_if_unused(model),
        Interrupts() as interrupts,
        run_folder.open_log(folder) if folder else nullcontext() as log,
    ):
        # -----------------------------------------------------------------------------
        # the network: row numbers to what the formula reads. The texts are tokenized here, once
        network = loss.prepare(model, rows)
        network.dtype, _ = devices.choose_dtype(dtype, device)
        for parameter in network.parameters():
            # subtle: loaded weights have any offset in their file, and an address can change the
            # last bit of a product
            parameter.data = parameter.data.clone()

        # -----------------------------------------------------------------------------
        # the batches of all epochs, drawn beforehand, so that the schedule knows how many there are
        generator = torch.Generator().manual_seed(seed)
        batches: list[list[int]] = []
        epoch_ends: list[int] = []  # the number of the last step of each epoch
        for _ in range(epochs):
            batches += loss.batches(rows, network.lengths, batch_size, generator)
            epoch_ends.append(len(batches))
        if not batches:
            raise InputError("any two rows share a text, so no batch has a negative: give other rows")
        batches = batches[:max_steps]
        total = len(batches)
        describe_batches(loss, network, batches, batch_size)

        # dev is scored after these steps, and before the first one
        evaluations = {total, *epoch_ends}
        if eval_every is not None:
            evaluations = {total, *range(eval_every, total, eval_every)}

        # -----------------------------------------------------------------------------
        # the optimizer, and how its rate goes. Too large a batch is computed in parts: ``fit`` adds
        # up their gradients if the loss is the mean of its rows' losses, else the network caches them
        parameters = parameter_groups(network, encoder_of(model), lr, head_lr)
        optimizer = adamw(parameters, lr, weight_decay)
        warmup_steps = math.ceil(warmup * total if warmup < 1 else warmup)
        if warmup_steps >= total > 1 and warmup >= 1:
            distributed.say_once(
                f"--warmup {warmup_steps}: the run has {total} steps, so the learning rate never "
                "reaches its peak"
            )

        def rate(step: int) -> float:
            return SCHEDULES[schedule](step, warmup_steps, total)

        def parts(batch: Sequence[int]) -> list[list[int]]:
            return parts_of(
                batch, network.lengths, device, micro_tokens, loss.compares_rows, group.size
            )

        micro_batches = parts
        wrapped = group.wrap(network)
        if loss.compares_rows:
            micro_batches = whole
            wrapped = group.wrap(network, parts)

        # -----------------------------------------------------------------------------
        # what a stopped run has left
        progress.total = total
        best_weights: dict[str, Tensor] | None = None
        settings = [epochs, batch_size, lr, max_steps, seed, head_lr, warmup, schedule, weight_decay]
        settings += [clip, eval_every, patience, micro_tokens, str(network.dtype)]
        identity = run_identity(model, loss, network.encoded, dev, settings)
        if resume and out is not None and (Path(out) / f"{STATE}.json").exists():
            best_weights, randomness = load_state(Path(out), progress, network, optimizer, identity)
            devices.set_random_state(randomness, device)
        if log is not None:
            run_folder.continue_log(log, progress)

        def save() -> None:
            """Save all that ``--resume`` needs, whole or not at all."""
            if folder:
                with interrupts.defer():
                    randomness = devices.random_state(device)
                    save_state(
                        folder, progress, network, optimizer, best_weights, randomness, identity
                    )

        def score_dev() -> Scores:
            """Score dev, log it, and keep a copy of the weights if they are the best so far."""
            nonlocal best_weights
            scores: Scores = {}
            score = 0.0
            if group.rank == 0:
                try:
                    evaluation = loss.evaluate(model, dev)
                except NotFinite as error:
                    raise Diverged(f"step {progress.step}: {error}; a lower lr may help") from error
                scores = evaluation.scores
                score = evaluation.score
                progress.metric = evaluation.metric
                say(f"step {progress.step:>5}  dev {evaluation.metric} {100 * score:.2f}")
            # every process must know whether to stop, but only the first has the score
            score = group.broadcast(score)
            with interrupts.defer():
                run_folder.write_line(log, progress, dev=scores)
                progress.history.append({"step": progress.step, **scores})
                progress.waited += 1
                if progress.best is None or score > progress.best:
                    progress.waited = 0
                if progress.best is None or score >= progress.best:  # of equal ones the later
                    progress.best = score
                    progress.best_step = progress.step
                    best_weights = {name: x.clone() for name, x in model.state_dict().items()}
            return scores

        def out_of_patience() -> bool:
            return patience is not None and progress.waited >= patience

        # -----------------------------------------------------------------------------
        # the loop. The untrained model is the first candidate on dev
        steps = fit(
            wrapped,
            loss.batch_loss,
            batches[progress.step :],
            optimizer,
            rate,
            progress.step,
            clip or math.inf,
            micro_batches,
        )
        wrapped.train()
        try:
            if dev and progress.evaluated < progress.step and progress.step in {0, *evaluations}:
                score_dev()
            bar = Bar(
                total=total,
                initial=progress.step,
                unit="step",
                unit_scale=False,
                shown=group.rank == 0,
            )
            while progress.step < total and not out_of_patience():
                with interrupts.defer():
                    started = time.monotonic()
                    group.reseed(seed, progress.step)  # each process has dropout of its own
                    step = next_step(steps, batches[progress.step])
                    progress.step = step.number
                    progress.tokens += sum(network.lengths[row] for row in step.batch)
                    progress.seconds += time.monotonic() - started
                    progress.unlogged.append(step.loss)
                    if step.number % log_every == 0 or step.number == total:
                        run_folder.write_line(
                            log,
                            progress,
                            loss=sum(progress.unlogged) / len(progress.unlogged),
                            lr=lr * step.multiplier,
                            tokens_per_second=round(progress.tokens / progress.seconds),
                        )
                        progress.unlogged = []
                bar.set_postfix_str(f"loss {step.loss:.4f}", refresh=False)
                bar.update()

                scores = None
                if dev and step.number in evaluations:
                    bar.clear()
                    scores = score_dev()
                    bar.unpause()  # the time that it took is no step's
                if callback is not None and callback(step, scores):
                    break
                if step.number % save_every == 0 and step.number < total:
                    save()
            bar.close()
        finally:
            # after Ctrl-C, too
            save()
            if best_weights is not None:
                model.load_state_dict(best_weights)
            model.eval()
    return model


def next_step(steps: Iterator[Step], batch: Sequence[int]) -> Step:
    """Make a step; if its loss or a gradient is not finite, name the rows of the batch."""
    try:
        return next(steps)
    except Diverged as error:
        rows = ", ".join(map(str, batch[:8]))
        if len(batch) > 8:
            rows += ", ..."
        advice = "a lower lr or a longer warmup may help"
        raise Diverged(f"{error} (training rows {rows}, counted from 0); {advice}") from error


def run(settings: Settings, loss: Loss | None = None) -> None:
    """Read the rows, train the model, and print the table. ``loss`` replaces that of the settings."""
    devices.save_training_memory()
    devices.use_threads(settings.threads)
    with distributed.process_group(settings.device) as group:
        first = group.rank == 0  # of several processes the first prints and writes

        # -----------------------------------------------------------------------------
        # the rows of train, dev and test
        loss = loss or loss_of(settings)
        splits = read_splits(
            settings.data or loss.default_data,
            settings.dev or loss.default_dev(settings.data),
            settings.test or loss.default_dev(settings.data),
            loss.columns,
            settings.columns,
            settings.scale,
            judged_by=loss.judged_by,
            quotes=settings.quotes,
            limit=settings.limit,
            seed=settings.seed,
        )
        dev: Any = splits.dev
        test: Any = splits.test
        if settings.retrieval:
            searches = load_retrieval_folder(settings.retrieval)
            dev = searches["dev"]
            test = searches["test"]
            splits.notes.append(f"dev    the search in {settings.retrieval}: {len(dev.queries):,} queries")

        # -----------------------------------------------------------------------------
        # the model, and maybe a head around it
        torch.manual_seed(settings.seed)  # the weights of a new head are drawn
        task = getattr(loss, "task", "")
        model = starting_model(settings, group.device, task, splits.train, splits.classes)

        # -----------------------------------------------------------------------------
        # the run's folder, and what the untrained model scores on test
        out = folder_of(settings)
        model_folder = out / MODEL
        if first:
            if settings.resume is None:
                inputs = (settings.teacher, settings.data, settings.dev, settings.test)
                check_output(out, local_path(settings.model), *inputs)
                run_folder.create_folder(out, asdict(settings), settings.overwrite)
            held_out = {"dev": dev, "test": test}
            describe_run(settings, model, splits.notes, splits.train, held_out)
        before = loss.evaluate(model, test) if test and first else None

        # -----------------------------------------------------------------------------
        # the training. What is saved is the best model by dev, after Ctrl-C the best so far
        progress = Progress()
        try:
            train(
                model,
                splits.train,
                dev,
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
            if first:
                save_stopped(model, model_folder, progress, error)
            raise
        if not first:
            return

        # -----------------------------------------------------------------------------
        # the table: dev chose the step, so what counts is test, with its interval
        model.save(model_folder)
        table: dict[str, tuple[Scores, Scores]] = {}
        gain = None
        if progress.history:
            table["dev"] = (run_folder.dev_scores(progress, 0), run_folder.dev_scores(progress, progress.best_step))
        if before is not None:
            after = loss.evaluate(model, test)
            table["test"] = (before.scores, after.scores)
            gain = paired_gain(before, after)
        card = training_section(shlex.join(command_of(settings)), splits.notes, table, gain)
        model.write_card(model_folder, card)
        run_folder.write_results(out, progress, table, gain)
        remove_state(out)
        say_end(progress, model_folder)
        print_table(table, gain)


def save_stopped(model: Any, folder: Path, progress: Progress, error: BaseException) -> None:
    """Save the best weights so far of a training that was stopped, and say how to go on."""
    if not isinstance(error, (KeyboardInterrupt, InputError, OSError)):
        return  # a bug: its traceback is all that there is to say
    with Interrupts() as interrupts, interrupts.defer():
        model.save(folder)
        advice = f"continue with --resume {folder.parent}"
        if isinstance(error, Diverged):  # a resumed run would come to the same step
            advice = "begin anew with --overwrite"
        which = f"the best weights so far, of step {progress.best_step}," if progress.history else "the weights"
        say(f"stopped at step {progress.step}: {which} are in {folder}; {advice}")


def folder_of(settings: Settings) -> Path:
    """The folder of a run: --out, or one in runs/ that is named after the recipe, or loss and model."""
    if settings.out:
        return Path(settings.out)
    name = settings.recipe or settings.head or settings.loss
    if settings.data and not settings.recipe:
        name = f"{Path(settings.data).stem}-{name}"
    return Path("runs", f"{name}-{Path(settings.model).name}")


def main(arguments: list[str] | None = None, loss: Loss | None = None) -> None:
    """The command ``minisbert train``; ``loss`` replaces that of the options."""
    settings = parse(arguments)
    if settings.recipe == "list":
        print(list_recipes())
        return
    run(settings, loss)


if __name__ == "__main__":
    distributed.run_distributed_command(main)
