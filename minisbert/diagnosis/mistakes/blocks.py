"""Mistakes in the encoder's modules: feed-forward, layer, embeddings, the whole encoder and its pooler."""

import torch
from torch import Tensor

from minisbert.core import bert
from minisbert.diagnosis.mistakes.planting import mistake

# the right one, kept from before anything is planted
_forward = bert.Bert.forward

# ---------------------------------------------------------------------------------------------- layers


@mistake(bert.FeedForward, "forward", "no feed-forward biases", "feed-forward's two dense layers have no bias")
def _(self: bert.FeedForward, x: Tensor) -> Tensor:
    return bert.gelu(x @ self.up.weight.T) @ self.down.weight.T


@mistake(bert.Layer, "forward", "pre-LayerNorm", "each block normalises its input, not the residual sum")
def _(self: bert.Layer, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    attended, probabilities = self.attention(self.attention_norm(x), mask)
    x = x + attended
    return x + self.feed_forward(self.feed_forward_norm(x)), probabilities


@mistake(bert.Layer, "forward", "attention's residual forgotten", "the input is not added to attention's output")
def _(self: bert.Layer, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    attended, probabilities = self.attention(x, mask)
    x = self.attention_norm(attended)
    return self.feed_forward_norm(x + self.feed_forward(x)), probabilities


@mistake(bert.Layer, "forward", "feed-forward's residual forgotten", "the input is not added to feed-forward's output")
def _(self: bert.Layer, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    attended, probabilities = self.attention(x, mask)
    return self.feed_forward_norm(self.feed_forward(self.attention_norm(x + attended))), probabilities


@mistake(bert.Layer, "forward", "one LayerNorm for both blocks", "feed-forward uses attention's LayerNorm")
def _(self: bert.Layer, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    attended, probabilities = self.attention(x, mask)
    x = self.attention_norm(x + attended)
    return self.attention_norm(x + self.feed_forward(x)), probabilities


# ------------------------------------------------------------------------------------------ embeddings


def positions_of(ids: Tensor, positions: Tensor | None) -> Tensor:
    """Each token's position in its text, (T,), or (B, T) if several texts share a row."""
    return torch.arange(ids.shape[1], device=ids.device) if positions is None else positions


def _embeddings(self: bert.Embeddings, ids: Tensor, types: Tensor | None, places: Tensor) -> Tensor:
    """The sum before LayerNorm."""
    return self.word(ids) + self.position(places) + self.token_type(torch.zeros_like(ids) if types is None else types)


@mistake(bert.Embeddings, "forward", "positions from 1", "the first token gets position 1, not 0")
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None, positions: Tensor | None = None) -> Tensor:
    return self.norm(_embeddings(self, ids, token_types, positions_of(ids, positions) + 1))


@mistake(bert.Embeddings, "forward", "positions forgotten", "the position embeddings are not added")
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None, positions: Tensor | None = None) -> Tensor:
    types = torch.zeros_like(ids) if token_types is None else token_types
    return self.norm(self.word(ids) + self.token_type(types))


@mistake(bert.Embeddings, "forward", "token types ignored", "every token gets type 0, the first sentence")
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None, positions: Tensor | None = None) -> Tensor:
    return self.norm(_embeddings(self, ids, None, positions_of(ids, positions)))


@mistake(bert.Embeddings, "forward", "token types left out", "the token type embedding is not added, not even type 0's")
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None, positions: Tensor | None = None) -> Tensor:
    return self.norm(self.word(ids) + self.position(positions_of(ids, positions)))


@mistake(bert.Embeddings, "forward", "embeddings not normalised", "the LayerNorm after the embeddings is missing")
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None, positions: Tensor | None = None) -> Tensor:
    return _embeddings(self, ids, token_types, positions_of(ids, positions))


# ----------------------------------------------------------------------------------- the whole encoder


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
