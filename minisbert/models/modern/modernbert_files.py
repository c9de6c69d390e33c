"""ModernBERT's files: what they call the tensors and settings of ``modernbert.py``, in transformers 4 and 5."""

from typing import Any

from minisbert.core import one_line
from minisbert.core.weights import dense
from minisbert.models.modern.architecture import Architecture
from minisbert.models.modern.modernbert import GLOBAL, LOCAL, ModernBert, ModernBertConfig


class ModernBertFamily(Architecture):
    def fields(self, raw: dict[str, Any]) -> dict[str, Any]:
        """The contents of ``config.json``. Newer files name each layer's kind, and have a base of rotation for each."""
        stated = super().fields(raw)
        if raw.get("rope_scaling") is not None or raw.get("quantization_config") is not None:
            raise ValueError("rope_scaling and quantization_config are not supported, only null is")
        every, layers = raw.get("global_attn_every_n_layers", 3), raw.get("num_hidden_layers", 0)
        if not isinstance(every, int) or every < 1 or not isinstance(layers, int):
            raise ValueError(f"global_attn_every_n_layers must be an integer from 1, not {one_line(every)}")
        spaced = [LOCAL if i % every else GLOBAL for i in range(layers)]
        stated["layer_types"] = tuple(map(str, raw.get("layer_types") or spaced))
        bases = raw.get("rope_parameters") or {}
        for kind, key in ((GLOBAL, "global_rope_theta"), (LOCAL, "local_rope_theta")):
            rope = bases.get(kind) or {}
            if rope.get("rope_type", "default") != "default":
                raise ValueError(f"rope_type {one_line(rope['rope_type'])} is not supported, only 'default' is")
            if "rope_theta" in rope:
                stated[key] = rope["rope_theta"]
        return stated

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        """In the older form, which every version reads if the global layers are evenly spaced."""
        found, kinds = super().write(config), config["layer_types"]
        spacing = next((i for i in range(1, len(kinds)) if kinds[i] == GLOBAL), len(kinds))
        return found | {"layer_types": list(kinds), "global_attn_every_n_layers": spacing}


MODERNBERT = ModernBertFamily(
    model_type="modernbert",
    architecture="ModernBertModel",
    config=ModernBertConfig,
    encoder=ModernBert,
    tables={"embeddings.word": "embeddings.tok_embeddings"},
    norms={
        "embeddings.norm": "embeddings.norm",
        "layers.{i}.attention_norm": "layers.{i}.attn_norm",
        "layers.{i}.feed_forward_norm": "layers.{i}.mlp_norm",
        "norm": "final_norm",
    },
    linears={
        "layers.{i}.attention.qkv": "layers.{i}.attn.Wqkv",
        "layers.{i}.attention.output": "layers.{i}.attn.Wo",
        "layers.{i}.feed_forward.up": "layers.{i}.mlp.Wi",
        "layers.{i}.feed_forward.down": "layers.{i}.mlp.Wo",
    },
    pooler={},
    prefix="model.",
    skipped=frozenset(dense("head.dense") | dense("head.norm") | dense("decoder")),  # for masked words
    settings={"hidden_dropout_prob": "embedding_dropout", "attention_probs_dropout_prob": "attention_dropout"},
    constants={"type_vocab_size": 0},
    relative=True,
)
