"""Mistakes people make when they write sentence embeddings: one small wrong version of one piece each.

The table has three readers. The tests plant every mistake and prove that the parity suite notices it.
``minisbert.trace`` plants them to find the one that explains a difference. The course shows them, and its grader
names the mistake whose numbers a learner's code gives.

Those of the encoder stand in ``bert_mistakes.py``, of the losses in ``loss_mistakes.py``, the others here;
``MISTAKES`` holds all of them by name.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minisbert import bert_mistakes, loss_mistakes, metrics, pooling, train
from minisbert.planting import MISTAKES, mistake, planted

__all__ = ["MISTAKES", "bert_mistakes", "loss_mistakes", "planted"]

# ------------------------------------------------------------------------------------------- pooling


@mistake(pooling, "mean_pool", "mean over pads", "pads are averaged in")
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    return hidden.mean(1)


@mistake(pooling, "mean_pool", "divided by T", "the sum over real tokens is divided by the padded length")
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    return hidden.mean(1) if mask is None else (hidden * mask.unsqueeze(-1)).mean(1)


@mistake(pooling, "mean_pool", "one global denominator", "all texts are divided by the batch's average length")
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is None:
        return hidden.mean(1)
    return (hidden * mask.unsqueeze(-1)).sum(1) / (mask.sum() / len(mask))


@mistake(pooling, "mean_pool", "[CLS] and [SEP] left out", "the mean runs over the words only, without special tokens")
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    mask = torch.ones(hidden.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
    last = mask.sum(1, keepdim=True) - 1
    inner = mask & (torch.arange(mask.shape[1]) > 0) & (torch.arange(mask.shape[1]) < last)
    return (hidden * inner.unsqueeze(-1)).sum(1) / inner.sum(1, keepdim=True).clamp_min(1)


@mistake(pooling, "max_pool", "max over pads", "a pad's values can win")
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    return hidden.amax(1)


@mistake(pooling, "max_pool", "pads set to 0 before max", "a pad's 0 wins over a column of negative numbers")
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    return (hidden if mask is None else hidden * mask.unsqueeze(-1)).amax(1)


@mistake(pooling, "cls_pool", "CLS taken from the last token", "the last position is read, not the first")
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    return hidden[:, -1]


# ------------------------------------------------------------------------------------------- metrics


@mistake(metrics, "ranks", "Spearman without tie handling", "equal values get different ranks, in the order they stand")
def _(x: Any) -> np.ndarray:
    return np.argsort(np.argsort(np.asarray(x), kind="stable")).astype(np.float64) + 1


@mistake(metrics, "pearson", "Pearson not centred", "the means are not subtracted: that is a cosine")
def _(x: Any, y: Any) -> float:
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


# ------------------------------------------------------------------------------------------ training


@mistake(train, "linear_schedule", "warm-up off by one", "the first step already has a share of the rate")
def _(step: int, warmup: int, total: int) -> float:
    return (step + 1) / warmup if step < warmup else max(0.0, (total - step) / max(1, total - warmup))


@mistake(train, "linear_schedule", "decay without warm-up's share", "the decay counts from step 0, not from the peak")
def _(step: int, warmup: int, total: int) -> float:
    return step / warmup if step < warmup else max(0.0, (total - step) / total)


@mistake(train, "adamw", "weight decay coupled", "the decay is added to the gradient (Adam with L2), not to the step")
def _(parameters: list[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay)


@mistake(train, "adamw", "no bias correction", "Adam's averages are used as they are while they still start from 0")
def _(parameters: list[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    return _UncorrectedAdamW(parameters, lr, weight_decay)


class _UncorrectedAdamW(torch.optim.Optimizer):
    """AdamW whose averages are not divided by 1 - beta^t."""

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
