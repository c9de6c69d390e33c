"""Mistakes in the pieces that newer models have instead of BERT's: rotation, causal masks, RMSNorm, the gate."""

from typing import cast

import torch
from torch import Tensor, nn

from minisbert.architectures import modern, qwen3
from minisbert.core import bert
from minisbert.diagnosis.mistakes.planting import mistake, wrong_choices

# the right ones, from before anything is planted
_rotary, _attention = modern.rotary, bert.attention

# ------------------------------------------------------------------------------------------ rotation


def rotate_with(x, cos, sin, *, pairs="halves", signs=(-1, 1)):
    """``pairs`` are the columns that turn together, ``signs`` those of the halves that the sine gets."""
    if pairs == "adjacent":
        first, second = x[..., 0::2], x[..., 1::2]
        half = cos.shape[-1] // 2
        cos, sin = cos[..., :half], sin[..., :half]
        return torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)
    if pairs == "next":
        return x * cos - x.roll(-1, dims=-1) * sin
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([signs[0] * second, signs[1] * first], dim=-1) * sin


wrong_choices(
    modern,
    "rotate",
    rotate_with,
    ("rotation interleaved", "column 2i is paired with 2i + 1, not i with i + K/2", {"pairs": "adjacent"}),
    ("rotated backwards", "each pair is turned by minus its angle", {"signs": (1, -1)}),
    ("sign of the second half forgotten", "the halves are swapped, and none is negated", {"signs": (1, 1)}),
    ("every column turned by its neighbour", "roll by one column takes the place of the halves", {"pairs": "next"}),
)


@mistake(modern, "rotary", "rotary base 10,000", "the angles have the base of RoFormer, not the model's own")
def _(positions: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return _rotary(positions, width, 10_000.0, dtype)


# -------------------------------------------------------------------------------------- causal masks


@mistake(qwen3.Decoder, "view", "causal mask forgotten", "tokens of a decoder see what comes after them")
def _(self: qwen3.Decoder, mask: Tensor | None, positions: Tensor, dtype: torch.dtype) -> list[tuple]:
    config = cast(qwen3.DecoderConfig, self.config)
    rotation = modern.rotary(positions, config.head_dim, config.rope_theta, dtype)
    if mask is None:
        mask = torch.ones_like(positions).bool()[:, None, None]
    return [(mask, rotation)] * len(self.layers)


@mistake(bert, "attention", "causal mask left in", "tokens of an encoder see only what comes before them")
def _(query, key, value, mask=None, dropout=0.0):
    return _attention(query, key, value, qwen3.causal_mask(mask, query.shape[2], query.device), dropout)


# ------------------------------------------------------------------------------------------- RMSNorm


def rms_norm_with(x, weight, eps, *, centred=False, rooted=True, summed=False, plus=0, power=1):
    """``plus`` is added to the weight, whose ``power`` is 0 to leave it out."""
    if centred:
        return nn.functional.layer_norm(x, weight.shape, weight, None, eps)
    square = x.pow(2).sum(-1, keepdim=True) if summed else x.pow(2).mean(-1, keepdim=True)
    scale = (square + eps).sqrt() if rooted else square.sqrt() + eps
    return x / scale * (plus + weight) ** power


wrong_choices(
    qwen3,
    "rms_norm",
    rms_norm_with,
    ("RMSNorm with a mean", "the mean is subtracted first: that is LayerNorm", {"centred": True}),
    ("RMSNorm's eps outside the root", "eps is added to the root, not to the mean square", {"rooted": False}),
    ("sum of squares", "the vector is divided by its length, not by the root of the mean square", {"summed": True}),
    ("RMSNorm's weight plus one", "1 is added to the weight, as Gemma's files want it", {"plus": 1}),
    ("RMSNorm without its weight", "the vector is scaled, and the learned weight left out", {"power": 0}),
)


# ------------------------------------------------------------------------------------------ the gate


def swiglu_with(gate, up, *, bend=nn.functional.silu, swapped=False, added=False):
    if swapped:
        gate, up = up, gate
    return bend(gate) + up if added else bend(gate) * up


wrong_choices(
    qwen3,
    "swiglu",
    swiglu_with,
    ("gate and up swapped", "the bend is on what passes, not on what decides", {"swapped": True}),
    ("GELU in the gate", "the gate's bend is GELU: that is GeGLU", {"bend": nn.functional.gelu}),
    ("sigmoid alone in the gate", "the sigmoid is not multiplied by the gate: that is GLU", {"bend": torch.sigmoid}),
    ("gate and up added", "the two ways are added, where they should be multiplied", {"added": True}),
)
