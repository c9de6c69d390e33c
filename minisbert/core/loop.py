"""AdamW written out: the step as a formula, and an optimizer that takes it for every parameter.

``train.py`` uses torch's own, which takes the same steps for many tensors at once.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn


def adamw_step(
    parameter: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    step: int,
    lr: float,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of Adam with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2).

    ``mean`` and ``square`` are the running means of the gradient and of its square, 0 before the first step; all four
    tensors have one shape, any. ``step`` counts from 1. Returns the new parameter, mean and square.
    Without decay the first step is lr, whatever the gradient: parameter 1, gradient 4, lr 0.1 give 0.9, 0.4, 0.016.
    """
    mean = betas[0] * mean + (1 - betas[0]) * gradient
    square = betas[1] * square + (1 - betas[1]) * gradient.pow(2)
    # subtle: both began at 0 and are too small by this share, most of all in the first steps
    unbiased_mean = mean / (1 - betas[0] ** step)
    unbiased_square = square / (1 - betas[1] ** step)
    # subtle: the decay shrinks the parameter itself; in the gradient it would be divided by the root like the rest
    parameter = parameter * (1 - lr * weight_decay)
    return parameter - lr * unbiased_mean / (unbiased_square.sqrt() + eps), mean, square


class AdamW(torch.optim.Optimizer):
    """``adamw_step`` for every parameter that has a gradient; equal to ``torch.optim.AdamW``.

    ``parameters`` as any optimizer of torch's takes them: a list, or groups with settings of their own.
    """

    def __init__(self, parameters: Iterable[nn.Parameter] | Iterable[dict], lr: float, weight_decay: float = 0.01):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Change every parameter in place by one step."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                taken = state.get("step", 0) + 1
                mean, square = (state.get(key, torch.zeros_like(parameter)) for key in ("mean", "square"))
                new, mean, square = adamw_step(
                    parameter, parameter.grad, mean, square, taken, group["lr"], group["weight_decay"]
                )
                state.update(step=taken, mean=mean, square=square)
                parameter.copy_(new)


def linear_schedule(step: int, warmup: int, total: int) -> float:
    """The share of the full learning rate at a step, counted from 0: up in a line over ``warmup``, then down to 0.

    With ``warmup=2, total=6`` steps 0 to 6 have 0, .5, 1, .75, .5, .25, 0 (BERT, A.2).
    """
    if step < warmup:
        return step / warmup
    return max(0.0, (total - step) / max(1, total - warmup))


def cosine_schedule(step: int, warmup: int, total: int) -> float:
    """The same warm-up, then down to 0 along half a cosine (Loshchilov & Hutter 2017): half-way down it is .5."""
    if step < warmup:
        return step / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup))))


def constant_schedule(step: int, warmup: int, total: int) -> float:
    """The same warm-up, then 1."""
    return min(1.0, step / warmup) if warmup else 1.0


SCHEDULES = {"linear": linear_schedule, "cosine": cosine_schedule, "constant": constant_schedule}


def adamw(parameters: list, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2), betas .9 and .999, eps 1e-8."""
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=True)  # fused: all in one kernel
