"""Mistakes of the forward pass that vectors show; ``hunt.py`` names them by their numbers.

Where several mistakes are wrong choices of one thing, its formula takes the choices as arguments,
by default the right ones, and each mistake is a row of a table.
"""

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from lessons.mistakes.planting import mistake, wrong_choices
from minisbert.architectures import modern, qwen3
from minisbert.core import bert, pooling

FLOOR = float("-inf")  # the score of what must get no attention
# the right ones, from before anything is planted
_forward, _rotary, _attention = bert.Bert.forward, modern.rotary, bert.attention


# --------------------------------------------------------------------------------------------- gelu


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


# --------------------------------------------------------------------------------------- layer norm


def layer_norm_with(
    x,
    weight,
    bias,
    eps,
    *,
    own_eps=None,
    rooted=True,
    correction=0,
    centred=True,
    axis=-1,
    gamma=1,
    beta=1,
):
    """``own_eps`` is used instead of ``eps``; ``gamma`` and ``beta`` are 0 to leave out the weight
    or the bias.
    """
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
    (
        "eps outside the root",
        "eps is added to the standard deviation, not to the variance",
        {"rooted": False},
    ),
    (
        "unbiased variance",
        "the variance is divided by D - 1 (torch's default), not by D",
        {"correction": 1},
    ),
    ("no gamma", "LayerNorm's weight is left out", {"gamma": 0}),
    ("no beta", "LayerNorm's bias is left out", {"beta": 0}),
    (
        "mean not subtracted",
        "the vector is scaled but not centred (that is RMSNorm)",
        {"centred": False},
    ),
    (
        "LayerNorm over tokens",
        "the mean and variance are over the tokens, not the width",
        {"axis": -2},
    ),
)


# ---------------------------------------------------------------------------------------- attention


def attention_with(
    query,
    key,
    value,
    mask=None,
    dropout=0.0,
    *,
    swapped=False,
    power=0.5,
    heads=0.0,
    hide="pads",
    score=FLOOR,
    axis=-1,
):
    """Divide scores by K to the ``power`` and H to the power ``heads``; give what ``hide`` says the
    ``score``.
    """
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
    (
        "attention mask inverted",
        "the real tokens are hidden, and the pads are read",
        {"hide": "tokens"},
    ),
    ("no 1/sqrt(K)", "the scores are not divided by sqrt(K)", {"power": 0.0}),
    ("1/sqrt(D)", "the scores are divided by sqrt(D), not by sqrt(K)", {"heads": 0.5}),
    ("1/K", "the scores are divided by K, not by sqrt(K)", {"power": 1.0}),
    ("q and k swapped", "queries and keys are swapped", {"swapped": True}),
    (
        "softmax over the wrong axis",
        "the softmax is over the queries, not the keys",
        {"axis": -2, "score": -1e9},
    ),
    (
        "softmax over the heads",
        "the softmax is over the heads, not the keys",
        {"axis": 1, "score": -1e9},
    ),
)


@mistake(
    bert,
    "attention",
    "mask after softmax",
    "pads are zeroed after the softmax, so the rows no longer sum to 1",
)
def _(query, key, value, mask=None, dropout=0.0):
    probabilities = attention_with(query, key, value)[1]
    if mask is not None:
        probabilities = probabilities * mask
    return probabilities @ value, probabilities


@mistake(
    bert.Attention,
    "merge",
    "heads merged without transposing",
    "(B, H, T, K) is reshaped to (B, T, D) directly",
)
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
    (
        "heads split without transposing",
        "(B, T, D) is reshaped to (B, H, T, K) directly",
        {"interleaved": False},
    ),
    (
        "heads interleaved",
        "head h takes every H-th column, not K adjacent columns",
        {"interleaved": True},
    ),
)


def attend_with(self, x, mask, *, biased=True, projected=True):
    """``biased`` is False to leave out the bias of all four dense layers, ``projected`` to leave
    out the last one.
    """
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
    (
        "no output projection",
        "the output layer is not applied to the merged heads",
        {"projected": False},
    ),
)


# ------------------------------------------------------------------------------------------ modules


@mistake(
    bert.FeedForward,
    "forward",
    "no feed-forward biases",
    "feed-forward's two dense layers have no bias",
)
def _(self: bert.FeedForward, x: Tensor) -> Tensor:
    return bert.gelu(x @ self.up.weight.T) @ self.down.weight.T


def layer_with(self, x, mask, *, before=False, first=1, second=1, last="feed_forward"):
    """``first`` and ``second`` are factors of the residuals, ``last`` is the block whose LayerNorm
    ends the layer.
    """
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
    (
        "attention's residual forgotten",
        "the input is not added to attention's output",
        {"first": 0},
    ),
    (
        "feed-forward's residual forgotten",
        "the input is not added to feed-forward's output",
        {"second": 0},
    ),
    (
        "one LayerNorm for both blocks",
        "feed-forward uses attention's LayerNorm",
        {"last": "attention"},
    ),
)


def embeddings_with(
    self,
    ids,
    token_types,
    *,
    start=0,
    position=1,
    token_type=1,
    typed=True,
    normalised=True,
):
    """Embed the tokens (B, T, D); ``position`` and ``token_type`` are factors."""
    positions = torch.arange(ids.shape[1], device=ids.device)
    x = self.word(ids) + position * self.position(positions + start)
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
    (
        "token types left out",
        "the token type embedding is not added, not even type 0's",
        {"token_type": 0},
    ),
    (
        "embeddings not normalised",
        "the LayerNorm after the embeddings is missing",
        {"normalised": False},
    ),
)


@mistake(bert.Bert, "forward", "one layer short", "the last layer is not run")
def _(self: bert.Bert, ids, mask=None, token_types=None, trace=None):
    layers = self.layers
    self.layers = layers[:-1]
    try:
        return _forward(self, ids, mask, token_types, trace)
    finally:
        self.layers = layers


@mistake(
    bert.Bert,
    "forward",
    "encoder's mask by the pad's id",
    "every id 0 is masked, and the mask is not read",
)
def _(self: bert.Bert, ids, mask=None, token_types=None, trace=None):
    return _forward(self, ids, ids != 0, token_types, trace)


@mistake(bert.Bert, "pool", "pooler without tanh", "the pooler's tanh is missing")
def _(self: bert.Bert, hidden: Tensor) -> Tensor:
    return self.pooler(hidden[:, 0])  # type: ignore[misc]  # without a pooler the mistake cannot be planted


# ----------------------------------------------------------------------------------------- rotation


def rotate_with(x, cos, sin, *, pairs="halves", signs=(-1, 1)):
    """``pairs`` are the columns that turn together, ``signs`` those of the halves that the sine
    gets.
    """
    if pairs == "adjacent":
        first, second = x[..., 0::2], x[..., 1::2]
        half = cos.shape[-1] // 2
        cos, sin = cos[..., :half], sin[..., :half]
        return torch.stack(
            [first * cos - second * sin, second * cos + first * sin], dim=-1
        ).flatten(-2)
    if pairs == "next":
        return x * cos - x.roll(-1, dims=-1) * sin
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([signs[0] * second, signs[1] * first], dim=-1) * sin


wrong_choices(
    modern,
    "rotate",
    rotate_with,
    (
        "rotation interleaved",
        "column 2i is paired with 2i + 1, not i with i + K/2",
        {"pairs": "adjacent"},
    ),
    ("rotated backwards", "each pair is turned by minus its angle", {"signs": (1, -1)}),
    (
        "sign of the second half forgotten",
        "the halves are swapped, and none is negated",
        {"signs": (1, 1)},
    ),
    (
        "every column turned by its neighbour",
        "roll by one column takes the place of the halves",
        {"pairs": "next"},
    ),
)


@mistake(
    modern,
    "rotary",
    "rotary base 10,000",
    "the angles have the base of RoFormer, not the model's own",
)
def _(positions: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return _rotary(positions, width, 10_000.0, dtype)


# ------------------------------------------------------------------------------------- causal masks


@mistake(
    qwen3.Decoder, "view", "causal mask forgotten", "tokens of a decoder see what comes after them"
)
def _(
    self: qwen3.Decoder, mask: Tensor | None, positions: Tensor, dtype: torch.dtype
) -> list[tuple]:
    config = cast(qwen3.DecoderConfig, self.config)
    rotation = modern.rotary(positions, config.head_dim, config.rope_theta, dtype)
    if mask is None:
        mask = torch.ones_like(positions).bool()[:, None, None]
    return [(mask, rotation)] * len(self.layers)


@mistake(
    bert, "attention", "causal mask left in", "tokens of an encoder see only what comes before them"
)
def _(query, key, value, mask=None, dropout=0.0):
    return _attention(
        query, key, value, qwen3.causal_mask(mask, query.shape[2], query.device), dropout
    )


# ------------------------------------------------------------------------------------------ RMSNorm


def rms_norm_with(x, weight, eps, *, centred=False, rooted=True, summed=False, plus=0, power=1):
    """``plus`` is added to the weight, whose ``power`` is 0 to leave it out."""
    if centred:
        return nn.functional.layer_norm(x, weight.shape, weight, None, eps)
    square = x.pow(2).sum(-1, keepdim=True) if summed else x.pow(2).mean(-1, keepdim=True)
    scale = (square + eps).sqrt() if rooted else square.sqrt() + eps
    return x / scale * (plus + weight) ** power


wrong_choices(
    qwen3,
    "rms_norm",
    rms_norm_with,
    ("RMSNorm with a mean", "the mean is subtracted first: that is LayerNorm", {"centred": True}),
    (
        "RMSNorm's eps outside the root",
        "eps is added to the root, not to the mean square",
        {"rooted": False},
    ),
    (
        "sum of squares",
        "the vector is divided by its length, not by the root of the mean square",
        {"summed": True},
    ),
    (
        "RMSNorm's weight plus one",
        "1 is added to the weight, as Gemma's files want it",
        {"plus": 1},
    ),
    (
        "RMSNorm without its weight",
        "the vector is scaled, and the learned weight left out",
        {"power": 0},
    ),
)


# ----------------------------------------------------------------------------------------- the gate


def swiglu_with(gate, up, *, bend=nn.functional.silu, swapped=False, added=False):
    if swapped:
        gate, up = up, gate
    return bend(gate) + up if added else bend(gate) * up


wrong_choices(
    qwen3,
    "swiglu",
    swiglu_with,
    ("gate and up swapped", "the bend is on what passes, not on what decides", {"swapped": True}),
    ("GELU in the gate", "the gate's bend is GELU: that is GeGLU", {"bend": nn.functional.gelu}),
    (
        "sigmoid alone in the gate",
        "the sigmoid is not multiplied by the gate: that is GLU",
        {"bend": torch.sigmoid},
    ),
    (
        "gate and up added",
        "the two ways are added, where they should be multiplied",
        {"added": True},
    ),
)


# ------------------------------------------------------------------------------------- the poolings


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
wrong_mask(
    "mean_pool",
    first_n,
    "mean of the first n",
    "n tokens from the left are averaged, wherever the pads are",
)
wrong_mask(
    "mean_pool", torch.logical_not, "pads averaged, not tokens", "the mask of the mean is inverted"
)
wrong_mask("max_pool", torch.ones_like, "max over pads", "a pad's values can win")
wrong_mask(
    "max_pool",
    first_n,
    "max of the first n",
    "n tokens from the left take part, wherever the pads are",
)
wrong_mask("max_pool", torch.logical_not, "max of the pads", "the mask of the maximum is inverted")
wrong_mask(
    "attention_pool",
    torch.ones_like,
    "attention pooling over pads",
    "pads get a weight in the learned average",
)
wrong_mask(
    "attention_pool",
    first_n,
    "attention pooling of the first n",
    "n tokens from the left, wherever the pads are",
)
wrong_mask(
    "attention_pool",
    torch.logical_not,
    "attention pooling of the pads",
    "the mask of the learned average is inverted",
)


def zeroed_pool(
    hidden: Tensor, mask: Tensor | None = None, *, reduce: Callable[[Tensor, int], Tensor]
) -> Tensor:
    """Set the pads to 0 and reduce over all T tokens."""
    if mask is not None:
        hidden = hidden * mask.unsqueeze(-1)
    return reduce(hidden, 1)


DIVIDED = (
    "divided by T",
    "the sum over real tokens is divided by the padded length",
    {"reduce": torch.mean},
)
wrong_choices(pooling, "mean_pool", zeroed_pool, DIVIDED)


@mistake(
    pooling,
    "mean_pool",
    "one global denominator",
    "all texts are divided by the batch's average length",
)
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is None:
        return hidden.mean(1)
    return (hidden * mask.unsqueeze(-1)).sum(1) / (mask.sum() / len(mask))


@mistake(
    pooling,
    "mean_pool",
    "[CLS] and [SEP] left out",
    "the mean is over the words only, without special tokens",
)
def _(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is None:
        mask = torch.ones(hidden.shape[:2], dtype=torch.bool)
    place, last = torch.arange(mask.shape[1]), mask.sum(1, keepdim=True) - 1
    inner = mask.bool() & (place > 0) & (place < last)
    return (hidden * inner.unsqueeze(-1)).sum(1) / inner.sum(1, keepdim=True).clamp_min(1)


PADS_AS_0 = (
    "pads set to 0 before max",
    "a pad's 0 wins over a column of negative numbers",
    {"reduce": torch.amax},
)
wrong_choices(pooling, "max_pool", zeroed_pool, PADS_AS_0)


@mistake(
    pooling, "cls_pool", "CLS taken from the last token", "the last position is read, not the first"
)
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
    (
        "pads score 0",
        "pads get a score of 0, not minus infinity, so they get a weight",
        {"score": 0.0},
    ),
    (
        "attention shares over the batch",
        "a text's weights depend on the other texts",
        {"axis": 0, "score": -1e9},
    ),
    (
        "attention pooling hides the tokens",
        "the softmax leaves out the tokens, not the pads",
        {"inverted": True},
    ),
)
