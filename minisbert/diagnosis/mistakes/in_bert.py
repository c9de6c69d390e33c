"""Mistakes in BERT's formulas and modules.

Where several mistakes are wrong choices of one thing, its formula takes the choices as arguments, by default the right
ones, and each mistake is a row of a table.
"""

from functools import partial

import torch
from torch import Tensor, nn

from minisbert.core import bert
from minisbert.diagnosis.mistakes.planting import mistake, wrong_choices

FLOOR = float("-inf")  # the score of what must get no attention
_forward = bert.Bert.forward  # the right one, from before anything is planted

# ---------------------------------------------------------------------------------------------- gelu


def gelu_with(x: Tensor, *, kind: str) -> Tensor:
    if kind == "tanh":
        return nn.functional.gelu(x, approximate="tanh")
    if kind == "quick":
        return x * torch.sigmoid(1.702 * x)
    return x.clamp_min(0)


wrong_choices(
    bert,
    "gelu",
    gelu_with,
    ("tanh GELU", "the tanh approximation replaces the exact GELU", {"kind": "tanh"}),
    ("quick GELU", "x * sigmoid(1.702 x) replaces GELU", {"kind": "quick"}),
    ("ReLU", "ReLU replaces GELU", {"kind": "relu"}),
)


# ---------------------------------------------------------------------------------------- layer norm


def layer_norm_with(
    x, weight, bias, eps, *, own_eps=None, rooted=True, correction=0, centred=True, axis=-1, gamma=1, beta=1
):
    """``own_eps`` is used instead of ``eps``; ``gamma`` and ``beta`` are 0 to leave out the weight or the bias."""
    eps = own_eps or eps
    if centred:
        x = x - x.mean(axis, keepdim=True)
    variance = x.pow(2).sum(axis, keepdim=True) / (x.shape[axis] - correction)
    scale = (variance + eps).sqrt() if rooted else variance.sqrt() + eps
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


def split_with(self: bert.Attention, x: Tensor, *, interleaved: bool) -> Tensor:
    if interleaved:
        return x.unflatten(-1, (-1, self.heads)).movedim(-1, 1)
    # the right shape with the wrong numbers in it: nothing raises
    return x.reshape(x.shape[0], self.heads, x.shape[1], -1)


wrong_choices(
    bert.Attention,
    "split",
    split_with,
    ("heads split without transposing", "(B, T, D) is reshaped to (B, H, T, K) directly", {"interleaved": False}),
    ("heads interleaved", "head h takes every H-th column, not K adjacent columns", {"interleaved": True}),
)


def attend_with(self, x, mask, *, biased=True, projected=True):
    """``biased`` is False to leave out the bias of all four dense layers, ``projected`` to leave out the last one."""
    layers = [self.query, self.key, self.value, self.output]
    if not biased:
        layers = [partial(nn.functional.linear, weight=layer.weight) for layer in layers]
    query, key, value = (self.split(layer(x)) for layer in layers[:3])
    context, probabilities = bert.attention(query, key, value, mask)
    context = self.merge(context)
    if projected:
        context = layers[3](context)
    return context, probabilities


wrong_choices(
    bert.Attention,
    "forward",
    attend_with,
    ("no attention biases", "attention's four dense layers have no bias", {"biased": False}),
    ("no output projection", "the output layer is not applied to the merged heads", {"projected": False}),
)


# ------------------------------------------------------------------------------------------- modules


@mistake(bert.FeedForward, "forward", "no feed-forward biases", "feed-forward's two dense layers have no bias")
def _(self: bert.FeedForward, x: Tensor) -> Tensor:
    return bert.gelu(x @ self.up.weight.T) @ self.down.weight.T


def layer_with(self, x, mask, *, before=False, first=1, second=1, last="feed_forward"):
    """``first`` and ``second`` are factors of the residuals, ``last`` is the block whose LayerNorm ends the layer."""
    if before:  # pre-norm: each block reads its input normalised, and no norm ends the layer
        attended, probabilities = self.attention(self.attention_norm(x), mask)
        x = x + attended
        return x + self.feed_forward(self.feed_forward_norm(x)), probabilities
    attended, probabilities = self.attention(x, mask)
    x = self.attention_norm(first * x + attended)
    return getattr(self, f"{last}_norm")(second * x + self.feed_forward(x)), probabilities


wrong_choices(
    bert.Layer,
    "forward",
    layer_with,
    ("pre-LayerNorm", "each block normalises its input, not the residual sum", {"before": True}),
    ("attention's residual forgotten", "the input is not added to attention's output", {"first": 0}),
    ("feed-forward's residual forgotten", "the input is not added to feed-forward's output", {"second": 0}),
    ("one LayerNorm for both blocks", "feed-forward uses attention's LayerNorm", {"last": "attention"}),
)


def embeddings_with(
    self, ids, token_types, positions=None, *, start=0, position=1, token_type=1, typed=True, normalised=True
):
    """Embed the tokens (B, T, D) of any family; ``position`` and ``token_type`` are factors."""
    if positions is None:
        positions = torch.arange(ids.shape[1], device=ids.device)
    x = self.word(ids) + position * self.position(positions + self.offset + start)
    if self.token_type is not None:
        if token_types is None or not typed:
            token_types = torch.zeros_like(ids)
        x = x + token_type * self.token_type(token_types)
    if normalised:
        x = self.norm(x)
    return x


wrong_choices(
    bert.Embeddings,
    "forward",
    embeddings_with,
    ("positions from 1", "the first token gets position 1, not 0", {"start": 1}),
    ("positions forgotten", "the position embeddings are not added", {"position": 0}),
    ("token types ignored", "every token gets type 0, the first sentence", {"typed": False}),
    ("token types left out", "the token type embedding is not added, not even type 0's", {"token_type": 0}),
    ("embeddings not normalised", "the LayerNorm after the embeddings is missing", {"normalised": False}),
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
    return self.pooler(hidden[:, 0])  # type: ignore[misc]  # without a pooler the mistake cannot be planted
