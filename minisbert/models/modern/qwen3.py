"""What Qwen3's files say: the settings of ``decoder.py``, and its names, with or without ``model.`` before them."""

from dataclasses import dataclass
from typing import Annotated, Any

from minisbert.core import one_line
from minisbert.core.checks import check_fields
from minisbert.core.weights import Rate, Size
from minisbert.models.modern.architecture import Architecture
from minisbert.models.modern.decoder import Decoder

# what config.json may say that would change the vectors, and the only value that is computed here
ONLY = {"rope_type": "default", "layer_types": "full_attention", "use_sliding_window": False, "is_causal": True}
ONLY |= {"use_bidirectional_attention": False, "quantization_config": None}


@dataclass(frozen=True)
class DecoderConfig:
    """The sizes and constants of a Qwen3; names and defaults are those of its ``config.json``.

    Raises ``ValueError`` for values that do not describe a decoder.
    """

    vocab_size: Size  # V
    hidden_size: Size  # D
    num_hidden_layers: Size  # L
    num_attention_heads: Size  # H
    num_key_value_heads: Size  # G
    intermediate_size: Size  # F
    head_dim: Size = 128  # K
    max_position_embeddings: Size = 32768
    rope_theta: Annotated[float, "above 0 and finite"] = 10000.0
    rms_norm_eps: Annotated[float, "above 0 and below 1"] = 1e-6
    attention_bias: Annotated[bool, "0 or 1"] = False
    attention_probs_dropout_prob: Rate = 0.0
    hidden_dropout_prob: Rate = 0.0  # there is none
    hidden_act: Annotated[str, "silu"] = "silu"
    initializer_range: Rate = 0.02
    type_vocab_size: int = 0
    pad_token_id: int | None = None
    model_type: str = "qwen3"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(f"num_key_value_heads {self.num_key_value_heads} does not divide num_attention_heads")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd: its columns rotate in pairs")

    @property
    def positions(self) -> int:
        """The largest number of tokens that one text can have."""
        return self.max_position_embeddings


def check_only(stated: dict[str, Any], accepted: dict[str, Any]) -> None:
    """Raise ``ValueError`` for a key that is stated with another value than the only one accepted."""
    for key, only in accepted.items():
        if stated.get(key) not in (None, only):
            raise ValueError(f"{key} {one_line(stated[key])} is not supported, only {one_line(only)} is")


class DecoderFamily(Architecture):
    def fields(self, raw: dict[str, Any]) -> dict[str, Any]:
        """The contents of ``config.json``; newer files have the base of the rotation in ``rope_parameters``."""
        rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
        if not isinstance(rope, dict):
            raise ValueError(f"rope_parameters must be an object, not {one_line(rope)}")
        stated = raw | {"rope_type": rope.get("rope_type", rope.get("type"))}
        stated["layer_types"] = next((kind for kind in raw.get("layer_types") or [] if kind != "full_attention"), None)
        check_only(stated, ONLY)
        return super().fields(raw) | {"rope_theta": rope.get("rope_theta", raw.get("rope_theta", 10000.0))}


QWEN3 = DecoderFamily(
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
    relative=True,
)
