"""Devices, dtype and memory: where tensors live and whether the hardware multiplies bfloat16.

bfloat16 keeps float32's range in half the bits, with 8 bits of precision (two to three digits). Hardware that
multiplies it natively is about twice as fast or more; hardware that emulates it is many times slower.
"""

import ctypes
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.core import InputError, one_line
from minisbert.system.console import say

CPU_INFO = Path("/proc/cpuinfo")  # Linux only; elsewhere the flags are unknown and float32 is used
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
TOKEN_BYTES = 60  # of GPU memory for each token of a batch and column of its hidden state; 44 measured in float32
# What was measured: "bfloat16", and the sizes of eager encoders, for which True is oneDNN. A resumed run restores those
# that it began with, because last bits depend on them.
CHOICES: dict[str, bool] = {}
BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")  # Intel's tiles, AVX-512, ARM

# subtle: threads that call one of MKL's functions for the first time at once may get one of low precision, off by 2e-5
# in a vector (github.com/pytorch/pytorch/issues/188792); after a call by one thread all get the right one. NumPy holds
# the numbers: when torch first takes memory, it reads the variable that `save_training_memory` sets
for function in (torch.erf, torch.exp, torch.log, torch.sqrt, torch.tanh):
    for dtype in (np.float32, np.float64):
        number = torch.from_numpy(np.ones(1, dtype))
        function(number, out=number)


def cpu_flags() -> set[str]:
    """Return the CPU's instruction sets, as Linux names them; none if they cannot be read."""
    try:
        return set(CPU_INFO.read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return set()


def instruction_sets() -> list[str]:
    """Return the CPU's vector and matrix instructions, which compiled code may use; if unknown, those torch uses."""
    families = ("avx", "amx", "fma", "sse4", "bmi", "f16c", "sve", "asimd")
    found = sorted(flag for flag in cpu_flags() if flag.startswith(families))
    return found or [platform.machine(), torch.backends.cpu.get_cpu_capability()]


def choose_device(name: str | torch.device) -> torch.device:
    """Return a torch device by name; ``auto`` is CUDA, else the CPU: MPS, which no test covers, must be asked for.

    Raises ``InputError`` if it cannot be used.
    """
    if not isinstance(name, str | torch.device):
        raise InputError(f"a device is named, such as cpu or cuda:1, not {one_line(name)}")
    if name == "auto":
        name = "cpu"
        if torch.cuda.is_available():
            name = "cuda"
    try:
        # round trip: the meta device accepts tensors but cannot copy them back
        torch.empty(1, device=name).cpu()
    except (RuntimeError, AssertionError, ImportError) as error:  # which one depends on how torch was built
        reason = re.split(r"(?<=\.)\s|\n", str(error).strip())[0]  # torch lists all its backends
        if "Expected one of" in reason:  # twenty names, most of which nobody has
            reason = "choose auto, cpu, cuda, cuda:1 or mps"
        raise InputError(f"device {one_line(name)} cannot be used: {reason}") from error
    return torch.device(name)


def bfloat16_hardware(device: torch.device) -> tuple[bool, str]:
    """Return whether the device multiplies bfloat16 in hardware, and why: ``(True, "the CPU has avx512_bf16")``."""
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)  # Ampere, 8.0, is the first
        return capability >= (8, 0), f"the GPU has compute capability {capability[0]}.{capability[1]}, 8.0 is needed"
    if device.type != "cpu":
        return False, f"bfloat16 support of {device.type} is unknown"
    flags = cpu_flags()
    if not flags:
        return False, "the CPU's flags cannot be read here"
    for flag in BFLOAT16_FLAGS:
        if flag in flags:
            return True, f"the CPU has {flag}"
    return False, f"the CPU has none of {', '.join(BFLOAT16_FLAGS)}"


def bfloat16_gain() -> float:
    """Measure how many times as fast a layer's product is in bfloat16, by the CPU time of one thread."""
    x, weight = torch.ones(512, 384), torch.ones(1536, 384)
    calls = [partial(nn.functional.linear, x.to(dtype), weight.to(dtype)) for dtype in (torch.float32, torch.bfloat16)]
    float32, bfloat16 = one_thread_seconds(calls, 7)
    return float32 / bfloat16


def choose_dtype(name: str, device: torch.device) -> tuple[torch.dtype, str]:
    """Return the dtype of matrix products for ``auto``, ``float32`` or ``bfloat16``, and the reason in a few words.

    Raises ``InputError`` for bfloat16 on hardware without it, where it would be many times slower.
    """
    if name == "float32":
        return torch.float32, "as requested"
    if name == "int8":
        raise InputError("dtype int8 is for compiled models: minisbert compile --dtype int8, then --compiled")
    if name not in ("auto", "bfloat16"):
        raise InputError(f"dtype {name!r} is not one of auto, float32, bfloat16, and of a compiled model int8")
    # emulated bfloat16 is correct and many times slower, which looks like a hang: refused, not warned of
    able, reason = bfloat16_hardware(device)
    if able and name == "auto" and device.type == "cpu" and "amx" not in reason:
        # Zen 4 multiplies it twice as fast as float32, a Xeon whose AMX is hidden half as fast
        if "bfloat16" not in CHOICES:
            CHOICES["bfloat16"] = bfloat16_gain() > 1
        if not CHOICES["bfloat16"]:
            return torch.float32, f"{reason}, but bfloat16 is slower"
    if able:
        return torch.bfloat16, reason
    if name == "auto":
        return torch.float32, reason
    raise InputError(f"bfloat16 cannot be used: {reason}; choose float32")


def fitting_tokens(device: torch.device, width: int) -> int:
    """Return how many tokens, pads counted, an encoder of width D surely computes at once in a GPU's free memory."""
    free, _ = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return (free + held) // (TOKEN_BYTES * width)


@contextmanager
def naming_batch_size(device: torch.device, tokens: int, width: int, text_tokens: int) -> Iterator[None]:
    """Turn a GPU's lack of memory for a batch of ``tokens`` into an ``InputError`` with the batch size that fits."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        fits = min(fitting_tokens(device, width), tokens // 2) // text_tokens
        advice = f"batch_size={fits} fits" if fits else "not even a few texts fit: free some, or choose device cpu"
        raise InputError(
            f"{device} has too little free memory for batch_size={tokens // text_tokens}: {advice}"
        ) from error


if hasattr(os, "register_at_fork"):  # not on Windows
    # OpenMP's threads do not survive a fork, and a child that used them would wait for them forever
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def use_threads(count: int | None) -> None:
    """Compute with ``count`` CPU threads in torch and the tokenizer, or with their defaults if None.

    Call it before the first text is tokenized, when the tokenizer starts its threads.
    """
    if count is None:
        return
    cores = os.cpu_count() or count
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        cores = len(os.sched_getaffinity(0))
    if count > cores:
        say(f"{count} threads are slower than {cores}: this process may use no more cores")
    # setdefault: who sets the tokenizer's own variable knows why
    torch.set_num_threads(count)
    os.environ.setdefault("RAYON_NUM_THREADS", str(count))  # read by the tokenizers library


def best_seconds(calls: Sequence[Callable], rounds: int, least: float = 0, clock: Callable = time.perf_counter) -> list:
    """Time calls in alternation, for some ``rounds`` and at ``least`` some seconds; return the best time of each.

    Other processes, and first calls, only add time: the smallest is the one nearest to the truth.
    """
    best, began = [float("inf")] * len(calls), time.monotonic()
    while rounds > 0 or time.monotonic() < began + least:
        rounds -= 1
        for index, call in enumerate(calls):
            started = clock()
            call()
            best[index] = min(best[index], clock() - started)
    return best


def one_thread_seconds(calls: Sequence[Callable], rounds: int) -> list[float]:
    """Time calls as ``best_seconds`` does, by the CPU time of one thread.

    On a busy machine no product is left alone from its beginning to its end, and threads wait for each other. By the
    clock on the wall, beside six processes, one gain came out as 1.05 to 1.75.
    """
    # the clock of CPU time ticks every 16 ms on Windows
    clock = time.perf_counter if sys.platform == "win32" else time.thread_time
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            return best_seconds(calls, rounds, clock=clock)
    finally:
        torch.set_num_threads(threads)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the states of the random generators that dropout uses."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        states["mps"] = torch.mps.get_rng_state()
    return states


def set_random_state(states: dict[str, Tensor], device: torch.device) -> None:
    """Restore what ``random_state`` returned."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
    if "mps" in states:
        torch.mps.set_rng_state(states["mps"])


def save_training_memory() -> None:
    """Limit oneDNN's cache, and let torch ask Linux for pages of 2 MiB for large tensors. Call it before the first one.

    oneDNN compiles a kernel for every shape, and length-grouped batches have many: its default of 1,024 cached kernels
    takes hundreds of MiB. Each micro-batch allocates a gradient of all word embeddings, 47 MB in MiniLM: Linux takes
    longer to provide it in pages of 4 KiB than torch to fill it. Torch >= 2.2 (github.com/pytorch/pytorch/pull/115990).
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def keep_freed_memory() -> None:
    """Let glibc reuse the memory that tensors free instead of returning it to the system. For commands, at start.

    Otherwise the system must zero new pages for each layer's results, 10 % of encoding time. The process never shrinks.
    """
    with suppress(OSError):  # no glibc
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(MMAP_THRESHOLD, 2**25)  # the largest value that glibc accepts
        library.mallopt(TRIM_THRESHOLD, 2**31 - 1)
