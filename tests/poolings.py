"""Hidden states and poolings for the tests of the book's and of the library's poolings."""

import torch
from torch import Tensor

from minisbert.core.pooling import Pooling

MODES = ["mean", "cls", "max", "attention"]
LENGTHS = [5, 2, 1, 4]  # of 5 tokens: one text is full, one has a single token
REAL = torch.arange(5) < torch.tensor(LENGTHS)[:, None]  # (4, 5)


def random_hidden(shape: tuple[int, ...] = (4, 5, 3), seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def book_pooling(mode: str) -> Pooling:
    """In float64; attention with random parameters."""
    module = Pooling(mode, 3).double()
    for seed, parameter in enumerate(module.parameters(), start=5):
        parameter.data = random_hidden(parameter.shape, seed)
    return module
