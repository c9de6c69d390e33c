"""What the trainer must know of a loss: its rows, its network, its formula, and how dev is scored.

A network turns the numbers of training rows into what a formula reads: vectors, or the scores of a
head. It gets numbers and not texts because the texts are tokenized once, and because a batch can
then be divided among processes or computed in parts.

    rows 3, 8, 1 ──> network ──> vectors (B, n, D) ──> formula ──> the mean loss of the batch
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from minisbert.core import InputError
from minisbert.core.data import TextColumns, length_grouped_batches
from minisbert.core.loop import Diverged
from minisbert.core.tokenizer import Encoded
from minisbert.data.batches import unique_batches
from minisbert.data.columns import Columns
from minisbert.data.rows import as_needs, as_rows
from minisbert.evaluation.retrieval import Retrieval
from minisbert.models.pair_heads import Head
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.text_encoder import NotFinite
from minisbert.system.console import say
from minisbert.training.distributed import ProcessGroup
from minisbert.training.losses import matryoshka_loss
from minisbert.training.named_heads import HEADS
from minisbert.training.scores import Evaluation, evaluate_encoder

Network = Callable[[Sequence[int]], Tensor]  # a ``RowNetwork``, or what is wrapped around it
PAIRS = Columns(2, more_texts=True)  # anchor, positive and any number of negatives
SCORED = Columns(2, "score")
PLAIN = (str, int, float, bool, tuple, type(None))  # values that identify a loss

# -----------------------------------------------------------------------------
# networks


class RowNetwork(nn.Module):
    """Turn the numbers of B rows into what a formula reads, (B, ...)."""

    dtype = torch.float32  # of the encoder's matrix products
    model: Any
    lengths: list[int]  # padded tokens of each row, all its texts together
    encoded: list[Encoded]  # the texts' tokens

    def forward(self, rows: Sequence[int]) -> Tensor:
        raise NotImplementedError


class VectorNetwork(RowNetwork):
    """Encode the n texts of each row: (B, n, D)."""

    def __init__(
        self, model: SentenceEncoder, columns: TextColumns, projection: nn.Module | None = None
    ):
        super().__init__()
        self.model = model
        self.columns = columns
        self.encoded = columns.encoded
        self.lengths = columns.lengths
        self.projection = projection  # a layer that only training uses (SimCSE, section 6.3)

    def forward(self, rows: Sequence[int]) -> Tensor:
        # one forward serves all columns: all first texts, then all second ones, ...
        ids, mask = self.columns.batch(rows)  # (n B, T)
        ids = ids.to(self.model.device)
        if mask is not None:
            mask = mask.to(self.model.device)
        vectors = self.model(ids, mask, self.dtype)  # (n B, D)
        if self.projection is not None:
            vectors = self.projection(vectors)
        vectors = vectors.unflatten(0, (len(self.encoded), -1))  # (n, B, D)
        return vectors.transpose(0, 1)  # (B, n, D)


class PairNetwork(RowNetwork):
    """Apply an encoder and a head to pairs of texts: (B,), or (B, C) for classes."""

    def __init__(self, model: PairModel, firsts: Sequence[str], seconds: Sequence[str]):
        super().__init__()
        self.model = model
        self.pairs = model.tokenize(firsts, seconds)
        self.encoded = [self.pairs]
        self.lengths = model.lengths(self.pairs)

    def forward(self, rows: Sequence[int]) -> Tensor:
        ids, mask, types = self.model.batch(self.pairs, rows)
        return self.model(ids, mask, types, self.dtype)


# -----------------------------------------------------------------------------
# losses


class Loss:
    """One way to train. Subclasses say which rows they read, and compute the loss of a batch.

    ``prepare`` is called once with the model and the training rows, and returns the network.
    ``batch_loss`` computes the mean loss of some rows by that network, or by a wrapper of it.
    """

    columns: ClassVar[Columns | tuple[Columns, ...]] = PAIRS  # what a training row holds
    judged_by: ClassVar[tuple[Columns, ...]] = ()  # what a dev row may hold instead
    compares_rows: ClassVar[bool] = False  # the loss of a batch is not the mean of its rows' losses
    negatives_in_batch: ClassVar[bool] = False  # no text may be twice in a batch
    task: ClassVar[str] = ""  # of a head, if the loss trains one
    default_data: ClassVar[str | None] = None  # without --data
    taught = ""  # a hash of the teacher and its texts
    targets: Any = None  # of the training rows, (N, ...)

    def make_head(self, name: str, encoder: SentenceEncoder, outputs: int) -> Head:
        """Make the head of ``--head``; a loss may have one of its own."""
        return HEADS[name](encoder, outputs)

    def prepare(self, model: Any, rows: Sequence[tuple]) -> RowNetwork:
        raise NotImplementedError

    def batch_loss(self, network: Network, batch: Sequence[int]) -> Tensor:
        raise NotImplementedError

    def evaluate(self, model: Any, rows: Any) -> Evaluation:
        raise NotImplementedError

    def batches(
        self,
        rows: Sequence[tuple],
        lengths: Sequence[int],
        batch_size: int,
        generator: torch.Generator,
    ) -> list[list[int]]:
        """Draw the row numbers of one epoch: rows of like length together, in random order."""
        if self.negatives_in_batch:
            # a text in two rows of a batch would be its own negative
            return unique_batches(rows, lengths, batch_size, generator)
        return length_grouped_batches(lengths, batch_size, generator)

    def identity(self) -> str:
        """Name the loss and its settings: two runs of the same rows with other ones differ."""
        settings = {name: value for name, value in vars(self).items() if isinstance(value, PLAIN)}
        return f"{type(self).__name__} {settings} {self.taught}"


@dataclass
class EncoderLoss(Loss):
    """A loss of the vectors of a row's texts: ``formula(u, v, ..., targets)``.

    ``formula`` gets a (B, D) tensor for each column of texts, and if the last column of the rows is
    a number, the numbers (B,). ``matryoshka`` adds the losses of the first columns of the vectors,
    for each of these widths, so that vectors can be cut (Kusupati et al. 2022).
    """

    matryoshka: tuple[int, ...] = ()

    def formula(self, *vectors: Tensor) -> Tensor:
        raise NotImplementedError

    def prepare(self, model: Any, rows: Sequence[tuple]) -> RowNetwork:
        check_encoder(model, type(self).__name__)
        columns = [list(column) for column in zip(*rows, strict=True)]
        self.targets = None
        if not isinstance(columns[-1][0], str):
            self.targets = torch.tensor(columns.pop(), device=model.device)
        self.widths = widths_of(self.matryoshka, model.width)
        self.check(columns)
        return VectorNetwork(model, TextColumns(model.tokenizer, self.views(columns)))

    def check(self, columns: list[list[str]]) -> None:
        """Raise ``InputError`` for rows that this loss cannot be computed of."""

    def views(self, columns: list[list[str]]) -> list[list[str]]:
        """Return the columns of texts to encode."""
        return columns

    def batch_loss(self, network: Network, batch: Sequence[int]) -> Tensor:
        # before the network: a GPU gets the row numbers while it has no other work
        targets = ()
        if self.targets is not None:
            targets = (self.targets[batch],)
        vectors = network(batch).unbind(dim=1)  # n of (B, D)
        if not self.widths:
            return self.formula(*vectors, *targets)

        def formula(*prefixes: Tensor) -> Tensor:
            return self.formula(*prefixes, *targets)

        return matryoshka_loss(formula, *vectors, dims=self.widths)

    def evaluate(self, model: Any, rows: Any) -> Evaluation:
        return evaluate_encoder(model, rows, self.matryoshka)


def check_encoder(model: Any, loss: str) -> None:
    """Raise ``InputError`` unless the model is an encoder alone."""
    if not isinstance(model, SentenceEncoder):
        raise InputError(f"the loss {loss} trains a SentenceEncoder, not a {type(model).__name__}")


def widths_of(matryoshka: Sequence[int], width: int) -> tuple[int, ...]:
    """Return the widths whose losses are added up: ``(256, 64)`` of 384 columns is 384, 256, 64."""
    if not matryoshka:
        return ()
    if max(matryoshka) > width:
        raise InputError(f"matryoshka {max(matryoshka)}: the vectors have {width} columns")
    # the whole width always takes part, so that the vectors that nobody cuts stay good
    return (width, *(each for each in matryoshka if each < width))


# -----------------------------------------------------------------------------
# what the loop does with a loss


def own_memory(network: nn.Module) -> None:
    """Move each parameter to memory of its own."""
    for parameter in network.parameters():
        # subtle: loaded weights have any offset in their file, and an address can change the last
        # bit of a product
        parameter.data = parameter.data.clone()


def read_dev(dev: Any, loss: Loss) -> Any:
    """Read dev rows from Python, which may hold what the loss trains on or what it is judged by."""
    if dev is None:
        return []
    if isinstance(dev, Retrieval) or not len(dev):
        return dev
    return as_rows(dev, [*loss.judged_by, *as_needs(loss.columns)], name="dev").rows


def draw_batches(
    loss: Loss,
    rows: Sequence[tuple],
    lengths: Sequence[int],
    epochs: int,
    batch_size: int,
    seed: int,
    max_steps: int | None,
    eval_every: int | None,
) -> tuple[list[list[int]], set[int]]:
    """Draw the batches of all epochs; return them, and the steps after which dev is scored.

    Epochs may differ in length: rows that share a text do not always find as many batches.
    """
    generator = torch.Generator().manual_seed(seed)
    batches: list[list[int]] = []
    epoch_ends: set[int] = set()
    for _ in range(epochs):
        batches += loss.batches(rows, lengths, batch_size, generator)
        epoch_ends.add(len(batches))
    if not batches:
        raise InputError("any two rows share a text, so no batch has a negative: give other rows")
    batches = batches[:max_steps]
    last = len(batches)
    if eval_every is not None:
        return batches, {last, *range(eval_every, last, eval_every)}
    return batches, {last, *epoch_ends}


def evaluate(loss: Loss, model: Any, dev: Any, step: int, group: ProcessGroup) -> Evaluation:
    """Score dev in the first process, print the score, and tell it to the others."""
    evaluation = Evaluation({"score": 0.0}, "score", 0, lambda rows: 0.0)
    if group.rank == 0:
        try:
            evaluation = loss.evaluate(model, dev)
        except NotFinite as error:
            raise Diverged(f"step {step}: {error}; a lower lr may help") from error
        say(f"step {step:>5}  dev {evaluation.metric} {100 * evaluation.score:.2f}")
    # every process must know whether to stop
    score = group.broadcast(evaluation.score)
    if group.rank != 0:
        evaluation.scores["score"] = score
    return evaluation
