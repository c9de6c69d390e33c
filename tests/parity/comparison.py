"""What the checks of this folder share: inputs, and comparisons of several numbers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.parity import GRADIENT, PIECE, Comparison, compare

# ------------------------------------------------------------------------------------------- inputs


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Random float64 numbers that require a gradient."""
    generator = torch.Generator().manual_seed(seed)
    numbers = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    return numbers.requires_grad_()


def randomised(module: nn.Module, seed: int = 5) -> nn.Module:
    """The module in float64 and eval mode, with random parameters."""
    for i, parameter in enumerate(module.double().parameters()):
        parameter.data = normal(*parameter.shape, seed=seed + i, scale=0.5).detach()
    return module.eval()


def double(values: Any) -> Tensor:
    """A number, list or array as a float64 tensor."""
    return torch.as_tensor(values, dtype=torch.float64)


def padded(numbers: Sequence[int], length: int) -> Tensor:
    """Numbers as a tensor (length,), filled up with -1, so that lists of any length compare."""
    filled = [*numbers, *[-1] * length]
    return double(filled[:length])


# -------------------------------------------------------------------------------------- comparisons


def same(name: str, value: Any, reference: Any, bound: float = PIECE) -> Comparison:
    """``compare`` of numbers in lists, arrays or tensors."""
    ours = torch.as_tensor(np.asarray(value)).double()
    theirs = torch.as_tensor(np.asarray(reference)).double()
    return compare(name, ours, theirs, bound)


def same_lists(
    name: str, value: Sequence[int], reference: Sequence[int], length: int
) -> Comparison:
    """``compare`` of two lists, which may differ in length, as tensors of ``length`` numbers."""
    return compare(name, padded(value, length), padded(reference, length), PIECE)


def same_text(name: str, value: Sequence[str], reference: Sequence[str]) -> Comparison:
    """``compare`` of the characters of two lists of words; messages quote the words."""
    ours = [ord(character) for character in "\n".join(value)]
    theirs = [ord(character) for character in "\n".join(reference)]
    result = same_lists(name, ours, theirs, len(theirs) + 20)
    return replace(result, ours=value, reference=reference)


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
    """Compare a value, then the gradient of each named input with the one in ``gradients``."""
    yield compare(name, value, expected, PIECE)
    found = torch.autograd.grad(value, list(inputs.values()), pull, allow_unused=True)
    for key, gradient, reference in zip(inputs, found, gradients, strict=True):
        # A piece that ignores an input has no gradient there. That is wrong: the right one is
        # not 0.
        if gradient is None:
            gradient = torch.zeros_like(reference)
        yield compare(f"{name}, gradient of {key}", gradient, reference, GRADIENT)


def with_gradients(
    name: str, piece: Callable[..., Tensor], reference: Callable[..., Tensor], *inputs: Tensor
) -> Iterator[Comparison]:
    """Compare the values of two functions, then every input's gradient for a random output's."""
    value = piece(*inputs)
    expected = reference(*inputs)
    pull = normal(*expected.shape, seed=99).detach()
    gradients = torch.autograd.grad(expected, inputs, pull)
    named = {f"input {i}": x for i, x in enumerate(inputs)}
    yield from compare_gradients(name, value, expected, named, gradients, pull)


def with_parameters(
    name: str,
    module: nn.Module,
    piece: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    *inputs: Tensor,
) -> Iterator[Comparison]:
    """``with_gradients`` for inputs and parameters; both sides use the module's parameters."""
    count = len(inputs)

    # the parameters are arguments only so that their gradients are compared
    def ours(*tensors: Tensor) -> Tensor:
        return piece(*tensors[:count])

    def theirs(*tensors: Tensor) -> Tensor:
        return reference(*tensors[:count])

    yield from with_gradients(name, ours, theirs, *inputs, *module.parameters())
