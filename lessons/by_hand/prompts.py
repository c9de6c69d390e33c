"""The mean over a text's own tokens, without those of its prompt (sheet 33)."""

import torch
from torch import Tensor


def mean_after_prompt(hidden: Tensor, mask: Tensor, prompt_tokens: int) -> Tensor:
    """The mean of each text's states from token ``prompt_tokens`` on: (B, T, D) -> (B, D).

    mask (B, T), True for real tokens, pads on the right. The first ``prompt_tokens`` columns hold
    [CLS] and the prompt, and are left out; [SEP] counts, as it does in any mean. One text whose
    states are 9, 1 and 3, with one token to leave out, gives (1 + 3) / 2 = 2.
    """
    places = torch.arange(mask.shape[1], device=mask.device)  # (T,)
    own = mask.bool() & (places >= prompt_tokens)  # (B, T)
    states = hidden.masked_fill(~own.unsqueeze(-1), 0)
    return states.sum(dim=1) / own.sum(dim=1, keepdim=True)
