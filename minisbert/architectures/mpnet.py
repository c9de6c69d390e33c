"""MPNet (Song et al. 2020): BERT whose attention also knows how far apart two tokens are.

To each score of each head is added a learned number for the distance between query and key.
Distances share 32 buckets, T5's (Raffel et al. 2020), and all layers share one table (32, H). The
rest is the book's: learned absolute positions that start after the padding index as in RoBERTa, no
token types, post-LayerNorm, GELU. Legend as in ``core/bert.py``: B batch, T tokens, D width, H
heads, K width of one head.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minisbert.architectures.modern import Architecture, ModernEncoder
from minisbert.core.bert import Attention, Embeddings, Layer, fused_by
from minisbert.core.weights import BertConfig, dense

BUCKETS = 32  # half of them for keys before the query, half for keys after it
# the distance at which each bucket of a half begins: 0 to 7, then 8 * 16^(k/8): 8 12 16 23 32 46 64
# 91
STARTS = [*range(8), *(math.ceil(8 * 16 ** (k / 8)) for k in range(8))]


def relative_buckets(distances: Tensor) -> Tensor:
    """Map each distance, key's position minus query's, to its bucket: any shape of integers in, the
    same shape out.

    ``relative_buckets([0, -1, -7, -8, -11, -12, -200]) = [0, 1, 7, 8, 8, 9, 15]``, and for keys
    after the query ``relative_buckets([1, 7, 8, 200]) = [17, 23, 24, 31]``. T5 takes logarithms,
    which gives the same integers as these limits; in whole numbers a distance of 16 cannot end up
    one bucket too low.
    """
    starts = torch.tensor(STARTS, device=distances.device)
    # subtle: from 91 on all distances are alike: T5's 128 is where a bucket 16 would begin
    bucket = torch.bucketize(distances.abs(), starts, right=True) - 1
    return bucket + (distances > 0) * (BUCKETS // 2)


def fused_biased_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, dropout: float = 0.0
) -> tuple[Tensor, Tensor | None]:
    if dropout:
        return biased_attention.__wrapped__(query, key, value, bias, dropout)  # type: ignore[attr-defined]
    return nn.functional.scaled_dot_product_attention(query, key, value, bias), None


@fused_by(fused_biased_attention)
def biased_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, dropout: float = 0.0
) -> tuple[Tensor, Tensor | None]:
    """softmax(q k^T / sqrt(K) + bias) v: the book's ``attention`` with a number added to each
    score.

    query, key, value (B, H, T, K), bias (B or 1, H, T, T), minus infinity for masked keys ->
    context (B, H, T, K) and probabilities (B, H, T, T).
    """
    # subtle: the bias is added after the division by sqrt(K); T5 itself does not divide
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]) + bias  # (B, H, T, T)
    probabilities = scores.softmax(dim=-1)  # (B, H, T, T), each row sums to 1
    weights = nn.functional.dropout(probabilities, dropout) if dropout else probabilities
    return weights @ value, probabilities  # (B, H, T, K), (B, H, T, T)


@dataclass(frozen=True)
class MPNetConfig(BertConfig):
    """The book's settings with MPNet's constants."""

    type_vocab_size: int = 0
    position_offset: int = 2  # after the padding index
    pad_token_id: int = 1
    relative_attention_num_buckets: int = BUCKETS
    model_type: str = "mpnet"


class BiasedAttention(Attention):
    def forward(self, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        """x (B, T, D), bias as in ``biased_attention`` -> (B, T, D) and the probabilities (B, H, T,
        T).
        """
        query, key, value = (
            self.split(self.query(x)),
            self.split(self.key(x)),
            self.split(self.value(x)),
        )
        context, probabilities = biased_attention(
            query, key, value, bias, self.dropout if self.training else 0.0
        )
        return self.output(self.merge(context)), probabilities  # (B, T, D), (B, H, T, T)


class MPNetLayer(Layer):
    """The book's layer with biases in its attention, which it gets instead of a mask."""

    def __init__(self, config: MPNetConfig):
        super().__init__(config)
        self.attention = BiasedAttention(
            config.hidden_size, config.num_attention_heads, config.attention_probs_dropout_prob
        )


class MPNet(ModernEncoder):
    """The book's embeddings, layers and pooler, and one table of biases."""

    def __init__(self, config: MPNetConfig, pooler: bool = True):
        layers = [MPNetLayer(config) for _ in range(config.num_hidden_layers)]
        super().__init__(config, layers, embeddings=Embeddings(config))
        self.relative = nn.Embedding(BUCKETS, config.num_attention_heads)
        if pooler:
            self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.initialise()  # the two that were just added

    def view(self, mask: Tensor | None, positions: Tensor, dtype: torch.dtype) -> list[tuple]:
        """Compute what each layer adds to its scores, (B, H, T, T): a bias, and minus infinity for
        masked keys.
        """
        distances = (
            positions[:, None, :] - positions[:, :, None]
        )  # (B, T, T): key's position minus query's
        bias = self.relative(relative_buckets(distances)).permute(
            0, 3, 1, 2
        )  # (B, T, T, H) -> (B, H, T, T)
        # every layer reads it, and attention is slow where the last axis has gaps
        bias = bias.contiguous()
        if mask is not None:
            bias = bias.masked_fill(~mask, float("-inf"))
        return [(bias,)] * len(self.layers)


LM_HEAD = (
    "lm_head.dense",
    "lm_head.layer_norm",
    "lm_head.decoder",
)  # for masked words, RoBERTa's too
SKIPPED = frozenset({"embeddings.position_ids", "lm_head.bias"}.union(*map(dense, LM_HEAD)))
MPNET = Architecture(
    model_type="mpnet",
    architecture="MPNetModel",
    config=MPNetConfig,
    encoder=MPNet,
    linears={
        "embeddings.word": "embeddings.word_embeddings",
        "embeddings.position": "embeddings.position_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
        "relative": "encoder.relative_attention_bias",
        "layers.{i}.attention.query": "encoder.layer.{i}.attention.attn.q",
        "layers.{i}.attention.key": "encoder.layer.{i}.attention.attn.k",
        "layers.{i}.attention.value": "encoder.layer.{i}.attention.attn.v",
        "layers.{i}.attention.output": "encoder.layer.{i}.attention.attn.o",
        "layers.{i}.attention_norm": "encoder.layer.{i}.attention.LayerNorm",
        "layers.{i}.feed_forward.up": "encoder.layer.{i}.intermediate.dense",
        "layers.{i}.feed_forward.down": "encoder.layer.{i}.output.dense",
        "layers.{i}.feed_forward_norm": "encoder.layer.{i}.output.LayerNorm",
    },
    pooler={"pooler": "pooler.dense"},
    prefix="mpnet.",
    skipped=SKIPPED,
    constants={"type_vocab_size": 0, "position_offset": 2, "position_embedding_type": "absolute"},
    only={
        "pad_token_id": 1,
        "relative_attention_num_buckets": BUCKETS,
    },  # transformers computes these in any case
)
