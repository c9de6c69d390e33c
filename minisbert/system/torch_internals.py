"""The only file that uses private parts of torch, each behind a check and with a public fallback."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# the linear layer that ``torch.compile`` chooses on a CPU: on some twice as fast as torch's own
ONEDNN = (
    torch.backends.mkldnn.is_available()
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
)

GAIN = 1.3  # a smaller one could be noise, and last bits must not depend on noise
FEW_ROWS = 256  # below this, torch's own linear layer is as fast


def products(a: Tensor, b: Tensor) -> Tensor:
    """Products (R, C) of a (R, D) with b (C, D), in float32 on the CPU; b may be ``laid_out``."""
    with torch.autocast("cpu", enabled=False):
        if ONEDNN:
            return torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
        return a @ b.mT


def laid_out(matrix: Tensor) -> Tensor:
    """A float32 matrix (C, D) as oneDNN reads it fastest, for ``products`` only; itself if oneDNN does not run."""
    if ONEDNN:
        return torch.ops.mkldnn._reorder_linear_weight(matrix)
    return matrix


class OneDNNLinear(TorchFunctionMode):
    """Within it, a linear layer in float32 on the CPU without gradients is oneDNN's if it has enough rows."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if function is nn.functional.linear and len(arguments) == 3 and suits(*arguments[:2]):
            x, weight, bias = arguments
            return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return function(*arguments, **(options or {}))


def suits(x: Tensor, weight: Tensor) -> bool:
    """Whether ``OneDNNLinear`` may multiply x (..., D) and weight (C, D)."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    if any(each.device.type != "cpu" or each.dtype != torch.float32 for each in (x, weight)):
        return False
    return x.numel() >= FEW_ROWS * x.shape[-1]


@cache
def onednn_gain() -> float:
    """How many times as fast as torch's own linear layer oneDNN's is on this CPU: a measurement of some 40 ms.

    On AMD's Zen 5 it is about 2, since MKL uses no AVX-512 there; on Intel's CPUs about 1. 0 without oneDNN.
    """
    if not ONEDNN:
        return 0.0
    own, other = float("inf"), float("inf")
    for _ in range(6):  # the first one compiles kernels
        own = min(own, layer_seconds(nullcontext()))
        other = min(other, layer_seconds(OneDNNLinear()))
    return own / other


def layer_seconds(context: AbstractContextManager) -> float:
    x, weight = torch.ones(512, 384), torch.ones(1536, 384)
    with torch.inference_mode(), torch.autocast("cpu", enabled=False), context:
        started = time.perf_counter()
        nn.functional.linear(x, weight, None)
        return time.perf_counter() - started


def fastest_linear() -> AbstractContextManager:
    """A context in which linear layers without gradients are oneDNN's where that is clearly faster."""
    if onednn_gain() >= GAIN:
        return OneDNNLinear()
    return nullcontext()


def int8_products(a: Tensor, b: Tensor) -> Tensor:
    """Products (R, C) int32 of a (R, D) with b (C, D), both int8 on the CPU. On one with avx512_vnni oneDNN's."""
    if hasattr(torch, "_int_mm"):
        return torch._int_mm(a, b.mT)
    return a.int() @ b.mT.int()


def package_runner(path: Path) -> Callable[..., Sequence[Tensor]]:
    """Load a package of AOTInductor: a function from its inputs to its outputs.

    The public function does the same, but imports the whole compiler first, which takes seconds.
    """
    try:
        loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
    except (AttributeError, TypeError):  # another version of torch
        run = torch._inductor.aoti_load_package(str(path))  # returns a tensor if it is the only output
        return lambda *inputs: torch.utils._pytree.tree_leaves(run(*inputs))

    def boxed(*inputs: Tensor) -> Sequence[Tensor]:
        torch.get_num_threads()  # subtle: OpenMP keeps the number for each thread; asking for it hands on torch's
        return loader.boxed_run(list(inputs))

    return boxed
