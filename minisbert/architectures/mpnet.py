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

from minisbert.architectures.families import ROBERTA_SKIPPED, Family
from minisbert.architectures.modern import AttentionHeads
from minisbert.architectures.offset_encoder import OffsetConfig, OffsetEncoder
from minisbert.core import bert
from minisbert.core.bert import FeedForward, LayerNorm

BUCKETS = 32  # half of them for keys before the query, half for keys after it
# The distance at which each bucket of a half begins: 0 to 7, then 8 * 16^(k/8), rounded up
STARTS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]


def relative_buckets(distances: Tensor) -> Tensor:
    """Map each distance, key's position minus query's, to its bucket.

    Any shape of integers in, the same shape out.
    ``relative_buckets([0, -1, -7, -8, -11, -12, -200]) = [0, 1, 7, 8, 8, 9, 15]``, and for keys
    after the query ``relative_buckets([1, 7, 8, 200]) = [17, 23, 24, 31]``. T5 takes logarithms,
    which gives the same integers as these limits; in whole numbers a distance of 16 cannot end up
    one bucket too low.
    """
    starts = torch.tensor(STARTS, device=distances.device)
    # subtle: all distances from 91 on are in the last bucket; T5's "maximum distance" of 128 is
    # where the next one would begin
    bucket = torch.bucketize(distances.abs(), starts, right=True) - 1
    return bucket + (distances > 0) * (BUCKETS // 2)


def biased_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """softmax(q k^T / sqrt(K) + bias) v: the book's ``attention``, its scores plus a bias.

    query, key, value (B, H, T, K), bias (B or 1, H, T, T), minus infinity for masked keys ->
    context (B, H, T, K) and probabilities (B, H, T, T).
    """
    # subtle: the bias is added after the division by sqrt(K); T5 itself does not divide
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]) + bias  # (B, H, T, T)
    probabilities = scores.softmax(dim=-1)  # (B, H, T, T), each row sums to 1

    weights = probabilities
    if dropout:
        weights = nn.functional.dropout(probabilities, dropout)
    return weights @ value, probabilities  # (B, H, T, K), (B, H, T, T)


@dataclass(frozen=True)
class MPNetConfig(OffsetConfig):
    """The book's settings with MPNet's constants."""

    type_vocab_size: int = 0
    position_offset: int = 2  # after the padding index
    pad_token_id: int = 1
    relative_attention_num_buckets: int = BUCKETS
    model_type: str = "mpnet"


class BiasedAttention(AttentionHeads):
    """The book's attention with a bias for each score in place of a mask."""

    def __init__(self, config: MPNetConfig):
        width = config.hidden_size
        super().__init__(width // config.num_attention_heads, config.attention_probs_dropout_prob)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor | None]:
        """x (B, T, D), bias as in ``biased_attention`` -> (B, T, D), probabilities (B, H, T, T)."""
        query = self.split(self.query(x))  # (B, H, T, K)
        key = self.split(self.key(x))
        value = self.split(self.value(x))

        dropout = self.dropout if self.training else 0.0
        probabilities = None
        if bert.FUSED and not dropout:
            context = nn.functional.scaled_dot_product_attention(query, key, value, bias)
        else:
            context, probabilities = biased_attention(query, key, value, bias, dropout)
        return self.output(self.merge(context)), probabilities  # (B, T, D), (B, H, T, T)


class MPNetLayer(nn.Module):
    """The book's layer with biases in its attention."""

    def __init__(self, config: MPNetConfig):
        super().__init__()
        self.attention = BiasedAttention(config)
        self.attention_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor | None]:
        """x (B, T, D), bias as in ``biased_attention`` -> (B, T, D) and the probabilities."""
        attended, probabilities = self.attention(x, bias)  # (B, T, D), (B, H, T, T)
        x = self.attention_norm(x + self.dropout(attended))  # (B, T, D)
        x = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))  # (B, T, D)
        return x, probabilities


class MPNet(OffsetEncoder):
    """RoBERTa's embeddings, MPNet's layers, the book's pooler, and one table of biases."""

    def __init__(self, config: MPNetConfig, pooler: bool = True):
        layers = [MPNetLayer(config) for _ in range(config.num_hidden_layers)]
        # The pooler comes after the table of biases among the parameters, so the parent does not
        # make it.
        super().__init__(config, pooler=False, layers=layers)
        self.relative = nn.Embedding(BUCKETS, config.num_attention_heads)
        if pooler:
            self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.initialise()  # once more, because the parent's call came before these two

    def view(self, mask: Tensor | None, positions: Tensor, dtype: torch.dtype) -> list[Tensor]:
        """Compute what each layer adds to its scores (B, H, T, T).

        It is the bias of the distance, and minus infinity for masked keys.
        """
        # [b, i, j] is the position of key j minus that of query i.
        distances = positions[:, None, :] - positions[:, :, None]  # (B, T, T)
        bias = self.relative(relative_buckets(distances))  # (B, T, T, H)
        # One copy here is worth it: all layers read the bias, and attention is slow if the numbers
        # of its last axis are not side by side.
        bias = bias.permute(0, 3, 1, 2).contiguous()  # (B, H, T, T)
        if mask is not None:
            bias = bias.masked_fill(~mask, float("-inf"))
        return [bias] * len(self.layers)


MPNET = Family(
    model_type="mpnet",
    architecture="MPNetModel",
    config=MPNetConfig,
    encoder=MPNet,
    tables={
        "embeddings.word": "embeddings.word_embeddings",
        "embeddings.position": "embeddings.position_embeddings",
        "relative": "encoder.relative_attention_bias",
    },
    modules={
        "embeddings.norm": "embeddings.LayerNorm",
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
    skipped=ROBERTA_SKIPPED,
    constants={"type_vocab_size": 0, "position_offset": 2, "position_embedding_type": "absolute"},
    # transformers computes with 1 and 32 whatever the file says.
    accepted={
        "pad_token_id": (None, 1),
        "relative_attention_num_buckets": (None, BUCKETS),
    },
)
