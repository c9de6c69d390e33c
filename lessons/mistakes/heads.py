"""Mistakes in models of sentence pairs: the heads, cross-attention.

The first three, and attention across the batch, come from one published notebook, whose scores
looked plausible.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lessons.mistakes.planting import mistake
from minisbert.core import heads, pooling
from minisbert.core.tokenizer import Encoded
from minisbert.models import pair_model

Maybe = Tensor | None

# the right versions, kept from before anything is planted: a stand-in may call what it replaces
_combine = heads.combine
_mlp = heads.mlp
_batch = pair_model.PairModel.batch
_cross = heads.CrossAttention.forward

# ----------------------------------------------------------------------------- what the model reads


@mistake(
    heads,
    "combine",
    "head reads the first sentence only",
    "the second vector never reaches the head",
)
def _(u: Tensor, v: Tensor, features: Sequence[str]) -> Tensor:
    return _combine(u, u, features)


@mistake(
    pair_model.PairModel,
    "batch",
    "second ids from the first",
    "the second sentence's ids are those of the first",
)
def _(
    self: pair_model.PairModel, encoded: Encoded, rows: Sequence[int]
) -> tuple[Tensor, Maybe, Maybe]:
    half = len(encoded) // 2
    same = encoded.ids if self.joint else encoded.ids[:half] * 2
    return _batch(self, Encoded(same, encoded.token_types, 0), rows)


@mistake(
    pair_model.PairModel,
    "tokenize",
    "both towers read the joined pair",
    "each tower gets [CLS] a [SEP] b [SEP]",
)
def _(self: pair_model.PairModel, firsts: Sequence[str], seconds: Sequence[str]) -> Encoded:
    joined = self.encoder.tokenizer.encode_pairs(firsts, seconds)
    if self.joint:
        return joined
    return Encoded(joined.ids * 2, joined.token_types * 2, joined.truncated * 2)


@mistake(
    pair_model.PairModel,
    "batch",
    "joined pairs without token types",
    "the encoder is not told where b begins",
)
def _(
    self: pair_model.PairModel, encoded: Encoded, rows: Sequence[int]
) -> tuple[Tensor, Maybe, Maybe]:
    return *_batch(self, encoded, rows)[:2], None


@mistake(
    pair_model.PairModel,
    "batch",
    "pads among the real tokens",
    "the mask of a batch of pairs is dropped",
)
def _(
    self: pair_model.PairModel, encoded: Encoded, rows: Sequence[int]
) -> tuple[Tensor, Maybe, Maybe]:
    ids, _, types = _batch(self, encoded, rows)
    return ids, None, types


# ---------------------------------------------------------------------------------- the two vectors


@mistake(
    heads,
    "difference",
    "u - v without the absolute value",
    "the difference keeps its sign, so order matters",
)
def _(u: Tensor, v: Tensor) -> Tensor:
    return u - v


@mistake(heads, "difference", "squared difference", "(u - v)^2 replaces |u - v|")
def _(u: Tensor, v: Tensor) -> Tensor:
    return (u - v).square()


@mistake(
    heads, "combine", "parts in another order", "the features are concatenated in reverse order"
)
def _(u: Tensor, v: Tensor, features: Sequence[str]) -> Tensor:
    return _combine(u, v, features[::-1])


@mistake(heads, "combine", "u and v swapped", "the second sentence comes first")
def _(u: Tensor, v: Tensor, features: Sequence[str]) -> Tensor:
    return _combine(v, u, features)


@mistake(
    heads,
    "combine",
    "unit vectors to the head",
    "u and v are scaled to length 1 before they are compared",
)
def _(u: Tensor, v: Tensor, features: Sequence[str]) -> Tensor:
    u, v = (x / x.norm(dim=-1, keepdim=True) for x in (u, v))
    return _combine(u, v, features)


@mistake(
    heads,
    "combine",
    "no gradient to the second sentence",
    "v is detached: right forward, wrong backward",
)
def _(u: Tensor, v: Tensor, features: Sequence[str]) -> Tensor:
    return _combine(u, v.detach(), features)


@mistake(heads, "mlp", "head without ReLU", "two Linears in a row, equivalent to one")
def _(width: int, hidden: int, outputs: int, dropout: float) -> nn.Sequential:
    layers = _mlp(width, hidden, outputs, dropout)
    for i, layer in enumerate(layers):
        if isinstance(layer, nn.ReLU):
            layers[i] = nn.Identity()
    return layers


@mistake(
    heads.JointHead,
    "forward",
    "joint head over the mean",
    "all tokens are averaged instead of reading [CLS]",
)
def _(self: heads.JointHead, states: Tensor) -> Tensor:
    return self.mlp(states.mean(1))


# ---------------------------------------------------------------------------------- cross-attention


@mistake(
    heads.CrossAttention,
    "forward",
    "cross-attention over pads",
    "a's tokens attend to b's pads too",
)
def _(self: heads.CrossAttention, a: Tensor, b: Tensor, mask: Maybe = None) -> Tensor:
    return _cross(self, a, b, None)


@mistake(
    heads.CrossAttention,
    "forward",
    "cross-attention mask inverted",
    "a's tokens attend to b's pads alone",
)
def _(self: heads.CrossAttention, a: Tensor, b: Tensor, mask: Maybe = None) -> Tensor:
    return _cross(self, a, b, None if mask is None else ~mask.bool())


@mistake(
    heads.CrossAttention,
    "forward",
    "cross-attention looks at itself",
    "keys and values come from a, not from b",
)
def _(self: heads.CrossAttention, a: Tensor, b: Tensor, mask: Maybe = None) -> Tensor:
    return _cross(self, a, a, None)


@mistake(
    heads.CrossAttention,
    "forward",
    "attention across the batch",
    "pairs are taken for tokens: no batch_first",
)
def _(self: heads.CrossAttention, a: Tensor, b: Tensor, mask: Maybe = None) -> Tensor:
    # the library refuses two lengths; b is cut or filled here
    b = nn.functional.pad(b, (0, 0, 0, a.shape[1] - b.shape[1]))
    return _cross(self, a.transpose(0, 1), b.transpose(0, 1), None).transpose(0, 1)


@mistake(
    heads.CrossAttention, "split", "one wide attention head", "the width is not split into heads"
)
def _(self: heads.CrossAttention, x: Tensor) -> Tensor:
    return x.unsqueeze(1)


@mistake(
    heads.CrossHead,
    "forward",
    "found without a",
    "the head reads what a's tokens found in b, but not a itself",
)
def _(
    self: heads.CrossHead, a: Tensor, b: Tensor, mask_a: Maybe = None, mask_b: Maybe = None
) -> Tensor:
    found = self.attention(a, b, mask_b)
    return self.mlp(pooling.mean_pool(torch.cat([found, found], dim=-1), mask_a))
