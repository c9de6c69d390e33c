"""Mistakes in the pieces that newer models have instead of BERT's: rotation, causal masks, RMSNorm, the gate."""

import torch
from torch import Tensor, nn

from minisbert.architectures import modern, qwen3
from minisbert.core import bert
from minisbert.diagnosis.mistakes.planting import mistake

# the right ones, from before anything is planted
_rotary, _attention = modern.rotary, bert.attention

# ------------------------------------------------------------------------------------------ rotation


@mistake(modern, "rotate", "rotation interleaved", "column 2i is paired with 2i + 1, not i with i + K/2")
def _(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x[..., 0::2], x[..., 1::2]
    half = cos.shape[-1] // 2
    cos, sin = cos[..., :half], sin[..., :half]
    return torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)


@mistake(modern, "rotate", "rotated backwards", "each pair is turned by minus its angle")
def _(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([second, -first], dim=-1) * sin


@mistake(modern, "rotate", "sign of the second half forgotten", "the halves are swapped, and none is negated")
def _(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([second, first], dim=-1) * sin


@mistake(modern, "rotate", "every column turned by its neighbour", "roll by one column takes the place of the halves")
def _(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos - x.roll(-1, dims=-1) * sin


@mistake(modern, "rotary", "rotary base 10,000", "the angles have the base of RoFormer, not the model's own")
def _(positions: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return _rotary(positions, width, 10_000.0, dtype)


# -------------------------------------------------------------------------------------- causal masks


@mistake(qwen3.Decoder, "views", "causal mask forgotten", "tokens of a decoder see what comes after them")
def _(self: qwen3.Decoder, mask: Tensor | None, positions: Tensor, dtype: torch.dtype) -> list[tuple]:
    rotation = modern.rotary(positions, self.config.head_dim, self.config.rope_theta, dtype)
    if mask is None:
        mask = torch.ones_like(positions).bool()[:, None, None]
    return [(mask, rotation)] * len(self.layers)


@mistake(bert, "attention", "causal mask left in", "tokens of an encoder see only what comes before them")
def _(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor | None]:
    return _attention(query, key, value, qwen3.causal_mask(mask, query.shape[2], query.device), dropout)


# ------------------------------------------------------------------------------------------- RMSNorm


@mistake(qwen3, "rms_norm", "RMSNorm with a mean", "the mean is subtracted first: that is LayerNorm")
def _(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return nn.functional.layer_norm(x, weight.shape, weight, None, eps)


@mistake(qwen3, "rms_norm", "RMSNorm's eps outside the root", "eps is added to the root, not to the mean square")
def _(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True).sqrt() + eps) * weight


@mistake(qwen3, "rms_norm", "sum of squares", "the vector is divided by its length, not by the root of the mean square")
def _(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + eps) * weight


@mistake(qwen3, "rms_norm", "RMSNorm's weight plus one", "1 is added to the weight, as Gemma's files want it")
def _(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (1 + weight)


@mistake(qwen3, "rms_norm", "RMSNorm without its weight", "the vector is scaled, and the learned weight left out")
def _(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


# ------------------------------------------------------------------------------------------ the gate


@mistake(qwen3, "swiglu", "gate and up swapped", "the bend is on what passes, not on what decides")
def _(gate: Tensor, up: Tensor) -> Tensor:
    return gate * nn.functional.silu(up)


@mistake(qwen3, "swiglu", "GELU in the gate", "the gate's bend is GELU: that is GeGLU")
def _(gate: Tensor, up: Tensor) -> Tensor:
    return nn.functional.gelu(gate) * up


@mistake(qwen3, "swiglu", "sigmoid alone in the gate", "the gate's sigmoid is not multiplied by the gate: that is GLU")
def _(gate: Tensor, up: Tensor) -> Tensor:
    return torch.sigmoid(gate) * up


@mistake(qwen3, "swiglu", "gate and up added", "the two ways are added, where they should be multiplied")
def _(gate: Tensor, up: Tensor) -> Tensor:
    return nn.functional.silu(gate) + up
