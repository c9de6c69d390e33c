"""ModernBERT (Warner et al. 2024): the book's encoder with what decoders have taught since 2018.

    rotary         for the position table; layers that see everything turn more slowly than those
                   that see a window
    local_mask     two layers of three see 64 tokens to each side, which is what makes 8,192 tokens
                   affordable
    geglu          for GELU (Shazeer 2020, arXiv 2002.05202): one half of the layer decides how much
                   of the other passes
    pre-norm       each block reads x normalised, and its output is added to x itself; one more norm
                   at the end
    no biases      in published models; the settings allow them

The paper is arXiv 2412.13663. Legend as in ``core/bert.py``: B batch, T tokens, D width, H heads,
K width of one head, F feed-forward width.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minisbert.architectures.families import Family, weights_and_biases
from minisbert.architectures.modern import (
    GLOBAL,
    LOCAL,
    AttentionHeads,
    ModernEncoder,
    PreNormLayer,
    RotaryConfig,
    check_default_rope,
    read_optional,
    rotary,
    rotate,
)
from minisbert.core import bert
from minisbert.core.bert import attention, gelu, layer_norm
from minisbert.core.checks import check_integer, check_number, check_one_of

MAX_SPACED_LAYERS = 1000  # more than any published model has


def geglu(x: Tensor, activation: str = "gelu") -> Tensor:
    """gelu(first half) * second half, (..., 2F) -> (..., F) (Shazeer 2020).

    ``geglu([1, 2]) = [1.6827]``. ``silu`` as the activation makes it SwiGLU:
    ``geglu([1, 2], "silu") = [1.4621]``.
    """
    activated, gate = x.chunk(2, dim=-1)  # subtle: the first half is activated
    if activation == "silu":
        return nn.functional.silu(activated) * gate
    if bert.FUSED:
        return nn.functional.gelu(activated) * gate  # the book's formula in one kernel
    return gelu(activated) * gate


def local_mask(positions: Tensor, mask: Tensor | None, half: int) -> Tensor:
    """Mark the keys that a query of a local layer attends to: ``half`` to each side.

    positions (B, T), mask (B, 1, T or 1, T) or None for all -> (B, 1, T, T).
    ``local_mask([[0, 1, 2]], None, 1)[0, 0, 0] = [1, 1, 0]``.
    """
    distances = (positions[:, :, None] - positions[:, None, :]).abs()[:, None]  # (B, 1, T, T)
    near = distances <= half
    if mask is None:
        return near
    # subtle: every token may see itself, because a pad far from the text sees nothing else: its
    # softmax would be 0/0, NaN, which a weight of 0 in the next layer does not remove
    return (mask & near) | torch.eye(near.shape[-1], dtype=torch.bool, device=near.device)


@dataclass(frozen=True)
class ModernBertConfig(RotaryConfig):
    """The settings of a ModernBERT; defaults are those of its ``config.json``."""

    sliding_window: int = 128  # tokens; half of it on each side
    rope_theta: float = 160_000.0
    rope_local_base_freq: float = 10_000.0
    norm_eps: float = 1e-5
    norm_bias: bool = False
    mlp_bias: bool = False
    hidden_activation: str = "gelu"  # silu in granite-embedding-multilingual-r2
    mlp_dropout: float = 0.0  # between the two feed-forward layers
    pad_token_id: int | None = 50283
    model_type: str = "modernbert"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("sliding_window", self.sliding_window)
        check_number("rope_local_base_freq", self.rope_local_base_freq, 0, math.inf, above=True)
        check_number("norm_eps", self.norm_eps, 0, 1, above=True)
        check_number("mlp_dropout", self.mlp_dropout, 0, 1)
        check_one_of("norm_bias", self.norm_bias, [False, True])
        check_one_of("mlp_bias", self.mlp_bias, [False, True])
        check_one_of("hidden_activation", self.hidden_activation, ["gelu", "silu"])
        if self.hidden_size % (2 * self.num_attention_heads):
            raise ValueError(
                f"hidden_size {self.hidden_size} does not give every head an even number of columns"
            )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


class ModernBertNorm(nn.Module):
    """The book's LayerNorm; the bias (D,) is there only if the settings ask for it."""

    def __init__(self, config: ModernBertConfig):
        super().__init__()
        self.eps = config.norm_eps
        self.weight = nn.Parameter(torch.ones(config.hidden_size))
        self.bias = None
        if config.norm_bias:
            self.bias = nn.Parameter(torch.zeros(config.hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias
        if bias is None:
            bias = torch.zeros_like(self.weight)
        if bert.FUSED:
            return nn.functional.layer_norm(x, self.weight.shape, self.weight, bias, self.eps)
        return layer_norm(x, self.weight, bias, self.eps)


class RotaryAttention(AttentionHeads):
    """Multi-head attention with rotated queries and keys; one matrix makes q, k and v."""

    def __init__(self, config: ModernBertConfig):
        super().__init__(config.head_dim, config.attention_probs_dropout_prob)
        width = config.hidden_size
        self.qkv = nn.Linear(width, 3 * width, config.attention_bias)
        self.output = nn.Linear(width, width, config.attention_bias)

    def forward(self, x: Tensor, view: tuple) -> tuple[Tensor, Tensor | None]:
        """x (B, T, D), view: mask and rotation -> (B, T, D) and the probabilities (B, H, T, T)."""
        mask, rotation = view
        query, key, value = self.qkv(x).chunk(3, dim=-1)  # (B, T, D) each
        query = rotate(self.split(query), *rotation)  # (B, H, T, K)
        key = rotate(self.split(key), *rotation)
        value = self.split(value)

        dropout = self.dropout if self.training else 0.0
        probabilities = None
        if bert.FUSED and not dropout:
            context = nn.functional.scaled_dot_product_attention(query, key, value, mask)
        else:
            context, probabilities = attention(query, key, value, mask, dropout)
        output = self.output(self.merge(context))  # (B, T, D)
        # ModernBERT drops numbers of the output at the same rate.
        return nn.functional.dropout(output, dropout), probabilities


class GeGLUFeedForward(nn.Module):
    """Each token on its own: D to 2F, GeGLU, F to D."""

    def __init__(self, config: ModernBertConfig):
        super().__init__()
        self.up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, config.mlp_bias)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, config.mlp_bias)
        self.dropout = nn.Dropout(config.mlp_dropout)
        self.activation = config.hidden_activation

    def forward(self, x: Tensor) -> Tensor:
        x = geglu(self.up(x), self.activation)  # (B, T, D) -> (B, T, 2F) -> (B, T, F)
        return self.down(self.dropout(x))  # (B, T, D)


class WindowedEncoder(ModernEncoder):
    """Global layers see the whole text, local layers a window to both sides of each token."""

    def view(self, mask: Tensor | None, positions: Tensor, dtype: torch.dtype) -> list[tuple]:
        """Return the mask and the rotation of each position, by the kind of each layer."""
        config = self.config
        global_rotation = rotary(positions, config.head_dim, config.rope_theta, dtype)
        local_rotation = rotary(positions, config.head_dim, config.rope_local_base_freq, dtype)
        window = local_mask(positions, mask, config.sliding_window // 2)
        views = {GLOBAL: (mask, global_rotation), LOCAL: (window, local_rotation)}

        if not config.layer_types:  # every layer sees the whole text
            return [views[GLOBAL] for _ in self.layers]
        return [views[kind] for kind in config.layer_types]


class NormedEmbeddings(nn.Module):
    """The table of tokens, then a norm and dropout."""

    def __init__(self, config: ModernBertConfig):
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.norm = ModernBertNorm(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, ids: Tensor, token_types: Tensor | None, positions: Tensor) -> Tensor:
        """ids (B, T) -> (B, T, D); token types and positions are not read."""
        return self.dropout(self.norm(self.word(ids)))  # (B, T, D)


class ModernBert(WindowedEncoder):
    """The encoder of ModernBERT; it has no pooler, whatever the argument says."""

    def __init__(self, config: ModernBertConfig, pooler: bool = False):
        layers = []
        for i in range(config.num_hidden_layers):
            attention_norm: nn.Module = ModernBertNorm(config)
            if i == 0:  # its input comes from the norm of the embeddings
                attention_norm = nn.Identity()
            attention = RotaryAttention(config)
            feed_forward_norm = ModernBertNorm(config)
            feed_forward = GeGLUFeedForward(config)
            layers.append(PreNormLayer(attention_norm, attention, feed_forward_norm, feed_forward))
        super().__init__(config, NormedEmbeddings(config), layers, ModernBertNorm(config))


class Spacing(NamedTuple):
    """Which layers are global in older files: one of n, evenly spaced."""

    key: str  # in config.json, whose value is n
    default: int  # n for a file without the key
    first: int  # layer i is global if i and ``first`` leave the same remainder when divided by n


@dataclass(frozen=True, kw_only=True)
class WindowedFamily(Family):
    """The settings of a ``WindowedEncoder``."""

    spacing: Spacing

    def read(self, raw: dict[str, Any]) -> Any:
        """Read a config; newer files state layers' kinds, and the bases in ``rope_parameters``."""
        ropes = read_optional(raw, "rope_parameters")
        global_rope = read_optional(ropes, GLOBAL)
        local_rope = read_optional(ropes, LOCAL)
        check_default_rope(read_optional(raw, "rope_scaling"), ropes, global_rope, local_rope)

        kinds = read_optional(raw, "layer_types", list)
        if not kinds:
            kinds = self.spaced_kinds(raw)
        content = raw | {"layer_types": tuple(kinds)}

        # The bases move to the keys that older files have for them.
        if "rope_theta" in global_rope:
            key = self.settings.get("rope_theta", "rope_theta")
            content[key] = global_rope["rope_theta"]
        if "rope_theta" in local_rope:
            key = self.settings.get("rope_local_base_freq", "rope_local_base_freq")
            content[key] = local_rope["rope_theta"]
        return super().read(content)

    def spaced_kinds(self, raw: dict[str, Any]) -> list[str]:
        """Return the kind of each layer by ``spacing``, as older files state it."""
        layers = raw["num_hidden_layers"]
        check_integer("num_hidden_layers", layers)
        every = raw.get(self.spacing.key, self.spacing.default)
        check_integer(self.spacing.key, every)

        # A damaged number of layers must not fill the memory with kinds. The config refuses it,
        # because it then has fewer kinds than layers.
        kinds = []
        for i in range(min(layers, MAX_SPACED_LAYERS)):
            if i % every == self.spacing.first % every:
                kinds.append(GLOBAL)
            else:
                kinds.append(LOCAL)
        return kinds


class ModernBertFamily(WindowedFamily):
    """ModernBERT's names and settings."""

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the settings with ``global_attn_every_n_layers``, which older files have.

        Every version reads it. It is right only for evenly spaced global layers; the
        ``layer_types`` are written too, and versions that read them ignore the older key.
        """
        kinds = config["layer_types"]
        if GLOBAL in kinds[1:]:
            every = kinds.index(GLOBAL, 1)  # the first global layer after layer 0
        elif kinds:
            every = len(kinds)  # only layer 0 is global
        else:
            every = 1  # all layers are global
        return super().write(config) | {"global_attn_every_n_layers": every}


MODERNBERT = ModernBertFamily(
    model_type="modernbert",
    architecture="ModernBertModel",
    config=ModernBertConfig,
    encoder=ModernBert,
    tables={"embeddings.word": "embeddings.tok_embeddings"},
    modules={
        "embeddings.norm": "embeddings.norm",
        "layers.{i}.attention.qkv": "layers.{i}.attn.Wqkv",
        "layers.{i}.attention.output": "layers.{i}.attn.Wo",
        "layers.{i}.attention_norm": "layers.{i}.attn_norm",
        "layers.{i}.feed_forward.up": "layers.{i}.mlp.Wi",
        "layers.{i}.feed_forward.down": "layers.{i}.mlp.Wo",
        "layers.{i}.feed_forward_norm": "layers.{i}.mlp_norm",
        "norm": "final_norm",
    },
    prefix="model.",
    # the head for masked words
    skipped=frozenset(weights_and_biases("head.dense", "head.norm", "decoder")),
    settings={
        "hidden_dropout_prob": "embedding_dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "rope_theta": "global_rope_theta",
        "rope_local_base_freq": "local_rope_theta",
        "sliding_window": "local_attention",
    },
    constants={"type_vocab_size": 0},
    spacing=Spacing(key="global_attn_every_n_layers", default=3, first=0),
    relative=True,
)
