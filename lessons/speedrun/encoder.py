"""The baseline: three random layers, and STS-B's scores by CoSENT. Nothing else."""

from functools import partial

import torch

from minisbert.core.data import TextColumns, length_grouped_batches
from minisbert.core.loop import adamw, fit, linear_schedule
from minisbert.training.losses import cosent_loss
from minisbert.training.objectives.masked import new_model, train_vocabulary

EPOCHS, BATCH, RATE = 4, 64, 4e-4


def train(data, seed):
    torch.manual_seed(seed)
    model = new_model(train_vocabulary(data.captions, 6000, max_length=64), layers=3, width=256)
    columns = TextColumns(model.tokenizer, [[row.texts[side] for row in data.pairs] for side in (0, 1)])
    targets = torch.tensor([row.score / 5 for row in data.pairs])
    generator, batches = torch.Generator().manual_seed(seed), []
    for _ in range(EPOCHS):
        batches += length_grouped_batches(columns.lengths, BATCH, generator)

    def loss(model, rows):
        u, v = model(*columns.batch(rows)).chunk(2)
        return cosent_loss(u, v, targets[rows])

    schedule = partial(linear_schedule, warmup=len(batches) // 10, total=len(batches))
    model.train()
    for _ in fit(model, loss, batches, adamw([*model.parameters()], lr=RATE), schedule, clip=1.0):
        pass
    model.eval()
    return model.encode
