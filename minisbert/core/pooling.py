"""Hidden states to one vector per text. Pads never count, however many there are.

Each formula takes hidden (B, T, D) and mask (B, T), True for real tokens (None: all are real), and
gives (B, D).

    mean   the average over the tokens               cls        the first token, [CLS]
    max    the largest value of each column          attention  an average whose weights are learned

What the library runs: the four formulas. For the class it has other code:

- ``Pooling``: ``ModelPooling`` in ``minisbert/models/pooling.py``, which knows more poolings and
  joins several. Equal by ``test_the_librarys_pooling_gives_the_same``.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .checks import InputError

__all__ = [
    "Pooling",
    "attention_pool",
    "cls_pool",
    "max_pool",
    "mean_pool",
]


def mean_pool(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    """The average over a text's real tokens (SBERT, Reimers & Gurevych 2019, section 3).

    hidden (B, T, D), mask (B, T) -> (B, D). Tokens [1], [3] and a pad give [2].
    """
    if mask is None:
        return hidden.mean(dim=1)  # (B, D)
    real = mask.bool().unsqueeze(-1)  # (B, T, 1)
    # subtle: pads are filled, not multiplied by 0 (0 * NaN is NaN), and each text is divided by its
    # own length, not by T
    return hidden.masked_fill(~real, 0.0).sum(dim=1) / real.sum(dim=1)  # (B, D) / (B, 1)


def cls_pool(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    """The first token, [CLS] (BERT, section 3). hidden (B, T, D) -> (B, D).

    It needs no mask, and takes one so that all poolings are called alike.
    """
    return hidden[:, 0]


def max_pool(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    """The largest value of each column over a text's real tokens (SBERT, section 3: MAX).

    hidden (B, T, D), mask (B, T) -> (B, D). Tokens [-1], [-3] and a pad give [-1], whatever the pad
    holds.
    """
    if mask is not None:
        # subtle: minus infinity, not 0: a column of negative numbers must not lose to its pads
        hidden = hidden.masked_fill(~mask.bool().unsqueeze(-1), float("-inf"))
    return hidden.amax(dim=1)  # (B, D)


def attention_pool(hidden: Tensor, mask: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    """An average whose weights are the softmax of one linear score per real token.

    hidden (B, T, D), mask (B, T), weight (1, D), bias (1,) -> (B, D). The bias shifts all scores of
    a text alike, so it changes nothing; it is there because the usual ``Linear(D, 1)`` has one. A
    weight of 0 gives the mean. Tokens [0], [1] and a pad under weight [log 3] have scores 0 and log
    3, shares 1/4 and 3/4, and give [0.75].
    """
    if mask is not None:
        # A pad's share will be 0, but the pad may hold NaN, and 0 * NaN is NaN.
        hidden = hidden.masked_fill(~mask.bool().unsqueeze(-1), 0.0)
    scores = (hidden @ weight.T + bias).squeeze(-1)  # (B, T)
    if mask is not None:
        # subtle: minus infinity before the softmax; with a score of 0 a pad would get a share like
        # any other token
        scores = scores.masked_fill(~mask.bool(), float("-inf"))
    shares = scores.softmax(dim=-1).unsqueeze(-1)  # (B, T, 1)
    return (shares * hidden).sum(dim=1)  # (B, D)


# The poolings without parameters, by name.
POOLINGS: dict[str, Callable] = {"mean": mean_pool, "cls": cls_pool, "max": max_pool}


class Pooling(torch.nn.Module):
    """``mean``, ``cls``, ``max`` or ``attention``, which needs the width D."""

    def __init__(self, mode: str, hidden_size: int | None = None):
        super().__init__()
        if mode not in POOLINGS and mode != "attention":
            known = ", ".join([*POOLINGS, "attention"])
            raise InputError(f"unknown pooling {mode!r}: choose from {known}")
        self.mode = mode
        self.score = None
        if mode == "attention":
            assert hidden_size is not None, "attention needs the width of the hidden states"
            self.score = torch.nn.Linear(hidden_size, 1)
            torch.nn.init.zeros_(self.score.weight)  # equal shares: training starts from the mean
            torch.nn.init.zeros_(self.score.bias)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """hidden (B, T, D), mask (B, T) with a True in every row -> (B, D)."""
        if self.score is not None:
            return attention_pool(hidden, mask, self.score.weight, self.score.bias)
        return POOLINGS[self.mode](hidden, mask)
