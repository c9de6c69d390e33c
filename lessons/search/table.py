"""What lesson 18 enters its engines into: quality with an interval, milliseconds, bytes."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from lessons.search.measure import grades, interval, ndcg_of_each
from minisbert.models.sentence_encoder import SentenceEncoder


class Table:
    """One line for each engine, all asked the same queries; ``right`` (Q,) has the documents."""

    def __init__(self, right: np.ndarray):
        self.right = right
        self.lines: dict[str, tuple[np.ndarray, np.ndarray, float, float]] = {}

    def enter(self, name: str, found: np.ndarray, milliseconds: float, size: float) -> None:
        """One engine: its ten documents (Q, 10), its time for a query, its bytes for a document."""
        each = ndcg_of_each(found, self.right)  # (Q,)
        hits = grades(found, self.right).sum(axis=1)
        self.lines[name] = each, hits, milliseconds, size
        low, high = interval(each)
        ndcg = f"nDCG@10 {each.mean():.3f} ({low:.3f} .. {high:.3f})"
        print(f"{name}: {ndcg}, recall@10 {hits.mean():.3f}")

    def ndcg(self, name: str) -> np.ndarray:
        """nDCG@10 of each query (Q,)."""
        return self.lines[name][0]

    def recall(self, name: str) -> np.ndarray:
        """1 for each query (Q,) whose document was among the ten."""
        return self.lines[name][1]

    def cost(self, name: str) -> tuple[float, float]:
        """Milliseconds for a query, bytes for a document."""
        return self.lines[name][2:]

    def gain(self, name: str, rival: str) -> tuple[np.ndarray, float, float]:
        """By how much each query's nDCG@10 is better than a rival's; prints the mean's interval."""
        gain = self.ndcg(name) - self.ndcg(rival)
        low, high = interval(gain)
        difference = f"{gain.mean():+.3f} ({low:+.3f} .. {high:+.3f})"
        print(f"{name} minus {rival}, the same queries: {difference}")
        return gain, low, high

    def show(self, documents: int) -> None:
        print(f"{'':26}{'nDCG@10':>8}  {'95 %':14}{'recall@10':>10}{'ms':>7}{'bytes':>7}{'MB':>7}")
        for name, (each, hits, took, size) in self.lines.items():
            low, high = interval(each)
            quality = f"{each.mean():8.3f}  {low:.3f} .. {high:.3f}{hits.mean():10.3f}"
            cost = f"{took:7.1f}{size:7.0f}{size * documents / 1e6:7.2f}"
            print(f"{name:26}{quality}{cost}")


def timed(function: Callable, queries: int) -> tuple[Any, float]:
    """What it returns, and milliseconds for each of so many queries."""
    started = time.perf_counter()
    return function(), 1000 * (time.perf_counter() - started) / queries


def best(scores: np.ndarray, k: int = 10) -> np.ndarray:
    """The columns of the k highest scores of each row, ties by column: scores (Q, N)."""
    order = torch.as_tensor(scores).sort(dim=1, descending=True, stable=True).indices
    return order[:, :k].numpy()


def encoded(
    model: SentenceEncoder, documents: Sequence[str], queries: dict[str, list[str]]
) -> tuple[np.ndarray, dict[str, np.ndarray], float]:
    """Vectors of the documents (N, D), of each split's queries, and milliseconds for a query."""
    corpus = model.encode(documents)
    count = sum(map(len, queries.values()))

    def encode_queries() -> dict[str, np.ndarray]:
        return {name: model.encode(texts) for name, texts in queries.items()}

    asked, took = timed(encode_queries, count)
    return corpus, asked, took
