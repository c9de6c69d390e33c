"""Hidden states to one vector per text. Pads never count, however many there are.

Each formula takes hidden (B, T, D) and mask (B, T), True for real tokens, and gives (B, D). ``mask=None``
says that every token is real.
"""

import torch
from torch import Tensor


def mean_pool(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    """The average over a text's real tokens (SBERT, Reimers & Gurevych 2019, section 3: its default).

    hidden (B, T, D), mask (B, T) -> (B, D). Tokens [1], [3] and a pad give [2].
    """
    if mask is None:
        return hidden.mean(dim=1)  # (B, D)
    real = mask.bool().unsqueeze(-1)  # (B, T, 1)
    # subtle: pads are filled, not multiplied by 0 (0 * NaN is NaN); each text is divided by its own length, not by T
    return hidden.masked_fill(~real, 0.0).sum(dim=1) / real.sum(dim=1)  # (B, D) / (B, 1)


def cls_pool(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    """The first token, [CLS] (BERT, section 3.2). hidden (B, T, D) -> (B, D)."""
    return hidden[:, 0]


def max_pool(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    """The largest value of each column over a text's real tokens (SBERT, section 3: MAX).

    hidden (B, T, D), mask (B, T) -> (B, D). Tokens [-1], [-3] and a pad give [-1], whatever stands in the pad.
    """
    if mask is not None:
        # subtle: minus infinity, not 0: a column of negative numbers must not lose to its pads
        hidden = hidden.masked_fill(~mask.bool().unsqueeze(-1), float("-inf"))
    return hidden.amax(dim=1)  # (B, D)


POOLINGS = {"mean": mean_pool, "cls": cls_pool, "max": max_pool}


class Pooling(torch.nn.Module):
    """One of ``POOLINGS`` by name, or several joined by a plus, concatenated: ``mean``, ``cls+max``.

    Raises ``ValueError`` for any other name.
    """

    def __init__(self, mode: str):
        super().__init__()
        unknown = [name for name in mode.split("+") if name not in POOLINGS]
        if unknown:
            known = ", ".join(POOLINGS)
            raise ValueError(f"unknown pooling {unknown[0]!r}: choose from {known}, or join several with a plus")
        self.mode = mode

    def width(self, hidden: int) -> int:
        """Columns of the pooled vector, for hidden states of so many columns."""
        return hidden * len(self.mode.split("+"))

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """hidden (B, T, D), mask (B, T) -> (B, D), or (B, n D) for n poolings at once."""
        if mask is not None and not mask.bool().any(dim=1).all():
            raise ValueError("a row of the mask has no real token: there is nothing to pool")
        return torch.cat([POOLINGS[name](hidden, mask) for name in self.mode.split("+")], dim=-1)

    def extra_repr(self) -> str:
        return self.mode


ACTIVATIONS = {"identity": lambda x: x, "tanh": torch.tanh}


class Dense(torch.nn.Module):
    """A dense layer on the pooled vector, with a tanh in most models: (B, D) -> (B, other width)."""

    def __init__(self, width_in: int, width_out: int, bias: bool = True, activation: str = "tanh"):
        super().__init__()
        self.linear = torch.nn.Linear(width_in, width_out, bias=bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.activation](self.linear(x))
