"""Objectives whose head reads a pair: regression on STS scores, NLI classes, duplicate or not."""

from functools import partial

import torch
from torch import Tensor, nn

from minisbert.core import losses
from minisbert.core.heads import ConcatHead, CrossHead, siamese
from minisbert.data.corpora import LabelledPair
from minisbert.data.datasets import duplicate_rows, nli_rows, scored_rows
from minisbert.data.formats import NLI_LABELS
from minisbert.data.scored_pairs import ScoredPair, load_scored_pairs
from minisbert.evaluation.scoring import Loss, Scores, pair_scores, vector_scores
from minisbert.models.heads import make_joint_head
from minisbert.models.pair_model import PairModel
from minisbert.models.scoring import MAX_SCORE
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training import more_losses
from minisbert.training.objective import Objective, PairNetwork
from minisbert.training.settings import RunSettings


class PairObjective(Objective):
    """An encoder with a head; ``targets`` (N,) belong to the training rows, ``formula`` is the loss of its outputs."""

    formula: Loss

    def __init__(
        self,
        model: PairModel,
        rows: dict[str, list[ScoredPair]] | dict[str, list[LabelledPair]],
        targets: Tensor,
        notes: dict[str, str],
        precision: torch.dtype,
    ):
        train = rows["train"]
        encoded = model.tokenize([row.sentence1 for row in train], [row.sentence2 for row in train])
        super().__init__(PairNetwork(model, encoded, precision), [encoded], model.lengths(encoded), notes)
        self.rows = rows
        self.targets = targets.to(model.encoder.device)

    def loss(self, network: nn.Module, rows: list[int]) -> Tensor:
        return self.formula(network(rows), self.targets[rows])

    def evaluate(self, split: str) -> Scores:
        return pair_scores(self.model, self.rows[split], self.formula)


class ScoreRegression(PairObjective):
    """A head says the score, 0..1, by squared error."""

    best = "pearson"

    def __init__(self, options: RunSettings, encoder: SentenceEncoder, precision: torch.dtype):
        rows, notes = scored_rows(options)
        targets = torch.tensor([pair.score / MAX_SCORE for pair in rows["train"]])  # (N,)
        head = self.make_head(options, encoder).to(encoder.device)
        # a table made here and not at import: a mistake may be planted in the functions
        formulas: dict[str, Loss] = {
            "mse": losses.mse_loss,
            "weighted-mse": more_losses.weighted_mse_loss,
            "weighted-mse-literal": partial(more_losses.weighted_mse_loss, threshold=1.0),
        }
        self.formula = formulas[options.loss]
        super().__init__(PairModel(encoder, head), rows, targets, notes, precision)

    def make_head(self, options: RunSettings, encoder: SentenceEncoder) -> nn.Module:
        raise NotImplementedError


class CrossEncoder(ScoreRegression):
    """Both sentences in one input; the head reads [CLS]."""

    def make_head(self, options: RunSettings, encoder: SentenceEncoder) -> nn.Module:
        return make_joint_head(encoder.bert, options.pooler_head, options.head_dropout)


class Siamese(ScoreRegression):
    """The head reads (|u - v|, u * v, u) of two vectors."""

    def make_head(self, options: RunSettings, encoder: SentenceEncoder) -> nn.Module:
        return siamese(encoder.width, dropout=options.head_dropout)


class CrossAttention(ScoreRegression):
    """The tokens of one sentence attend to those of the other."""

    def make_head(self, options: RunSettings, encoder: SentenceEncoder) -> nn.Module:
        return CrossHead(encoder.bert.config.hidden_size, options.variant, dropout=options.head_dropout)


class Duplicates(PairObjective):
    """A head over (u, v, |u - v|) says duplicate or not."""

    best = "f1"

    def __init__(self, options: RunSettings, encoder: SentenceEncoder, precision: torch.dtype):
        rows, notes = duplicate_rows(options)
        targets = torch.tensor([float(row.label) for row in rows["train"]])
        head = ConcatHead(encoder.width, options.concat, options.head_hidden, 1, options.head_dropout)
        self.formula = partial(more_losses.binary_cross_entropy_loss, pos_weight=options.pos_weight)
        super().__init__(PairModel(encoder, head.to(encoder.device), "binary"), rows, targets, notes, precision)


class Softmax(PairObjective):
    """SBERT's classifier (section 3): entailment, contradiction or neutral from (u, v, |u - v|).

    The encoder is what one wants, so its cosine on STS-B is reported too.
    """

    best = "accuracy"

    def __init__(self, options: RunSettings, encoder: SentenceEncoder, precision: torch.dtype):
        rows, notes = nli_rows(options)
        self.stsb = {split: load_scored_pairs("stsb", split) for split in ("dev", "test")}
        targets = torch.tensor([row.label for row in rows["train"]])
        head = ConcatHead(encoder.width, options.concat, options.head_hidden, len(NLI_LABELS), options.head_dropout)
        if options.bias_free:  # as a bias of 0 that stays, so that the saved head has the same tensors as any other
            nn.init.zeros_(head.mlp[-1].bias).requires_grad_(False)
        model = PairModel(encoder, head.to(encoder.device), "classes", NLI_LABELS)
        self.formula = losses.softmax_cross_entropy_loss
        super().__init__(model, rows, targets, notes, precision)

    def evaluate(self, split: str) -> Scores:
        stsb = vector_scores(self.encoder, self.stsb[split])["spearman"]
        return super().evaluate(split) | {"stsb_spearman": stsb}
