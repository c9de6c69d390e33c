"""How vectors of each kind are asked for, searched, and kept in a file.

An encoder says in ``vectors_are`` which kind it gives: one dense vector for each text, a sparse
one, or a vector for each token.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minisbert.search.by_tokens import (
    InvertedIndex,
    Matrices,
    from_sparse_tensors,
    late_top_k,
    sparse_tensors,
)
from minisbert.search.dense import top_k

Ranking = tuple[np.ndarray, np.ndarray]  # scores and rows, (Q, k) each


@dataclass(frozen=True)
class Kind:
    """What can be done with vectors of one kind."""

    top_k: Callable[[Any, Any, int, bool, str], Ranking]  # queries, corpus, k, progress, similarity
    to_tensors: Callable[[Any], dict[str, Tensor]]  # the tensors of a file that keeps them
    from_tensors: Callable[[dict[str, Tensor]], Any]
    # ``encode`` is called with these, so that it returns what ``top_k`` takes.
    encode_options: Mapping[str, Any] = field(default_factory=dict)


def dense_tensors(vectors: np.ndarray) -> dict[str, Tensor]:
    return {"vectors": torch.from_numpy(vectors)}


def from_dense_tensors(tensors: Mapping[str, Tensor]) -> np.ndarray:
    return tensors["vectors"].numpy()


def sparse_top_k(
    queries: Tensor, corpus: Tensor, k: int, progress: bool, similarity: str
) -> Ranking:
    """Search sparse rows by the dot product or the cosine. Raises ``InputError`` for a distance."""
    return InvertedIndex(corpus, similarity).top_k(queries, k, progress)


def matrices_top_k(
    queries: Matrices, corpus: Matrices, k: int, progress: bool, similarity: str
) -> Ranking:
    """Search by ``max_sim``, the only similarity of vectors per token."""
    return late_top_k(queries, corpus, k, progress)


KINDS = {
    "dense": Kind(top_k, dense_tensors, from_dense_tensors),
    "sparse": Kind(
        sparse_top_k,
        sparse_tensors,
        from_sparse_tensors,
        encode_options={"convert_to_sparse_tensor": True},
    ),
    "per token": Kind(matrices_top_k, Matrices.tensors, Matrices.from_tensors),
}
