"""What the speedrun is judged by: a search that counting cannot win, and STS-B beside it, each on dev and on test."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lessons.search import docstrings
from lessons.search.bm25 import bm25_scores
from lessons.search.measure import ndcg_of_each
from minisbert.core.metrics import spearman
from minisbert.data.datasets import load_scored_pairs
from minisbert.search.dense import top_k

Encode = Callable[[Sequence[str]], np.ndarray]  # N texts -> (N, D)


@dataclass(frozen=True)
class Scores:
    """nDCG@10 of the search and Spearman's correlation on STS-B, times 100."""

    search_dev: float
    search_test: float
    sts_dev: float
    sts_test: float

    def row(self) -> str:
        return f"{self.search_dev:.1f} | {self.search_test:.1f} | {self.sts_dev:.1f} | {self.sts_test:.1f}"


def unit(vectors: np.ndarray) -> np.ndarray:
    vectors = np.asarray(vectors, dtype=np.float64)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


class Judge:
    """Names of dev's and test's modules ask for their sentence among those of all modules (lesson 18)."""

    def __init__(self) -> None:
        entries = docstrings.read_entries()
        self.names = [entry.name for entry in entries]
        self.queries = [entry.query for entry in entries]
        self.documents = [entry.document for entry in entries]
        splits = np.array([docstrings.split_of(entry.module) for entry in entries])
        self.asked = {split: np.flatnonzero(splits == split) for split in ("dev", "test")}
        self.pairs = {split: load_scored_pairs("stsb", split) for split in ("dev", "test")}

    def ndcg(self, found: np.ndarray, split: str) -> float:
        """found (Q, 10) documents, best first, for the queries of a split."""
        return 100 * float(ndcg_of_each(found, self.asked[split]).mean())

    def search(self, encode: Encode) -> tuple[float, float]:
        documents = unit(encode(self.documents))
        found = []
        for split, asked in self.asked.items():
            queries = unit(encode([self.queries[i] for i in asked]))
            found.append(self.ndcg(top_k(queries, documents, 10)[1], split))
        return found[0], found[1]

    def sts(self, encode: Encode) -> tuple[float, float]:
        found = []
        for pairs in self.pairs.values():
            u, v = (unit(encode([pair.texts[side] for pair in pairs])) for side in (0, 1))
            found.append(100 * spearman((u * v).sum(axis=1), [pair.score for pair in pairs]))
        return found[0], found[1]

    def scores(self, encode: Encode) -> Scores:
        return Scores(*self.search(encode), *self.sts(encode))

    def counting(self) -> tuple[float, float]:
        """The search's scores of BM25, which counts words."""
        documents = [docstrings.terms(document) for document in self.documents]
        found = []
        for split, asked in self.asked.items():
            queries = [docstrings.terms(self.queries[i]) for i in asked]
            best = np.argsort(-bm25_scores(queries, documents), axis=1, kind="stable")[:, :10]
            found.append(self.ndcg(best, split))
        return found[0], found[1]
