"""A decoder as an encoder: Qwen3, in which only the last token of a text has seen all of it.

    rms_norm        for LayerNorm, before each block instead of after the sum; also over each query
                    and key
    swiglu          for GELU: one layer decides how much of another one passes
    rotary          for the position table: queries and keys are rotated by their place in the text
    repeat_heads    several heads of queries share one head of keys and values
    causal_mask     a token sees itself and what comes before it

The models are called Qwen3-Embedding. Legend as in ``core/bert.py``; ``G`` is the number of heads
of keys and values. K is a setting, and H * K need not be D.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from minisbert.architectures.families import Family
from minisbert.architectures.modern import (
    GLOBAL,
    AttentionHeads,
    ModernEncoder,
    PreNormLayer,
    RotaryConfig,
    WordEmbeddings,
    check_default_rope,
    read_optional,
    rotary,
    rotate,
)
from minisbert.core import bert
from minisbert.core.bert import attention
from minisbert.core.checks import check_integer, check_number, check_one_of


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Every vector scaled to a mean square of 1, then times ``weight``.

    x (..., D), weight (D,) -> (..., D). ``layer_norm`` without a mean and a bias (Zhang and
    Sennrich 2019, arXiv 1910.07467). ``rms_norm([1, 7], 1, ~0) = [0.2, 1.4]``.
    """
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps) * weight


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """gate * sigmoid(gate) * up, any shape (Shazeer 2020). ``swiglu(1.0, 2.0) = 1.4621``.

    The paper is arXiv 2002.05202.
    """
    return nn.functional.silu(gate) * up


def repeat_heads(x: Tensor, times: int) -> Tensor:
    """Repeat heads of keys or values: (B, G, T, K) -> (B, G * ``times``, T, K).

    Two heads become heads 0, 0, 1, 1 if ``times`` is 2. Grouped queries (Ainslie et al. 2023, arXiv
    2305.13245): H / G heads of queries in a row look at the same keys.
    """
    return x.repeat_interleave(times, dim=1)  # subtle: not repeat, which gives heads 0, 1, 0, 1


def causal_mask(mask: Tensor | None, tokens: int, device: torch.device) -> Tensor:
    """Mark the keys that a query may attend to: its own and earlier ones, if ``mask`` allows them.

    ``mask`` is (B, 1, 1, T), True for real tokens; or (B, 1, T, T), True where query and key are of
    the same text; or None. -> (1 or B, 1, T, T).
    """
    before = torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()
    if mask is None:
        return before[None, None]
    # subtle: a pad before the text sees no real token, and its softmax would be 0/0: it may look at
    # itself
    return (mask & before) | torch.eye(tokens, dtype=torch.bool, device=device)


def grouped_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Compute the book's ``attention`` with keys and values (B, G, T, K).

    If ``causal``, a token attends only to itself and those before it. A ``mask`` that is given must
    say so itself.
    """
    if causal and mask is None:
        mask = causal_mask(None, query.shape[2], query.device)
    times = query.shape[1] // key.shape[1]
    key = repeat_heads(key, times)  # (B, H, T, K)
    value = repeat_heads(value, times)
    return attention(query, key, value, mask, dropout)


@dataclass(frozen=True)
class DecoderConfig(RotaryConfig):
    """The settings of a Qwen3; names and defaults are those of its ``config.json``."""

    # G; by keyword only, because a field without a default cannot follow those that have one.
    num_key_value_heads: int = field(kw_only=True)
    head_dim: int = 128  # K
    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    model_type: str = "qwen3"

    kinds: ClassVar[tuple[str, ...]] = (GLOBAL,)
    activation: ClassVar[str] = "silu"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("num_key_value_heads", self.num_key_value_heads)
        check_integer("head_dim", self.head_dim)
        check_number("rms_norm_eps", self.rms_norm_eps, 0, 1, above=True)
        check_one_of("hidden_act", self.hidden_act, [self.activation])
        if self.num_attention_heads % self.num_key_value_heads or self.head_dim % 2:
            raise ValueError(
                "num_key_value_heads must divide num_attention_heads, and head_dim must be even"
            )


class RMSNorm(nn.Module):
    """``rms_norm`` with a learned weight (D,)."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x, self.weight)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Apply the formula, or PyTorch's operation, which wants a weight of the dtype of x."""
        if bert.FUSED:
            return nn.functional.rms_norm(x, weight.shape, weight.to(x.dtype), self.eps)
        return rms_norm(x, weight, self.eps)


class GroupedAttention(AttentionHeads):
    """H heads of queries and G of keys and values; queries and keys are normalised and rotated."""

    def __init__(
        self, config: DecoderConfig, query_norm: RMSNorm, key_norm: RMSNorm, causal: bool = True
    ):
        super().__init__(config.head_dim, config.attention_probs_dropout_prob)
        self.causal = causal  # as in ``grouped_attention``
        width = config.hidden_size
        bias = config.attention_bias
        inner = config.num_attention_heads * config.head_dim  # H * K
        kv_inner = config.num_key_value_heads * config.head_dim  # G * K
        self.query = nn.Linear(width, inner, bias)
        self.key = nn.Linear(width, kv_inner, bias)
        self.value = nn.Linear(width, kv_inner, bias)
        self.output = nn.Linear(inner, width, bias)
        self.query_norm = query_norm
        self.key_norm = key_norm

    def forward(self, x: Tensor, view: tuple) -> tuple[Tensor, Tensor | None]:
        """x (B, T, D), view: mask and rotation -> (B, T, D) and the probabilities (B, H, T, T)."""
        mask, rotation = view
        # subtle: each head is normalised before it is rotated, and the norm's weight is the same in
        # all heads
        query = rotate(self.query_norm(self.split(self.query(x))), *rotation)  # (B, H, T, K)
        key = rotate(self.key_norm(self.split(self.key(x))), *rotation)  # (B, G, T, K)
        value = self.split(self.value(x))  # (B, G, T, K)

        dropout = self.dropout if self.training else 0.0
        probabilities = None
        if bert.FUSED and not dropout:
            # With ``is_causal`` in place of a mask PyTorch's operation does half of the work, and
            # with ``enable_gqa`` it need not repeat heads.
            context = nn.functional.scaled_dot_product_attention(
                query, key, value, mask, is_causal=self.causal and mask is None, enable_gqa=True
            )
        else:
            context, probabilities = grouped_attention(
                query, key, value, mask, self.causal, dropout
            )
        return self.output(self.merge(context)), probabilities


class GatedFeedForward(nn.Module):
    """Each token on its own: D to F twice, one the gate of the other, and back to D."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = swiglu(self.gate(x), self.up(x))  # (B, T, D) -> (B, T, F)
        return self.down(x)  # (B, T, D)


class DecoderLayer(PreNormLayer):
    """Grouped attention, then feed-forward, each after an RMSNorm."""

    def __init__(self, config: DecoderConfig):
        width = config.hidden_size
        eps = config.rms_norm_eps
        query_norm = RMSNorm(config.head_dim, eps)
        key_norm = RMSNorm(config.head_dim, eps)
        attention = GroupedAttention(config, query_norm, key_norm)
        super().__init__(
            attention_norm=RMSNorm(width, eps),
            attention=attention,
            feed_forward_norm=RMSNorm(width, eps),
            feed_forward=GatedFeedForward(config),
        )


class Decoder(ModernEncoder):
    """Qwen3 without its head for the next word; it has no pooler, whatever the argument says."""

    # ``PairModel`` refuses a head that reads the first token, which here has seen no other.
    causal = True

    def __init__(self, config: DecoderConfig, pooler: bool = False):
        layers = [DecoderLayer(config) for _ in range(config.num_hidden_layers)]
        norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        super().__init__(config, WordEmbeddings(config), layers, norm)

    def view(self, mask: Tensor | None, positions: Tensor, dtype: torch.dtype) -> list[tuple]:
        """Return the causal mask (None: attention makes it) and the rotation of each position.

        Positions are the same in all layers, and so is what follows from them.
        """
        rotation = rotary(positions, self.config.head_dim, self.config.rope_theta, dtype)
        if mask is not None:
            mask = causal_mask(mask, positions.shape[1], positions.device)
        return [(mask, rotation)] * len(self.layers)


class QwenFamily(Family):
    """Qwen3's names and settings."""

    def read(self, raw: dict[str, Any]) -> DecoderConfig:
        """Read a config; newer files state the base of the rotation in ``rope_parameters``."""
        rope = read_optional(raw, "rope_parameters")
        scaling = read_optional(raw, "rope_scaling")  # the older name of rope_parameters
        check_default_rope(rope, scaling)

        content = raw | {"layer_types": tuple(read_optional(raw, "layer_types", list))}
        if "rope_theta" in rope:
            content["rope_theta"] = rope["rope_theta"]
        if "rope_theta" in scaling:
            content["rope_theta"] = scaling["rope_theta"]
        return super().read(content)


QWEN3 = QwenFamily(
    model_type="qwen3",
    architecture="Qwen3Model",
    config=DecoderConfig,
    encoder=Decoder,
    tables={"embeddings.word": "embed_tokens"},
    modules={
        "layers.{i}.attention_norm": "layers.{i}.input_layernorm",
        "layers.{i}.attention.query": "layers.{i}.self_attn.q_proj",
        "layers.{i}.attention.query_norm": "layers.{i}.self_attn.q_norm",
        "layers.{i}.attention.key": "layers.{i}.self_attn.k_proj",
        "layers.{i}.attention.key_norm": "layers.{i}.self_attn.k_norm",
        "layers.{i}.attention.value": "layers.{i}.self_attn.v_proj",
        "layers.{i}.attention.output": "layers.{i}.self_attn.o_proj",
        "layers.{i}.feed_forward_norm": "layers.{i}.post_attention_layernorm",
        "layers.{i}.feed_forward.gate": "layers.{i}.mlp.gate_proj",
        "layers.{i}.feed_forward.up": "layers.{i}.mlp.up_proj",
        "layers.{i}.feed_forward.down": "layers.{i}.mlp.down_proj",
        "norm": "norm",
    },
    prefix="model.",
    # The head for the next word; in most files it is a copy of the word embeddings.
    skipped=frozenset({"lm_head.weight"}),
    settings={"attention_probs_dropout_prob": "attention_dropout"},
    constants={"hidden_dropout_prob": 0.0, "type_vocab_size": 0},
    accepted={
        "use_sliding_window": (None, False),
        "is_causal": (None, True),
        "use_bidirectional_attention": (None, False),
    },
    relative=True,
)
