"""Vectors for the search: read block by block, scaled to length 1, multiplied in float32 with a bound on the error."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError, reading
from minisbert.core.checks import check

READ = 1024  # rows at a time
OPEN = 64  # arrays of a stack that are kept


class Stacked:
    """Arrays (n, D), each below the one before, as one (N, D): shards on disk that are never in memory as a whole.

    ``load(i)`` gives array i, which has ``counts[i]`` rows. Few are kept: each memory map takes a file descriptor, and
    a folder may have more shards than a process may open.
    """

    ndim = 2

    def __init__(self, load: Callable[[int], np.ndarray], counts: Sequence[int], width: int, dtype: str | np.dtype):
        self.load, self.dtype = lru_cache(OPEN)(load), np.dtype(dtype)
        self.ends = np.cumsum(counts)  # (arrays,)
        self.starts = self.ends - counts
        self.shape = int(self.ends[-1]), width

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """A copy of some rows (R, D), by a slice of step 1 or by their numbers (R,)."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            found = np.empty((max(stop - start, 0), self.shape[1]), self.dtype)
            first, last = self.ends.searchsorted([start, stop - 1], side="right")
            for i in range(first, last + 1 if len(found) else first):
                low, high = max(start, self.starts[i]), min(stop, self.ends[i])
                found[low - start : high - start] = self.load(i)[low - self.starts[i] : high - self.starts[i]]
            return found
        found = np.empty((len(rows), self.shape[1]), self.dtype)
        which = self.ends.searchsorted(rows, side="right")  # (R,), the array of each row
        for i in np.unique(which):
            own = which == i
            found[own] = self.load(i)[rows[own] - self.starts[i]]
        return found


class Chosen:
    """Some rows of stacked arrays, by their numbers (R,), in place of all."""

    def __init__(self, source: Stacked, rows: np.ndarray):
        self.source, self.rows = source, rows

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        return self.source[self.rows[rows]]


Source = np.ndarray | Tensor | Stacked


class Matrix:
    """Vectors (N, D) of any kind, read block by block: an array on disk is never in memory as a whole.

    Their lengths are computed here, once, so the vectors must not change while it is in use. ``name`` is for messages.
    Raises ``InputError`` for anything but a finite, non-empty (N, D) of real numbers.
    """

    def __init__(self, source: Source, name: str):
        with reading(f"the {name}"):
            self.source = source.detach().cpu() if isinstance(source, Tensor) else source
            if not isinstance(source, Tensor | Stacked):
                self.source = np.asanyarray(source)
            check("vectors (N, D)", self.source)
            kind = self.source if isinstance(source, Tensor) else torch.from_numpy(np.empty(0, self.source.dtype))
            if kind.is_complex():
                raise TypeError("complex numbers are not supported")
        self.name = name
        self.extreme = False  # is there a row whose square overflows or vanishes even in float64?
        self.lengths = torch.cat([self._lengths(start) for start in range(0, len(self), READ)])  # (N,)

    def __len__(self) -> int:
        return len(self.source)

    @property
    def width(self) -> int:
        return self.source.shape[1]

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        """Some rows (R, D), as they are; extreme ones divided by their largest number, which changes no cosine."""
        found = self._read(rows)
        if not self.extreme:
            return found
        found = found.double()
        size = found.abs().amax(dim=1, keepdim=True)  # (R, 1)
        return found / torch.where(is_extreme(size), size, 1)

    def _read(self, rows: slice | Tensor) -> Tensor:
        if isinstance(self.source, Tensor):
            return self.source[rows] if isinstance(rows, slice) else self.source.index_select(0, rows)
        found = self.source[rows] if isinstance(rows, slice) else self.source[rows.numpy()]
        found = np.ascontiguousarray(found)  # a layout that torch accepts
        try:
            return torch.from_dlpack(found)  # without a copy, of an array that is read-only as well
        except BufferError:  # older versions export none that is read-only
            return torch.from_numpy(np.require(found, requirements="W"))

    def unit(self, rows: slice) -> Tensor:
        """Some rows (R, D) scaled to length 1, in float32. A zero vector stays zero."""
        lengths = self.lengths[rows, None]  # (R, 1)
        if (lengths - 1).abs().max() < 2**-20:  # they are already
            return self[rows].float()
        if lengths.max() > 1e18:
            return (self[rows].double() / lengths).float()
        return self[rows].float() * (1 / lengths).float()

    def _lengths(self, start: int) -> Tensor:
        """The lengths (R,) of a block's rows in float64. If they can be computed in float32, that is enough."""
        block = slice(start, start + READ)
        rows = self._read(block)
        if rows.dtype == torch.float32:
            lengths = torch.linalg.vector_norm(rows, dim=1)  # (R,)
            if lengths.min() > 1e-12 and lengths.max() < 1e18:  # also false for NaN
                return lengths.double()
        rows = rows.double()
        finite = rows.isfinite().all(dim=1)  # (R,)
        if not finite.all():
            row = start + int(finite.int().argmin())
            raise InputError(f"the {self.name}, row {row}: NaN or infinity has no cosine with anything")
        self.extreme |= bool(is_extreme(rows.abs().amax(dim=1)).any())
        return torch.linalg.vector_norm(self[block].double(), dim=1).clamp_min(1e-12)  # as in ``normalize``


def is_extreme(size: Tensor) -> Tensor:
    """For rows by their largest number: whether the float64 length is wrong, or below the 1e-12 of ``normalize``."""
    return (size > 1e100) | ((size < 1e-10) & (size > 0))


def error_bound(width: int) -> float:
    """How far ``products`` of two vectors of this width, scaled by ``Matrix.unit``, can be from their cosine.

    A sum of D products, in whatever order, is off by at most D u / (1 - D u) times the sum of their sizes, which is at
    most 1 here; u is 2^-24 (Higham 2002, *Accuracy and Stability of Numerical Algorithms*, section 3.1). Each of the
    two lengths, a root of a sum of D squares, adds D u / 2 if computed, 16 u if taken for 1. The 52 are for these and
    the other roundings, the factor 1.1 for their products.
    """
    matmul = getattr(torch.backends.mkldnn, "matmul", None)  # since torch 2.9
    name = torch.get_float32_matmul_precision() if matmul is None else matmul.fp32_precision
    # a user may let torch multiply in TF32 or bfloat16; then everything is a candidate
    unit = 2**-24 if name in ("highest", "ieee", "none") else 2**-8
    return 1.1 * (2 * width + 52) * unit


def check_k(k: int, most: int, what: str) -> None:
    if not 1 <= k <= most:
        raise InputError(f"k is {k}: it must be 1 to {most:,}, {what}")
