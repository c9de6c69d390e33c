"""EmbeddingGemma: Gemma 3, a decoder whose mask was taken away, with its own norms, windows and scales.

Of ``decoder.py`` it changes: no causal mask; of six layers five see a window, and turn faster; four norms in a layer,
each of weight 1 + w; GELU in the gate; embeddings times sqrt(D); scores by the root of a setting instead of K.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from minisbert.core import one_line
from minisbert.core.checks import check
from minisbert.core.weights import Size
from minisbert.models.modern.architecture import Architecture
from minisbert.models.modern.decoder import Decoder, Layer, RMSNorm, View, rms_norm
from minisbert.models.modern.modernbert import GLOBAL, LOCAL, Base, local_mask
from minisbert.models.modern.qwen3 import QWEN3, DecoderConfig, check_only
from minisbert.models.modern.rotary import rotary


@dataclass(frozen=True)
class GemmaConfig(DecoderConfig):
    """As ``DecoderConfig``. ``layer_types`` has GLOBAL or LOCAL for each layer."""

    layer_types: tuple[str, ...] = ()
    sliding_window: Size = 4096  # tokens; half of it on each side
    head_dim: Size = 256  # K
    query_pre_attn_scalar: Base = 256.0
    rope_theta: Base = 1_000_000.0
    rope_local_base_freq: Base = 10_000.0
    max_position_embeddings: Size = 131_072
    hidden_act: Annotated[str, "gelu_pytorch_tanh"] = "gelu_pytorch_tanh"
    pad_token_id: int | None = 0
    model_type: str = "gemma3_text"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not {*self.layer_types} <= {GLOBAL, LOCAL} or len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(
                f"layer_types must be {GLOBAL} or {LOCAL} for each layer, not {one_line(self.layer_types)}"
            )


class GemmaNorm(RMSNorm):
    """``rms_norm`` by ``scale`` (1 + weight); the weight (D,) starts at 0."""

    def __init__(self, width: int, eps: float, scale: float = 1.0):
        super().__init__(width, eps)
        self.scale = scale
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.scale * (1.0 + self.weight), self.eps)


def gelu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """gelu(gate) * up with the approximation by tanh, for which these weights were trained. (1, 2) gives 1.6824."""
    return nn.functional.gelu(gate, approximate="tanh") * up


class GemmaLayer(Layer):
    """Attention, then feed-forward, each normalised before it and once more before it is added."""

    def __init__(self, config: GemmaConfig):
        super().__init__(config)
        for name in ("attention_norm", "attention_after", "feed_forward_norm", "feed_forward_after"):
            setattr(self, name, GemmaNorm(config.hidden_size, config.rms_norm_eps))
        # subtle: the book divides scores by sqrt(K), Gemma by the root of a setting, which in EmbeddingGemma is K
        scale = (config.head_dim / config.query_pre_attn_scalar) ** 0.5
        self.attention.query_norm = GemmaNorm(config.head_dim, config.rms_norm_eps, scale)
        self.attention.key_norm = GemmaNorm(config.head_dim, config.rms_norm_eps)
        self.attention.causal = False
        self.feed_forward.gated = gelu_gate

    def forward(self, x: Tensor, view: View) -> tuple[Tensor, Tensor | None]:
        attended, probabilities = self.attention(self.attention_norm(x), *view)
        x = x + self.attention_after(attended)
        return x + self.feed_forward_after(self.feed_forward(self.feed_forward_norm(x))), probabilities


class ScaledEmbedding(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * self.embedding_dim**0.5


class Gemma(Decoder):
    """The encoder of EmbeddingGemma: every token sees every other, in most layers those of a window."""

    causal = False
    kinds = ScaledEmbedding, GemmaLayer, GemmaNorm

    def views(self, mask: Tensor | None, positions: Tensor, dtype: torch.dtype) -> list[View]:
        if mask is not None:
            check("mask whole", mask)
            mask = mask.bool() if mask.ndim == 4 else mask.bool()[:, None, None, :]  # (B, 1, T or 1, T)
        c = self.config
        near = local_mask(positions, mask, c.sliding_window // 2)
        wide, narrow = (rotary(positions, c.head_dim, base, dtype) for base in (c.rope_theta, c.rope_local_base_freq))
        return [{GLOBAL: (mask, wide), LOCAL: (near, narrow)}[kind] for kind in c.layer_types]


class GemmaFamily(Architecture):
    def read(self, raw: dict[str, Any]) -> GemmaConfig:
        """The contents of ``config.json``; newer files have both bases of the rotation in ``rope_parameters``."""
        ropes = [(raw.get("rope_parameters") or {}).get(kind) or {} for kind in (GLOBAL, LOCAL)]
        for rope in (*ropes, raw.get("rope_scaling") or {}):
            check_only(rope, {"rope_type": "default", "type": "default"})
        check_only(raw, {"attn_logit_softcapping": None, "quantization_config": None})
        if raw.get("use_bidirectional_attention") is not True:
            raise ValueError("use_bidirectional_attention must be true: Gemma 3 is read as EmbeddingGemma alone")
        layers, spacing = raw.get("num_hidden_layers"), raw.get("sliding_window_pattern", 6)
        spaced = [LOCAL if (i + 1) % spacing else GLOBAL for i in range(layers if isinstance(layers, int) else 0)]
        bases = zip(("rope_theta", "rope_local_base_freq"), ropes, strict=True)
        stated = {name: rope["rope_theta"] for name, rope in bases if "rope_theta" in rope}
        return super().read(raw | {"layer_types": tuple(raw.get("layer_types") or spaced)} | stated)

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        return super().write(config) | {"use_bidirectional_attention": True}


AFTER = {"attention_after": "post_attention", "feed_forward_norm": "pre_feedforward"}
AFTER |= {"feed_forward_after": "post_feedforward"}
GEMMA = GemmaFamily(
    model_type="gemma3_text",
    architecture="Gemma3TextModel",
    config=GemmaConfig,
    encoder=Gemma,
    tables=QWEN3.tables | {f"layers.{{i}}.{ours}": f"layers.{{i}}.{its}_layernorm" for ours, its in AFTER.items()},
    norms={},
    linears=QWEN3.linears,
    pooler={},
    prefix=QWEN3.prefix,
    skipped=QWEN3.skipped,
    settings=QWEN3.settings | {"hidden_act": "hidden_activation"},
    constants=QWEN3.constants,
    relative=True,
)
