"""Mistakes in the encoder's modules: feed-forward, layer, embeddings, the whole encoder and its pooler."""

from collections.abc import Callable

import torch
from torch import Tensor

from minisbert.core import bert
from minisbert.diagnosis.mistakes.planting import mistake

Drop = Callable[[Tensor], Tensor]

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


# ------------------------------------------------------------------------------------------ embeddings


def _places(ids: Tensor, positions: Tensor | None) -> Tensor:
    """Each token's position in its text, (T,), or (B, T) if several texts share a row."""
    return torch.arange(ids.shape[1], device=ids.device) if positions is None else positions


def _embeddings(self: bert.Embeddings, ids: Tensor, types: Tensor | None, places: Tensor) -> Tensor:
    """The sum before LayerNorm."""
    return self.word(ids) + self.position(places) + self.token_type(torch.zeros_like(ids) if types is None else types)


@mistake(bert.Embeddings, "forward", "positions from 1", "the first token gets position 1, not 0")
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None, positions: Tensor | None = None) -> Tensor:
    return self.norm(_embeddings(self, ids, token_types, _places(ids, positions) + 1))


@mistake(bert.Embeddings, "forward", "positions forgotten", "the position embeddings are not added")
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None, positions: Tensor | None = None) -> Tensor:
    types = torch.zeros_like(ids) if token_types is None else token_types
    return self.norm(self.word(ids) + self.token_type(types))


@mistake(bert.Embeddings, "forward", "token types ignored", "every token gets type 0, the first sentence")
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None, positions: Tensor | None = None) -> Tensor:
    return self.norm(_embeddings(self, ids, None, _places(ids, positions)))


@mistake(bert.Embeddings, "forward", "token types left out", "the token type embedding is not added, not even type 0's")
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None, positions: Tensor | None = None) -> Tensor:
    return self.norm(self.word(ids) + self.position(_places(ids, positions)))


@mistake(bert.Embeddings, "forward", "embeddings not normalised", "the LayerNorm after the embeddings is missing")
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None, positions: Tensor | None = None) -> Tensor:
    return _embeddings(self, ids, token_types, _places(ids, positions))


@mistake(bert.Embeddings, "forward", "embeddings without dropout", "what enters the first layer is never dropped")
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None, positions: Tensor | None = None) -> Tensor:
    return self.norm(_summed(self, ids, token_types, positions))


@mistake(bert.Embeddings, "forward", "dropout before the LayerNorm", "the sum is dropped, and then normalised")
def _(self: bert.Embeddings, ids: Tensor, token_types: Tensor | None, positions: Tensor | None = None) -> Tensor:
    return self.norm(self.dropout(_summed(self, ids, token_types, positions)))


def _summed(self: bert.Embeddings, ids: Tensor, types: Tensor | None, positions: Tensor | None) -> Tensor:
    """The sum before LayerNorm, of any family."""
    x = self.word(ids) + self.position(_places(ids, positions) + self.offset)
    if self.token_type is None:
        return x
    return x + self.token_type(torch.zeros_like(ids) if types is None else types)


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


@mistake(bert.Bert, "pool", "pooler without tanh", "the pooler's tanh is missing")
def _(self: bert.Bert, hidden: Tensor) -> Tensor:
    return self.pooler(hidden[:, 0])
