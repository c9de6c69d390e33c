"""Ids to hidden states: the BERT encoder (Devlin et al. 2019) in plain torch.

First the three formulas (``layer_norm``, ``attention``, ``gelu``), then the modules that give them
their weights. Dimension legend, used in every file of the project:

    B  batch              H  attention heads        L  layers
    T  tokens             K  width of one head      V  vocabulary
    D  width (H * K)      F  feed-forward width     S  keys (T, if a text attends to itself)

``Bert`` and ``Embeddings`` expect one text in each row. Where several texts share a row, the
library calls their tables and layers from ``minisbert/architectures/packing.py``.

What the library runs: ``Bert``, and its layers in BERT's relatives. The modules take PyTorch's
operations in place of the formulas (``FUSED``); only dropout, in training, needs ``attention``
itself. For the rest the library has other code or no use:

- ``layer_norm``, ``gelu``: PyTorch's operations, which compute the same in one kernel each. Equal
  by the parity checks ``layer_norm`` and ``gelu``.
- ``Bert.pool``: the library makes a dense layer of the pooler, ``Dense`` in ``models/pooling.py``.
  Equal by the parity check ``more_poolings``.
- ``Bert.hidden_states``: lessons and comparisons read it. Equal by the parity check
  ``bert_forward``.
"""

import math

import torch
from torch import Tensor, nn

from .checks import check_integer
from .weights import BertConfig

# True: the modules take PyTorch's operations. False: they compute the formulas as written here.
FUSED = True


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Every token's vector shifted to mean 0, scaled to variance 1, times ``weight`` plus ``bias``.

    x (..., D), weight (D,), bias (D,) -> (..., D). Ba et al. 2016, section 3.
    With a tiny eps ``layer_norm([1, 3], 1, 0, eps) = [-1, 1]``.
    """
    mean = x.mean(dim=-1, keepdim=True)  # (..., 1)
    centred = x - mean  # (..., D)
    variance = centred.pow(2).mean(dim=-1, keepdim=True)  # (..., 1)
    # subtle: divide by D, not D - 1, and eps is inside the root
    return centred * torch.rsqrt(variance + eps) * weight + bias  # (..., D)


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention: softmax(q k^T / sqrt(K)) v (Vaswani et al. 2017, eq. 1).

    query (B, H, T, K), key and value (B, H, S, K) -> context (B, H, T, K) and the probabilities
    (B, H, T, S), before dropout. mask (B, 1, 1, S) or (B, 1, T, S) is True where a query may look;
    None lets all look everywhere. Every row of the mask must have a True, or that row's softmax is
    0/0.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])  # (B, H, T, S)
    if mask is not None:
        # subtle: minus infinity, so that a pad gets exactly 0 and not just little
        scores = scores.masked_fill(~mask, float("-inf"))
    probabilities = scores.softmax(dim=-1)  # (B, H, T, S), each row sums to 1

    weights = probabilities
    if dropout:
        weights = nn.functional.dropout(probabilities, dropout)
    return weights @ value, probabilities  # (B, H, T, K), (B, H, T, S)


def gelu(x: Tensor) -> Tensor:
    """Gaussian error linear unit, x * P(Z <= x) for a standard normal Z.

    Any shape in, the same shape out. ``gelu(1.0) = 0.8413``, ``gelu(-1.0) = -0.1587``. Hendrycks &
    Gimpel 2016, section 2. BERT's weights were trained with this exact formula; the same paper's
    approximation by tanh is off by up to 5e-4.
    """
    # P(Z <= x) = (1 + erf(x / sqrt(2))) / 2
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor | None]:
    """``attention`` as the modules call it: if ``FUSED``, by PyTorch's operation.

    The arguments and the results are those of ``attention``. PyTorch's operation keeps no
    probabilities, and None stands in their place.
    """
    if FUSED and not dropout:  # with dropout, PyTorch has no fused kernel for a CPU
        context = nn.functional.scaled_dot_product_attention(query, key, value, mask)
        return context, None
    return attention(query, key, value, mask, dropout)


class LayerNorm(nn.Module):
    """``layer_norm`` with a learned weight (BERT's gamma) and bias (beta), each (D,)."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        if FUSED:
            return nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        return layer_norm(x, self.weight, self.bias, self.eps)


class Embeddings(nn.Module):
    """What the token is, plus its position, plus the sentence it belongs to (BERT, figure 2)."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, ids: Tensor, token_types: Tensor | None) -> Tensor:
        """ids (B, T), token_types (B, T) or None for all zero -> (B, T, D)."""
        positions = torch.arange(ids.shape[1], device=ids.device)  # (T,)
        if token_types is None:
            token_types = torch.zeros_like(ids)
        x = self.word(ids) + self.position(positions)  # (B, T, D) + (T, D)
        x = x + self.token_type(token_types)  # (B, T, D)
        return self.dropout(self.norm(x))  # (B, T, D)


class Attention(nn.Module):
    """Multi-head attention: H heads of width K, side by side.

    ``ValueError`` unless ``width`` is H * K.
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
        """x (B, T, D), mask as in ``attention`` -> (B, T, D) and the probabilities (B, H, T, T).

        The probabilities are None if PyTorch's operation has run.
        """
        query = self.split(self.query(x))  # (B, H, T, K)
        key = self.split(self.key(x))
        value = self.split(self.value(x))

        dropout = self.dropout if self.training else 0.0
        context, probabilities = attend(query, key, value, mask, dropout)  # (B, H, T, K)
        return self.output(self.merge(context)), probabilities  # (B, T, D), (B, H, T, T)


class FeedForward(nn.Module):
    """Each token on its own: D to F, GELU, and back to D."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.up(x)  # (B, T, D) -> (B, T, F)
        if FUSED:
            return self.down(nn.functional.gelu(inner))  # (B, T, F) -> (B, T, D)
        return self.down(gelu(inner))


class Layer(nn.Module):
    """Attention, then feed-forward; each is added to its input and normalised after the sum.

    That order is called post-LayerNorm.
    """

    def __init__(self, config: BertConfig):
        super().__init__()
        dropout = config.attention_probs_dropout_prob
        self.attention = Attention(config.hidden_size, config.num_attention_heads, dropout)
        self.attention_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x (B, T, D), mask as in ``attention`` -> (B, T, D) and attention's probabilities."""
        attended, probabilities = self.attention(x, mask)  # (B, T, D), (B, H, T, T)
        x = self.attention_norm(x + self.dropout(attended))  # (B, T, D)
        transformed = self.feed_forward(x)  # (B, T, D)
        x = self.feed_forward_norm(x + self.dropout(transformed))  # (B, T, D)
        return x, probabilities


class Bert(nn.Module):
    """The encoder: embeddings, then L layers.

    ``pooler`` is the dense layer over [CLS] of BERT's pre-training; most sentence models ignore it.
    """

    def __init__(self, config: BertConfig, pooler: bool = True):
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.pooler = None
        if pooler:
            self.pooler = nn.Linear(config.hidden_size, config.hidden_size)

        # New weights are drawn from a normal distribution, and new biases are 0. (Google's
        # modeling.py also truncates that distribution at two standard deviations.)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=config.initializer_range)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        token_types: Tensor | None = None,
        trace: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """ids (B, T), mask (B, T) with 1 for real tokens, token_types (B, T) -> (B, T, D).

        ``mask=None`` says that every token is real, ``token_types=None`` that all are of the first
        sentence. A dict given as ``trace`` is filled with every intermediate result by name:
        ``embeddings``, ``layers.0.attention`` (the probabilities, or None where ``Attention`` gives
        none), ``layers.0`` (the layer's output), and so on.

        The ids are not checked here, so that ``torch.compile`` can follow:
        ``minisbert.SentenceEncoder`` checks each batch. Raises ``ValueError`` for a mask of floats:
        it may be one that is added to the scores, where 0 stands for a real token.
        """
        x = self.embeddings(ids, token_types)  # (B, T, D)
        if trace is not None:
            trace["embeddings"] = x

        if mask is not None:
            if mask.is_floating_point():
                raise ValueError(
                    "mask must be boolean or 0 and 1 as integers, not floats "
                    "(no additive masks here)"
                )
            # One mask for all heads and queries: (B, T) -> (B, 1, 1, T)
            mask = mask.bool()[:, None, None, :]

        for i, layer in enumerate(self.layers):
            x, probabilities = layer(x, mask)  # (B, T, D), (B, H, T, T)
            if trace is not None:
                trace[f"layers.{i}.attention"] = probabilities
                trace[f"layers.{i}"] = x
        return x

    def hidden_states(
        self, ids: Tensor, mask: Tensor | None = None, token_types: Tensor | None = None
    ) -> list[Tensor]:
        """The embeddings' output and every layer's: L + 1 tensors (B, T, D), in order."""
        trace: dict[str, Tensor] = {}
        self(ids, mask, token_types, trace)
        states = [trace["embeddings"]]
        for i in range(len(self.layers)):
            states.append(trace[f"layers.{i}"])
        return states

    def pool(self, hidden: Tensor) -> Tensor:
        """BERT's own pooler, tanh of a dense layer over [CLS]: hidden (B, T, D) -> (B, D)."""
        if self.pooler is None:
            raise ValueError("this checkpoint has no pooler weights")
        return torch.tanh(self.pooler(hidden[:, 0]))  # (B, D)
