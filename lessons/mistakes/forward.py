"""Mistakes of the forward pass that vectors do not show: in dropout, in gradients, in what a pad or
a NaN may hold.

Two show, but have the same numbers as a mistake of ``vectors.py``: "layer drops the mask" and
"encoder's mask inverted".
"""

import torch
from torch import Tensor, nn

from lessons.mistakes.calls import calls
from lessons.mistakes.planting import mistake
from lessons.mistakes.vectors import attention_with, embeddings_with
from minisbert.architectures import modern
from minisbert.core import bert, pooling

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
    bert,
    "layer_norm",
    "LayerNorm over everything",
    "mean and variance are those of all numbers, not of each token",
)
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return (x - x.mean()) / (x.var(correction=0) + eps).sqrt() * weight + bias


@mistake(
    bert,
    "layer_norm",
    "x.std() + eps",
    "std divides by D - 1, and eps stands outside the root: both are wrong",
)
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps) * weight + bias


@mistake(
    bert,
    "layer_norm",
    "variance over everything",
    "x.var() is one number, of all tokens, and divides by N - 1",
)
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.var() + eps).sqrt() * weight + bias


@mistake(
    bert,
    "attention",
    "exp by hand",
    "exp(score) is 0 for all low scores, and infinite for a high one: 0/0",
)
def _(query, key, value, mask=None, dropout=0.0):
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    shares = (scores if mask is None else scores.masked_fill(~mask, float("-inf"))).exp()
    probabilities = shares / shares.sum(-1, keepdim=True)
    return _dropout(probabilities, dropout) @ value, probabilities


@mistake(bert, "gelu", "GELU without the half", "x (1 + erf) is twice x P(Z <= x)")
def _(x: Tensor) -> Tensor:
    return 2 * _gelu(x)


@mistake(
    bert.FeedForward,
    "forward",
    "GELU after down",
    "GELU stands behind both dense layers, not between them",
)
def _(self: bert.FeedForward, x: Tensor) -> Tensor:
    return _gelu(self.down(self.up(x)))


@mistake(
    modern,
    "rotate",
    "pairs of neighbours",
    "columns i and i + 1 are turned, by every second of the angles",
)
def _(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b, c, s = x[..., ::2], x[..., 1::2], cos[..., ::2], sin[..., ::2]
    return torch.stack([a * c - b * s, a * s + b * c], dim=-1).flatten(-2)


@mistake(
    bert.FeedForward, "forward", "GELU forgotten", "no GELU stands between the two dense layers"
)
def _(self: bert.FeedForward, x: Tensor) -> Tensor:
    return self.down(self.up(x))


noticed = calls(bert, "attention", attention_with)
noticed(
    "1/sqrt(H)",
    "the scores are divided by the root of H, the number of heads",
    power=0.0,
    heads=0.5,
)
noticed(
    "softmax over the queries", "pads get -inf, and then the softmax is over the queries", axis=-2
)
noticed(
    "finite mask", "pads get a finite score: below all others today, and one day not", score=-1e9
)
noticed("no attention dropout", "the probabilities are never dropped", dropout=0.0)


def dropped_with(
    query,
    key,
    value,
    mask=None,
    dropout=0.0,
    *,
    scores=False,
    returned=False,
    context=False,
    cut=False,
):
    """What is dropped: the ``scores``, the probabilities that are ``returned``, the ``context``; or
    all is ``cut`` off from the gradient."""
    given = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    given = _dropout(given, dropout) if scores else given
    probabilities = (given if mask is None else given.masked_fill(~mask, float("-inf"))).softmax(-1)
    probabilities = (
        _dropout(probabilities, dropout)
        if returned
        else probabilities.detach()
        if cut
        else probabilities
    )
    mixed = probabilities @ value
    return _dropout(mixed, dropout) if context else mixed, probabilities


dropped = calls(bert, "attention", dropped_with)
dropped(
    "detached probabilities",
    "the probabilities are detached: right forward, wrong backward",
    cut=True,
)
dropped(
    "dropout on the scores", "a dropped score is 0, and softmax still gives it a share", scores=True
)
dropped(
    "probabilities after dropout",
    "the probabilities that are returned are the dropped ones",
    returned=True,
)
dropped(
    "dropout on the context", "values are dropped, before or after they are mixed", context=True
)


def attend_with(self, x, mask, *, dropped="in training", output=0.0):
    """The probabilities are ``dropped`` in training, "always" or not; the output is, in training,
    by its own chance.
    """
    query, key, value = (self.split(dense(x)) for dense in (self.query, self.key, self.value))
    chance = self.dropout if dropped == "always" or (dropped and self.training) else 0.0
    context, probabilities = bert.attention(query, key, value, mask, chance)
    return _dropout(
        self.output(self.merge(context)), output * self.dropout, self.training
    ), probabilities


attended = calls(bert.Attention, "forward", attend_with)
attended("dropout alive in eval", "attention dropout stays on in eval mode", dropped="always")
attended("dropout not handed on", "attention's dropout is 0 in training too", dropped="")
attended(
    "dropout on attention's output",
    "the output is dropped, not the probabilities",
    dropped="",
    output=1.0,
)


def layer_with(self, x, mask, *, first="dropout", second="dropout", summed=False):
    """The dropouts of the two blocks, "" for none; ``summed``: of the sums."""
    first, second = (getattr(self, name) if name else nn.Identity() for name in (first, second))
    attended, probabilities = self.attention(x, mask)
    x = self.attention_norm(first(x + attended) if summed else x + first(attended))
    fed = self.feed_forward(x)
    return self.feed_forward_norm(second(x + fed) if summed else x + second(fed)), probabilities


layered = calls(bert.Layer, "forward", layer_with)
layered(
    "layer drops the mask", "attention gets no mask from its layer, so pads take part", mask=None
)
layered("layer without dropout", "neither block's output is dropped", first="", second="")
layered("attention's output without dropout", "only feed-forward's output is dropped", first="")
layered("feed-forward's output without dropout", "only attention's output is dropped", second="")
layered(
    "dropout on the residual sum", "the sum or its norm is dropped, not what is added", summed=True
)


@mistake(
    bert.Embeddings,
    "forward",
    "embeddings without dropout",
    "what enters the first layer is never dropped",
)
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None) -> Tensor:
    return self.norm(embeddings_with(self, ids, token_types, normalised=False))


@mistake(
    bert.Embeddings,
    "forward",
    "types left out if None",
    "without token types nothing is added, not type 0",
)
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None) -> Tensor:
    typed = int(token_types is not None)
    return self.dropout(embeddings_with(self, ids, token_types, token_type=typed))


@mistake(
    bert.Embeddings,
    "forward",
    "dropout before the LayerNorm",
    "the sum is dropped, and then normalised",
)
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None) -> Tensor:
    return self.norm(self.dropout(embeddings_with(self, ids, token_types, normalised=False)))


@mistake(
    bert.Bert, "forward", "encoder's mask inverted", "the layers read the pads, not the tokens"
)
def _(self: bert.Bert, ids, mask=None, token_types=None, trace=None):
    if mask is not None:
        mask = ~mask.bool()[:, None, None, :]
    x = self.embeddings(ids, token_types)
    states = {"embeddings": x}
    for i, layer in enumerate(self.layers):
        x, states[f"layers.{i}.attention"] = layer(x, mask)
        states[f"layers.{i}"] = x
    if trace is not None:
        trace.update(states)
    return x


@mistake(
    pooling,
    "max_pool",
    "finite fill in max",
    "pads are filled with a number that is not below every number",
)
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    return (hidden if mask is None else hidden.masked_fill(~mask.bool().unsqueeze(-1), -1e9)).amax(
        1
    )


@mistake(
    pooling,
    "mean_pool",
    "multiplied by the mask",
    "the states are multiplied by the mask: a pad's NaN stays NaN",
)
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is None:
        return hidden.mean(1)
    return (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)


@mistake(
    pooling, "mean_pool", "NaN hidden in the mean", "nan_to_num turns a real token's NaN into 0"
)
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    return _mean(hidden.nan_to_num(), mask) if mask is not None else hidden.mean(1)


@mistake(
    pooling,
    "attention_pool",
    "finite fill in attention pooling",
    "a pad's score is not below every score",
)
def _(hidden: Tensor, mask: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    scores = hidden @ weight.T + bias
    if mask is not None:
        pads = ~mask.bool().unsqueeze(-1)
        hidden, scores = hidden.masked_fill(pads, 0.0), scores.masked_fill(pads, -1e9)
    return (scores.softmax(1) * hidden).sum(1)


@mistake(
    pooling,
    "attention_pool",
    "NaN hidden in the learned average",
    "nan_to_num hides a NaN from the average",
)
def _(hidden: Tensor, mask: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    return _attend(hidden.nan_to_num(), mask, weight, bias)
