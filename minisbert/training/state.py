"""What ``--resume`` continues from, in three files that one can read.

state.json             how far the run is, its dev scores, and what must be the same to go on
state-120.safetensors  tensors after step 120: ``network.*``, ``optimizer.*``, ``random.*``
best-90.safetensors    the weights that were best on dev, those of step 90

The tensors are written first, under a new name. Then state.json, which names them, is replaced in
one step, and the former tensors are deleted. So a kill at any moment leaves a state that is whole:
the former one or the new one.
"""

import dataclasses
import hashlib
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from minisbert.checkpoints.weights import read_safetensors, write_safetensors
from minisbert.core import InputError, read_json
from minisbert.core.loop import Step
from minisbert.system import files
from minisbert.system.devices import set_random_state
from minisbert.system.reading import reading
from minisbert.training import BEST, RUN_LOG, STATE
from minisbert.training.base_loss import Loss, RowNetwork
from minisbert.training.distributed import processes, warn_once
from minisbert.training.scores import Evaluation
from minisbert.training.starting_model import encoder_of

Weights = dict[str, Tensor]


@dataclass
class Progress:
    """How far a run is. ``train`` fills it in; state.json holds it."""

    step: int = 0  # optimizer steps made
    total: int = 0  # steps of the whole run
    history: list[dict[str, Any]] = field(default_factory=list)  # dev scores: "step" and metrics
    metric: str = ""  # the score that decides
    best: float | None = None  # the best one, and its step; 0 is the untrained model
    best_step: int = 0
    waited: int = 0  # evaluations since the best
    tokens: int = 0  # trained on, pads included
    seconds: float = 0.0  # of training, without evaluation
    unlogged: list[float] = field(default_factory=list)  # losses since the last line of the log
    logged: int = 0  # bytes of metrics.jsonl, which are those of the steps made

    def must_evaluate(self, evaluations: Container[int]) -> bool:
        """Whether dev is scored at this step, and has not been before the run was stopped."""
        last_evaluation = -1
        if self.history:
            last_evaluation = self.history[-1]["step"]
        return self.step in evaluations and last_evaluation < self.step

    def add_scores(self, evaluation: Evaluation) -> bool:
        """Note the dev scores of this step; return whether no former step was better."""
        score = evaluation.score
        self.history.append({"step": self.step, **evaluation.scores})
        self.metric = evaluation.metric
        if self.best is None or score > self.best:
            self.waited = 0
        else:
            self.waited += 1
        # Of equally good steps the later one counts, although it is no reason to wait longer.
        is_best = self.best is None or score >= self.best
        if is_best:
            self.best = score
            self.best_step = self.step
        return is_best

    def has_patience(self, patience: int | None) -> bool:
        return patience is None or self.waited < patience

    def count(self, step: Step, tokens: int, seconds: float) -> None:
        """Note a step."""
        self.step = step.number
        self.unlogged.append(step.loss)
        self.tokens += tokens
        self.seconds += seconds


class BestWeights:
    """The weights that were best on dev: in a run's folder, or without one in memory."""

    def __init__(self, folder: Path | None):
        self.folder = folder
        self.name = ""  # of the file in the folder
        self.copy: Weights | None = None

    def update(self, model: nn.Module, progress: Progress, evaluation: Evaluation) -> None:
        """Note the dev scores of this step, and keep its weights if no former step was better."""
        if progress.add_scores(evaluation):
            self.keep(model, progress.step)

    def keep(self, model: nn.Module, step: int) -> None:
        """Keep the weights of this step in place of the former best ones."""
        weights = model.state_dict()
        if self.folder is None:
            self.copy = {name: x.clone() for name, x in weights.items()}
            return
        # The former file stays until no saved state names it. The name changes once the new file is
        # whole: if it cannot be written, the former weights are still the best ones.
        name = f"{BEST}-{step}.safetensors"
        with files.atomic_file(self.folder / name) as new:
            write_safetensors(weights, new)
        self.name = name

    def restore(self, model: nn.Module) -> None:
        """Put the best weights into the model; without dev rows the last ones stay."""
        if self.folder is not None and self.name:
            model.load_state_dict(read_safetensors(self.folder / self.name))
        elif self.copy is not None:
            model.load_state_dict(self.copy)


def save_state(
    folder: Path | None,
    progress: Progress,
    network: RowNetwork,
    optimizer: Optimizer,
    best: BestWeights,
    randomness: dict[str, Tensor],
    identity: str,
) -> None:
    """Replace the state in ``folder``, if there is one. ``run_identity`` gives the identity."""
    if folder is None:
        return
    former = tensor_files(folder)

    # The tensors, in a new file. If two states are saved at one step, it has another name than the
    # one in use.
    path = folder / f"{STATE}-{progress.step}.safetensors"
    while path in former:
        path = path.with_name(f"{path.stem}-again.safetensors")
    with files.atomic_file(path) as new:
        write_safetensors(state_tensors(network, optimizer, randomness), new)

    # The state counts the bytes of the log, which must be on the disk before it: after a power cut
    # the run would not be continued with a shorter one.
    files.flush(folder / RUN_LOG)

    # The JSON that names them. From here on it is the new state that is continued.
    content = {
        "tensors": path.name,
        "best": best.name,
        "progress": dataclasses.asdict(progress),
        "identity": identity,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processes": processes(),
    }
    with files.atomic_file(folder / f"{STATE}.json") as new:
        files.write_json(new, content)

    for old in former:
        if old.name != best.name:
            old.unlink()


def tensor_files(folder: Path) -> list[Path]:
    """The files of tensors in a run's folder, of this and of former states."""
    return [*folder.glob(f"{STATE}-*.safetensors"), *folder.glob(f"{BEST}-*.safetensors")]


def state_tensors(
    network: RowNetwork, optimizer: Optimizer, randomness: dict[str, Tensor]
) -> Weights:
    """The tensors of a state by their names: ``network.*``, ``optimizer.*``, ``random.*``."""
    tensors = {}
    for name, tensor in network.state_dict().items():
        tensors[f"network.{name}"] = tensor
    for name, parameter in network.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{name}.{key}"] = value
    for name, tensor in randomness.items():
        tensors[f"random.{name}"] = tensor
    return tensors


def continue_run(
    folder: Path | None,
    progress: Progress,
    network: RowNetwork,
    optimizer: Optimizer,
    best: BestWeights,
    identity: str,
) -> None:
    """Go on from the state in ``folder``, if there is one: restore what ``save_state`` saved.

    That is progress, network, optimizer, random generators and the number of threads: another
    number splits sums differently, which changes their last bits. Raises ``InputError`` if a file
    is damaged or belongs to another run; no file is changed then.
    """
    if folder is None or not (folder / f"{STATE}.json").exists():
        return

    # Everything is read and checked before something is changed.
    path = folder / f"{STATE}.json"
    content = read_json(path)
    with reading(path):
        saved_progress = {}
        for item in fields(Progress):
            saved_progress[item.name] = content["progress"][item.name]
        saved_identity = content["identity"]
        saved_torch = content["torch"]
        saved_threads = content["threads"]
        saved_processes = content["processes"]
        tensors_path = folder / content["tensors"]
        best_name = str(content["best"])
    if saved_identity != identity:
        changed = "the training rows, dev, the model or the settings have changed since it began"
        raise InputError(f"{path}: {changed}; start it again, --overwrite")
    tensors = read_safetensors(tensors_path)
    moments = optimizer_state(optimizer, network, tensors)

    # ``load_state_dict`` copies into the memory that the optimizer knows, and wants all names.
    try:
        network.load_state_dict(with_prefix("network.", tensors))
    except RuntimeError as error:
        raise InputError(f"{tensors_path} is the state of another network: {error}") from error
    has_moments = any(moments.values())  # there are none before the first step
    if has_moments:
        optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})
    for name, value in saved_progress.items():
        setattr(progress, name, value)
    best.name = best_name
    set_random_state(with_prefix("random.", tensors), network.model.device)
    torch.set_num_threads(saved_threads)

    if saved_torch != torch.__version__:
        warn_once(f"torch is {torch.__version__}, before {saved_torch}: the last bits may differ")
    if saved_processes != processes():
        before = f"processes: {processes()}, before {saved_processes}"
        warn_once(f"{before}: the dropout masks will differ")


def optimizer_state(
    optimizer: Optimizer, network: nn.Module, tensors: dict[str, Tensor]
) -> dict[int, dict[str, Tensor]]:
    """Return the moments of each parameter by the number that the optimizer gives it."""
    # The optimizer numbers its parameters group by group; their names do not depend on that order.
    names = {parameter: name for name, parameter in network.named_parameters()}
    moments: dict[int, dict[str, Tensor]] = {}
    number = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            moments[number] = with_prefix(f"optimizer.{names[parameter]}.", tensors)
            number += 1
    return moments


def remove_state(folder: Path) -> None:
    """Delete the state of a run that is finished, the JSON first."""
    (folder / f"{STATE}.json").unlink(missing_ok=True)
    for path in tensor_files(folder):
        path.unlink()


def with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose name starts with ``prefix``, under the rest of the name."""
    chosen = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            chosen[name.removeprefix(prefix)] = tensor
    return chosen


def run_identity(
    model: Any, loss: Loss, encoded: Sequence[Any], dev: Any, settings: Sequence[Any]
) -> str:
    """Hash what must be the same when a run is resumed: model, loss, rows as tokens, dev, settings.

    Otherwise it would not end in the numbers of a run that nobody stopped.
    """
    encoder = encoder_of(model)
    # Of the device only the type counts: another GPU of the kind computes the same.
    parts: list[Any] = [settings, encoder.device.type, loss.identity(), encoder.bert.config]
    parts += [encoder.pooling_mode, encoder.normalize, encoder.settings]
    digest = hashlib.sha256(repr(parts).encode())
    for column in encoded:
        for ids, types in zip(column.ids, column.token_types, strict=True):
            digest.update(np.array([len(ids), *ids, *types], dtype=np.int32).tobytes())
    # A teacher's targets may change in their last bits with the number of threads: its own hash,
    # which is part of the loss's identity, stands for them.
    if loss.targets is not None and not loss.taught:
        digest.update(loss.targets.cpu().numpy().tobytes())
    digest.update(repr(dev).encode())
    return digest.hexdigest()
