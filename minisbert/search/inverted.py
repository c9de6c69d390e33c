"""Sparse vectors (torch's CSR tensors) on disk, and exact search: by an inverted index, or by any scores.

Legend: N texts, V words of the vocabulary, Q queries; a row has few weights that are not 0. CSR: row i has the columns
``indices[indptr[i] : indptr[i + 1]]``, ascending, and in the same places the ``values``.
[[0, 2, 0], [3, 0, 1]] is indptr [0, 1, 3], indices [1, 0, 2], values [2, 3, 1].
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from minisbert.checkpoints.weights import read_weights
from minisbert.core import InputError, reading
from minisbert.search.dense import check_k
from minisbert.system.progress import Bar

warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
CSR = ("indptr", "indices", "values", "width")  # names of the tensors in a file


def sparse_rows(dense: Tensor, top: int | None = None) -> Tensor:
    """Dense rows (N, V) as CSR; with ``top`` only the largest numbers of each row, of equal ones those in front."""
    if top is not None:
        best = dense.argsort(dim=1, descending=True, stable=True)[:, :top]
        dense = torch.zeros_like(dense).scatter_(1, best, dense.gather(1, best))
    return dense.to_sparse_csr()


def sparse_tensors(rows: Tensor) -> dict[str, Tensor]:
    """CSR rows (N, V) as the four tensors of a file."""
    parts = rows.crow_indices(), rows.col_indices(), rows.values(), torch.tensor(rows.shape[1])
    return dict(zip(CSR, parts, strict=True))


def read_sparse(path: str | Path) -> Tensor:
    """The rows in a file of ``encode --out``. Raises ``InputError`` for another file, and for a damaged one."""
    with reading(path):
        return from_sparse_tensors(read_weights(Path(path)))


def from_sparse_tensors(tensors: Mapping[str, Tensor]) -> Tensor:
    """The rows of ``sparse_tensors``; ``KeyError`` for one that is missing, ``RuntimeError`` if they do not fit."""
    indptr, indices, values, width = (tensors[name] for name in CSR)
    return torch.sparse_csr_tensor(indptr, indices, values, (len(indptr) - 1, int(width)), check_invariants=True)


def sparse_top_k(queries: Tensor, corpus: Tensor, k: int, progress: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Scores and documents, (Q, k) each, of CSR queries (Q, V) in a CSR corpus (N, V), as ``rank`` has them.

    An inverted index: for each word the documents that have it, and with which weight; the posting lists one after the
    other in arrays. Only those of a query's words are read.
    """
    words, counts = corpus.col_indices().numpy(), corpus.crow_indices().diff().numpy()
    order = np.argsort(words, kind="stable")  # by word, for each the documents in order
    documents = np.repeat(np.arange(len(counts)), counts)[order]
    weights = corpus.values().numpy()[order].astype(np.float64)
    starts = np.concatenate([[0], np.cumsum(np.bincount(words, minlength=corpus.shape[1]))])  # (V + 1,)
    rows, own_words, own_weights = (
        x.numpy() for x in (queries.crow_indices(), queries.col_indices(), queries.values())
    )

    def scores(query: int) -> np.ndarray:
        # in float64 a product of two float32 numbers is exact; the sum is rounded once
        found = np.zeros(len(counts))
        for place in range(rows[query], rows[query + 1]):
            posting = slice(starts[own_words[place]], starts[own_words[place] + 1])
            found[documents[posting]] += np.float64(own_weights[place]) * weights[posting]  # a document is there once
        return found.astype(np.float32)

    return rank(scores, queries.shape, corpus.shape, k, progress)


def rank(
    scores: Callable[[int], np.ndarray], queries: Sequence[int], corpus: Sequence[int], k: int, progress: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Scores and documents, (Q, k) each, by ``scores`` of a query with all N: highest first, ties by index.

    Raises ``InputError`` if the widths of ``queries`` (Q, V) and ``corpus`` (N, V) differ, and if k exceeds N.
    """
    if queries[1] != corpus[1]:
        raise InputError(f"queries of width {queries[1]} and a corpus of {corpus[1]} cannot be compared")
    check_k(k, corpus[0], "the size of the corpus")
    found, places = np.empty((queries[0], k), np.float32), np.empty((queries[0], k), np.int64)
    for i in Bar(range(queries[0]), desc="searching", unit=" queries", shown=progress):
        row = scores(i)
        places[i] = np.argsort(-row, kind="stable")[:k]
        found[i] = row[places[i]]
    return found, places
