"""Define what a run needs to know of its task: training rows by number, their loss, and an evaluation.

Each objective is a class: its constructor reads the rows, ``loss`` names the formula. The network turns row numbers
into what the formula reads, so a training step is ``fit`` -> ``loss`` -> formula. The scores that evaluations share
come first, then the networks, then ``Objective``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.core import InputError
from minisbert.core.data import TextColumns, length_grouped_batches
from minisbert.core.heads import ConcatHead
from minisbert.core.tokenizer import Encoded
from minisbert.data.batches import unique_batches
from minisbert.data.datasets import Sources
from minisbert.data.formats import Row
from minisbert.evaluation import metrics
from minisbert.evaluation.evaluators import correlate, encode_pairs, row_scores
from minisbert.evaluation.retrieval import REPORTED, Retrieval, retrieval_scores
from minisbert.models.multi_vector_encoder import MultiVectorEncoder
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.similarity import MAX_SCORE
from minisbert.training.losses import matryoshka_loss
from minisbert.training.settings import RunSettings

Scores = dict[str, float]
Loss = Callable[..., Tensor]  # the objective's formula; only of losses that are means over rows
Network = Callable[[Sequence[int]], Tensor]  # a ``RowNetwork``, or a wrapper of it

ALIKE = 4.0  # alignment is measured on the pairs with a higher score than this, of 5 (SimCSE, section 3, footnote 3)


def vector_scores(
    encoder: SentenceEncoder,
    pairs: list[Row],
    contrastive: bool = False,
    loss: Loss | None = None,
    prefixes: Sequence[int] = (),
) -> Scores:
    """Correlate the cosine with the human scores; for a contrastive objective also geometry (Wang & Isola 2020).

    ``spearman@64`` is that of the first 64 columns, for each width in ``prefixes`` below the encoder's. ``loss`` is
    that of the cosines and the scores on the scale of 0 to 1, both (N,).
    """
    u, v = encode_pairs(encoder, *two_columns(pairs), show_progress_bar=True)  # (N, D) each
    human = [pair.score for pair in pairs]
    what, cosines = "cosine similarity against the scores", row_scores(encoder, u, v, "cosine")
    scores = correlate(what, cosines, human)
    for width in prefixes:
        if width < u.shape[1]:
            values = row_scores(encoder, u[:, :width], v[:, :width], "cosine")
            scores[f"spearman@{width}"] = correlate(what, values, human)["spearman"]
    if loss:
        scores["loss"] = float(loss(torch.from_numpy(cosines), score_targets(pairs)))
    if not contrastive:
        return scores
    # uniformity is over pairs of different texts: one that stands in several pairs would be near itself
    vector_of = {}
    for i, pair in enumerate(pairs):
        vector_of[pair.sentence1], vector_of[pair.sentence2] = u[i], v[i]
    everything = np.stack([*vector_of.values()])  # (M, D)
    scores["uniformity"] = metrics.uniformity(everything)
    scores["mean_cosine"] = metrics.mean_off_diagonal_cosine(everything)
    alike = [pair.score > ALIKE for pair in pairs]
    if any(alike):
        scores["alignment"] = metrics.alignment(u[alike], v[alike])
    return scores


def late_scores(encoder: MultiVectorEncoder, pairs: Sequence[Row]) -> Scores:
    """Correlate the mean best match of the first sentence's tokens in the second with the human scores.

    The first is encoded as a query. Their sum, ``max_sim``, grows with the number of tokens: it ranks texts for one
    query, but does not compare pairs.
    """
    first, second = two_columns(pairs)
    queries = encoder.encode(first, show_progress_bar=True, query=True)
    documents = encoder.encode(second, show_progress_bar=True, query=False)
    values = []
    for i in range(len(pairs)):
        values.append((queries[i] @ documents[i].T).max(axis=1).mean())  # (T, K) each
    human = [pair.score for pair in pairs]
    return correlate("mean best match against the scores", np.array(values, dtype=np.float64), human)


def pair_scores(model: PairModel, rows: Sequence[Row], loss: Loss | None = None) -> Scores:
    """For a head: correlations, binary scores at a probability of .5, or accuracy; and the ``loss`` of its outputs."""
    outputs = model.outputs(*two_columns(rows), progress=True)
    found = outputs.numpy()
    if model.task == "regression":
        human = [row.score for row in rows]
        scores = correlate("the head's scores against the human ones (a lower --head-lr may help)", found, human)
    elif model.task in ("binary", "labels"):  # with several labels, each is a decision; a logit of 0 is .5
        scores = binary_scores(found.ravel(), labels_of(rows).ravel(), threshold=0)
    else:
        scores = {"accuracy": metrics.accuracy(found.argmax(axis=1), labels_of(rows))}
    if loss:
        targets = score_targets(rows) if model.task == "regression" else torch.from_numpy(labels_of(rows))
        scores["loss"] = float(loss(outputs, targets))
    return scores


def cosine_scores(encoder: SentenceEncoder, rows: list[Row], dev: list[Row], loss: Loss | None = None) -> Scores:
    """Tell duplicates by the cosine alone, at the threshold with the best F1 on dev; and the ``loss`` on ``rows``."""
    u, v = encode_pairs(encoder, *two_columns(rows))  # (N, D) each
    labels = labels_of(rows)
    cosines = dev_cosines = row_scores(encoder, u, v, "cosine")
    if dev is not rows:  # dev itself needs no second encoding
        dev_cosines = row_scores(encoder, *encode_pairs(encoder, *two_columns(dev)), "cosine")
    threshold, _ = metrics.best_threshold(dev_cosines, labels_of(dev))
    scores = binary_scores(cosines, labels, threshold) | {"threshold": threshold}
    if loss:
        scores["loss"] = float(loss(torch.from_numpy(u), torch.from_numpy(v), torch.from_numpy(labels)))
    return scores


def binary_scores(scores: np.ndarray, labels: np.ndarray, threshold: float) -> Scores:
    predicted = (scores >= threshold).astype(int)
    precision, recall, f1 = metrics.precision_recall_f1(predicted, labels)
    return {"accuracy": metrics.accuracy(predicted, labels), "f1": f1, "precision": precision, "recall": recall}


def score_targets(pairs: Sequence[Row]) -> Tensor:
    """Return the scores on the scale of 0 to 1, (N,), as in training."""
    return torch.tensor([pair.score / MAX_SCORE for pair in pairs])


def labels_of(rows: Sequence[Row]) -> np.ndarray:
    return np.array([row.label for row in rows])


def two_columns(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Return the first texts of all pairs, and their second ones."""
    first, second = [], []
    for row in rows:
        first.append(row.sentence1)
        second.append(row.sentence2)
    return first, second


class RowNetwork(nn.Module):
    """Turn the numbers of rows into what a loss reads."""

    dtype = torch.float32  # of the encoder's matrix products

    def __init__(self, model: SentenceEncoder | PairModel, encoded: list[Encoded], lengths: list[int]):
        super().__init__()
        self.model = model
        self.encoded = encoded  # the training texts, tokenized once
        self.lengths = lengths  # padded token count of each row, all its texts together


class VectorNetwork(RowNetwork):
    """Encode columns of texts, with an optional projection that only training uses (SimCSE, section 6.3)."""

    model: SentenceEncoder

    def __init__(self, model: SentenceEncoder, columns: TextColumns, projection: nn.Module | None = None):
        super().__init__(model, columns.encoded, columns.lengths)
        self.columns, self.projection = columns, projection

    def forward(self, rows: list[int]) -> Tensor:
        """Turn the numbers of B rows with n texts each into vectors (B, n, D)."""
        ids, mask = self.inputs(rows)
        device = self.model.device
        if mask is not None:
            mask = mask.to(device)
        return self.compute(ids.to(device), mask)

    def inputs(self, rows: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Return ids and mask of all texts, on the CPU: (n B, T), all first columns, then all second ones."""
        return self.columns.batch(rows)

    def compute(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the vectors of ``inputs``: (n B, T) -> (B, n, D)."""
        vectors = self.model(ids, mask, self.dtype)  # (n B, D)
        if self.projection is not None:
            vectors = self.projection(vectors)
        return vectors.unflatten(0, (len(self.columns.encoded), -1)).transpose(0, 1)  # (n, B, D) -> (B, n, D)


class PairNetwork(RowNetwork):
    """Apply an encoder and a head to tokenized pairs."""

    model: PairModel

    def forward(self, rows: list[int]) -> Tensor:
        """Turn the numbers of B rows into the head's outputs: (B,), or (B, C) for classes."""
        return self.compute(*self.inputs(rows))

    def inputs(self, rows: Sequence[int]) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return ids, mask and token types, on the model's device."""
        return self.model.batch(self.encoded[0], rows)

    def compute(self, ids: Tensor, mask: Tensor | None, types: Tensor | None = None) -> Tensor:
        """Compute the outputs of ``inputs``."""
        return self.model(ids, mask, types, self.dtype)


class Objective:
    """Hold the rows of a run, their loss and their evaluation.

    Subclasses define ``loss(network, rows)``, the mean loss of a batch by ``self.network`` or a wrapper of it, and
    ``evaluate(split)``, the scores on ``dev`` or ``test``.
    """

    network: RowNetwork
    model: SentenceEncoder | PairModel
    rows: dict[str, list]  # of train, dev and test, as they were read
    loss: Callable[[Network, Sequence[int]], Tensor]
    evaluate: Callable[[str], Scores]

    best = "spearman"  # the metric that chooses the best model
    separable = True  # is the loss of a batch the mean of its rows' losses?
    by_rows = True  # does ``loss`` call the network once, with the rows of the batch?
    taught = ""  # a hash of the teacher and its texts
    done = 0.0  # fraction of the run's steps before this one
    prefixes: Sequence[int] = ()  # widths for ``nested_loss``
    keys: list[tuple[str, ...]] | None = None  # texts that must not meet in a batch: they would be false negatives

    def __init__(self, network: RowNetwork, notes: dict[str, str]):
        self.network, self.encoded, self.lengths = network, network.encoded, network.lengths
        self.model = network.model  # what is saved: the network without what only training needs
        self.encoder = self.model.encoder if isinstance(self.model, PairModel) else self.model
        self.notes = notes  # split -> its source and number of rows, for people
        self.retrieval: dict[str, Retrieval | None] = {}  # of dev and test: searches to evaluate as well

    def nested_loss(self, network: Network, rows: Sequence[int]) -> Tensor:
        """Add up ``loss`` of the first columns of the vectors, for each width in ``prefixes``."""

        def loss_of(*prefixes: Tensor) -> Tensor:
            vectors = torch.stack(prefixes, dim=1)  # (B, n, width)
            # a network that has encoded the rows already
            return self.loss(lambda rows: vectors, rows)

        return matryoshka_loss(loss_of, *network(rows).unbind(dim=1), dims=self.prefixes)

    def scores(self, split: str) -> Scores:
        """Evaluate ``split``, and a search with relevant documents if the run has one."""
        task = self.retrieval.get(split)
        scores = self.evaluate(split)
        if task is not None:
            search = retrieval_scores(self.encoder, task)
            scores |= {name: search[name] for name in REPORTED}
        return scores

    def batches(self, batch_size: int, generator: torch.Generator) -> list[list[int]]:
        """Draw the row numbers of one epoch: rows of like length together, in random order.

        Rows with ``keys`` meet in no batch with a row that shares one.
        """
        if self.keys is not None:
            return unique_batches(self.keys, self.lengths, batch_size, generator)
        return length_grouped_batches(self.lengths, batch_size, generator)

    def parameter_groups(self, lr: float, head_lr: float | None) -> list[dict[str, Any]]:
        """Return the parameters to train with their peak learning rates: the encoder's, then those of all after it."""
        inside = {id(parameter) for parameter in self.encoder.bert.parameters()}
        encoder: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for parameter in self.network.parameters():
            if parameter.requires_grad:
                group = encoder if id(parameter) in inside else rest
                group.append(parameter)
        groups = [{"params": encoder, "lr": lr}, {"params": rest, "lr": lr if head_lr is None else head_lr}]
        return [group for group in groups if group["params"]]

    def unused_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the loss never reaches: a pooler or a pooling that the head does not read."""
        encoder = self.encoder
        unused: list[nn.Parameter] = []
        # a joint or a cross head reads the states of tokens, all others read the pooled vectors
        pooled = not isinstance(self.model, PairModel) or isinstance(self.model.head, ConcatHead)
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


def sources_of(options: RunSettings) -> Sources:
    """Return where the rows of a run come from."""
    return Sources(
        data=options.data,
        dev=options.dev,
        test=options.test,
        columns=options.columns,
        limit=options.limit,
        seed=options.seed,
    )
