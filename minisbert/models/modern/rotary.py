"""Rotary positions: queries and keys are rotated by their places, so that their product knows the distance alone.

Su et al. 2021 (RoFormer, arXiv 2104.09864). A vector of K columns is K / 2 points of a plane, and each plane turns at
a rate of its own: the first by one radian a token, the last by about one radian in ``base`` tokens.
"""

import torch
from torch import Tensor


def rotary_rates(width: int, base: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Radians a token, (K / 2,), for K = ``width``: base^(-2 i / K). ``rotary_rates(4, 100.0) = [1, 0.1]``."""
    # subtle: base ** -x rounds otherwise in float32, by up to 0.002 radians at token 32,768
    return 1.0 / base ** (torch.arange(0, width, 2, dtype=dtype) / width)


def rotation(positions: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The cosines and sines of all angles: positions (B, T) -> twice (B, 1, T, K / 2), for every head the same.

    The angles are computed in float32 at least: in bfloat16 the places 256 and 257 are one number.
    """
    wide = torch.promote_types(dtype, torch.float32)
    angles = positions.to(wide)[:, None, :, None] * rotary_rates(width, base, wide).to(positions.device)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys x (B, H, T, K), and the cosines and sines of ``rotation`` -> (B, H, T, K).

    The point (x1, x2) goes to (x1 cos - x2 sin, x2 cos + x1 sin): ``rotate([3, 4], 0, 1) = [-4, 3]``.
    """
    # subtle: column i belongs to column i + K / 2, not to its neighbour as in the paper
    first, second = x.chunk(2, dim=-1)  # (B, H, T, K / 2) each
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
