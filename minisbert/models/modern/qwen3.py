"""What Qwen3's files say: the settings of ``decoder.py``, and its names, with or without ``model.`` before them."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from minisbert.core.weights import Size
from minisbert.models.modern.decoder import Decoder
from minisbert.models.modern.rotary import GLOBAL, RotaryConfig, RotaryFamily


@dataclass(frozen=True)
class DecoderConfig(RotaryConfig):
    """The settings of a Qwen3; names and defaults are those of its ``config.json``."""

    num_key_value_heads: Size = field(kw_only=True)  # G
    head_dim: Size = 128  # K
    max_position_embeddings: Size = 32768
    rms_norm_eps: Annotated[float, "above 0 and below 1"] = 1e-6
    hidden_act: Annotated[str, "silu"] = "silu"
    model_type: str = "qwen3"

    kinds: ClassVar[tuple[str, ...]] = (GLOBAL,)

    def __post_init__(self) -> None:
        super().__post_init__()
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        if heads % kv_heads or self.head_dim % 2:
            found = f"{heads} and {kv_heads} heads of width {self.head_dim}"
            raise ValueError(f"num_key_value_heads must divide num_attention_heads, and head_dim be even, not {found}")


QWEN3 = RotaryFamily(
    model_type="qwen3",
    architecture="Qwen3Model",
    config=DecoderConfig,
    encoder=Decoder,
    tables={
        "embeddings.word": "embed_tokens",
        "layers.{i}.attention_norm": "layers.{i}.input_layernorm",
        "layers.{i}.attention.query_norm": "layers.{i}.self_attn.q_norm",
        "layers.{i}.attention.key_norm": "layers.{i}.self_attn.k_norm",
        "layers.{i}.feed_forward_norm": "layers.{i}.post_attention_layernorm",
        "layers.{i}.feed_forward.gate": "layers.{i}.mlp.gate_proj",
        "layers.{i}.feed_forward.up": "layers.{i}.mlp.up_proj",
        "layers.{i}.feed_forward.down": "layers.{i}.mlp.down_proj",
        "norm": "norm",
    },
    norms={},
    linears={
        "layers.{i}.attention.query": "layers.{i}.self_attn.q_proj",
        "layers.{i}.attention.key": "layers.{i}.self_attn.k_proj",
        "layers.{i}.attention.value": "layers.{i}.self_attn.v_proj",
        "layers.{i}.attention.output": "layers.{i}.self_attn.o_proj",
    },
    pooler={},
    prefix="model.",
    skipped=frozenset({"lm_head.weight"}),  # the head for the next word, mostly the table of words itself
    settings={"attention_probs_dropout_prob": "attention_dropout"},
    constants={"hidden_dropout_prob": 0.0, "type_vocab_size": 0},
    only={
        "use_sliding_window": False,
        "is_causal": True,
        "use_bidirectional_attention": False,
        "quantization_config": None,
    },
    bases={None: "rope_theta"},
)
