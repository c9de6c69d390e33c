"""Two tables of other vocabularies, summed from the pieces that a text has.

A name has five pieces of 1,500, so most of ``paired_table``'s products multiply by 0.
``embedding_bag`` reads the rows of a text's pieces and no others.

Tried on dev, seed 0, with CPU seconds of training, and dropped: 1,024 columns (43.2 in 26 s; 43.1
in 16 s with 512), one table of 1,100 pieces (40.3), tables of 400 and 1,100 (41.7) or 300 and 2,200
(42.4), batches of 2,048 (42.6) and 512 (43.3 in 19 s with 1,024 columns, 42.0 in 11 s with 512 and
four epochs), three epochs (42.7) and two (41.8), both with 1,024 columns.
"""

import numpy as np
import torch
from torch.nn import functional

from lessons.speedrun.judge import unit
from minisbert.core.encoder import normalize
from minisbert.core.loop import adamw, fit
from minisbert.core.losses import multiple_negatives_ranking_loss
from minisbert.training.masked import train_vocabulary

SIZES = (400, 2200)
WIDTH = 512
EPOCHS = 5
BATCH = 1024
RATE = 1e-2
DROPPED = 0.3  # share of the pieces that a step hides
LIMIT = 64  # tokens of a text


def rows_of(tokenizer, texts):
    """Each text's pieces and their weights: the root of a piece's share in the text.

    As lists, of the pieces that differ: (N lists of ids, N lists of weights).
    """
    ids, weights = [], []
    for row in tokenizer.encode(texts).ids:
        pieces, counts = np.unique(row[1:-1], return_counts=True)
        ids.append(torch.from_numpy(pieces))
        weights.append(torch.from_numpy(np.sqrt(counts / max(1, counts.sum()))).float())
    return ids, weights


def together(ids, weights, rows):
    """The pieces, weights and beginnings of some texts, as ``embedding_bag`` reads them."""
    lengths = torch.tensor([0] + [len(ids[row]) for row in rows])
    pieces = torch.cat([ids[row] for row in rows])
    return pieces, lengths.cumsum(0)[:-1], torch.cat([weights[row] for row in rows])


def summed(table, pieces, starts, weights):
    return functional.embedding_bag(pieces, table, starts, mode="sum", per_sample_weights=weights)


class SparseTable:
    """A row of numbers for each piece; a text's vector sums them by the root of their shares."""

    def __init__(self, tokenizer, table):
        self.tokenizer = tokenizer
        self.table = table  # (V, D)

    @torch.no_grad()
    def __call__(self, texts):
        ids, weights = rows_of(self.tokenizer, texts)
        return summed(self.table, *together(ids, weights, range(len(texts)))).numpy()


def train_table(data, generator, size):
    tokenizer = train_vocabulary(data.names + data.sentences, size, max_length=LIMIT)
    names = rows_of(tokenizer, data.names)
    sentences = rows_of(tokenizer, data.sentences)
    count = len(data.names)
    texts = torch.bincount(torch.cat(sentences[0]), minlength=size).float()  # that have a piece
    weights = torch.log(1 + 1 / (texts / count + 1 / count))  # (V,)
    directions = torch.randn(len(weights), WIDTH, generator=generator)
    table = torch.nn.Parameter(directions * (weights / WIDTH**0.5)[:, None])  # (V, D)
    batches = []
    for _ in range(EPOCHS):
        batches += torch.randperm(count, generator=generator).split(BATCH)

    def loss(model, batch):
        seen = (torch.rand(len(table), generator=generator) > DROPPED).float()
        sides = []
        for side in (names, sentences):
            pieces, starts, share = together(*side, batch.tolist())
            sides.append(normalize(summed(table, pieces, starts, share * seen[pieces]) + 1e-6))
        return multiple_negatives_ranking_loss(*sides)

    def schedule(step):
        return 1 - step / len(batches)

    model = torch.nn.ParameterList([table])
    for _ in fit(model, loss, batches, adamw([table], lr=RATE), schedule):
        pass
    return SparseTable(tokenizer, table.detach())


class Tables:
    """Several tables as one: their vectors of length 1 side by side."""

    def __init__(self, tables):
        self.tables = tables

    def __call__(self, texts):
        return np.concatenate([unit(table(texts)) for table in self.tables], axis=1)


def train(data, seed):
    torch.set_num_threads(1)  # a second one adds CPU seconds, and no speed at this size
    generator = torch.Generator().manual_seed(seed)
    return Tables([train_table(data, generator, size) for size in SIZES])
