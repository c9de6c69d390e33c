"""Old checkpoints, which are pickles, to safetensors: ``minisbert checkpoint convert path/to/pytorch_model.bin``."""

import re
from pathlib import Path

import torch
from torch import Tensor, nn

from minisbert.core import InputError, one_line
from minisbert.folder.weights import write_safetensors
from minisbert.system.files import atomic_file, listed, open_bytes

MOST_SHARED = 8  # the largest ratio of the tensors' size to the checkpoint's: tied weights are written twice


def convert(path: Path, out: Path) -> int:
    """Write the tensors of an old checkpoint as safetensors, dtypes kept, and return their number.

    Raises ``InputError`` for anything but a checkpoint of tensors alone: torch's restricted unpickler
    (``weights_only=True``) runs no code from the file.
    """
    with open_bytes(path) as file:
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # the bytes decide what an unpickler raises
            cause = type(error).__name__
            refused = re.search(r"GLOBAL \S+", str(error))  # torch also says how to run the code in the file
            if refused:
                cause = refused[0]
            raise InputError(f"{path} is not a checkpoint of tensors alone: {one_line(cause)}") from error
    form = "a state dict, names with dense tensors of real numbers"
    if not isinstance(content, dict) or not content:
        raise InputError(f"{path} does not hold {form}")
    odd = [str(name) for name, tensor in content.items() if not is_storable(name, tensor)]
    if odd:
        raise InputError(f"{path} does not hold {form}, but {listed(odd)}")
    size, stored = sum(tensor.nbytes for tensor in content.values()), path.stat().st_size
    if size > MOST_SHARED * stored:  # views of one small block of memory would each be written in full
        raise InputError(f"{path} has {stored:,} bytes, but its tensors would take {size:,}: is it damaged?")
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
