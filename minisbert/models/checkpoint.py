"""An encoder's weights on disk: loading without wasted work, writing, and old checkpoints.

Reading is the book's (``core/weights.py``); here it covers every family, and does not fill weights with random numbers
that are replaced at once. Only safetensors are opened. An old checkpoint, which is a pickle, is converted once, by
torch's restricted unpickler: ``python -m minisbert.checkpoint convert path/to/pytorch_model.bin``.
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

from minisbert.core import InputError, one_line, weights
from minisbert.core.bert import Bert, BertConfig
from minisbert.core.weights import Family
from minisbert.models.families import FAMILIES, build_bert, raw_config
from minisbert.models.folders import INDEX, check_present, weight_files
from minisbert.models.settings import architecture, check_config
from minisbert.system.files import atomic_file, listed, open_bytes, write_json

# the tensor and its axis that have each size of a config
SIZES = {
    "vocab_size": ("embeddings.word.weight", 0),
    "hidden_size": ("embeddings.word.weight", 1),
    "max_position_embeddings": ("embeddings.position.weight", 0),
    "type_vocab_size": ("embeddings.token_type.weight", 0),
    "intermediate_size": ("layers.0.feed_forward.up.weight", 0),
}
# how the tensors begin that transformers adds to an encoder for a task
TASK_HEADS = ("classifier.", "pre_classifier.", "qa_outputs.", "score.", "regressor.")
MOST_SHARED = 8  # a checkpoint's tensors may take so many times its size, since tied weights are written twice


def load_bert(folder: str | Path) -> Bert:
    """The encoder of a folder, float32, in eval mode.

    Every tensor of the file is used or skipped by name, every parameter of the model is filled from the file.
    Raises ``InputError`` with a list of missing, unexpected and misshapen tensors.
    """
    family, config, path, found = read_encoder(Path(folder))
    if head := sorted(name for name in found if name.startswith(TASK_HEADS)):
        kind = architecture(path.parent)
        advice = "PairModel opens a CrossEncoder; for vectors save the encoder alone"
        advice += " (in transformers: model.base_model.save_pretrained)"
        raise InputError(f"{path} has a task head, {', '.join(head)} (architecture {kind}): {advice}")
    return fill_bert(family, config, path, found)


def read_encoder(folder: Path) -> tuple[Family, BertConfig, Path, dict[str, Tensor]]:
    """The family, the sizes, and every tensor under its canonical name, with the file to name in errors.

    Raises ``InputError`` for what is missing or damaged, and for sizes that are not those of the tensors.
    """
    family, config = read_config(folder)  # what is wrong with the folder or the config is said first
    files = weight_files(folder)
    path = files[0] if files[0].name == "model.safetensors" else folder / INDEX
    found: dict[str, Tensor] = {}
    for file in files:
        tensors = weights.read_tensors(file, family)
        if twice := sorted(found.keys() & tensors.keys()):
            raise InputError(f"{file} and another shard hold {listed(twice)}")
        found |= tensors
    check_sizes(path, family, config, {name: tuple(tensor.shape) for name, tensor in found.items()})
    return family, config, path, found


def fill_bert(family: Family, config: BertConfig, path: Path, found: dict[str, Tensor]) -> Bert:
    """An encoder with the tensors of ``read_encoder``."""
    pooler = any(name.startswith(f"{theirs}.") for theirs in family.pooler.values() for name in found)
    bert = build_empty(config, pooler)
    try:
        weights.fill(bert, found, path, family.names(config.num_hidden_layers, pooler))
    except InputError as error:
        raise InputError(shortened(str(error))) from error
    return bert.eval()


def read_config(folder: Path) -> tuple[Family, BertConfig]:
    """``core.weights.read_config`` for every family; an error has the key that the family's file has."""
    family = check_config(folder) if folder.is_dir() else None
    try:
        return weights.read_config(folder, FAMILIES)
    except InputError as error:
        before, path, message = str(error).rpartition("config.json")
        for ours, theirs in family.settings.items() if family else ():
            message = message.replace(ours, theirs)
        raise InputError(before + path + message) from error


def check_sizes(path: Path, family: Family, config: BertConfig, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise ``InputError`` for sizes in ``config.json`` that are not those of the tensors, before a model is built."""
    pattern = re.escape(family.linears["layers.{i}.attention.query"]).replace(r"\{i\}", r"(\d+)")
    numbers = {match[1] for name in shapes if (match := re.match(pattern, name))}
    if config.num_hidden_layers > len(numbers):
        key = family.settings.get("num_hidden_layers", "num_hidden_layers")
        found = f"{len(numbers)} layers" if numbers else f"the tensors {listed([*shapes])}"
        stated = f"{path.with_name('config.json')}: {key} {config.num_hidden_layers}"
        raise InputError(f"{stated}, but {path.name} has {found}")
    names = family.names(1, pooler=False)
    for size, (ours, axis) in SIZES.items():
        shape = shapes.get(names.get(ours, ""), ())
        if axis < len(shape) and shape[axis] != getattr(config, size):
            key = f"{family.settings.get(size, size)} {getattr(config, size)}"
            raise InputError(f"{path.with_name('config.json')}: {key}, but {names[ours]} in {path.name} is {shape}")


def shortened(message: str, most: int = 20) -> str:
    """A message of many lines without those after ``most``."""
    lines = message.splitlines()
    return "\n".join(lines[:most] + [f"  and {len(lines) - most} more"] * (len(lines) > most))


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
        code = re.search(r"os error (\d+)", str(error))  # with its number, an atomic write can add the target's name
        raise OSError(*([int(code[1]), os.strerror(int(code[1]))] if code else [f"{path}: {error}"])) from error
    path.chmod(mode)  # save_file makes the file readable for its owner only


def save_bert(bert: Bert, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` as the model's own family has them, float32."""
    write_json(folder / "config.json", stored_config(bert.config))
    write_safetensors(named_tensors(bert), folder / "model.safetensors")


def stored_config(config: BertConfig) -> dict[str, Any]:
    """The contents of ``config.json``."""
    about = {"architectures": [FAMILIES[config.model_type].architecture], "dtype": "float32"}
    return about | raw_config(dataclasses.asdict(config))


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
            reason = f"is not a checkpoint of tensors and nothing else: {cause(error)}"
            raise InputError(f"{path} {reason}") from error
    if not isinstance(content, dict) or not content or not all(isinstance(value, Tensor) for value in content.values()):
        raise InputError(f"{path} does not hold a state dict: a dict from names to tensors")
    for name, tensor in content.items():
        if problem := unusual(name, tensor):
            raise InputError(f"{path}: {one_line(name)} {problem}: safetensors cannot hold it")
    stated, stored = sum(tensor.nbytes for tensor in content.values()), path.stat().st_size
    if stated > MOST_SHARED * stored:  # views of one small block of memory would each be written in full
        raise InputError(f"{path} has {stored:,} bytes, but its tensors would take {stated:,}: is it damaged?")
    with atomic_file(out) as partial:
        write_safetensors(content, partial)
    return len(content)


def cause(error: Exception) -> str:
    """The first line of what torch says about a file, without its advice to read it without protection."""
    found = str(error).rpartition("WeightsUnpickler error: ")[2].partition(". Please use")[0].strip()
    advice = not found or "weights_only" in found or "weights only" in found.lower()
    return type(error).__name__ + ("" if advice else f" {one_line(found.splitlines()[0], 200)}")


def unusual(name: object, tensor: Tensor) -> str | None:
    """What keeps an entry of a state dict from being written to safetensors; None if nothing does."""
    if not isinstance(name, str) or not name.isprintable() or name == "__metadata__":
        return "cannot be a name"
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.is_nested or tensor.layout != torch.strided:
        return "is not a dense tensor"
    if tensor.is_quantized or tensor.is_complex():
        return f"holds {tensor.dtype}"
    return "has no values (device meta)" if tensor.is_meta else None
