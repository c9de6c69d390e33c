"""What the speedrun is judged by: functions' names ask for the sentence on them (lesson 18)."""

import hashlib
import json
from collections.abc import Callable, Sequence

import numpy as np

from lessons.search import docstrings
from lessons.search.bm25 import bm25_scores
from lessons.search.measure import interval, interval_over_groups, ndcg_of_each
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
        self.modules: dict[str, list[str]] = {}  # of each query
        for split, rows in self.right.items():
            self.queries[split] = [entries[i].query for i in rows]
            self.modules[split] = [entries[i].module for i in rows]

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
        return {split: float(each.mean()) for split, each in self.ndcg_of_each(likeness).items()}

    def ndcg_of_each(self, likeness: Likeness) -> Likeness:
        """nDCG@10 of each query of each split, times 100: (Q,)."""
        found = {}
        for split, scores in likeness.items():
            found[split] = 100 * ndcg_of_each(best(scores), self.right[split])
        return found

    def gain(self, each: Likeness, rival: Likeness) -> str:
        """By how much test's score is better than a rival's, with two intervals of the difference.

        Drawn again are queries, and then whole modules: those of one module are hard or easy
        together, and a library that nobody has seen is made of other modules (lesson 18).
        """
        difference = each["test"] - rival["test"]  # (Q,), of the same queries
        parts = [f"{difference.mean():+.2f}"]
        for name, (low, high) in (
            ("queries", interval(difference)),
            ("modules", interval_over_groups(difference, self.modules["test"])),
        ):
            parts.append(f"{low:+.2f} to {high:+.2f} over {name}")
        return ", ".join(parts)

    def digest(self, names: Sequence[str] = (), sentences: Sequence[str] = ()) -> str:
        """Eight digits of what is asked and of what was learned from.

        Records with another digest have other questions, and are not compared.
        """
        text = json.dumps([self.documents, self.queries, list(names), list(sentences)])
        return hashlib.sha256(text.encode("utf-8")).hexdigest()[:8]
