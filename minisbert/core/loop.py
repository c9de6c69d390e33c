"""The training loop: a schedule for the learning rate, AdamW, and ``fit``, which makes the steps::

    def schedule(step):
        return linear_schedule(step, warmup=18, total=180)

    optimizer = adamw(list(encoder.parameters()), lr=2e-5)
    for step in fit(encoder, loss, batches, optimizer, schedule):
        print(step.number, step.loss)

What the library runs: all of this chapter, except

- ``adamw_step``: PyTorch's AdamW does the same in one kernel. Equal by the parity check
  ``adamw_steps`` and by ``test_twenty_steps_equal_torchs_optimizer``.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .checks import InputError

__all__ = [
    "Diverged",
    "Step",
    "adamw",
    "adamw_step",
    "fit",
    "linear_schedule",
]


def linear_schedule(step: int, warmup: int, total: int) -> float:
    """The learning-rate multiplier at a step, counted from 0: up over ``warmup``, then down to 0.

    Both are straight lines. With ``warmup=2, total=6`` steps 0 to 6 have 0, .5, 1, .75, .5, .25, 0
    (BERT, A.2).
    """
    if step < warmup:
        return step / warmup
    return max(0.0, (total - step) / max(1, total - warmup))


def adamw_step(
    parameter: Tensor,
    gradient: Tensor,
    m: Tensor,
    v: Tensor,
    step: int,
    lr: float,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of Adam with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2).

    ``m`` and ``v`` are the running means of the gradient and of its square, 0 before the first
    step; all four tensors have one shape, any. ``step`` counts from 1. Returns the new parameter, m
    and v. Without decay the first step is lr, whatever the gradient: parameter 1, gradient 4, lr
    0.1 give 0.9, 0.4, 0.016.
    """
    m = betas[0] * m + (1 - betas[0]) * gradient
    v = betas[1] * v + (1 - betas[1]) * gradient.pow(2)
    # subtle: both began at 0 and are too small by this factor, most of all in the first steps
    unbiased_m = m / (1 - betas[0] ** step)
    unbiased_v = v / (1 - betas[1] ** step)
    # subtle: the decay shrinks the parameter itself; in the gradient it would be divided by the
    # root like the rest. (The paper's line 12 decays by the schedule's multiplier alone; times lr
    # is PyTorch's convention.)
    parameter = parameter * (1 - lr * weight_decay)
    parameter = parameter - lr * unbiased_m / (unbiased_v.sqrt() + eps)
    return parameter, m, v


def adamw(parameters: list, lr: float, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """PyTorch's optimizer: ``adamw_step`` for all parameters, in one kernel.

    ``parameters`` are tensors, or groups of them as PyTorch's optimizers take them. Betas are .9
    and .999, eps 1e-8.
    """
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=True)


class Diverged(InputError):
    """The loss, or its gradient, is not a finite number."""


@dataclass(frozen=True)
class Step:
    """What one step of ``fit`` did."""

    number: int  # counted from 1
    batch: Sequence
    loss: float
    multiplier: float  # of the learning rate


def fit(
    model: nn.Module,
    loss: Callable[[nn.Module, Sequence], Tensor],
    batches: Iterable[Sequence],
    optimizer: torch.optim.Optimizer,
    schedule: Callable[[int], float],
    start: int = 0,
    clip: float = math.inf,
    micro_batches: Callable[[Sequence], Sequence[Sequence]] = lambda batch: [batch],
) -> Iterator[Step]:
    """The training loop: a step for each batch.

    It yields after every step, so the caller logs, evaluates, saves and stops between two.

    ``loss(model, batch)`` is the mean loss of a batch, ``schedule(step)`` the multiplier of each
    parameter group's learning rate, ``start`` the steps made before, ``clip`` the largest gradient
    norm. ``micro_batches`` cuts a batch into smaller ones whose gradients are added up, which is
    exact if its loss is the mean of its rows' losses. Dropout is on if the model is in train mode.
    Raises ``Diverged`` and skips the step if the loss or a gradient is not finite.
    """
    parameters = []
    for group in optimizer.param_groups:
        parameters += group["params"]

    # ``number`` counts from 0, as a schedule does; a ``Step`` counts from 1.
    for number, batch in enumerate(batches, start=start):
        # The optimizer knows one rate at a time; the peak is kept beside it.
        multiplier = schedule(number)
        for group in optimizer.param_groups:
            peak = group.setdefault("initial_lr", group["lr"])
            group["lr"] = peak * multiplier

        # ``backward`` adds to the gradients that are there: those of the last step must go, and
        # those of several micro-batches add up.
        optimizer.zero_grad()
        total = 0.0
        for micro_batch in micro_batches(batch):
            # The loss is the mean over the micro-batch's rows. It is weighted with their share of
            # the batch's rows, so that the sum is the mean over the batch.
            scaled = loss(model, micro_batch) * (len(micro_batch) / len(batch))
            scaled.backward()
            total += scaled.item()

        # If the norm of all gradients together is above ``clip``, they are scaled down to it. The
        # function returns the norm that they had before.
        norm = nn.utils.clip_grad_norm_(parameters, clip)
        if not (math.isfinite(total) and norm.isfinite()):
            raise Diverged(
                f"step {number + 1}: loss {total:g}, gradient norm {norm.item():g}; step skipped"
            )

        optimizer.step()
        yield Step(number + 1, batch, total, multiplier)
