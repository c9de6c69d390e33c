"""A task: rows by number, their loss, an evaluation, and what is saved. All that the training loop needs to know.

``encoder_task`` trains sentence vectors, ``pair_task`` an encoder with a head. Which rows and which loss is for
``objectives.py`` to say.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.core import InputError
from minisbert.core.data import ScoredPair, length_grouped_batches, pad_batch, unique_batches
from minisbert.core.heads import ConcatHead
from minisbert.core.metrics import (
    accuracy,
    alignment,
    best_threshold,
    mean_off_diagonal_cosine,
    pearson,
    precision_recall_f1,
    spearman,
    uniformity,
)
from minisbert.core.tokenizer import Encoded
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.objectives.corpora import LabelledPair
from minisbert.objectives.evaluation import correlations, encode_pairs

Scores = dict[str, float]
ALIKE = 4.0  # pairs that people scored so, of 5, are those that alignment is measured on (SimCSE, section 5)


class Network(nn.Module):
    """All that is trained, as one module: the numbers of some rows (B,) -> what their loss reads, (B, ...)."""

    def __init__(
        self,
        model: SentenceEncoder | PairModel,
        outputs: Callable[[list[int]], Tensor],
        projection: nn.Module | None = None,
    ):
        super().__init__()
        self.model, self.projection, self.outputs = model, projection, outputs

    def forward(self, rows: list[int]) -> Tensor:
        return self.outputs(rows)


@dataclass
class Task:
    """``network`` and ``criterion`` take the numbers of a batch's rows; ``best`` is the metric that chooses."""

    network: Network
    criterion: Callable[[Tensor, list[int]], Tensor]  # the network's outputs of a whole batch, its rows -> a scalar
    encoded: list[Encoded]  # the training texts, tokenized once
    lengths: list[int]  # tokens that each row takes in a batch of its like
    evaluate: Callable[[str], Scores]  # of dev or test
    best: str
    keys: list[tuple[str, ...]] | None = None  # texts that must not meet in a batch, where they would be wrong answers
    separable: bool = True  # is the loss of a batch the mean of its rows' losses?
    notes: dict[str, str] = field(default_factory=dict)  # split -> where it is from and how many rows, for people

    @property
    def model(self) -> SentenceEncoder | PairModel:
        """What is saved: the network without what is needed in training only."""
        return self.network.model

    @property
    def encoder(self) -> SentenceEncoder:
        return self.model.encoder if isinstance(self.model, PairModel) else self.model

    def loss(self, rows: list[int]) -> Tensor:
        """The loss of some rows as one batch."""
        return self.criterion(self.network(rows), rows)

    def batches(self, batch_size: int, generator: torch.Generator) -> list[list[int]]:
        """One epoch of row numbers."""
        if self.keys is None:
            return length_grouped_batches(self.lengths, batch_size, generator)
        return unique_batches(self.keys, self.lengths, batch_size, generator)

    def parameter_groups(self, lr: float, head_lr: float | None) -> list[dict[str, Any]]:
        """The parameters to train with their peak learning rates: the encoder's, then those of what stands on it."""
        inner = {id(parameter) for parameter in self.encoder.bert.parameters()}
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        sides = ([p for p in trained if id(p) in inner], [p for p in trained if id(p) not in inner])
        rates = (lr, lr if head_lr is None else head_lr)
        return [{"params": side, "lr": rate, "peak": rate} for side, rate in zip(sides, rates, strict=True) if side]

    def trains(self) -> bool:
        """Does the loss depend on anything that is not frozen?"""
        self.model.eval()  # without dropout no random number is drawn
        return self.loss(list(range(min(2, len(self.lengths))))).requires_grad

    def idle(self) -> list[nn.Parameter]:
        """Parameters of the model that the loss can never reach: a pooler or pooling that the head does not read."""
        encoder = self.encoder
        pooled = self.model is encoder or isinstance(self.model.head, ConcatHead)
        parts = [] if pooled else [encoder.pooling, encoder.dense]
        if encoder.bert.pooler is not None and not (pooled and "pooler" in encoder.pooling.names):
            parts.append(encoder.bert.pooler)
        return [parameter for part in parts for parameter in part.parameters()]

    @property
    def truncated(self) -> int:
        """Training texts that had to be cut."""
        return sum(encoded.truncated for encoded in self.encoded)


def encoder_task(
    encoder: SentenceEncoder,
    columns: Sequence[Sequence[str]],
    loss: Callable[[Sequence[Tensor], list[int]], Tensor],
    scores: Callable[[str], Scores],
    best: str = "spearman",
    in_batch_negatives: bool = False,
    projection: nn.Module | None = None,
) -> Task:
    """A task on sentence vectors. ``columns`` are the texts of the rows; ``loss`` takes one (B, D) per column.

    All columns go through the encoder in one forward. With in-batch negatives no text stands in a batch twice.
    """
    encoded = [encoder.tokenizer.encode(column) for column in columns]

    def vectors(rows: list[int]) -> Tensor:
        # column after column: (n B, T), the first B rows are the first column's
        ids, mask = pad_batch([column.ids[row] for column in encoded for row in rows], encoder.tokenizer.pad_id)
        found = encoder(ids.to(encoder.device), None if mask is None else mask.to(encoder.device))  # (n B, D)
        found = found if projection is None else projection(found)
        return found.unflatten(0, (len(encoded), -1)).transpose(0, 1)  # (B, n, D)

    return Task(
        network=Network(encoder, vectors, projection),
        criterion=lambda outputs, rows: loss(outputs.unbind(dim=1), rows),
        encoded=encoded,
        lengths=[len(ids) * max(map(len, ids)) for ids in zip(*(column.ids for column in encoded), strict=True)],
        evaluate=scores,
        best=best,
        keys=list(zip(*columns, strict=True)) if in_batch_negatives else None,
        separable=not in_batch_negatives,
    )


def pair_task(
    model: PairModel,
    rows: Sequence[ScoredPair | LabelledPair],
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    scores: Callable[[str], Scores],
    best: str,
) -> Task:
    """A task on pairs: ``loss`` takes the head's outputs of a batch and its targets."""
    encoded = model.tokenize([row.sentence1 for row in rows], [row.sentence2 for row in rows])
    targets = targets.to(model.encoder.device)
    return Task(
        network=Network(model, lambda chosen: model(*model.batch(encoded, chosen))),  # (B,), for classes (B, C)
        criterion=lambda outputs, chosen: loss(outputs, targets[chosen]),
        encoded=[encoded],
        lengths=model.lengths(encoded),
        evaluate=scores,
        best=best,
    )


# ------------------------------------------------------------------------------------------ scores


def vector_scores(encoder: SentenceEncoder, pairs: list[ScoredPair], contrastive: bool = False) -> Scores:
    """Cosine against people's scores; for a contrastive objective also how the vectors lie (Wang & Isola 2020)."""
    u, v = encode_pairs(encoder, pairs, progress=True)  # (N, D) each
    found = {metric: values["cosine"] for metric, values in correlations(u, v, pairs).items()}
    if not contrastive:
        return found
    texts = [pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]
    everything = np.stack(list(dict(zip(texts, chain(u, v), strict=True)).values()))  # every text once, (M, D)
    found |= {"uniformity": uniformity(everything), "mean_cosine": mean_off_diagonal_cosine(everything)}
    alike = [pair.score >= ALIKE for pair in pairs]
    if any(alike):
        found["alignment"] = alignment(u[alike], v[alike])
    return found


def pair_scores(model: PairModel, rows: Sequence[ScoredPair | LabelledPair]) -> Scores:
    """Of a head: correlations, binary scores at a probability of .5, or accuracy."""
    found = model.scores([row.sentence1 for row in rows], [row.sentence2 for row in rows], progress=True)
    if model.task == "regression":
        truth = [row.score for row in rows]
        try:
            return {"pearson": pearson(found, truth), "spearman": spearman(found, truth)}
        except ValueError as error:
            raise InputError(f"the head's scores against people's: {error}; a lower --head-lr may help") from error
    if model.task == "binary":
        return binary_scores(found, labels_of(rows), threshold=0.5)
    return {"accuracy": accuracy(found.argmax(axis=1), labels_of(rows))}


def cosine_scores(encoder: SentenceEncoder, rows: list[LabelledPair], dev: list[LabelledPair]) -> Scores:
    """Duplicate or not by the cosine alone, at the threshold with the best F1 on dev."""
    threshold, _ = best_threshold(cosines(encoder, dev), labels_of(dev))
    return binary_scores(cosines(encoder, rows), labels_of(rows), threshold) | {"threshold": threshold}


def cosines(encoder: SentenceEncoder, rows: list[LabelledPair]) -> np.ndarray:
    u, v = np.split(encoder.encode([row.sentence1 for row in rows] + [row.sentence2 for row in rows]), 2)  # (N, D)
    return (u * v).sum(axis=1) / (np.linalg.norm(u, axis=1) * np.linalg.norm(v, axis=1))


def binary_scores(scores: np.ndarray, labels: np.ndarray, threshold: float) -> Scores:
    predicted = (scores >= threshold).astype(int)
    precision, recall, f1 = precision_recall_f1(predicted, labels)
    return {"accuracy": accuracy(predicted, labels), "f1": f1, "precision": precision, "recall": recall}


def labels_of(rows: Sequence[LabelledPair]) -> np.ndarray:
    return np.array([row.label for row in rows])
