"""Where two models part: the tool of lesson 07, for hidden states alone."""

from collections.abc import Mapping

import torch
from torch import Tensor


def first_divergence(
    ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], mask: Tensor, tolerance: float
) -> str:
    """The name of the first tensor of ours that differs from theirs; empty if none does.

    The tensors are (B, T, D), in the order in which they were computed; mask (B, T) is True for
    real tokens, and pads may hold anything. A name that theirs lacks is passed over. A NaN on one
    side differs from everything. With ``tolerance=0.1`` states of 1 and 1.05 are equal, 1 and 1.5
    are not.
    """
    for name, state in ours.items():
        if name not in theirs:
            continue
        difference = (state - theirs[name]).abs()[mask]  # (real tokens, D)
        # subtle: NaN > tolerance is False, and so is NaN <= tolerance
        if not torch.all(difference <= tolerance):
            return name
    return ""
