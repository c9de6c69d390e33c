"""Mistakes in poolings."""

from collections.abc import Callable

import torch
from torch import Tensor

from minisbert.core import pooling
from minisbert.diagnosis.mistakes.planting import mistake
from minisbert.models import poolings, sentence_encoder

# the right versions, kept from before anything is planted: a stand-in may call what it replaces
_mean, _max, _attend = pooling.mean_pool, pooling.max_pool, pooling.attention_pool


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


@mistake(pooling, "mean_pool", "[CLS] and [SEP] left out", "the mean is over the words only, without special tokens")
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


def _first_n(hidden: Tensor, mask: Tensor | None, pool: Callable[[Tensor], Tensor]) -> Tensor:
    """Pool as many tokens from the left as the mask has real ones."""
    return torch.stack([pool(row[:n]) for row, n in zip(hidden, _lengths(hidden, mask), strict=True)])


def _lengths(hidden: Tensor, mask: Tensor | None) -> list[int]:
    return [hidden.shape[1]] * len(hidden) if mask is None else mask.bool().sum(1).tolist()


@mistake(pooling, "mean_pool", "mean of the first n", "n tokens from the left are averaged, wherever the pads are")
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    return _first_n(hidden, mask, lambda row: row.mean(0))


@mistake(pooling, "max_pool", "max of the first n", "n tokens from the left take part, wherever the pads are")
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    return _first_n(hidden, mask, lambda row: row.amax(0))


@mistake(pooling, "mean_pool", "pads averaged, not tokens", "the mask of the mean is inverted")
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    return _mean(hidden, None if mask is None else ~mask.bool())


@mistake(pooling, "max_pool", "max of the pads", "the mask of the maximum is inverted")
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    return _max(hidden, None if mask is None else ~mask.bool())


@mistake(pooling, "cls_pool", "CLS taken from the last token", "the last position is read, not the first")
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    return hidden[:, -1]


@mistake(pooling, "attention_pool", "attention pooling over pads", "pads get a weight in the learned average")
def _(hidden: Tensor, mask: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    return ((hidden @ weight.T + bias).softmax(1) * hidden).sum(1)


@mistake(pooling, "attention_pool", "pads score 0", "pads get a score of 0, not minus infinity, so they get a weight")
def _(hidden: Tensor, mask: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    real = torch.ones_like(hidden[..., :1]) if mask is None else mask.unsqueeze(-1)
    return (((hidden @ weight.T + bias) * real).softmax(1) * hidden * real).sum(1)


@mistake(pooling, "attention_pool", "attention shares over the batch", "a text's weights depend on the other texts")
def _(hidden: Tensor, mask: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    scores = hidden @ weight.T + bias
    scores = scores if mask is None else scores.masked_fill(~mask.bool().unsqueeze(-1), -1e9)
    return (scores.softmax(0) * hidden).sum(1)


@mistake(pooling, "attention_pool", "attention pooling of the first n", "n tokens from the left, wherever the pads are")
def _(hidden: Tensor, mask: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    lengths = [hidden.shape[1]] * len(hidden) if mask is None else mask.bool().sum(1).tolist()
    rows = [row[None, :n] for row, n in zip(hidden, lengths, strict=True)]
    return torch.cat([_attend(row, None, weight, bias) for row in rows])


@mistake(pooling, "attention_pool", "attention pooling of the pads", "the mask of the learned average is inverted")
def _(hidden: Tensor, mask: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    return _attend(hidden, None if mask is None else ~mask.bool(), weight, bias)


@mistake(
    pooling, "attention_pool", "attention pooling hides the tokens", "the softmax leaves out the tokens, not the pads"
)
def _(hidden: Tensor, mask: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    if mask is None:
        return _attend(hidden, None, weight, bias)
    real = mask.bool().unsqueeze(-1)
    hidden = hidden.masked_fill(~real, 0.0)
    return ((hidden @ weight.T + bias).masked_fill(real, float("-inf")).softmax(1) * hidden).sum(1)


@mistake(poolings, "first_last_pool", "first and last summed", "the two layers are added, not averaged")
def _(hidden: Tensor, mask: Tensor | None, first: Tensor) -> Tensor:
    return pooling.mean_pool(first + hidden, mask)


@mistake(sentence_encoder.SentenceEncoder, "unscaled", "embeddings for layer 1", "the embeddings are used as layer 1")
def _(self, ids: Tensor, mask: Tensor | None = None, precision: torch.dtype = torch.float32) -> Tensor:
    states = self.bert.hidden_states(ids, mask)
    return self.dense(self.pool(states[-1], mask, states[0]))
