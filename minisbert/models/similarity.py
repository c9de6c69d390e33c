"""Vectors compared with vectors: by cosines, dot products or distances."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError, one_line
from minisbert.core.encoder import cosine_matrix


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


def similarity(a: np.ndarray, b: np.ndarray, name: str = "cosine") -> np.ndarray:
    """Every row of a (N, D) with every row of b (M, D) -> (N, M), in the finer dtype of the two.

    By ``name`` the cosine, the "dot" product, or minus the "euclidean" or "manhattan" distance.
    """
    a, b = as_rows(a), as_rows(b)
    if a.shape[1] != b.shape[1]:
        raise InputError(f"vectors of width {a.shape[1]} and {b.shape[1]} cannot be compared")
    dtype = np.result_type(a, b, np.float32)
    u, v = torch.tensor(a.astype(dtype)), torch.tensor(b.astype(dtype))
    if name == "dot":
        return (u @ v.T).numpy()
    if name == "cosine":
        for x in (u, v):
            if not x.norm(dim=1).isfinite().all():
                raise InputError("a vector's length is not finite, so its cosines are undefined")
        return cosine_matrix(u, v).numpy()
    # subtle: by products of matrices, the default for many rows, a small distance would be rounding error
    p = 1 if name == "manhattan" else 2
    return -torch.cdist(u, v, p, compute_mode="donot_use_mm_for_euclid_dist").numpy()
