"""What the trainer must know of a loss: its rows, its network, its formula, and how dev is scored.

A network turns training rows, given by their numbers, into what a formula reads: vectors, or the
scores of a head. It gets numbers and not texts because the texts are tokenized once, and because a
batch can then be divided among processes or computed in parts.

    rows 3, 8, 1 ──> network ──> vectors (B, n, D) ──> formula ──> the mean loss of the batch
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.core import InputError, one_line
from minisbert.core.checks import check_integer, check_number, check_one_of
from minisbert.core.data import TextColumns, length_grouped_batches
from minisbert.core.loop import Diverged
from minisbert.core.tokenizer import Encoded
from minisbert.data.batches import unique_batches
from minisbert.data.columns import PAIRS, Columns, RowsDoNotFit
from minisbert.data.rows import Table, as_rows
from minisbert.data.splits import checked_like, needs_that_judge, ready_to_train
from minisbert.evaluation.retrieval import Retrieval
from minisbert.models.pair_heads import Head
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.text_encoder import NotFinite
from minisbert.system.console import say
from minisbert.training.distributed import ProcessGroup, warn_once
from minisbert.training.gradient_cache import Divide, batch_divider, whole_batch
from minisbert.training.losses import matryoshka_loss
from minisbert.training.named_heads import HEADS
from minisbert.training.schedules import SCHEDULES
from minisbert.training.scores import Evaluation, evaluate_encoder

Network = Callable[[Sequence[int]], Tensor]  # a ``RowNetwork``, or what is wrapped around it
SCORED = Columns(2, "score")
# A loss is identified by its attributes of these types, which are its settings. Tensors and
# modules are none.
SETTING_TYPES = (str, int, float, bool, tuple, type(None))

# -----------------------------------------------------------------------------
# networks


class RowNetwork(nn.Module):
    """Turn B row numbers into what a formula reads, (B, ...)."""

    dtype = torch.float32  # of the encoder's matrix products
    model: Any
    lengths: list[int]  # padded tokens of each row, all its texts together
    encoded: list[Encoded]  # the tokens of each column of texts

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

    ``prepare`` is called once with the model and the training rows. It keeps their targets, if they
    have some, and returns the network. ``batch_loss`` computes the mean loss of a batch, given as
    numbers of rows, by that network or by a wrapper of it.
    """

    columns: ClassVar[Columns | tuple[Columns, ...]] = PAIRS  # what a training row holds
    judged_by: ClassVar[tuple[Columns, ...]] = ()  # what a dev row may hold instead
    # Whether rows like those of training judge an encoder that is trained without a head.
    judges_itself: ClassVar[bool] = True
    compares_rows: ClassVar[bool] = False  # the loss of a batch is not the mean of its rows' losses
    negatives_in_batch: ClassVar[bool] = False  # no text may be twice in a batch
    smallest_batch: ClassVar[int] = 1  # rows without which the loss is always 0
    task: ClassVar[str] = ""  # what a head's outputs mean, if the loss trains one
    default_data: ClassVar[str | None] = None  # without --data
    targets: Any = None  # of the training rows, (N, ...); ``prepare`` sets them
    taught = ""  # if a teacher computed the targets, the hash of the teacher and its texts

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
        """Name the loss and its settings, which tell apart two runs on the same rows."""
        settings = {}
        for name, value in vars(self).items():
            if isinstance(value, SETTING_TYPES):
                settings[name] = value
        return f"{type(self).__name__} {settings} {self.taught}"


@dataclass
class EncoderLoss(Loss):
    """A loss of the vectors of a row's texts: ``formula(u, v, ..., targets)``.

    ``matryoshka`` adds the losses of the first columns of the vectors, for each of these widths, so
    that vectors can be cut (Kusupati et al. 2022).
    """

    matryoshka: tuple[int, ...] = ()

    def formula(self, *arguments: Any, **options: Any) -> Tensor:
        """The loss of a batch: a subclass names its arguments, as ``formula(self, u, v, scores)``.

        It gets a (B, D) tensor for each column of texts, and if the last column of the rows is a
        number, the numbers (B,).
        """
        raise NotImplementedError

    def prepare(self, model: Any, rows: Sequence[tuple]) -> RowNetwork:
        check_encoder(model, type(self).__name__)
        columns = columns_of(rows)
        # A last column of numbers are the targets.
        self.targets = None
        if not isinstance(columns[-1][0], str):
            scores = columns.pop()
            self.targets = torch.tensor(scores, device=model.device)
        self.widths = widths_of(self.matryoshka, model.width)
        self.check(columns)
        return VectorNetwork(model, TextColumns(model.tokenizer, self.views(columns)))

    def check(self, columns: list[list[str]]) -> None:
        """Raise ``InputError`` for rows that this loss cannot be computed of."""

    def views(self, columns: list[list[str]]) -> list[list[str]]:
        """Return the columns of texts to encode."""
        return columns

    def batch_loss(self, network: Network, batch: Sequence[int]) -> Tensor:
        # The targets are taken before the network runs: a GPU gets the row numbers while it has no
        # other work.
        targets = None
        if self.targets is not None:
            targets = self.targets[batch]  # (B,)
        vectors = network(batch).unbind(dim=1)  # n of (B, D)

        def formula_with_targets(*inputs: Tensor) -> Tensor:
            """The formula of vectors, and of the targets if there are any."""
            if targets is None:
                return self.formula(*inputs)
            return self.formula(*inputs, targets)

        if not self.widths:
            return formula_with_targets(*vectors)
        return matryoshka_loss(formula_with_targets, *vectors, dims=self.widths)

    def evaluate(self, model: Any, rows: Any) -> Evaluation:
        return evaluate_encoder(model, rows, self.matryoshka)


def columns_of(rows: Sequence[tuple]) -> list[list]:
    """Turn N rows into their columns, of N values each."""
    return [list(column) for column in zip(*rows, strict=True)]


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
    # The whole width always takes part, so that the vectors that nobody cuts stay good.
    widths = [width]
    for shorter in matryoshka:
        if shorter < width:
            widths.append(shorter)
    return tuple(widths)


# -----------------------------------------------------------------------------
# what the loop does with a loss


def check_settings(
    *,
    epochs: int,
    batch_size: int,
    max_steps: int | None,
    lr: float,
    head_lr: float | None,
    warmup: float,
    schedule: str,
    weight_decay: float,
    clip: float,
    seed: int,
    eval_every: int | None,
    patience: int | None,
    micro_tokens: int | None,
    save_every: int,
    log_every: int,
    resume: bool,
    out: object,
) -> None:
    """Raise ``InputError`` for a setting of ``train`` that the command would refuse, too."""
    if resume and out is None:
        raise InputError("resume=True needs out, the folder of the training that was stopped")
    counts = {
        "max_steps": max_steps,
        "eval_every": eval_every,
        "patience": patience,
        "micro_tokens": micro_tokens,
    }
    try:
        check_integer("epochs", epochs)
        check_integer("batch_size", batch_size)
        check_integer("save_every", save_every)
        check_integer("log_every", log_every)
        for name, count in counts.items():
            if count is not None:
                check_integer(name, count)
        check_number("lr", lr, 0, math.inf)
        if head_lr is not None:
            check_number("head_lr", head_lr, 0, math.inf)
        check_number("warmup", warmup, 0, math.inf)
        check_number("weight_decay", weight_decay, 0, math.inf)
        check_number("clip", clip, 0, math.inf)
        check_number("seed", seed, 0, 2**64)
        if not isinstance(seed, int):
            raise ValueError(f"seed must be an integer, not {seed}")
        check_one_of("schedule", schedule, list(SCHEDULES))
    except ValueError as error:
        raise InputError(f"train: {error}") from error


def check_patience(patience: int | None, dev: Any) -> None:
    """Raise ``InputError`` if a training that should end by its dev scores has none."""
    if patience is not None and not dev:
        raise InputError("patience needs dev rows, and there are none")


def move_to_own_memory(network: nn.Module) -> None:
    """Move each parameter to memory of its own, so that equal weights give equal numbers."""
    for parameter in network.parameters():
        # subtle: loaded weights lie at any offset of their file's memory, and an address can change
        # the last bit of a product
        parameter.data = parameter.data.clone()


def read_training_rows(rows: Any, loss: Loss, columns: str | None, scale: float | None) -> Table:
    """Read rows from Python as those of a file are read: by the same columns and scale."""
    try:
        table = as_rows(rows, loss.columns, columns)
    except RowsDoNotFit as error:
        raise InputError(
            f"{error} (the rows of the loss {type(loss).__name__}; loss= chooses another)"
        ) from None
    table = ready_to_train(table, scale)
    warn_what_was_left_out(table)
    return table


def read_dev(dev: Any, loss: Loss, train: Table, columns: str | None = None) -> Any:
    """Read dev rows from Python, which may hold what the loss trains on or what it is judged by.

    Their scores are divided by the scale of the training rows. A search is returned as it is.
    """
    if dev is None or (isinstance(dev, list | tuple) and not dev):
        return []
    if isinstance(dev, Retrieval):
        return dev
    # Tuples have no names. So a number at their end is taken for a score before it is taken for the
    # number of a class: what else judges the model is tried first.
    needs = [*loss.judged_by, *needs_that_judge(loss.columns, loss.judged_by, train)]
    table = as_rows(dev, needs, columns, name="dev", names_may_lack=True)
    table = checked_like(table, train)
    warn_what_was_left_out(table)
    return table.rows


def warn_what_was_left_out(table: Table) -> None:
    """Say in one line which rows and columns are not read, and what scores are divided by."""
    if table.skipped or table.unread or table.scale not in (None, 1):
        warn_once(table.note())


class Plan(NamedTuple):
    """The batches of a training."""

    batches: list[list[int]]
    evaluations: set[int]  # the steps after which dev is scored
    unused: list[int]  # the rows that are in no batch of any epoch


def draw_batches(
    loss: Loss,
    rows: Sequence[tuple],
    lengths: Sequence[int],
    epochs: int,
    batch_size: int,
    seed: int,
    max_steps: int | None,
    eval_every: int | None,
) -> Plan:
    """Draw the batches of all epochs, or as many as ``max_steps`` needs.

    dev is scored after step 0, which is before the first one, then at each end of an epoch or every
    ``eval_every`` steps, and after the last one. Epochs may differ in length: rows that share a
    text go into different batches, and the random order decides how many batches that takes.
    """
    if batch_size < loss.smallest_batch:
        raise InputError(
            f"the loss {type(loss).__name__} compares the rows of a batch: batch_size must be at "
            f"least {loss.smallest_batch}"
        )
    generator = torch.Generator().manual_seed(seed)
    batches: list[list[int]] = []
    evaluations = {0}
    for _ in range(epochs):
        batches += loss.batches(rows, lengths, batch_size, generator)
        if eval_every is None:
            evaluations.add(len(batches))
        if max_steps is not None and len(batches) >= max_steps:
            break
    if not batches:
        raise InputError(no_batch(loss, rows))

    # Whole epochs count here: a row that ``max_steps`` cuts off could have been used.
    unused = rows_without_batch(batches, len(rows))
    batches = batches[:max_steps]
    total = len(batches)
    if eval_every is not None:
        evaluations.update(range(eval_every, total, eval_every))
    evaluations.add(total)
    return Plan(batches, evaluations, unused)


def rows_without_batch(batches: Sequence[Sequence[int]], count: int) -> list[int]:
    """The numbers below ``count`` that no batch has."""
    used: set[int] = set()
    for batch in batches:
        used.update(batch)
    return [row for row in range(count) if row not in used]


def no_batch(loss: Loss, rows: Sequence[tuple]) -> str:
    """Why the rows make no batch, and what to do."""
    if not loss.negatives_in_batch:
        return f"the loss {type(loss).__name__} makes no batch of {len(rows):,} rows"
    if len(rows) == 1:
        return (
            "one row has no negative, because negatives are the other rows of a batch: give two or "
            "more"
        )
    text = one_line(commonest_text(rows, range(len(rows))))
    return f"any two rows share a text, such as {text}, so no batch has a negative: give other rows"


def commonest_text(rows: Sequence[tuple], numbers: Iterable[int]) -> str:
    """The text that is in most of the rows with these numbers; a tie is broken by all rows."""
    counts = text_counts(rows[number] for number in numbers)
    counts_in_all = text_counts(rows)
    return max(counts, key=lambda text: (counts[text], counts_in_all[text], text))


def text_counts(rows: Iterable[tuple]) -> Counter[str]:
    """How many rows each text is in."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update({value for value in row if isinstance(value, str)})
    return counts


def divide_batches(
    loss: Loss, network: RowNetwork, group: ProcessGroup, micro_tokens: int | None
) -> tuple[nn.Module, Divide]:
    """Wrap the network for the processes; return it, and what divides a batch into micro-batches.

    If the loss of a batch is the mean of its rows' losses, ``fit`` computes micro-batches and adds
    up their gradients. If it compares rows, ``fit`` gets the whole batch, and the wrapped network
    computes it in parts and caches gradients.
    """
    divide = batch_divider(
        network.lengths, network.model.device, micro_tokens, loss.compares_rows, group.size
    )
    if loss.compares_rows:
        return group.wrap(network, divide), whole_batch
    return group.wrap(network), divide


def evaluate(loss: Loss, model: Any, dev: Any, step: int, group: ProcessGroup) -> Evaluation:
    """Score dev in the first process, print the score, and tell it to the others."""
    if group.rank != 0:
        # Every process must know the score, because it says whether to stop. The NaN given here is
        # replaced by the score of the first process.
        score = group.broadcast(math.nan)
        return Evaluation({"score": score}, "score", 0, not_resampled)
    try:
        evaluation = loss.evaluate(model, dev)
    except NotFinite as error:
        raise Diverged(f"step {step}: {error}; a lower lr may help") from error
    say(f"step {step:>5}  dev {evaluation.metric} {100 * evaluation.score:.2f}")
    group.broadcast(evaluation.score)
    return evaluation


def not_resampled(rows: np.ndarray) -> float:
    """Raise: another process than the first has no outputs of the rows to score again."""
    raise NotImplementedError("only the first process scores rows")
