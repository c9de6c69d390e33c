"""EmbeddingGemma: Gemma 3, a decoder whose mask was taken away, with its own norms and windows.

It changes ``qwen3.py``: no causal mask; of six layers five see a window, and turn faster; four
norms in a layer, each of weight 1 + w; GELU in the gate; embeddings times sqrt(D); scores divided
by the root of a setting instead of sqrt(K).
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from minisbert.architectures.modern import GLOBAL, LOCAL, PreNormLayer
from minisbert.architectures.modernbert import Spacing, WindowedEncoder, WindowedFamily
from minisbert.architectures.qwen3 import (
    QWEN3,
    DecoderConfig,
    GatedFeedForward,
    GroupedAttention,
    RMSNorm,
)
from minisbert.core.checks import check_integer, check_number


@dataclass(frozen=True)
class GemmaConfig(DecoderConfig):
    """The settings of an EmbeddingGemma; names and defaults are those of its ``config.json``."""

    sliding_window: int = 4096  # tokens; half of it on each side
    head_dim: int = 256  # K
    query_pre_attn_scalar: float = 256.0
    rope_theta: float = 1_000_000.0
    rope_local_base_freq: float = 10_000.0
    max_position_embeddings: int = 131_072
    hidden_act: str = "gelu_pytorch_tanh"
    pad_token_id: int | None = 0
    model_type: str = "gemma3_text"

    kinds: ClassVar[tuple[str, ...]] = (GLOBAL, LOCAL)
    activation: ClassVar[str] = "gelu_pytorch_tanh"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("sliding_window", self.sliding_window)
        for name in ("query_pre_attn_scalar", "rope_local_base_freq"):
            check_number(name, getattr(self, name), 0, math.inf, above=True)


class GemmaNorm(RMSNorm):
    """``rms_norm`` whose factor is ``scale`` * (1 + weight); the weight (D,) starts at 0."""

    def __init__(self, width: int, eps: float, scale: float = 1.0):
        super().__init__(width, eps)
        self.scale = scale
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x, self.scale * (1.0 + self.weight))


def gelu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """gelu(gate) * up with the approximation by tanh, for which these weights were trained.

    (1, 2) gives 1.6824.
    """
    return nn.functional.gelu(gate, approximate="tanh") * up


class GemmaFeedForward(GatedFeedForward):
    """Qwen3's with GELU in the gate."""

    def forward(self, x: Tensor) -> Tensor:
        x = gelu_gate(self.gate(x), self.up(x))  # (B, T, D) -> (B, T, F)
        return self.down(x)  # (B, T, D)


class GemmaLayer(PreNormLayer):
    """Attention, then feed-forward; the input of each is normalised, and its output once more."""

    def __init__(self, config: GemmaConfig):
        width = config.hidden_size
        eps = config.rms_norm_eps
        # subtle: the book divides scores by sqrt(K), Gemma by the root of a setting, which in
        # EmbeddingGemma is K; the queries are scaled by the quotient of the two
        scale = (config.head_dim / config.query_pre_attn_scalar) ** 0.5
        query_norm = GemmaNorm(config.head_dim, eps, scale)
        key_norm = GemmaNorm(config.head_dim, eps)
        attention = GroupedAttention(config, query_norm, key_norm, causal=False)
        super().__init__(
            attention_norm=GemmaNorm(width, eps),
            attention=attention,
            feed_forward_norm=GemmaNorm(width, eps),
            feed_forward=GemmaFeedForward(config),
        )
        self.attention_after = GemmaNorm(width, eps)
        self.feed_forward_after = GemmaNorm(width, eps)

    def forward(self, x: Tensor, view: tuple) -> tuple[Tensor, Tensor | None]:
        """x (B, T, D), view: what attention reads besides -> (B, T, D), the probabilities."""
        attended, probabilities = self.attention(self.attention_norm(x), view)
        x = x + self.attention_after(attended)
        fed = self.feed_forward(self.feed_forward_norm(x))
        x = x + self.feed_forward_after(fed)
        return x, probabilities


class ScaledEmbeddings(nn.Module):
    """The table of tokens, times sqrt(D)."""

    def __init__(self, config: GemmaConfig):
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)

    def forward(self, ids: Tensor, token_types: Tensor | None, positions: Tensor) -> Tensor:
        """ids (B, T) -> (B, T, D); token types and positions are not read."""
        return self.word(ids) * self.word.embedding_dim**0.5  # (B, T, D)


class Gemma(WindowedEncoder):
    """The encoder of EmbeddingGemma; it has no pooler, whatever the argument says."""

    def __init__(self, config: GemmaConfig, pooler: bool = False):
        layers = [GemmaLayer(config) for _ in range(config.num_hidden_layers)]
        norm = GemmaNorm(config.hidden_size, config.rms_norm_eps)
        super().__init__(config, ScaledEmbeddings(config), layers, norm)


class GemmaFamily(WindowedFamily):
    """EmbeddingGemma's names and settings."""

    def read(self, raw: dict[str, Any]) -> GemmaConfig:
        if raw.get("use_bidirectional_attention") is not True:
            raise ValueError(
                "use_bidirectional_attention must be true: of Gemma 3 only EmbeddingGemma is "
                "supported"
            )
        return super().read(raw)

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        return super().write(config) | {"use_bidirectional_attention": True}


GEMMA = GemmaFamily(
    model_type="gemma3_text",
    architecture="Gemma3TextModel",
    config=GemmaConfig,
    encoder=Gemma,
    tables=QWEN3.tables,
    modules=QWEN3.modules
    | {
        "layers.{i}.attention_after": "layers.{i}.post_attention_layernorm",
        "layers.{i}.feed_forward_norm": "layers.{i}.pre_feedforward_layernorm",
        "layers.{i}.feed_forward_after": "layers.{i}.post_feedforward_layernorm",
    },
    prefix=QWEN3.prefix,
    skipped=QWEN3.skipped,
    settings=QWEN3.settings | {"hidden_act": "hidden_activation"},
    constants=QWEN3.constants,
    accepted={"attn_logit_softcapping": (None,)},
    spacing=Spacing(key="sliding_window_pattern", default=6, first=-1),  # the last of every six
    relative=True,
)
