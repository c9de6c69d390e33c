"""A training run's folder, what it saves for ``--resume``, and its table of scores.

runs/NAME/config.json      every setting, resolved
runs/NAME/metrics.jsonl    a line every few steps and for every evaluation
runs/NAME/model/           the best model by dev
runs/NAME/state/           for ``--resume``, until the run is finished
runs/NAME/last/            the weights at the moment a run was stopped
runs/NAME/results.json     scores before and after, once it is finished

With ``--overwrite`` a run is made in ``runs/NAME.replacement/``, which is renamed to ``runs/NAME/`` at its end.
"""

import dataclasses
import hashlib
import json
import os
import shutil
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
from minisbert.system import files
from minisbert.system.assets import local_path
from minisbert.system.console import check_usage
from minisbert.training import LAST, MODEL, REPLACEMENT, RESULTS, RUN_CONFIG, RUN_LOG, STATE
from minisbert.training.distributed import processes, say_once
from minisbert.training.objectives.base import Objective, Scores
from minisbert.training.run_options import publish
from minisbert.training.settings import FREE, RunSettings

STATE_FILES = ("state.safetensors", "state.json")


def create_folder(options: RunSettings, device: torch.device, objective: Objective) -> tuple[Path, TextIO]:
    """Create the run's folder and its ``config.json``; return the folder and its locked, empty ``metrics.jsonl``.

    Raises ``InputError`` rather than overwrite a run without ``--overwrite``, a folder that is not a run's, or files
    that no run wrote.
    """
    folder = out = chosen_path(options)
    # a run may replace the one whose model it reads, but not lie in a model
    model = local_path(options.model)
    files.check_output(out / RUN_LOG, model, options.teacher, options.data, options.dev, options.test)
    out.mkdir(parents=True, exist_ok=True)
    # a log alone is left by a run that ended before its first line
    if {path.name for path in out.iterdir()} - {RUN_LOG}:
        check_run_replaceable(out, options.overwrite)
        path = Path(os.path.realpath(out))
        folder = path.with_name(path.name + REPLACEMENT)
        folder.mkdir(exist_ok=True)
    log = open_log(folder)
    try:
        # an earlier replacement that was not finished; its log is emptied and not removed, since it holds the lock
        for name in (MODEL, LAST, STATE):
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / RESULTS).unlink(missing_ok=True)
        log.truncate(0)
        resolved = {"out": str(out), "device": str(device), "minisbert": __version__, "torch": torch.__version__}
        config = vars(options) | {"rows": objective.notes, "best_metric": objective.best} | resolved
        files.write_json(folder / RUN_CONFIG, config)
    except BaseException:
        log.close()
        raise
    return folder, log


def chosen_path(options: RunSettings) -> Path:
    """Return ``--out``, or a folder in ``runs/`` named after the recipe, or data and objective, and the model."""
    name = options.recipe or options.objective
    if options.data and not options.recipe:
        name = f"{Path(options.data).stem}-{options.objective}"
    out = Path(options.out or f"runs/{name}-{Path(options.model).name}")
    path = os.path.realpath(out)
    is_utf8 = path.encode(errors="ignore") == os.fsencode(path)  # safetensors writes to no other path
    reserved = f"names that end in {REPLACEMENT} are for --overwrite"
    check_usage(
        (not is_utf8, f"--out {one_line(out)}: the path is not UTF-8; choose another one"),
        (path.endswith(REPLACEMENT), f"--out {one_line(out)}: {reserved}; choose another one"),
    )
    return out


def check_run_replaceable(out: Path, overwrite: bool) -> None:
    """Raise ``InputError`` unless ``out`` is a run that may be replaced, at rest, without files of others in it."""
    if not (out / RUN_LOG).is_file():
        raise InputError(f"{out} is not the folder of a run (it has no {RUN_LOG}): choose another --out")
    open_log(out).close()
    if not overwrite:
        advice = "--overwrite to replace that run"
        if (out / STATE).is_dir():
            advice = f"--resume {out} to continue it, or {advice}"
        raise InputError(f"{out} exists: choose another --out, or {advice}")
    if Path.cwd().is_relative_to(os.path.realpath(out)):
        raise InputError(f"{out} cannot be replaced from within it: change to another folder, or choose another --out")
    for name, written in ((MODEL, SAVED), (LAST, SAVED), (STATE, STATE_FILES)):
        foreign = files.foreign_entries(out / name, written)
        if foreign:
            raise InputError(f"{out / name} holds files that no run wrote ({files.listed(foreign)}): move them away")


def finish_folder(folder: Path, results: dict[str, Any]) -> Path:
    """Write ``results.json`` and delete what only a resumed run needs; return the folder, which may have moved."""
    with files.atomic_file(folder / RESULTS) as partial:
        files.write_json(partial, results)
    for name in (STATE, LAST):
        shutil.rmtree(folder / name, ignore_errors=True)
    return publish(folder)


def open_log(out: Path) -> TextIO:
    """Open a run's ``metrics.jsonl`` to append to, locked until it is closed; ``InputError`` if it is locked.

    Whoever holds it is alone in the folder, so what killed processes left there is restored or removed.
    """
    log = open(out / RUN_LOG, "a", encoding="utf-8")  # noqa: SIM115 - it stays open as long as the run
    try:
        files.lock(log)
    except BlockingIOError as error:
        log.close()
        raise InputError(f"{out}: another process is training this run; wait for it to finish, or stop it") from error
    for name in (STATE, MODEL, LAST, RESULTS):
        files.remove_leftovers(out / name)
    return log


def print_table(before: dict[str, Scores], after: dict[str, Scores]) -> None:
    """Print every metric on dev and test, before training and of the best model; the loss is in ``results.json``."""
    print(f"{'x 100':<16}{'dev':>17}{'test':>19}")
    for metric in dict.fromkeys([*before["dev"], *before["test"]]):
        if metric == "loss":
            continue
        shown = {"dev": "", "test": ""}
        # test may have no alike pairs for alignment, no qrels for a search, or no rows at all
        for split in shown:
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
    """Atomically replace the state at ``folder``. ``data`` identifies the run (``run_identity``)."""
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    for name, tensor in randomness.items():
        tensors[f"random.{name}"] = tensor
    for name, parameter in network.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{name}.{key}"] = value
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    about = {"threads": torch.get_num_threads(), "torch": torch.__version__, "processes": processes(), "data": data}
    about |= {"progress": dataclasses.asdict(progress)}
    with files.atomic_folder(folder) as partial:
        write_safetensors(tensors, partial / "state.safetensors")
        files.write_json(partial / "state.json", about | {"sha256": content_hash(tensors, about)})


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
    # nothing is changed before everything has been checked: a refusal leaves network and optimizer as they were
    if about["data"] != data:
        raise InputError(
            f"{folder}: the training rows, dev, test, the model or config.json have changed since the run started"
        )
    try:
        # strict, and into the existing memory
        network.load_state_dict(with_prefix("network.", tensors))
    except RuntimeError as error:
        raise InputError(f"{folder} is the state of another network: {error}") from error
    # the optimizer numbers its parameters group by group; their names do not depend on that order
    names = {parameter: name for name, parameter in network.named_parameters()}
    moments = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            moments[len(moments)] = with_prefix(f"optimizer.{names[parameter]}.", tensors)
    if any(moments.values()):  # none before the first step
        optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})
    if about["torch"] != torch.__version__:
        say_once(f"torch is {torch.__version__}, the run started with {about['torch']}: the last bits may differ")
    if about["processes"] != processes():
        say_once(f"processes: {processes()}, before {about['processes']}: the dropout masks will differ")
    torch.set_num_threads(about["threads"])
    return progress, with_prefix("random.", tensors)


def with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose name starts with ``prefix``, under the rest of the name."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def content_hash(tensors: dict[str, Tensor], about: dict[str, Any]) -> str:
    """Hash the JSON settings and every tensor: name, dtype, shape and bytes (sha256)."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def run_identity(objective: Objective, options: RunSettings) -> str:
    """Hash what must be the same when a run is resumed: the data, the model's config, and the run's settings."""
    settings = {name: value for name, value in vars(options).items() if name not in FREE}
    # subtle: not options.device, which "auto" may have been, and not its index: another GPU of the kind is the same
    settings["device"] = objective.encoder.device.type
    return hashlib.sha256(json.dumps([objective.fingerprint, settings], sort_keys=True).encode()).hexdigest()
