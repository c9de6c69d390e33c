"""The forward pass of any encoder over rows that hold several texts each.

A text's own tokens are the only ones that it may see, and its positions start at 0 wherever it is
in its row. The other encoders take such a mask and such positions as arguments. The book's ``Bert``
takes one text a row, so its embeddings and layers are called one by one here. Imports ``core`` and
the encoders beside this file.
"""

from typing import Any

import torch
from torch import Tensor

from minisbert.architectures.modern import Encoder, ModernEncoder, attention_mask
from minisbert.architectures.offset_encoder import OffsetEncoder
from minisbert.core.bert import Bert, Embeddings


def packed_states(
    encoder: Encoder, ids: Tensor, mask: Tensor | None, positions: Tensor | None
) -> Tensor:
    """Compute the hidden states of rows that several texts may share: ids (R, T) -> (R, T, D).

    ``positions`` (R, T) start again with each text; None for one text a row. ``mask`` is (R, T),
    True for real tokens, or (R, 1, T, T), True where query and key belong to the same text.
    """
    if isinstance(encoder, ModernEncoder):
        return encoder(ids, mask, positions=positions)
    if positions is None:
        return encoder(ids, mask)
    return states_by_view(encoder, ids, positions, attention_mask(mask))


def states_by_view(
    encoder: Bert | OffsetEncoder, ids: Tensor, positions: Tensor, view: Any
) -> Tensor:
    """Compute the hidden states (R, T, D) of BERT or a relative with one ``view`` for all layers.

    The view is what the attention reads besides x. ``packed_states`` gives BERT a mask. A backend
    that has put its own attention into the layers, BERT's or a relative's, gives them the places of
    the texts in their row.
    """
    if isinstance(encoder, Bert):
        x = embed(encoder.embeddings, ids, positions)
    else:
        x = encoder.embeddings(ids, None, positions)  # (R, T, D)
    for layer in encoder.layers:
        x, _ = layer(x, view)
    return x


def embed(embeddings: Embeddings, ids: Tensor, positions: Tensor) -> Tensor:
    """Compute the book's ``Embeddings.forward`` at these positions.

    ids (R, T), positions (R, T) -> (R, T, D).
    """
    x = embeddings.word(ids) + embeddings.position(positions)  # (R, T, D)
    x = x + embeddings.token_type(torch.zeros_like(ids))
    return embeddings.dropout(embeddings.norm(x))
