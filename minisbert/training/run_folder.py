"""A training run's folder, what it saves for ``--resume``, and its table of scores.

runs/NAME/config.json         every setting, resolved
runs/NAME/metrics.jsonl       a line every few steps and for every evaluation
runs/NAME/model/              the best model by dev
runs/NAME/state.safetensors   for ``--resume``, until the run is finished
runs/NAME/last/               the weights at the moment a run was stopped
runs/NAME/results.json        scores before and after, once it is finished
"""

import dataclasses
import hashlib
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.optim import Optimizer

from minisbert import __version__
from minisbert.checkpoints.weights import write_safetensors
from minisbert.core import InputError, one_line, reading
from minisbert.core.weights import read_safetensors
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system import files
from minisbert.system.assets import local_path
from minisbert.training import LAST, MODEL, RESULTS, RUN_CONFIG, RUN_LOG, STATE
from minisbert.training.distributed import processes, say_once
from minisbert.training.objectives.base import Objective, Scores
from minisbert.training.settings import FREE, RunSettings

NEW = ".new"  # behind the name of a model that is complete, but not in its place yet


def create_folder(options: RunSettings, device: torch.device, objective: Objective) -> tuple[Path, TextIO]:
    """Create the run's folder and its ``config.json``; return the folder and its locked, empty ``metrics.jsonl``.

    ``--overwrite`` deletes the run that is there. Raises ``InputError`` for a run without ``--overwrite``, a run that
    another process is training, and a folder with other files and no run.
    """
    name = options.recipe or options.objective
    if options.data and not options.recipe:
        name = f"{Path(options.data).stem}-{options.objective}"
    out = Path(options.out or f"runs/{name}-{Path(options.model).name}")
    path = os.path.realpath(out)
    if path.encode(errors="ignore") != os.fsencode(path):  # safetensors writes to no other path
        raise InputError(f"--out {one_line(out)}: the path is not UTF-8; choose another one")
    files.check_output(out, local_path(options.model), options.teacher, options.data, options.dev, options.test)

    out.mkdir(parents=True, exist_ok=True)
    found = {path.name for path in out.iterdir()}
    if found and RUN_LOG not in found:
        raise InputError(f"{out} is not the folder of a run (it has no {RUN_LOG}): choose another --out")
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
        for name in (MODEL, LAST):
            shutil.rmtree(out / name, ignore_errors=True)
        resolved = {"out": str(out), "device": str(device), "minisbert": __version__, "torch": torch.__version__}
        config = vars(options) | {"rows": objective.notes, "best_metric": objective.best} | resolved
        files.write_json(out / RUN_CONFIG, config)
    except BaseException:
        log.close()
        raise
    return out, log


def open_log(out: Path) -> TextIO:
    """Open a run's ``metrics.jsonl`` to append to, locked until it is closed; ``InputError`` if it is locked.

    Whoever holds it is alone in the folder, so what a killed process was writing there is removed, and a model that it
    had written is put in its place.
    """
    log = open(out / RUN_LOG, "a", encoding="utf-8")  # noqa: SIM115 - it stays open as long as the run
    try:
        files.lock(log)
    except BlockingIOError as error:
        log.close()
        raise InputError(f"{out}: another process is training this run; wait for it to finish, or stop it") from error
    for path in out.glob(f".*.{files.NEW}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    for name in (MODEL, LAST):
        put_in_place(out / name)
    return log


def replace_model(model: SentenceEncoder | PairModel, folder: Path) -> None:
    """Save a model in place of the one at ``folder``; a kill at any moment leaves one of them complete."""
    model.save(folder.with_name(folder.name + NEW))
    put_in_place(folder)


def put_in_place(folder: Path) -> None:
    """Replace ``folder`` by what is complete beside it, if there is something."""
    new = folder.with_name(folder.name + NEW)
    if new.is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)


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
    path: Path, network: nn.Module, optimizer: Optimizer, randomness: dict[str, Tensor], progress: RunState, data: str
) -> None:
    """Atomically replace the state at ``path``. ``data`` identifies the run (``run_identity``)."""
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    for name, tensor in randomness.items():
        tensors[f"random.{name}"] = tensor
    for name, parameter in network.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{name}.{key}"] = value
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    about: dict[str, Any] = {"threads": torch.get_num_threads(), "torch": torch.__version__, "processes": processes()}
    about |= {"data": data, "progress": dataclasses.asdict(progress)}
    about["sha256"] = content_hash(tensors, about)
    with files.atomic_file(path) as partial:
        write_safetensors(tensors, partial, {"run": json.dumps(about)})


def load_state(path: Path, network: nn.Module, optimizer: Optimizer, data: str) -> tuple[RunState, dict[str, Tensor]]:
    """Restore network and optimizer in place; return the progress and the states of the random generators.

    Raises ``InputError`` if the state is damaged or belongs to another network, optimizer or data. Also restores
    the number of threads: another number splits sums differently, which changes their last bits.
    """
    tensors = read_safetensors(path)
    with reading(path), safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["run"])
        stored = about.pop("sha256")
    if content_hash(tensors, about) != stored:
        raise InputError(f"{path} is damaged or was edited: its contents do not have the sha256 that it gives")
    if about["progress"].keys() != vars(RunState()).keys():
        raise InputError(f"{path} was written by another version: its progress is {', '.join(about['progress'])}")
    progress = RunState(**about["progress"])
    # nothing is changed before everything has been checked: a refusal leaves network and optimizer as they were
    if about["data"] != data:
        raise InputError(
            f"{path}: the training rows, dev, test, the model or config.json have changed since the run started"
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
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def run_identity(objective: Objective, options: RunSettings) -> str:
    """Hash what must be the same when a run is resumed, or it would not have the numbers of an uninterrupted one.

    These are the training rows as tokens, their targets, the dev and test rows, the encoder's and the run's settings.
    """
    encoder = objective.encoder
    settings = {name: value for name, value in vars(options).items() if name not in FREE}
    # subtle: not options.device, which "auto" may have been, and not its index: another GPU of the kind is the same
    settings["device"] = encoder.device.type
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    after = (encoder.normalize, [layer.activation for layer in encoder.dense], encoder.settings, objective.taught)
    digest.update(repr((encoder.bert.config, encoder.pooling_mode, after)).encode())
    for column in objective.encoded:
        for ids, types in zip(column.ids, column.token_types, strict=True):
            digest.update(np.array([len(ids), *ids, *types], dtype=np.int32).tobytes())
    for name, value in sorted(vars(objective).items()):
        # every attribute that an objective sets: targets and labels are tensors, rows and searches dicts by split
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
            digest.update(value.cpu().numpy().tobytes())
        elif isinstance(value, dict) and value is not objective.notes:
            digest.update(repr((name, value.get("dev"), value.get("test"))).encode())
    return digest.hexdigest()
