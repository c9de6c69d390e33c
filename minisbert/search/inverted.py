"""Search sparse vectors (torch's CSR tensors) exactly by an inverted index, and read and write them.

Legend: N texts, V words of the vocabulary, Q queries; a row has few weights that are not 0. CSR: row i has the columns
``indices[indptr[i] : indptr[i + 1]]``, ascending, and in the same places the ``values``.
[[0, 2, 0], [3, 0, 1]] is indptr [0, 1, 3], indices [1, 0, 2], values [2, 3, 1].
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from minisbert.checkpoints.weights import read_weights
from minisbert.core import InputError, reading
from minisbert.search.dense import check_k
from minisbert.system.progress import Bar

CSR = ("indptr", "indices", "values", "width")  # names of the tensors in a file


@contextmanager
def no_beta_warning() -> Iterator[None]:
    """Leave out what torch says of the first CSR tensor in a process: that such tensors are in beta."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        yield


@no_beta_warning()
def sparse_rows(dense: Tensor, top: int | None = None) -> Tensor:
    """Convert dense rows (N, V) to CSR; with ``top`` only the largest numbers of each row, ties by column."""
    if top is not None:
        # a stable sort and not topk, which chooses freely among equal numbers
        best = dense.argsort(dim=1, descending=True, stable=True)[:, :top]
        dense = torch.zeros_like(dense).scatter_(1, best, dense.gather(1, best))
    return dense.to_sparse_csr()


@no_beta_warning()
def scaled_rows(rows: Tensor) -> Tensor:
    """Scale CSR rows (N, V) to length 1; rows without a weight stay as they are."""
    starts, values = rows.crow_indices(), rows.values().double()
    row_of = torch.arange(len(starts) - 1).repeat_interleave(starts.diff())  # the row of each weight
    squares = torch.zeros(len(starts) - 1, dtype=torch.float64).index_add_(0, row_of, values**2)  # (N,)
    scaled = (values / squares.sqrt()[row_of]).to(rows.dtype)
    return torch.sparse_csr_tensor(starts, rows.col_indices(), scaled, rows.shape, check_invariants=False)


def sparse_tensors(rows: Tensor) -> dict[str, Tensor]:
    """Return CSR rows (N, V) as the four tensors of a file."""
    width = torch.tensor(rows.shape[1])
    return dict(zip(CSR, (rows.crow_indices(), rows.col_indices(), rows.values(), width), strict=True))


def read_sparse(path: str | Path) -> Tensor:
    """Read the rows that ``encode --out`` wrote. Raises ``InputError`` for another file, and for a damaged one."""
    with reading(path):
        return from_sparse_tensors(read_weights(Path(path)))


@no_beta_warning()
def from_sparse_tensors(tensors: Mapping[str, Tensor]) -> Tensor:
    """Invert ``sparse_tensors``; ``KeyError`` for a missing tensor, ``ValueError`` if they do not fit together."""
    indptr, indices, values, width = (tensors[name] for name in CSR)
    try:
        return torch.sparse_csr_tensor(indptr, indices, values, (len(indptr) - 1, int(width)), check_invariants=True)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"the tensors of sparse rows do not fit together: {error}") from error


class InvertedIndex:
    """For each word the documents that have it, and with which weight: a corpus (N, V) in CSR, sorted by word.

    These posting lists lie one behind the other in two arrays, and a query reads only those of its words. Sorting takes
    longer than many searches: keep the index to search again.
    """

    def __init__(self, corpus: Tensor, similarity: str = "dot"):
        if similarity not in ("dot", "cosine"):
            raise InputError(f"sparse vectors are searched by their dot products or cosines, not by {similarity}")
        self.similarity, self.shape = similarity, (corpus.shape[0], corpus.shape[1])
        if similarity == "cosine":
            corpus = scaled_rows(corpus)
        words, counts = corpus.col_indices().numpy(), corpus.crow_indices().diff().numpy()
        order = np.argsort(words, kind="stable")  # by word, and for each word its documents in order
        self.documents = np.repeat(np.arange(len(counts)), counts)[order]
        self.weights = corpus.values().numpy()[order].astype(np.float64)
        self.starts = np.concatenate([[0], np.cumsum(np.bincount(words, minlength=corpus.shape[1]))])  # (V + 1,)

    def top_k(self, queries: Tensor, k: int, progress: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and documents, (Q, k) each, of CSR queries (Q, V), in ``rank``'s order."""
        if self.similarity == "cosine":
            queries = scaled_rows(queries)
        rows, words = queries.crow_indices().numpy(), queries.col_indices().numpy()
        weights = queries.values().numpy().astype(np.float64)

        def scores(query: int) -> np.ndarray:
            # in float64 a product of two float32 numbers is exact, so the order of the sum changes no score
            sums = np.zeros(self.shape[0])
            for i in range(rows[query], rows[query + 1]):
                posting = slice(self.starts[words[i]], self.starts[words[i] + 1])
                # no document twice: += adds each
                sums[self.documents[posting]] += weights[i] * self.weights[posting]
            return sums.astype(np.float32)

        return rank(scores, (queries.shape[0], queries.shape[1]), self.shape, k, progress)


def rank(
    scores: Callable[[int], np.ndarray], queries: tuple[int, int], corpus: tuple[int, int], k: int, progress: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k highest scores of each query and their documents, (Q, k) each: best first, ties by index.

    ``scores(i)`` are those of query i with all N documents. Raises ``InputError`` if the widths of the shapes
    ``queries`` (Q, V) and ``corpus`` (N, V) differ, and if k exceeds N.
    """
    if queries[1] != corpus[1]:
        raise InputError(f"queries have width {queries[1]} and the corpus {corpus[1]}: the widths must be equal")
    check_k(k, corpus[0], "the corpus size")
    best = np.empty((queries[0], k), np.float32)
    places = np.empty((queries[0], k), np.int64)
    for i in Bar(range(queries[0]), desc="searching", unit=" queries", shown=progress):
        row = -scores(i)
        lowest = np.partition(row, k - 1)[k - 1]
        # only the k best and their ties are sorted; not row <= lowest, which leaves out NaN
        candidates = np.flatnonzero(~(row > lowest))
        places[i] = candidates[np.argsort(row[candidates], kind="stable")[:k]]
        best[i] = -row[places[i]]
    return best, places
