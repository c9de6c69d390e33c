"""Devices, dtype and memory: where tensors live, and what the hardware multiplies fastest.

bfloat16 keeps float32's range in half the bits, with 8 bits of precision (two to three digits).
Hardware that multiplies it natively is about twice as fast or more; hardware that emulates it is
many times slower.
"""

import ctypes
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.core import InputError, one_line
from minisbert.system.console import say, warn

Model = TypeVar("Model", bound=nn.Module)
CPU_INFO = Path("/proc/cpuinfo")  # Linux only; elsewhere the flags are unknown and float32 is used
# How much the hidden states of Apple's GPU may differ from the CPU's, relative to the largest.
# Those of a device that works differ by about 1e-6 in float32.
MPS_DIFFERENCE = 1e-3
# M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h.
TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3
# GPU memory for each token of a batch and column of its hidden state: 44 were measured in float32.
TOKEN_BYTES = 60
BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")  # Intel's tiles, AVX-512, ARM

# The columns: what a CPU must have, the library that multiplies float32 fastest there, and the
# fastest dtype. The first row that fits counts. BLAS is torch's own library, MKL on x86.
#
# MKL uses no AVX-512 on AMD: on a Zen 5 it reaches 200 GFLOP/s and oneDNN 450, in bfloat16 950. On
# Intel's CPUs both reach the same, and without AMX bfloat16 is slower (docs/results.md).
FASTEST: tuple[tuple[set[str], str, torch.dtype], ...] = (
    ({"amx_bf16"}, "BLAS", torch.bfloat16),
    ({"AuthenticAMD", "avx512_bf16"}, "oneDNN", torch.bfloat16),
    ({"AuthenticAMD", "avx512f"}, "oneDNN", torch.float32),
    (set(), "BLAS", torch.float32),
)

# The same for few rows in float32: the library whose laid-out weights multiply one text or a few of
# them fastest, or None where the weights stay as they are. On a Zen 4 with all of its instruction
# sets they gain nothing with two threads (.96 to 1.02 times as fast), held to AVX2 they do (1.05 to
# 1.17). With AMX it has not been measured.
LAID_OUT: tuple[tuple[set[str], str | None], ...] = (
    ({"amx_bf16"}, None),
    ({"AuthenticAMD", "avx512_bf16"}, None),
    ({"AuthenticAMD", "avx2"}, "oneDNN"),
    ({"GenuineIntel", "avx2"}, "MKL"),
    (set(), None),
)


def compute_in_one_thread() -> None:
    """Compute with one CPU thread from now on."""
    torch.set_num_threads(1)


# subtle: OpenMP's threads do not survive a fork, and do not start again in the child, which would
# wait for them for ever: ``multiprocessing``'s Pool on Linux, gunicorn's workers. The child may set
# more threads itself if its parent has computed nothing.
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=compute_in_one_thread)


@cache
def cpu_flags() -> frozenset[str]:
    """Return the CPU's vendor and instruction sets as Linux names them, if they can be read."""
    try:
        return frozenset(CPU_INFO.read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return frozenset()


def fastest_products() -> tuple[str, torch.dtype]:
    """Look up what this CPU multiplies fastest: the library for float32 and the dtype."""
    flags = cpu_flags()
    for needed, library, dtype in FASTEST:
        if needed <= flags:
            return library, dtype
    raise AssertionError("the last row needs nothing")


def mkl_multiplies() -> bool:
    """Return whether MKL multiplies float32 fastest, of torch's libraries on this CPU."""
    library, _ = fastest_products()
    return library == "BLAS" and torch.backends.mkl.is_available()


def laid_out_products() -> str | None:
    """Look up the library that multiplies few rows fastest with laid-out weights, if one does."""
    flags = cpu_flags()
    for needed, library in LAID_OUT:
        if needed <= flags:
            return library
    raise AssertionError("the last row needs nothing")


def products_attend() -> bool:
    """Return whether attention in bfloat16 is faster as two products than as torch's operation.

    It is where oneDNN multiplies faster than MKL, which the operation calls.
    """
    return fastest_products() == ("oneDNN", torch.bfloat16)


def instruction_sets() -> list[str]:
    """Return the CPU's vector and matrix instructions, which compiled code may use.

    If they are unknown, return the kind of machine and the instructions that torch has chosen.
    """
    families = ("avx", "amx", "fma", "sse4", "bmi", "f16c", "sve", "asimd")
    sets = sorted(flag for flag in cpu_flags() if flag.startswith(families))
    if not sets:
        return [platform.machine(), torch.backends.cpu.get_cpu_capability()]
    return sets


def choose_device(name: str | torch.device | None) -> torch.device:
    """Return a torch device by name; ``auto``, as None, is CUDA, else Apple's GPU, else the CPU.

    Raises ``InputError`` if it cannot be used.
    """
    if name is None:
        name = "auto"
    if not isinstance(name, str | torch.device):
        raise InputError(f"a device is named, such as cpu or cuda:1, not {one_line(name)}")
    if name == "auto":
        if torch.cuda.is_available():
            name = "cuda"
        elif torch.backends.mps.is_available():
            name = "mps"
        else:
            name = "cpu"
    # Here, because a model's device is chosen before the model computes.
    call_mkl_alone()
    try:
        # A round trip: the meta device accepts tensors but cannot copy them back.
        torch.empty(1, device=name).cpu()
    # Which of these errors it is depends on how torch was built.
    except (RuntimeError, AssertionError, ImportError) as error:
        # The first sentence: after it torch lists all its backends.
        reason = re.split(r"(?<=\.)\s|\n", str(error).strip())[0]
        if "Expected one of" in reason:  # twenty names, most of which nobody has
            reason = "choose auto, cpu, cuda, cuda:1 or mps"
        raise InputError(f"device {one_line(name)} cannot be used: {reason}") from error
    return torch.device(name)


def move_to(model: Model, bert: nn.Module, name: str | torch.device | None) -> Model:
    """Move a model to a device by name.

    Apple's GPU, which no test covers, must compute the CPU's hidden states of a batch by ``bert``,
    the part of the model that makes them. If it does not, ``auto`` stays on the CPU, and "mps"
    raises ``InputError``.
    """
    device = choose_device(name)
    if device.type != "mps":
        return model.to(device)

    expected = hidden_states(bert)
    model = model.to(device)
    difference = float((hidden_states(bert) - expected).abs().max() / expected.abs().max())
    message = (
        f"Apple's GPU computes a batch with a relative difference of {difference:.0e} from the CPU"
    )
    if difference <= MPS_DIFFERENCE:  # False for NaN
        say(message)
        return model
    if name not in ("auto", None):
        raise InputError(f"{message}: choose device cpu")
    warn(f"{message}: using the CPU")
    return model.to("cpu")


def hidden_states(bert: nn.Module) -> Tensor:
    """Compute the hidden states (2, 8, D) of a batch whose second row is padded; pads are 0."""
    device = next(bert.parameters()).device
    ids = torch.arange(16, device=device).reshape(2, 8)
    lengths = torch.tensor([[8], [5]], device=device)
    mask = torch.arange(8, device=device) < lengths
    with torch.inference_mode():
        return (bert(ids, mask) * mask[:, :, None]).cpu()


@cache
def call_mkl_alone() -> None:
    """Call MKL's functions once, before a model can be computed in several threads."""
    # subtle: threads that call one of them for the first time at once may get one of low precision,
    # off by 2e-5 in a vector (github.com/pytorch/pytorch/issues/188792); after a call by one thread
    # all get the right one.
    #
    # subtle: the memory of the numbers is NumPy's, because torch must not allocate any yet. When it
    # first does, it reads the variable that ``save_training_memory`` may still set.
    for function in (torch.erf, torch.exp, torch.log, torch.sqrt, torch.tanh):
        for dtype in (np.float32, np.float64):
            number = torch.from_numpy(np.ones(1, dtype))
            function(number, out=number)


def bfloat16_hardware(device: torch.device) -> tuple[bool, str]:
    """Return whether the device multiplies bfloat16 in hardware, and why.

    For example ``(True, "the CPU has avx512_bf16")``.
    """
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        reason = f"the GPU has compute capability {major}.{minor}, 8.0 is needed"
        return major >= 8, reason  # Ampere, 8.0, is the first
    if device.type != "cpu":
        return False, f"bfloat16 support of {device.type} is unknown"
    flags = cpu_flags()
    if not flags:
        return False, "the CPU's flags cannot be read here"
    for flag in BFLOAT16_FLAGS:
        if flag in flags:
            return True, f"the CPU has {flag}"
    return False, f"the CPU has none of {', '.join(BFLOAT16_FLAGS)}"


def choose_dtype(name: str, device: torch.device) -> tuple[torch.dtype, str]:
    """Return the dtype of matrix products for ``auto``, ``float32`` or ``bfloat16``, and why.

    Raises ``InputError`` for bfloat16 on hardware without it, where it would be many times slower.
    """
    if name == "float32":
        return torch.float32, "as requested"
    if name == "int8":
        raise InputError(
            "dtype int8 is for compiled models: minisbert compile --dtype int8, then --compiled"
        )
    if name not in ("auto", "bfloat16"):
        raise InputError(
            f"dtype {name!r} is not one of auto, float32, bfloat16, and of a compiled model int8"
        )
    able, reason = bfloat16_hardware(device)
    if not able:
        # Emulated bfloat16 is correct and many times slower, which looks like a hang: it is
        # refused, and not only warned of.
        if name == "bfloat16":
            raise InputError(f"bfloat16 cannot be used: {reason}; choose float32")
        return torch.float32, reason
    if name == "auto" and device.type == "cpu":
        _, fastest = fastest_products()
        if fastest == torch.float32:
            return fastest, f"{reason}, which is faster than float32 only on AMD or with AMX"
    return torch.bfloat16, reason


def fitting_tokens(device: torch.device, width: int) -> int:
    """Return how many tokens, pads counted, surely fit into a GPU's free memory at once.

    ``width`` is D of the encoder.
    """
    free, _ = torch.cuda.mem_get_info(device)
    # torch keeps memory that its tensors have freed, and will use it again.
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return (free + kept) // (TOKEN_BYTES * width)


def too_little_memory(
    device: torch.device, tokens: int, width: int, text_tokens: int
) -> InputError:
    """Return the error of a GPU without memory for a batch of ``tokens``, and which size would fit.

    A batch size counts texts of ``text_tokens`` tokens each; ``width`` is D of the encoder.
    """
    # Half of the batch at most, whatever the estimate says: the whole has just failed.
    fitting_texts = min(fitting_tokens(device, width), tokens // 2) // text_tokens
    if fitting_texts:
        advice = f"batch_size={fitting_texts} fits"
    else:
        advice = "not even a few texts fit: free some, or choose device cpu"
    return InputError(
        f"{device} has too little free memory for batch_size={tokens // text_tokens}: {advice}"
    )


def use_threads(count: int | None) -> None:
    """Compute with ``count`` CPU threads in torch and the tokenizer; None leaves their defaults.

    Call it before the first text is tokenized, when the tokenizer starts its threads.
    """
    if count is None:
        return
    cores = os.cpu_count() or count
    if hasattr(os, "sched_getaffinity"):  # macOS has none
        cores = len(os.sched_getaffinity(0))
    if count > cores:
        warn(f"{count} threads are slower than {cores}: this process may use no more cores")
    torch.set_num_threads(count)
    # The tokenizers library reads this variable. A user who has set it knows why.
    os.environ.setdefault("RAYON_NUM_THREADS", str(count))


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


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the random generators that dropout uses, and put them back as they were afterwards."""
    before = random_state(device)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        set_random_state(before, device)


def save_training_memory() -> None:
    """Limit oneDNN's cache, and let torch ask Linux for pages of 2 MiB for large tensors.

    Call it before the first tensor is made. oneDNN compiles a kernel for every shape, and
    length-grouped batches have many: its default of 1,024 cached kernels takes hundreds of MiB.
    Each micro-batch allocates a gradient of all word embeddings, 47 MB in MiniLM: Linux takes
    longer to provide it in pages of 4 KiB than torch to fill it. Torch has the second setting since
    2.2 (github.com/pytorch/pytorch/pull/115990).
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def keep_freed_memory() -> None:
    """Let glibc reuse the memory that tensors free instead of returning it to the system.

    Commands call it at their start. Otherwise the system must zero new pages for each layer's
    results, 10 % of encoding time. The process never shrinks.
    """
    with suppress(OSError):  # no glibc
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(MMAP_THRESHOLD, 2**25)  # the largest value that glibc accepts
        library.mallopt(TRIM_THRESHOLD, 2**31 - 1)
