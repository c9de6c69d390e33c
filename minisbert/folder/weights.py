"""An encoder's weights on disk: loading without wasted work, writing, and old checkpoints.

Reading is the book's (``core/weights.py``); here it covers every family, and does not fill weights with random numbers
that are replaced at once. Only safetensors are opened. An old checkpoint, which is a pickle, is converted once, by
torch's restricted unpickler: ``minisbert checkpoint convert path/to/pytorch_model.bin``.
"""

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minisbert.architectures.base import Architecture
from minisbert.architectures.relatives import ELECTRA, FAMILIES, build_bert
from minisbert.core import InputError, one_line, reading, weights
from minisbert.core.bert import Bert, BertConfig
from minisbert.core.weights import read_safetensors
from minisbert.folder.model_folder import INDEX, ModelFolder
from minisbert.folder.settings import CONFIG, WEIGHTS, WeightIndex
from minisbert.system.files import atomic_file, listed, open_bytes, write_json

# prefixes of the tensors that transformers adds to an encoder for a task
TASK_HEADS = ("classifier.", "pre_classifier.", "qa_outputs.", "score.", "regressor.")
MOST_SHARED = 8  # the largest ratio of the tensors' size to the checkpoint's: tied weights are written twice
ADAPTER = "adapter_config.json"  # of peft: weights to add to the encoder's
MOST_FAULTS = 20  # lines of a message


def load_transformer(folder: str | Path | ModelFolder) -> Bert:
    """The encoder of a folder, of any family, float32, in eval mode.

    Every tensor of the file is used or skipped by name, every parameter of the model is filled from the file.
    Raises ``InputError`` with a list of missing, unexpected and misshapen tensors.
    """
    folder = ModelFolder.of(folder)
    return fill_bert(folder, *read_encoder(folder))


def read_encoder(folder: ModelFolder) -> tuple[Path, dict[str, Tensor]]:
    """Every tensor of a folder under its canonical name, and the file to name in errors."""
    family, config = folder.config  # errors in the config come first
    if folder.has(ADAPTER):
        advice = "merge it into the weights (peft: merge_and_unload) and save those"
        raise InputError(f"{folder.path / ADAPTER}: adapters are not supported: {advice}")
    files = weight_files(folder)
    path = files[0] if len(files) == 1 else folder.path / INDEX
    found: dict[str, Tensor] = {}
    for file in files:
        tensors = weights.read_tensors(check_present(file), family)
        if twice := sorted(found.keys() & tensors.keys()):
            raise InputError(f"{file} and another shard hold {listed(twice)}")
        found |= tensors
    if config.num_hidden_layers > len(found):  # before they are built
        key = family.settings.get("num_hidden_layers", "num_hidden_layers")
        stated = f"{folder.path / CONFIG}: {key} {config.num_hidden_layers}"
        raise InputError(f"{stated}, but {path.name} has {len(found)} tensors")
    return path, found


def weight_files(folder: ModelFolder) -> list[Path]:
    """``model.safetensors``, or the shards that an index names, if there is one."""
    names = {WEIGHTS} if folder.has(WEIGHTS) else {*folder.parse(INDEX, WeightIndex).weight_map.values()}
    for name in names:
        if Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise InputError(f"{folder.path / INDEX}: {one_line(name)} is not the name of a safetensors file beside it")
    return [folder.path / name for name in sorted(names) or [WEIGHTS]]


def check_present(path: Path) -> Path:
    """The path; ``InputError`` if the file is missing, naming what is there instead."""
    if not ModelFolder(path.parent).has(path.name):
        old = path.with_name("pytorch_model.bin")
        hint = f"; convert the old checkpoint: minisbert checkpoint convert {old}" if old.exists() else ""
        raise InputError(f"{path} is missing{hint}")
    return path


def fill_bert(folder: ModelFolder, path: Path, found: dict[str, Tensor]) -> Bert:
    """An encoder with the tensors of ``read_encoder``, built without memory or random numbers for its weights."""
    family, config = folder.config
    pooler = any(name.startswith(f"{theirs}.") for theirs in family.pooler.values() for name in found)
    with reading(folder.path / CONFIG), torch.device("meta"), Unfilled():
        bert = build_bert(config, pooler)
    try:
        weights.fill(bert, found, path, family.names(config.num_hidden_layers, pooler))
    except InputError as error:
        lines = str(error).splitlines()
        if len(lines) > MOST_FAULTS:
            lines[MOST_FAULTS:] = [f"  and {len(lines) - MOST_FAULTS} more"]
        if head := sorted(name for name in found if name.startswith(TASK_HEADS)):
            kind = ", ".join(folder.model.architectures)
            lines += [f"  {path.name} has a task head, {', '.join(head)} (architecture {kind}): PairModel opens a"]
            lines[-1] += " CrossEncoder; for vectors save the encoder alone (model.base_model.save_pretrained)"
        raise InputError("\n".join(lines)) from error
    return bert.eval()


class Unfilled(TorchFunctionMode):
    """Inside this context ``torch.nn.init`` fills no weights.

    On the device "meta" there is nothing to fill, yet ``normal_`` would import torch's compiler there: 800 modules,
    which takes a second.
    """

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if getattr(function, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return function(*args, **(kwargs or {}))


def read_weights(path: Path) -> dict[str, Tensor]:
    """Every tensor of a model's file by name. Raises ``InputError`` if it is missing or damaged."""
    return read_safetensors(check_present(path))


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file; ``InputError`` if it is not one or is damaged."""
    with reading(path), safe_open(path, "pt") as file:
        return file.metadata() or {}


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
        code = re.search(r"os error (\d+)", str(error))  # with its number, an atomic write can add the target's name
        raise OSError(*([int(code[1]), os.strerror(int(code[1]))] if code else [f"{path}: {error}"])) from error
    path.chmod(mode)  # save_file makes the file readable for its owner only


def save_bert(bert: Bert, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` as the model's own family has them, float32."""
    write_json(folder / "config.json", stored_config(bert.config))
    write_safetensors(named_tensors(bert), folder / "model.safetensors")


def stored_config(config: BertConfig) -> dict[str, Any]:
    """The contents of the family's ``config.json``, without what it never states."""
    family, stated = FAMILIES[config.model_type], dataclasses.asdict(config)
    about = {"architectures": [family.architecture], "dtype": "float32"}
    if isinstance(family, Architecture):
        return about | family.write(stated)
    hidden = {*family.constants, "position_offset"}
    about |= {"embedding_size": config.hidden_size} if family is ELECTRA else {}
    return about | {family.settings.get(name, name): value for name, value in stated.items() if name not in hidden}


def named_tensors(bert: Bert) -> dict[str, Tensor]:
    """The parameters under the names that the model's own family has for them, float32."""
    names = FAMILIES[bert.config.model_type].names(bert.config.num_hidden_layers, bert.pooler is not None)
    return {names[ours]: parameter.float() for ours, parameter in bert.named_parameters()}


def convert(path: Path, out: Path) -> int:
    """An old checkpoint to safetensors, dtypes kept; the number of tensors.

    Raises ``InputError`` for anything but a checkpoint of tensors alone: torch's restricted unpickler
    (``weights_only=True``) runs no code from the file.
    """
    with open_bytes(path) as file:
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # the bytes decide what an unpickler raises
            refused = re.search(r"GLOBAL \S+", str(error))  # torch also says how to run the code in the file
            cause = one_line(refused[0] if refused else type(error).__name__)
            raise InputError(f"{path} is not a checkpoint of tensors alone: {cause}") from error
    entries = content.items() if isinstance(content, dict) else []
    odd = [str(name) for name, tensor in entries if not is_storable(name, tensor)]
    if odd or not entries:
        found = f", but {listed(odd)}" if odd else ""
        raise InputError(f"{path} does not hold a state dict, names with dense tensors of real numbers{found}")
    stated, stored = sum(tensor.nbytes for _, tensor in entries), path.stat().st_size
    if stated > MOST_SHARED * stored:  # views of one small block of memory would each be written in full
        raise InputError(f"{path} has {stored:,} bytes, but its tensors would take {stated:,}: is it damaged?")
    with atomic_file(out) as partial:
        write_safetensors(content, partial)
    return len(content)


def is_storable(name: object, tensor: object) -> bool:
    """Whether safetensors can hold an entry of a state dict."""
    if not isinstance(name, str) or not name.isprintable() or name == "__metadata__":
        return False
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.is_nested or tensor.layout != torch.strided:
        return False
    return not (tensor.is_quantized or tensor.is_complex() or tensor.is_meta)
