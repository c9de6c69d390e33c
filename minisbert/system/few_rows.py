"""Linear layers of few rows, with weights that are laid out once.

A matrix library copies both factors of a product into the order that its kernel reads. With
thousands of rows that is little work beside the product itself; with the dozen rows of one short
text it is more than half of the time. Here each weight is brought into that order once, and kept
beside the model: 42 MB for all-MiniLM-L6-v2.

    text ─> 14 rows ─> nn.Linear ─┬─ few rows:  the weight's laid-out copy
                                  └─ many rows: the weight itself

A copy is made when few rows first meet its weight. It is freed with the weight, is never saved or
pickled, and is dropped when the weight changes. ``MINISBERT_LAID_OUT=0`` switches all of it off.
"""

import os
import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from minisbert.system.devices import laid_out_products
from minisbert.system.torch_internals import LAYOUTS, Layout

VARIABLE = "MINISBERT_LAID_OUT"
# Of so many numbers of a weight one is compared with what it was when the copy was made. It is a
# prime, so that the places wander through all columns.
SAMPLE_STEP = 1009
# How much a product may differ from ``F.linear``, relative to its largest number.
TOLERANCE = 1e-5


@dataclass
class LaidOut:
    """A weight's laid-out copy, and what the weight was like when it was made."""

    copy: Tensor
    version: int  # torch counts the changes of a tensor's numbers in place
    address: int
    sample: Tensor  # a few of the numbers: a change through ``weight.data`` is not counted

    def still_holds(self, weight: Tensor) -> bool:
        if weight._version != self.version or weight.data_ptr() != self.address:
            return False
        return torch.equal(sample_of(weight), self.sample)


def sample_of(weight: Tensor) -> Tensor:
    """Return a view of one number in ``SAMPLE_STEP``, the first and others all over the matrix."""
    return weight.detach().view(-1)[::SAMPLE_STEP]


# The copies of all models, each for as long as its weight lives.
_copies: WeakIdKeyDictionary = WeakIdKeyDictionary()
# Whether a layout gives the numbers of ``F.linear``, by layout, rows and the weight's shape.
_agrees: dict[tuple[str, int, torch.Size], bool] = {}
_lock = threading.Lock()


class FewRowsLinear(TorchFunctionMode):
    """Route float32 linear layers of few rows to laid-out weights while gradients are disabled."""

    def __init__(self, layout: Layout):
        super().__init__()
        self.layout = layout

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        # ``nn.Linear`` passes its bias, or None, by position; other calls stay as they are.
        if function is nn.functional.linear and len(arguments) == 3:
            x, weight, bias = arguments
            if may_multiply(x, weight, self.layout.most_rows):
                result = self.multiply(x, weight, bias)
                if result is not None:
                    return result
        return function(*arguments, **(options or {}))

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        """Multiply x (..., D) by the copy of ``weight`` (C, D): (..., C), or None.

        None stands for a number of rows with which the layout has not given the numbers of
        ``F.linear``: MKL documents a copy only for the number of rows that it was made for.
        """
        rows = x.reshape(-1, x.shape[-1])  # (R, D)
        result = self.layout.multiply(rows, copy_of(weight, self.layout), weight, bias)  # (R, C)

        key = (self.layout.name, len(rows), weight.shape)
        if key not in _agrees:
            expected = nn.functional.linear(rows, weight, bias)
            allowed = TOLERANCE * float(expected.abs().max())
            _agrees[key] = float((result - expected).abs().max()) <= allowed  # False for NaN
        if not _agrees[key]:
            return None
        return result.view(*x.shape[:-1], -1)


def may_multiply(x: Tensor, weight: Tensor, most_rows: int) -> bool:
    """Return whether x (..., D) has few rows, and ``weight`` (C, D) is one to lay out."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    # Only a model's own weights live for more than one call. Those that were made in inference mode
    # do not count their changes.
    if not isinstance(weight, nn.Parameter) or weight.is_inference():
        return False
    if x.numel() > most_rows * x.shape[-1] or not x.numel():
        return False
    on_cpu = x.device.type == weight.device.type == "cpu"
    return on_cpu and x.dtype == weight.dtype == torch.float32 and weight.is_contiguous()


def copy_of(weight: Tensor, layout: Layout) -> Tensor:
    """Return the laid-out copy of a weight; make it if there is none, or if the weight changed."""
    kept = _copies.get(weight)
    if kept is None or not kept.still_holds(weight):
        with _lock:
            kept = LaidOut(
                layout.lay_out(weight.detach()),
                weight._version,
                weight.data_ptr(),
                sample_of(weight).clone(),
            )
            _copies[weight] = kept
    return kept.copy


def laid_out_linear() -> AbstractContextManager:
    """Return a context in which linear layers of few rows take laid-out weights.

    Only where this CPU gains by it, and torch has the operators.
    """
    layout = LAYOUTS.get(laid_out_products())
    if layout is None or os.environ.get(VARIABLE) == "0":
        return nullcontext()
    return FewRowsLinear(layout)
