"""Losses that train an encoder with a head over pairs of texts: a score, 0 or 1, a class, a rank.

A head makes a ``PairModel`` of an encoder: two texts in, a score or classes out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError, losses
from minisbert.data.columns import PAIRS, Columns
from minisbert.evaluation import metrics
from minisbert.evaluation.retrieval import Retrieval
from minisbert.models.pair_model import PairModel
from minisbert.training import losses as more_losses
from minisbert.training.base_loss import (
    SCORED,
    Loss,
    Network,
    PairNetwork,
    RowNetwork,
    columns_of,
)
from minisbert.training.named_heads import HEADS
from minisbert.training.scores import Evaluation, correlation, evaluate_encoder, mean_of

__all__ = [
    "MSE",
    "Binary",
    "CandidateRanking",
    "Softmax",
]


@dataclass
class HeadLoss(Loss):
    """A loss of a head's outputs: ``formula(outputs, targets)``."""

    task: ClassVar[str] = "regression"  # of the ``PairModel``

    def formula(self, outputs: Tensor, targets: Tensor) -> Tensor:
        raise NotImplementedError

    def prepare(self, model: Any, rows: Sequence[tuple]) -> RowNetwork:
        check_pair_model(model, type(self).__name__)
        firsts, seconds, targets = columns_of(rows)
        self.targets = torch.tensor(targets, dtype=torch.float32).to(model.device)
        return PairNetwork(model, firsts, seconds)

    def batch_loss(self, network: Network, batch: Sequence[int]) -> Tensor:
        targets = self.targets[batch]
        return self.formula(network(batch), targets)


@dataclass
class MSE(HeadLoss):
    """The squared error of a head's score against that of people, 0 to 1.

    Use it with ``--head`` when people have scored pairs. sentence-transformers: ``MSELoss``.
    """

    columns: ClassVar[Columns] = SCORED
    default_data: ClassVar[str | None] = "stsb"

    def prepare(self, model: Any, rows: Sequence[tuple]) -> RowNetwork:
        lowest = min(row[-1] for row in rows)
        if lowest < 0:
            raise InputError(f"a score of {lowest:g}: a head gives scores of 0 or more")
        return super().prepare(model, rows)

    def formula(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return losses.mse_loss(outputs, targets)

    def evaluate(self, model: Any, rows: Any) -> Evaluation:
        """Correlate the head's scores with those of people; Pearson's decides.

        Like the loss it looks at the scores themselves, where Spearman's looks at their order.
        """
        firsts, seconds, human_scores = columns_of(rows)
        outputs = model.outputs(firsts, seconds, progress=True).numpy()
        name = "the head's scores against the human ones (a lower --head-lr may help)"
        return correlation(name, outputs, human_scores, metric="pearson")


@dataclass
class Binary(HeadLoss):
    """The binary cross-entropy of a head's logit against 0 or 1.

    Use it with ``--head`` to tell duplicates from other pairs, or to train a reranker on labels.
    sentence-transformers: ``BinaryCrossEntropyLoss``.
    """

    columns: ClassVar[Columns] = Columns(2, "binary")
    default_data: ClassVar[str | None] = "quora"
    task: ClassVar[str] = "binary"

    def formula(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return more_losses.binary_cross_entropy_loss(outputs, targets)

    def evaluate(self, model: Any, rows: Any) -> Evaluation:
        """Decide at a probability of .5, where the logit is 0; F1 chooses the best model."""
        firsts, seconds, targets = columns_of(rows)
        labels = np.array(targets)
        if not labels.any():
            raise InputError("no dev or test pair has label 1, so F1 is not defined")
        logits = model.outputs(firsts, seconds, progress=True).numpy()
        predicted = (logits >= 0).astype(int)
        precision, recall, f1 = metrics.precision_recall_f1(predicted, labels)
        scores = {
            "accuracy": float((predicted == labels).mean()),
            "f1": f1,
            "precision": precision,
            "recall": recall,
        }

        def resampled(drawn: np.ndarray) -> float:
            if not labels[drawn].any():
                return float("nan")  # F1 is not defined for these rows
            _, _, drawn_f1 = metrics.precision_recall_f1(predicted[drawn], labels[drawn])
            return drawn_f1

        return Evaluation(scores, "f1", len(labels), resampled)


@dataclass
class Softmax(Loss):
    """The cross-entropy of classes, from two vectors and a linear layer (SBERT, section 3).

    Use it to train an encoder on NLI: the layer over (u, v, |u - v|) is thrown away afterwards.
    With ``--head concat`` the classifier is the model. sentence-transformers: ``SoftmaxLoss``.
    """

    columns: ClassVar[Columns] = Columns(2, "class")
    default_data: ClassVar[str | None] = "snli"
    judged_by: ClassVar[tuple[Columns, ...]] = (SCORED,)
    judges_itself: ClassVar[bool] = False  # a class does not say how near two texts should be
    task: ClassVar[str] = "classes"
    classifier: Any = field(default=None, repr=False)

    def prepare(self, model: Any, rows: Sequence[tuple]) -> RowNetwork:
        firsts, seconds, classes = columns_of(rows)
        self.classifier = model
        if not isinstance(model, PairModel):
            names = class_names(classes)
            head = self.make_head("concat", model, len(names))
            self.classifier = PairModel(model, head, "classes", names)
        numbers = class_numbers(classes, self.classifier.labels)
        self.targets = torch.tensor(numbers, device=model.device)
        return PairNetwork(self.classifier, firsts, seconds)

    def batch_loss(self, network: Network, batch: Sequence[int]) -> Tensor:
        targets = self.targets[batch]
        return losses.softmax_cross_entropy_loss(network(batch), targets)

    def evaluate(self, model: Any, rows: Any) -> Evaluation:
        """The share of right classes; of scored pairs how well the encoder's cosines correlate."""
        encoder = model
        classifier = self.classifier
        if isinstance(model, PairModel):
            encoder = model.encoder
            classifier = model

        # A search and scored pairs judge the encoder, all other rows the classifier.
        if isinstance(rows, Retrieval) or isinstance(rows[0][-1], float):
            return evaluate_encoder(encoder, rows)
        if classifier is None:
            judges = "scored pairs (--dev FILE or stsb)"
            raise InputError(f"loss softmax without --head: an encoder is judged by {judges}")
        firsts, seconds, classes = columns_of(rows)
        logits = classifier.outputs(firsts, seconds, progress=True).numpy()
        numbers = class_numbers(classes, classifier.labels)
        right = logits.argmax(axis=1) == np.array(numbers)
        return mean_of({"accuracy": float(right.mean())}, "accuracy", right)


def class_names(classes: Sequence[Any]) -> list[str]:
    """The names of the classes: the words in sorted order, or the numbers from 0 to the highest."""
    # Rows from Python may number their classes.
    if isinstance(classes[0], int):
        return [str(number) for number in range(max(classes) + 1)]
    return sorted({str(name) for name in classes})


def class_numbers(classes: Sequence[Any], names: Sequence[str]) -> list[int]:
    """Number the classes of rows; ``InputError`` for one that no training row has."""
    number_of = {name: number for number, name in enumerate(names)}
    numbers = []
    for name in classes:
        if str(name) not in number_of:
            raise InputError(f"the class {name} is not one of {', '.join(names)}")
        numbers.append(number_of[str(name)])
    return numbers


@dataclass
class CandidateRanking(Loss):
    """The cross-entropy of a query's positive among its own candidates, scored by a head.

    Use it with ``--head cross-encoder`` to train a reranker on rows with negatives.
    sentence-transformers: ``MultipleNegativesRankingLoss`` of its cross-encoders.
    """

    columns: ClassVar[Columns] = PAIRS
    task: ClassVar[str] = "logit"

    def prepare(self, model: Any, rows: Sequence[tuple]) -> RowNetwork:
        check_pair_model(model, "ranking")
        self.candidates = len(rows[0]) - 1
        if self.candidates < 2:
            raise InputError(
                "loss ranking with a head needs rows with a negative; minisbert mine finds them"
            )
        firsts, seconds = candidate_pairs(rows)  # N C pairs, those of a row side by side
        return CandidateNetwork(model, firsts, seconds, self.candidates)

    def batch_loss(self, network: Network, batch: Sequence[int]) -> Tensor:
        logits = network(batch)  # (B, C), the positive in column 0
        labels = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
        return losses.softmax_cross_entropy_loss(logits, labels)

    def evaluate(self, model: Any, rows: Any) -> Evaluation:
        """Rank the candidates: the share of positives in front, and the mean of 1 / their rank."""
        firsts, seconds = candidate_pairs(rows)
        outputs = model.outputs(firsts, seconds, progress=True)
        scores = outputs.view(len(rows), -1).numpy()  # (N, C)
        # The positive's rank is the number of candidates that are not below it, itself included.
        # So a tie counts against it.
        ranks = (scores >= scores[:, :1]).sum(axis=1)  # (N,)
        reciprocal_ranks = 1 / ranks
        accuracy = float((ranks == 1).mean())
        mrr = float(reciprocal_ranks.mean())
        return mean_of({"accuracy": accuracy, "mrr": mrr}, "mrr", reciprocal_ranks)


class CandidateNetwork(PairNetwork):
    """Score each row's query with its C candidates: (B, C)."""

    def __init__(
        self, model: PairModel, firsts: Sequence[str], seconds: Sequence[str], candidates: int
    ):
        super().__init__(model, firsts, seconds)
        self.candidates = candidates
        # All candidates of a row count as padded to its longest one.
        tokens = np.array(self.lengths).reshape(-1, candidates)  # (N, C)
        self.lengths = (candidates * tokens.max(axis=1)).tolist()

    def forward(self, rows: Sequence[int]) -> Tensor:
        """Return the logits (B, C) of the B rows' candidates."""
        pairs: list[int] = []
        for row in rows:
            pairs += range(row * self.candidates, (row + 1) * self.candidates)
        return super().forward(pairs).view(len(rows), self.candidates)


def candidate_pairs(rows: Sequence[tuple[str, ...]]) -> tuple[list[str], list[str]]:
    """Repeat each query beside its candidates: N rows with C give two lists of N C texts."""
    queries: list[str] = []
    candidates: list[str] = []
    for query, *texts in rows:
        queries += [query] * len(texts)
        candidates += texts
    return queries, candidates


def check_pair_model(model: Any, loss: str) -> None:
    """Raise ``InputError`` unless the model has a head."""
    if not isinstance(model, PairModel):
        names = ", ".join(HEADS)
        raise InputError(f"the loss {loss.lower()} trains a head: give --head, one of {names}")
