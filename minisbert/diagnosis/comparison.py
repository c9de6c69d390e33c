"""Compare two sets of vectors of the same texts: how far they differ, by which rounding, code or order of rows.

Plain NumPy, without a model. Differences are relative to the length of a vector: for unit vectors they are absolute.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from minisbert.core.metrics import spearman
from minisbert.search.quantized import calibrate, to_bits, to_int8

LOOKED_UP = 512  # rows that are looked up among all others
CODE_STEPS = 1.0 + 1e-6  # of an int8 code: an engine may round to the nearest level or down to the next one


@dataclass(frozen=True)
class Precision:
    """The precision in which vectors were stored: errors of at most ``relative`` of each value plus ``absolute``."""

    name: str
    relative: float = 0.0
    absolute: float = 0.0


def stored_precision(values: np.ndarray) -> Precision:
    """Return the coarsest precision that holds all values (N, D) exactly. ``[[0.12, 0.35]]`` are two decimals."""
    for digits in range(1, 7):
        # float32 numbers that were rounded to decimals are those decimals only after rounding to float32 again
        rounded = np.round(values, digits)
        if (rounded == values).all() or (rounded.astype(np.float32) == values).all():
            return Precision(f"{digits} decimals", absolute=0.5 * 10**-digits)
    tensor = torch.from_numpy(values)
    if (tensor.bfloat16().double() == tensor).all():
        return Precision("bfloat16", 2**-8)
    if (tensor.half().double() == tensor).all():
        # the absolute part is that of subnormal numbers
        return Precision("float16", 2**-11, 2**-25)
    return Precision("float32")


def unit_rows(values: np.ndarray) -> np.ndarray:
    """Scale rows (..., D) to length 1; a row of zeros stays one."""
    return values / np.linalg.norm(values, axis=-1, keepdims=True).clip(1e-30)


def row_differences(ours: np.ndarray, other: np.ndarray, precision: Precision | None = None) -> np.ndarray:
    """Return the largest difference of each row, (..., D) twice -> (...), relative to the length of ours.

    The rounding to ``precision`` is subtracted first: 0 means that it explains everything.
    """
    gap = np.abs(ours - other)
    if precision is not None:
        # a per mille more, for what was rounded by another rule than to the nearest
        rounding = 1.001 * (precision.relative * np.abs(other) + precision.absolute)
        gap = (gap - rounding).clip(0)
    return gap.max(axis=-1) / np.linalg.norm(ours, axis=-1).clip(1e-30)


def row_cosines(ours: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the cosine of matching rows, (N, D) twice -> (N,)."""
    # by the distance of the unit vectors, which keeps the digits that 1 - u.v loses near 1
    return 1 - ((unit_rows(ours) - unit_rows(other)) ** 2).sum(axis=-1) / 2


def agreement(ours: np.ndarray, other: np.ndarray, most: int = 64) -> float:
    """Correlate the cosines among the texts on both sides (Spearman); 0 for fewer than four texts."""
    pairs = np.triu_indices(min(most, len(ours)), k=1)
    ours, other = unit_rows(ours[:most]), unit_rows(other[:most])
    x, y = (ours @ ours.T)[pairs], (other @ other.T)[pairs]
    if len(ours) < 4 or not np.ptp(x) or not np.ptp(y):
        return 0.0
    return spearman(x, y)


# --------------------------------------------------------------------------------------------- codes


def quantization(ours: np.ndarray, other: np.ndarray) -> str | None:
    """Name the int8 or binary code of ours (N, D) that the other vectors (N, W) are; None if they are not one."""
    if (other != np.round(other)).any():
        return None
    if other.shape == ours.shape:
        for low in (-1, 0):
            if ((other == low) | (other == 1)).all() and same_bits(ours, other > 0):
                return f"binary: the signs of the columns, as {low} and 1"
        return int8_code(ours, other)
    if other.shape[1] != -(-ours.shape[1] // 8):  # one bit per column, rounded up to bytes
        return None
    for name, shift in (("ubinary", 0), ("binary", 128)):
        codes = other + shift
        if codes.min() < 0 or codes.max() > 255:
            continue
        bits = np.unpackbits(codes.astype(np.uint8), axis=1, count=ours.shape[1])
        if same_bits(ours, bits):
            return f"binary: one bit for each column ({name} in sentence-transformers)"
    return None


def same_bits(ours: np.ndarray, bits: np.ndarray) -> bool:
    """Return whether bits (N, D) are those of ours. A value close to 0 may have either, unless all are so close."""
    expected = np.unpackbits(to_bits(ours), axis=1, count=ours.shape[1])
    clear = np.abs(ours) > 1e-4 * np.linalg.norm(ours, axis=1, keepdims=True)
    return bool(clear.any() and (expected == bits)[clear].all())


def int8_code(ours: np.ndarray, other: np.ndarray) -> str | None:
    if other.min() < -128 or other.max() > 127 or len(ours) < 2:
        return None
    if np.abs(to_int8(ours, calibrate(ours)) - other).max() <= CODE_STEPS:
        return "int8: each column's own range in 255 steps"
    # one scale for all columns: fitted by least squares to the values that were not clipped, which do not tell it
    inside = np.abs(other) < 127
    squares = (ours[inside] ** 2).sum()
    if np.abs(other).max() <= 8 or not squares:  # so few levels would fit anything
        return None
    scale = (ours[inside] * other[inside]).sum() / squares
    if scale > 0 and np.abs((scale * ours).clip(-128, 127) - other).max() <= CODE_STEPS:
        return f"int8: one scale for all columns, {scale:.4g}"
    return None


# --------------------------------------------------------------------------------------------- order


def nearest_rows(ours: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the row of ours with the highest cosine, for each of the first ``LOOKED_UP`` other rows."""
    return (unit_rows(other[:LOOKED_UP]) @ unit_rows(ours).T).argmax(axis=1)


def order_in_words(rows: np.ndarray, lengths: Sequence[Sequence[int]], total: int) -> str:
    """Describe an order of rows: the vector in row i is that of text ``rows[i]``.

    ``lengths`` are the lengths of all texts, measured in one way or several: tokens, characters.
    """
    in_place = np.arange(len(rows))
    # all rows were looked up, each was met once
    complete = len(rows) == total and (np.sort(rows) == in_place).all()
    if complete and (rows == in_place[::-1]).all():
        return "the rows are in reverse order"
    for measure in lengths:
        steps = np.diff(np.array(measure)[rows])
        if not complete or not steps.any():
            continue
        if (steps <= 0).all():
            return "the rows are sorted by length, longest first, as batches are; the order was not restored"
        if (steps >= 0).all():
            return "the rows are sorted by length, shortest first, as batches are; the order was not restored"
    shift = int(rows[0])
    if shift and (rows == (in_place + shift) % total).all():
        return f"the rows are shifted by {shift}"
    row = int((rows != in_place).argmax())
    return f"the rows are in another order: row {row + 1} is the vector of line {rows[row] + 1}"
