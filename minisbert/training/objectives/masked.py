"""The objective of masked words, which needs texts and nothing else."""

import torch
from torch import Tensor, nn

from minisbert.core.data import TextColumns
from minisbert.core.tokenizer import pad_batch
from minisbert.data.datasets import plain_texts, scored_rows
from minisbert.evaluation.model_scores import Scores, vector_scores
from minisbert.models.guards import evaluating
from minisbert.models.masked_language_model import MaskedLanguageModel
from minisbert.training.losses import mlm_losses
from minisbert.training.masking import draw_masks
from minisbert.training.objectives.base import Objective
from minisbert.training.settings import RunSettings, sources_of

DEV_BATCH = 64  # texts


class MaskedNetwork(nn.Module):
    """A ``MaskedLanguageModel`` over texts, in which other words are hidden every time."""

    dtype = torch.float32

    def __init__(self, model: MaskedLanguageModel, columns: TextColumns):
        super().__init__()
        self.model, self.columns = model, columns
        self.vocabulary = len(model.head.bias)

    def forward(self, rows: list[int]) -> Tensor:
        """The numbers of B rows -> the sum of the losses of each row's hidden words, and their number: (B, 2)."""
        losses, _, chosen = self.guess(*self.columns.batch(rows))
        sums = torch.zeros(chosen.shape, device=losses.device).masked_scatter(chosen, losses).sum(dim=1)
        return torch.stack([sums, chosen.sum(dim=1)], dim=1)

    def guess(
        self, ids: Tensor, mask: Tensor | None, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """ids and mask (B, T) -> of the N hidden words loss and whether it was guessed, (N,), and which, (B, T)."""
        device = self.model.device
        ids = ids.to(device)
        mask = None if mask is None else mask.to(device)
        words = ~torch.isin(ids, torch.tensor(self.model.special_ids, device=device))
        inputs, chosen = draw_masks(ids, words, self.model.mask_id, self.vocabulary, generator)
        logits = self.model.logits(inputs, mask, chosen, self.dtype)  # (N, V)
        targets = ids[chosen]
        return mlm_losses(logits, targets), logits.argmax(dim=1) == targets, chosen


class MaskedWords(Objective):
    """BERT's first objective: guess 15 % of the words of a text from the others (section 3.1)."""

    best = "masked_accuracy"
    separable = False  # a row counts by the number of its hidden words

    def __init__(self, options: RunSettings, model: MaskedLanguageModel):
        texts, note = plain_texts(sources_of(options))
        self.rows, notes = scored_rows(sources_of(options), options.scale, ["dev", "test"])
        self.rows["train"] = [(text,) for text in texts]
        columns = TextColumns(model.tokenizer, [texts])
        super().__init__(MaskedNetwork(model, columns), columns.encoded, columns.lengths, {"train": note} | notes)

    def loss(self, network: nn.Module, rows: list[int]) -> Tensor:
        sums, counts = network(rows).unbind(dim=1)  # (B,) each
        return sums.sum() / counts.sum().clamp_min(1)  # no word was hidden: nothing to learn

    def evaluate(self, split: str) -> Scores:
        """The share of hidden words that is guessed, the mean loss, and what the vectors are worth already."""
        model, pairs = self.network.model, self.rows[split]
        texts = list(dict.fromkeys(text for pair in pairs for text in pair.texts))
        ids = model.tokenizer.encode(texts).ids
        generator = torch.Generator().manual_seed(0)  # the same words every time
        losses, right = [], []
        with evaluating(model):
            for start in range(0, len(ids), DEV_BATCH):
                batch = pad_batch(ids[start : start + DEV_BATCH], model.tokenizer.pad_id)
                loss, guessed, _ = self.network.guess(*batch, generator)
                losses.append(loss)
                right.append(guessed)
        found = {"masked_accuracy": torch.cat(right).double().mean().item()}
        found["loss"] = torch.cat(losses).double().mean().item()
        return found | vector_scores(model, pairs)
