"""A folder on disk <-> the modules, strict in both directions.

``config.json`` and ``model.safetensors`` are read and written with Hugging Face's names (``dialects.py``); what
stands behind the encoder in a sentence model is ``layout.py``'s. Only safetensors are opened. An old checkpoint,
which is a pickle, is converted once, by torch's restricted unpickler:

    python -m minisbert.checkpoint convert path/to/pytorch_model.bin
"""

import argparse
import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from minisbert.core import InputError, read_json
from minisbert.core.bert import Bert, BertConfig
from minisbert.models.families import DIALECTS, Dialect
from minisbert.system.console import run_command
from minisbert.system.files import atomic_file, write_json

# what config.json may say about a model that this encoder does not compute, and the only values accepted
ACCEPTED = {"is_decoder": (False,), "add_cross_attention": (False,), "pruned_heads": (None, {})}


def read_config(folder: Path) -> tuple[Dialect, BertConfig]:
    """The family and sizes in ``config.json``; ``InputError`` for a model that ``Bert`` does not compute."""
    path = folder / "config.json"
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder with a model in it")
    raw = read_json(path)
    dialect = DIALECTS.get(raw.get("model_type"))
    if dialect is None:
        raise InputError(f"{path}: model_type {raw.get('model_type')!r} is not supported; {', '.join(DIALECTS)} are")
    for key, accepted in ACCEPTED.items():
        if raw.get(key, accepted[0]) not in accepted:
            raise InputError(f"{path}: {key} {raw[key]!r} is not supported, only {accepted[-1]!r} is")
    stated = dialect.fields(raw)
    fields = dataclasses.fields(BertConfig)
    required = [field.name for field in fields if field.default is dataclasses.MISSING]
    missing = [dialect.settings.get(name, name) for name in required if name not in stated]
    if missing:
        raise InputError(f"{path} does not say {', '.join(missing)}")
    try:
        return dialect, BertConfig(**{field.name: stated[field.name] for field in fields if field.name in stated})
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def load_bert(folder: str | Path) -> Bert:
    """The encoder of a folder, float32, in eval mode.

    Every tensor of the file is used or skipped by name, every parameter of the model is filled from the file.
    Raises ``InputError`` with the full list of missing, unexpected and misshapen tensors.
    """
    folder = Path(folder)
    dialect, config = read_config(folder)
    path = folder / "model.safetensors"
    found = read_tensors(path, dialect)
    has_pooler = any(name.startswith(f"{theirs}.") for theirs in dialect.pooler.values() for name in found)
    with torch.device("meta"), Unfilled():  # no memory and no random numbers for weights that are replaced at once
        bert = Bert(config, pooler=has_pooler)
    names = dialect.names(config.num_hidden_layers, has_pooler)
    wanted = {names[ours]: tuple(parameter.shape) for ours, parameter in bert.named_parameters()}

    problems = [f"missing {name} {shape}" for name, shape in wanted.items() if name not in found]
    problems += [f"unexpected {name} {tuple(found[name].shape)}" for name in found if name not in wanted]
    for name, shape in wanted.items():
        if name in found and tuple(found[name].shape) != shape:
            problems.append(f"misshapen {name}: {tuple(found[name].shape)}, config.json asks for {shape}")
        elif name in found and not found[name].is_floating_point():
            problems.append(f"{name} holds {found[name].dtype}, not floating point numbers")
    if problems:
        raise InputError(f"{path} does not fit {folder / 'config.json'}:\n  " + "\n  ".join(problems))
    bert.load_state_dict({ours: found[theirs].float() for ours, theirs in names.items()}, assign=True)
    return bert.eval()


class Unfilled(TorchFunctionMode):
    """While this lasts, ``torch.nn.init`` fills no weights.

    On the device "meta" there is nothing to fill, and yet ``normal_`` would import torch's compiler there, a second's
    work and 800 modules.
    """

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if getattr(function, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return function(*args, **(kwargs or {}))


def read_tensors(path: Path, dialect: Dialect) -> dict[str, Tensor]:
    """Every tensor of a safetensors file under its canonical name, those that the dialect skips left out."""
    found: dict[str, Tensor] = {}
    for name, tensor in read_safetensors(path).items():
        canonical = dialect.canonical(name)
        if canonical in found:
            raise InputError(f"{path} holds {canonical} twice, under two names")
        if canonical not in dialect.skipped:
            found[canonical] = tensor
    return found


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file; ``InputError`` where it is missing or damaged, with what may stand there instead."""
    if not path.is_file():
        hint = ""
        if path.with_name("pytorch_model.bin").exists():
            hint = (
                f"; convert the old checkpoint: python -m minisbert.checkpoint convert {path.parent}/pytorch_model.bin"
            )
        elif path.with_name("model.safetensors.index.json").exists():
            hint = "; a checkpoint in several shards is not supported"
        raise InputError(f"{path} is missing{hint}")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise InputError(
            f"{path} is cut short or is not a safetensors file ({error}); fetch or save it again"
        ) from error


def read_metadata(path: Path) -> dict[str, str]:
    """What a safetensors file says about itself; ``InputError`` where it is none or is damaged."""
    try:
        with safe_open(path, "pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} cannot be read as a safetensors file ({error})") from error


def write_safetensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write tensors as they are, from whatever device; a full disk is an ``OSError``."""
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
    path.chmod(mode)  # save_file lets nobody but the owner read


def save_bert(bert: Bert, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` in the model's own dialect, float32."""
    dialect = DIALECTS[bert.config.model_type]
    about = {"architectures": [dialect.architecture], "dtype": "float32"}
    write_json(folder / "config.json", about | dialect.raw(dataclasses.asdict(bert.config)))
    names = dialect.names(bert.config.num_hidden_layers, bert.pooler is not None)
    tensors = {names[ours]: parameter.float() for ours, parameter in bert.named_parameters()}
    write_safetensors(tensors, folder / "model.safetensors")


def convert(path: Path, out: Path) -> int:
    """An old checkpoint to safetensors, dtypes kept; the number of tensors.

    Raises ``InputError`` for what is no checkpoint, and for one that holds more than tensors: torch's restricted
    unpickler (``weights_only=True``) runs no code of the file's.
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


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m minisbert.checkpoint", description="Convert old checkpoints.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("convert", help="pytorch_model.bin to model.safetensors, beside it")
    command.add_argument("file", type=Path, metavar="FILE", help="such as path/to/pytorch_model.bin")
    command.add_argument("--out", type=Path, help="default: model.safetensors in the same folder")
    options = parser.parse_args(arguments)
    out = options.out or options.file.with_name("model.safetensors")
    if out.exists():
        raise InputError(f"{out} exists and is not overwritten")
    print(f"wrote {convert(options.file, out)} tensors to {out}")


if __name__ == "__main__":
    run_command(main)
