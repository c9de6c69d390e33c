"""Losses that train an encoder alone: cosines of pairs, triplets, and in-batch negatives."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from minisbert.core import InputError, losses
from minisbert.data.columns import PAIRS, Columns
from minisbert.training import losses as more_losses
from minisbert.training.base_loss import SCORED, EncoderLoss, RowNetwork

__all__ = [
    "CoSENT",
    "Cosine",
    "Ranking",
    "SimCSE",
    "Triplet",
]


@dataclass
class Cosine(EncoderLoss):
    """The squared error of the cosine against the score (SBERT, section 3).

    Use it when people have scored pairs. sentence-transformers: ``CosineSimilarityLoss``.
    """

    columns: ClassVar[Columns] = SCORED
    default_data: ClassVar[str | None] = "stsb"

    def check(self, columns: list[list[str]]) -> None:
        check_scores(self.targets, "cosine")
        highest = self.targets.abs().max().item()
        if not highest <= 1:  # NaN is refused, too
            raise InputError(
                f"scores for the loss cosine must be in -1..1, and reach {highest:g}: divide them "
                "by the highest possible score"
            )

    def formula(self, u: Tensor, v: Tensor, scores: Tensor) -> Tensor:
        return losses.cosine_mse_loss(u, v, scores)


@dataclass
class CoSENT(EncoderLoss):
    """The cosines of a batch have the order of its scores (Huang et al. 2024).

    Use it like ``Cosine``, when only the order of the scores matters, as in Spearman's correlation.
    sentence-transformers: ``CoSENTLoss``.
    """

    columns: ClassVar[Columns] = SCORED
    default_data: ClassVar[str | None] = "stsb"
    compares_rows: ClassVar[bool] = True
    smallest_batch: ClassVar[int] = 2
    temperature: float = 0.05

    def check(self, columns: list[list[str]]) -> None:
        check_scores(self.targets, "cosent")

    def formula(self, u: Tensor, v: Tensor, scores: Tensor) -> Tensor:
        return more_losses.cosent_loss(u, v, scores, scale=1 / self.temperature)


@dataclass
class Triplet(EncoderLoss):
    """The positive is closer to the anchor than the negative is, by a margin (SBERT, section 3).

    Use it when each anchor has one negative that is hard by itself. sentence-transformers:
    ``TripletLoss``.
    """

    columns: ClassVar[Columns] = Columns(3)
    default_data: ClassVar[str | None] = "snli"
    judged_by: ClassVar[tuple[Columns, ...]] = (PAIRS, SCORED)
    margin: float = 1.0

    def check(self, columns: list[list[str]]) -> None:
        if len(columns) != 3:
            raise InputError(
                f"rows for the loss triplet have {len(columns)} texts; anchor, positive and "
                "negative are needed"
            )

    def formula(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return losses.triplet_loss(anchor, positive, negative, self.margin)


@dataclass
class InBatch(EncoderLoss):
    """A loss whose negatives are the other rows of the batch: large batches are harder."""

    compares_rows: ClassVar[bool] = True
    negatives_in_batch: ClassVar[bool] = True
    smallest_batch: ClassVar[int] = 2
    temperature: float = 0.05
    projection: bool = False  # a dense layer and tanh that only training uses

    def prepare(self, model: Any, rows: Any) -> RowNetwork:
        network = super().prepare(model, rows)
        if self.projection:
            # Unsupervised SimCSE has this layer over [CLS] in training only, as here (section 6.3,
            # appendix A). Supervised SimCSE keeps it in the model, which makes no difference (86.2
            # on STS-B dev with and without it, table 6).
            layer = nn.Sequential(nn.Linear(model.width, model.width), nn.Tanh())
            network.projection = layer.to(model.device)
        return network


@dataclass
class Ranking(InBatch):
    """Rank the positive above all other positives and negatives of the batch.

    Use it for search: pairs of a question and its answer are enough, and negatives in the row make
    it better. sentence-transformers: ``MultipleNegativesRankingLoss``. ``symmetric`` adds the other
    direction, each positive picking its anchor.
    """

    columns: ClassVar[Columns] = PAIRS
    default_data: ClassVar[str | None] = "snli"
    judged_by: ClassVar[tuple[Columns, ...]] = (SCORED,)
    symmetric: bool = False

    def check(self, columns: list[list[str]]) -> None:
        if len(columns) < 2:
            raise InputError("rows for the loss ranking need an anchor and a positive")
        if self.targets is not None:
            raise InputError("rows for the loss ranking are texts, without a score or a class")

    def formula(self, anchors: Tensor, positives: Tensor, *negatives: Tensor) -> Tensor:
        hard_negatives = None
        if negatives:
            hard_negatives = torch.cat(negatives)  # ((n - 2) B, D)
        scale = 1 / self.temperature
        if self.symmetric:
            return more_losses.symmetric_ranking_loss(anchors, positives, hard_negatives, scale)
        return losses.multiple_negatives_ranking_loss(anchors, positives, hard_negatives, scale)


@dataclass
class SimCSE(InBatch):
    """Two dropout masks make two views of a text; all other texts are negatives (Gao et al. 2021).

    Use it when there are only texts. The encoder needs dropout, unless ``same_views`` are wanted.
    """

    columns: ClassVar[Columns] = Columns(1)
    judged_by: ClassVar[tuple[Columns, ...]] = (SCORED,)
    same_views: bool = False

    def views(self, columns: list[list[str]]) -> list[list[str]]:
        return [columns[0], columns[0]]

    def prepare(self, model: Any, rows: Any) -> RowNetwork:
        network = super().prepare(model, rows)
        # A text is the same in both columns, unless a subclass has other views.
        same_texts = network.encoded[0].ids == network.encoded[-1].ids
        config = model.bert.config
        has_dropout = config.hidden_dropout_prob > 0 or config.attention_probs_dropout_prob > 0
        if same_texts and not has_dropout and not self.same_views:
            raise InputError(
                "loss simcse: this model has no dropout, so both views of a text are the same; "
                "give --dropout 0.1, or --dropout 0 to train anyway"
            )
        return network

    def formula(self, u: Tensor, v: Tensor) -> Tensor:
        return losses.simcse_loss(u, v, temperature=self.temperature)


def check_scores(targets: Any, loss: str) -> None:
    """Raise ``InputError`` if the rows have no scores."""
    if targets is None:
        raise InputError(f"rows for the loss {loss} are two texts and a score, and have no score")
