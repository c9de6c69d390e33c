"""Compare vectors with vectors: by cosines, dot products or distances."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError, one_line
from minisbert.core.encoder import cosine, cosine_matrix
from minisbert.search.dense import DISTANCES

Rows = np.ndarray | Tensor | Sequence  # vectors (N, D), or one (D,)
MAX_SCORE = 5.0  # of a head that scores pairs: 0 nothing in common, 5 the same meaning, as in STS


def as_array(x: Tensor) -> np.ndarray:
    """Convert a tensor on the CPU to an array; NumPy has no bfloat16."""
    if x.dtype == torch.bfloat16:
        x = x.float()
    return x.numpy()


def as_rows(vectors: Rows) -> np.ndarray:
    """Convert vectors to an array (N, D); a single vector is one row. Raises ``InputError`` for anything else."""
    if isinstance(vectors, Tensor):
        vectors = as_array(vectors.detach().cpu())
    try:
        rows = np.atleast_2d(vectors)
    except ValueError:  # lists of several lengths
        rows = np.empty(0)
    if rows.ndim != 2 or rows.dtype.kind not in "fiu":
        raise InputError(f"vectors must be numbers (N, D), not {one_line(vectors)}")
    return rows


def similarity(a: Rows, b: Rows, name: str = "cosine") -> np.ndarray | Tensor:
    """Compare every row of a (N, D) with every row of b (M, D) -> (N, M), in the finer dtype of the two.

    By ``name`` the cosine, the "dot" product, or minus the "euclidean" or "manhattan" distance. Returns a tensor on the
    CPU if one of the two is a tensor, else an array.
    """
    u, v = comparable(a, b)
    if name == "dot":
        result = u @ v.T
    elif name == "cosine":
        result = cosine_matrix(u, v)
    else:
        # subtle: by products of matrices, the default for many rows, a small distance would be rounding error
        result = -torch.cdist(u, v, DISTANCES[name], compute_mode="donot_use_mm_for_euclid_dist")
    return as_given(result, a, b)


def similarity_pairwise(a: Rows, b: Rows, name: str = "cosine") -> np.ndarray | Tensor:
    """Compare row i of a (N, D) with row i of b (N, D) -> (N,), as ``similarity`` does."""
    u, v = comparable(a, b)
    if len(u) != len(v):
        raise InputError(f"{len(u)} and {len(v)} vectors do not make pairs")
    if name == "dot":
        result = (u * v).sum(dim=1)
    elif name == "cosine":
        result = cosine(u, v)
    else:
        result = -torch.linalg.vector_norm(u - v, DISTANCES[name], dim=1)
    return as_given(result, a, b)


def comparable(a: Rows, b: Rows) -> tuple[Tensor, Tensor]:
    """Convert both to tensors (N, D), (M, D) in their finer dtype; ``InputError`` unless they can be compared."""
    a, b = as_rows(a), as_rows(b)
    if a.shape[1] != b.shape[1]:
        raise InputError(f"vectors of width {a.shape[1]} and {b.shape[1]} cannot be compared")
    dtype = np.result_type(a, b, np.float32)
    # Copies: torch warns about arrays that cannot be written to, as ``np.load(mmap_mode="r")`` gives them.
    u, v = torch.tensor(a.astype(dtype)), torch.tensor(b.astype(dtype))
    for x in (u, v):
        if not x.norm(dim=1).isfinite().all():
            raise InputError("a vector's length is not finite, so it cannot be compared")
    return u, v


def as_given(result: Tensor, a: Rows, b: Rows) -> np.ndarray | Tensor:
    """Return the result as a tensor if one of the vectors came as a tensor, else as an array."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return result
    return result.numpy()
