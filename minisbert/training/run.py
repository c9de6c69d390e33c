"""Keep a run in progress: its folder, its state, its batches, what it records, and how it ends.

runs/NAME/config.json         every setting, resolved
runs/NAME/metrics.jsonl       a line every few steps and for every evaluation
runs/NAME/model/              the best model by dev
runs/NAME/state.safetensors   for ``--resume``, until the run is finished
runs/NAME/last/               the last weights, of a stopped run, or if those of model/ are earlier ones
runs/NAME/results.json        scores before and after, once it is finished

Of several processes only rank 0 prints and writes.
"""

import dataclasses
import hashlib
import json
import os
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, TextIO

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.optim import Optimizer

from minisbert import __version__
from minisbert.checkpoints.card import training_section
from minisbert.checkpoints.weights import read_safetensors, write_safetensors
from minisbert.core import InputError, one_line
from minisbert.core.loop import Diverged, Step
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.text_encoder import NotFinite
from minisbert.system import files
from minisbert.system.assets import file_hash, local_path
from minisbert.system.console import Interrupts, say
from minisbert.system.devices import random_state, set_random_state
from minisbert.system.files import naming
from minisbert.system.progress import Bar
from minisbert.system.reading import reading
from minisbert.training import LAST, MODEL, RESULTS, RUN_CONFIG, RUN_LOG, STATE
from minisbert.training.distributed import ProcessGroup, processes, say_once
from minisbert.training.objectives import Objective, Scores
from minisbert.training.settings import FREE, RunSettings, command_of

NEW = ".new"  # behind the name of a model that is not in its place yet
FORMER = "model.former"  # the best model of the saved state, if there has been a better one since
RECENT = 20  # losses in the mean that the bar shows

# ----------------------------------------------------------------------------------------- the
# folder


def create_folder(
    options: RunSettings, device: torch.device, objective: Objective
) -> tuple[Path, TextIO]:
    """Create the run's folder and its ``config.json``; return the folder and its locked, empty
    ``metrics.jsonl``.

    ``--overwrite`` deletes the run that is there. Raises ``InputError`` for a run without
    ``--overwrite``, a run that another process is training, and a folder with other files and no
    run.
    """
    name = options.recipe or options.objective
    if options.data and not options.recipe:
        name = f"{Path(options.data).stem}-{options.objective}"
    out = Path(options.out or f"runs/{name}-{Path(options.model).name}")
    path = os.path.realpath(out)
    if path.encode(errors="ignore") != os.fsencode(path):  # safetensors writes to no other path
        raise InputError(f"--out {one_line(out)}: the path is not UTF-8; choose another one")
    files.check_output(
        out, local_path(options.model), options.teacher, options.data, options.dev, options.test
    )

    out.mkdir(parents=True, exist_ok=True)
    found = {path.name for path in out.iterdir()}
    if found and RUN_LOG not in found:
        raise InputError(
            f"{out} is not the folder of a run (it has no {RUN_LOG}): choose another --out"
        )
    log = open_log(out)
    try:
        # a log alone is left by a run that ended before its first line
        if found - {RUN_LOG} and not options.overwrite:
            advice = "--overwrite to delete that run"
            if STATE in found:
                advice = f"--resume {out} to continue it, or {advice}"
            raise InputError(f"{out} exists: choose another --out, or {advice}")
        # the log is emptied and not deleted, since it holds the lock; the user's own files stay
        log.truncate(0)
        for name in (RESULTS, STATE, RUN_CONFIG):
            (out / name).unlink(missing_ok=True)
        for name in (MODEL, FORMER, LAST):
            shutil.rmtree(out / name, ignore_errors=True)
        resolved = {
            "out": str(out),
            "device": str(device),
            "minisbert": __version__,
            "torch": torch.__version__,
        }
        config = vars(options) | {"rows": objective.notes, "best_metric": objective.best} | resolved
        files.write_json(out / RUN_CONFIG, config)
    except BaseException:
        log.close()
        raise
    return out, log


def open_log(out: Path) -> TextIO:
    """Open a run's ``metrics.jsonl`` to append to, locked until it is closed; ``InputError`` if it
    is locked.

    Whoever holds it is alone in the folder, so what a killed process was writing there is removed.
    """
    log = open(out / RUN_LOG, "a", encoding="utf-8")  # noqa: SIM115 - it stays open as long as the run
    try:
        files.lock(log)
    except BlockingIOError as error:
        log.close()
        raise InputError(
            f"{out}: another process is training this run; wait for it to finish, or stop it"
        ) from error
    for path in (*out.glob(f".*.{files.PARTIAL}*"), out / f"{MODEL}{NEW}", out / f"{LAST}{NEW}"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return log


def replace_model(
    model: SentenceEncoder | PairModel, folder: Path, former: Path | None = None
) -> None:
    """Save a model in place of the one at ``folder``; a kill at any moment leaves one of them
    complete.

    A ``README.md`` there that the user wrote is kept. The old one goes to ``former``, unless
    something is there.
    """
    new = folder.with_name(folder.name + NEW)
    model.save(new)
    model.write_card(new, former=folder)
    if former and folder.is_dir() and not former.exists():
        folder.rename(former)
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


def weights_hash(model: Path) -> str:
    """Hash the weights in a model's folder; "" if there are none."""
    return " ".join(map(file_hash, sorted(model.rglob("*.safetensors"))))


# -------------------------------------------------------------------------------- the state for
# --resume


@dataclass
class RunState:
    """The progress of a run, without tensors."""

    step: int = 0  # optimizer steps taken
    position: int = 0  # batches of the current epoch already used
    before: dict[str, dict[str, float]] = field(
        default_factory=dict
    )  # scores of dev and test before training
    evaluated: int = -1  # the step of the last evaluation on dev
    last: float = 0.0  # its score
    best: float | None = None  # dev score of the best model
    best_step: int = 0  # the step of that evaluation; 0 is the untrained model
    best_dev: dict[str, float] = field(default_factory=dict)  # all its dev scores
    best_hash: str = ""  # of its weights
    waited: int = 0  # evaluations since the best
    tokens: int = 0
    seconds: float = 0.0  # of training, without evaluation
    recent: list[float] = field(default_factory=list)  # last losses, for the progress line
    unlogged: list[float] = field(
        default_factory=list
    )  # losses since the last line of metrics.jsonl
    logged: int = 0  # length of metrics.jsonl in bytes


def save_state(
    path: Path,
    network: nn.Module,
    optimizer: Optimizer,
    randomness: dict[str, Tensor],
    progress: RunState,
    data: str,
) -> None:
    """Atomically replace the state at ``path``. ``data`` identifies the run (``run_identity``)."""
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    for name, tensor in randomness.items():
        tensors[f"random.{name}"] = tensor
    for name, parameter in network.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{name}.{key}"] = value
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    about: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "processes": processes(),
    }
    about |= {"data": data, "progress": dataclasses.asdict(progress)}
    about["sha256"] = content_hash(tensors, about)
    with files.atomic_file(path) as partial:
        write_safetensors(tensors, partial, {"run": json.dumps(about)})


def load_state(
    path: Path, network: nn.Module, optimizer: Optimizer, data: str
) -> tuple[RunState, dict[str, Tensor]]:
    """Restore network and optimizer in place; return the progress and the states of the random
    generators.

    Raises ``InputError`` if the state is damaged or belongs to another network, optimizer or data.
    Also restores the number of threads: another number splits sums differently, which changes their
    last bits.
    """
    tensors = read_safetensors(path)
    with reading(path), safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["run"])
        stored = about.pop("sha256")
    if content_hash(tensors, about) != stored:
        raise InputError(
            f"{path} is damaged or was edited: its contents do not have the sha256 that it gives"
        )
    if about["progress"].keys() != vars(RunState()).keys():
        raise InputError(
            f"{path} was written by another version: its progress is {', '.join(about['progress'])}"
        )
    progress = RunState(**about["progress"])
    # nothing is changed before everything has been checked: a refusal leaves network and optimizer
    # as they were
    if about["data"] != data:
        raise InputError(
            f"{path}: the training rows, dev, test, the model or config.json have changed since "
            f"the run started"
        )
    try:
        # strict, and into the existing memory
        network.load_state_dict(with_prefix("network.", tensors))
    except RuntimeError as error:
        raise InputError(f"{path} is the state of another network: {error}") from error
    # the optimizer numbers its parameters group by group; their names do not depend on that order
    names = {parameter: name for name, parameter in network.named_parameters()}
    moments: dict[int, dict[str, Tensor]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            moments[len(moments)] = with_prefix(f"optimizer.{names[parameter]}.", tensors)
    if any(moments.values()):  # none before the first step
        optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})
    if about["torch"] != torch.__version__:
        say_once(
            f"torch is {torch.__version__}, the run started with {about['torch']}: the last bits "
            f"may differ"
        )
    if about["processes"] != processes():
        say_once(
            f"processes: {processes()}, before {about['processes']}: the dropout masks will differ"
        )
    torch.set_num_threads(about["threads"])
    return progress, with_prefix("random.", tensors)


def with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose name starts with ``prefix``, under the rest of the name."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def content_hash(tensors: dict[str, Tensor], about: dict[str, Any]) -> str:
    """Hash the JSON settings and every tensor: name, dtype, shape and bytes (sha256)."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def run_identity(objective: Objective, options: RunSettings) -> str:
    """Hash what must be the same when a run is resumed, or it would not have the numbers of an
    uninterrupted one.

    These are the training rows as tokens, their targets, the dev and test rows, the encoder's and
    the run's settings.
    """
    encoder = objective.encoder
    settings = {name: value for name, value in vars(options).items() if name not in FREE}
    # subtle: not options.device, which "auto" may have been, and not its index: another GPU of the
    # kind is the same
    settings["device"] = encoder.device.type
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    after = (
        encoder.normalize,
        [layer.activation for layer in encoder.dense],
        encoder.settings,
        objective.taught,
    )
    digest.update(repr((encoder.bert.config, encoder.pooling_mode, after)).encode())
    for column in objective.encoded:
        for ids, types in zip(column.ids, column.token_types, strict=True):
            digest.update(np.array([len(ids), *ids, *types], dtype=np.int32).tobytes())
    # a teacher's targets may change in their last bits with the number of threads: its own hash
    # stands for them
    if objective.targets is not None and not objective.taught:
        digest.update(objective.targets.cpu().numpy().tobytes())
    for split in ("dev", "test"):
        digest.update(repr((objective.rows.get(split), objective.retrieval.get(split))).encode())
    return digest.hexdigest()


# ------------------------------------------------------------------------------------------- the
# run


class Run:
    """Start a new run in a new folder, or continue a stopped one with ``options.resume``.

    As a context it turns Ctrl-C and SIGTERM into a ``KeyboardInterrupt`` between two steps, never
    within one.
    """

    def __init__(
        self, options: RunSettings, objective: Objective, optimizer: Optimizer, group: ProcessGroup
    ):
        self.options, self.objective, self.optimizer, self.group = (
            options,
            objective,
            optimizer,
            group,
        )
        self.interrupts, self.state = Interrupts(), RunState()
        self.identity = run_identity(objective, options)
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
            self.log = open_log(self.folder) if group.rank == 0 else None
            self._restore()
        elif group.rank == 0:
            self.folder, self.log = create_folder(options, group.device, objective)
        self.began = time.monotonic() - self.state.seconds
        self.line = Bar(
            total=self.total, initial=self.state.step, unit=" steps", shown=group.rank == 0
        )

    def _restore(self) -> None:
        """Restore network, optimizer and random generators from the saved state."""
        try:
            self.state, self.random = load_state(
                self.folder / STATE, self.objective.network, self.optimizer, self.identity
            )
            if self.log:
                self._keep_best()
            log = self.folder / RUN_LOG
            size = log.stat().st_size
            if size < self.state.logged:
                raise InputError(
                    f"{log} was cut or replaced: it has {size} bytes, not {self.state.logged}"
                )
        except BaseException:
            if self.log:
                self.log.close()  # which unlocks the run
            raise
        set_random_state(self.random, self.group.device)
        self.order.set_state(self.random["order"])

    def _keep_best(self) -> None:
        """Keep the best model of the state: a killed run may have had a better one, which is found
        again.
        """
        model, former = self.folder / MODEL, self.folder / FORMER
        if former.is_dir() and weights_hash(model) != self.state.best_hash:
            shutil.rmtree(model, ignore_errors=True)
            former.rename(model)
        shutil.rmtree(former, ignore_errors=True)
        if weights_hash(model) != self.state.best_hash and self.state.best is not None:
            raise InputError(
                f"{model} is gone, or is not the model that was best: begin anew with --overwrite"
            )

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
        return self.state.step >= self.total or (
            patience is not None and self.state.waited >= patience
        )

    @property
    def evaluation_due(self) -> bool:
        """True if it is time: every ``--eval-every`` steps or each epoch, and before training and
        at its end.
        """
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
        """Yield the steps of ``fit``, each made and recorded as one: an interrupt waits for its
        end.
        """
        state, options, objective = self.state, self.options, self.objective
        while True:
            with self.interrupts.defer():
                started = time.monotonic()
                self.group.reseed(options.seed, state.step)
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
                self.log.write(
                    json.dumps({"step": self.state.step, "epoch": epoch} | values) + "\n"
                )
                self.log.flush()
            self.state.logged = self.log.tell()

    def evaluate(self) -> None:
        """Score dev, and save the model in ``model/`` if it is the best so far; the untrained one
        is the first.
        """
        state, objective, scores = self.state, self.objective, {}
        # outside defer(): this takes long, and nothing has changed yet if it is interrupted
        if self.group.rank == 0:
            try:
                scores = objective.scores("dev")
            except NotFinite as error:
                raise Diverged(f"step {state.step}: {error}; a lower --lr may help") from error
            if not state.before:
                state.before = {"dev": scores, "test": objective.scores("test")}
        # every process must know whether to stop, but only rank 0 has the score; without dev rows
        # it is always 0
        score = self.group.broadcast(scores.get(objective.best, 0.0))
        better = state.best is None or score > state.best
        # of two equal ones the later, so that without dev rows the last is kept
        kept = better or score == state.best
        with self.interrupts.defer():
            if self.group.rank == 0:
                if scores:
                    self.line.clear()
                    say(f"step {state.step:>5}  dev {objective.best} {100 * score:.2f}")
                if kept:
                    replace_model(objective.model, self.folder / MODEL, self.folder / FORMER)
                    state.best_hash = weights_hash(self.folder / MODEL)
            self.record(dev=scores)
            state.evaluated, state.last = state.step, score
            state.waited = 0 if better else state.waited + 1
            if kept:
                state.best, state.best_step, state.best_dev = score, state.step, scores

    def save(self) -> None:
        """Save everything that ``--resume`` needs."""
        if self.group.rank == 0:
            with self.interrupts.defer():
                network, state = self.objective.network, self.folder / STATE
                save_state(state, network, self.optimizer, self.random, self.state, self.identity)
                if (self.folder / FORMER).is_dir():
                    self._keep_best()

    def stop(self, advice: str = "") -> None:
        """End the run early: save its state and its last weights; ``advice`` is instead of how to
        continue.
        """
        with suppress(OSError):  # the terminal may be what has gone
            self.line.clear()
        if self.group.rank != 0:
            return
        # a further request is already being served
        with suppress(KeyboardInterrupt), self.interrupts.defer():
            self.save()
            replace_model(self.objective.model, self.folder / LAST)
            best = ""
            if (self.folder / MODEL).exists():
                best = f", the best model by dev in {self.folder / MODEL}"
            advice = advice or f"continue with --resume {self.folder}"
            say(
                f"stopped at step {self.state.step}: the last weights are in "
                f"{self.folder / LAST}{best}; {advice}"
            )

    def finish(self) -> None:
        """Write and print the best model's scores; delete what only a resumed run needs."""
        if self.group.rank != 0:
            return
        state, folder, objective = self.state, self.folder, self.objective
        try:
            if state.best_step < state.step:
                replace_model(objective.model, folder / LAST)
            # test is scored by the best model, which is loaded in place of the last one
            self.optimizer.zero_grad()
            self.optimizer.state.clear()  # room for a second copy of the model
            model = objective.model
            model.load_state_dict(
                type(model).load(folder / MODEL, device=self.group.device).state_dict()
            )
            after = {"dev": state.best_dev, "test": objective.scores("test")}
        except KeyboardInterrupt:
            say(
                f"stopped in the final evaluation, all {state.step} steps are saved: --resume "
                f"{folder} repeats it"
            )
            raise
        results = {"before": state.before, "after": after, "steps": state.step}
        splits = {split: (scores, after[split]) for split, scores in state.before.items()}
        card = training_section(shlex.join(command_of(self.options)), objective.notes, splits)
        with self.interrupts.defer():
            model.write_card(folder / MODEL, card)
            with files.atomic_file(folder / RESULTS) as partial:
                files.write_json(partial, results | {"training_seconds": round(state.seconds, 2)})
            (folder / STATE).unlink(missing_ok=True)
            if state.best_step == state.step:  # of an earlier stop
                shutil.rmtree(folder / LAST, ignore_errors=True)
        training, evaluating = (
            Bar.format_interval(state.seconds),
            Bar.format_interval(time.monotonic() - self.began),
        )
        print(f"\ntrained {state.step} steps in {training}, {evaluating} with evaluation")
        scores = f"{objective.best} {100 * (state.best or 0):.2f}"
        if not state.best_dev:
            print(f"no dev rows: the model of step {state.step} is in {folder / MODEL}")
        elif state.best_step:
            print(f"best on dev: step {state.best_step}, {scores}, in {folder / MODEL}")
        else:
            advice = "try more --epochs, a higher --lr or another --objective"
            print(
                f"none was better on dev than the untrained model, {scores}, in {folder / MODEL}: "
                f"{advice}"
            )
        if state.best_step < state.step:
            print(
                f"last: step {state.step}, {objective.best} {100 * state.last:.2f}, in "
                f"{folder / LAST}"
            )
        print()
        print_table(state.before, after)


# what rows of the table say
MEANINGS = {
    "accuracy@1": "queries whose first text is a right one",
    "recall@10": "right texts among the first ten",
    "mrr@10": "1 / rank of the first right text",
    "ndcg@10": "right texts near the top of ten",
    "map@100": "precision at each right text of a hundred",
}


def print_table(before: dict[str, Scores], after: dict[str, Scores]) -> None:
    """Print every metric on dev and test, before training and of the best model; the loss is in
    ``results.json``.
    """
    metrics = [
        metric for metric in dict.fromkeys([*after["dev"], *after["test"]]) if metric != "loss"
    ]
    widths = {split: width for split, width in (("dev", 17), ("test", 19)) if before[split]}
    if widths:
        print(f"{'x 100':<16}" + "".join(f"{split:>{width}}" for split, width in widths.items()))
    for metric in metrics:
        cells = ""
        for split, width in widths.items():
            shown = ""
            if metric in after[split]:  # test may have no qrels for a search
                first, then = before[split][metric], after[split][metric]
                shown = f"{100 * first:.2f} -> {100 * then:.2f}"
            cells += f"{shown:>{width}}"
        print(f"{metric:<16}{cells}   {MEANINGS.get(metric, '')}".rstrip())
