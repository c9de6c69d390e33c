"""The bag's columns mixed at random into 1,024; names then teach which pieces their sentences have.

A third of the pieces is hidden in each step, the same of a name and of all sentences: without that
the table learns the training pairs by heart. Tried on dev and dropped: 3,000 pieces (38.6; 40.1
with 1,500 or 800). With 3,000, which had 37.5 then: batches of 256 (37.5), rates of 1e-3 and 3e-3
(35.3, 36.9), half of the pieces hidden or none (34.4, 33.9, at 1e-3 and 3e-4), 2,048 columns
(36.1), half whitening at the end (35.6), and a layer of attention on 256 principal components of
the table: one point in 60 steps (35.5 to 36.6), then it learns the pairs by heart.
"""

import numpy as np
import torch

from lessons.speedrun.idf_bag import bags, rarity
from minisbert.core.encoder import normalize
from minisbert.core.loop import adamw, fit
from minisbert.core.losses import multiple_negatives_ranking_loss
from minisbert.training.masked import train_vocabulary

PIECES = 1500
WIDTH = 1024
EPOCHS = 5
BATCH = 1024
RATE = 1e-2
DROPPED = 0.3  # share of the pieces that a step hides
LIMIT = 64  # tokens of a text


def root_bags(tokenizer, texts):
    """The second time that a piece stands in a text says less than the first: (N, V)."""
    return np.sqrt(bags(tokenizer, texts))


class Table:
    """A row of numbers for each piece; a text's vector sums them by the root of their shares."""

    def __init__(self, tokenizer, rows):
        self.tokenizer = tokenizer
        self.rows = rows  # (V, D)

    def __call__(self, texts):
        return root_bags(self.tokenizer, texts) @ self.rows


def train(data, seed, pieces=PIECES):
    generator = torch.Generator().manual_seed(seed)
    tokenizer = train_vocabulary(data.names + data.sentences, pieces, max_length=LIMIT)
    names = torch.from_numpy(root_bags(tokenizer, data.names))  # (N, V)
    sentences = torch.from_numpy(root_bags(tokenizer, data.sentences))
    weights = torch.from_numpy(rarity(sentences.numpy())).float()  # (V,)
    # Random directions are nearly at right angles, so before training this is the bag.
    directions = torch.randn(len(weights), WIDTH, generator=generator)
    table = torch.nn.Parameter(directions * (weights / WIDTH**0.5)[:, None])  # (V, D)
    batches = []
    for _ in range(EPOCHS):
        batches += torch.randperm(len(names), generator=generator).split(BATCH)

    def loss(model, rows):
        seen = torch.rand(len(table), generator=generator) > DROPPED
        u = normalize((names[rows] * seen) @ table + 1e-6)
        v = normalize((sentences[rows] * seen) @ table + 1e-6)
        return multiple_negatives_ranking_loss(u, v)

    def schedule(step):
        return 1 - step / len(batches)

    result = Table(tokenizer, table.detach().numpy())  # shares its memory with what is trained
    model = torch.nn.ParameterList([table])
    steps = fit(model, loss, batches, adamw([table], lr=RATE), schedule)
    for _ in data.watch(steps, len(batches), result):
        pass
    return result
