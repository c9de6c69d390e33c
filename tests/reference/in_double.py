"""transformers in float64: newer models compute norms, softmax and rotary angles in float32, whatever they get."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch


class Wide:
    """torch, but for the name of the dtype."""

    float32 = float = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def in_double(*modules: ModuleType) -> Iterator[None]:
    """Inside, modeling modules of transformers take float64 wherever they say float32: build and run models in it."""
    narrow = torch.Tensor.float
    torch.Tensor.float = torch.Tensor.double
    for module in modules:
        module.torch = Wide()
    try:
        yield
    finally:
        torch.Tensor.float = narrow
        for module in modules:
            module.torch = torch
