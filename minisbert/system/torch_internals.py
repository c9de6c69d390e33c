"""The only file that uses private parts of torch, each behind a check and with a public fallback."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

# the linear layer that ``torch.compile`` chooses on a CPU: on some twice as fast as torch's own
ONEDNN = (
    torch.backends.mkldnn.is_available()
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
)


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
