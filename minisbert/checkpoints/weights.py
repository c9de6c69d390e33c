"""Read and write an encoder's weights, strictly, for every family.

Every tensor is used or skipped by its name, every parameter is filled, and numbers that cannot be
weights are refused. A module is built without random weights, since it gets those of the file at
once. Only safetensors are opened. What is loaded is a copy of the file's: a model may be saved over
its own source, or its files changed in place by another program (``rsync --inplace``), while it is
in use.

The book reads BERT's in ``core/weights.py``. Imports ``core``, ``system``, ``architectures``, and
the folder's layout.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    ADAPTER,
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
from minisbert.system.reading import printable, reading

# The names of tensors that transformers adds to an encoder for a task begin with these.
TASK_HEADS = ("classifier.", "pre_classifier.", "qa_outputs.", "score.", "regressor.")
# The names of constants that some versions wrote among the weights end with these.
SAVED_CONSTANTS = ("embeddings.token_type_ids", "rotary_emb.inv_freq")
MAX_LINES = 20  # faults that a message lists


def read_encoder(folder: ModelFolder, head: Collection[str] = ()) -> tuple[Path, dict[str, Tensor]]:
    """Return the file to name in errors, and every tensor of a folder under its canonical name.

    Tensors that no encoder needs are left out, unless they are a ``head``'s, by canonical name:
    ModernBERT's classifier has the names of its head for masked words.
    """
    # The config is read first, so that its errors come before those in the weights.
    family, config = folder.config
    if has_file(folder.path / ADAPTER):
        raise InputError(
            f"{folder.path / ADAPTER}: adapters are not supported: merge it into the weights "
            f"(peft: merge_and_unload) and save those"
        )

    files = weight_files(folder)
    check_memory(files)
    path = folder.path / WEIGHTS_INDEX  # for errors: the file with all tensors, if there is one
    if len(files) == 1:
        path = files[0]

    tensors: dict[str, Tensor] = {}
    for file in files:
        for stored, tensor in read_weights(file).items():
            name = family.canonical(stored)
            if name in tensors:
                raise InputError(f"{file} holds {one_line(name)} twice, or another shard holds it")
            is_left_out = name in family.skipped or name.endswith(SAVED_CONSTANTS)
            if name in head or not is_left_out:
                tensors[name] = tensor

    # Beside this key ordinary floats are the weights before they were quantized, or after they were
    # dequantized, and are used as they are. Integers and float8 need scales, which are not read.
    quantization = folder.json(CONFIG).get("quantization_config")
    if quantization is not None and not all(is_float(tensor) for tensor in tensors.values()):
        reason = "save the dequantized weights (transformers: model.dequantize()) without this key"
        raise unsupported(folder.path / CONFIG, "quantization_config", quantization, reason)

    # A damaged number must not fill the memory with layers before they are compared with the file.
    if config.num_hidden_layers > len(tensors):
        key = family.settings.get("num_hidden_layers", "num_hidden_layers")
        raise InputError(
            f"{folder.path / CONFIG}: {key} {config.num_hidden_layers}, but {path.name} has "
            f"{len(tensors)} tensors"
        )
    return path, tensors


def check_memory(files: Sequence[Path]) -> None:
    """Raise ``InputError`` for files of weights with more bytes than this machine has memory.

    A sparse file of a terabyte takes no room on a disk.
    """
    if not hasattr(os, "sysconf"):  # Windows
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    size = 0
    for path in files:
        if has_file(path):
            size += path.stat().st_size
    if size > memory:
        raise InputError(
            f"{files[0]} and the weights beside it have {size:,} bytes, and this machine "
            f"{memory:,} bytes of memory"
        )


def is_float(tensor: Tensor) -> bool:
    """Return whether a tensor holds floating point numbers of 16 bits or more."""
    return tensor.is_floating_point() and tensor.itemsize > 1


def weight_files(folder: ModelFolder) -> list[Path]:
    """Return ``model.safetensors``, or the shards that an index names, if there is one."""
    path = folder.path / WEIGHTS
    index = folder.path / WEIGHTS_INDEX
    if has_file(path) or not has_file(index):
        return [path]

    shards = folder.json_settings(WEIGHTS_INDEX).get("weight_map", dict, {}, items=str)
    for name in shards.values():
        if Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise InputError(
                f"{index}: {one_line(name)} is not the name of a safetensors file beside it"
            )
    if not shards:
        return [path]
    return [folder.path / name for name in sorted(set(shards.values()))]


def load_transformer(
    folder: str | Path | ModelFolder, weights: tuple[Path, dict[str, Tensor]] | None = None
) -> Encoder:
    """Load the encoder of a folder, of any family, float32, in eval mode.

    ``weights`` are what ``read_encoder`` has returned, less the tensors of a head. Raises
    ``InputError`` with a list of missing, unexpected and misshapen tensors.
    """
    if not isinstance(folder, ModelFolder):
        folder = read_folder(folder)
    family, config = folder.config
    if weights is None:
        weights = read_encoder(folder)
    path, tensors = weights

    # No setting says whether a file has a pooler, so its tensors do.
    pooler_prefixes = tuple(f"{stored}." for stored in family.pooler.values())
    has_pooler = any(name.startswith(pooler_prefixes) for name in tensors)

    with reading(folder.path / CONFIG), unfilled():
        encoder = family.encoder(config, has_pooler)
    try:
        fill(encoder, tensors, path, family.names(config.num_hidden_layers, has_pooler))
    except InputError as error:
        raise name_task_head(error, folder, path, tensors) from error
    return encoder.eval()


def name_task_head(
    error: InputError, folder: ModelFolder, path: Path, tensors: dict[str, Tensor]
) -> InputError:
    """Add a line about a task head to a list of faults, if the tensors have one."""
    head = sorted(name for name in tensors if name.startswith(TASK_HEADS))
    if not head:
        return error
    names = printable(", ".join(head))
    classes = printable(", ".join(folder.architectures))
    return InputError(
        f"{error}\n  {path.name} has a task head, {names} (architecture {classes}): PairModel "
        f"opens a CrossEncoder; for vectors save the encoder alone "
        f"(model.base_model.save_pretrained)"
    )


def fill(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    path: Path,
    names: Mapping[str, str] | None = None,
) -> None:
    """Give a module the tensors of a file, as float32.

    ``names`` maps its parameters to the file's names; None if both are the same. Every tensor is
    used and every parameter filled. Raises ``InputError`` with a list of what is missing,
    unexpected, misshapen or no number, at most ``MAX_LINES``, and then changes nothing.
    """
    if names is None:
        names = {name: name for name, _ in module.named_parameters()}
    # The shapes that the file must have, under its own names, which the message uses.
    shapes = {}
    for name, parameter in module.named_parameters():
        shapes[names[name]] = tuple(parameter.shape)
    faults = list_faults(tensors, shapes)
    if len(faults) > MAX_LINES:
        left_out = len(faults) - MAX_LINES
        faults = [*faults[:MAX_LINES], f"and {left_out} more"]
    if faults:
        raise InputError(f"{path} does not fit the config beside it:\n  " + "\n  ".join(faults))

    # The module gets copies, because the tensors of a file are its bytes, mapped to memory.
    state = {}
    for name, _ in module.named_parameters():
        state[name] = tensors[names[name]].clone().float()
    module.load_state_dict(state, assign=True)


def list_faults(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """List what keeps a file's tensors from being the weights of these shapes, a line each."""
    faults = []
    for name, shape in shapes.items():
        if name not in tensors:
            faults.append(f"missing {name} {shape}")
    for name, tensor in tensors.items():
        if name not in shapes:
            faults.append(f"unexpected {printable(name)} {tuple(tensor.shape)}")
    for name, shape in shapes.items():
        if name in tensors:
            fault = find_fault(name, tensors[name], shape)
            if fault is not None:
                faults.append(fault)
    return faults


def find_fault(name: str, tensor: Tensor, shape: tuple[int, ...]) -> str | None:
    """Say what keeps a file's tensor from being a weight of this shape; None if nothing does."""
    if tuple(tensor.shape) != shape:
        return f"misshapen {name}: {tuple(tensor.shape)}, the config asks for {shape}"
    if not is_float(tensor):
        return f"{name} holds {tensor.dtype}, not floating point numbers of 16 bits or more"
    smallest, largest = tensor.aminmax()  # both are NaN if any number is
    if not smallest.isfinite() or not largest.isfinite():
        return f"{name} holds NaN or infinity"
    return None


class Unfilled(TorchFunctionMode):
    """Inside this context ``torch.nn.init`` fills no weights.

    On the device "meta" there is nothing to fill, yet ``normal_`` would import torch's compiler
    there: 800 modules, which takes a second.
    """

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if kwargs is None:
            kwargs = {}
        if getattr(function, "__module__", None) != "torch.nn.init":
            return function(*args, **kwargs)
        # A function of torch.nn.init returns the tensor that it has filled.
        if "tensor" in kwargs:
            return kwargs["tensor"]
        return args[0]


@contextmanager
def unfilled() -> Iterator[None]:
    """Within this context a module is built without weights: they are given to it at once.

    Raises ``ValueError`` for sizes that no tensor can have.
    """
    try:
        with torch.device("meta"), Unfilled():
            yield
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read every tensor of a model's file; ``InputError`` if it is missing or damaged."""
    if not has_file(path):
        old = path.with_name("pytorch_model.bin")
        if old.exists():
            raise InputError(
                f"{path} is missing; docs/assets.md says how to write it from {old.name}"
            )
        raise InputError(f"{path} is missing")
    check_memory([path])
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
    # safetensors writes the bytes of contiguous tensors, and refuses tensors that share memory, as
    # tied weights do: those are copied.
    contents: dict[str, Tensor] = {}
    addresses: set[int] = set()
    for name, tensor in tensors.items():
        content = tensor.detach().cpu().contiguous()
        address = content.untyped_storage().data_ptr()
        if address in addresses:
            content = content.clone()
        contents[name] = content
        addresses.add(address)

    # ``save_file`` makes a file that only its owner may read; it gets the user's usual mode.
    path.touch()
    mode = path.stat().st_mode
    header = {"format": "pt"}
    if metadata is not None:
        header |= metadata
    try:
        save_file(contents, path, metadata=header)
    except SafetensorError as error:
        # The library hides the system's error number in a message. With it, an atomic write can add
        # the target's name.
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise OSError(f"{path}: {error}") from error
        number = int(code[1])
        raise OSError(number, os.strerror(number)) from error
    path.chmod(mode)


def save_bert(encoder: Encoder, folder: Path) -> None:
    """Write the config and the float32 weights of any encoder, as files of its family have them."""
    write_json(folder / CONFIG, stored_config(encoder.config))
    write_safetensors(named_tensors(encoder), folder / WEIGHTS)


def stored_config(config: Any) -> dict[str, Any]:
    """Return the contents of ``config.json`` as the config's family has them."""
    family = ENCODER_FAMILIES[config.model_type]
    content: dict[str, Any] = {"architectures": [family.architecture], "dtype": "float32"}
    return content | family.write(dataclasses.asdict(config))


def named_tensors(encoder: Encoder) -> dict[str, Tensor]:
    """Return the parameters in float32, under the names of the model's own family."""
    family = ENCODER_FAMILIES[encoder.config.model_type]
    names = family.names(encoder.config.num_hidden_layers, encoder.pooler is not None)
    tensors = {}
    for name, parameter in encoder.named_parameters():
        tensors[names[name]] = parameter.float()
    return tensors
