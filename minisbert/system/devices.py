"""Where tensors live and how precisely the machine multiplies them: devices, and whether bfloat16 is worth its error.

bfloat16 keeps float32's range in half its bits, with 8 bits of precision (about three digits). Hardware that
multiplies it is twice as fast or more; hardware that only emulates it is many times slower.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minisbert.core import InputError

CPU_INFO = Path("/proc/cpuinfo")  # Linux; elsewhere nothing is known, and float32 is what one gets
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # names of glibc's malloc.h
BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")  # Intel's tiles, AVX-512, ARM


def choose_device(name: str) -> torch.device:
    """``auto`` takes a CUDA GPU, else Apple's MPS, else the CPU; a device that is not there is an ``InputError``."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(1, device=name).cpu()  # and back: the device "meta" takes everything and returns nothing
    except (RuntimeError, AssertionError) as error:  # torch raises either, by how it was built
        raise InputError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from error
    return torch.device(name)


def bfloat16_hardware(device: torch.device) -> tuple[bool, str]:
    """Does this device multiply bfloat16 in hardware, and how do we know? For people: ``"the CPU has avx512_bf16"``."""
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)  # 8.0 is the first, Ampere
        return capability >= (8, 0), f"the GPU has compute capability {capability[0]}.{capability[1]}, 8.0 is needed"
    if device.type != "cpu":
        return False, f"nothing is known about bfloat16 on {device.type}"
    try:
        flags = set(CPU_INFO.read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return False, "the CPU's flags cannot be read here"
    found = [flag for flag in BFLOAT16_FLAGS if flag in flags]
    if found:
        return True, f"the CPU has {found[0]}"
    return False, f"the CPU has none of {', '.join(BFLOAT16_FLAGS)}"


def choose_precision(name: str, device: torch.device) -> tuple[torch.dtype, str]:
    """``auto``, ``float32`` or ``bfloat16`` to the dtype of matrix products, and the reason in a few words.

    Raises ``InputError`` for bfloat16 where the hardware lacks it: there it would be many times slower.
    """
    if name == "float32":
        return torch.float32, "as asked"
    able, reason = bfloat16_hardware(device)
    if name == "auto":
        return (torch.bfloat16 if able else torch.float32), reason
    if name != "bfloat16":
        raise InputError(f"precision {name!r} is not one of auto, float32, bfloat16")
    if not able:
        raise InputError(f"bfloat16 cannot be used: {reason}; choose float32")
    return torch.bfloat16, reason


@contextmanager
def autocast(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """While this lasts the module's matrix products are computed in ``dtype``; what it returns is float32 as ever.

    Only the encoder goes through here: pooling, heads and losses keep their precision (Micikevicius et al. 2018,
    section 3: weights and their updates stay in float32, and so do sums over many numbers).
    """
    if dtype == torch.float32:
        yield
        return
    forward = module.forward

    def lower(*arguments: Any, **options: Any) -> Tensor:
        with torch.autocast(next(module.parameters()).device.type, dtype):
            return forward(*arguments, **options).float()

    module.forward = lower
    try:
        yield
    finally:
        del module.forward  # the class's own is behind it


def keep_few_kernels() -> None:
    """Let oneDNN keep 64 compiled kernels, for the training command, before the first of them is made.

    It compiles one for every shape, and batches of like length have many shapes: of 1,024, which is what it keeps by
    itself, some hundred MiB are never used again.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")


def keep_freed_memory() -> None:
    """Ask the C library to keep the memory that tensors free, for the next tensors; for commands, at their start.

    By itself glibc gives every large buffer back to the system at once, and each layer's results then come in pages
    that the system must clear first: a tenth of the time of encoding. Where there is no glibc, nothing happens.
    The price is that the process stays as large as it ever was.
    """
    try:
        library = ctypes.CDLL("libc.so.6")
    except OSError:
        return
    library.mallopt(MMAP_THRESHOLD, 2**25)  # the most that glibc takes
    library.mallopt(TRIM_THRESHOLD, 2**31 - 1)
