"""Train as published notebooks and notes do, without an option for each of their settings.

    python -m benchmarks.notebooks    the recipes, with sources and scores
    python -m benchmarks.notebooks sts-siamese-published
    python -m benchmarks.notebooks quora-2 --max-steps 100 --out runs/short
    python -m benchmarks.notebooks quora-2 --resume runs/short

What follows the name are options of ``minisbert train``. What no option sets, such as batches in
the order of a file, is a loss of the recipe's own here. docs/sources.md says which texts these are.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lessons.by_hand.losses import nt_xent_loss, weighted_mse_loss
from minisbert import train
from minisbert.core import InputError
from minisbert.core.data import length_grouped_batches
from minisbert.core.heads import ConcatHead
from minisbert.models.pair_heads import ClsCrossHead, Head
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import run_command
from minisbert.training.base_loss import Loss, RowNetwork
from minisbert.training.encoder_losses import SimCSE
from minisbert.training.head_losses import MSE, Binary, Softmax
from minisbert.training.losses import binary_cross_entropy_loss
from minisbert.training.options import parse


class AnyRows(Loss):
    """Batches of any rows, not of rows of like length."""

    def batches(
        self, rows: Sequence, lengths: Sequence[int], batch_size: int, generator: torch.Generator
    ) -> list[list[int]]:
        return length_grouped_batches(lengths, batch_size, generator, window=1)  # of one batch


class FileOrder(Loss):
    """Batches in the order of the file, the same in every epoch."""

    def batches(
        self, rows: Sequence, lengths: Sequence[int], batch_size: int, generator: torch.Generator
    ) -> list[list[int]]:
        numbers = list(range(len(lengths)))
        return [numbers[start : start + batch_size] for start in numbers[::batch_size]]


class StsHead(AnyRows, MSE):
    """A head on STS-B, over an encoder whose lowest two layers are frozen."""

    def prepare(self, model: Any, rows: Sequence[tuple]) -> RowNetwork:
        model.encoder.bert.layers[:2].requires_grad_(False)
        return super().prepare(model, rows)


class WeightedHead(StsHead):
    """With the loss as it is printed: ``target < 1``, on targets of 0 to 1."""

    def formula(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return weighted_mse_loss(outputs, targets, threshold=1.0)


class CrossAttention(MSE):
    """A cross head that reads [CLS] and what it found in the other sentence, not the difference."""

    def make_head(self, name: str, encoder: SentenceEncoder, outputs: int) -> Head:
        return ClsCrossHead(encoder.bert.config.hidden_size)


class Quora(FileOrder, Binary):
    """One linear layer over (u, v, |u - v|)."""


class QuoraHidden(Quora):
    """With a hidden layer, and positives weighted twice."""

    def make_head(self, name: str, encoder: SentenceEncoder, outputs: int) -> Head:
        return ConcatHead(encoder.width, hidden=512)

    def formula(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return binary_cross_entropy_loss(outputs, targets, pos_weight=2)


class QuoraAttention(QuoraHidden):
    """With dropout, and attention pooling that begins with random weights, not as the mean."""

    def make_head(self, name: str, encoder: SentenceEncoder, outputs: int) -> Head:
        encoder.pooling.score.reset_parameters()
        return ConcatHead(encoder.width, hidden=512, dropout=0.1)


class SnliClasses(AnyRows, Softmax):
    """SBERT's softmax objective."""


class NTXent(SimCSE):
    """SimCSE with SimCLR's loss: both views are anchors, so a row has 2B - 2 negatives."""

    def formula(self, u: Tensor, v: Tensor) -> Tensor:
        return nt_xent_loss(u, v, temperature=self.temperature)


@dataclass(frozen=True)
class Recipe:
    """A run of a notebook."""

    source: str
    needs: str
    expected: str  # what it gave here, with MiniLM, and what the source reports for its own model
    loss: type[Loss]
    options: str
    settings: dict[str, Any] = field(default_factory=dict, hash=False)  # without an option


STS = "--batch-size 8 --max-length 128 --epochs 20 --lr 1e-5 --warmup 0"
STS_SETTINGS = {"weight_decay": 0.01, "clip": 0.0}
QUORA = (
    "--loss binary --head concat --data quora --limit 10000 --batch-size 32 --max-length 32 "
    "--epochs 3 --warmup 0"
)
QUORA_SETTINGS = {"schedule": "constant", "clip": 0.0}
RECIPES = {
    "sts-cross-encoder-published": Recipe(
        "STS-B notebook: BERT on the joined pair, regression over [CLS]",
        "stsb",
        "Pearson dev 85.3, test 82.7 (one run); the notebook prints no correlation",
        StsHead,
        f"{STS} --head cross-encoder",
        STS_SETTINGS,
    ),
    "sts-siamese-published": Recipe(
        "STS-B notebook: siamese BERT, regression over (|u-v|, u*v, u) of the two [CLS]",
        "stsb",
        "Pearson dev 87.2, test 82.6 (one run); the notebook prints no correlation",
        StsHead,
        f"{STS} --head siamese --pooling cls",
        STS_SETTINGS,
    ),
    "sts-siamese-weighted": Recipe(
        "STS-B notebook: the siamese net with its weighted_mse_loss, never called there",
        "stsb",
        "not measured; the notebook trains with mse",
        WeightedHead,
        f"{STS} --head siamese --pooling cls",
        STS_SETTINGS,
    ),
    "sts-cross-attention-published": Recipe(
        "STS-B notebook: its cross-attention with attention along the sentence; other settings as "
        "sts-cross-attention",
        "stsb",
        "Pearson dev 44.7, test 48.3 with --epochs 10 (one run)",
        CrossAttention,
        "--recipe sts-cross-attention",
    ),
    "quora-1": Recipe(
        "SBERT-like net on Quora, experiment 1: mean pooling, one linear layer",
        "quora, first 10,000 rows",
        "not measured; the source reports accuracy .7455, F1 .5776 (DistilBERT)",
        Quora,
        f"{QUORA} --pooling mean --lr 2e-5",
        QUORA_SETTINGS,
    ),
    "quora-2": Recipe(
        "experiment 2: CLS pooling, a hidden layer, positives weighted twice",
        "quora, first 10,000 rows",
        "not measured; the source reports accuracy .7850, F1 .7434 (DistilBERT)",
        QuoraHidden,
        f"{QUORA} --pooling cls --lr 1e-5",
        QUORA_SETTINGS,
    ),
    "quora-3": Recipe(
        "experiment 3: attention pooling, a hidden layer with dropout, positives weighted twice",
        "quora, first 10,000 rows",
        "not measured; the source reports accuracy .7840, F1 .7497 (DistilBERT)",
        QuoraAttention,
        f"{QUORA} --pooling attention --lr 5e-6",
        QUORA_SETTINGS,
    ),
    "snli-notebook": Recipe(
        "a notebook on SBERT for retrieval: softmax over (u, v, |u-v|), an epoch of SNLI, "
        "no clipping",
        "snli, or --data FILE; --model bert-base-uncased for the notebook's model",
        "with MiniLM and 8,000 rows, one run: SNLI test accuracy 61.7, its encoder's STS-B "
        "dev Spearman 86.7 before, 76.5 after; the notebook's BERT-base: STS-B dev Spearman 59.32 "
        "before, 76.74 after, losses .5563 train and .4605 validation",
        SnliClasses,
        "--loss softmax --head concat --pooling mean --batch-size 16 --max-length 128 --seed 10",
        {"clip": 0.0},
    ),
    "simcse-nt-xent": Recipe(
        "simcse-unsupervised with the loss in published notes on SimCSE: negatives are "
        "all other 2B - 2 rows",
        "--data FILE of sentences, one per line",
        "STS-B 85.0 dev / 78.7 test (one run, 6,400 sentences), as "
        "simcse-unsupervised within its noise",
        NTXent,
        "--recipe simcse-unsupervised",
    ),
}


def main(arguments: list[str] | None = None) -> None:
    """Train by a recipe, or list them all."""
    words = sys.argv[1:] if arguments is None else arguments
    name, *more = words or ["list"]
    if name == "list":
        for name, recipe in RECIPES.items():
            print(name)
            print(f"  source   {recipe.source}")
            print(f"  needs    {recipe.needs}")
            print(f"  expected {recipe.expected}")
            print(f"  options  {recipe.options}\n")
        return
    if name not in RECIPES:
        raise InputError(f"no recipe {name!r}; choose from {', '.join(RECIPES)}")
    recipe = RECIPES[name]
    if "--resume" in more:
        settings = parse(more)
    else:
        settings = parse([*recipe.options.split(), "--out", f"runs/{name}", *more])
        settings = replace(settings, **recipe.settings)
    train.run(settings, recipe.loss())


if __name__ == "__main__":
    run_command(main)
