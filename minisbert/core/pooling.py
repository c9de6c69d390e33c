"""Hidden states to one vector per text. Pads never count, however many there are.

Each formula takes hidden (B, T, D) and mask (B, T), True for real tokens, and gives (B, D). ``mask=None``
says that every token is real.

    mean        the average over the tokens               attention   an average whose weights are learned
    cls         the first token, [CLS]                    first-last  the mean of the first layer and the last
    max         the largest value of each column          pooler      [CLS] through BERT's own dense layer and tanh
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


def attention_pool(hidden: Tensor, mask: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    """An average whose weights are the softmax, over a text's real tokens, of one linear score per token.

    hidden (B, T, D), mask (B, T), weight (1, D), bias (1,) -> (B, D). The bias moves all scores of a text alike, so it
    changes nothing; it is there because the usual ``Linear(D, 1)`` has one. A weight of 0 gives the mean. Tokens [0],
    [1] and a pad under weight [log 3] have scores 0 and log 3, shares 1/4 and 3/4, and give [0.75].
    """
    real = None if mask is None else mask.bool()  # (B, T)
    if real is not None:
        hidden = hidden.masked_fill(~real.unsqueeze(-1), 0.0)  # 0 * NaN is NaN
    scores = (hidden @ weight.T + bias).squeeze(-1)  # (B, T)
    if real is not None:
        # subtle: minus infinity before the softmax; a score of 0 for a pad would be a share like any other
        scores = scores.masked_fill(~real, float("-inf"))
    return (scores.softmax(dim=-1).unsqueeze(-1) * hidden).sum(dim=1)  # (B, T, 1) * (B, T, D) -> (B, D)


def first_last_pool(hidden: Tensor, mask: Tensor | None, first: Tensor) -> Tensor:
    """The mean over real tokens of the first layer's output and the last's, averaged (SimCSE's avg_first_last).

    hidden and first (B, T, D), mask (B, T) -> (B, D). Last states [1], [3] and first states [5], [7] give [4].
    "First" is the output of layer 1, ``hidden_states[1]``, as in SimCSE's code: all-MiniLM-L6-v2 then has a Spearman
    of 86.67 / 81.55 on STS-B dev / test, as reported. With the embeddings' output, ``hidden_states[0]``, it would be
    87.02 / 82.38.
    """
    return mean_pool((first + hidden) / 2, mask)


POOLINGS = {"mean": mean_pool, "cls": cls_pool, "max": max_pool}  # of the last hidden states and nothing else
NAMES = (*POOLINGS, "attention", "first-last", "pooler")


class Pooling(torch.nn.Module):
    """One of ``NAMES``, or several joined by a plus, concatenated: ``mean``, ``cls+max``, ``mean+attention``.

    ``attention`` has parameters of its own and must know their width, D (``hidden_size``); untrained it is the mean.
    Raises ``ValueError`` for any other name.
    """

    def __init__(self, mode: str, hidden_size: int | None = None):
        super().__init__()
        self.mode = mode
        self.names = mode.split("+")
        unknown = [name for name in self.names if name not in NAMES]
        if unknown:
            known = ", ".join(NAMES)
            raise ValueError(f"unknown pooling {unknown[0]!r}: choose from {known}, or join several with a plus")
        self.score = None
        if "attention" in self.names:
            if hidden_size is None:
                raise ValueError("attention pooling learns one weight per column: it needs hidden_size")
            self.score = torch.nn.Linear(hidden_size, 1)
            torch.nn.init.zeros_(self.score.weight)  # equal shares: training starts from the mean
            torch.nn.init.zeros_(self.score.bias)

    def width(self, hidden: int) -> int:
        """Columns of the pooled vector, for hidden states of so many columns."""
        return hidden * len(self.names)

    def forward(
        self, hidden: Tensor, mask: Tensor | None = None, first: Tensor | None = None, pooler: Tensor | None = None
    ) -> Tensor:
        """hidden (B, T, D), mask (B, T) -> (B, D), or (B, n D) for n poolings at once.

        ``first-last`` needs ``first``, the output of the first layer (B, T, D), and ``pooler`` that of ``Bert.pool``
        (B, D). Raises ``ValueError`` where they are missing, and for a text without a real token.
        """
        if mask is not None and not mask.bool().any(dim=1).all():
            raise ValueError("a row of the mask has no real token: there is nothing to pool")
        return torch.cat([self._pool(name, hidden, mask, first, pooler) for name in self.names], dim=-1)

    def _pool(
        self, name: str, hidden: Tensor, mask: Tensor | None, first: Tensor | None, pooler: Tensor | None
    ) -> Tensor:
        if name == "attention":
            return attention_pool(hidden, mask, self.score.weight, self.score.bias)
        if name == "first-last":
            if first is None:
                raise ValueError("first-last pooling needs the first layer's output as well (first)")
            return first_last_pool(hidden, mask, first)
        if name == "pooler":
            if pooler is None:
                raise ValueError("pooler pooling needs what Bert.pool gives (pooler)")
            return pooler
        return POOLINGS[name](hidden, mask)

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
