"""ModernBERT (Warner et al. 2024, arXiv 2412.13663): the book's encoder with what decoders have
taught since 2018.

    rotary         for the position table; layers that see everything turn more slowly than those that see a window
    local_mask     two layers of three see 64 tokens to each side, which is what makes 8,192 tokens affordable
    geglu          for GELU (Shazeer 2020, arXiv 2002.05202): one half of the layer decides how much of the other passes
    pre-norm       each block reads its input normalised and is added to it as it was; one more norm at the end
    no biases      in published models; the settings allow them

Legend as in ``core/bert.py``: B batch, T tokens, D width, H heads, K width of one head, F
feed-forward width.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minisbert.architectures.modern import (
    GLOBAL,
    LOCAL,
    Architecture,
    ModernEncoder,
    PreNormLayer,
    RotaryConfig,
    WordEmbeddings,
    check_default_rope,
    rotary,
    rotate,
    stated,
)
from minisbert.core.bert import Attention, LayerNorm, attention, gelu, layer_norm
from minisbert.core.checks import check_integer, check_number, check_one_of
from minisbert.core.weights import dense

MOST_LAYERS = 1000


def geglu(x: Tensor, activation: str = "gelu") -> Tensor:
    """gelu(first half) * second half, (..., 2F) -> (..., F) (Shazeer 2020). ``geglu([1, 2]) =
    [1.6827]``.

    ``silu`` as the activation makes it SwiGLU: ``geglu([1, 2], "silu") = [1.4621]``.
    """
    activated, gate = x.chunk(2, dim=-1)  # subtle: the first half is activated
    if activation == "silu":
        return nn.functional.silu(activated) * gate
    return gelu(activated) * gate


def local_mask(positions: Tensor, mask: Tensor | None, half: int) -> Tensor:
    """Mark the keys that a query of a local layer attends to, (B, 1, T, T): ``half`` to each side,
    if ``mask`` allows.

    positions (B, T), mask (B, 1, T or 1, T) or None. ``local_mask([[0, 1, 2]], None, 1)[0, 0, 0] =
    [1, 1, 0]``.
    """
    distances = (positions[:, :, None] - positions[:, None, :]).abs()[:, None]  # (B, 1, T, T)
    near = distances <= half
    if mask is None:
        return near
    # subtle: a pad far from the text sees nothing, its softmax is 0/0, and 0 times that is not 0:
    # it may see itself
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


class ModernBertNorm(LayerNorm):
    """The book's LayerNorm; the bias (D,) is there only if the settings ask for it."""

    def __init__(self, config: ModernBertConfig):
        super().__init__(config.hidden_size, config.norm_eps)
        if not config.norm_bias:
            self.bias = None  # type: ignore[assignment]  # the book's always has one

    def forward(self, x: Tensor) -> Tensor:
        bias = torch.zeros_like(self.weight) if self.bias is None else self.bias
        return layer_norm(x, self.weight, bias, self.eps)


class RotaryAttention(Attention):
    """Multi-head attention with rotated queries and keys. One matrix makes queries, keys and
    values.
    """

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


class GeGLUFeedForward(nn.Module):
    """Each token on its own: D to 2F, GeGLU, F to D."""

    def __init__(self, config: ModernBertConfig):
        super().__init__()
        self.up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, config.mlp_bias)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, config.mlp_bias)
        self.dropout, self.activation = nn.Dropout(config.mlp_dropout), config.hidden_activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.dropout(geglu(self.up(x), self.activation)))  # (B, T, D), 2F, F, D


class WindowedEncoder(ModernEncoder):
    """Every token sees those on both sides: all of them in global layers, those of a window in
    local ones.
    """

    def view(self, mask: Tensor | None, positions: Tensor, dtype: torch.dtype) -> list[tuple]:
        c = self.config
        masks = {GLOBAL: mask, LOCAL: local_mask(positions, mask, c.sliding_window // 2)}
        bases = {GLOBAL: c.rope_theta, LOCAL: c.rope_local_base_freq}
        rotations = {
            kind: rotary(positions, c.head_dim, base, dtype) for kind, base in bases.items()
        }
        return [
            (masks[kind], rotations[kind]) for kind in c.layer_types or [GLOBAL] * len(self.layers)
        ]


class NormedEmbeddings(WordEmbeddings):
    """The table of tokens, then a norm and dropout."""

    def __init__(self, config: ModernBertConfig):
        super().__init__(config)
        self.norm = ModernBertNorm(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, ids: Tensor, token_types: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        return self.dropout(self.norm(self.word(ids)))  # (B, T, D)


class ModernBert(WindowedEncoder):
    def __init__(self, config: ModernBertConfig, pooler: bool = False):
        layers = (
            PreNormLayer(
                ModernBertNorm(config)
                if i
                else nn.Identity(),  # the input of layer 0 is normalised
                RotaryAttention(config),
                ModernBertNorm(config),
                GeGLUFeedForward(config),
            )
            for i in range(config.num_hidden_layers)
        )
        super().__init__(config, layers, ModernBertNorm(config), NormedEmbeddings(config))


@dataclass(frozen=True, kw_only=True)
class WindowedFamily(Architecture):
    """The settings of a ``WindowedEncoder``."""

    spacing: tuple[
        str, int, int
    ]  # how often a layer is global, in older files: the key, its default, the first of n

    def read(self, raw: dict[str, Any]) -> Any:
        """Read a config; newer files state the kind of each layer, and the bases in
        ``rope_parameters``.
        """
        ropes = stated(raw, "rope_parameters")
        check_default_rope(
            stated(raw, "rope_scaling"), ropes, stated(ropes, GLOBAL), stated(ropes, LOCAL)
        )
        kinds = stated(raw, "layer_types", list)
        if not kinds:
            key, default, first = self.spacing
            layers, every = raw["num_hidden_layers"], raw.get(key, default)
            check_integer("num_hidden_layers", layers)
            check_integer(key, every)
            # a damaged number of layers must not fill the memory: with fewer kinds the config
            # refuses it
            kinds = [
                GLOBAL if i % every == first % every else LOCAL
                for i in range(min(layers, MOST_LAYERS))
            ]
        content = raw | {"layer_types": tuple(kinds)}
        for kind, ours in ((GLOBAL, "rope_theta"), (LOCAL, "rope_local_base_freq")):
            if "rope_theta" in stated(ropes, kind):
                content[self.settings.get(ours, ours)] = ropes[kind]["rope_theta"]
        return super().read(content)


class ModernBertFamily(WindowedFamily):
    """ModernBERT's names and settings."""

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        """In the older form, which every version reads if the global layers are evenly spaced."""
        # layer_types are written too: they decide where they are read
        kinds = config["layer_types"]
        spacing = next((i for i in range(1, len(kinds)) if kinds[i] == GLOBAL), len(kinds)) or 1
        return super().write(config) | {"global_attn_every_n_layers": spacing}


MODERNBERT = ModernBertFamily(
    model_type="modernbert",
    architecture="ModernBertModel",
    config=ModernBertConfig,
    encoder=ModernBert,
    linears={
        "embeddings.word": "embeddings.tok_embeddings",
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
    skipped=frozenset(
        dense("head.dense") | dense("head.norm") | dense("decoder")
    ),  # for masked words
    settings={
        "hidden_dropout_prob": "embedding_dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "rope_theta": "global_rope_theta",
        "rope_local_base_freq": "local_rope_theta",
        "sliding_window": "local_attention",
    },
    constants={"type_vocab_size": 0},
    spacing=("global_attn_every_n_layers", 3, 0),
    relative=True,
)
