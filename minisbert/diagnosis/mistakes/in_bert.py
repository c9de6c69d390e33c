"""Mistakes in BERT's formulas and modules.

Where several mistakes are wrong choices of one thing, its formula takes the choices as arguments, by default the right
ones, and each mistake is a row of a table.
"""

import torch
from torch import Tensor, nn

from minisbert.core import bert
from minisbert.diagnosis.mistakes.planting import mistake, wrong_choices

FLOOR = float("-inf")  # the score of what must get no attention
_forward = bert.Bert.forward  # the right one, from before anything is planted

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


def layer_norm_with(
    x, weight, bias, eps, *, own_eps=None, rooted=True, correction=0, centred=True, axis=-1, gamma=1, beta=1
):
    """``own_eps`` is used instead of ``eps``; ``gamma`` and ``beta`` are 0 to leave out the weight or the bias."""
    eps = own_eps or eps
    if centred:
        x = x - x.mean(axis, keepdim=True)
    variance = x.pow(2).sum(axis, keepdim=True) / (x.shape[axis] - correction)
    scale = (variance + eps).sqrt()
    if not rooted:
        scale = variance.sqrt() + eps
    return x / scale * weight**gamma + bias * beta


wrong_choices(
    bert,
    "layer_norm",
    layer_norm_with,
    ("LayerNorm eps 1e-5", "eps is torch's default 1e-5, not the checkpoint's", {"own_eps": 1e-5}),
    ("eps outside the root", "eps is added to the standard deviation, not to the variance", {"rooted": False}),
    ("unbiased variance", "the variance is divided by D - 1 (torch's default), not by D", {"correction": 1}),
    ("no gamma", "LayerNorm's weight is left out", {"gamma": 0}),
    ("no beta", "LayerNorm's bias is left out", {"beta": 0}),
    ("mean not subtracted", "the vector is scaled but not centred (that is RMSNorm)", {"centred": False}),
    ("LayerNorm over tokens", "the mean and variance are over the tokens, not the width", {"axis": -2}),
)


# ----------------------------------------------------------------------------------------- attention


def attention_with(
    query, key, value, mask=None, dropout=0.0, *, swapped=False, power=0.5, heads=0.0, hide="pads", score=FLOOR, axis=-1
):
    """Divide scores by K to the ``power`` and H to the power ``heads``; give what ``hide`` says the ``score``."""
    if swapped:
        query, key = key, query
    scores = query @ key.transpose(-2, -1) / (query.shape[-1] ** power * query.shape[1] ** heads)
    if mask is not None and hide == "pads":
        scores = scores.masked_fill(~mask, score)
    if mask is not None and hide == "tokens":
        scores = scores.masked_fill(mask, score)
    probabilities = scores.softmax(axis)
    return nn.functional.dropout(probabilities, dropout) @ value, probabilities


wrong_choices(
    bert,
    "attention",
    attention_with,
    ("no attention mask", "pads take part in attention", {"hide": ""}),
    ("mask of -10", "pads get a score of -10: little attention instead of none", {"score": -10.0}),
    ("attention mask inverted", "the real tokens are hidden, and the pads are read", {"hide": "tokens"}),
    ("no 1/sqrt(K)", "the scores are not divided by sqrt(K)", {"power": 0.0}),
    ("1/sqrt(D)", "the scores are divided by sqrt(D), not by sqrt(K)", {"heads": 0.5}),
    ("1/K", "the scores are divided by K, not by sqrt(K)", {"power": 1.0}),
    ("q and k swapped", "queries and keys are swapped", {"swapped": True}),
    ("softmax over the wrong axis", "the softmax is over the queries, not the keys", {"axis": -2, "score": -1e9}),
    ("softmax over the heads", "the softmax is over the heads, not the keys", {"axis": 1, "score": -1e9}),
)


@mistake(bert, "attention", "mask after softmax", "pads are zeroed after the softmax, so the rows no longer sum to 1")
def _(query, key, value, mask=None, dropout=0.0):
    probabilities = attention_with(query, key, value)[1]
    if mask is not None:
        probabilities = probabilities * mask
    return probabilities @ value, probabilities


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


# ------------------------------------------------------------------------------------------- modules


@mistake(bert.FeedForward, "forward", "no feed-forward biases", "feed-forward's two dense layers have no bias")
def _(self: bert.FeedForward, x: Tensor) -> Tensor:
    return bert.gelu(x @ self.up.weight.T) @ self.down.weight.T


@mistake(bert.Layer, "forward", "pre-LayerNorm", "each block normalises its input, not the residual sum")
def _(self: bert.Layer, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    attended, probabilities = self.attention(self.attention_norm(x), mask)
    x = x + attended
    return x + self.feed_forward(self.feed_forward_norm(x)), probabilities


def layer_with(self, x, mask, *, first=1, second=1, last="feed_forward"):
    """``first`` and ``second`` are factors of the residuals, ``last`` is the block whose LayerNorm ends the layer."""
    attended, probabilities = self.attention(x, mask)
    x = self.attention_norm(first * x + attended)
    return getattr(self, f"{last}_norm")(second * x + self.feed_forward(x)), probabilities


wrong_choices(
    bert.Layer,
    "forward",
    layer_with,
    ("attention's residual forgotten", "the input is not added to attention's output", {"first": 0}),
    ("feed-forward's residual forgotten", "the input is not added to feed-forward's output", {"second": 0}),
    ("one LayerNorm for both blocks", "feed-forward uses attention's LayerNorm", {"last": "attention"}),
)


def summed(self, ids, token_types, positions=None, *, start=0, position=1, token_type=1):
    """Add up the embeddings (B, T, D) of any family; ``position`` and ``token_type`` are factors."""
    if positions is None:
        positions = torch.arange(ids.shape[1], device=ids.device)
    x = self.word(ids) + position * self.position(positions + self.offset + start)
    if self.token_type is None:
        return x
    if token_types is None:
        token_types = torch.zeros_like(ids)
    return x + token_type * self.token_type(token_types)


def embeddings_with(self, ids, token_types, positions=None, *, typed=True, **choices):
    if not typed:
        token_types = None
    return self.norm(summed(self, ids, token_types, positions, **choices))


wrong_choices(
    bert.Embeddings,
    "forward",
    embeddings_with,
    ("positions from 1", "the first token gets position 1, not 0", {"start": 1}),
    ("positions forgotten", "the position embeddings are not added", {"position": 0}),
    ("token types ignored", "every token gets type 0, the first sentence", {"typed": False}),
    ("token types left out", "the token type embedding is not added, not even type 0's", {"token_type": 0}),
)
mistake(bert.Embeddings, "forward", "embeddings not normalised", "the LayerNorm after the embeddings is missing")(
    summed
)


@mistake(bert.Bert, "forward", "one layer short", "the last layer is not run")
def _(self: bert.Bert, ids, mask=None, token_types=None, trace=None, positions=None):
    layers = self.layers
    self.layers = layers[:-1]
    try:
        return _forward(self, ids, mask, token_types, trace, positions)
    finally:
        self.layers = layers


@mistake(bert.Bert, "forward", "encoder's mask by the pad's id", "every id 0 is masked, and the mask is not read")
def _(self: bert.Bert, ids, mask=None, token_types=None, trace=None, positions=None):
    return _forward(self, ids, ids != 0, token_types, trace, positions)


@mistake(bert.Bert, "pool", "pooler without tanh", "the pooler's tanh is missing")
def _(self: bert.Bert, hidden: Tensor) -> Tensor:
    return self.pooler(hidden[:, 0])
