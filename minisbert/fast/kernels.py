"""The only file that uses private parts of torch: oneDNN's linear layers, and the hooks of a module.

The linear operations are what ``torch.compile`` chooses for the same layer. Torch may rename them: if they are missing,
or on another device or dtype, the public functions compute the same, less fast.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

ONEDNN = (
    torch.backends.mkldnn.is_available()
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
)


def linear(x: Tensor, weight: Tensor, bias: Tensor, with_gelu: bool = False) -> Tensor:
    """x W^T + b, and the exact GELU of it if asked: x (..., in), weight (out, in), bias (out,) -> (..., out)."""
    if ONEDNN and x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16):
        post, algorithm = ("gelu", "none") if with_gelu else ("none", "")  # "none": not the tanh approximation
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, post, [], algorithm)
    x = nn.functional.linear(x, weight, bias)
    return gelu(x) if with_gelu else x


def prepared(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A parameter in ``dtype``: itself if it has that dtype, otherwise a copy.

    A bfloat16 matrix on the CPU is also laid out as oneDNN reads it fastest, since it is a copy anyway.
    """
    copied = weight.to(dtype)
    if ONEDNN and dtype == torch.bfloat16 and weight.ndim == 2 and weight.device.type == "cpu":
        return torch.ops.mkldnn._reorder_linear_weight(copied)
    return copied


def has_hooks(module: nn.Module) -> bool:
    """Does somebody listen to this module's forward, or change it?"""
    return any(getattr(module, name, None) for name in ("_forward_hooks", "_forward_pre_hooks"))
