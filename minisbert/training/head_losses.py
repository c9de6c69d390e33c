"""Losses that train an encoder with a head over pairs of texts, and the heads by their names.

A head makes a ``PairModel`` of an encoder: two texts in, a score or classes out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.architectures.relatives import CLASSIFIERS
from minisbert.core import InputError, losses
from minisbert.core.heads import ConcatHead, CrossHead, Head, JointHead, siamese
from minisbert.data.columns import Columns
from minisbert.evaluation import metrics
from minisbert.evaluation.retrieval import Retrieval
from minisbert.models.cross_encoder import ClassifierHead
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import say
from minisbert.training import losses as more_losses
from minisbert.training.base_loss import PAIRS, SCORED, Loss, Network, PairNetwork, RowNetwork
from minisbert.training.scores import Evaluation, correlation, evaluate_encoder, mean_of

# -----------------------------------------------------------------------------
# heads


def cross_encoder_head(encoder: SentenceEncoder, outputs: int) -> Head:
    """Both texts go through the encoder as one, and a small network reads [CLS]."""
    return JointHead(encoder.bert.config.hidden_size, outputs=outputs)


def siamese_head(encoder: SentenceEncoder, outputs: int) -> Head:
    """Each text becomes a vector, and a small network reads (|u - v|, u * v, u)."""
    return siamese(encoder.width, outputs=outputs)


def cross_attention_head(encoder: SentenceEncoder, outputs: int) -> Head:
    """The tokens of one text attend to those of the other, after both have been encoded."""
    return CrossHead(encoder.bert.config.hidden_size, "compare", outputs=outputs)


def concat_head(encoder: SentenceEncoder, outputs: int) -> Head:
    """Each text becomes a vector, and one linear layer reads (u, v, |u - v|), as SBERT does NLI."""
    return ConcatHead(encoder.width, outputs=outputs)


def classifier_head(encoder: SentenceEncoder, outputs: int) -> Head:
    """BERT's pooler and a linear layer, as sentence-transformers' ``CrossEncoder`` has them.

    The encoder's own pooler, if it has one, moves into the head.
    """
    bert = encoder.bert
    family = bert.config.model_type
    if family not in CLASSIFIERS:
        raise InputError(f"--head classifier is for {', '.join(CLASSIFIERS)}, not for {family}")
    head = ClassifierHead(bert.config.hidden_size, outputs=outputs, between=CLASSIFIERS[family][-1])
    if bert.pooler is not None:
        head.mlp[0] = bert.pooler
        bert.pooler = None
    return head


HEADS: dict[str, Callable[[SentenceEncoder, int], Head]] = {
    "cross-encoder": cross_encoder_head,
    "siamese": siamese_head,
    "cross-attention": cross_attention_head,
    "concat": concat_head,
    "classifier": classifier_head,
}


def add_head(
    encoder: SentenceEncoder,
    name: str,
    task: str,
    labels: Sequence[str] = (),
    saved: PairModel | None = None,
) -> PairModel:
    """Put a head around an encoder, with an output for each label, or one.

    ``saved`` is the model that the encoder comes from: if its head is of the same kind and has the
    same task, it is trained further.
    """
    try:
        head = HEADS[name](encoder, len(labels) or 1)
        if saved is not None:
            head = continued(saved, head, task, labels)
        return PairModel(encoder, head, task, labels)
    except ValueError as error:  # settings that do not fit
        raise InputError(f"--head {name}: {error}") from error


def continued(saved: PairModel, head: Head, task: str, labels: Sequence[str]) -> Head:
    """Return the saved head if it is of the kind and the task of the new one, else the new one."""
    # binary and logit are one output, read in two ways
    both_logits = {saved.task, task} <= {"binary", "logit"}
    same_outputs = both_logits or (saved.task == task and saved.labels == tuple(labels))
    joint = isinstance(head, JointHead) and isinstance(saved.head, JointHead)
    same_kind = joint or {**head.settings, "dropout": 0} == {**saved.head.settings, "dropout": 0}
    if not same_outputs or not same_kind:
        say(f"the model has another head, for {saved.task}: a new one is trained")
        return head
    # the saved weights go on, with the new head's dropout
    for module in saved.head.modules():
        if isinstance(module, nn.Dropout):
            module.p = float(head.settings["dropout"])  # type: ignore[arg-type]
            saved.head.settings["dropout"] = module.p
    return saved.head.train()


# -----------------------------------------------------------------------------
# losses


@dataclass
class HeadLoss(Loss):
    """A loss of a head's outputs: ``formula(outputs, targets)``."""

    task: ClassVar[str] = "regression"  # of the ``PairModel``

    def formula(self, outputs: Tensor, targets: Tensor) -> Tensor:
        raise NotImplementedError

    def prepare(self, model: Any, rows: Sequence[tuple]) -> RowNetwork:
        check_pair_model(model, type(self).__name__)
        firsts, seconds, targets = (list(column) for column in zip(*rows, strict=True))
        self.targets = self.target_tensor(targets).to(model.device)
        return PairNetwork(model, firsts, seconds)

    def target_tensor(self, targets: list) -> Tensor:
        return torch.tensor(targets, dtype=torch.float32)

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
        """Correlate the head's scores with those of people; Pearson's decides, as the loss does."""
        firsts, seconds, wanted = (list(column) for column in zip(*rows, strict=True))
        found = model.outputs(firsts, seconds, progress=True).numpy()
        what = "the head's scores against the human ones (a lower --head-lr may help)"
        return correlation(what, found, wanted, metric="pearson")


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
        firsts, seconds, wanted = (list(column) for column in zip(*rows, strict=True))
        labels = np.array(wanted)
        if not labels.any():
            raise InputError("no dev or test pair has label 1, so F1 is not defined")
        logits = model.outputs(firsts, seconds, progress=True).numpy()
        predicted = (logits >= 0).astype(int)
        precision, recall, f1 = metrics.precision_recall_f1(predicted, labels)
        scores = {"accuracy": float((predicted == labels).mean()), "f1": f1}
        scores |= {"precision": precision, "recall": recall}

        def resampled(rows: np.ndarray) -> float:
            if not labels[rows].any():
                return float("nan")
            return metrics.precision_recall_f1(predicted[rows], labels[rows])[2]

        return Evaluation(scores, "f1", len(labels), resampled)


@dataclass
class Softmax(Loss):
    """The cross-entropy of classes, from two vectors and a linear layer (SBERT, section 3).

    Use it to train an encoder on NLI: the layer over (u, v, |u - v|) is thrown away afterwards.
    With ``--head concat`` the classifier is the model.
    sentence-transformers: ``SoftmaxLoss``.
    """

    columns: ClassVar[Columns] = Columns(2, "class")
    default_data: ClassVar[str | None] = "snli"
    judged_by: ClassVar[tuple[Columns, ...]] = (SCORED,)
    task: ClassVar[str] = "classes"
    classifier: Any = field(default=None, repr=False)

    def prepare(self, model: Any, rows: Sequence[tuple]) -> RowNetwork:
        firsts, seconds, classes = (list(column) for column in zip(*rows, strict=True))
        self.classifier = model
        if not isinstance(model, PairModel):
            names = class_names(classes)
            head = self.make_head(model, len(names))
            self.classifier = PairModel(model, head, "classes", names)
        numbers = class_numbers(classes, self.classifier.labels)
        self.targets = torch.tensor(numbers, device=model.device)
        return PairNetwork(self.classifier, firsts, seconds)

    def make_head(self, encoder: SentenceEncoder, outputs: int) -> Head:
        """The layer that only training uses."""
        return concat_head(encoder, outputs)

    def batch_loss(self, network: Network, batch: Sequence[int]) -> Tensor:
        targets = self.targets[batch]
        return losses.softmax_cross_entropy_loss(network(batch), targets)

    def evaluate(self, model: Any, rows: Any) -> Evaluation:
        """The share of right classes; of scored pairs how well the encoder's cosines correlate."""
        classifier = model if isinstance(model, PairModel) else self.classifier
        if isinstance(rows, Retrieval) or isinstance(rows[0][-1], float):
            encoder = model.encoder if isinstance(model, PairModel) else model
            return evaluate_encoder(encoder, rows)
        firsts, seconds, classes = (list(column) for column in zip(*rows, strict=True))
        logits = classifier.outputs(firsts, seconds, progress=True).numpy()
        right = logits.argmax(axis=1) == np.array(class_numbers(classes, classifier.labels))
        return mean_of({"accuracy": float(right.mean())}, "accuracy", right)


def class_names(classes: Sequence[str | int]) -> list[str]:
    """The names of the classes: the words in sorted order, or the numbers from 0 to the highest."""
    if isinstance(classes[0], int):  # rows from Python may number their classes
        return [str(number) for number in range(max(classes) + 1)]  # type: ignore[operator,type-var]
    return sorted(set(map(str, classes)))


def class_numbers(classes: Sequence[str | int], names: Sequence[str]) -> list[int]:
    """Number the classes of rows; ``InputError`` for one that no training row has."""
    numbers = {name: number for number, name in enumerate(names)}
    found = []
    for each in classes:
        if str(each) not in numbers:
            raise InputError(f"the class {each} is not one of {', '.join(names)}")
        found.append(numbers[str(each)])
    return found


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
        ranks = (scores >= scores[:, :1]).sum(axis=1)  # (N,); a tie counts against the positive
        each = 1 / ranks
        found = {"accuracy": float((ranks == 1).mean()), "mrr": float(each.mean())}
        return mean_of(found, "mrr", each)


class CandidateNetwork(PairNetwork):
    """Score each row's query with its C candidates: (B, C)."""

    def __init__(
        self, model: PairModel, firsts: Sequence[str], seconds: Sequence[str], candidates: int
    ):
        super().__init__(model, firsts, seconds)
        self.candidates = candidates
        tokens = np.array(self.lengths).reshape(-1, candidates)  # (N, C)
        # as in a batch of rows like it: all candidates padded to the longest
        self.lengths = (candidates * tokens.max(axis=1)).tolist()

    def forward(self, rows: Sequence[int]) -> Tensor:
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
