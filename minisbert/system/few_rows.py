"""Linear layers of few rows, with weights that are laid out once.

A matrix library copies both factors of a product into the order that its kernel reads. With
thousands of rows that is little work beside the product itself; with the dozen rows of one short
text it is a large part of the time. Here each weight is brought into that order once, and kept
beside the model: 45 MiB for all-MiniLM-L6-v2 by oneDNN, 61 by MKL.

    text ─> 14 rows ─> FewRowsLinear ─┬─ few rows:  the weight's laid-out copy
                                      └─ many rows: the weight itself

A copy is made when few rows first meet its weight. It is freed with the weight, is never saved or
pickled, and is made again when the weight changes. Only a change of single numbers through
``weight.data``, which torch does not count, may go unnoticed. ``MINISBERT_LAID_OUT=0`` switches all
of it off.
"""

import math
import os
import threading
from functools import cache

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from minisbert.system.devices import laid_out_products
from minisbert.system.torch_internals import LAYOUTS, Layout

VARIABLE = "MINISBERT_LAID_OUT"
MOST_ROWS = 256  # with more rows a copy gains nothing
# So many numbers of a weight are compared with what they were when its copy was made.
SAMPLE = 32
# How much a product may differ from ``F.linear``, relative to its largest number.
TOLERANCE = 1e-5


class LaidOut:
    """A weight's laid-out copy, and what the weight was like when it was made."""

    def __init__(self, weight: Tensor, layout: Layout):
        self.version = weight._version  # torch counts the changes of a tensor's numbers in place
        self.address = weight.data_ptr()
        # A change through ``weight.data`` is not counted, so a few of the numbers are compared too:
        # every n-th, with an odd n, so that they lie in different columns of the matrix. They are
        # an array of NumPy over the weight's own memory, because torch takes ten times as long to
        # compare 32 numbers.
        numbers = weight.detach().numpy().reshape(-1)
        step = (len(numbers) // SAMPLE) | 1  # odd
        self.sampled = numbers[::step]
        self.sampled_bytes = self.sampled.tobytes()
        self.copy = layout.lay_out(weight.detach())

    def still_holds(self, weight: Tensor) -> bool:
        """Return whether the numbers of the weight are those that were copied."""
        if weight._version != self.version or weight.data_ptr() != self.address:
            return False
        return self.sampled.tobytes() == self.sampled_bytes


# The copies of all models, each for as long as its weight lives.
_copies: WeakIdKeyDictionary = WeakIdKeyDictionary()
# Whether a layout gives the numbers of ``F.linear``, by layout and the shapes of both factors.
_agreement: dict[tuple[str, torch.Size, torch.Size], bool] = {}
_lock = threading.Lock()


@cache
def chosen_layout() -> Layout | None:
    """Return the layout for few rows on this CPU.

    None where few rows gain nothing by one, where torch lacks the operators, and where
    ``MINISBERT_LAID_OUT`` is 0 when the first model is made.
    """
    library = laid_out_products()
    if library is None or os.environ.get(VARIABLE) == "0":
        return None
    return LAYOUTS.get(library)


class FewRowsLinear(nn.Linear):
    """``nn.Linear`` that multiplies few rows by a laid-out copy of its weight."""

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) -> (..., C)."""
        layout = chosen_layout()
        if layout is not None and may_multiply(x, self.weight):
            result = multiply(x, self.weight, self.bias, layout)
            if result is not None:
                return result
        return super().forward(x)


def may_multiply(x: Tensor, weight: Tensor) -> bool:
    """Return whether x (..., D) has few rows, and ``weight`` (C, D) is one to lay out."""
    # A graph that is traced or exported is for other numbers of rows, too.
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    # Weights that were made in inference mode do not count their changes.
    if type(weight) is not nn.Parameter or weight.is_inference():
        return False
    if x.numel() > MOST_ROWS * x.shape[-1] or not x.numel():
        return False
    on_cpu = x.device.type == weight.device.type == "cpu"
    return on_cpu and x.dtype == weight.dtype == torch.float32 and weight.is_contiguous()


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, layout: Layout) -> Tensor | None:
    """Multiply x (..., D) by the copy of ``weight`` (C, D): (..., C), or None.

    None stands for shapes with which the layout has not given the numbers of ``F.linear``: MKL
    documents a copy only for the number of rows that it was made for.
    """
    key = (layout.name, x.shape, weight.shape)
    if _agreement.get(key) is False:
        return None
    result = layout.multiply(x, copy_of(weight, layout), weight, bias)
    if key not in _agreement:
        expected = nn.functional.linear(x, weight, bias)
        largest = float(expected.abs().max())
        if not 0 < largest < math.inf:
            return expected  # zeros, infinite numbers and NaN say nothing of a layout
        _agreement[key] = float((result - expected).abs().max()) <= TOLERANCE * largest
    if not _agreement[key]:
        return None
    return result


def copy_of(weight: Tensor, layout: Layout) -> Tensor:
    """Return the laid-out copy of a weight; make it if there is none, or if the weight changed."""
    laid_out = _copies.get(weight)
    if laid_out is None or not laid_out.still_holds(weight):
        # Two threads may each make a copy, and the second one stays; but the dictionary may not be
        # changed by two at once.
        with _lock:
            laid_out = LaidOut(weight, layout)
            _copies[weight] = laid_out
    return laid_out.copy


def lay_out_for_few_rows(model: nn.Module) -> None:
    """Make all linear layers of a model take laid-out weights for few rows, if this CPU gains.

    They are changed in place. For code that asks whether a layer is an ``nn.Linear`` they still
    are; code that compares the exact type, as torch's ``quantize_dynamic`` does, leaves them out.
    """
    if chosen_layout() is None:
        return
    for module in model.modules():
        if type(module) is nn.Linear:
            # The same object with another forward: its hooks stay, and the names that it has.
            module.__class__ = FewRowsLinear
