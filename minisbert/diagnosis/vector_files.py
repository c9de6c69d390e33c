"""Reading vectors that any engine wrote: ``.npy``, ``.safetensors``, ``.jsonl`` or ``.csv``."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from minisbert.core import InputError, one_line
from minisbert.data.scored_pairs import is_number
from minisbert.models.checkpoint import read_safetensors
from minisbert.system.files import decode, listed, open_bytes

KEYS = ("embedding", "vector", "embeddings", "vectors", "values")  # of an object in a .jsonl, the first that is there


@dataclass(frozen=True)
class GivenVectors:
    """Vectors from a file: ``values`` (N, D) float64, finite; ``dtype`` is what the file holds, or ``text``."""

    values: np.ndarray
    dtype: str


def read_vectors(path: str | Path) -> GivenVectors:
    """The vectors (N, D) of a file, one row for each text.

    Raises ``InputError`` for a file that is missing, damaged, empty or of another kind, for anything but a matrix of
    real numbers, and for NaN and infinity, with the row.
    """
    path = Path(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: the name must end in {', '.join(READERS)}")
    values, dtype = reader(path)
    if values.ndim != 2 or 0 in values.shape:
        raise InputError(f"{path} holds an array of shape {values.shape}: (N, D) is needed, one row for each text")
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        row = int(finite.argmin())
        kind = "NaN" if np.isnan(values[row]).any() else "infinity"
        raise InputError(f"{path}, row {row + 1}: {kind}; {int((~finite).sum()):,} of {len(values):,} rows hold such")
    return GivenVectors(values, dtype)


def read_npy(path: Path) -> tuple[np.ndarray, str]:
    with open_bytes(path) as file:
        try:
            array = np.load(file, allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise InputError(f"{path} cannot be read as a NumPy file: {error}") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path} is an archive of arrays: save the vectors alone, numpy.save({path.stem!r}, vectors)")
    if array.dtype.kind not in "fiub":
        raise InputError(f"{path} holds {array.dtype}: numbers are needed")
    return array.astype(np.float64), str(array.dtype)


def read_tensor(path: Path) -> tuple[np.ndarray, str]:
    with open_bytes(path):  # a missing file and a folder have their own errors there
        found = read_safetensors(path)
    name = "vectors" if "vectors" in found else next(iter(found), "")
    if name != "vectors" and len(found) != 1:
        names = listed(sorted(found)) or "nothing"
        raise InputError(f"{path} holds {names}: one tensor is needed, or one called vectors")
    if found[name].is_complex():
        raise InputError(f"{path}: {name} is {found[name].dtype}, real numbers are needed")
    return found[name].to(torch.float64).numpy(), str(found[name].dtype).removeprefix("torch.")


def read_jsonl(path: Path) -> tuple[np.ndarray, str]:
    """One list of numbers in each line, or an object that has it under one of ``KEYS``."""

    def parse(line: str, where: str) -> list:
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{where}: not JSON ({error})") from error
        if isinstance(row, dict):
            row = next((row[key] for key in KEYS if key in row), None)
        if not isinstance(row, list):
            raise InputError(f"{where}: a list of numbers is needed, or an object that has one under {KEYS[0]!r}")
        if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in row):
            wrong = next(x for x in row if isinstance(x, bool) or not isinstance(x, int | float))
            raise InputError(f"{where}: {one_line(wrong)} is not a number")
        return row

    return read_lines(path, parse)


def read_csv(path: Path) -> tuple[np.ndarray, str]:
    """Numbers separated by commas; a first line without any number is a header."""

    def parse(line: str, where: str) -> list[float] | None:
        cells = line.split(",")
        try:
            return [float(cell) for cell in cells]
        except ValueError as error:
            if where.endswith(", line 1") and not any(map(is_number, cells)):
                return None
            wrong = next(cell for cell in cells if not is_number(cell))
            raise InputError(f"{where}: {one_line(wrong)} is not a number; only the vectors' columns belong") from error

    return read_lines(path, parse)


def read_lines(path: Path, parse: Callable[[str, str], list | None]) -> tuple[np.ndarray, str]:
    """The rows of a text file, which must be equally long."""
    rows: list[np.ndarray] = []
    for where, line in numbered(path):
        row = parse(line, where)
        if row is None:
            continue
        try:
            rows.append(np.array(row, dtype=np.float64))
        except OverflowError as error:
            raise InputError(f"{where}: a number is too large") from error
        if len(rows[-1]) != len(rows[0]):
            raise InputError(f"{where}: {len(rows[-1])} numbers, in the lines before it {len(rows[0])}")
    if not rows:
        raise InputError(f"{path} is empty: one vector for each text is needed")
    return np.stack(rows), "text"


def numbered(path: Path) -> Iterator[tuple[str, str]]:
    """Each line with its place, without empty ones at the end."""
    blank = 0
    with open_bytes(path) as file:
        for number, content in enumerate(file, start=1):
            line = decode(content, str(path), number).strip()
            if not line:
                blank = blank or number
                continue
            if blank:
                raise InputError(f"{path}, line {blank}: an empty line holds no vector; remove it")
            yield f"{path}, line {number}", line


READERS = {".npy": read_npy, ".safetensors": read_tensor, ".jsonl": read_jsonl, ".csv": read_csv}
