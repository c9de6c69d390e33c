"""ModernBERT (Warner et al. 2024, arXiv 2412.13663): the book's encoder with what decoders have taught since 2018.

    rotary.py      for the position table; layers that see everything turn more slowly than those that see a window
    local_mask     two layers of three see 64 tokens to each side, which is what makes 8,192 tokens affordable
    geglu          for GELU (Shazeer 2020, arXiv 2002.05202): one half of the layer decides how much of the other passes
    pre-norm       each block reads its input normalised and is added to it as it was; one more norm at the end
    no biases      in published models; the settings allow them

Legend as in ``core/bert.py``: B batch, T tokens, D width, H heads, K width of one head, F feed-forward width.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from minisbert.core import one_line
from minisbert.core.bert import Attention, Bert, attention, gelu, layer_norm
from minisbert.core.checks import check, check_fields
from minisbert.core.weights import Rate, Size
from minisbert.models.modern.architecture import initialise
from minisbert.models.modern.rotary import rotary, rotate

GLOBAL, LOCAL = "full_attention", "sliding_attention"
Base = Annotated[float, "above 0 and finite"]
Flag = Annotated[bool, "0 or 1"]


def geglu(x: Tensor, activation: str = "gelu") -> Tensor:
    """gelu(first half) * second half, (..., 2F) -> (..., F) (Shazeer 2020). ``geglu([1, 2]) = [1.6827]``.

    ``silu`` as the activation makes it SwiGLU: ``geglu([1, 2], "silu") = [1.4621]``.
    """
    activated, gate = x.chunk(2, dim=-1)  # subtle: the first half is activated
    return (gelu(activated) if activation == "gelu" else nn.functional.silu(activated)) * gate


def local_mask(positions: Tensor, mask: Tensor | None, half: int) -> Tensor:
    """Where a query of a local layer may look, (B, 1, T, T): ``half`` tokens to each side, if ``mask`` lets it.

    positions (B, T), mask (B, 1, T or 1, T) or None. ``local_mask([[0, 1, 2]], None, 1)[0, 0, 0] = [1, 1, 0]``.
    """
    distances = (positions[:, :, None] - positions[:, None, :]).abs()[:, None]  # (B, 1, T, T)
    near = distances <= half
    # subtle: a pad far from the text sees nothing, its softmax is 0/0, and 0 times that is no 0: it may look at itself
    return near if mask is None else (mask & near) | torch.eye(near.shape[-1], dtype=torch.bool, device=near.device)


@dataclass(frozen=True)
class ModernBertConfig:
    """The sizes and constants of a ModernBERT; names and defaults are those of its ``config.json``.

    Raises ``ValueError`` for values that do not describe one.
    """

    vocab_size: Size  # V
    hidden_size: Size  # D
    num_hidden_layers: Size  # L
    num_attention_heads: Size  # H
    intermediate_size: Size  # F
    max_position_embeddings: Size = 8192
    layer_types: tuple[str, ...] = ()  # GLOBAL or LOCAL for each layer; by default every third is global, the first too
    local_attention: Size = 128  # tokens in a window; half of it on each side
    global_rope_theta: Base = 160_000.0
    local_rope_theta: Base = 10_000.0
    norm_eps: Annotated[float, "above 0 and below 1"] = 1e-5
    norm_bias: Flag = False
    attention_bias: Flag = False
    mlp_bias: Flag = False
    hidden_activation: Annotated[str, "gelu|silu"] = "gelu"  # silu in granite-embedding-multilingual-r2
    hidden_dropout_prob: Rate = 0.0  # after the embeddings (embedding_dropout)
    attention_probs_dropout_prob: Rate = 0.0  # on the probabilities and after attention (attention_dropout)
    mlp_dropout: Rate = 0.0  # between the two feed-forward layers
    initializer_range: Rate = 0.02
    pad_token_id: int | None = 50283
    type_vocab_size: int = 0
    model_type: str = "modernbert"

    def __post_init__(self) -> None:
        check_fields(self)
        kinds = self.layer_types or [LOCAL if i % 3 else GLOBAL for i in range(self.num_hidden_layers)]
        object.__setattr__(self, "layer_types", tuple(kinds))
        if not {*kinds} <= {GLOBAL, LOCAL} or len(kinds) != self.num_hidden_layers:
            raise ValueError(f"layer_types must be {GLOBAL} or {LOCAL} for each layer, not {one_line([*kinds])}")
        if self.hidden_size % (2 * self.num_attention_heads):
            raise ValueError(f"hidden_size {self.hidden_size} does not give every head an even number of columns")

    @property
    def positions(self) -> int:
        """The largest number of tokens that one text can have."""
        return self.max_position_embeddings


class LayerNorm(nn.Module):
    """The book's ``layer_norm``; the bias (D,) is there only if the settings ask for it."""

    def __init__(self, config: ModernBertConfig):
        super().__init__()
        self.eps = config.norm_eps
        self.weight = nn.Parameter(torch.ones(config.hidden_size))
        self.bias = nn.Parameter(torch.zeros(config.hidden_size)) if config.norm_bias else None

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, torch.zeros_like(self.weight) if self.bias is None else self.bias, self.eps)


class RotaryAttention(Attention):
    """Multi-head attention without positions of its own: queries and keys are rotated. One matrix makes all three."""

    def __init__(self, config: ModernBertConfig):
        nn.Module.__init__(self)
        width = config.hidden_size
        self.heads, self.dropout = config.num_attention_heads, config.attention_probs_dropout_prob
        self.qkv = nn.Linear(width, 3 * width, config.attention_bias)
        self.output = nn.Linear(width, width, config.attention_bias)

    def forward(  # type: ignore[override]
        self, x: Tensor, mask: Tensor | None, rotation: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """x (B, T, D), mask as in ``attention`` -> (B, T, D) and the probabilities (B, H, T, T)."""
        query, key, value = map(self.split, self.qkv(x).chunk(3, dim=-1))  # (B, H, T, K) each
        query, key = rotate(query, *rotation), rotate(key, *rotation)
        dropout = self.dropout if self.training else 0.0
        context, probabilities = attention(query, key, value, mask, dropout)
        return nn.functional.dropout(self.output(self.merge(context)), dropout), probabilities


class FeedForward(nn.Module):
    """Each token on its own: D to 2F, GeGLU, F to D."""

    def __init__(self, config: ModernBertConfig):
        super().__init__()
        self.up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, config.mlp_bias)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, config.mlp_bias)
        self.dropout, self.activation = nn.Dropout(config.mlp_dropout), config.hidden_activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.dropout(geglu(self.up(x), self.activation)))  # (B, T, D), 2F, F, D


class Layer(nn.Module):
    """Attention, then feed-forward, each after a norm; layer 0 has one less: its input is normalised."""

    def __init__(self, config: ModernBertConfig, number: int):
        super().__init__()
        self.kind = config.layer_types[number]
        self.attention_norm = LayerNorm(config) if number else nn.Identity()
        self.attention = RotaryAttention(config)
        self.feed_forward_norm = LayerNorm(config)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, mask: Tensor | None, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
        """x (B, T, D), mask as in ``attention`` -> (B, T, D) and the probabilities (B, H, T, T)."""
        attended, probabilities = self.attention(self.attention_norm(x), mask, rotation)
        x = x + attended
        return x + self.feed_forward(self.feed_forward_norm(x)), probabilities


class ModernBert(Bert):
    """The encoder. It has no pooler, and ``token_types`` are not read."""

    def __init__(self, config: ModernBertConfig, pooler: bool = False):
        nn.Module.__init__(self)
        self.config, self.pooler = config, None
        self.embeddings = nn.ModuleDict(
            {"word": nn.Embedding(config.vocab_size, config.hidden_size), "norm": LayerNorm(config)}
        )
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = LayerNorm(config)
        initialise(self, config.initializer_range)

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        token_types: Tensor | None = None,
        trace: dict[str, Tensor] | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """As ``Bert.forward``: ids (B, T) -> hidden states (B, T, D). The last layer's are those after ``norm``."""
        if mask is not None:
            check("mask whole", mask)
            mask = mask.bool() if mask.ndim == 4 else mask.bool()[:, None, None, :]  # (B, 1, T or 1, T)
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]  # (1, T)
        x, c = self.dropout(self.embeddings.norm(self.embeddings.word(ids))), self.config  # (B, T, D)
        width, bases = c.hidden_size // c.num_attention_heads, {GLOBAL: c.global_rope_theta, LOCAL: c.local_rope_theta}
        rotations = {kind: rotary(positions, width, base, x.dtype) for kind, base in bases.items()}
        masks = {GLOBAL: mask, LOCAL: local_mask(positions, mask, c.local_attention // 2)}
        if trace is not None:
            trace["embeddings"] = x
        for i, layer in enumerate(self.layers):
            x, probabilities = layer(x, masks[layer.kind], rotations[layer.kind])  # (B, T, D), (B, H, T, T)
            if i == len(self.layers) - 1:
                x = self.norm(x)
            if trace is not None:
                trace[f"layers.{i}.attention"], trace[f"layers.{i}"] = probabilities, x
        return x
