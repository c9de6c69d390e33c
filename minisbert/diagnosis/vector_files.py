"""Reading vectors that any engine wrote: ``.npy``, ``.safetensors``, ``.jsonl`` or ``.csv``."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from minisbert.core import reading
from minisbert.core.checks import Place
from minisbert.data.rows import Rows, is_number
from minisbert.models.checkpoint import read_safetensors
from minisbert.system.files import listed, open_bytes

KEYS = ("embedding", "vector", "embeddings", "vectors", "values")  # of an object in a .jsonl, the first that is there


class VectorFile(NamedTuple):
    """Vectors from a file: ``values`` (N, D) float64, finite; ``dtype`` is what the file holds, or ``text``."""

    values: np.ndarray
    dtype: str


def read_vectors(path: str | Path) -> VectorFile:
    """The vectors (N, D) of a file, one row for each text.

    Raises ``InputError`` for a file that is missing, damaged, empty or of another kind, for anything but a matrix of
    real numbers, and for NaN and infinity, with the row.
    """
    path = Path(path)
    with reading(path) as at:
        if path.suffix.lower() not in READERS:
            raise ValueError(f"the name must end in {', '.join(READERS)}")
        values, dtype = READERS[path.suffix.lower()](path, at)
        if values.ndim != 2 or 0 in values.shape:
            raise ValueError(f"an array of shape {values.shape}: (N, D) is needed, one row for each text")
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            row = int(finite.argmin())
            kind = "NaN" if np.isnan(values[row]).any() else "infinity"
            raise ValueError(f"row {row + 1}: {kind} (in {int((~finite).sum()):,} of {len(values):,} rows)")
        return VectorFile(values, dtype)


def read_npy(path: Path, at: Place) -> tuple[np.ndarray, str]:
    with open_bytes(path) as file:
        array = np.load(file, allow_pickle=False)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        found = getattr(array, "dtype", "an archive")
        raise ValueError(f"one array of real numbers is needed, as numpy.save writes it, not {found}")
    return array.astype(np.float64), str(array.dtype)


def read_tensor(path: Path, at: Place) -> tuple[np.ndarray, str]:
    with open_bytes(path):  # a missing file and a folder have their own errors there
        tensors = read_safetensors(path)
    name = "vectors" if "vectors" in tensors or len(tensors) != 1 else next(iter(tensors))
    if name not in tensors or tensors[name].is_complex():
        raise ValueError(f"one tensor of real numbers is needed, or one called vectors, not {listed(sorted(tensors))}")
    return tensors[name].to(torch.float64).numpy(), str(tensors[name].dtype).removeprefix("torch.")


def read_jsonl(path: Path, at: Place) -> tuple[np.ndarray, str]:
    """One list of numbers in each line, or an object that has it under one of ``KEYS``."""
    rows = []
    for at.line, row in Rows(path).values():
        if isinstance(row, dict):
            row = next((row[key] for key in KEYS if key in row), None)
        if not isinstance(row, list) or not all(type(number) in (int, float) for number in row):
            raise ValueError(f"a list of numbers is needed, or an object that has one under {KEYS[0]!r}")
        rows.append(as_row(row, rows))
    at.line = 0
    return np.array(rows), "text"


def read_csv(path: Path, at: Place) -> tuple[np.ndarray, str]:
    """Numbers separated by commas; a first line without any number is a header."""
    rows: list[np.ndarray] = []
    for at.line, cells in Rows(path).cells(","):
        if at.line > 1 or any(map(is_number, cells)):
            rows.append(as_row(cells, rows))
    at.line = 0
    return np.array(rows), "text"


def as_row(numbers: list, rows: list[np.ndarray]) -> np.ndarray:
    """A row like those before it."""
    row = np.array([float(number) for number in numbers])
    if rows and len(row) != len(rows[0]):
        raise ValueError(f"{len(row)} numbers, in the lines before it {len(rows[0])}")
    return row


READERS = {".npy": read_npy, ".safetensors": read_tensor, ".jsonl": read_jsonl, ".csv": read_csv}
