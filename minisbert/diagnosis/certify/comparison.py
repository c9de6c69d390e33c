"""How two sets of vectors for the same texts differ: by rounding, as codes, in the order of rows; and the verdict.

Differences are relative to the length of a vector, so that for vectors of length 1 they are plain absolute ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from minisbert.core.metrics import spearman
from minisbert.search.quantized import calibrate, to_bits, to_int8

FLOAT32 = 2e-6  # the tolerance for real unit embeddings in float32; correct engines stay below 1e-6
COMPARED = 512  # rows that are looked up among all others
CODE = 1.0 + 1e-6  # steps of an int8 code: an engine may round to the nearest level or down to the next one
EQUAL, ROUNDED, EXPLAINED, UNEXPLAINED = "equal", "rounded", "explained", "unexplained"


@dataclass(frozen=True)
class Certificate:
    """The verdict, and the numbers that show it. Rows count from 0."""

    verdict: str  # EQUAL, ROUNDED, EXPLAINED or UNEXPLAINED
    meaning: str = ""
    causes: tuple[str, ...] = ()
    difference: float | None = None  # the largest; None if the widths differ
    row: int | None = None  # where it is
    cosine: float | None = None  # the smallest
    differing: list[int] = field(default_factory=list)  # rows beyond rounding
    checked: int = 0  # rows that were recomputed
    left: float | None = None  # the largest difference under the explanation
    showing: list[int] = field(default_factory=list)  # rows that the cause can change, if only some

    @property
    def harmless(self) -> bool:
        return self.verdict in (EQUAL, ROUNDED)

    @property
    def digits(self) -> int | None:
        """Decimal digits to which the vectors agree, relative to their length."""
        if self.difference is None:
            return None
        return min(16, int(-math.log10(max(self.difference, 1e-16))))


@dataclass(frozen=True)
class Precision:
    """The precision in which vectors were stored: errors of at most ``relative`` of each value plus ``absolute``."""

    name: str
    relative: float = 0.0
    absolute: float = 0.0

    def bound(self, values: np.ndarray) -> np.ndarray:
        """The largest distance of each value from the number that was rounded."""
        return 1.001 * (self.relative * np.abs(values) + self.absolute)


def stored_precision(values: np.ndarray) -> Precision:
    """The coarsest precision that holds all values (N, D) exactly. ``[[0.12, 0.35]]`` are two decimals."""
    tensor = torch.from_numpy(values)
    for digits in range(1, 7):
        # float32 numbers that were rounded to decimals are those decimals only after rounding to float32 again
        rounded = np.round(values, digits)
        if (rounded == values).all() or (rounded.astype(np.float32) == values).all():
            return Precision(f"{digits} decimals", absolute=0.5 * 10**-digits)
    for dtype, relative, absolute in ((torch.bfloat16, 2**-8, 0.0), (torch.float16, 2**-11, 2**-25)):
        if (tensor.to(dtype).double() == tensor).all():
            return Precision(str(dtype).removeprefix("torch."), relative, absolute)
    return Precision("float32")


def unit(values: np.ndarray) -> np.ndarray:
    """Rows (..., D) scaled to length 1; a row of zeros stays one."""
    return values / np.linalg.norm(values, axis=-1, keepdims=True).clip(1e-30)


def row_differences(ours: np.ndarray, other: np.ndarray, precision: Precision | None = None) -> np.ndarray:
    """The largest difference of each row, (..., D) twice -> (...), relative to the length of ours.

    The rounding to ``precision`` is subtracted first: 0 means that it explains everything.
    """
    gap = np.abs(ours - other)
    if precision is not None:
        gap = (gap - precision.bound(other)).clip(0)
    return gap.max(axis=-1) / np.linalg.norm(ours, axis=-1).clip(1e-30)


def row_cosines(ours: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The cosine of matching rows (N, D) -> (N,), exact near 1: from the distance of the unit vectors."""
    return 1 - ((unit(ours) - unit(other)) ** 2).sum(axis=-1) / 2


def agreement(ours: np.ndarray, other: np.ndarray, most: int = 64) -> float:
    """Spearman's correlation of the cosines among the texts on both sides; 0 for fewer than four texts."""
    x, y = ((rows @ rows.T)[np.triu_indices(len(rows), k=1)] for rows in (unit(ours[:most]), unit(other[:most])))
    return spearman(x, y) if len(ours) > 3 and np.ptp(x) and np.ptp(y) else 0.0


# --------------------------------------------------------------------------------------------- codes


def quantization(ours: np.ndarray, other: np.ndarray) -> str | None:
    """Which int8 or binary code of ours (N, D) the other vectors are, in words; None if they are none."""
    if (other != np.round(other)).any():
        return None
    if other.shape == ours.shape:
        for low in (-1, 0):
            if ((other == low) | (other == 1)).all() and same_bits(ours, other > 0):
                return f"binary: the signs of the columns, as {low} and 1"
        return int8_code(ours, other)
    if other.shape[1] != -(-ours.shape[1] // 8):
        return None
    for name, shift in (("ubinary", 0), ("binary", 128)):
        codes = other + shift
        fits = codes.min() >= 0 and codes.max() <= 255
        if fits and same_bits(ours, np.unpackbits(codes.astype(np.uint8), axis=1, count=ours.shape[1])):
            return f"binary: one bit for each column ({name} in sentence-transformers)"
    return None


def same_bits(ours: np.ndarray, bits: np.ndarray) -> bool:
    """Whether bits (N, D) are those of ours. A value close to 0 may have either, unless all are so close."""
    expected = np.unpackbits(to_bits(ours), axis=1, count=ours.shape[1])
    clear = np.abs(ours) > 1e-4 * np.linalg.norm(ours, axis=1, keepdims=True)
    return bool(clear.any() and (expected == bits)[clear].all())


def int8_code(ours: np.ndarray, other: np.ndarray) -> str | None:
    if other.min() < -128 or other.max() > 127 or len(ours) < 2:
        return None
    if np.abs(to_int8(ours, calibrate(ours)) - other).max() <= CODE:
        return "int8: each column's own range in 255 steps"
    inside = np.abs(other) < 127  # clipped values do not tell the scale
    if np.abs(other).max() <= 8 or not (ours[inside] ** 2).sum():
        return None
    scale = (ours[inside] * other[inside]).sum() / (ours[inside] ** 2).sum()
    if scale > 0 and np.abs((scale * ours).clip(-128, 127) - other).max() <= CODE:
        return f"int8: one scale for all columns, {scale:.4g}"
    return None


# --------------------------------------------------------------------------------------------- order


def nearest(ours: np.ndarray, other: np.ndarray) -> np.ndarray:
    """For each of the first ``COMPARED`` rows of the other vectors, the row of ours with the highest cosine."""
    return (unit(other[:COMPARED]) @ unit(ours).T).argmax(axis=1)


def order_in_words(rows: np.ndarray, lengths: Sequence[Sequence[int]], total: int) -> str:
    """An order of rows: the vector in row i is that of text ``rows[i]``.

    ``lengths`` are the lengths of all texts, measured in one way or several: tokens, characters.
    """
    in_place = np.arange(len(rows))
    whole = len(rows) == total and (np.sort(rows) == in_place).all()
    if whole and (rows == in_place[::-1]).all():
        return "the rows are in reverse order"
    for steps in (np.diff(np.array(measure)[rows]) for measure in lengths if whole):
        if steps.any() and ((steps <= 0).all() or (steps >= 0).all()):
            first = "longest" if steps.min() < 0 else "shortest"
            return f"the rows are sorted by length, {first} first, as batches are; the order was not restored"
    shift = int(rows[0])
    if shift and (rows == (in_place + shift) % total).all():
        return f"the rows are shifted by {shift}"
    row = int((rows != in_place).argmax())
    return f"the rows are in another order: row {row + 1} is the vector of line {rows[row] + 1}"
