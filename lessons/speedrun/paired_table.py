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

PIECES, WIDTH, EPOCHS, BATCH, RATE, DROPPED = 1500, 1024, 5, 1024, 1e-2, 0.3
LIMIT = 64  # tokens of a text


def root_bags(tokenizer, texts):
    """The second time that a piece stands in a text says less than the first: (N, V)."""
    return np.sqrt(bags(tokenizer, texts))


class Table:
    """A row of numbers for each piece; a text's vector is the sum of its pieces' rows, by the root
    of their shares.
    """

    def __init__(self, tokenizer, rows):
        self.tokenizer, self.rows = tokenizer, rows  # (V, D)

    def __call__(self, texts):
        return root_bags(self.tokenizer, texts) @ self.rows


def train(data, seed, pieces=PIECES):
    generator = torch.Generator().manual_seed(seed)
    tokenizer = train_vocabulary(data.names + data.sentences, pieces, max_length=LIMIT)
    names, sentences = (
        torch.from_numpy(root_bags(tokenizer, texts)) for texts in (data.names, data.sentences)
    )
    weights = torch.from_numpy(rarity(sentences.numpy())).float()
    # random directions are nearly at right angles, so before training this is the bag
    # (V, D)
    table = torch.randn(len(weights), WIDTH, generator=generator) * (weights / WIDTH**0.5)[:, None]
    table = torch.nn.Parameter(table)
    batches = []
    for _ in range(EPOCHS):
        batches += torch.randperm(len(names), generator=generator).split(BATCH)

    def loss(model, rows):
        seen = torch.rand(len(table), generator=generator) > DROPPED
        u, v = (normalize((bag[rows] * seen) @ table + 1e-6) for bag in (names, sentences))
        return multiple_negatives_ranking_loss(u, v)

    result = Table(tokenizer, table.detach().numpy())  # shares its memory with what is trained
    steps = fit(
        torch.nn.ParameterList([table]),
        loss,
        batches,
        adamw([table], lr=RATE),
        lambda n: 1 - n / len(batches),
    )
    for _ in data.watch(steps, len(batches), result):
        pass
    return result
