"""Cross-encoders that rerank: a pair is relevant or not, or a query's positive is ranked above its negatives."""

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.core import InputError
from minisbert.core.losses import softmax_cross_entropy_loss
from minisbert.data.datasets import Notes, triplet_rows
from minisbert.data.reader import note
from minisbert.data.sources import hold_out
from minisbert.evaluation.model_scores import Scores
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.objectives.base import Objective, PairNetwork
from minisbert.training.objectives.pairs import Duplicates, joint_head
from minisbert.training.settings import RunSettings


class BinaryReranker(Duplicates):
    """Binary cross-entropy of pairs with labels 0 and 1, both texts in one input."""

    def make_head(self, options: RunSettings, encoder: SentenceEncoder) -> nn.Module:
        return joint_head(options, encoder)


class RankingReranker(Objective):
    """Cross-entropy of the softmax over the scores of a query's own candidates: its positive and its negatives.

    Dev and test are rows of candidates too: ``accuracy`` is the share of queries whose positive has the highest score,
    ``mrr`` the mean of 1 / its rank.
    """

    best = "mrr"

    def __init__(self, options: RunSettings, encoder: SentenceEncoder):
        self.rows, notes = candidate_rows(options)
        self.candidates = len(self.rows["train"][0]) - 1
        if self.candidates < 2:
            raise InputError(f"{notes['train']}: rows with a negative are needed; minisbert mine finds them")
        model = PairModel(encoder, joint_head(options, encoder).to(encoder.device), "logit")
        encoded = model.tokenize(*candidate_pairs(self.rows["train"]))  # N C pairs, those of a row side by side
        tokens = np.array(model.lengths(encoded)).reshape(-1, self.candidates)  # (N, C)
        lengths = (self.candidates * tokens.max(axis=1)).tolist()
        super().__init__(PairNetwork(model, encoded), [encoded], lengths, notes)

    def loss(self, network: nn.Module, rows: list[int]) -> Tensor:
        pairs = [row * self.candidates + place for row in rows for place in range(self.candidates)]
        logits = network(pairs).view(len(rows), self.candidates)  # (B, C), the positive in column 0
        return softmax_cross_entropy_loss(logits, torch.zeros(len(rows), dtype=torch.long, device=logits.device))

    def evaluate(self, split: str) -> Scores:
        rows = self.rows[split]
        scores = self.model.scores(*candidate_pairs(rows), progress=True).reshape(len(rows), -1)  # (N, C)
        ranks = (scores >= scores[:, :1]).sum(axis=1)  # (N,); a tie counts against the positive
        return {"accuracy": float((ranks == 1).mean()), "mrr": float((1 / ranks).mean())}


def candidate_rows(options: RunSettings) -> tuple[dict[str, list[tuple[str, ...]]], Notes]:
    """Rows of a query, its positive and negatives. Dev and test without a file are held out of the training rows."""
    rows, notes = {}, {}
    rows["train"], notes["train"] = triplet_rows(options.sources)
    for split, file in (("dev", options.dev), ("test", options.test)):
        if file:
            rows[split], notes[split] = triplet_rows(options.sources.of_file(file))
    missing = [split for split in ("dev", "test") if split not in rows]
    try:
        rows["train"], held_out = hold_out(rows["train"], missing, options.seed)
    except ValueError as error:
        raise InputError(f"{notes['train']}: too few rows to hold some out; give more, or --dev and --test") from error
    for split in missing:
        rows[split], notes[split] = held_out[split], note("held out of it", len(held_out[split]), "rows")
    return rows, notes


def candidate_pairs(rows: list[tuple[str, ...]]) -> tuple[list[str], list[str]]:
    """The query of each candidate, and the candidates: N rows with C of them -> N C texts each."""
    queries = [row[0] for row in rows for _ in row[1:]]
    return queries, [text for row in rows for text in row[1:]]
