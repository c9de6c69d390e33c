"""Linear layers in int8: a scale for each row of the weights, a step and an offset for each token as it comes."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from minisbert.core import InputError
from minisbert.core.bert import Bert
from minisbert.system.devices import choose_dtype, cpu_flags
from minisbert.system.torch_internals import int8_products

INSTRUCTIONS = "avx512_vnni"  # without them torch multiplies int8 number by number
SMALLEST = 1e-12  # step of a token whose activations are all the same
CLIPS = 16  # ranges of a weight's row to choose from: 70 to 100 % of its largest number


def package_dtype(name: str) -> str:
    """What a package of dtype ``name`` is compiled for: float32, bfloat16 or int8. ``InputError`` without hardware."""
    if name != "int8":
        return str(choose_dtype(name, torch.device("cpu"))[0]).removeprefix("torch.")
    if INSTRUCTIONS not in cpu_flags():
        raise InputError(f"int8 cannot be used: the CPU has no {INSTRUCTIONS}; choose float32 or bfloat16")
    return name


def stored(x: Tensor) -> Tensor:
    """``x`` behind a view with strides of its own, so that the compiler stores it instead of recomputing it."""
    strides = [1]
    for size in x.shape[:0:-1]:  # not numel(): it makes the example's sizes constants
        strides.insert(0, strides[0] * size)
    return x.contiguous().as_strided(x.shape, strides)


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight (C, D) as codes (C, D) int8 from -127 to 127 and a scale (C,): ``weight`` is about scale * codes.

    Of several ranges each row takes the one with the smallest squared error: larger numbers are clipped, the others get
    finer steps. ``quantize_weight([[1.27, -0.01]]) = [[127, -1]], [0.01]``.
    """
    shares = torch.linspace(1.0, 0.7, CLIPS)[:, None, None]
    scale = (shares * weight.abs().amax(dim=1, keepdim=True) / 127).clamp_min(SMALLEST)  # (CLIPS, C, 1)
    codes = (weight / scale).round().clamp(-127, 127)  # (CLIPS, C, D)
    error = (scale * codes - weight).pow(2).sum(dim=2)  # (CLIPS, C)
    best, rows = error.argmin(dim=0), torch.arange(len(weight))
    return codes[best, rows].to(torch.int8), scale[best, rows, 0]


def quantized_linear(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ (scale * codes).T + bias`` with a product of integers: x (N, D), codes (C, D), scale, bias (C,) -> (N, C).

    Each token x is written as step * c + middle, with integers c from -128 to 127. Then

        x . w  =  step * (c . codes) * scale  +  middle * sum(codes) * scale

    For x = [-1, 0, 1.55], codes = [1, 2, 3] and scale 0.5: step 0.01, c = [-128, -28, 127], middle 0.28, so
    0.01 * 197 * 0.5 + 0.28 * 6 * 0.5 = 1.825, which is (-1 + 0 + 4.65) * 0.5.
    """
    low, high = x.amin(dim=-1, keepdim=True), x.amax(dim=-1, keepdim=True)  # (N, 1)
    step = ((high - low) / 255).clamp_min(SMALLEST)  # (N, 1)
    c = ((x - low) * (1 / step)).round() - 128  # (N, D)
    middle = low + 128 * step  # (N, 1)
    sums = int8_products(c.to(torch.int8), codes) * scale  # (N, C)
    # subtle: ``sums * step`` would match a pattern of torch's compiler, whose product of signed numbers is 2,000 times
    # slower on a Zen 4 (docs/speed.md)
    y = step * sums + middle * (codes.sum(dim=1) * scale)  # (N, C)
    return y if bias is None else y + bias


class QuantizedLinear(nn.Module):
    """``quantized_linear`` with the weights of an ``nn.Linear``."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        codes, scale = quantize_weight(linear.weight.detach())
        self.register_buffer("codes", codes)  # (C, D) int8
        self.register_buffer("scale", scale)  # (C,)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        y = quantized_linear(stored(x.flatten(0, -2)), self.codes, self.scale, self.bias)  # (N, C)
        return y.unflatten(0, x.shape[:-1])  # (..., C)


def replace_linear(bert: Bert, kind: Callable[[nn.Linear], nn.Module]) -> None:
    """Replace all linear layers of an encoder's layers in place, and nothing else."""
    for module in list(bert.layers.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, kind(child))


def quantize(bert: Bert) -> None:
    """Replace the linear layers of an encoder's layers in place by ``QuantizedLinear``."""
    replace_linear(bert, QuantizedLinear)
