"""Vectors to search: arrays, tensors, or several arrays as one; read block by block and scaled to length 1."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError, reading
from minisbert.core.checks import check

OPEN = 64  # arrays of a stack that are held open: a memory map takes a file descriptor


class Stacked:
    """Arrays (n, D), one below the other, as one (N, D): files on disk that are never in memory as a whole.

    ``load(i)`` returns array i, which has ``counts[i]`` rows; ``chosen`` are the rows to take of all these, in order.
    """

    ndim = 2

    def __init__(
        self,
        load: Callable[[int], np.ndarray],
        counts: Sequence[int],
        width: int,
        dtype: str | np.dtype = "float32",
        chosen: np.ndarray | None = None,
    ):
        self.load, self.dtype, self.chosen = lru_cache(OPEN)(load), np.dtype(dtype), chosen
        self.ends = np.cumsum(counts)  # (arrays,)
        self.starts = self.ends - counts
        self.shape = sum(counts) if chosen is None else len(chosen), width

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """A copy of some rows (R, D), by a slice or by their numbers (R,)."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        if self.chosen is not None:
            rows = self.chosen[rows]
        result = np.empty((len(rows), self.shape[1]), self.dtype)
        arrays = self.ends.searchsorted(rows, side="right")  # (R,), the array of each row
        for i in np.unique(arrays):
            here = arrays == i
            result[here] = self.load(i)[rows[here] - self.starts[i]]
        return result


Source = np.ndarray | Tensor | Stacked


class Vectors:
    """Vectors (N, D) of any kind, read in blocks: an array on disk is never in memory as a whole.

    ``name`` is for messages. Raises ``InputError`` for anything but a non-empty (N, D) of real numbers.
    """

    def __init__(self, source: Source, name: str):
        with reading(f"the {name}"):
            if isinstance(source, Tensor):
                source = source.detach().cpu()
            elif not isinstance(source, Stacked):
                source = np.asanyarray(source)
            check("vectors (N, D)", source)
        is_real = not source.is_complex() if isinstance(source, Tensor) else np.can_cast(source.dtype, np.float64)
        if not is_real:
            raise InputError(f"the {name}: real numbers are needed, not {source.dtype}")
        self.source, self.name = source, name
        self.width = source.shape[1]

    def __len__(self) -> int:
        return len(self.source)

    def unit(self, rows: slice | Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Some rows (R, D), by a slice or by their numbers, scaled to length 1. A zero vector stays zero.

        Raises ``InputError`` for NaN and infinity.
        """
        x = self._read(rows)
        is_small = x.is_floating_point() and x.dtype != torch.float64
        x = x.to(dtype) if is_small else x.double()
        lengths = torch.linalg.vector_norm(x, dim=1, keepdim=True)  # (R, 1)
        if lengths.min() > 1e-12 and lengths.max() < 1e18:  # false for NaN, too
            if dtype == torch.float64 or (lengths - 1).abs().max() > 2**-22:
                x = x / lengths
            return x.to(dtype)
        x = x.double()
        finite = x.isfinite().all(dim=1)  # (R,)
        if not finite.all():
            place = int(finite.int().argmin())
            row = rows.start + place if isinstance(rows, slice) else int(rows[place])
            raise InputError(f"the {self.name}, row {row}: NaN or infinity has no cosine with anything")
        largest = x.abs().amax(dim=1, keepdim=True)  # (R, 1)
        x = x / torch.where(largest > 0, largest, 1)  # now no square overflows or vanishes
        return (x / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min(1)).to(dtype)

    def _read(self, rows: slice | Tensor) -> Tensor:
        if isinstance(self.source, Tensor):
            return self.source[rows]
        block = self.source[rows if isinstance(rows, slice) else rows.numpy()]
        block = np.ascontiguousarray(block, block.dtype.newbyteorder("="))
        try:
            return torch.from_dlpack(block)  # no copy, of a read-only array either
        except BufferError:  # NumPy before 2.1 exports no read-only array
            return torch.from_numpy(block.copy())


def check_k(k: int, most: int, what: str) -> None:
    """Raise ``InputError`` unless ``k`` is an integer from 1 to ``most``."""
    is_integer = isinstance(k, int | np.integer) and not isinstance(k, bool)
    if not is_integer or not 1 <= k <= most:
        raise InputError(f"k is {k!r}: it must be 1 to {most:,}, {what}")
