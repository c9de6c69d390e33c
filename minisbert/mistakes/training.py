"""Mistakes in training: the schedule of the learning rate and the optimizer."""

import torch
from torch import nn

from minisbert.core import loop
from minisbert.mistakes.planting import mistake

_step, _linear = loop.adamw_step, loop.linear_schedule  # the right ones, kept from before anything is planted


@mistake(loop, "linear_schedule", "warm-up off by one", "the first step already has part of the learning rate")
def _(step: int, warmup: int, total: int) -> float:
    return (step + 1) / warmup if step < warmup else max(0.0, (total - step) / max(1, total - warmup))


@mistake(loop, "linear_schedule", "decay without warm-up's share", "the decay counts from step 0, not from the peak")
def _(step: int, warmup: int, total: int) -> float:
    return step / warmup if step < warmup else max(0.0, (total - step) / total)


@mistake(loop, "linear_schedule", "schedule cut short", "the total leaves out the warm-up: the last steps have rate 0")
def _(step: int, warmup: int, total: int) -> float:
    return _linear(step, warmup, total - warmup)


@mistake(loop, "adamw", "weight decay coupled", "the decay is added to the gradient (Adam with L2), not to the step")
def _(parameters: list[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay)


@mistake(loop, "adamw", "no bias correction", "Adam's averages, which start at 0, are not corrected")
def _(parameters: list[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    return _UncorrectedAdamW(parameters, lr, weight_decay)


class _UncorrectedAdamW(torch.optim.Optimizer):
    """AdamW with averages that are not divided by 1 - beta^t."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, weight_decay: float):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                mean = state.setdefault("mean", torch.zeros_like(parameter))
                square = state.setdefault("square", torch.zeros_like(parameter))
                mean.lerp_(parameter.grad, 0.1)
                square.lerp_(parameter.grad.square(), 0.001)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(group["lr"] * mean / (square.sqrt() + 1e-8))


@mistake(loop, "adamw_step", "decay in the gradient", "the decay is added to the gradient: Adam with L2, not AdamW")
def _(parameter, gradient, mean, square, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    return _step(parameter, gradient + weight_decay * parameter, mean, square, step, lr, 0.0, betas, eps)


@mistake(loop, "adamw_step", "decay without lr", "shrinks by the decay alone: the paper's rule at a schedule of 1")
def _(parameter, gradient, mean, square, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    return _step(parameter * (1 - weight_decay), gradient, mean, square, step, lr, 0.0, betas, eps)


@mistake(loop, "adamw_step", "averages not corrected", "the running means are used as if they had not started at 0")
def _(parameter, gradient, mean, square, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    mean = betas[0] * mean + (1 - betas[0]) * gradient
    square = betas[1] * square + (1 - betas[1]) * gradient.pow(2)
    return parameter * (1 - lr * weight_decay) - lr * mean / (square.sqrt() + eps), mean, square


@mistake(loop, "adamw_step", "step counted from 0", "the bias correction lags by one step")
def _(parameter, gradient, mean, square, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    return _step(parameter, gradient, mean, square, max(step - 1, 1), lr, weight_decay, betas, eps)


@mistake(loop, "adamw_step", "betas hard-coded", "the running means use 0.9 and 0.999, whatever is asked for")
def _(parameter, gradient, mean, square, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    return _step(parameter, gradient, mean, square, step, lr, weight_decay, eps=eps)


@mistake(loop, "adamw_step", "eps hard-coded", "eps is 1e-8, whatever is asked for")
def _(parameter, gradient, mean, square, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    return _step(parameter, gradient, mean, square, step, lr, weight_decay, betas)


@mistake(loop, "adamw_step", "betas and eps hard-coded", "neither betas nor eps are those that are asked for")
def _(parameter, gradient, mean, square, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    return _step(parameter, gradient, mean, square, step, lr, weight_decay)
