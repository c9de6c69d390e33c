"""An objective: training rows by number, their loss, and an evaluation. All that a run needs to know of its task.

Each objective is a class: its constructor reads the rows, ``loss`` names the formula. The network turns row numbers
into what the formula reads, so a training step is ``fit`` -> ``loss`` -> formula.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.core import InputError
from minisbert.core.data import TextColumns, length_grouped_batches
from minisbert.core.heads import ConcatHead
from minisbert.core.tokenizer import Encoded
from minisbert.data.batches import unique_batches
from minisbert.data.formats import Row
from minisbert.evaluation.metrics import (
    accuracy,
    alignment,
    best_threshold,
    mean_off_diagonal_cosine,
    precision_recall_f1,
    uniformity,
)
from minisbert.evaluation.retrieval import REPORTED, Retrieval, retrieval_scores
from minisbert.evaluation.sts import correlate, encode_pairs, similarities
from minisbert.models.multi_vector_encoder import MultiVectorEncoder
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.similarity import MAX_SCORE
from minisbert.system.progress import naming_bars
from minisbert.training.losses import matryoshka_loss

Scores = dict[str, float]
Loss = Callable[..., Tensor]  # the objective's formula; only of losses that are means over rows

ALIKE = 4.0  # alignment is measured on the pairs with a higher score than this, of 5 (SimCSE, section 3, footnote 3)


def vector_scores(
    encoder: SentenceEncoder,
    pairs: list[Row],
    contrastive: bool = False,
    loss: Loss | None = None,
    prefixes: Sequence[int] = (),
) -> Scores:
    """The cosine against people's scores; for a contrastive objective also the geometry (Wang & Isola 2020).

    ``spearman@64`` is that of the first 64 columns, for each width in ``prefixes`` below the encoder's. ``loss`` is
    that of the cosines and the scores on the scale of 0 to 1, both (N,).
    """
    u, v = encode_pairs(encoder, pairs, progress=True)  # (N, D) each
    what, cosines = "cosine similarity against the scores", similarities(u, v)["cosine"]
    found = correlate(what, cosines, pairs)
    for width in prefixes:
        if width < u.shape[1]:
            values = similarities(u[:, :width], v[:, :width])["cosine"]
            found[f"spearman@{width}"] = correlate(what, values, pairs)["spearman"]
    if loss:
        found["loss"] = float(loss(torch.from_numpy(cosines), score_targets(pairs)))
    if not contrastive:
        return found
    texts = [pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]
    everything = np.stack(list(dict(zip(texts, chain(u, v), strict=True)).values()))  # each text once, (M, D)
    found |= {"uniformity": uniformity(everything), "mean_cosine": mean_off_diagonal_cosine(everything)}
    alike = [pair.score > ALIKE for pair in pairs]
    if any(alike):
        found["alignment"] = alignment(u[alike], v[alike])
    return found


def late_scores(encoder: MultiVectorEncoder, pairs: Sequence[Row]) -> Scores:
    """The mean best match of the first sentence's tokens in the second, against people's scores.

    The first is encoded as a query. Their sum, ``max_sim``, grows with the number of tokens: it ranks texts for one
    query, but does not compare pairs.
    """
    queries = encoder.encode([pair.sentence1 for pair in pairs], show_progress_bar=True, query=True)
    documents = encoder.encode([pair.sentence2 for pair in pairs], show_progress_bar=True, query=False)
    values = [(queries[i] @ documents[i].T).max(axis=1).mean() for i in range(len(pairs))]
    return correlate("mean best match against the scores", np.array(values, dtype=np.float64), pairs)


def pair_scores(model: PairModel, rows: Sequence[Row], loss: Loss | None = None) -> Scores:
    """For a head: correlations, binary scores at a probability of .5, or accuracy; and the ``loss`` of its outputs."""
    found = model.scores([row.sentence1 for row in rows], [row.sentence2 for row in rows], show_progress_bar=True)
    if model.task == "regression":
        scores = correlate("the head's scores against people's (a lower --head-lr may help)", found, rows)
    elif model.task in ("binary", "labels"):  # with several labels, each is a decision
        scores = binary_scores(found.ravel(), labels_of(rows).ravel(), threshold=0.5)
    else:
        scores = {"accuracy": accuracy(found.argmax(axis=1), labels_of(rows))}
    if loss:
        targets = score_targets(rows) if model.task == "regression" else torch.from_numpy(labels_of(rows))
        scores["loss"] = float(loss(outputs_of(model.task, torch.from_numpy(found)), targets))
    return scores


def outputs_of(task: str, scores: Tensor) -> Tensor:
    """A head's outputs, as its loss reads them, from its scores: the inverse of ``PairModel.readable``."""
    if task == "regression":
        return scores / MAX_SCORE
    if task == "classes":
        return scores.clamp_min(torch.finfo(scores.dtype).tiny).log()
    return scores.double().logit(eps=1e-7)  # subtle: as float32 the sigmoid of 17 is 1, whose logit is infinite


def cosine_scores(encoder: SentenceEncoder, rows: list[Row], dev: list[Row], loss: Loss | None = None) -> Scores:
    """Duplicate or not by the cosine alone, at the threshold with the best F1 on dev; and the ``loss`` on ``rows``."""
    (u, v), labels = encode_pairs(encoder, rows), labels_of(rows)
    cosines = dev_cosines = similarities(u, v)["cosine"]
    if dev is not rows:
        dev_cosines = similarities(*encode_pairs(encoder, dev))["cosine"]
    threshold, _ = best_threshold(dev_cosines, labels_of(dev))
    found = binary_scores(cosines, labels, threshold) | {"threshold": threshold}
    if loss:
        found["loss"] = float(loss(*map(torch.from_numpy, (u, v, labels))))
    return found


def binary_scores(scores: np.ndarray, labels: np.ndarray, threshold: float) -> Scores:
    predicted = (scores >= threshold).astype(int)
    precision, recall, f1 = precision_recall_f1(predicted, labels)
    return {"accuracy": accuracy(predicted, labels), "f1": f1, "precision": precision, "recall": recall}


def score_targets(pairs: Sequence[Row]) -> Tensor:
    """The scores on the scale of 0 to 1, (N,), as training has them."""
    return torch.tensor([pair.score / MAX_SCORE for pair in pairs])


def labels_of(rows: Sequence[Row]) -> np.ndarray:
    return np.array([row.label for row in rows])


class VectorNetwork(nn.Module):
    """An encoder over columns of texts, with an optional projection that only training uses (SimCSE, section 6.3)."""

    dtype = torch.float32  # of the encoder's matrix products

    def __init__(self, model: SentenceEncoder, columns: TextColumns, projection: nn.Module | None = None):
        super().__init__()
        self.model, self.columns, self.projection = model, columns, projection

    def forward(self, rows: list[int]) -> Tensor:
        """The numbers of B rows with n texts each -> vectors (B, n, D)."""
        ids, mask = self.columns.batch(rows)  # (n B, T)
        device = self.model.device
        if mask is not None:
            mask = mask.to(device)
        vectors = self.model(ids.to(device), mask, self.dtype)  # (n B, D)
        if self.projection is not None:
            vectors = self.projection(vectors)
        return vectors.unflatten(0, (-1, len(rows))).transpose(0, 1)  # (n, B, D) -> (B, n, D)


class PairNetwork(nn.Module):
    """An encoder with a head over tokenized pairs."""

    dtype = torch.float32

    def __init__(self, model: PairModel, encoded: Encoded):
        super().__init__()
        self.model, self.encoded = model, encoded

    def forward(self, rows: list[int]) -> Tensor:
        """The numbers of B rows -> the head's outputs: (B,), or (B, C) for classes."""
        return self.model(*self.model.batch(self.encoded, rows), self.dtype)


class Objective:
    """Rows, their loss and their evaluation.

    Subclasses define ``loss(network, rows)``, the mean loss of a batch by ``self.network`` or a wrapper of it, and
    ``evaluate(split)``, the scores on ``dev`` or ``test``.
    """

    rows: dict[str, list]  # of train, dev and test, as they were read
    loss: Callable[[nn.Module, list[int]], Tensor]
    evaluate: Callable[[str], Scores]

    best = "spearman"  # the metric that chooses the best model
    separable = True  # is the loss of a batch the mean of its rows' losses?
    taught = ""  # a hash of the teacher and its texts
    done = 0.0  # fraction of the run's steps before this one
    order = "grouped"  # one of ``--batches``; only if ``keys`` is None
    prefixes: Sequence[int] = ()  # widths for ``nested_loss``
    keys: list[tuple[str, ...]] | None = None  # texts that must not meet in a batch: they would be false negatives

    def __init__(
        self, network: VectorNetwork | PairNetwork, encoded: list[Encoded], lengths: list[int], notes: dict[str, str]
    ):
        self.network = network
        self.encoded = encoded  # the training texts, tokenized once
        self.lengths = lengths  # padded token count of each row, all its texts together
        self.notes = notes  # split -> its source and number of rows, for people
        self.retrieval: dict[str, Retrieval | None] = {}  # of dev and test: searches to evaluate as well

    def nested_loss(self, network: nn.Module, rows: list[int]) -> Tensor:
        """The sum of ``loss`` over the first columns of the vectors, for each width in ``prefixes``."""

        def loss_of(*prefixes: Tensor) -> Tensor:
            vectors = torch.stack(prefixes, dim=1)  # (B, n, width)
            return self.loss(lambda rows: vectors, rows)

        return matryoshka_loss(loss_of, *network(rows).unbind(dim=1), dims=self.prefixes)

    def scores(self, split: str) -> Scores:
        """``evaluate``, and of a search with relevant documents, if the run has one, how well it finds them."""
        task = self.retrieval.get(split)
        with naming_bars(f"scores on {split}"):
            scores = self.evaluate(split)
            if task is not None:
                search = retrieval_scores(self.encoder, task)
                scores |= {name: search[name] for name in REPORTED}
        return scores

    @property
    def model(self) -> SentenceEncoder | PairModel:
        """What is saved: the network without what only training needs."""
        return self.network.model

    @property
    def encoder(self) -> SentenceEncoder:
        if isinstance(self.model, PairModel):
            return self.model.encoder
        return self.model

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the training rows as tokens, their targets, the dev and test rows, and the encoder's settings."""
        encoder = self.encoder
        after = (encoder.normalize, [layer.activation for layer in encoder.dense], encoder.settings, self.taught)
        digest = hashlib.sha256(repr((encoder.bert.config, encoder.pooling_mode, after)).encode())
        for column in self.encoded:
            for ids, types in zip(column.ids, column.token_types, strict=True):
                digest.update(np.array([len(ids), *ids, *types], dtype=np.int32).tobytes())
        for name, value in sorted(vars(self).items()):
            if isinstance(value, Tensor):  # targets or labels
                digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
                digest.update(value.cpu().numpy().tobytes())
            elif isinstance(value, dict) and value is not self.notes:  # rows by split
                digest.update(repr((name, value.get("dev"), value.get("test"))).encode())
        return digest.hexdigest()

    def batches(self, batch_size: int, generator: torch.Generator) -> list[list[int]]:
        """The row numbers of one epoch: rows of like length together, in random order, unless ``order`` differs."""
        if self.keys is not None:
            return unique_batches(self.keys, self.lengths, batch_size, generator)
        if self.order == "fixed":
            rows = list(range(len(self.lengths)))
            return [rows[start : start + batch_size] for start in rows[::batch_size]]
        if self.order == "random":  # a window of one batch: any rows may meet in it
            return length_grouped_batches(self.lengths, batch_size, generator, window=1)
        return length_grouped_batches(self.lengths, batch_size, generator)

    def parameter_groups(self, lr: float, head_lr: float | None) -> list[dict[str, Any]]:
        """The parameters to train with their peak learning rates: the encoder's, then those of everything after it."""
        inside = {id(parameter) for parameter in self.encoder.bert.parameters()}
        encoder, rest = [], []
        for parameter in self.network.parameters():
            if parameter.requires_grad:
                (encoder if id(parameter) in inside else rest).append(parameter)
        if head_lr is None:
            head_lr = lr
        groups = [{"params": encoder, "lr": lr}, {"params": rest, "lr": head_lr}]
        return [group for group in groups if group["params"]]

    def unused_parameters(self) -> list[nn.Parameter]:
        """Parameters of the model that the loss never reaches: a pooler or a pooling that the head does not read."""
        encoder, unused = self.encoder, []
        pooled = self.model is encoder or isinstance(self.model.head, ConcatHead)
        if not pooled:
            unused += [*encoder.pooling.parameters(), *encoder.dense.parameters()]
        if encoder.bert.pooler is not None and not (pooled and "pooler" in encoder.pooling.names):
            unused += encoder.bert.pooler.parameters()
        return unused

    def check_gradients(self) -> None:
        """Raise ``InputError`` if a trainable parameter has no gradient after a step."""
        missed = []
        for name, parameter in self.network.named_parameters():
            if parameter.requires_grad and parameter.grad is None:
                missed.append(name)
        if missed:
            raise InputError(f"no gradient reaches {len(missed)} of the trainable parameters, such as {missed[0]}")
