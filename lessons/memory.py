"""What lesson 28 uses without explaining it: the bytes that graphs keep."""

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn


def kept_for_backward(
    network: nn.Module, loss: Callable[[Tensor], Tensor], vectors_of: nn.Module, rows: list[int]
) -> float:
    """The most MiB that graphs keep at any moment of a forward and backward, without weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    kept = Counter()  # how often each piece of memory is kept
    most = 0

    class Kept:
        def __init__(self, tensor: Tensor):
            nonlocal most
            self.tensor = tensor
            storage = tensor.untyped_storage()
            self.piece = storage.data_ptr(), storage.nbytes()
            if self.piece[0] not in weights:
                kept[self.piece] += 1
                most = max(most, sum(size for _, size in kept))

        def __del__(self):
            kept[self.piece] -= 1
            if kept[self.piece] <= 0:
                del kept[self.piece]

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        loss(vectors_of(rows)).backward()
    return most / 2**20
