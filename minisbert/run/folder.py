"""A training run's folder and what it tells people: ``config.json``, ``metrics.jsonl``, ``results.json``, tables.

runs/NAME/config.json      every setting, resolved
runs/NAME/metrics.jsonl    a line for every so many steps and for every evaluation
runs/NAME/model/           the best model by dev
runs/NAME/state/           where to go on from (``--resume``), while the run is not finished
runs/NAME/last/            the weights as they were when a run was stopped
runs/NAME/results.json     scores before and after, once it is finished
"""

import argparse
import json
import shutil
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from minisbert import __version__
from minisbert.core import InputError
from minisbert.objectives.objective import Scores, Task
from minisbert.run import plots as plot
from minisbert.run.distributed import Team
from minisbert.run.state import (
    Interrupts,
    RunState,
    fingerprint,
    load_state,
    random_state,
    save_state,
    set_random_state,
)
from minisbert.system.console import LiveLine, duration, say
from minisbert.system.files import atomic_file, write_json

RECENT = 20  # losses that the live line's mean runs over
STATE, MODEL, LAST, METRICS, RESULTS = "state", "model", "last", "metrics.jsonl", "results.json"


def new_run(options: argparse.Namespace, device: torch.device, task: Task) -> Path:
    """The run's folder with its ``config.json``; ``InputError`` where it would overwrite something unasked."""
    stem = f"{Path(options.data).stem}-" if options.data else ""
    name = options.recipe or f"{stem}{options.objective}"
    out = Path(options.out or f"runs/{name}-{Path(options.model).name}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if not options.overwrite:
            going_on = f", --resume {out} to go on with it" if (out / STATE).is_dir() else ""
            raise InputError(f"{out} exists: choose another --out{going_on}, or --overwrite to replace that run")
        if not (out / METRICS).is_file():
            raise InputError(f"{out} is not the folder of a run (it has no {METRICS}) and is not overwritten")
        for file in ("config.json", METRICS, RESULTS):
            (out / file).unlink(missing_ok=True)
        for folder in (MODEL, LAST, STATE):
            shutil.rmtree(out / folder, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    resolved = {"out": str(out), "device": str(device), "minisbert": __version__, "torch": torch.__version__}
    write_json(out / "config.json", vars(options) | {"rows": task.notes, "best_metric": task.best} | resolved)
    return out


class Run:
    """A run under way: where it stands (``now``), its batches, and what it writes. Of a team only the leader writes.

    As a context it turns Ctrl-C and SIGTERM into a ``KeyboardInterrupt`` that never comes within ``held()``.
    """

    def __init__(self, options: argparse.Namespace, task: Task, optimizer: torch.optim.Optimizer, team: Team):
        self.task, self.optimizer, self.team = task, optimizer, team
        self.batch_size, self.seed, self.plots = options.batch_size, options.seed, options.plots
        self.now, self.rows = RunState(), fingerprint(task.encoded)
        self.order = torch.Generator().manual_seed(self.seed)  # its own: dropout must not change which rows meet
        if options.resume:
            self.out = Path(options.resume)
            self.now, self.random = load_state(self.out / STATE, task.network, optimizer, self.rows)
            self.order.set_state(self.random["order"])
            set_random_state(self.random, team.device)
        else:
            self.out = new_run(options, team.device, task) if team.leader else Path()
            self.random = {"order": self.order.get_state()} | random_state(team.device)
        if not team.leader:
            torch.manual_seed(self.seed + (team.rank << 32) + self.now.step)  # dropout masks of its own
        # counted, not computed: batches without repeated texts can be a few more than rows / batch size
        self.steps_per_epoch = len(task.batches(self.batch_size, torch.Generator().manual_seed(self.seed)))
        self.started = False
        self.interrupts, self.line = Interrupts(), LiveLine()
        self.log = open(self.out / METRICS, "a", encoding="utf-8") if team.leader else None  # noqa: SIM115
        if self.log:
            self.log.truncate(self.now.logged)  # what the state has not seen comes again

    def __enter__(self) -> "Run":
        self.interrupts.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.interrupts.__exit__()
        self.line.clear()
        if self.log:
            self.log.close()

    def held(self) -> AbstractContextManager[None]:
        """What is done within is done as a whole; an interrupt waits."""
        return self.interrupts.held()

    def epoch(self) -> list[list[int]]:
        """The batches of the epoch under way that are left, or of the next one."""
        with self.held():
            if self.started:
                self.random["order"], self.now.position = self.order.get_state(), 0
            self.started = True
            return self.task.batches(self.batch_size, self.order)[self.now.position :]

    def stepped(self, rows: list[int], loss: float, seconds: float) -> None:
        """One step is done."""
        now = self.now
        now.step += 1
        now.position += 1
        now.recent = [*now.recent[1 - RECENT :], loss]
        now.unlogged.append(loss)
        now.tokens += sum(self.task.lengths[row] for row in rows)
        now.seconds += seconds
        self.random |= random_state(self.team.device)

    def show(self, total: int, lr: float) -> None:
        """The live line."""
        now = self.now
        if self.team.leader:
            left = duration((total - now.step) * now.seconds / now.step)
            self.line.show(
                f"step {now.step:>5} of {total}  loss {mean(now.recent):.4f}  lr {lr:.2e}  "
                f"{now.tokens / now.seconds:,.0f} tokens/s  {left} left"
            )

    def record(self, **values: Any) -> None:
        """A line of ``metrics.jsonl``."""
        if self.log:
            epoch = round(self.now.step / self.steps_per_epoch, 3)
            self.log.write(json.dumps({"step": self.now.step, "epoch": epoch} | values) + "\n")
            self.log.flush()
            self.now.logged = self.log.tell()

    def record_losses(self, lr: float) -> None:
        """The mean loss since the last such line."""
        now = self.now
        with self.held():
            loss, now.unlogged = mean(now.unlogged), []
            self.record(loss=loss, lr=lr, tokens_per_second=round(now.tokens / now.seconds))

    def evaluate(self) -> None:
        """Scores on dev; the best model so far, the untrained one included, stands in ``model/``."""
        now, task = self.now, self.task
        scores = task.evaluate("dev") if self.team.leader else {}
        if self.team.leader and not now.before:
            now.before = {"dev": scores, "test": task.evaluate("test")}
        score = self.team.agree(scores.get(task.best, 0.0))
        better = now.best is None or score > now.best
        with self.held():
            if self.team.leader:
                self.line.clear()
                say(f"step {now.step:>5}  dev {task.best} {100 * score:.2f}")
                if better:
                    task.model.save(self.out / MODEL)
            self.record(dev=scores)
            now.evaluated, now.waited = now.step, 0 if better else now.waited + 1
            now.best = score if better else now.best

    def save(self) -> None:
        """All that is needed to go on from here."""
        if self.team.leader:
            with self.held():
                save_state(self.out / STATE, self.task.network, self.optimizer, self.random, self.now, self.rows)

    def stopped(self) -> None:
        """Before its time: nothing is lost."""
        self.line.clear()
        if not self.team.leader:
            return
        with suppress(KeyboardInterrupt), self.held():  # one that comes now is asked and answered already
            self.save()
            self.task.model.save(self.out / LAST)
            best = f", the best by dev in {self.out / MODEL}" if (self.out / MODEL).exists() else ""
            say(
                f"stopped at step {self.now.step}: its weights are in {self.out / LAST}{best}; "
                f"--resume {self.out} goes on as if it had not been stopped"
            )

    def finish(self) -> None:
        """The best model's scores to ``results.json`` and to people; what the run needed on its way goes."""
        now, task = self.now, self.task
        if not self.team.leader:
            return
        self.optimizer.zero_grad()
        self.optimizer.state.clear()  # room for a second copy of the model
        task.model.load_state_dict(type(task.model).load(self.out / MODEL, device=self.team.device).state_dict())
        after = {split: task.evaluate(split) for split in ("dev", "test")}
        results = {"before": now.before, "after": after, "steps": now.step, "training_seconds": round(now.seconds, 2)}
        with atomic_file(self.out / RESULTS) as partial:
            write_json(partial, results)
        for folder in (STATE, LAST):
            shutil.rmtree(self.out / folder, ignore_errors=True)
        if self.plots:
            plot.curves([self.out], self.out / "curves.png")
            texts = [len(ids) for column in task.encoded for ids in column.ids]
            plot.lengths(texts, task.encoder.tokenizer.limit, self.out / "lengths.png")
        print(f"\ntrained {now.step} steps in {duration(now.seconds)}; best by dev in {self.out / MODEL}\n")
        print_table(now.before, after)


def describe(options: argparse.Namespace, task: Task, counts: tuple[int, int], total: int, precision: str) -> None:
    """What is about to happen, in a few lines. ``counts``: parameters, and how many are not frozen."""
    encoder, (parameters, trainable) = task.encoder, counts
    idle = sum(parameter.numel() for parameter in task.idle())
    frozen = "" if trainable == parameters else f" ({trainable:,} trainable)"
    unused = f", {idle:,} of them not used" if idle else ""
    say(
        f"model  {options.model}, {encoder.pooling.mode} pooling, {parameters:,} parameters{frozen}{unused}, "
        f"{encoder.device}"
    )
    say("data   " + ", ".join(f"{split} {note}" for split, note in task.notes.items()))
    say(f"plan   {total} steps of {options.batch_size} rows, AdamW {options.lr:g}, {precision}, seed {options.seed}")
    if task.truncated:
        texts = sum(len(encoded) for encoded in task.encoded)
        say(encoder.tokenizer.cut_message(task.truncated, texts))


def print_table(before: dict[str, Scores], after: dict[str, Scores]) -> None:
    """Every metric on dev and test, before training and of the best model."""
    print(f"{'x 100':<16}{'dev':>17}{'test':>19}")
    for metric in [metric for metric in before["dev"] if metric in before["test"]]:  # alignment needs alike pairs
        shown = [f"{100 * before[split][metric]:.2f} -> {100 * after[split][metric]:.2f}" for split in ("dev", "test")]
        print(f"{metric:<16}{shown[0]:>17}{shown[1]:>19}")
