"""Losses: pure functions, tensors in, a scalar out."""

import torch
from torch import Tensor


def cosine_mse_loss(u: Tensor, v: Tensor, target: Tensor) -> Tensor:
    """Mean of (cos(u, v) - target)^2 over the batch (SBERT, section 3: the regression objective).

    u and v (B, D), target (B,) in -1..1 -> scalar. ``u = [1, 0], v = [1, 1], target = 0.5`` gives
    (0.70711 - 0.5)^2 = 0.04289.

    Raises ``ValueError`` for shapes that do not fit and for a target no cosine can reach.
    """
    if u.shape != v.shape or u.ndim != 2 or target.shape != u.shape[:1]:
        raise ValueError(
            f"u and v must be (B, D) and target (B,), not {tuple(u.shape)}, {tuple(v.shape)}, {tuple(target.shape)}"
        )
    if not (target.abs() <= 1).all():  # also true of NaN
        raise ValueError("targets of a cosine must lie in -1..1: divide STS scores of 0 to 5 by 5")
    return (cosine(u, v) - target).pow(2).mean()


def cosine(u: Tensor, v: Tensor) -> Tensor:
    """Cosine of the angle between matching rows: u and v (B, D) -> (B,). ``cosine([1, 0], [1, 1]) = 0.70711``."""
    return (normalize(u) * normalize(v)).sum(dim=-1)  # (B,)


def normalize(x: Tensor, eps: float = 1e-12) -> Tensor:
    """Each vector scaled to length 1: x (..., D) -> (..., D). A zero vector stays zero. ``[3, 4] -> [0.6, 0.8]``."""
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(eps)
