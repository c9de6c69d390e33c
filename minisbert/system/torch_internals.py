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

# a smaller gain could be noise, and neither last bits nor the contents of a package must depend on noise: in doubt
# torch's own library, which is never much slower
GAIN = 1.15
FEW_ROWS = 256  # below this, torch's own linear layer is as fast


def products(a: Tensor, b: Tensor) -> Tensor:
    """Multiply a (R, D) with the rows of b (C, D): (R, C), in float32 on the CPU; b may be ``laid_out``."""
    with torch.autocast("cpu", enabled=False):
        if ONEDNN:
            return torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
        return a @ b.mT


def laid_out(matrix: Tensor) -> Tensor:
    """Lay out a float32 matrix (C, D) for oneDNN, for ``products`` only; unchanged if oneDNN does not run."""
    if ONEDNN:
        return torch.ops.mkldnn._reorder_linear_weight(matrix)
    return matrix


class OneDNNLinear(TorchFunctionMode):
    """Route large float32 linear layers on the CPU to oneDNN while gradients are disabled."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if function is nn.functional.linear and len(arguments) == 3 and suits(*arguments[:2]):
            x, weight, bias = arguments
            return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return function(*arguments, **(options or {}))


def suits(x: Tensor, weight: Tensor) -> bool:
    """Return whether ``OneDNNLinear`` may multiply x (..., D) and weight (C, D)."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    if any(each.device.type != "cpu" or each.dtype != torch.float32 for each in (x, weight)):
        return False
    return x.numel() >= FEW_ROWS * x.shape[-1]


@cache
def onednn_gain(
    width: int = 384, inner: int = 1536, rows: tuple[int, ...] = (FEW_ROWS,), with_gelu: bool = False
) -> float:
    """Measure how much faster oneDNN's linear layers are than torch's own on this CPU; 0 without oneDNN.

    The layers are those of an encoder: query, key and value as one product, up, and down. On AMD's Zen 5 the result is
    about 2, since MKL uses no AVX-512 there; on Intel's CPUs about 1. The default takes some 50 ms, for MiniLM's sizes.
    ``with_gelu`` adds GELU behind up, which oneDNN computes inside its product, as in compiled packages.
    """
    if not ONEDNN:
        return 0.0
    own, onednn = 0.0, 0.0
    for count in rows:
        for columns, outputs, is_up in ((width, 3 * width, False), (width, inner, True), (inner, width, False)):
            x, weight, bias = torch.ones(count, columns), torch.ones(outputs, columns), torch.ones(outputs)
            seconds = layer_seconds(x, weight, bias, with_gelu and is_up)
            own, onednn = own + seconds[0], onednn + seconds[1]
    return own / onednn


def layer_seconds(x: Tensor, weight: Tensor, bias: Tensor, gelu: bool) -> tuple[float, float]:
    """Time a linear layer by torch and by oneDNN, with or without GELU.

    The best of five, in alternation: other processes and the first call, which compiles kernels, only add time, so the
    smallest time is the one nearest to the truth. A single measurement of one layer said 0.81 to 1.16 on one machine.
    """
    after, algorithm = ("gelu", "none") if gelu else ("none", "")
    own, onednn = float("inf"), float("inf")
    with torch.inference_mode(), torch.autocast("cpu", enabled=False):
        for _ in range(5):
            started = time.perf_counter()
            y = nn.functional.linear(x, weight, bias)
            if gelu:
                nn.functional.gelu(y)
            between = time.perf_counter()
            torch.ops.mkldnn._linear_pointwise(x, weight, bias, after, [], algorithm)
            own = min(own, between - started)
            onednn = min(onednn, time.perf_counter() - between)
    return own, onednn


def fastest_linear() -> AbstractContextManager:
    """Return a context in which linear layers without gradients are oneDNN's where that is clearly faster."""
    if onednn_gain() >= GAIN:
        return OneDNNLinear()
    return nullcontext()


def int8_products(a: Tensor, b: Tensor) -> Tensor:
    """Multiply a (R, D) with the rows of b (C, D), both int8 on the CPU: (R, C) int32; with avx512_vnni by oneDNN."""
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
        # returns a tensor if it is the only output
        run = torch._inductor.aoti_load_package(str(path))
        return lambda *inputs: torch.utils._pytree.tree_leaves(run(*inputs))

    def boxed(*inputs: Tensor) -> Sequence[Tensor]:
        # subtle: OpenMP keeps the number for each thread; asking for it hands on torch's
        torch.get_num_threads()
        return loader.boxed_run(list(inputs))

    return boxed
