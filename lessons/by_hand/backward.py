"""The way back through a dense layer with GELU, written out, and the slopes measured instead."""

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor


def dense_gelu_backward(
    x: Tensor, weight: Tensor, bias: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x (N, D), weight (F, D) and bias (F,), for y = gelu(x weight^T + bias) and
    dL/dy (N, F).

    With z = x weight^T + bias and the normal distribution's P and p, gelu(z) = z P(z) has the slope
    P(z) + z p(z). At z = 0 it is 1/2: for ``x = [[1, 2]], weight = [[2, -1]], bias = [0], gradient
    = [[4]]`` the gradients are ``[[4, -2]]``, ``[[2, 4]]`` and ``[2]``.
    """
    z = x @ weight.T + bias  # (N, F)
    below = (1 + torch.erf(z / math.sqrt(2.0))) / 2  # (N, F), P(z)
    density = torch.exp(-z.pow(2) / 2) / math.sqrt(2 * math.pi)  # (N, F), p(z)
    # both factors of z P(z) depend on z
    dz = gradient * (below + z * density)  # (N, F)
    # each row of x went into all F numbers of its row of z, each weight into all N rows
    return dz @ weight, dz.T @ x, dz.sum(dim=0)  # (N, D), (F, D), (F,)


def measured_gradient(loss: Callable[[Tensor], Tensor], x: Tensor, h: float = 1e-5) -> Tensor:
    """How ``loss(x)``, one number, depends on each number of x, measured: no derivative is needed.

    Each number is moved by h up and by h down, the others stay; the slope is the difference of the
    two losses over 2 h. x may have any shape; the slopes have the same. For a sum of squares
    ``measured_gradient(loss, [1, 3]) = [2, 6]``.
    """
    slopes = torch.zeros_like(x)
    for index in itertools.product(*(range(size) for size in x.shape)):
        up = x.clone()
        up[index] += h
        down = x.clone()
        down[index] -= h
        slopes[index] = (loss(up) - loss(down)) / (2 * h)
    return slopes
