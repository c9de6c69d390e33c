"""The four steps from nothing to a search engine: a vocabulary, random weights, reading, pairs. No labels, no download.

Reading and pairs are generators, so the caller stops them when their time is up and keeps what they have learned.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from sysconfig import get_path
from typing import NamedTuple

import torch
from torch import Tensor

from lessons.search import docstrings
from minisbert.core.data import TextColumns, length_grouped_batches
from minisbert.core.loop import Step, adamw, fit
from minisbert.core.losses import multiple_negatives_ranking_loss
from minisbert.models.masked_language_model import MaskedLanguageModel
from minisbert.training.losses import mlm_loss
from minisbert.training.objectives.masked import draw_masks, new_model, train_vocabulary

PIECES, LAYERS, WIDTH = 6000, 3, 256
LIMIT = 64  # tokens of a text
WARM_UP = 0.1  # of the time


class Corpus(NamedTuple):
    """What there is to learn from: texts to read, and names of functions with the sentences that describe them."""

    texts: list[str]
    names: list[str]
    sentences: list[str]


def package_folder(name: str) -> Path:
    return Path(find_spec(name).origin).parent


def read_corpus(captions: Sequence[str]) -> Corpus:
    """Collect what every machine with this package has: captions, and the docstrings of Python, NumPy and PyTorch.

    Names and their sentences come from the training modules of Python and from the two packages; the modules that dev
    and test ask for are read, as any search engine reads its documents, but never beside their names.
    """
    entries = [entry for entry in docstrings.read_entries() if docstrings.split_of(entry.module) == "train"]
    for name in ("numpy", "torch"):
        entries += docstrings.read_entries(package_folder(name))
    manuals = docstrings.read_sentences(get_path("stdlib"), *map(package_folder, ("numpy", "torch.nn")))
    texts = 3 * list(captions) + manuals  # three times: there are about three times as many sentences of manuals
    return Corpus(texts, [entry.query for entry in entries], [entry.document for entry in entries])


def new_encoder(texts: Sequence[str]) -> MaskedLanguageModel:
    """Train a vocabulary on the texts and return an encoder of random weights that reads it."""
    return new_model(train_vocabulary(texts, PIECES, max_length=LIMIT), LAYERS, WIDTH)


class Budget:
    """Seconds to spend on a step: of CPU, or of the clock where a GPU does the work."""

    def __init__(self, seconds: float, device: torch.device):
        self.clock = time.process_time if device.type == "cpu" else time.perf_counter
        self.seconds, self.started = seconds, self.clock()

    def spent(self) -> float:
        return self.clock() - self.started

    def rate(self, _step: int) -> float:
        """The multiplier of the learning rate, by the share of the time that is gone and not by the step."""
        share = self.spent() / self.seconds
        return min(share / WARM_UP, max(0.02, (1 - share) / (1 - WARM_UP)))


def endless_batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return itertools.chain.from_iterable(iter(lambda: length_grouped_batches(lengths, size, generator), None))


def train(
    model: MaskedLanguageModel, loss: Callable, lengths: Sequence[int], size: int, lr: float, seconds: float
) -> Iterator[Step]:
    """Step through batches until the time is up; the model is in eval mode whenever the caller has it."""
    budget = Budget(seconds, model.device)
    optimizer = adamw([*model.parameters()], lr=lr)
    steps = fit(model, loss, endless_batches(lengths, size), optimizer, budget.rate, clip=1.0)
    while budget.spent() < budget.seconds:
        model.train()
        step = next(steps)
        model.eval()
        yield step


def read(model: MaskedLanguageModel, texts: Sequence[str], seconds: float, dtype: torch.dtype) -> Iterator[Step]:
    """Guess hidden words of the texts (lesson 24)."""
    columns = TextColumns(model.tokenizer, [texts])
    special = torch.tensor(model.special_ids)
    vocabulary = model.tokenizer.backend.get_vocab_size()

    def loss(model: MaskedLanguageModel, rows: Sequence[int]) -> Tensor:
        ids, mask = columns.batch(rows)
        inputs, chosen = draw_masks(ids, ~torch.isin(ids, special), model.mask_id, vocabulary)
        targets = ids[chosen].to(model.device)
        if mask is not None:
            mask = mask.to(model.device)
        return mlm_loss(model.logits(inputs.to(model.device), mask, chosen.to(model.device), dtype), targets)

    return train(model, loss, columns.lengths, 128, 1e-3, seconds)


def pair(
    model: MaskedLanguageModel,
    left: Sequence[str],
    right: Sequence[str],
    seconds: float,
    dtype: torch.dtype,
) -> Iterator[Step]:
    """Tell for each left text which of the batch's right texts is its own (lesson 10)."""
    columns = TextColumns(model.tokenizer, [left, right])

    def loss(model: MaskedLanguageModel, rows: Sequence[int]) -> Tensor:
        ids, mask = columns.batch(rows)
        if mask is not None:
            mask = mask.to(model.device)
        u, v = model(ids.to(model.device), mask, dtype).chunk(2)
        return multiple_negatives_ranking_loss(u, v)

    return train(model, loss, columns.lengths, 128, 5e-4, seconds)
