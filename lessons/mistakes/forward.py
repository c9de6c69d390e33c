"""Mistakes of the forward pass that vectors do not show: in dropout, in gradients, in what a pad or a NaN may hold.

Two show, but have the same numbers as a mistake of ``minisbert/diagnosis/mistakes.py``, which ``trace`` names: "layer
drops the mask" and "encoder's mask inverted".
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from minisbert.architectures import modern
from minisbert.core import bert, pooling
from minisbert.diagnosis.mistakes import attention_with, embeddings_with, mistake, wrong_choices

Drop = Callable[[Tensor], Tensor]

# the right versions, kept from before anything is planted: a stand-in may call what it replaces
_dropout = nn.functional.dropout
_mean, _attend = pooling.mean_pool, pooling.attention_pool
_gelu = bert.gelu


@mistake(
    bert,
    "layer_norm",
    "detached LayerNorm statistics",
    "the mean and variance are detached: right forward, wrong backward",
)
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    fixed = x.detach()
    scale = (fixed.var(-1, correction=0, keepdim=True) + eps).sqrt()
    return (x - fixed.mean(-1, keepdim=True)) / scale * weight + bias


@mistake(
    bert, "layer_norm", "LayerNorm over everything", "mean and variance are those of all numbers, not of each token"
)
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return (x - x.mean()) / (x.var(correction=0) + eps).sqrt() * weight + bias


@mistake(bert, "layer_norm", "x.std() + eps", "std divides by D - 1, and eps stands outside the root: both are wrong")
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps) * weight + bias


@mistake(bert, "layer_norm", "variance over everything", "x.var() is one number, of all tokens, and divides by N - 1")
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.var() + eps).sqrt() * weight + bias


wrong_choices(
    bert,
    "attention",
    attention_with,
    ("1/sqrt(H)", "the scores are divided by the root of H, the number of heads", {"power": 0.0, "heads": 0.5}),
)


@mistake(bert, "attention", "exp by hand", "exp(score) is 0 for all low scores, and infinite for a high one: 0/0")
def _(query, key, value, mask=None, dropout=0.0):
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    shares = (scores if mask is None else scores.masked_fill(~mask, float("-inf"))).exp()
    probabilities = shares / shares.sum(-1, keepdim=True)
    return _dropout(probabilities, dropout) @ value, probabilities


@mistake(bert, "gelu", "GELU without the half", "x (1 + erf) is twice x P(Z <= x)")
def _(x: Tensor) -> Tensor:
    return 2 * _gelu(x)


@mistake(bert.FeedForward, "forward", "GELU after down", "GELU stands behind both dense layers, not between them")
def _(self: bert.FeedForward, x: Tensor) -> Tensor:
    return _gelu(self.down(self.up(x)))


@mistake(modern, "rotate", "pairs of neighbours", "columns i and i + 1 are turned, by every second of the angles")
def _(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b, c, s = x[..., ::2], x[..., 1::2], cos[..., ::2], sin[..., ::2]
    return torch.stack([a * c - b * s, a * s + b * c], dim=-1).flatten(-2)


@mistake(bert, "attention", "softmax over the queries", "pads get -inf, and then the softmax is over the queries")
def _(query, key, value, mask=None, dropout=0.0):
    return attention_with(query, key, value, mask, dropout=dropout, axis=-2)


@mistake(bert.FeedForward, "forward", "GELU forgotten", "no GELU stands between the two dense layers")
def _(self: bert.FeedForward, x: Tensor) -> Tensor:
    return self.down(self.up(x))


@mistake(bert, "attention", "finite mask", "pads get a finite score: below all others today, and one day not")
def _(query, key, value, mask=None, dropout=0.0):
    return attention_with(query, key, value, mask, score=-1e9, dropout=dropout)


@mistake(bert, "attention", "detached probabilities", "the probabilities are detached: right forward, wrong backward")
def _(query, key, value, mask=None, dropout=0.0):
    probabilities = attention_with(query, key, value, mask)[1].detach()
    return probabilities @ value, probabilities


@mistake(bert, "attention", "no attention dropout", "the probabilities are never dropped")
def _(query, key, value, mask=None, dropout=0.0):
    return attention_with(query, key, value, mask)


@mistake(bert, "attention", "dropout on the scores", "a dropped score is 0, and softmax still gives it a share")
def _(query, key, value, mask=None, dropout=0.0):
    scores = _dropout(query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5, dropout)
    probabilities = (scores if mask is None else scores.masked_fill(~mask, float("-inf"))).softmax(-1)
    return probabilities @ value, probabilities


@mistake(bert, "attention", "probabilities after dropout", "the probabilities that are returned are the dropped ones")
def _(query, key, value, mask=None, dropout=0.0):
    probabilities = _dropout(attention_with(query, key, value, mask)[1], dropout)
    return probabilities @ value, probabilities


@mistake(bert, "attention", "dropout on the context", "values are dropped, before or after they are mixed")
def _(query, key, value, mask=None, dropout=0.0):
    context, probabilities = attention_with(query, key, value, mask)
    return _dropout(context, dropout), probabilities


@mistake(bert.Attention, "forward", "dropout alive in eval", "attention dropout stays on in eval mode")
def _(self: bert.Attention, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    query, key, value = (self.split(dense(x)) for dense in (self.query, self.key, self.value))
    context, probabilities = bert.attention(query, key, value, mask, self.dropout)
    return self.output(self.merge(context)), probabilities


@mistake(bert.Attention, "forward", "dropout not handed on", "attention's dropout is 0 in training too")
def _(self: bert.Attention, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    query, key, value = (self.split(dense(x)) for dense in (self.query, self.key, self.value))
    context, probabilities = bert.attention(query, key, value, mask)
    return self.output(self.merge(context)), probabilities


@mistake(bert.Attention, "forward", "dropout on attention's output", "the output is dropped, not the probabilities")
def _(self: bert.Attention, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    query, key, value = (self.split(dense(x)) for dense in (self.query, self.key, self.value))
    context, probabilities = bert.attention(query, key, value, mask)
    return _dropout(self.output(self.merge(context)), self.dropout, self.training), probabilities


@mistake(bert.Layer, "forward", "layer drops the mask", "attention gets no mask from its layer, so pads take part")
def _(self: bert.Layer, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    return _layer(self, x, None, self.attention_dropout, self.dropout)


@mistake(bert.Layer, "forward", "layer without dropout", "neither block's output is dropped")
def _(self: bert.Layer, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    return _layer(self, x, mask, _kept, _kept)


@mistake(bert.Layer, "forward", "attention's output without dropout", "only feed-forward's output is dropped")
def _(self: bert.Layer, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    return _layer(self, x, mask, _kept, self.dropout)


@mistake(bert.Layer, "forward", "feed-forward's output without dropout", "only attention's output is dropped")
def _(self: bert.Layer, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    return _layer(self, x, mask, self.attention_dropout, _kept)


@mistake(bert.Layer, "forward", "one dropout for both blocks", "attention's output is dropped in a DistilBERT too")
def _(self: bert.Layer, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    return _layer(self, x, mask, self.dropout, self.dropout)


@mistake(bert.Layer, "forward", "dropout on the residual sum", "the sum or its norm is dropped, not what is added")
def _(self: bert.Layer, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    attended, probabilities = self.attention(x, mask)
    x = self.attention_norm(self.attention_dropout(x + attended))
    return self.feed_forward_norm(self.dropout(x + self.feed_forward(x))), probabilities


def _layer(self: bert.Layer, x: Tensor, mask: Tensor | None, first: Drop, second: Drop) -> tuple[Tensor, Tensor]:
    """A layer with these two dropouts."""
    attended, probabilities = self.attention(x, mask)
    x = self.attention_norm(x + first(attended))
    return self.feed_forward_norm(x + second(self.feed_forward(x))), probabilities


def _kept(x: Tensor) -> Tensor:
    return x


@mistake(bert.Embeddings, "forward", "embeddings without dropout", "what enters the first layer is never dropped")
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None, positions: Tensor | None = None) -> Tensor:
    return self.norm(embeddings_with(self, ids, token_types, positions, normalised=False))


@mistake(bert.Embeddings, "forward", "types left out if None", "without token types nothing is added, not type 0")
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None, positions: Tensor | None = None) -> Tensor:
    typed = int(token_types is not None)
    return self.dropout(embeddings_with(self, ids, token_types, positions, token_type=typed))


@mistake(bert.Embeddings, "forward", "dropout before the LayerNorm", "the sum is dropped, and then normalised")
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None, positions: Tensor | None = None) -> Tensor:
    return self.norm(self.dropout(embeddings_with(self, ids, token_types, positions, normalised=False)))


@mistake(bert.Bert, "forward", "encoder's mask inverted", "the layers read the pads, not the tokens")
def _(self: bert.Bert, ids, mask=None, token_types=None, trace=None, positions=None):
    if mask is not None:
        mask = ~mask.bool() if mask.ndim == 4 else ~mask.bool()[:, None, None, :]
    x = self.embeddings(ids, token_types, positions)
    states = {"embeddings": x}
    for i, layer in enumerate(self.layers):
        x, states[f"layers.{i}.attention"] = layer(x, mask)
        states[f"layers.{i}"] = x
    if trace is not None:
        trace.update(states)
    return x


@mistake(pooling, "max_pool", "finite fill in max", "pads are filled with a number that is not below every number")
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    return (hidden if mask is None else hidden.masked_fill(~mask.bool().unsqueeze(-1), -1e9)).amax(1)


@mistake(pooling, "mean_pool", "multiplied by the mask", "the states are multiplied by the mask: a pad's NaN stays NaN")
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is None:
        return hidden.mean(1)
    return (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)


@mistake(pooling, "mean_pool", "NaN hidden in the mean", "nan_to_num turns a real token's NaN into 0")
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    return _mean(hidden.nan_to_num(), mask) if mask is not None else hidden.mean(1)


@mistake(pooling, "attention_pool", "finite fill in attention pooling", "a pad's score is not below every score")
def _(hidden: Tensor, mask: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    scores = hidden @ weight.T + bias
    if mask is not None:
        pads = ~mask.bool().unsqueeze(-1)
        hidden, scores = hidden.masked_fill(pads, 0.0), scores.masked_fill(pads, -1e9)
    return (scores.softmax(1) * hidden).sum(1)


@mistake(pooling, "attention_pool", "NaN hidden in the learned average", "nan_to_num hides a NaN from the average")
def _(hidden: Tensor, mask: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    return _attend(hidden.nan_to_num(), mask, weight, bias)
