"""The short form of training of lesson 13: of MiniLM's six layers only the last one learns.

The five layers below it never change, so what they compute for a text is computed once, without
dropout.
"""

import copy
from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor, nn

from lessons.by_hand.geometry import mean_off_diagonal_cosine, uniformity
from minisbert.checkpoints.layout import find_model
from minisbert.core import loop, metrics
from minisbert.core.data import length_grouped_batches
from minisbert.core.encoder import SentenceEncoder, normalize
from minisbert.core.pooling import mean_pool
from minisbert.core.tokenizer import pad_batch
from minisbert.data.rows import ScoredPair

encoder = SentenceEncoder.load(find_model("all-MiniLM-L6-v2"))
lower = copy.deepcopy(encoder.bert)
lower.layers = lower.layers[:-1]  # five of six
states: dict[str, Tensor] = {}  # text -> (T, D), what the last layer reads


@torch.no_grad()
def read(texts: Sequence[str]) -> None:
    """Fill ``states`` for the texts that are not in it."""
    new = sorted({*texts} - states.keys())
    ids = dict(zip(new, encoder.tokenizer.encode(new).ids, strict=True)) if new else {}
    new.sort(key=lambda text: len(ids[text]))  # texts of like length: few pads
    for start in range(0, len(new), 64):
        part = new[start : start + 64]
        padded, mask = pad_batch([ids[text] for text in part], encoder.tokenizer.pad_id)
        for text, row in zip(part, lower(padded, mask), strict=True):
            states[text] = row[: len(ids[text])].clone()


class LastLayer(nn.Module):
    """Texts to unit vectors: the sixth layer, all that is trained; the mean; length 1."""

    def __init__(self):
        super().__init__()
        self.layer = copy.deepcopy(encoder.bert.layers[-1])

    def forward(self, texts: Sequence[str]) -> Tensor:
        read(texts)
        rows = [states[text] for text in texts]
        real = [torch.ones(len(row), dtype=torch.bool) for row in rows]
        mask = nn.utils.rnn.pad_sequence(real, batch_first=True)
        x = nn.utils.rnn.pad_sequence(rows, batch_first=True)  # (B, T, D)
        hidden, _ = self.layer(x, mask[:, None, None, :])
        return normalize(mean_pool(hidden, mask))  # (B, D)


@torch.no_grad()
def vectors(model: LastLayer, texts: Sequence[str]) -> Tensor:
    """(N, D), with dropout off."""
    read(texts)
    model.eval()
    order = sorted(range(len(texts)), key=lambda row: len(states[texts[row]]))
    found = torch.empty(len(texts), encoder.bert.config.hidden_size)
    for start in range(0, len(order), 64):
        rows = order[start : start + 64]
        found[rows] = model([texts[row] for row in rows])
    return found


@cache
def tokens(pair: ScoredPair) -> int:
    return max(map(len, encoder.tokenizer.encode([pair.sentence1, pair.sentence2]).ids))


def both(pairs: Sequence[ScoredPair]) -> list[str]:
    """All first sentences, then all second ones."""
    return [pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]


def cosines(model: LastLayer, pairs: Sequence[ScoredPair]) -> np.ndarray:
    u, v = vectors(model, both(pairs)).chunk(2)
    return (u * v).sum(1).numpy()  # (N,)


def spearman(model: LastLayer, pairs: Sequence[ScoredPair]) -> float:
    return 100 * metrics.spearman(cosines(model, pairs), [pair.score for pair in pairs])


def understood(name: str, model: LastLayer, lines: Sequence[str]) -> int:
    """How often of 24 lines, "said / negated / meant", is the third text nearer than the second?"""
    texts = []
    for line in lines:
        texts += line.split(" / ")
    said, negated, meant = vectors(model, texts).view(24, 3, -1).unbind(1)
    far = (said * negated).sum(1)  # (24,)
    near = (said * meant).sum(1)
    right = (near > far).view(2, 12).sum(1).tolist()
    means = f"mean cosines {far.mean():.2f} and {near.mean():.2f}"
    print(f"{name:26} {right[0]:2} and {right[1]:2} of 12; {means}")
    return sum(right)


def report(name: str, model: LastLayer, pairs: Sequence[ScoredPair]) -> tuple[float, float, float]:
    """Spearman of the pairs, the uniformity of their sentences and their mean cosine."""
    everything = vectors(model, sorted({*both(pairs)}))
    score = spearman(model, pairs)
    spread = uniformity(everything)
    mean = mean_off_diagonal_cosine(everything)
    print(f"{name:12} dev {score:.2f}   uniformity {spread:5.2f}   mean cosine {mean:.3f}")
    return score, spread, mean


def on_dev(model: LastLayer, dev: Sequence[ScoredPair]) -> tuple[float, float]:
    """Spearman x 100, and the loss of ``regression``."""
    error = cosines(model, dev) - np.array([pair.score / 5 for pair in dev])
    return spearman(model, dev), (error**2).mean()


def run(
    loss: Callable,
    pairs: Sequence[ScoredPair],
    lr: float = 3e-4,
    epochs: int = 1,
    seed: int = 0,
    look: tuple[int, Sequence[ScoredPair]] | None = None,
) -> tuple[LastLayer, np.ndarray, list[tuple[float, float]]]:
    """A trained model, each step's loss; with ``look=(4, dev)`` what dev says every 4 steps."""
    torch.manual_seed(seed)  # for dropout
    model = LastLayer()
    generator = torch.Generator().manual_seed(seed)
    lengths = [tokens(pair) for pair in pairs]
    batches = []
    for _ in range(epochs):
        for rows in length_grouped_batches(lengths, 32, generator):
            batches.append([pairs[row] for row in rows])
    schedule = partial(loop.linear_schedule, warmup=round(0.1 * len(batches)), total=len(batches))
    optimizer = loop.adamw(list(model.parameters()), lr=lr)
    curve = []
    seen = []
    for step in loop.fit(model.train(), loss, batches, optimizer, schedule, clip=1.0):
        curve.append(step.loss)
        if look and step.number % look[0] == 0:
            seen.append(on_dev(model, look[1]))
            model.train()
    return model, np.array(curve), seen
