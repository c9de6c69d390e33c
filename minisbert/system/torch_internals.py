"""The only file that uses private parts of torch, each behind a check and with a public fallback."""

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minisbert.system.devices import fastest_products

# the linear layer that ``torch.compile`` chooses on a CPU: on AMD's with AVX-512 twice as fast as
# torch's own
ONEDNN = (
    torch.backends.mkldnn.is_available()
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
)

# its linear layer of unsigned activations and signed weights: vector instructions without
# avx512_vnni, too
QLINEAR = (
    ONEDNN
    and hasattr(torch.ops.onednn, "qlinear_prepack")
    and hasattr(torch.ops.onednn, "qlinear_pointwise")
)
if QLINEAR:
    # torch cannot export the layout of a constant weight without being told its size
    with suppress(RuntimeError):  # of a later version, which can
        torch.library.register_fake("onednn::qlinear_prepack")(lambda weight, sizes: weight.mT)


def products(a: Tensor, b: Tensor) -> Tensor:
    """Multiply a (R, D) with the rows of b (C, D): (R, C), in float32 on the CPU; b may be
    ``laid_out``.
    """
    with torch.autocast("cpu", enabled=False):
        if ONEDNN:
            return torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
        return a @ b.mT


def laid_out(matrix: Tensor) -> Tensor:
    """Lay out a float32 matrix (C, D) for oneDNN, for ``products`` only; unchanged if oneDNN does
    not run.
    """
    if ONEDNN:
        return torch.ops.mkldnn._reorder_linear_weight(matrix)
    return matrix


class OneDNNLinear(TorchFunctionMode):
    """Route float32 linear layers on the CPU to oneDNN while gradients are disabled."""

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        if function is nn.functional.linear and len(arguments) == 3 and suits(*arguments[:2]):
            x, weight, bias = arguments
            return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return function(*arguments, **(options or {}))


def suits(x: Tensor, weight: Tensor) -> bool:
    """Return whether ``OneDNNLinear`` may multiply x (..., D) and weight (C, D)."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    return all(each.device.type == "cpu" and each.dtype == torch.float32 for each in (x, weight))


def fastest_linear() -> AbstractContextManager:
    """Return a context in which linear layers without gradients are oneDNN's on CPUs where those
    are faster.
    """
    return OneDNNLinear() if ONEDNN and fastest_products()[0] == "oneDNN" else nullcontext()


def int8_products(a: Tensor, b: Tensor) -> Tensor:
    """Multiply a (R, D) with the rows of b (C, D), both int8 on the CPU: (R, C) int32; with
    avx512_vnni by oneDNN.
    """
    if hasattr(torch, "_int_mm"):
        return torch._int_mm(a, b.mT)
    return a.int() @ b.mT.int()


def unsigned_products(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    """Multiply a (R, D) uint8 with the rows of b (C, D) int8, times ``scale`` (C,), on the CPU: (R,
    C) float32.

    Exact for b from -64 to 64: AVX2 without VNNI adds pairs of products in 16 bits.
    """
    if not QLINEAR:
        return (a.float() @ b.float().mT) * scale
    packed = torch.ops.onednn.qlinear_prepack(b, None)
    zeros = torch.zeros(len(b), dtype=torch.int32)
    # a and the result as they are, scale 1 and offset 0 of either; no bias, no function
    return torch.ops.onednn.qlinear_pointwise(
        a, 1.0, 0, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], "none"
    )


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


def ragged_attention(query: Tensor) -> Callable[..., Tensor] | None:
    """Return attention within texts that follow each other in a row, for a query (S, H, K) like
    this one, or None.

    A function of query, key, value, the texts' edges (N + 1,) int32 and the longest text, to (S, H,
    K). The kernel is for half precision on a GPU from Ampere on; torch 2.10 has a function for it,
    older ones the operation behind it.
    """
    if (
        query.dtype not in (torch.bfloat16, torch.float16)
        or query.shape[-1] % 8
        or query.device.type != "cuda"
    ):
        return None
    if torch.cuda.get_device_capability(query.device) < (8, 0):
        return None
    try:
        varlen: Callable = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    except ImportError:
        forward = torch.ops.aten._flash_attention_forward
        return lambda q, k, v, edges, longest: forward(
            q, k, v, edges, edges, longest, longest, 0.0, False, False
        )[0]
    return lambda q, k, v, edges, longest: varlen(q, k, v, edges, edges, longest, longest)
