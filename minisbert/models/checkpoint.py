"""An encoder's weights on disk: loading without wasted work, writing, and old checkpoints.

Reading is the book's (``core/weights.py``); here it covers every family, and does not fill weights with random numbers
that are replaced at once. Only safetensors are opened. An old checkpoint, which is a pickle, is converted once, by
torch's restricted unpickler: ``python -m minisbert.checkpoint convert path/to/pytorch_model.bin``.
"""

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from minisbert.core import InputError, encoder, one_line, read_json, weights
from minisbert.core.bert import Bert, BertConfig
from minisbert.models.families import FAMILIES, build_bert, raw_config
from minisbert.models.settings import check_config
from minisbert.system.files import atomic_file, write_json

# how the tensors begin that transformers adds to an encoder for a task
TASK_HEADS = ("classifier.", "pre_classifier.", "qa_outputs.", "score.", "regressor.")


def load_bert(folder: str | Path) -> Bert:
    """The encoder of a folder, float32, in eval mode.

    Every tensor of the file is used or skipped by name, every parameter of the model is filled from the file.
    Raises ``InputError`` with the full list of missing, unexpected and misshapen tensors.
    """
    folder, path = Path(folder), Path(folder) / "model.safetensors"
    if folder.is_dir():
        check_config(folder)
    weights.read_config(folder, FAMILIES)  # what is wrong with the folder or the config is said first
    check_present(path)
    try:
        return encoder.load_bert(folder, FAMILIES, build_empty)
    except InputError as error:
        if not (head := task_head(path)):
            raise
        kind = one_line(read_json(folder / "config.json").get("architectures"))
        advice = "save the encoder alone (in transformers: model.base_model.save_pretrained) and load that"
        raise InputError(f"{path} has a task head, {', '.join(head)} (architectures {kind}): {advice}") from error


def task_head(path: Path) -> list[str]:
    """The tensors of a classifier or a reader of answers in a file, by name; none if it cannot be read."""
    try:
        with safe_open(path, "pt") as file:
            return sorted(name for name in file.keys() if name.startswith(TASK_HEADS))  # noqa: SIM118
    except SafetensorError:
        return []


def build_empty(config: BertConfig, pooler: bool) -> Bert:
    """An encoder without memory or random numbers for its weights, to be filled from a file."""
    with torch.device("meta"), Unfilled():
        return build_bert(config, pooler)


class Unfilled(TorchFunctionMode):
    """Inside this context ``torch.nn.init`` fills no weights.

    On the device "meta" there is nothing to fill, yet ``normal_`` would import torch's compiler there: 800 modules,
    which takes a second.
    """

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if getattr(function, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return function(*args, **(kwargs or {}))


def check_present(path: Path) -> None:
    """Raise ``InputError`` if a safetensors file is missing, naming what is there instead."""
    if path.is_file():
        return
    hint = ""
    if path.with_name("pytorch_model.bin").exists():
        hint = f"; convert the old checkpoint: python -m minisbert.checkpoint convert {path.parent}/pytorch_model.bin"
    elif path.with_name("model.safetensors.index.json").exists():
        hint = "; a checkpoint in several shards is not supported"
    raise InputError(f"{path} is missing{hint}")


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file by name. Raises ``InputError`` if it is missing or damaged."""
    check_present(path)
    return weights.read_safetensors(path)


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file; ``InputError`` if it is not one or is damaged."""
    try:
        with safe_open(path, "pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} cannot be read as a safetensors file ({error})") from error


def write_safetensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write tensors as they are, from any device; a full disk is an ``OSError``."""
    path.touch()
    mode = path.stat().st_mode
    contents: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        content = tensor.detach().cpu().contiguous()
        place = content.untyped_storage().data_ptr()
        # tensors that share memory (tied weights) are refused by safetensors: all but the first get their own
        contents[name] = content.clone() if place in memory else content
        memory.add(place)
    try:
        save_file(contents, path, metadata={"format": "pt"} | (metadata or {}))
    except SafetensorError as error:
        raise OSError(f"{path} could not be written: {error}") from error
    path.chmod(mode)  # save_file makes the file readable for its owner only


def save_bert(bert: Bert, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` as the model's own family has them, float32."""
    family = FAMILIES[bert.config.model_type]
    about = {"architectures": [family.architecture], "dtype": "float32"}
    write_json(folder / "config.json", about | raw_config(dataclasses.asdict(bert.config)))
    names = family.names(bert.config.num_hidden_layers, bert.pooler is not None)
    tensors = {names[ours]: parameter.float() for ours, parameter in bert.named_parameters()}
    write_safetensors(tensors, folder / "model.safetensors")


def convert(path: Path, out: Path) -> int:
    """An old checkpoint to safetensors, dtypes kept; the number of tensors.

    Raises ``InputError`` for anything but a checkpoint of tensors alone: torch's restricted unpickler
    (``weights_only=True``) runs no code from the file.
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path} is not a checkpoint of tensors and nothing else: {reason}") from error
    if not isinstance(content, dict) or not content or not all(isinstance(value, Tensor) for value in content.values()):
        raise InputError(f"{path} does not hold a state dict: a dict from names to tensors")
    with atomic_file(out) as partial:
        write_safetensors(content, partial)
    return len(content)
