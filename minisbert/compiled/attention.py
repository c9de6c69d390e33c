"""Attention in a compiled graph: two ways to compute it, and which one is faster for the rows of a batch.

torch's fused operation never holds the scores of all pairs of tokens, and wins in long rows. In short ones two products
and a softmax in bfloat16 are faster: docs/speed.md has the measurements. The choice depends on a text's own row and not
on how many there are: the two differ by bfloat16's rounding, and a text should have one vector.
"""

import torch
from torch import Tensor, nn

from minisbert.compiled.int8 import stored
from minisbert.core.bert import Attention, Bert
from minisbert.models.batching import SHORT


def written_out(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, bias: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(K) + bias) v by products of bfloat16, the softmax in float32.

    query, key and value (R, H, T, K), ``bias`` (R, 1, 1 or T, T): 0, or minus infinity where ``mask`` is False.
    """
    rows, heads, tokens, width = query.shape
    q, k, v = (x.bfloat16().reshape(-1, tokens, width) for x in (query, key, value))  # (R H, T, K)
    scores = torch.bmm(q, k.transpose(1, 2)).view(rows, heads, tokens, tokens)
    scores = scores.float() * width**-0.5 + bias.float()  # not in the product: one loop with the softmax
    probabilities = scores.softmax(dim=-1).bfloat16().view(-1, tokens, tokens)  # (R H, T, T)
    return torch.bmm(probabilities, v).view(rows, heads, tokens, width).to(query.dtype)


def fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, bias: Tensor) -> Tensor:
    """The same by torch's operation, with the layout of ``written_out``."""
    return nn.functional.scaled_dot_product_attention(query, key, value, mask).contiguous()


class RowAttention(nn.Module):
    """``bert.Attention`` that chooses, when the graph runs, between ``written_out`` and ``fused``."""

    def __init__(self, attention: Attention):
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, None]:
        """x (R, T, D), mask (R, 1, 1 or T, T) boolean -> (R, T, D), and no probabilities."""
        own = self.attention
        query, key, value = own.split(own.query(x)), own.split(own.key(x)), own.split(own.value(x))
        bias = stored(torch.zeros_like(mask, dtype=torch.bfloat16).masked_fill(~mask, float("-inf")))
        tokens = torch.scalar_tensor(x.shape[1], dtype=torch.int64)
        context = torch.cond(tokens <= SHORT, written_out, fused, (query, key, value, mask, bias))
        return own.output(own.merge(context)), None


def attend_by_length(bert: Bert) -> None:
    """Replace the attention of an encoder's layers in place; that of newer architectures stays as it is."""
    for layer in bert.layers:
        if type(getattr(layer, "attention", None)) is Attention:
            layer.attention = RowAttention(layer.attention)
