"""The state of a run on disk: a run stopped anywhere resumes bit for bit as if it had not been stopped.

The folder ``state/`` of a run holds ``state.safetensors`` (parameters, optimizer moments, states of the random
generators) and ``state.json`` (the position in the data, the progress so far, and a hash of everything). It is replaced
atomically: if a run is killed while saving, the previous state remains.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from minisbert.core import InputError, read_json, reading
from minisbert.core.weights import read_safetensors
from minisbert.folder.weights import write_safetensors
from minisbert.system.files import atomic_folder, write_json
from minisbert.training.distributed import processes, say_once
from minisbert.training.objectives.base import Objective
from minisbert.training.settings import FREE, RunSettings


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
