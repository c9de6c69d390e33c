"""A training run's folder, and its table of scores.

runs/NAME/config.json      every setting, resolved
runs/NAME/metrics.jsonl    a line every few steps and for every evaluation
runs/NAME/model/           the best model by dev
runs/NAME/state/           for ``--resume``, until the run is finished
runs/NAME/last/            the weights at the moment a run was stopped
runs/NAME/results.json     scores before and after, once it is finished

With ``--overwrite`` a run is made in ``runs/NAME.replacement/`` and moves to ``runs/NAME/`` when it is finished.
"""

import dataclasses
import hashlib
import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from minisbert import __version__
from minisbert.checkpoints.save import SAVED
from minisbert.checkpoints.weights import write_safetensors
from minisbert.core import InputError, one_line, read_json, reading
from minisbert.core.weights import read_safetensors
from minisbert.system.assets import local_path
from minisbert.system.files import (
    atomic_file,
    atomic_folder,
    check_output,
    foreign_entries,
    listed,
    lock,
    recover,
    remove_leftovers,
    write_json,
)
from minisbert.training.distributed import processes, say_once
from minisbert.training.objectives.base import Objective, Scores
from minisbert.training.settings import FREE, RunSettings

CONFIG, METRICS, RESULTS = "config.json", "metrics.jsonl", "results.json"
MODEL, LAST, STATE = "model", "last", "state"
STATE_FILES = ("state.safetensors", "state.json")
REPLACEMENT = ".replacement"


def create_folder(options: RunSettings, device: torch.device, objective: Objective) -> tuple[Path, TextIO]:
    """The run's folder with its ``config.json``, and its locked, empty ``metrics.jsonl``.

    Raises ``InputError`` rather than overwrite a run without ``--overwrite``, a folder that is not a run's, or files
    that no run wrote.
    """
    out = chosen_path(options)
    # a run may replace the one whose model it reads, but not lie in a model
    check_output(out / METRICS, local_path(options.model), options.teacher, options.data, options.dev, options.test)
    out.mkdir(parents=True, exist_ok=True)
    folder = out
    if {path.name for path in out.iterdir()} - {METRICS}:
        check_replaceable(out, options.overwrite)
        path = Path(os.path.realpath(out))
        folder = path.with_name(path.name + REPLACEMENT)
        folder.mkdir(exist_ok=True)
    log = open_log(folder)
    try:
        for name in (MODEL, LAST, STATE):  # of an earlier replacement that was not finished
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / RESULTS).unlink(missing_ok=True)
        log.truncate(0)  # and not removed: it holds the lock
        resolved = {"out": str(out), "device": str(device), "minisbert": __version__, "torch": torch.__version__}
        config = vars(options) | {"rows": objective.notes, "best_metric": objective.best} | resolved
        write_json(folder / CONFIG, config)
    except BaseException:
        log.close()
        raise
    return folder, log


def chosen_path(options: RunSettings) -> Path:
    """``--out``, or a folder in ``runs/`` that is named after the recipe, or data and objective, and the model."""
    name = options.recipe or options.objective
    if options.data and not options.recipe:
        name = f"{Path(options.data).stem}-{options.objective}"
    out = Path(options.out or f"runs/{name}-{Path(options.model).name}")
    path = os.path.realpath(out)
    if path.encode(errors="ignore") != os.fsencode(path):  # safetensors writes to no such path
        raise InputError(f"--out {one_line(out)}: the path is not UTF-8; choose another one")
    return out


def check_replaceable(out: Path, overwrite: bool) -> None:
    """Raise ``InputError`` unless ``out`` is a run that may be replaced, at rest, without files of others in it."""
    if not (out / METRICS).is_file():
        raise InputError(f"{out} is not the folder of a run (it has no {METRICS}): choose another --out")
    open_log(out).close()
    if not overwrite:
        advice = "--overwrite to replace that run"
        if (out / STATE).is_dir():
            advice = f"--resume {out} to continue it, or {advice}"
        raise InputError(f"{out} exists: choose another --out, or {advice}")
    for name, written in ((MODEL, SAVED), (LAST, SAVED), (STATE, STATE_FILES)):
        foreign = foreign_entries(out / name, written)
        if foreign:
            raise InputError(f"{out / name} holds files that no run wrote ({listed(foreign)}): move them elsewhere")


def finish_folder(folder: Path, results: dict[str, Any]) -> Path:
    """Write ``results.json`` and delete what only a resumed run needs; return the folder, which may have moved."""
    with atomic_file(folder / RESULTS) as partial:
        write_json(partial, results)
    for name in (STATE, LAST):
        shutil.rmtree(folder / name, ignore_errors=True)
    return publish(folder)


def publish(folder: Path) -> Path:
    """Move a finished run over the one that it replaces, if it does; return the folder where it is now."""
    folder = Path(os.path.realpath(folder))
    out = folder.with_name(folder.name.removesuffix(REPLACEMENT))
    if out == folder or not out.is_dir():
        return folder
    for name in (LAST, STATE):
        shutil.rmtree(out / name, ignore_errors=True)
    for name in (MODEL, METRICS, CONFIG, RESULTS):  # results.json last: if killed, --resume goes on here
        if (folder / name).exists():
            if (out / name).is_symlink():
                (out / name).unlink()
            shutil.rmtree(out / name, ignore_errors=True)
            (folder / name).replace(out / name)
    with suppress(OSError):  # somebody has put files there
        folder.rmdir()
    return out


def open_log(out: Path) -> TextIO:
    """A run's ``metrics.jsonl``, to append to, locked until it is closed; ``InputError`` if another process has it."""
    log = open(out / METRICS, "a", encoding="utf-8")  # noqa: SIM115 - it stays open as long as the run
    try:
        lock(log)
    except BlockingIOError as error:
        log.close()
        raise InputError(f"{out}: another process is training this run; wait for it to finish, or stop it") from error
    for name in (STATE, MODEL, LAST, RESULTS):
        remove_leftovers(out / name)
    return log


def recover_run(out: Path) -> None:
    """Restore what processes of this run were replacing when they were killed; another one may be saving now."""
    for name in (STATE, MODEL, LAST, RESULTS):
        recover(out / name)


def print_table(before: dict[str, Scores], after: dict[str, Scores]) -> None:
    """Every metric on dev and test, before training and of the best model; the loss is in ``results.json``."""
    print(f"{'x 100':<16}{'dev':>17}{'test':>19}")
    for metric in dict.fromkeys([*before["dev"], *before["test"]]):
        if metric == "loss":
            continue
        shown = {"dev": "", "test": ""}
        for split in shown:  # test may have no alike pairs for alignment, no qrels for a search, or no rows at all
            if metric in before[split]:
                shown[split] = f"{100 * before[split][metric]:.2f} -> {100 * after[split][metric]:.2f}"
        print(f"{metric:<16}{shown['dev']:>17}{shown['test']:>19}".rstrip())


@dataclass
class RunState:
    """The progress of a run, without tensors."""

    step: int = 0  # optimizer steps taken
    position: int = 0  # batches of the current epoch already used
    before: dict[str, dict[str, float]] = field(default_factory=dict)  # scores of dev and test before training
    evaluated: int = -1  # the step of the last evaluation on dev
    best: float | None = None  # dev score of the best model
    best_step: int = 0  # the step of that evaluation; 0 is the untrained model
    best_dev: dict[str, float] = field(default_factory=dict)  # all its dev scores
    waited: int = 0  # evaluations since the best
    tokens: int = 0
    seconds: float = 0.0  # of training, without evaluation
    recent: list[float] = field(default_factory=list)  # last losses, for the progress line
    unlogged: list[float] = field(default_factory=list)  # losses since the last line of metrics.jsonl
    logged: int = 0  # length of metrics.jsonl in bytes


def save_state(
    folder: Path, network: nn.Module, optimizer: Optimizer, randomness: dict[str, Tensor], progress: RunState, data: str
) -> None:
    """Atomically replace the state at ``folder``. ``data`` identifies the run (``identity``)."""
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    for name, tensor in randomness.items():
        tensors[f"random.{name}"] = tensor
    for name, parameter in network.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{name}.{key}"] = value
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    about = {"threads": torch.get_num_threads(), "torch": torch.__version__, "processes": processes(), "data": data}
    about["progress"] = dataclasses.asdict(progress)
    with atomic_folder(folder) as partial:
        write_safetensors(tensors, partial / "state.safetensors")
        write_json(partial / "state.json", about | {"sha256": content_hash(tensors, about)})


def load_state(folder: Path, network: nn.Module, optimizer: Optimizer, data: str) -> tuple[RunState, dict[str, Tensor]]:
    """Restore network and optimizer in place; return the progress and the states of the random generators.

    Raises ``InputError`` if the state is damaged or belongs to another network, optimizer or data. Also restores
    the number of threads: another number splits sums differently, which changes their last bits.
    """
    about = read_json(folder / "state.json")
    with reading(folder / "state.json"):
        stored = about.pop("sha256")
    tensors = read_safetensors(folder / "state.safetensors")
    if content_hash(tensors, about) != stored:
        raise InputError(f"{folder} is damaged or was edited: its contents do not have the sha256 in state.json")
    with reading(folder / "state.json"):
        progress = RunState(**about["progress"])
    if about["data"] != data:
        raise InputError(
            f"{folder}: the training rows, dev, test, the model or config.json have changed since the run started"
        )
    try:
        network.load_state_dict(_with_prefix("network.", tensors))  # strict, and into the existing memory
    except RuntimeError as error:
        raise InputError(f"{folder} is the state of another network: {error}") from error
    names = {parameter: name for name, parameter in network.named_parameters()}
    moments = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            moments[len(moments)] = _with_prefix(f"optimizer.{names[parameter]}.", tensors)
    if any(moments.values()):  # none before the first step
        optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})
    if about["torch"] != torch.__version__:
        say_once(f"torch is {torch.__version__}, the run started with {about['torch']}: the last bits may differ")
    if about["processes"] != processes():
        say_once(f"processes: {processes()}, before {about['processes']}: the dropout masks will differ")
    torch.set_num_threads(about["threads"])
    return progress, _with_prefix("random.", tensors)


def _with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose name starts with ``prefix``, under the rest of the name."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def content_hash(tensors: dict[str, Tensor], about: dict[str, Any]) -> str:
    """The sha256 of the JSON settings and of every tensor: name, dtype, shape and bytes."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def identity(objective: Objective, options: RunSettings) -> str:
    """A hash of what must be the same when a run is resumed: the data, the model's config, and the run's settings."""
    settings = {name: value for name, value in vars(options).items() if name not in FREE}
    # subtle: not options.device, which "auto" may have been, and not its index: another GPU of the kind is the same
    settings["device"] = objective.encoder.device.type
    return hashlib.sha256(json.dumps([objective.fingerprint, settings], sort_keys=True).encode()).hexdigest()
