"""Mistakes in poolings."""

from collections.abc import Callable

import torch
from torch import Tensor

from minisbert.core import pooling
from minisbert.diagnosis.mistakes.planting import mistake, wrong_choices
from minisbert.models import pooling as poolings
from minisbert.models import sentence_encoder


def wrong_mask(piece: str, change: Callable[[Tensor], Tensor], name: str, meaning: str) -> None:
    """Enter a mistake of the mask (B, T) alone: ``change`` makes the wrong one of the right one."""
    pool = getattr(pooling, piece)  # the right one, from before anything is planted

    @mistake(pooling, piece, name, meaning)
    def _(hidden: Tensor, mask: Tensor | None = None, *parameters: Tensor) -> Tensor:
        if mask is not None:
            mask = change(mask.bool())
        return pool(hidden, mask, *parameters)


def first_n(mask: Tensor) -> Tensor:
    """Mark as many tokens from the left as are real."""
    return torch.arange(mask.shape[1], device=mask.device) < mask.sum(1, keepdim=True)


wrong_mask("mean_pool", torch.ones_like, "mean over pads", "pads are averaged in")
wrong_mask("mean_pool", first_n, "mean of the first n", "n tokens from the left are averaged, wherever the pads are")
wrong_mask("mean_pool", torch.logical_not, "pads averaged, not tokens", "the mask of the mean is inverted")
wrong_mask("max_pool", torch.ones_like, "max over pads", "a pad's values can win")
wrong_mask("max_pool", first_n, "max of the first n", "n tokens from the left take part, wherever the pads are")
wrong_mask("max_pool", torch.logical_not, "max of the pads", "the mask of the maximum is inverted")
wrong_mask("attention_pool", torch.ones_like, "attention pooling over pads", "pads get a weight in the learned average")
wrong_mask(
    "attention_pool", first_n, "attention pooling of the first n", "n tokens from the left, wherever the pads are"
)
wrong_mask(
    "attention_pool", torch.logical_not, "attention pooling of the pads", "the mask of the learned average is inverted"
)


def zeroed_pool(hidden: Tensor, mask: Tensor | None = None, *, reduce: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Set the pads to 0 and reduce over all T tokens."""
    if mask is not None:
        hidden = hidden * mask.unsqueeze(-1)
    return reduce(hidden, 1)


DIVIDED = ("divided by T", "the sum over real tokens is divided by the padded length", {"reduce": torch.mean})
wrong_choices(pooling, "mean_pool", zeroed_pool, DIVIDED)


@mistake(pooling, "mean_pool", "one global denominator", "all texts are divided by the batch's average length")
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is None:
        return hidden.mean(1)
    return (hidden * mask.unsqueeze(-1)).sum(1) / (mask.sum() / len(mask))


@mistake(pooling, "mean_pool", "[CLS] and [SEP] left out", "the mean is over the words only, without special tokens")
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is None:
        mask = torch.ones(hidden.shape[:2], dtype=torch.bool)
    place, last = torch.arange(mask.shape[1]), mask.sum(1, keepdim=True) - 1
    inner = mask.bool() & (place > 0) & (place < last)
    return (hidden * inner.unsqueeze(-1)).sum(1) / inner.sum(1, keepdim=True).clamp_min(1)


PADS_AS_0 = ("pads set to 0 before max", "a pad's 0 wins over a column of negative numbers", {"reduce": torch.amax})
wrong_choices(pooling, "max_pool", zeroed_pool, PADS_AS_0)


@mistake(pooling, "cls_pool", "CLS taken from the last token", "the last position is read, not the first")
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    return hidden[:, -1]


def attention_pool_with(hidden, mask, weight, bias, *, score=float("-inf"), inverted=False, axis=1):
    """``score`` is what the pads get, or the tokens if ``inverted``; ``axis`` is the softmax's."""
    real = hidden.new_ones(hidden.shape[:2]).bool() if mask is None else mask.bool()
    hidden = hidden.masked_fill(~real.unsqueeze(-1), 0.0)
    out = real if inverted and mask is not None else ~real
    scores = (hidden @ weight.T + bias).masked_fill(out.unsqueeze(-1), score)  # (B, T, 1)
    return (scores.softmax(axis) * hidden).sum(1)


wrong_choices(
    pooling,
    "attention_pool",
    attention_pool_with,
    ("pads score 0", "pads get a score of 0, not minus infinity, so they get a weight", {"score": 0.0}),
    ("attention shares over the batch", "a text's weights depend on the other texts", {"axis": 0, "score": -1e9}),
    ("attention pooling hides the tokens", "the softmax leaves out the tokens, not the pads", {"inverted": True}),
)


@mistake(poolings, "first_last_pool", "first and last summed", "the two layers are added, not averaged")
def _(hidden: Tensor, mask: Tensor | None, first: Tensor) -> Tensor:
    return pooling.mean_pool(first + hidden, mask)


@mistake(sentence_encoder.SentenceEncoder, "unscaled", "embeddings for layer 1", "the embeddings are used as layer 1")
def _(self, ids: Tensor, mask: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    states = self.bert.hidden_states(ids, mask)
    return self.pool(states[-1], mask, self.given(states[-1], mask, states[0]))
