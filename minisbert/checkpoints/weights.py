"""Read and write an encoder's weights, strictly, for every family.

Every tensor is used or skipped by its name, every parameter is filled, and numbers that cannot be
weights are refused. New weights are not drawn first, since all are replaced at once. Only
safetensors are opened. What is loaded is a copy of the file's: a model may be saved over its own
source, or its files changed in place by another program (``rsync --inplace``), while it is in use.
The book reads BERT's in ``core/weights.py``. Imports ``core``, ``system``, ``architectures``, and
the folder's layout.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minisbert.architectures.modern import Encoder
from minisbert.architectures.relatives import ENCODER_FAMILIES
from minisbert.checkpoints.layout import (
    CONFIG,
    WEIGHTS,
    WEIGHTS_INDEX,
    ModelFolder,
    has_file,
    read_folder,
    unsupported,
)
from minisbert.core import InputError, one_line
from minisbert.system.files import write_json
from minisbert.system.reading import reading

# prefixes of the tensors that transformers adds to an encoder for a task
TASK_HEADS = ("classifier.", "pre_classifier.", "qa_outputs.", "score.", "regressor.")
# constants that some versions wrote among the weights
SAVED_CONSTANTS = ("embeddings.token_type_ids", "rotary_emb.inv_freq")
ADAPTER = "adapter_config.json"  # of peft: weights to add to the encoder's
MOST_FAULTS = 20  # lines of a message


def read_encoder(folder: ModelFolder) -> tuple[Path, dict[str, Tensor]]:
    """Return the file to name in errors, and every tensor of a folder under its canonical name."""
    # first, so that errors in the config come before those in the weights
    family, config = folder.config
    if has_file(folder.path / ADAPTER):
        advice = "merge it into the weights (peft: merge_and_unload) and save those"
        raise InputError(f"{folder.path / ADAPTER}: adapters are not supported: {advice}")
    files = weight_files(folder)
    path = files[0] if len(files) == 1 else folder.path / WEIGHTS_INDEX
    tensors: dict[str, Tensor] = {}
    for file in files:
        for stored, tensor in read_weights(file).items():
            name = family.canonical(stored)
            if name in tensors:
                raise InputError(f"{file} holds {one_line(name)} twice, or another shard holds it")
            if name not in family.skipped and not name.endswith(SAVED_CONSTANTS):
                tensors[name] = tensor
    # floats beside this key are the weights before they were quantized, or dequantized ones: they
    # count as they are; integers and the eight bits of a float8 do not
    quantization = folder.json(CONFIG).get("quantization_config")
    coded = any(
        not tensor.is_floating_point() or tensor.element_size() == 1 for tensor in tensors.values()
    )
    if quantization is not None and coded:
        reason = "save the dequantized weights (transformers: model.dequantize()) without this key"
        raise unsupported(folder.path / CONFIG, "quantization_config", quantization, reason)
    # a damaged number must not fill the memory with layers before they are compared with the file
    if config.num_hidden_layers > len(tensors):
        key = family.settings.get("num_hidden_layers", "num_hidden_layers")
        layers = f"{folder.path / CONFIG}: {key} {config.num_hidden_layers}"
        raise InputError(f"{layers}, but {path.name} has {len(tensors)} tensors")
    return path, tensors


def weight_files(folder: ModelFolder) -> list[Path]:
    """``model.safetensors``, or the shards that an index names, if there is one."""
    path, index = folder.path / WEIGHTS, folder.path / WEIGHTS_INDEX
    if has_file(path) or not has_file(index):
        return [path]
    shards = folder.json_settings(WEIGHTS_INDEX).get("weight_map", dict, {}, items=str)
    for name in shards.values():
        if Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise InputError(
                f"{index}: {one_line(name)} is not the name of a safetensors file beside it"
            )
    return [folder.path / name for name in sorted(set(shards.values())) or [WEIGHTS]]


def load_transformer(
    folder: str | Path | ModelFolder, found: tuple[Path, dict[str, Tensor]] | None = None
) -> Encoder:
    """Load the encoder of a folder, of any family, float32, in eval mode.

    ``found`` is what ``read_encoder`` has returned, less the tensors of a head. Raises
    ``InputError`` with a list of missing, unexpected and misshapen tensors.
    """
    folder = folder if isinstance(folder, ModelFolder) else read_folder(folder)
    family, config = folder.config
    path, tensors = found or read_encoder(folder)
    # no setting says whether a file has a pooler
    pooler = any(
        name.startswith(f"{stored}.") for stored in family.pooler.values() for name in tensors
    )
    with reading(folder.path / CONFIG), unfilled():
        encoder = family.encoder(config, pooler)
    try:
        fill(encoder, tensors, path, family.names(config.num_hidden_layers, pooler))
    except InputError as error:
        raise shortened(error, folder, path, tensors) from error
    return encoder.eval()


def shortened(
    error: InputError, folder: ModelFolder, path: Path, tensors: dict[str, Tensor]
) -> InputError:
    """Make of a list of faults one of at most ``MOST_FAULTS``; say so if the file has a head."""
    lines = str(error).splitlines()
    if len(lines) > MOST_FAULTS:
        lines[MOST_FAULTS:] = [f"  and {len(lines) - MOST_FAULTS} more"]
    head = sorted(name for name in tensors if name.startswith(TASK_HEADS))
    if head:
        names, classes = ", ".join(head), ", ".join(folder.architectures)
        lines.append(
            f"  {path.name} has a task head, {names} (architecture {classes}): PairModel opens "
            f"a CrossEncoder; "
            "for vectors save the encoder alone (model.base_model.save_pretrained)"
        )
    return InputError("\n".join(lines))


def fill(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    path: Path,
    names: Mapping[str, str] | None = None,
) -> None:
    """Give a module the tensors of a file, as float32.

    ``names`` maps its parameters to the file's names; None if both are the same. Every tensor is
    used and every parameter filled. Raises ``InputError`` with the full list of what is missing,
    unexpected, misshapen or no number, and then changes nothing.
    """
    if names is None:
        names = {name: name for name, _ in module.named_parameters()}
    # under the file's names, which are those of the message
    wanted = {names[ours]: parameter for ours, parameter in module.named_parameters()}

    problems = []
    for name, parameter in wanted.items():
        if name not in tensors:
            problems.append(f"missing {name} {tuple(parameter.shape)}")
    for name, tensor in tensors.items():
        if name not in wanted:
            problems.append(f"unexpected {name} {tuple(tensor.shape)}")
    for name, parameter in wanted.items():
        if name in tensors:
            problems += faults(name, tensors[name], tuple(parameter.shape))
    if problems:
        raise InputError(f"{path} does not fit the config beside it:\n  " + "\n  ".join(problems))

    # copies, because the tensors of a file are its bytes in memory
    state = {ours: tensors[names[ours]].clone().float() for ours, _ in module.named_parameters()}
    module.load_state_dict(state, assign=True)


def faults(name: str, tensor: Tensor, shape: tuple[int, ...]) -> list[str]:
    """Say in one line what keeps a file's tensor from being a weight of this shape; or in none."""
    if tuple(tensor.shape) != shape:
        return [f"misshapen {name}: {tuple(tensor.shape)}, the config asks for {shape}"]
    # the eight bits of a float8 are no weights either without their scales
    if tensor.itemsize < 2 or not tensor.is_floating_point():
        return [f"{name} holds {tensor.dtype}, not floating point numbers of 16 bits or more"]
    smallest, largest = tensor.aminmax()  # both are NaN if any number is
    if not smallest.isfinite() or not largest.isfinite():
        return [f"{name} holds NaN or infinity"]
    return []


class Unfilled(TorchFunctionMode):
    """Inside this context ``torch.nn.init`` fills no weights.

    On the device "meta" there is nothing to fill, yet ``normal_`` would import torch's compiler
    there: 800 modules, which takes a second.
    """

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if getattr(function, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return function(*args, **(kwargs or {}))


@contextmanager
def unfilled() -> Iterator[None]:
    """Build a module whose weights are replaced at once. Raises ``ValueError`` for sizes that no
    tensor can have.
    """
    try:
        with torch.device("meta"), Unfilled():
            yield
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read every tensor of a model's file by name. Raises ``InputError`` if it is missing or
    damaged.
    """
    if not has_file(path):
        old = path.with_name("pytorch_model.bin")
        advice = f"; docs/assets.md says how to write it from {old.name}" if old.exists() else ""
        raise InputError(f"{path} is missing{advice}")
    return read_safetensors(path)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read every tensor of a file by name; ``InputError`` if it is missing or damaged."""
    with reading(path):
        return load_file(path)


def read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata of a safetensors file; ``InputError`` if it is not one or is damaged."""
    with reading(path), safe_open(path, "pt") as file:
        return file.metadata() or {}


def write_safetensors(
    tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors as they are, from any device; a full disk is an ``OSError``."""
    path.touch()
    mode = path.stat().st_mode
    contents: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        # safetensors writes the bytes of contiguous tensors, and refuses tensors that share memory
        # (tied weights)
        content = tensor.detach().cpu().contiguous()
        place = content.untyped_storage().data_ptr()
        contents[name] = content.clone() if place in memory else content
        memory.add(place)
    # the library hides the system's error number in a message; with it, an atomic write can add the
    # target's name
    try:
        save_file(contents, path, metadata={"format": "pt"} | (metadata or {}))
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise OSError(f"{path}: {error}") from error
        number = int(code[1])
        raise OSError(number, os.strerror(number)) from error
    path.chmod(mode)  # save_file makes the file readable for its owner only


def save_bert(bert: Encoder, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` as the model's own family has them, in
    float32.
    """
    write_json(folder / CONFIG, stored_config(bert.config))
    write_safetensors(named_tensors(bert), folder / WEIGHTS)


def stored_config(config: Any) -> dict[str, Any]:
    """Return the contents of the family's ``config.json``, without the keys that it never has."""
    family = ENCODER_FAMILIES[config.model_type]
    content: dict[str, Any] = {"architectures": [family.architecture], "dtype": "float32"}
    return content | family.write(dataclasses.asdict(config))


def named_tensors(bert: Encoder) -> dict[str, Tensor]:
    """Return the parameters in float32, under the names of the model's own family."""
    family = ENCODER_FAMILIES[bert.config.model_type]
    names = family.names(bert.config.num_hidden_layers, bert.pooler is not None)
    return {names[ours]: parameter.float() for ours, parameter in bert.named_parameters()}
