"""Products as another CPU might compute them: ``pytest --jitter SEED``.

A matrix product rounds differently on each CPU, and for each number of rows. A test that passes
with every float32 product off by a relative 1e-6 does not depend on the last bits of the machine
that it was written on.
"""

import zlib
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

PRODUCTS = {
    *(torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.einsum, torch.tensordot),
    *(Tensor.matmul, Tensor.mm, Tensor.bmm, Tensor.__matmul__, Tensor.__rmatmul__, Tensor.addmm),
    *(functional.linear, functional.scaled_dot_product_attention, functional.bilinear),
}
RELATIVE = 1e-6


class Jitter(TorchFunctionMode):
    """Multiply the result of each float32 product by 1 + e, e between -1e-6 and 1e-6.

    e follows from the seed, the result's shape and its value: the same rows in the same batches
    give the same bits, and equal values stay equal, as on any one CPU; a row in a batch of another
    size gets other last bits.
    """

    def __init__(self, seed: str) -> None:
        super().__init__()
        self.seed = seed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in PRODUCTS or result.dtype != torch.float32 or result.device.type != "cpu":
            return result
        if result.layout != torch.strided:  # a sparse product of the reference library's own
            return result
        salt = zlib.crc32(f"{self.seed} {tuple(result.shape)}".encode())
        # a multiplicative hash of the bits; int64, so that nothing overflows
        bits = result.detach().contiguous().view(torch.int32).long() & 0xFFFFFFFF
        mixed = ((bits ^ salt) * 0x9E3779B1) & 0xFFFFFFFF
        mixed = ((mixed ^ (mixed >> 15)) * 0x85EBCA6B) & 0xFFFFFFFF
        e = (mixed.double() / 2**31 - 1.0) * RELATIVE
        return result * (1.0 + e).float().view(result.shape)
