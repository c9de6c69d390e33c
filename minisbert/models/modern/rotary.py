"""Positions by rotation, in place of a table (RoFormer, Su et al. 2021, arXiv 2104.09864): of Qwen3 and ModernBERT.

Two columns of a query or key are one point of a plane, which is turned by an angle that grows with its token's place in
the text. A score then depends on how far apart two tokens are, and not on where they are.
"""

import torch
from torch import Tensor


def rotary(positions: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position's angles: positions (B, T) -> twice (B, 1, T, K), for all heads alike.

    Pair i of K/2 turns by ``base ** (-2i / K)`` a token, the first pair by 1 radian (section 3.4.3 of the paper, whose
    base is 10,000). ``rotary([[2]], 4, 10000, float64)``: angles 2, .02, 2, .02.
    """
    # subtle: at position 8,000 bfloat16 is off by whole turns, so the angles never are in it
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    # subtle: base ** -x rounds otherwise in float32, by up to .002 radians at position 32,768
    rates = 1.0 / base ** (torch.arange(0, width, 2, device=positions.device).to(kind) / width)  # (K/2,)
    angles = (positions.to(kind)[..., None] * rates)[:, None]  # (B, 1, T, K/2)
    angles = torch.cat([angles, angles], dim=-1)  # (B, 1, T, K)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Every pair of columns turned by its angle: x (B, H, T, K), cos and sin (B, 1, T, K) -> (B, H, T, K).

    A quarter turn takes (3, 4) to (-4, 3).
    """
    # subtle: column i is paired with column i + K/2, not with i + 1 as in the paper; weights are made for one of them
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
