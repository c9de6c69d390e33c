"""An encoder with BERT's masked-language head: how the weights of every sentence encoder began (BERT, section 3.1).

model = MaskedLanguageModel.load("runs/from-nothing/model")
model.fill_mask("A cat [MASK] on the mat.")  # [("sits", 0.31), ("is", 0.12), ...]

Legend as in ``core/bert.py``: B batch, T tokens, D width, V vocabulary.
"""

from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from minisbert.core import InputError, one_line
from minisbert.folder.model_folder import ModelFolder
from minisbert.models.guards import check_count, evaluating
from minisbert.models.masked_head import MaskedHead, load_head, save_masked
from minisbert.models.sentence_encoder import SentenceEncoder

MASK = "[MASK]"


class MaskedLanguageModel(SentenceEncoder):
    """A ``SentenceEncoder`` that also says which words fit in a token's place.

    ``save`` writes a BertForMaskedLM beside the modules of sentence-transformers, so the folder opens as either.
    """

    folder_class = "SentenceEncoder"

    def __init__(self, head: MaskedHead, *parts: Any):
        super().__init__(*parts)
        self.head = head
        self.mask_id = self.tokenizer.backend.token_to_id(MASK)
        if self.mask_id is None:
            raise InputError(f"the vocabulary has no {MASK}, which stands for a word that is to be guessed")
        added = self.tokenizer.backend.get_added_tokens_decoder()
        self.special_ids = [i for i, token in added.items() if token.special]

    @classmethod
    def from_folder(cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None) -> Self:
        plain = SentenceEncoder.from_folder(folder, pooling, limit)
        parts = plain.tokenizer, plain.bert, plain.pooling, plain.normalize, plain.dense, plain.settings
        return cls(load_head(folder.encoder, plain.bert), *parts).eval()

    def logits(self, ids: Tensor, mask: Tensor | None, chosen: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """How well each word fits in the N places that ``chosen`` (B, T) marks: ids (B, T) -> (N, V)."""
        hidden = self.hidden(ids, mask, None, dtype)[chosen]  # (N, D)
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            return self.head(hidden).to(self.dtype)

    def fill_mask(self, text: str, top: int = 5) -> list[tuple[str, float]]:
        """The ``top`` most probable words for the first [MASK] of a text, with their probabilities."""
        check_count("top", top)
        ids = torch.tensor(self.tokenizer.encode([text]).ids, device=self.device)  # (1, T)
        places = (ids == self.mask_id).nonzero()
        if not len(places):
            raise InputError(f"the text {one_line(text)} has no {MASK}")
        chosen = torch.zeros_like(ids, dtype=torch.bool)
        chosen[tuple(places[0])] = True
        with evaluating(self):
            probabilities = self.logits(ids, None, chosen)[0].softmax(dim=0)  # (V,)
        best = probabilities.topk(min(top, len(probabilities)))
        words = self.tokenizer.tokens(best.indices.tolist())
        return list(zip(words, best.values.tolist(), strict=True))

    def write(self, folder: Path) -> None:
        """The model's files into an empty folder."""
        super().write(folder)
        save_masked(self.bert, self.head, folder)
