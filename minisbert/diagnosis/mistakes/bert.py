"""Mistakes in the encoder's formulas: GELU, LayerNorm, attention. One small wrong version of one piece each."""

import torch
from torch import Tensor, nn

from minisbert.core import bert
from minisbert.diagnosis.mistakes.planting import mistake

# ---------------------------------------------------------------------------------------------- gelu


@mistake(bert, "gelu", "tanh GELU", "the tanh approximation replaces the exact GELU")
def _(x: Tensor) -> Tensor:
    return nn.functional.gelu(x, approximate="tanh")


@mistake(bert, "gelu", "quick GELU", "x * sigmoid(1.702 x) replaces GELU")
def _(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


@mistake(bert, "gelu", "ReLU", "ReLU replaces GELU")
def _(x: Tensor) -> Tensor:
    return x.clamp_min(0)


# ---------------------------------------------------------------------------------------- layer norm


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    return (x - mean) / scale * weight + bias


@mistake(bert, "layer_norm", "LayerNorm eps 1e-5", "eps is torch's default 1e-5, not the checkpoint's")
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return nn.functional.layer_norm(x, weight.shape, weight, bias, eps=1e-5)


@mistake(bert, "layer_norm", "eps outside the root", "eps is added to the standard deviation, not to the variance")
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    scale = x.var(-1, correction=0, keepdim=True).sqrt() + eps
    return layer_norm(x, weight, bias, x.mean(-1, keepdim=True), scale)


@mistake(bert, "layer_norm", "unbiased variance", "the variance is divided by D - 1 (torch's default), not by D")
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return layer_norm(x, weight, bias, x.mean(-1, keepdim=True), (x.var(-1, keepdim=True) + eps).sqrt())


@mistake(bert, "layer_norm", "no gamma", "LayerNorm's weight is left out")
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return nn.functional.layer_norm(x, weight.shape, None, bias, eps)


@mistake(bert, "layer_norm", "no beta", "LayerNorm's bias is left out")
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return nn.functional.layer_norm(x, weight.shape, weight, None, eps)


@mistake(bert, "layer_norm", "mean not subtracted", "the vector is scaled but not centred (that is RMSNorm)")
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight + bias


@mistake(bert, "layer_norm", "LayerNorm over tokens", "the mean and variance are over the tokens, not the width")
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    scale = (x.var(-2, correction=0, keepdim=True) + eps).sqrt()
    return layer_norm(x, weight, bias, x.mean(-2, keepdim=True), scale)


# ----------------------------------------------------------------------------------------- attention


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float | None = None,
    hidden: float = float("-inf"),
    axis: int = -1,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Attention with each choice as an argument; the right ones are 1/sqrt(K), minus infinity, the last axis."""
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, hidden)
    probabilities = scores.softmax(axis)
    return nn.functional.dropout(probabilities, dropout) @ value, probabilities


@mistake(bert, "attention", "no attention mask", "pads take part in attention")
def _(query, key, value, mask=None, dropout=0.0):
    return attention(query, key, value, None)


@mistake(bert, "attention", "mask of -10", "pads get a score of -10: little attention instead of none")
def _(query, key, value, mask=None, dropout=0.0):
    return attention(query, key, value, mask, hidden=-10.0)


@mistake(bert, "attention", "attention mask inverted", "the real tokens are hidden, and the pads are read")
def _(query, key, value, mask=None, dropout=0.0):
    return attention(query, key, value, None if mask is None else ~mask, dropout=dropout)


@mistake(bert, "attention", "mask after softmax", "pads are zeroed after the softmax, so the rows no longer sum to 1")
def _(query, key, value, mask=None, dropout=0.0):
    probabilities = attention(query, key, value, None)[1]
    probabilities = probabilities if mask is None else probabilities * mask
    return probabilities @ value, probabilities


@mistake(bert, "attention", "no 1/sqrt(K)", "the scores are not divided by sqrt(K)")
def _(query, key, value, mask=None, dropout=0.0):
    return attention(query, key, value, mask, scale=1.0)


@mistake(bert, "attention", "1/sqrt(D)", "the scores are divided by sqrt(D), not by sqrt(K)")
def _(query, key, value, mask=None, dropout=0.0):
    return attention(query, key, value, mask, scale=(query.shape[1] * query.shape[-1]) ** -0.5)


@mistake(bert, "attention", "1/K", "the scores are divided by K, not by sqrt(K)")
def _(query, key, value, mask=None, dropout=0.0):
    return attention(query, key, value, mask, scale=1 / query.shape[-1])


@mistake(bert, "attention", "q and k swapped", "queries and keys are swapped")
def _(query, key, value, mask=None, dropout=0.0):
    return attention(key, query, value, mask)


@mistake(bert, "attention", "softmax over the wrong axis", "the softmax is over the queries, not the keys")
def _(query, key, value, mask=None, dropout=0.0):
    return attention(query, key, value, mask, hidden=-1e9, axis=-2)


@mistake(bert, "attention", "softmax over the heads", "the softmax is over the heads, not the keys")
def _(query, key, value, mask=None, dropout=0.0):
    return attention(query, key, value, mask, hidden=-1e9, axis=1)


@mistake(bert.Attention, "merge", "heads merged without transposing", "(B, H, T, K) is reshaped to (B, T, D) directly")
def _(self: bert.Attention, x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], x.shape[2], -1)


@mistake(bert.Attention, "split", "heads split without transposing", "(B, T, D) is reshaped to (B, H, T, K) directly")
def _(self: bert.Attention, x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], self.heads, x.shape[1], -1)


@mistake(bert.Attention, "split", "heads interleaved", "head h takes every H-th column, not K adjacent columns")
def _(self: bert.Attention, x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, self.heads)).movedim(-1, 1)


@mistake(bert.Attention, "forward", "no attention biases", "attention's four dense layers have no bias")
def _(self: bert.Attention, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    query, key, value = (self.split(x @ dense.weight.T) for dense in (self.query, self.key, self.value))
    context, probabilities = bert.attention(query, key, value, mask)
    return self.merge(context) @ self.output.weight.T, probabilities


@mistake(bert.Attention, "forward", "no output projection", "the output layer is not applied to the merged heads")
def _(self: bert.Attention, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    query, key, value = (self.split(dense(x)) for dense in (self.query, self.key, self.value))
    context, probabilities = bert.attention(query, key, value, mask)
    return self.merge(context), probabilities
