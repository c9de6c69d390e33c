"""Qwen3's files: what they call the tensors and settings of ``decoder.py``, with or without ``model.`` before each."""

from typing import Any

from minisbert.core import one_line
from minisbert.models.modern.architecture import Architecture
from minisbert.models.modern.decoder import Decoder, DecoderConfig

# what config.json may say that would change the vectors, and the only value that is computed here
ONLY = {"rope_type": "default", "layer_types": "full_attention", "use_sliding_window": False, "is_causal": True}
ONLY |= {"use_bidirectional_attention": False, "quantization_config": None}


class DecoderFamily(Architecture):
    def fields(self, raw: dict[str, Any]) -> dict[str, Any]:
        """The contents of ``config.json``; newer files have the base of the rotation in ``rope_parameters``."""
        rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
        if not isinstance(rope, dict):
            raise ValueError(f"rope_parameters must be an object, not {one_line(rope)}")
        stated = raw | {"rope_type": rope.get("rope_type", rope.get("type"))}
        stated["layer_types"] = next((kind for kind in raw.get("layer_types") or [] if kind != "full_attention"), None)
        for key, only in ONLY.items():
            if stated.get(key) not in (None, only):
                raise ValueError(f"{key} {one_line(stated[key])} is not supported, only {one_line(only)} is")
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
