"""Search by tokens, exactly: by a weight for each word, or by a vector for each token of a text.

The first half is for sparse vectors. They come as torch's COO tensors, as an encoder gives them,
and are read as CSR: row i has the columns ``indices[indptr[i] : indptr[i + 1]]``, ascending, and in
the same places the ``values``. [[0, 2, 0], [3, 0, 1]] is indptr [0, 1, 3], indices [1, 0, 2],
values [2, 3, 1].

The second half is for late interaction (ColBERT, Khattab and Zaharia 2020), which compares each
token of a query with each of a text.

Legend: N texts, V words of the vocabulary, Q queries, K columns of a token's vector.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError
from minisbert.search.dense import check_k
from minisbert.system.progress import Bar


@contextmanager
def no_beta_warning() -> Iterator[None]:
    """Silence what torch says of a process's first CSR tensor: that such tensors are in beta."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        yield


@no_beta_warning()
def sparse_rows(dense: Tensor, top: int | None = None) -> Tensor:
    """Convert dense rows (N, V) to CSR.

    With ``top``, each row keeps only so many numbers: the largest, ties by column.
    """
    if top is not None:
        # A stable sort and not topk, which chooses freely among equal numbers.
        best = dense.argsort(dim=1, descending=True, stable=True)[:, :top]
        dense = torch.zeros_like(dense).scatter_(1, best, dense.gather(1, best))
    return dense.to_sparse_csr()


@no_beta_warning()
def as_csr(rows: Tensor) -> Tensor:
    """Convert sparse vectors of any layout (N, V), or one (V,), to CSR rows."""
    if rows.ndim == 1:
        rows = rows.unsqueeze(0)
    return rows.to_sparse_csr()


def sparse_tensors(rows: Tensor) -> dict[str, Tensor]:
    """Return sparse rows (N, V) as the four tensors of a file."""
    rows = as_csr(rows)
    return {
        "indptr": rows.crow_indices(),
        "indices": rows.col_indices(),
        "values": rows.values(),
        "width": torch.tensor(rows.shape[1]),
    }


@no_beta_warning()
def from_sparse_tensors(tensors: Mapping[str, Tensor]) -> Tensor:
    """Invert ``sparse_tensors``.

    ``KeyError`` for a missing tensor, ``ValueError`` if they do not fit together.
    """
    indptr = tensors["indptr"]
    indices = tensors["indices"]
    values = tensors["values"]
    width = tensors["width"]
    try:
        shape = (len(indptr) - 1, int(width))
        return torch.sparse_csr_tensor(indptr, indices, values, shape, check_invariants=True)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"the tensors of sparse rows do not fit together: {error}") from error


def numbers_of(rows: Tensor, similarity: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return row, column and weight of each number of CSR rows (N, V).

    The weights are float64. For the cosine each row is scaled to length 1.
    """
    counts = rows.crow_indices().diff().numpy()
    values = rows.values().numpy()
    row_of = np.repeat(np.arange(len(counts)), counts)
    weights = values.astype(np.float64)
    if similarity == "cosine":
        lengths = np.sqrt(np.bincount(row_of, weights**2, minlength=len(counts)))  # (N,)
        scaled = weights / lengths[row_of]
        # Rounded to float32, the product of two weights is exact in float64: see ``top_k``.
        weights = scaled.astype(values.dtype).astype(np.float64)
    return row_of, rows.col_indices().numpy(), weights


class InvertedIndex:
    """For each word the documents that have it, and with which weight.

    A word's documents and weights are its posting list. The lists of a corpus (N, V) lie one behind
    the other in two arrays, and a query reads only those of its words. To sort a corpus by words
    takes longer than many searches: keep the index to search again.
    """

    def __init__(self, corpus: Tensor, similarity: str = "dot"):
        if similarity not in ("dot", "cosine"):
            raise InputError(
                f"sparse vectors are searched by their dot products or cosines, not by {similarity}"
            )
        self.similarity = similarity
        corpus = as_csr(corpus)
        self.shape = (corpus.shape[0], corpus.shape[1])
        documents, words, weights = numbers_of(corpus, similarity)
        # The sort is stable: each word's documents keep their order.
        order = np.argsort(words, kind="stable")
        self.documents = documents[order]
        self.weights = weights[order]
        counts = np.bincount(words, minlength=corpus.shape[1])  # (V,), documents of each word
        self.starts = np.concatenate([[0], np.cumsum(counts)])  # (V + 1,)

    def top_k(
        self, queries: Tensor, k: int, progress: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and documents of sparse queries (Q, V), (Q, k) each, as ``rank`` sorts."""
        queries = as_csr(queries)
        _, words, weights = numbers_of(queries, self.similarity)
        starts = queries.crow_indices().numpy()  # (Q + 1,), where each query's words begin

        def scores(query: int) -> np.ndarray:
            """Add up, word by word of the query, what each document has of it: (N,)."""
            # In float64 a product of two float32 numbers is exact, so the order of the sum changes
            # no score.
            sums = np.zeros(self.shape[0])
            for i in range(starts[query], starts[query + 1]):
                posting = slice(self.starts[words[i]], self.starts[words[i] + 1])
                # A posting list has no document twice, so that += adds each number.
                sums[self.documents[posting]] += weights[i] * self.weights[posting]
            return sums.astype(np.float32)

        return rank(scores, (queries.shape[0], queries.shape[1]), self.shape, k, progress)


# -------------------------------------------------------------------------------- late interaction


def max_sim(query: Tensor, document: Tensor) -> Tensor:
    """Sum, over the query's tokens, of the highest similarity to any token of the document.

    (Tq, K), (Td, K) -> scalar.
    [[1, 0], [0, 1]] and [[.6, .8], [1, 0], [0, -1]] give 1 + .8 = 1.8; exchanged, .8 + 1 + 0.
    """
    return (query @ document.T).max(dim=1).values.sum()


@dataclass(frozen=True)
class Matrices:
    """Matrices (T, K) of N texts, a row for each of a text's T tokens.

    All ``rows`` are in one array, (sum of T, K); ``starts`` (N + 1,) says where each text begins.
    """

    rows: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, matrices: Sequence[np.ndarray], width: int) -> "Matrices":
        """Put the matrices (T, K) of texts together; K is ``width``, also if there are no texts."""
        lengths = [len(matrix) for matrix in matrices]
        starts = np.cumsum([0, *lengths])
        no_rows = np.empty((0, width), np.float32)  # alone if there are no texts
        return cls(np.concatenate([no_rows, *matrices]), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, text: int | slice) -> Any:
        """Return the matrix (T, K) of a text, or ``Matrices`` of neighbours."""
        if isinstance(text, slice):
            first, last, _ = text.indices(len(self))
            starts = self.starts[first : last + 1]
            return Matrices(self.rows[starts[0] : starts[-1]], starts - starts[0])
        return self.rows[self.starts[text] : self.starts[text + 1]]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.rows.shape[1]

    def scores(self, query: np.ndarray) -> np.ndarray:
        """Compute ``max_sim`` of a query (Tq, K) with each text, (N,).

        It is minus infinity for a text without tokens.
        """
        best = np.full((len(self), len(query)), -np.inf, self.rows.dtype)  # (N, Tq)
        # subtle: reduceat takes an empty segment for one row, so texts without tokens are left out
        full = np.flatnonzero(np.diff(self.starts))
        if len(full):
            # One product with all tokens of all texts, then the maximum of each text's segment.
            similarities = self.rows @ query.T  # (sum of T, Tq)
            best[full] = np.maximum.reduceat(similarities, self.starts[full])
        return best.sum(axis=1)

    def tensors(self) -> dict[str, Tensor]:
        return {"rows": torch.from_numpy(self.rows), "starts": torch.from_numpy(self.starts)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Matrices":
        """Invert ``tensors``; ``ValueError`` if they do not fit together."""
        rows = tensors["rows"].numpy()
        starts = tensors["starts"].numpy()
        if rows.ndim != 2 or not divides(starts, len(rows)):
            raise ValueError("starts do not divide the rows")
        return cls(rows, starts)


def divides(starts: np.ndarray, count: int) -> bool:
    """Return whether ``starts`` (N + 1,) divide ``count`` rows among N texts, in their order."""
    if starts.ndim != 1 or len(starts) == 0:
        return False
    if starts[0] != 0 or starts[-1] != count:
        return False
    return bool((np.diff(starts) >= 0).all())


def late_top_k(
    queries: Matrices, corpus: Matrices, k: int, progress: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and texts, (Q, k) each, by ``max_sim`` with every text, in ``rank``'s order."""

    def scores(query: int) -> np.ndarray:
        """Score every text for one query: (N,)."""
        return corpus.scores(queries[query])

    return rank(scores, queries.shape, corpus.shape, k, progress)


def rank(
    scores: Callable[[int], np.ndarray],
    query_shape: tuple[int, int],
    corpus_shape: tuple[int, int],
    k: int,
    progress: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k highest scores of each query and their documents, (Q, k) each.

    Best first, ties by index. ``scores(i)`` returns those of query i with all N documents.
    The shapes are those of all queries, (Q, columns), and of the corpus, (N, columns). Raises
    ``InputError`` if their widths differ, and if k exceeds N.
    """
    query_count, query_width = query_shape
    document_count, corpus_width = corpus_shape
    if query_width != corpus_width:
        raise InputError(
            f"queries have width {query_width} and the corpus {corpus_width}: the widths must be "
            f"equal"
        )
    check_k(k, document_count, "the corpus size")
    best = np.empty((query_count, k), np.float32)
    places = np.empty((query_count, k), np.int64)
    for i in Bar(range(query_count), desc="searching", unit=" queries", shown=progress):
        # Sorts of NumPy ascend, so the best is the lowest of the negative scores.
        negative = -scores(i)  # (N,)
        kth = np.partition(negative, k - 1)[k - 1]
        # Only the k best and their ties are sorted. (``negative <= kth`` would leave out NaN.)
        candidates = np.flatnonzero(~(negative > kth))
        order = np.argsort(negative[candidates], kind="stable")
        places[i] = candidates[order[:k]]
        best[i] = -negative[places[i]]
    return best, places
