"""The forward pass of any encoder over rows that hold several texts each."""

from typing import Any

from torch import Tensor


def packed_states(
    encoder: Any, ids: Tensor, mask: Tensor | None, positions: Tensor | None
) -> Tensor:
    """Compute the hidden states of rows that several texts may share: ids (R, T) -> (R, T, D).

    ``positions`` (R, T) start again with each text; None for one text a row. ``mask`` is (R, T),
    True for real tokens, or (R, 1, T, T), True where query and key belong to the same text.
    """
    return encoder(ids, mask, None, None, positions)
