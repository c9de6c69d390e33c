"""Training loops of torch's own pieces, for expected losses: they must not come from ``fit``."""

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, mse_loss

from minisbert.models.sentence_encoder import SentenceEncoder


def independent_losses(
    folder: Path, rows: list[tuple], epochs: int, lr: float, warmup: int, clip: float
) -> list[float]:
    """The recipe with torch's own pieces, all rows as one batch in their order."""
    encoder = SentenceEncoder.load(folder)
    targets = torch.tensor([score for _, _, score in rows])
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=lr, weight_decay=0.1)
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-9, 1, warmup)
    fall = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 1e-9, epochs - warmup)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], [warmup])
    found = []
    for _ in range(epochs):
        sides = []
        for texts in ([row[0] for row in rows], [row[1] for row in rows]):
            ids = [torch.tensor(ids) for ids in encoder.tokenizer.encode(texts).ids]
            sides.append(
                torch.stack([encoder(row[None])[0] for row in ids])
            )  # one by one: no padding, no mask
        loss = mse_loss(cosine_similarity(*sides), targets)
        optimizer.zero_grad()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(encoder.parameters(), clip)
        optimizer.step()
        schedule.step()
        found.append(loss.item())
    return found


def losses_of_steps(
    model: nn.Module,
    loss: Callable[[nn.Module, list[int]], Tensor],
    batches: Iterable[list[int]],
    optimizer: torch.optim.Optimizer,
    schedule: Callable[[int], float],
    clip: float,
) -> Tensor:
    """The loss of each step (N,), float64; the model is trained in place."""
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    found = []
    for batch in batches:
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        rate.step()
        found.append(value.item())
    return torch.tensor(found, dtype=torch.float64)
