"""Objectives on sentence vectors: cosines of pairs, triplets, and contrastive learning within a batch."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from minisbert.core import InputError, losses
from minisbert.core.data import TextColumns
from minisbert.data.augmentation import augment, shuffled_negatives
from minisbert.data.datasets import duplicate_rows, scored_rows, sentence_rows, triplet_rows
from minisbert.evaluation.scoring import Scores, cosine_scores, vector_scores
from minisbert.models.modern.sparse import splade_loss
from minisbert.models.scoring import MAX_SCORE
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training import more_losses
from minisbert.training.objective import Objective, VectorNetwork
from minisbert.training.settings import RunSettings


class VectorObjective(Objective):
    """Sentence vectors of one or more columns of texts; all columns go through the encoder in one forward."""

    Network: ClassVar[type[nn.Module]] = VectorNetwork

    def __init__(
        self,
        encoder: SentenceEncoder,
        columns: Sequence[Sequence[str]],
        notes: dict[str, str],
        precision: torch.dtype,
        projection: nn.Module | None = None,
    ):
        texts = self.tokenized(encoder, columns)
        super().__init__(self.Network(encoder, texts, projection, precision), texts.encoded, texts.lengths, notes)

    @staticmethod
    def tokenized(encoder: SentenceEncoder, columns: Sequence[Sequence[str]]) -> TextColumns:
        return TextColumns(encoder.tokenizer, columns)


# ---------------------------------------------------------------------------------- pairs with a target


class CosineRegression(VectorObjective):
    """SBERT's regression objective (section 3): the cosine is pulled to the score by squared error."""

    def __init__(self, options: RunSettings, encoder: SentenceEncoder, precision: torch.dtype):
        self.rows, notes = scored_rows(options)
        if options.shuffled_negatives:
            extra = shuffled_negatives(self.rows["train"], options.shuffled_negatives, options.seed)
            self.rows["train"] += extra
            notes["train"] += f" and {len(extra):,} shuffled ones of score 0"
        pairs = self.rows["train"]
        self.targets = torch.tensor([pair.score / MAX_SCORE for pair in pairs], device=encoder.device)  # (N,)
        columns = [pair.sentence1 for pair in pairs], [pair.sentence2 for pair in pairs]
        super().__init__(encoder, columns, notes, precision)

    def loss(self, network: nn.Module, rows: list[int]) -> Tensor:
        return losses.cosine_mse_loss(*network(rows).unbind(dim=1), self.targets[rows])

    def evaluate(self, split: str) -> Scores:
        loss = losses.mse_loss if self.separable else None
        return vector_scores(self.encoder, self.rows[split], loss=loss, prefixes=self.prefixes)


class CoSENT(CosineRegression):
    """The order of the cosines is pulled to the order of the scores (Huang et al. 2024)."""

    separable = False  # it compares the rows of a batch with each other

    def __init__(self, options: RunSettings, encoder: SentenceEncoder, precision: torch.dtype):
        if options.batch_size < 2:
            raise InputError("objective cosent puts the rows of a batch in order: one row has none")
        self.scale = 1 / options.temperature
        super().__init__(options, encoder, precision)

    def loss(self, network: nn.Module, rows: list[int]) -> Tensor:
        return more_losses.cosent_loss(*network(rows).unbind(dim=1), self.targets[rows], scale=self.scale)


class Contrastive(VectorObjective):
    """Duplicates together, other pairs a margin apart (Hadsell et al. 2006), by the cosine alone."""

    best = "f1"

    def __init__(self, options: RunSettings, encoder: SentenceEncoder, precision: torch.dtype):
        self.rows, notes = duplicate_rows(options)
        pairs = self.rows["train"]
        self.labels = torch.tensor([pair.label for pair in pairs], device=encoder.device)
        self.margin = 0.5 if options.margin is None else options.margin
        if self.margin > 2:
            raise InputError(f"--margin {self.margin:g} can never be kept: the distance, 1 - cosine, lies in 0..2")
        columns = [pair.sentence1 for pair in pairs], [pair.sentence2 for pair in pairs]
        super().__init__(encoder, columns, notes, precision)

    def loss(self, network: nn.Module, rows: list[int]) -> Tensor:
        return losses.contrastive_loss(*network(rows).unbind(dim=1), self.labels[rows], self.margin)

    def evaluate(self, split: str) -> Scores:
        loss = partial(losses.contrastive_loss, margin=self.margin)
        return cosine_scores(self.encoder, self.rows[split], self.rows["dev"], loss)


# ------------------------------------------------------------------------ triplets and plain sentences


class WithoutScores(VectorObjective):
    """Rows that carry no scores: evaluated on scored pairs, with SimCSE's projection if asked for."""

    in_batch_negatives = True
    projects = True  # whether ``--projection`` has a meaning

    def __init__(
        self,
        options: RunSettings,
        encoder: SentenceEncoder,
        columns: Sequence[Sequence[str]],
        note: str,
        precision: torch.dtype,
    ):
        if self.in_batch_negatives and options.batch_size < 2:
            raise InputError(f"objective {options.objective} takes its negatives from the batch: one row has none")
        self.pairs, notes = scored_rows(options, ("dev", "test"))
        # SimCSE, section 6.3 and appendix A: a dense layer and tanh over [CLS]. Unsupervised SimCSE has it in training
        # only, as here; the supervised one keeps it (86.2 on STS-B dev with and without it, table 6).
        wanted = self.projects and options.projection
        projection = nn.Sequential(nn.Linear(encoder.width, encoder.width), nn.Tanh()) if wanted else None
        projection = projection and projection.to(encoder.device)
        super().__init__(encoder, columns, {"train": note} | notes, precision, projection)
        if self.in_batch_negatives:
            self.separable = False
            self.keys = list(zip(*columns, strict=True))
        if not self.batches(options.batch_size, torch.Generator()):
            raise InputError(f"{note}: any two rows share a text, so no batch has a negative")

    def evaluate(self, split: str) -> Scores:
        return vector_scores(self.encoder, self.pairs[split], contrastive=True, prefixes=self.prefixes)


class TripletRows(WithoutScores):
    """Anchor, positive, negative; for in-batch negatives also without a negative, or with several."""

    def __init__(self, options: RunSettings, encoder: SentenceEncoder, precision: torch.dtype):
        rows, note = triplet_rows(options)
        self.options = options
        super().__init__(options, encoder, list(zip(*rows, strict=True)), note, precision)


class TripletMargin(TripletRows):
    """A margin between Euclidean distances (SBERT, section 3: margin 1)."""

    in_batch_negatives = False

    def loss(self, network: nn.Module, rows: list[int]) -> Tensor:
        margin = 1.0 if self.options.margin is None else self.options.margin
        return losses.triplet_loss(*network(rows).unbind(dim=1), margin=margin)


class Ranking(TripletRows):
    """The positive ranked above all other positives and negatives of the batch (multiple negatives ranking)."""

    def loss(self, network: nn.Module, rows: list[int]) -> Tensor:
        anchors, positives, *negatives = network(rows).unbind(dim=1)  # (B, D) each
        hard = torch.cat(negatives) if negatives else None
        scale, symmetric = 1 / self.options.temperature, self.options.symmetric
        return losses.multiple_negatives_ranking_loss(anchors, positives, hard, scale, symmetric)


class Splade(TripletRows):
    """The positive ranked above all other texts of the batch by dot products, and a price for words (``splade_loss``).

    The price rises with the square of the step over the first third of the run, as in sentence-transformers: words are
    learned before they are taken away.
    """

    projects = False

    def loss(self, network: nn.Module, rows: list[int]) -> Tensor:
        queries, *documents = network(rows).unbind(dim=1)  # (B, V) each
        risen = min(1.0, 3 * self.done) ** 2
        prices = self.options.query_flops * risen, self.options.document_flops * risen
        return splade_loss(queries, torch.cat(documents), *prices)


class SupervisedSimCSE(TripletRows):
    """Entailment against contradiction and the other rows of the batch (SimCSE, eq. 5)."""

    def __init__(self, options: RunSettings, encoder: SentenceEncoder, precision: torch.dtype):
        super().__init__(options, encoder, precision)
        if options.hard_negative_weight and len(self.encoded) != 3:
            raise InputError(f"{self.notes['train']}: --hard-negative-weight is for rows with one negative")

    def loss(self, network: nn.Module, rows: list[int]) -> Tensor:
        anchors, positives, *negatives = network(rows).unbind(dim=1)  # (B, D) each
        temperature, weight = self.options.temperature, self.options.hard_negative_weight
        if len(negatives) > 1:  # eq. 5 with all of them in the sum; it is the ranking loss
            return losses.multiple_negatives_ranking_loss(anchors, positives, torch.cat(negatives), 1 / temperature)
        return losses.simcse_loss(anchors, positives, *(negatives or [None]), temperature, weight)


class SimCSE(WithoutScores):
    """Unsupervised SimCSE (Gao et al. 2021, eq. 4): a sentence under two dropout masks against all other sentences.

    Or with both views as anchors, as in SimCLR (``nt_xent``). ``same_mask`` takes away what makes the views differ.
    ``augment`` changes the words of the second view as well (table 1), the same way in every epoch.
    """

    def __init__(self, options: RunSettings, encoder: SentenceEncoder, precision: torch.dtype):
        rows, note = sentence_rows(options)
        config = encoder.bert.config
        dropout = config.hidden_dropout_prob or config.attention_probs_dropout_prob
        if options.same_mask and options.augment:
            raise InputError("--same-mask trains on one view and --augment on two that differ: give one of them")
        if not (dropout or options.allow_no_dropout or options.augment):
            raise InputError(
                "objective simcse: this model has no dropout, so both views of a sentence would be the same; "
                "--allow-no-dropout trains all the same"
            )
        self.formula = more_losses.nt_xent_loss if options.nt_xent else losses.simcse_loss
        self.temperature = options.temperature
        # The same column twice: each of the 2B rows of the forward gets its own dropout mask. Under the same mask both
        # views are one vector, so one column is enough.
        second = augment(rows, options.augment, options.seed) if options.augment else rows
        columns = (rows,) if options.same_mask else (rows, second)
        super().__init__(options, encoder, columns, note, precision)

    def loss(self, network: nn.Module, rows: list[int]) -> Tensor:
        views = network(rows).unbind(dim=1)
        return self.formula(views[0], views[-1], temperature=self.temperature)
