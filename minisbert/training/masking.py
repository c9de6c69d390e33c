"""Masked words: what BERT is trained on before anything else (Devlin et al. 2019, section 3.1)."""

import torch
from torch import Tensor

from minisbert.core.checks import check

CHOSEN = 0.15  # of the words are to be guessed; of these
MASKED = 0.8 * CHOSEN  # become [MASK],
REPLACED = 0.9 * CHOSEN  # or, from MASKED on, another word; the rest stay as they are


def mask_tokens(ids: Tensor, words: Tensor, mask_id: int, chance: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Hide 15 % of a batch's words -> inputs (B, T), and which tokens are to be guessed, boolean (B, T).

    ids (B, T); words (B, T), True where a token may be chosen: not [CLS], [SEP] or a pad; ``chance`` (B, T), drawn
    evenly from 0..1; ``other`` (B, T), random ids. A word is chosen where chance is below 0.15: below 0.12 it becomes
    [MASK], below 0.135 ``other``, else it stays, because later there is no [MASK] in a text.
    ids [5, 6, 7, 8] with chance [.11, .13, .14, .5] and mask_id 4 give [4, other, 7, 8]; all but the last are chosen.
    """
    check("ids (B, T), words (B, T), chance (B, T), other (B, T)", ids, words, chance, other)
    chosen = words.bool() & (chance < CHOSEN)
    inputs = torch.where(chosen & (chance < REPLACED), other, ids)
    inputs = torch.where(chosen & (chance < MASKED), mask_id, inputs)
    return inputs, chosen


def draw_masks(
    ids: Tensor, words: Tensor, mask_id: int, vocabulary: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """``mask_tokens`` with random draws; other words are any of the ``vocabulary``'s."""
    chance = torch.rand(ids.shape, generator=generator)
    other = torch.randint(vocabulary, ids.shape, generator=generator)
    return mask_tokens(ids, words, mask_id, chance.to(ids.device), other.to(ids.device))
