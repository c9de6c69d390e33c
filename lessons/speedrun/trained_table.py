"""The bag's columns mixed at random into a table of 1,024, which STS-B's scores then move; half whitened."""

import torch

from lessons.speedrun.idf_bag import PIECES, bags, rarity
from lessons.speedrun.whitened import whitening
from minisbert.core.encoder import normalize
from minisbert.core.loop import adamw, fit
from minisbert.training.losses import cosent_loss
from minisbert.training.objectives.masked import train_vocabulary

WIDTH, EPOCHS, BATCH, RATE, DROPPED = 1024, 16, 128, 3e-3, 0.3


def train(data, seed):
    generator = torch.Generator().manual_seed(seed)
    tokenizer = train_vocabulary(data.captions, PIECES, max_length=64)
    known = bags(tokenizer, data.captions)
    table = torch.randn(known.shape[1], WIDTH, generator=generator) / WIDTH**0.5
    table = torch.nn.Parameter(table * torch.from_numpy(rarity(known)).float()[:, None])  # (V, D)
    first, second = (torch.from_numpy(bags(tokenizer, [row.texts[side] for row in data.pairs])) for side in (0, 1))
    targets = torch.tensor([row.score / 5 for row in data.pairs])
    batches = []
    for _ in range(EPOCHS):
        batches += torch.randperm(len(targets), generator=generator).split(BATCH)

    def loss(model, rows):
        seen = torch.rand(len(table), generator=generator) > DROPPED  # the same pieces of both texts
        u, v = (normalize((bag[rows] * seen) @ table + 1e-6) for bag in (first, second))
        return cosent_loss(u, v, targets[rows])

    holder = torch.nn.ParameterList([table])
    for _ in fit(holder, loss, batches, adamw([table], lr=RATE), lambda step: 1 - step / len(batches)):
        pass
    final = table.detach().numpy()
    change = whitening(known @ final, power=0.5)
    return lambda texts: change(bags(tokenizer, texts) @ final)
