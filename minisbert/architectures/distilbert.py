"""DistilBERT (Sanh et al. 2019): half of BERT's layers, taught by all of them.

No token types and no pooler, nothing is dropped between attention and the sum, and its files call
everything something else.
"""

from typing import Any

from torch import Tensor

from minisbert.architectures.families import ENCODER_ONLY, Family, weights_and_biases
from minisbert.architectures.offset_encoder import OffsetConfig, OffsetEncoder
from minisbert.core.bert import Layer


class DistilBertLayer(Layer):
    """The book's layer without dropout on attention's output."""

    def forward(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x (B, T, D), mask as in ``attention`` -> (B, T, D) and attention's probabilities."""
        attended, probabilities = self.attention(x, mask)  # (B, T, D), (B, H, T, T)
        x = self.attention_norm(x + attended)  # subtle: BERT drops here, its student does not
        x = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))  # (B, T, D)
        return x, probabilities


class DistilBert(OffsetEncoder):
    """The encoder of DistilBERT."""

    def __init__(self, config: OffsetConfig, pooler: bool = False):
        layers = [DistilBertLayer(config) for _ in range(config.num_hidden_layers)]
        super().__init__(config, pooler, layers)


class DistilBertFamily(Family):
    """DistilBERT's names and settings."""

    def fields(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Return the settings; three sizes may also have BERT's names.

        If a file has both, BERT's name counts, as in transformers.
        """
        content = super().fields(raw)
        for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
            if key in raw:
                content[key] = raw[key]
        return content


DISTILBERT = DistilBertFamily(
    model_type="distilbert",
    architecture="DistilBertModel",
    config=OffsetConfig,
    encoder=DistilBert,
    tables={
        "embeddings.word": "embeddings.word_embeddings",
        "embeddings.position": "embeddings.position_embeddings",
    },
    modules={
        "embeddings.norm": "embeddings.LayerNorm",
        "layers.{i}.attention.query": "transformer.layer.{i}.attention.q_lin",
        "layers.{i}.attention.key": "transformer.layer.{i}.attention.k_lin",
        "layers.{i}.attention.value": "transformer.layer.{i}.attention.v_lin",
        "layers.{i}.attention.output": "transformer.layer.{i}.attention.out_lin",
        "layers.{i}.attention_norm": "transformer.layer.{i}.sa_layer_norm",
        "layers.{i}.feed_forward.up": "transformer.layer.{i}.ffn.lin1",
        "layers.{i}.feed_forward.down": "transformer.layer.{i}.ffn.lin2",
        "layers.{i}.feed_forward_norm": "transformer.layer.{i}.output_layer_norm",
    },
    prefix="distilbert.",
    skipped=frozenset(
        {"embeddings.position_ids"}
        | weights_and_biases("vocab_transform", "vocab_layer_norm", "vocab_projector")
    ),
    settings={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "hidden_act": "activation",
    },
    # the book's settings that DistilBERT's code fixes
    constants={
        "type_vocab_size": 0,
        "position_offset": 0,
        "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute",
    },
    accepted=ENCODER_ONLY,
)
