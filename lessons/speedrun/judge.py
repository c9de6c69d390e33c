"""What the speedrun is judged by: functions' names ask for the sentence on them (lesson 18)."""

from collections.abc import Callable, Sequence

import numpy as np

from lessons.search import docstrings
from lessons.search.bm25 import bm25_scores
from lessons.search.measure import ndcg_of_each
from lessons.search.table import best

Encode = Callable[[Sequence[str]], np.ndarray]  # N texts -> (N, D)
Likeness = dict[str, np.ndarray]  # for dev and test (Q, N): how well each document fits each query


def unit(vectors: np.ndarray) -> np.ndarray:
    vectors = np.asarray(vectors, dtype=np.float64)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


class Judge:
    """Dev's and test's names, each with one right sentence among those of all modules."""

    def __init__(self) -> None:
        entries = docstrings.read_entries()
        self.names = [entry.name for entry in entries]
        self.documents = [entry.document for entry in entries]
        splits = np.array([docstrings.split_of(entry.module) for entry in entries])
        self.right = {split: np.flatnonzero(splits == split) for split in ("dev", "test")}
        self.queries: dict[str, list[str]] = {}
        for split, rows in self.right.items():
            self.queries[split] = [entries[i].query for i in rows]

    def cosines(self, encode: Encode, splits: Sequence[str] = ("dev", "test")) -> Likeness:
        documents = unit(encode(self.documents))
        return {split: unit(encode(self.queries[split])) @ documents.T for split in splits}

    def counted(self) -> Likeness:
        """The scores of BM25, which counts words."""
        documents = [docstrings.terms(document) for document in self.documents]
        scores = {}
        for split, queries in self.queries.items():
            words = [docstrings.terms(query) for query in queries]
            scores[split] = bm25_scores(words, documents)
        return scores

    def ndcg(self, likeness: Likeness) -> dict[str, float]:
        """nDCG@10 of each split, times 100."""
        found = {}
        for split, scores in likeness.items():
            each = ndcg_of_each(best(scores), self.right[split])
            found[split] = 100 * float(each.mean())
        return found
