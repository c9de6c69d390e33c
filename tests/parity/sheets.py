"""The sheets' pieces: against products written out, Python's statistics, PyTorch's means, loops."""

import math
import statistics
from collections.abc import Iterator

import numpy as np
import torch

from lessons.by_hand import leaderboard, limits, prompts
from lessons.search import passages
from tests.parity import PIECE, Comparison, compare
from tests.parity.comparison import normal, same

TYPES = ("sts", "search", "sts", "sts", "classes", "search")


def queries_for_two() -> Iterator[Comparison]:
    """On the curve its products are -(1 - cos(t - a)) (1 - cos(t - b)), shifted and scaled."""
    a = torch.tensor([0.3, 1.1, 5.9], dtype=torch.float64)
    b = torch.tensor([0.9, 4.0, 2.2], dtype=torch.float64)
    t = torch.linspace(0, 6, 9, dtype=torch.float64)
    query = limits.query_for_two(a, b)  # (3, 4)
    curve = torch.stack([t.cos(), t.sin(), (2 * t).cos(), (2 * t).sin()])  # (4, 9)
    away = -(1 - (t - a[:, None]).cos()) * (1 - (t - b[:, None]).cos())  # (3, 9)
    # of the product only the constant 1 + cos(a - b) / 2 is missing; then the length
    unscaled = away + 1 + (a - b).cos()[:, None] / 2
    length = (2 + 2 * (a - b).cos() + 0.25).sqrt()[:, None]
    yield compare("products on the curve", query @ curve, unscaled / length, PIECE)
    yield same("lengths", query.norm(dim=1), [1.0, 1.0, 1.0])


def boards() -> Iterator[Comparison]:
    """Five models, six tasks of three types; some scores are equal."""
    scores = (20 * normal(5, 6).detach()).round().numpy()
    by_hand = []
    for row in scores.tolist():
        of_types = []
        for name in ("sts", "search", "classes"):
            of_types.append(
                statistics.fmean(x for x, of in zip(row, TYPES, strict=True) if of == name)
            )
        by_hand.append(statistics.fmean(of_types))
    yield same("mean by type", leaderboard.mean_by_type(scores, TYPES), by_hand)
    scores[1] = scores[0]
    counts = []
    for row in scores:
        counts.append(sum(int(x > y) for other in scores for x, y in zip(row, other, strict=True)))
    yield same("Borda counts", leaderboard.borda_counts(scores), counts)


def means_after_prompt() -> Iterator[Comparison]:
    """Three texts of 7, 5 and 4 tokens, of which the first three are the prompt's: slices."""
    hidden = normal(3, 7, 4).detach()
    mask = torch.arange(7) < torch.tensor([[7], [5], [4]])
    expected = torch.stack([hidden[0, 3:7].mean(0), hidden[1, 3:5].mean(0), hidden[2, 3:4].mean(0)])
    found = prompts.mean_after_prompt(hidden, mask, 3)
    yield compare("mean after three tokens", found, expected, PIECE)
    found = prompts.mean_after_prompt(hidden[:1], mask[:1], 0)
    yield compare("nothing left out", found, hidden[:1].mean(1), PIECE)


def budgets() -> Iterator[Comparison]:
    """Twenty questions, eight passages each, under four budgets, by a loop."""
    chance = np.random.default_rng(0)
    holds = chance.random((20, 8)) < 0.2
    tokens = 10 * chance.integers(1, 6, (20, 8))  # round numbers: some prompts are full
    for budget in (30, 100, 200, math.inf):
        expected = []
        for row, lengths in zip(holds.tolist(), tokens.tolist(), strict=True):
            used = 0
            found = 0.0
            for held, length in zip(row, lengths, strict=True):
                used += length
                if used > budget:
                    break
                found = max(found, float(held))
            expected.append(found)
        value = passages.recall_in_budget(holds, tokens, budget)
        yield same(f"recall in {budget} tokens", value, expected)
