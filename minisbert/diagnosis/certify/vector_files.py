"""Reading vectors that any engine wrote: ``.npy``, ``.safetensors``, ``.jsonl`` or ``.csv``."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from minisbert.core import reading
from minisbert.core.checks import Place, check
from minisbert.core.weights import read_safetensors
from minisbert.data.formats import number
from minisbert.data.rows import Rows
from minisbert.system.files import open_bytes

ENDINGS = (".npy", ".safetensors", ".jsonl", ".csv")
VECTOR_KEYS = ("embedding", "vector", "embeddings", "vectors", "values")  # of an object in a .jsonl, the first it has


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
        match path.suffix.lower():
            case ".npy":
                with open_bytes(path) as file:
                    array = np.lib.format.read_array(file, allow_pickle=False)
                dtype = str(array.dtype)
            case ".safetensors":
                open_bytes(path).close()  # refuses a pipe, which safetensors would wait for
                tensors = read_safetensors(path)
                tensor = tensors["vectors"] if len(tensors) != 1 else next(iter(tensors.values()))
                array = (tensor.double() if tensor.is_floating_point() else tensor).numpy()  # numpy has no bfloat16
                dtype = str(tensor.dtype).removeprefix("torch.")
            case ".jsonl" | ".csv":
                array, dtype = read_text_rows(path, at), "text"
            case _:
                raise ValueError(f"the name must end in {', '.join(ENDINGS)}")
        return VectorFile(checked(array), dtype)


def checked(array: np.ndarray) -> np.ndarray:
    """The vectors (N, D) as float64; ``ValueError`` for anything but real, finite numbers."""
    values = array.astype(np.float64, casting="same_kind")  # raises for complex numbers and texts
    check("vectors (N, D)", values)
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        row = int(finite.argmin())
        kind = "infinity"
        if np.isnan(values[row]).any():
            kind = "NaN"
        raise ValueError(f"row {row + 1}: {kind} (in {int((~finite).sum()):,} of {len(values):,} rows)")
    return values


def read_text_rows(path: Path, at: Place) -> np.ndarray:
    """Rows of numbers: between commas, where a first line without any is a header, or lists in lines of JSON.

    A line may also be an object that has its list under one of ``VECTOR_KEYS``.
    """
    json, rows = path.suffix.lower() == ".jsonl", []
    for at.line, row in Rows(path).values() if json else Rows(path).cells(","):
        if isinstance(row, dict):
            row = next((row[key] for key in VECTOR_KEYS if key in row), None)
        if json and not (isinstance(row, list) and all(type(number) in (int, float) for number in row)):
            raise ValueError(f"a list of numbers is needed, or an object that has one under {VECTOR_KEYS[0]!r}")
        if json or at.line > 1 or any(number(cell) is not None for cell in row):
            rows.append(np.array([float(number) for number in row]))
            if len(rows[-1]) != len(rows[0]):
                raise ValueError(f"{len(rows[-1])} numbers, in the lines before it {len(rows[0])}")
    at.line = 0
    return np.array(rows)
