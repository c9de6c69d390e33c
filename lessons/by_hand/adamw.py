"""AdamW as an optimizer of ``adamw_step``, parameter by parameter; the book takes PyTorch's."""

from collections.abc import Iterable

import torch
from torch import nn

from minisbert.core import loop


class AdamW(torch.optim.Optimizer):
    """``adamw_step`` for every parameter that has a gradient; equal to ``torch.optim.AdamW``."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[dict],
        lr: float,
        weight_decay: float = 0.01,
    ):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Change every parameter in place by one step."""
        for group in self.param_groups:
            for parameter in (
                parameter for parameter in group["params"] if parameter.grad is not None
            ):
                state = self.state[parameter]
                taken = state.get("step", 0) + 1
                m, v = (state.get(key, torch.zeros_like(parameter)) for key in ("m", "v"))
                new, m, v = loop.adamw_step(
                    parameter, parameter.grad, m, v, taken, group["lr"], group["weight_decay"]
                )
                state.update(step=taken, m=m, v=v)
                parameter.copy_(new)
