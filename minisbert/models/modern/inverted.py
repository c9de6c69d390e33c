"""Sparse vectors (torch's CSR tensors) on disk, and exact search by dot products in an inverted index.

Legend: N texts, V words of the vocabulary, Q queries; a row has few weights that are not 0. CSR: row i has the columns
``indices[indptr[i] : indptr[i + 1]]``, ascending, and in the same places the ``values``.
[[0, 2, 0], [3, 0, 1]] is indptr [0, 1, 3], indices [1, 0, 2], values [2, 3, 1].
"""

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError, reading
from minisbert.fast.matrices import check_k
from minisbert.models.checkpoint import read_safetensors
from minisbert.system.console import Bar

warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
NAMES = ("indptr", "indices", "values", "width")  # of the tensors in a file


def sparse_rows(dense: Tensor, top: int | None = None) -> Tensor:
    """Dense rows (N, V) as CSR; with ``top`` only the largest numbers of each row, of equal ones those in front."""
    if top is not None:
        best = dense.argsort(dim=1, descending=True, stable=True)[:, :top]
        dense = torch.zeros_like(dense).scatter_(1, best, dense.gather(1, best))
    return dense.to_sparse_csr()


def sparse_tensors(rows: Tensor) -> dict[str, Tensor]:
    """CSR rows (N, V) as the four tensors of a file."""
    parts = rows.crow_indices(), rows.col_indices(), rows.values(), torch.tensor(rows.shape[1])
    return dict(zip(NAMES, parts, strict=True))


def read_sparse(path: str | Path) -> Tensor:
    """The rows in a file of ``encode --out``. Raises ``InputError`` for another file, and for a damaged one."""
    with reading(path):
        return from_sparse_tensors(read_safetensors(Path(path)))


def from_sparse_tensors(tensors: Mapping[str, Tensor]) -> Tensor:
    """The rows of ``sparse_tensors``; ``KeyError`` for one that is missing, ``RuntimeError`` if they do not fit."""
    indptr, indices, values, width = (tensors[name] for name in NAMES)
    return torch.sparse_csr_tensor(indptr, indices, values, (len(indptr) - 1, int(width)), check_invariants=True)


class InvertedIndex:
    """For each word the documents that have it, and with which weight: posting lists, one after the other in arrays."""

    def __init__(self, rows: Tensor):
        self.size, self.width = rows.shape
        words, counts = rows.col_indices().numpy(), rows.crow_indices().diff().numpy()
        order = np.argsort(words, kind="stable")  # by word, for each the documents in order
        self.documents = np.repeat(np.arange(self.size), counts)[order]
        self.weights = rows.values().numpy()[order].astype(np.float64)
        self.starts = np.concatenate([[0], np.cumsum(np.bincount(words, minlength=self.width))])  # (V + 1,)

    def scores(self, words: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Dot products of a query with every document, (N,) float32; only the posting lists of its words are read.

        Summed up in float64, in which a product of two float32 numbers is exact, and rounded once.
        """
        found = np.zeros(self.size)
        for word, weight in zip(words, weights.astype(np.float64), strict=True):
            posting = slice(self.starts[word], self.starts[word + 1])
            found[self.documents[posting]] += weight * self.weights[posting]  # a document is in a list once
        return found.astype(np.float32)

    def top_k(self, queries: Tensor, k: int, progress: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Scores and documents, (Q, k) each, of CSR queries (Q, V): highest first, ties by index.

        Raises ``InputError`` for queries of another width, and if k exceeds the corpus.
        """
        if queries.shape[1] != self.width:
            raise InputError(f"queries of width {queries.shape[1]} and a corpus of {self.width} cannot be compared")
        check_k(k, self.size, "the size of the corpus")
        scores, places = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        starts, words, weights = (x.numpy() for x in (queries.crow_indices(), queries.col_indices(), queries.values()))
        for i in Bar(range(len(queries)), desc="searching", unit=" queries", shown=progress):
            own = slice(starts[i], starts[i + 1])
            found = self.scores(words[own], weights[own])
            places[i] = np.argsort(-found, kind="stable")[:k]
            scores[i] = found[places[i]]
        return scores, places


def sparse_top_k(queries: Tensor, corpus: Tensor, k: int, progress: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """``InvertedIndex.top_k``, called as ``fast.search.top_k`` is."""
    return InvertedIndex(corpus).top_k(queries, k, progress)
