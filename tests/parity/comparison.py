"""What the checks of this folder have in common: inputs, and comparisons of several numbers."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.parity import GRADIENT, PIECE, Comparison, compare

# ------------------------------------------------------------------------------------------ inputs


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Random float64 numbers that require a gradient."""
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).requires_grad_()


def randomised(module: nn.Module, seed: int = 5) -> nn.Module:
    """The module in float64 and eval mode, with random parameters."""
    for i, parameter in enumerate(module.double().parameters()):
        parameter.data = normal(*parameter.shape, seed=seed + i, scale=0.5).detach()
    return module.eval()


def padded(numbers: Sequence[int], length: int) -> Tensor:
    """Numbers as a tensor (length,), padded with -1, so that lists of different lengths can be
    compared.
    """
    return torch.tensor([*numbers, *[-1] * length][:length], dtype=torch.float64)


def d(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


# ------------------------------------------------------------------------------------- comparisons


def same(name: str, value: Any, reference: Any, bound: float = PIECE) -> Comparison:
    """``compare`` of numbers in lists, arrays or tensors."""
    return compare(
        name, *(torch.as_tensor(np.asarray(side)).double() for side in (value, reference)), bound
    )


def fact(name: str, holds: bool | Tensor) -> Comparison:
    """Something that is true or false: a property that holds for any random numbers."""
    return compare(name, torch.as_tensor(holds), torch.tensor(True), PIECE)


def compare_gradients(
    name: str,
    value: Tensor,
    expected: Tensor,
    inputs: dict[str, Tensor],
    gradients: Sequence[Tensor],
    pull: Tensor | None = None,
) -> Iterator[Comparison]:
    """A value with the expected one, then the gradient of each named input with the expected one of
    ``gradients``.
    """
    yield compare(name, value, expected, PIECE)
    found = torch.autograd.grad(value, list(inputs.values()), pull, allow_unused=True)
    for key, gradient, reference in zip(inputs, found, gradients, strict=True):
        # a piece that ignores an input has no gradient there, which is wrong: the right one is not
        # 0
        gradient = torch.zeros_like(reference) if gradient is None else gradient
        yield compare(f"{name}, gradient of {key}", gradient, reference, GRADIENT)


def with_gradients(
    name: str, piece: Callable[..., Tensor], reference: Callable[..., Tensor], *inputs: Tensor
) -> Iterator[Comparison]:
    """The values of two functions, then the gradient of every input for one random output
    gradient.
    """
    value, expected = piece(*inputs), reference(*inputs)
    pull = normal(*expected.shape, seed=99).detach()
    named = {f"input {i}": x for i, x in enumerate(inputs)}
    yield from compare_gradients(
        name, value, expected, named, torch.autograd.grad(expected, inputs, pull), pull
    )


def whole(
    name: str,
    module: nn.Module,
    piece: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    *inputs: Tensor,
) -> Iterator[Comparison]:
    """The value, and the gradient of inputs and parameters; both sides use the module's
    parameters.
    """
    n, parameters = len(inputs), list(module.parameters())
    yield from with_gradients(
        name, lambda *x: piece(*x[:n]), lambda *x: reference(*x[:n]), *inputs, *parameters
    )
