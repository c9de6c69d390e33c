"""Mistakes people make when they write the encoder: one small wrong version of one piece each.

See ``mistakes.py`` for who reads the table.
"""

import torch
from torch import Tensor, nn

from minisbert.core import bert
from minisbert.mistakes.planting import mistake

# ---------------------------------------------------------------------------------------- bert: gelu


@mistake(bert, "gelu", "tanh GELU", "the tanh approximation of GELU stands in for the exact one")
def _(x: Tensor) -> Tensor:
    return nn.functional.gelu(x, approximate="tanh")


@mistake(bert, "gelu", "quick GELU", "x * sigmoid(1.702 x) stands in for GELU")
def _(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


@mistake(bert, "gelu", "ReLU", "ReLU stands in for GELU")
def _(x: Tensor) -> Tensor:
    return x.clamp_min(0)


# ---------------------------------------------------------------------------------- bert: layer norm


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    return (x - mean) / scale * weight + bias


@mistake(bert, "layer_norm", "LayerNorm eps 1e-5", "eps is torch's default 1e-5, not the checkpoint's")
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return nn.functional.layer_norm(x, weight.shape, weight, bias, eps=1e-5)


@mistake(bert, "layer_norm", "eps outside the root", "eps is added to the standard deviation, not to the variance")
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    scale = x.var(-1, correction=0, keepdim=True).sqrt() + eps
    return _layer_norm(x, weight, bias, x.mean(-1, keepdim=True), scale)


@mistake(bert, "layer_norm", "unbiased variance", "the variance is divided by D - 1, torch's default, not by D")
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return _layer_norm(x, weight, bias, x.mean(-1, keepdim=True), (x.var(-1, keepdim=True) + eps).sqrt())


@mistake(bert, "layer_norm", "no gamma", "LayerNorm's weight is forgotten")
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return nn.functional.layer_norm(x, weight.shape, None, bias, eps)


@mistake(bert, "layer_norm", "no beta", "LayerNorm's bias is forgotten")
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return nn.functional.layer_norm(x, weight.shape, weight, None, eps)


@mistake(bert, "layer_norm", "mean not subtracted", "the vector is scaled but not centred (that is RMSNorm)")
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight + bias


@mistake(
    bert,
    "layer_norm",
    "detached LayerNorm statistics",
    "mean and variance are taken without gradient: right forward, wrong backward",
)
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    fixed = x.detach()
    scale = (fixed.var(-1, correction=0, keepdim=True) + eps).sqrt()
    return _layer_norm(x, weight, bias, fixed.mean(-1, keepdim=True), scale)


@mistake(bert, "layer_norm", "LayerNorm over tokens", "mean and variance run over the tokens, not over the width")
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    scale = (x.var(-2, correction=0, keepdim=True) + eps).sqrt()
    return _layer_norm(x, weight, bias, x.mean(-2, keepdim=True), scale)


# ----------------------------------------------------------------------------------- bert: attention


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float | None = None,
    hidden: float = float("-inf"),
    axis: int = -1,
) -> tuple[Tensor, Tensor]:
    """Attention with every choice open; the right ones are 1/sqrt(K), minus infinity, the last axis."""
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, hidden)
    probabilities = scores.softmax(axis)
    return probabilities @ value, probabilities


@mistake(bert, "attention", "no attention mask", "pads take part in attention")
def _(query, key, value, mask=None, dropout=0.0):
    return _attention(query, key, value, None)


@mistake(bert, "attention", "mask of -10", "pads get a score of -10: little attention, but not none")
def _(query, key, value, mask=None, dropout=0.0):
    return _attention(query, key, value, mask, hidden=-10.0)


@mistake(bert, "attention", "mask after softmax", "pads are zeroed after the softmax, so the rows no longer sum to 1")
def _(query, key, value, mask=None, dropout=0.0):
    probabilities = _attention(query, key, value, None)[1]
    probabilities = probabilities if mask is None else probabilities * mask
    return probabilities @ value, probabilities


@mistake(bert, "attention", "no 1/sqrt(K)", "the scores are not divided by the square root of the head's width")
def _(query, key, value, mask=None, dropout=0.0):
    return _attention(query, key, value, mask, scale=1.0)


@mistake(bert, "attention", "1/sqrt(D)", "the scores are divided by the root of the model's width, not of one head's")
def _(query, key, value, mask=None, dropout=0.0):
    return _attention(query, key, value, mask, scale=(query.shape[1] * query.shape[-1]) ** -0.5)


@mistake(bert, "attention", "1/K", "the scores are divided by the head's width itself, not by its root")
def _(query, key, value, mask=None, dropout=0.0):
    return _attention(query, key, value, mask, scale=1 / query.shape[-1])


@mistake(bert, "attention", "q and k swapped", "queries and keys have changed places")
def _(query, key, value, mask=None, dropout=0.0):
    return _attention(key, query, value, mask)


@mistake(bert, "attention", "softmax over the wrong axis", "the softmax runs over the queries, not over the keys")
def _(query, key, value, mask=None, dropout=0.0):
    return _attention(query, key, value, mask, hidden=-1e9, axis=-2)


@mistake(bert, "attention", "softmax over the heads", "the softmax runs over the heads, not over the keys")
def _(query, key, value, mask=None, dropout=0.0):
    return _attention(query, key, value, mask, hidden=-1e9, axis=1)


@mistake(bert, "attention", "detached probabilities", "no gradient flows through the probabilities: right forward only")
def _(query, key, value, mask=None, dropout=0.0):
    probabilities = _attention(query, key, value, mask)[1].detach()
    return probabilities @ value, probabilities


@mistake(bert.Attention, "merge", "heads merged without transposing", "(B, H, T, K) is reshaped to (B, T, D) directly")
def _(self: bert.Attention, x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], x.shape[2], -1)


@mistake(bert.Attention, "split", "heads split without transposing", "(B, T, D) is reshaped to (B, H, T, K) directly")
def _(self: bert.Attention, x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], self.heads, x.shape[1], -1)


@mistake(bert.Attention, "split", "heads interleaved", "head h takes every H-th column, not K columns in a row")
def _(self: bert.Attention, x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, self.heads)).movedim(-1, 1)


@mistake(bert.Attention, "forward", "no attention biases", "the four dense layers of attention have no bias")
def _(self: bert.Attention, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    query, key, value = (self.split(x @ dense.weight.T) for dense in (self.query, self.key, self.value))
    context, probabilities = bert.attention(query, key, value, mask)
    return self.merge(context) @ self.output.weight.T, probabilities


@mistake(bert.Attention, "forward", "no output projection", "the heads' results are not mixed by the output layer")
def _(self: bert.Attention, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    query, key, value = (self.split(dense(x)) for dense in (self.query, self.key, self.value))
    context, probabilities = bert.attention(query, key, value, mask)
    return self.merge(context), probabilities


@mistake(bert.Attention, "forward", "dropout alive in eval", "attention drops probabilities in eval mode too")
def _(self: bert.Attention, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    query, key, value = (self.split(dense(x)) for dense in (self.query, self.key, self.value))
    context, probabilities = bert.attention(query, key, value, mask, self.dropout)
    return self.output(self.merge(context)), probabilities


# ----------------------------------------------------------------------- bert: layers and embeddings


@mistake(bert.FeedForward, "forward", "no feed-forward biases", "the two dense layers of feed-forward have no bias")
def _(self: bert.FeedForward, x: Tensor) -> Tensor:
    return bert.gelu(x @ self.up.weight.T) @ self.down.weight.T


@mistake(bert.Layer, "forward", "pre-LayerNorm", "each block normalises what comes in, not the sum that goes out")
def _(self: bert.Layer, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    attended, probabilities = self.attention(self.attention_norm(x), mask)
    x = x + attended
    return x + self.feed_forward(self.feed_forward_norm(x)), probabilities


@mistake(bert.Layer, "forward", "attention's residual forgotten", "the input is not added to what attention gives")
def _(self: bert.Layer, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    attended, probabilities = self.attention(x, mask)
    x = self.attention_norm(attended)
    return self.feed_forward_norm(x + self.feed_forward(x)), probabilities


@mistake(
    bert.Layer, "forward", "feed-forward's residual forgotten", "the input is not added to what feed-forward gives"
)
def _(self: bert.Layer, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    attended, probabilities = self.attention(x, mask)
    return self.feed_forward_norm(self.feed_forward(self.attention_norm(x + attended))), probabilities


@mistake(
    bert.Layer, "forward", "one LayerNorm for both blocks", "feed-forward is normalised with attention's LayerNorm"
)
def _(self: bert.Layer, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    attended, probabilities = self.attention(x, mask)
    x = self.attention_norm(x + attended)
    return self.attention_norm(x + self.feed_forward(x)), probabilities


def _embeddings(self: bert.Embeddings, ids: Tensor, types: Tensor | None, first: int = 0) -> Tensor:
    """The sum before LayerNorm, positions counted from ``first``."""
    positions = torch.arange(first, first + ids.shape[1], device=ids.device)
    types = torch.zeros_like(ids) if types is None else types
    return self.word(ids) + self.position(positions) + self.token_type(types)


@mistake(bert.Embeddings, "forward", "positions from 1", "the first token gets position 1, not 0")
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None) -> Tensor:
    return self.norm(_embeddings(self, ids, token_types, first=1))


@mistake(bert.Embeddings, "forward", "positions forgotten", "the position embeddings are not added")
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None) -> Tensor:
    types = torch.zeros_like(ids) if token_types is None else token_types
    return self.norm(self.word(ids) + self.token_type(types))


@mistake(bert.Embeddings, "forward", "token types ignored", "every token is taken for one of the first sentence")
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None) -> Tensor:
    return self.norm(_embeddings(self, ids, None))


@mistake(bert.Embeddings, "forward", "token types left out", "the token type embedding is not added, not even type 0's")
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None) -> Tensor:
    return self.norm(self.word(ids) + self.position(torch.arange(ids.shape[1], device=ids.device)))


@mistake(bert.Embeddings, "forward", "embeddings not normalised", "the LayerNorm behind the embeddings is missing")
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None) -> Tensor:
    return _embeddings(self, ids, token_types)


_forward = bert.Bert.forward


@mistake(bert.Bert, "forward", "one layer short", "the last layer is not run")
def _(self: bert.Bert, ids, mask=None, token_types=None, trace=None):
    layers = self.layers
    self.layers = layers[:-1]
    try:
        return _forward(self, ids, mask, token_types, trace)
    finally:
        self.layers = layers


@mistake(bert.Bert, "pool", "pooler without tanh", "the pooler's tanh is missing")
def _(self: bert.Bert, hidden: Tensor) -> Tensor:
    return self.pooler(hidden[:, 0])
