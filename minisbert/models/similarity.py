"""Vectors compared with vectors: by cosines, dot products or distances."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError, one_line
from minisbert.core.encoder import cosine, cosine_matrix

MAX_SCORE = 5.0  # of a head that scores pairs: 0 nothing in common, 5 the same meaning, as in STS


def as_array(x: Tensor) -> np.ndarray:
    """A tensor on the CPU as an array; NumPy has no bfloat16."""
    if x.dtype == torch.bfloat16:
        x = x.float()
    return x.numpy()


def as_rows(vectors: np.ndarray | Tensor | Sequence) -> np.ndarray:
    """Vectors as an array (N, D); a single vector is one row. Raises ``InputError`` for anything else."""
    if isinstance(vectors, Tensor):
        vectors = as_array(vectors.detach().cpu())
    try:
        rows = np.atleast_2d(vectors)
    except ValueError:  # lists of several lengths
        rows = np.empty(0)
    if rows.ndim != 2 or rows.dtype.kind not in "fiu":
        raise InputError(f"vectors must be numbers (N, D), not {one_line(vectors)}")
    return rows


def similarity(a: np.ndarray | Tensor, b: np.ndarray | Tensor, name: str = "cosine") -> np.ndarray | Tensor:
    """Every row of a (N, D) with every row of b (M, D) -> (N, M), in the finer dtype of the two.

    By ``name`` the cosine, the "dot" product, or minus the "euclidean" or "manhattan" distance. A tensor, on the CPU,
    if one of the two is a tensor.
    """
    u, v = as_tensors(a, b)
    if name == "dot":
        return as_given(u @ v.T, a, b)
    if name == "cosine":
        return as_given(cosine_matrix(u, v), a, b)
    # subtle: by products of matrices, the default for many rows, a small distance would be rounding error
    p = 1 if name == "manhattan" else 2
    return as_given(-torch.cdist(u, v, p, compute_mode="donot_use_mm_for_euclid_dist"), a, b)


def similarity_pairwise(a: np.ndarray | Tensor, b: np.ndarray | Tensor, name: str = "cosine") -> np.ndarray | Tensor:
    """Row i of a (N, D) with row i of b (N, D) -> (N,), as ``similarity`` compares them."""
    u, v = as_tensors(a, b)
    if len(u) != len(v):
        raise InputError(f"{len(u)} and {len(v)} vectors do not make pairs")
    if name == "dot":
        return as_given((u * v).sum(dim=1), a, b)
    if name == "cosine":
        return as_given(cosine(u, v), a, b)
    p = 1 if name == "manhattan" else 2
    return as_given(-torch.linalg.vector_norm(u - v, p, dim=1), a, b)


def as_tensors(a: np.ndarray | Tensor, b: np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
    """Both in the finer dtype of the two. Raises ``InputError`` unless they can be compared."""
    a, b = as_rows(a), as_rows(b)
    if a.shape[1] != b.shape[1]:
        raise InputError(f"vectors of width {a.shape[1]} and {b.shape[1]} cannot be compared")
    dtype = np.result_type(a, b, np.float32)
    u, v = torch.tensor(a.astype(dtype)), torch.tensor(b.astype(dtype))
    for x in (u, v):
        if not x.norm(dim=1).isfinite().all():
            raise InputError("a vector's length is not finite, so it cannot be compared")
    return u, v


def as_given(result: Tensor, *vectors: np.ndarray | Tensor) -> np.ndarray | Tensor:
    """The result as an array, unless one of the vectors came as a tensor."""
    if any(isinstance(x, Tensor) for x in vectors):
        return result
    return result.numpy()
