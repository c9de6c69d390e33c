"""Define what a run needs to know of its task: training rows by number, their loss, and an
evaluation.

Each objective is a class: its constructor reads the rows, ``formula`` names the loss. The network
turns row numbers into what the formula reads, so a training step is ``fit`` -> ``loss`` ->
``formula``.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.core import InputError
from minisbert.core.data import TextColumns, length_grouped_batches
from minisbert.core.heads import ConcatHead
from minisbert.core.tokenizer import Encoded
from minisbert.data.batches import unique_batches
from minisbert.data.datasets import MAX_SCORE, Row, Sources
from minisbert.evaluation.evaluators import correlate, encode_pairs, row_scores
from minisbert.evaluation.retrieval import REPORTED, Retrieval, retrieval_scores
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.losses import matryoshka_loss
from minisbert.training.settings import SETTINGS, RunSettings, reads

Scores = dict[str, float]
Loss = Callable[..., Tensor]  # the objective's formula; only of losses that are means over rows
Network = Callable[[Sequence[int]], Tensor]  # a ``RowNetwork``, or a wrapper of it


def vector_scores(
    encoder: SentenceEncoder,
    pairs: list[Row],
    loss: Loss | None = None,
    prefixes: Sequence[int] = (),
) -> Scores:
    """Correlate the cosine with the human scores.

    ``spearman@64`` is that of the first 64 columns, for each width in ``prefixes`` below the
    encoder's. ``loss`` is that of the cosines and the scores on the scale of 0 to 1, both (N,).
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
    return scores


def score_targets(pairs: Sequence[Row]) -> Tensor:
    """Return the scores on the scale of 0 to 1, (N,), as in training."""
    return torch.tensor([pair.score / MAX_SCORE for pair in pairs])


def labels_of(rows: Sequence[Row]) -> np.ndarray:
    return np.array([row.label for row in rows])


def two_columns(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Return the first texts of all pairs, and their second ones."""
    return [row.sentence1 for row in rows], [row.sentence2 for row in rows]


class RowNetwork(nn.Module):
    """Turn the numbers of rows into what a loss reads: ``compute`` does, from the tensors of
    ``inputs``.
    """

    dtype = torch.float32  # of the encoder's matrix products
    inputs: Callable[[Sequence[int]], Any]
    compute: Callable[..., Tensor]

    def __init__(
        self, model: SentenceEncoder | PairModel, encoded: list[Encoded], lengths: list[int]
    ):
        super().__init__()
        self.model: Any = model
        self.encoded = encoded  # the training texts, tokenized once
        self.lengths = lengths  # padded token count of each row, all its texts together

    def forward(self, rows: list[int]) -> Tensor:
        """Turn the numbers of B rows into what ``compute`` makes of them, (B, ...)."""
        device = self.model.device
        return self.compute(*(None if x is None else x.to(device) for x in self.inputs(rows)))


class VectorNetwork(RowNetwork):
    """Encode columns of texts, with an optional projection that only training uses (SimCSE, section
    6.3).
    """

    def __init__(
        self, model: SentenceEncoder, columns: TextColumns, projection: nn.Module | None = None
    ):
        super().__init__(model, columns.encoded, columns.lengths)
        # ids and mask of all texts, on the CPU: (n B, T), all first columns, then all second ones
        self.inputs, self.projection = columns.batch, projection

    def compute(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the vectors of B rows with n texts each: (n B, T) -> (B, n, D)."""
        vectors = self.model(ids, mask, self.dtype)  # (n B, D)
        if self.projection is not None:
            vectors = self.projection(vectors)
        return vectors.unflatten(0, (len(self.encoded), -1)).transpose(
            0, 1
        )  # (n, B, D) -> (B, n, D)


class PairNetwork(RowNetwork):
    """Apply an encoder and a head to tokenized pairs: (B,), or (B, C) for classes."""

    def inputs(self, rows: Sequence[int]) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return ids, mask and token types, on the model's device."""
        return self.model.batch(self.encoded[0], rows)

    def compute(self, ids: Tensor, mask: Tensor | None, types: Tensor | None = None) -> Tensor:
        return self.model(ids, mask, types, self.dtype)


class Objective:
    """Hold the rows of a run, their loss and their evaluation.

    Subclasses define ``formula``, the mean loss of a batch from what the network makes of its rows,
    and ``evaluate(split)``, the scores on ``dev`` or ``test``.
    """

    formula: Callable[..., Tensor]
    evaluate: Callable[[str], Scores]

    best = "spearman"  # the metric that chooses the best model
    separable = True  # is the loss of a batch the mean of its rows' losses?
    by_rows = True  # does ``loss`` call the network once, with the rows of the batch?
    taught = ""  # a hash of the teacher and its texts
    prefixes: Sequence[
        int
    ] = ()  # the loss is also that of the vectors' first columns, for each of these widths
    keys: list[tuple[str, ...]] | None = (
        None  # texts that must not meet in a batch: they would be false negatives
    )

    def __init__(
        self,
        options: RunSettings,
        network: RowNetwork,
        rows: dict[str, list],
        notes: dict[str, str],
        targets: Tensor | None = None,
    ):
        self.options, self.network, self.encoded, self.lengths = (
            options,
            network,
            network.encoded,
            network.lengths,
        )
        self.model: Any = (
            network.model
        )  # what is saved: the network without what only training needs
        self.encoder = self.model.encoder if isinstance(self.model, PairModel) else self.model
        self.rows, self.notes = (
            rows,
            notes,
        )  # of train, dev and test; where each comes from, and how many they are
        # (N, ...) of the training rows
        self.targets: Any = None if targets is None else targets.to(self.encoder.device)
        self.retrieval: dict[
            str, Retrieval | None
        ] = {}  # of dev and test: searches to evaluate as well

    def loss(self, network: Network, rows: Sequence[int]) -> Tensor:
        """Compute the mean loss of a batch by ``self.network`` or a wrapper of it: ``formula`` of
        the vectors' columns.

        With ``prefixes`` it is the sum of those of the first columns of the vectors.
        """
        # before the network: a GPU gets row numbers when it has no other work
        targets = [] if self.targets is None else [self.targets[rows]]
        vectors = network(rows).unbind(dim=1)  # n of (B, D)
        if not self.prefixes:
            return self.formula(*vectors, *targets)
        return matryoshka_loss(
            lambda *cut: self.formula(*cut, *targets), *vectors, dims=self.prefixes
        )

    def scores(self, split: str) -> Scores:
        """Evaluate ``split``, and a search with relevant documents if the run has one."""
        scores = self.evaluate(split) if self.rows[split] else {}
        if task := self.retrieval.get(split):
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
        """Return the parameters to train with their peak learning rates: the encoder's, then those
        of all after it.
        """
        inside = {id(parameter) for parameter in self.encoder.bert.parameters()}
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        groups = [
            {"params": [parameter for parameter in trained if id(parameter) in inside], "lr": lr},
            {
                "params": [parameter for parameter in trained if id(parameter) not in inside],
                "lr": lr if head_lr is None else head_lr,
            },
        ]
        return [group for group in groups if group["params"]]

    def unused_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the loss never reaches: a pooler or a pooling that the head
        does not read.
        """
        encoder = self.encoder
        unused: list[nn.Parameter] = []
        # a joint or a cross head reads the states of tokens, all others read the pooled vectors
        pooled = not isinstance(self.model, PairModel) or isinstance(self.model.head, ConcatHead)
        if not pooled:
            unused += [*encoder.pooling.parameters(), *encoder.dense.parameters()]
        if encoder.bert.pooler is not None:
            unused += encoder.bert.pooler.parameters()
        return unused

    def check_gradients(self) -> None:
        """Raise ``InputError`` if a trainable parameter has no gradient after a step."""
        named = self.network.named_parameters()
        missed = [
            name for name, parameter in named if parameter.requires_grad and parameter.grad is None
        ]
        if missed:
            raise InputError(
                f"no gradient reaches {len(missed)} of the trainable parameters, such as "
                f"{missed[0]}"
            )


def sources_of(options: RunSettings) -> Sources:
    """Return where the rows of a run come from."""
    names = [
        each.name
        for each in fields(Sources)
        if each.name in SETTINGS and reads(options.objective, each.name)
    ]
    return Sources(**{name: getattr(options, name) for name in names})
