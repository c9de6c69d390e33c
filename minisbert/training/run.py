"""A run in progress: its state, its batches, what it records, and how it ends.

``start`` makes a new run and its folder, ``resume`` continues a stopped one. Of several processes only
rank 0 prints and writes.
"""

import json
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, TextIO

import torch
from torch import Tensor
from torch.optim import Optimizer

from minisbert.core import InputError
from minisbert.core.loop import Diverged, Step
from minisbert.evaluation import plots
from minisbert.system.console import LiveLine, duration, say
from minisbert.system.devices import random_state, set_random_state
from minisbert.system.files import atomic_file, naming, write_json
from minisbert.system.interrupts import Interrupts
from minisbert.training.distributed import ProcessGroup
from minisbert.training.objectives.base import Objective
from minisbert.training.resume import RunState, identity, load_state, save_state
from minisbert.training.run_folder import LAST, METRICS, MODEL, RESULTS, STATE, create_folder, open_log, print_table
from minisbert.training.settings import RunSettings

RECENT = 20  # losses in the live line's mean


def start(options: RunSettings, objective: Objective, optimizer: Optimizer, group: ProcessGroup) -> "Run":
    """A new run; rank 0 creates its folder."""
    order = torch.Generator().manual_seed(options.seed)  # its own: dropout must not change which rows meet
    folder, log = create_folder(options, group.device, objective) if group.rank == 0 else (Path(), None)
    random = {"order": order.get_state()} | random_state(group.device)
    return Run(options, folder, log, objective, optimizer, group, RunState(), random)


def resume(options: RunSettings, objective: Objective, optimizer: Optimizer, group: ProcessGroup) -> "Run":
    """A stopped run: network, optimizer and random generators get the state that was saved."""
    folder = Path(options.resume)
    with ExitStack() as stack:  # closes the log, and so unlocks the run, if something fails
        log = stack.enter_context(open_log(folder)) if group.rank == 0 else None
        state, random = load_state(folder / STATE, objective.network, optimizer, identity(objective, options))
        size = (folder / METRICS).stat().st_size
        if size < state.logged:
            raise InputError(f"{folder / METRICS} was cut or replaced: it has {size} bytes, not {state.logged}")
        set_random_state(random, group.device)
        stack.pop_all()
    return Run(options, folder, log, objective, optimizer, group, state, random)


@dataclass
class Run:
    """As a context it turns Ctrl-C and SIGTERM into a ``KeyboardInterrupt`` between two steps, never within one."""

    options: RunSettings
    folder: Path
    log: TextIO | None  # metrics.jsonl, of rank 0
    objective: Objective
    optimizer: Optimizer
    group: ProcessGroup
    state: RunState
    random: dict[str, Tensor]  # states of the random generators; "order" is that before the current epoch

    def __post_init__(self) -> None:
        self.order = torch.Generator()
        self.order.set_state(self.random["order"])
        # counted, not computed: batches without repeated texts can be a few more than rows / batch size
        generator = torch.Generator().manual_seed(self.options.seed)
        self.steps_per_epoch = len(self.objective.batches(self.options.batch_size, generator))
        self.total = min(self.steps_per_epoch * self.options.epochs, self.options.max_steps or math.inf)
        self.batches: list[list[int]] | None = None  # of the current epoch
        self.interrupts, self.line = Interrupts(), LiveLine()

    def __enter__(self) -> "Run":
        self.interrupts.__enter__()
        if self.log:
            self.log.truncate(self.state.logged)  # lines after the saved state will be written again
        return self

    def __exit__(self, *_: object) -> None:
        self.interrupts.__exit__()
        self.line.clear()
        if self.log:
            with naming(self.log.name):
                self.log.close()

    @property
    def finished(self) -> bool:
        patience = self.options.patience
        return self.state.step >= self.total or (patience is not None and self.state.waited >= patience)

    @property
    def evaluation_due(self) -> bool:
        """At every ``--eval-every`` steps, otherwise at the end of an epoch; always before training and at the end."""
        if self.state.evaluated == self.state.step:
            return False
        if self.finished or self.state.evaluated < 0:
            return True
        if self.options.eval_every:
            return self.state.step % self.options.eval_every == 0
        return self.batches is not None and self.state.position == len(self.batches)

    def epoch(self) -> list[list[int]]:
        """The remaining batches of the current epoch, or those of the next one."""
        with self.interrupts.defer():
            if self.batches is not None:
                self.random["order"], self.state.position = self.order.get_state(), 0
            self.batches = self.objective.batches(self.options.batch_size, self.order)
            return self.batches[self.state.position :]

    def record_steps(self, steps: Iterator[Step]) -> Iterator[Step]:
        """The steps of ``fit``, each made and recorded as one: an interrupt waits for its end."""
        while True:
            with self.interrupts.defer():
                started = time.monotonic()
                self.group.reseed(self.options.seed, self.state.step)
                self.objective.done = self.state.step / self.total
                try:
                    step = next(steps, None)
                except Diverged as error:
                    rows = self.batches[self.state.position]
                    which = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
                    raise Diverged(
                        f"{error} (training rows {which}, counted from 0); a lower --lr or a longer --warmup may help"
                    ) from error
                if step is None:
                    return
                self._record_step(step, time.monotonic() - started)
            yield step

    def _record_step(self, step: Step, seconds: float) -> None:
        state, options = self.state, self.options
        if not state.tokens:
            trained = [(name, p) for name, p in self.objective.network.named_parameters() if p.requires_grad]
            missed = [name for name, parameter in trained if parameter.grad is None]
            if missed:
                raise InputError(f"no gradient reaches {len(missed)} of the trainable parameters, such as {missed[0]}")
        state.step = step.number
        state.position += 1
        state.recent = [*state.recent[1 - RECENT :], step.loss]
        state.unlogged.append(step.loss)
        state.tokens += sum(self.objective.lengths[row] for row in step.batch)
        state.seconds += seconds
        self.random |= random_state(self.group.device)
        if step.number % options.log_every == 0 or step.number == self.total:
            loss, state.unlogged = mean(state.unlogged), []  # since the last such line
            rate = round(state.tokens / state.seconds)
            self.record(loss=loss, lr=options.lr * step.multiplier, tokens_per_second=rate)

    def show(self, step: Step) -> None:
        """The live line."""
        state = self.state
        if self.group.rank == 0:
            left = duration((self.total - state.step) * state.seconds / state.step)
            self.line.show(
                f"step {state.step:>5} of {self.total}  loss {mean(state.recent):.4f}  "
                f"lr {self.options.lr * step.multiplier:.2e}  {state.tokens / state.seconds:,.0f} tokens/s  {left} left"
            )

    def record(self, **values: Any) -> None:
        """A line of ``metrics.jsonl``."""
        if self.log:
            epoch = round(self.state.step / self.steps_per_epoch, 3)
            with naming(self.log.name):
                self.log.write(json.dumps({"step": self.state.step, "epoch": epoch} | values) + "\n")
                self.log.flush()
            self.state.logged = self.log.tell()

    def evaluate(self) -> None:
        """Scores on dev; the best model so far, the untrained one included, is saved in ``model/``."""
        state, objective, first = self.state, self.objective, self.group.rank == 0
        scores = objective.scores("dev") if first else {}
        if first and not state.before:
            state.before = {"dev": scores, "test": objective.scores("test")}
        score = self.group.broadcast(scores.get(objective.best, 0.0))
        better = state.best is None or score > state.best
        with self.interrupts.defer():
            if first:
                self.line.clear()
                say(f"step {state.step:>5}  dev {objective.best} {100 * score:.2f}")
                if better:
                    objective.model.save(self.folder / MODEL)
            self.record(dev=scores)
            state.evaluated, state.waited = state.step, 0 if better else state.waited + 1
            state.best, state.best_dev = (score, scores) if better else (state.best, state.best_dev)

    def save(self) -> None:
        """Everything that ``resume`` needs."""
        if self.group.rank == 0:
            with self.interrupts.defer():
                data = identity(self.objective, self.options)
                save_state(self.folder / STATE, self.objective.network, self.optimizer, self.random, self.state, data)

    def stop(self) -> None:
        """End the run early: save its state and its last weights."""
        with suppress(OSError):  # the terminal may be what has gone
            self.line.clear()
        if self.group.rank != 0:
            return
        with suppress(KeyboardInterrupt), self.interrupts.defer():  # a further request is already being served
            self.save()
            self.objective.model.save(self.folder / LAST)
            best = f", the best model by dev in {self.folder / MODEL}" if (self.folder / MODEL).exists() else ""
            say(
                f"stopped at step {self.state.step}: the last weights are in {self.folder / LAST}{best}; "
                f"continue with --resume {self.folder}"
            )

    def finish(self) -> None:
        """Write and print the best model's scores; delete what only a resumed run needs."""
        if self.group.rank != 0:
            return
        state, objective, folder = self.state, self.objective, self.folder
        self.optimizer.zero_grad()
        self.optimizer.state.clear()  # room for a second copy of the model
        try:
            model = objective.model
            model.load_state_dict(type(model).load(folder / MODEL, device=self.group.device).state_dict())
            after = {"dev": state.best_dev, "test": objective.scores("test")}
        except KeyboardInterrupt:
            say(f"stopped in the final evaluation, all {state.step} steps are saved: --resume {folder} repeats it")
            raise
        results = {"before": state.before, "after": after, "steps": state.step}
        with self.interrupts.defer():
            with atomic_file(folder / RESULTS) as partial:
                write_json(partial, results | {"training_seconds": round(state.seconds, 2)})
            for name in (STATE, LAST):
                shutil.rmtree(folder / name, ignore_errors=True)
        if self.options.plots:
            plots.curves([folder], folder / "curves.png")
            texts = [len(ids) for column in objective.encoded for ids in column.ids]
            plots.lengths(texts, objective.encoder.tokenizer.limit, folder / "lengths.png")
        print(f"\ntrained {state.step} steps in {duration(state.seconds)}; best by dev in {folder / MODEL}\n")
        print_table(state.before, after)
