"""Losses that the package does not train with: weighted squares, masked words as one number,
NT-Xent.
"""

import math

import torch
from torch import Tensor

from minisbert.core.checks import check_number, check_shape
from minisbert.core.encoder import cosine_matrix
from minisbert.core.losses import check_candidates, softmax_cross_entropy_loss
from minisbert.training.losses import check_probabilities, mlm_losses


def weighted_mse_loss(
    scores: Tensor, target: Tensor, threshold: float = 0.2, weight: float = 2.0
) -> Tensor:
    """Mean of w * (score - target)^2, w = ``weight`` if target < threshold, else 1; divided by B,
    not by sum w.

    Unrelated pairs are rare in STS-B, so those below 1 of 5 count twice. Both (B,) on the 0 to 1
    scale. The STS-B notebook writes ``target < 1`` on that scale, which is ``threshold=1.0``, and
    never calls it. ``scores = [0.5, 0.5], target = [0.1, 0.9]`` gives (2 * 0.16 + 0.16) / 2 = 0.24.
    """
    check_shape("scores", scores, None)
    check_probabilities("target", target, len(scores))
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold must be in 0..1, not {threshold}")
    check_number("weight", weight, 0, math.inf, above=True)
    weights = torch.ones_like(scores).masked_fill(target < threshold, weight)  # (B,)
    return (weights * (scores - target).pow(2)).mean()


def mlm_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Average ``mlm_losses``: BERT's loss, besides the next sentence's."""
    return mlm_losses(logits, targets).mean()


def nt_xent_loss(u: Tensor, v: Tensor, temperature: float = 0.05) -> Tensor:
    """SimCLR, eq. 1: each of the 2B rows of u and v picks its other view among the other 2B - 1
    rows.

    u and v (B, D). Unlike in ``simcse_loss``, the rows of u are negatives for each other too.
    Published notes on SimCSE give this as its loss; the paper's eq. 4 is ``simcse_loss``. ``u = v =
    [[1, 0], [0, 1]]`` at temperature 1 gives log(e + 2) - 1 = 0.55144.
    """
    check_candidates(u, v)
    check_number("temperature", temperature, 0, math.inf, above=True)
    z = torch.cat([u, v])  # (2 B, D)
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    logits = (cosine_matrix(z, z) / temperature).masked_fill(itself, -torch.inf)  # (2 B, 2 B)
    # the other view of row i is row i + B of the first half, and i - B of the second
    other_view = torch.arange(len(z), device=z.device).roll(len(u))
    return softmax_cross_entropy_loss(logits, other_view)
