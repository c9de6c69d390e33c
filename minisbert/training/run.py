"""Keep a run in progress: its state, its batches, what it records, and how it ends.

Of several processes only rank 0 prints and writes.
"""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch.optim import Optimizer

from minisbert.core import InputError
from minisbert.core.loop import Diverged, Step
from minisbert.models.guards import NotFinite
from minisbert.system import files
from minisbert.system.console import Interrupts, say
from minisbert.system.devices import random_state, set_random_state
from minisbert.system.files import naming
from minisbert.system.progress import Bar
from minisbert.training import LAST, MODEL, RESULTS, RUN_LOG, STATE, run_folder
from minisbert.training.distributed import ProcessGroup
from minisbert.training.objectives.base import Objective
from minisbert.training.settings import RunSettings

RECENT = 20  # losses in the mean that the bar shows


class Run:
    """Start a new run in a new folder, or continue a stopped one with ``options.resume``.

    As a context it turns Ctrl-C and SIGTERM into a ``KeyboardInterrupt`` between two steps, never within one.
    """

    def __init__(self, options: RunSettings, objective: Objective, optimizer: Optimizer, group: ProcessGroup):
        self.options, self.objective, self.optimizer, self.group = options, objective, optimizer, group
        self.interrupts, self.state = Interrupts(), run_folder.RunState()
        self.identity = run_folder.run_identity(objective, options)
        # another generator than dropout's, which must not change which rows meet
        self.order = torch.Generator().manual_seed(options.seed)
        # states of the random generators; "order" is that before the current epoch
        self.random = {"order": self.order.get_state()} | random_state(group.device)
        # drawn and counted: batches without repeated texts can be a few more than rows / batch size
        batches = objective.batches(options.batch_size, torch.Generator().manual_seed(options.seed))
        self.steps_per_epoch = len(batches)
        self.rows_per_step = mean(map(len, batches))
        self.total = self.steps_per_epoch * options.epochs
        if options.max_steps is not None:
            self.total = min(self.total, options.max_steps)
        self.batches: list[list[int]] = []  # of the current epoch; none before the first
        self.folder, self.log = Path(), None  # the log, metrics.jsonl, is rank 0's
        if options.resume:
            self.folder = Path(options.resume)
            self.log = run_folder.open_log(self.folder) if group.rank == 0 else None
            self._restore()
        elif group.rank == 0:
            self.folder, self.log = run_folder.create_folder(options, group.device, objective)
        self.began = time.monotonic() - self.state.seconds
        self.line = Bar(total=self.total, initial=self.state.step, unit=" steps", shown=group.rank == 0)

    def _restore(self) -> None:
        """Restore network, optimizer and random generators from the saved state."""
        try:
            self.state, self.random = run_folder.load_state(
                self.folder / STATE, self.objective.network, self.optimizer, self.identity
            )
            log = self.folder / RUN_LOG
            size = log.stat().st_size
            if size < self.state.logged:
                raise InputError(f"{log} was cut or replaced: it has {size} bytes, not {self.state.logged}")
        except BaseException:
            if self.log:
                self.log.close()  # which unlocks the run
            raise
        set_random_state(self.random, self.group.device)
        self.order.set_state(self.random["order"])

    def __enter__(self) -> "Run":
        self.interrupts.__enter__()
        if self.log:
            # lines after the saved state will be written again
            self.log.truncate(self.state.logged)
        return self

    def __exit__(self, *_: object) -> None:
        self.interrupts.__exit__()
        self.line.close()
        if self.log:
            with naming(self.log.name):
                self.log.close()

    @property
    def finished(self) -> bool:
        patience = self.options.patience
        return self.state.step >= self.total or (patience is not None and self.state.waited >= patience)

    @property
    def evaluation_due(self) -> bool:
        """True if it is time: every ``--eval-every`` steps or each epoch, and before training and at its end."""
        if self.state.evaluated == self.state.step:
            return False
        if self.finished or self.state.evaluated < 0:
            return True
        if self.options.eval_every:
            return self.state.step % self.options.eval_every == 0
        return 0 < len(self.batches) == self.state.position

    def epoch(self) -> list[list[int]]:
        """Return the remaining batches of the current epoch, or those of the next one."""
        with self.interrupts.defer():
            # not in the first call: a resumed run goes on within the epoch whose order was restored
            if self.batches:
                self.random["order"], self.state.position = self.order.get_state(), 0
            self.batches = self.objective.batches(self.options.batch_size, self.order)
            return self.batches[self.state.position :]

    def recorded(self, steps: Iterator[Step]) -> Iterator[Step]:
        """Yield the steps of ``fit``, each made and recorded as one: an interrupt waits for its end."""
        state, options, objective = self.state, self.options, self.objective
        while True:
            with self.interrupts.defer():
                started = time.monotonic()
                self.group.reseed(options.seed, state.step)
                objective.done = state.step / self.total
                try:
                    step = next(steps, None)
                except Diverged as error:
                    rows = self.batches[state.position]
                    shown = ", ".join(map(str, rows[:8])) + ", ..." * (len(rows) > 8)
                    advice = f"(training rows {shown}, counted from 0); a lower --lr or a longer --warmup may help"
                    raise Diverged(f"{error} {advice}") from error
                if step is None:
                    return
                if not state.tokens:  # the first step: what has no gradient now never has one
                    objective.check_gradients()
                state.step = step.number
                state.position += 1
                state.recent = [*state.recent[1 - RECENT :], step.loss]
                state.unlogged.append(step.loss)
                state.tokens += sum(objective.lengths[row] for row in step.batch)
                state.seconds += time.monotonic() - started
                self.random |= random_state(self.group.device)
                rate, speed = options.lr * step.multiplier, state.tokens / state.seconds
                if step.number % options.log_every == 0 or step.number == self.total:
                    loss, state.unlogged = mean(state.unlogged), []  # since the last such line
                    self.record(loss=loss, lr=rate, tokens_per_second=round(speed))
            shown = f"loss {mean(state.recent):.4f}, lr {rate:.2e}, {speed:,.0f} tokens/s"
            self.line.set_postfix_str(shown, refresh=False)
            self.line.update()
            yield step

    def record(self, **values: Any) -> None:
        """Write a line of ``metrics.jsonl``."""
        if self.log:
            epoch = round(self.state.step / self.steps_per_epoch, 3)
            with naming(self.log.name):
                self.log.write(json.dumps({"step": self.state.step, "epoch": epoch} | values) + "\n")
                self.log.flush()
            self.state.logged = self.log.tell()

    def evaluate(self) -> None:
        """Score dev, and save the model in ``model/`` if it is the best so far; the untrained one is the first."""
        state, objective, scores = self.state, self.objective, {}
        # outside defer(): this takes long, and nothing has changed yet if it is interrupted
        if self.group.rank == 0:
            try:
                scores = objective.scores("dev")
            except NotFinite as error:
                raise Diverged(f"step {state.step}: {error}; a lower --lr may help") from error
            if not state.before:
                state.before = {"dev": scores, "test": objective.scores("test")}
        # every process must know whether to stop, but only rank 0 has the score
        score = self.group.broadcast(scores.get(objective.best, 0.0))
        better = state.best is None or score > state.best
        with self.interrupts.defer():
            if self.group.rank == 0:
                self.line.clear()
                say(f"step {state.step:>5}  dev {objective.best} {100 * score:.2f}")
                if better:
                    run_folder.replace_model(objective.model, self.folder / MODEL)
            self.record(dev=scores)
            state.evaluated = state.step
            state.waited += 1
            if better:
                state.waited, state.best = 0, score
                state.best_step, state.best_dev = state.step, scores

    def save(self) -> None:
        """Save everything that ``--resume`` needs."""
        if self.group.rank == 0:
            with self.interrupts.defer():
                run_folder.save_state(
                    self.folder / STATE,
                    self.objective.network,
                    self.optimizer,
                    self.random,
                    self.state,
                    self.identity,
                )

    def stop(self, advice: str = "") -> None:
        """End the run early: save its state and its last weights; ``advice`` is instead of how to continue."""
        with suppress(OSError):  # the terminal may be what has gone
            self.line.clear()
        if self.group.rank != 0:
            return
        # a further request is already being served
        with suppress(KeyboardInterrupt), self.interrupts.defer():
            self.save()
            run_folder.replace_model(self.objective.model, self.folder / LAST)
            best = ""
            if (self.folder / MODEL).exists():
                best = f", the best model by dev in {self.folder / MODEL}"
            advice = advice or f"continue with --resume {self.folder}"
            say(f"stopped at step {self.state.step}: the last weights are in {self.folder / LAST}{best}; {advice}")

    def finish(self) -> None:
        """Write and print the best model's scores; delete what only a resumed run needs."""
        if self.group.rank != 0:
            return
        state, folder = self.state, self.folder
        try:
            # test is scored by the best model, which is loaded in place of the last one
            self.optimizer.zero_grad()
            self.optimizer.state.clear()  # room for a second copy of the model
            model = self.objective.model
            model.load_state_dict(type(model).load(folder / MODEL, device=self.group.device).state_dict())
            after = {"dev": state.best_dev, "test": self.objective.scores("test")}
        except KeyboardInterrupt:
            say(f"stopped in the final evaluation, all {state.step} steps are saved: --resume {folder} repeats it")
            raise
        results = {"before": state.before, "after": after, "steps": state.step}
        with self.interrupts.defer():
            with files.atomic_file(folder / RESULTS) as partial:
                files.write_json(partial, results | {"training_seconds": round(state.seconds, 2)})
            (folder / STATE).unlink(missing_ok=True)
            shutil.rmtree(folder / LAST, ignore_errors=True)
        best = f"best by dev, of step {state.best_step}, in {folder / MODEL}"
        if state.best_step == 0:
            best = f"none was better on dev than the untrained model, which is in {folder / MODEL}"
        training, evaluating = Bar.format_interval(state.seconds), Bar.format_interval(time.monotonic() - self.began)
        print(f"\ntrained {state.step} steps in {training}, {evaluating} with evaluation; {best}\n")
        run_folder.print_table(state.before, after)
