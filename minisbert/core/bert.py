"""Ids to hidden states: the BERT encoder (Devlin et al. 2019) in plain torch.

First the three formulas (``gelu``, ``layer_norm``, ``attention``), then the modules that give them
their weights.

Dimension legend, used in every file of the project:

    B  batch              H  attention heads        L  layers
    T  tokens             K  width of one head      V  vocabulary
    D  width (H * K)      F  feed-forward width
"""

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from .checks import check_integer
from .weights import BertConfig

FUSED = True  # False: the formulas are computed as they are written out below


def fused_by(operation: Callable) -> Callable[[Callable], Callable]:
    """Name PyTorch's operation that computes a formula in one step. It does so while ``FUSED`` is
    True.
    """

    def decorate(formula: Callable) -> Callable:
        @wraps(formula)
        def chosen(*arguments: Any, **options: Any) -> Any:
            return (operation if FUSED else formula)(*arguments, **options)

        return chosen

    return decorate


@fused_by(nn.functional.gelu)
def gelu(x: Tensor) -> Tensor:
    """Gaussian error linear unit, x * P(Z <= x) for a standard normal Z (Hendrycks & Gimpel 2016,
    section 2).

    Any shape in, the same shape out. ``gelu(1.0) = 0.8413``, ``gelu(-1.0) = -0.1587``. The tanh
    approximation of the same paper is off by up to 5e-4: BERT's weights were trained with this one.
    """
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


@fused_by(lambda x, weight, bias, eps: nn.functional.layer_norm(x, weight.shape, weight, bias, eps))
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Every token's vector shifted to mean 0 and scaled to variance 1, then times ``weight`` plus
    ``bias``.

    x (..., D), weight and bias (D,) -> (..., D). Ba et al. 2016, section 3. ``layer_norm([1, 3], 1,
    0, ~0) = [-1, 1]``.
    """
    mean = x.mean(dim=-1, keepdim=True)  # (..., 1)
    centred = x - mean  # (..., D)
    variance = centred.pow(2).mean(dim=-1, keepdim=True)  # (..., 1)
    # subtle: divide by D, not D - 1, and eps is inside the root
    return centred * torch.rsqrt(variance + eps) * weight + bias  # (..., D)


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor | None]:
    """PyTorch's operation, which keeps no probabilities: None. With dropout, which it lacks on a
    CPU, the formula.
    """
    if dropout:
        return attention.__wrapped__(query, key, value, mask, dropout)  # type: ignore[attr-defined]
    return nn.functional.scaled_dot_product_attention(query, key, value, mask), None


@fused_by(fused_attention)
def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor | None]:
    """Scaled dot-product attention: softmax(q k^T / sqrt(K)) v (Vaswani et al. 2017, eq. 1).

    query (B, H, T, K), key and value (B, H, S, K), mask (B, 1, 1, S) or (B, 1, T, S) boolean with
    True where a query may look, or None for everywhere -> context (B, H, T, K) and probabilities
    (B, H, T, S), before dropout. Every row of the mask must have a True, or that row's softmax is
    0/0.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])  # (B, H, T, S)
    if mask is not None:
        # subtle: minus infinity, so that a pad gets exactly 0 and not just little
        scores = scores.masked_fill(~mask, float("-inf"))
    probabilities = scores.softmax(dim=-1)  # (B, H, T, S), each row sums to 1
    weights = nn.functional.dropout(probabilities, dropout) if dropout else probabilities
    return weights @ value, probabilities  # (B, H, T, K), (B, H, T, S)


class LayerNorm(nn.Module):
    """``layer_norm`` with a learned weight (BERT's gamma) and bias (beta), each (D,)."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)


class Embeddings(nn.Module):
    """What the token is, plus its position, plus the sentence it belongs to (BERT, figure 2)."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type = (
            nn.Embedding(config.type_vocab_size, config.hidden_size)
            if config.type_vocab_size
            else None
        )
        self.offset = config.position_offset
        self.norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, ids: Tensor, token_types: Tensor | None, positions: Tensor | None = None
    ) -> Tensor:
        """ids (B, T), token_types (B, T) or None for all zero, positions (B, T) or None for 0..T-1
        -> (B, T, D).
        """
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)  # (T,)
        x = self.word(ids) + self.position(
            positions + self.offset
        )  # (B, T, D) + (B, T, D) or (T, D)
        if self.token_type is not None:
            x = x + self.token_type(
                torch.zeros_like(ids) if token_types is None else token_types
            )  # (B, T, D)
        return self.dropout(self.norm(x))  # (B, T, D)


class Attention(nn.Module):
    """Multi-head attention: H heads of width K, side by side. ``ValueError`` unless ``width`` is H
    * K.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0):
        super().__init__()
        check_integer("heads", heads)
        if width % heads:
            raise ValueError(f"a width of {width} cannot be divided among {heads} attention heads")
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.dropout = dropout

    def split(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, H, T, K): head h takes columns h * K to (h + 1) * K."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, T, H, K) -> (B, H, T, K)

    def merge(self, x: Tensor) -> Tensor:
        """(B, H, T, K) -> (B, T, D), the inverse of ``split``."""
        return x.transpose(1, 2).flatten(-2)  # (B, T, H, K) -> (B, T, D)

    def forward(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x (B, T, D), mask as in ``attention`` -> (B, T, D) and the probabilities (B, H, T, T)."""
        query, key, value = (
            self.split(self.query(x)),
            self.split(self.key(x)),
            self.split(self.value(x)),
        )
        context, probabilities = attention(
            query, key, value, mask, self.dropout if self.training else 0.0
        )
        return self.output(self.merge(context)), probabilities  # (B, T, D), (B, H, T, T)


class FeedForward(nn.Module):
    """Each token on its own: D to F, GELU, and back to D."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(gelu(self.up(x)))  # (B, T, D) -> (B, T, F) -> (B, T, D)


class Layer(nn.Module):
    """Attention, then feed-forward; each is added to its input and normalised after the sum
    (post-LayerNorm).
    """

    def __init__(self, config: BertConfig):
        super().__init__()
        self.attention = Attention(
            config.hidden_size, config.num_attention_heads, config.attention_probs_dropout_prob
        )
        self.attention_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.attention_dropout = (
            self.dropout
        )  # under a second name because DistilBERT has none here

    def forward(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x (B, T, D), mask as in ``attention`` -> (B, T, D) and the attention probabilities (B, H,
        T, T).
        """
        attended, probabilities = self.attention(x, mask)
        x = self.attention_norm(x + self.attention_dropout(attended))  # (B, T, D)
        x = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))  # (B, T, D)
        return x, probabilities


class Bert(nn.Module):
    """The encoder. ``pooler`` is the dense layer over [CLS] of BERT's pre-training; most sentence
    models ignore it.
    """

    def __init__(self, config: BertConfig, pooler: bool = True):
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if pooler else None
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(
                    module.weight, std=config.initializer_range
                )  # Google's modeling.py truncates it
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        token_types: Tensor | None = None,
        trace: dict[str, Tensor] | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """ids (B, T), mask (B, T) with 1 for real tokens, token_types (B, T) -> hidden states (B,
        T, D).

        None says that every token is real, that all are of the first sentence, and that each row is
        one text. Several texts may share a row: ``positions`` (B, T) then starts again with each of
        them, and a mask (B, 1, T, T) is True where query and key belong to the same text. A dict
        given as ``trace`` is filled with every intermediate result: ``embeddings``,
        ``layers.0.attention`` (probabilities, (B, H, T, T); None if ``FUSED``), ``layers.0``
        (output). Values are not checked here, so that the compiler can follow:
        ``minisbert.SentenceEncoder`` does it.
        """
        x = self.embeddings(ids, token_types, positions)  # (B, T, D)
        if trace is not None:
            trace["embeddings"] = x
        views = self.views(mask, positions, x.dtype)
        for i, layer in enumerate(self.layers):
            x, probabilities = layer(x, *views[i])  # (B, T, D), (B, H, T, T)
            if trace is not None:
                trace[f"layers.{i}.attention"], trace[f"layers.{i}"] = probabilities, x
        return x

    def views(
        self, mask: Tensor | None, positions: Tensor | None, dtype: torch.dtype
    ) -> Sequence[tuple]:
        """What each layer reads besides x. Here it is the mask; newer architectures add what they
        know of positions.
        """
        if mask is not None:
            if mask.is_floating_point():
                raise ValueError(
                    "mask must be boolean or 0 and 1 as integers, not floats (no additive masks "
                    "here)"
                )
            mask = (
                mask.bool() if mask.ndim == 4 else mask.bool()[:, None, None, :]
            )  # (B, 1, T or 1, T)
        return [(mask,)] * len(self.layers)

    def hidden_states(
        self, ids: Tensor, mask: Tensor | None = None, token_types: Tensor | None = None
    ) -> list[Tensor]:
        """The embeddings' output and every layer's: L + 1 tensors (B, T, D), in order."""
        trace: dict[str, Tensor] = {}
        self(ids, mask, token_types, trace)
        return [trace["embeddings"]] + [trace[f"layers.{i}"] for i in range(len(self.layers))]

    def pool(self, hidden: Tensor) -> Tensor:
        """BERT's own pooler, tanh of a dense layer over [CLS]: hidden (B, T, D) -> (B, D)."""
        if self.pooler is None:
            raise ValueError("this checkpoint has no pooler weights")
        return torch.tanh(self.pooler(hidden[:, 0]))  # (B, D)
