"""Late interaction: one vector per token, texts compared token by token (ColBERT, Khattab and Zaharia 2020).

The formulas, exact search, and many matrices in one array. ``models/multi_vector_encoder.py`` makes the matrices.
Legend as in ``core/bert.py``; here K is the width of a token's vector, Q the number of queries, N that of texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minisbert.search.inverted import rank


def max_sim(query: Tensor, document: Tensor) -> Tensor:
    """Sum, over the query's tokens, of the highest similarity to any document token: (Tq, K), (Td, K) -> scalar.

    [[1, 0], [0, 1]] and [[.6, .8], [1, 0], [0, -1]] give 1 + .8 = 1.8; exchanged, .8 + 1 + 0.
    """
    return (query @ document.T).max(dim=1).values.sum()


def max_sim_matrix(queries: Tensor, documents: Tensor, real: Tensor) -> Tensor:
    """Compute ``max_sim`` of all with all: (B, Tq, K), (M, Td, K), and the documents' real tokens (M, Td) -> (B, M)."""
    scores = torch.einsum("bqk,mdk->bmqd", queries, documents)  # (B, M, Tq, Td)
    return scores.masked_fill(~real[:, None], -torch.inf).max(dim=-1).values.sum(dim=-1)


@dataclass(frozen=True)
class Matrices:
    """Matrices (T, K) of N texts: all rows in one array, (sum of T, K), and where each text begins, (N + 1,)."""

    rows: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, matrices: Sequence[np.ndarray], width: int) -> "Matrices":
        starts = np.cumsum([0, *map(len, matrices)])
        return cls(np.concatenate([np.empty((0, width), np.float32), *matrices]), starts)

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
        """Compute ``max_sim`` of a query (Tq, K) with each text, (N,); minus infinity for a text without tokens."""
        best = np.full((len(self), len(query)), -np.inf, self.rows.dtype)  # (N, Tq)
        full = np.flatnonzero(np.diff(self.starts))
        if len(full):  # subtle: reduceat takes an empty segment for one row, so texts without tokens are left out
            # one product with all tokens of all texts, then the maximum of each text's segment
            best[full] = np.maximum.reduceat(self.rows @ query.T, self.starts[full])
        return best.sum(axis=1)

    def tensors(self) -> dict[str, Tensor]:
        return {"rows": torch.from_numpy(self.rows), "starts": torch.from_numpy(self.starts)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Matrices":
        """Invert ``tensors``; ``ValueError`` if they do not fit together."""
        rows, starts = tensors["rows"].numpy(), tensors["starts"].numpy()
        fits = starts.ndim == 1 and rows.ndim == 2 and len(starts) > 0
        if not fits or [starts[0], starts[-1]] != [0, len(rows)] or (np.diff(starts) < 0).any():
            raise ValueError("starts do not divide the rows")
        return cls(rows, starts)


def late_top_k(queries: Matrices, corpus: Matrices, k: int, progress: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and texts, (Q, k) each, by ``max_sim`` with every text, in ``rank``'s order."""
    return rank(lambda i: corpus.scores(queries[i]), queries.shape, corpus.shape, k, progress)
