"""Attention in a compiled graph: three ways to compute it, and which one is fastest for the rows of a batch.

torch's fused operation never holds the scores of all pairs of tokens, and wins in long rows. In short ones two products
and a softmax in bfloat16 are faster, and in the shortest the same in loops, without calls to a library: docs/speed.md
has the measurements. The choice depends on a text's own row and not on how many there are: fused and written out differ
by bfloat16's rounding, and a text should have one vector.
"""

import torch
from torch import Tensor, nn

from minisbert.compiled.int8 import stored
from minisbert.core.bert import Attention, Bert
from minisbert.models.batching import SHORT

FEW = 24  # tokens: loops are faster for rows of up to this length, if there are few of them


def written_out(parts: Tensor, mask: Tensor, bias: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(K) + bias) v by products of bfloat16, the softmax in float32.

    parts (R, T, 3, H, K): query, key and value; ``bias`` (R, 1, 1 or T, T): 0, or minus infinity where ``mask`` is
    False.
    """
    rows, tokens, _, heads, width = parts.shape
    q, k, v = (x.transpose(1, 2).bfloat16().reshape(-1, tokens, width) for x in parts.unbind(2))  # (R H, T, K)
    scores = torch.bmm(q, k.transpose(1, 2)).view(rows, heads, tokens, tokens)
    scores = scores.float() * width**-0.5 + bias.float()  # not in the product: one loop with the softmax
    probabilities = scores.softmax(dim=-1).bfloat16().view(-1, tokens, tokens)  # (R H, T, T)
    return torch.bmm(probabilities, v).view(rows, heads, tokens, width).to(parts.dtype)


def looped(parts: Tensor, mask: Tensor, bias: Tensor) -> Tensor:
    """The same, rounded alike, without products of matrices: the compiler makes loops of it."""
    q, k, v = (x.transpose(1, 2).bfloat16().float() for x in parts.unbind(2))  # (R, H, T, K)
    scores = (q.unsqueeze(3) * k.unsqueeze(2)).sum(dim=-1).bfloat16()  # (R, H, T, T)
    scores = scores.float() * parts.shape[-1] ** -0.5 + bias.float()
    probabilities = scores.softmax(dim=-1).bfloat16().float()
    return (probabilities.unsqueeze(4) * v.unsqueeze(2)).sum(dim=3).bfloat16().to(parts.dtype)


def short(parts: Tensor, mask: Tensor, bias: Tensor) -> Tensor:
    """``looped`` or ``written_out``."""
    tokens = torch.scalar_tensor(parts.shape[1], dtype=torch.int64)
    return torch.cond(tokens <= FEW, looped, written_out, (parts, mask, bias))


def fused(parts: Tensor, mask: Tensor, bias: Tensor) -> Tensor:
    """The same by torch's operation."""
    q, k, v = (x.transpose(1, 2) for x in parts.unbind(2))
    return nn.functional.scaled_dot_product_attention(q, k, v, mask).contiguous()


class RowAttention(nn.Module):
    """``bert.Attention`` that chooses, when the graph runs, between ``short`` and ``fused``."""

    def __init__(self, attention: Attention):
        super().__init__()
        together = [attention.query, attention.key, attention.value]
        self.heads, self.output, self.merge = attention.heads, attention.output, attention.merge
        self.parts = nn.Linear(together[0].in_features, sum(linear.out_features for linear in together))
        self.parts.weight = nn.Parameter(torch.cat([linear.weight.detach() for linear in together]))  # (3 D, D)
        self.parts.bias = nn.Parameter(torch.cat([linear.bias.detach() for linear in together]))

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, None]:
        """x (R, T, D), mask (R, 1, 1 or T, T) boolean -> (R, T, D), and no probabilities."""
        parts = self.parts(x).unflatten(-1, (3, self.heads, -1))  # (R, T, 3, H, K)
        bias = stored(torch.zeros_like(mask, dtype=torch.bfloat16).masked_fill(~mask, float("-inf")))
        tokens = torch.scalar_tensor(x.shape[1], dtype=torch.int64)
        context = torch.cond(tokens <= SHORT, short, fused, (parts, mask, bias))  # (R, H, T, K)
        return self.output(self.merge(context)), None


def attend_by_length(bert: Bert) -> bool:
    """Replace the attention of an encoder's layers in place; False for newer architectures, which keep their own."""
    for layer in bert.layers:
        if type(getattr(layer, "attention", None)) is not Attention:
            return False
        layer.attention = RowAttention(layer.attention)
    return True
