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

from minisbert.core import InputError, one_line, reading, weights
from minisbert.core.bert import Bert, BertConfig
from minisbert.models.families import FAMILIES, build_bert, raw_config
from minisbert.models.folders import INDEX, ModelFolder
from minisbert.models.settings import CONFIG, WEIGHTS, WeightIndex
from minisbert.system.files import atomic_file, listed, open_bytes, write_json

# how the tensors begin that transformers adds to an encoder for a task
TASK_HEADS = ("classifier.", "pre_classifier.", "qa_outputs.", "score.", "regressor.")
MOST_SHARED = 8  # a checkpoint's tensors may take so many times its size, since tied weights are written twice
ADAPTER = "adapter_config.json"  # of peft: weights to add to the encoder's
MOST_LINES = 20  # of a message


def load_bert(folder: str | Path | ModelFolder) -> Bert:
    """The encoder of a folder, float32, in eval mode.

    Every tensor of the file is used or skipped by name, every parameter of the model is filled from the file.
    Raises ``InputError`` with a list of missing, unexpected and misshapen tensors.
    """
    folder = ModelFolder.of(folder)
    path, found = read_encoder(folder)
    if head := sorted(name for name in found if name.startswith(TASK_HEADS)):
        advice = "PairModel opens a CrossEncoder; for vectors save the encoder alone"
        advice += " (in transformers: model.base_model.save_pretrained)"
        kind = ", ".join(folder.model.architectures)
        raise InputError(f"{path} has a task head, {', '.join(head)} (architecture {kind}): {advice}")
    return fill_bert(folder, path, found)


def read_encoder(folder: ModelFolder) -> tuple[Path, dict[str, Tensor]]:
    """Every tensor of a folder under its canonical name, and the file to name in errors."""
    family, config = folder.config  # what is wrong with the folder or the config is said first
    if folder.has(ADAPTER):
        advice = "merge it into the weights (peft: merge_and_unload) and save those"
        raise InputError(f"{folder.path / ADAPTER}: adapters are not supported: {advice}")
    files = weight_files(folder)
    path = folder.path / (WEIGHTS if files[0].name == WEIGHTS else INDEX)
    found: dict[str, Tensor] = {}
    for file in files:
        tensors = weights.read_tensors(file, family)
        if twice := sorted(found.keys() & tensors.keys()):
            raise InputError(f"{file} and another shard hold {listed(twice)}")
        found |= tensors
    layered = next(theirs for theirs in (family.linears | family.tables).values() if "{i}" in theirs)
    pattern = re.escape(layered).replace(r"\{i\}", r"\d+") + r"\.weight"
    layers = sum(bool(re.fullmatch(pattern, name)) for name in found)
    if config.num_hidden_layers > layers:  # before so many are built
        key = family.settings.get("num_hidden_layers", "num_hidden_layers")
        holds = f"{layers} layers" if layers else f"the tensors {listed([*found])}"
        raise InputError(f"{folder.path / CONFIG}: {key} {config.num_hidden_layers}, but {path.name} has {holds}")
    return path, found


def weight_files(folder: ModelFolder) -> list[Path]:
    """``model.safetensors``, or the shards that an index names. Raises ``InputError`` for what is missing."""
    if folder.has(WEIGHTS) or not folder.has(INDEX):
        return [check_present(folder.path / WEIGHTS)]
    index, names = folder.path / INDEX, sorted({*folder.parse(INDEX, WeightIndex).weight_map.values()})
    if not names:
        raise InputError(f"{index} names no file (weight_map)")
    for name in names:
        if Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise InputError(f"{index}: {one_line(name)} is not the name of a safetensors file beside it")
        if not folder.has(name):
            raise InputError(f"{index} names {one_line(name)}, which is missing: download it again")
    return [folder.path / name for name in names]


def check_present(path: Path) -> Path:
    """The path; ``InputError`` if the file is missing, naming what is there instead."""
    if not ModelFolder(path.parent).has(path.name):
        old = path.with_name("pytorch_model.bin")
        hint = f"; convert the old checkpoint: python -m minisbert.checkpoint convert {old}" if old.exists() else ""
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
        more = [f"  and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []
        raise InputError("\n".join(lines[:MOST_LINES] + more)) from error
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


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file by name. Raises ``InputError`` if it is missing or damaged."""
    return weights.read_safetensors(check_present(path))


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
