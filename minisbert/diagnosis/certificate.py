"""How two sets of vectors for the same texts differ: in rounding, in their codes, in the order of their rows.

Differences are relative to the length of a vector, so that for vectors of length 1 they are plain absolute ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from minisbert.fast.quantized import calibrate, to_bits, to_int8

# the tolerance for real unit embeddings in float32; correct engines stay below 1e-6
FLOAT32 = 2e-6
MATCHED = 512  # rows whose partner is looked for
CODE = 1.0 + 1e-6  # steps of an int8 code: an engine may round to the nearest level or down to the next one


@dataclass(frozen=True)
class Storage:
    """The precision in which vectors were stored: ``unit`` is relative to a value, ``step`` absolute."""

    name: str
    unit: float = 0.0
    step: float = 0.0

    def allowed(self, values: np.ndarray) -> np.ndarray:
        """How far each value may be from what was rounded."""
        return 1.001 * (self.unit * np.abs(values) + self.step)


def storage(values: np.ndarray) -> Storage:
    """The coarsest precision that holds all values (N, D) exactly. ``[[0.12, 0.35]]`` are two decimals."""
    tensor = torch.from_numpy(values)
    for digits in range(1, 7):
        # float32 numbers that were rounded to decimals are those decimals only after rounding to float32 again
        rounded = np.round(values, digits)
        if (rounded == values).all() or (rounded.astype(np.float32) == values).all():
            return Storage(f"{digits} decimals", step=0.5 * 10**-digits)
    for dtype, unit, step in ((torch.bfloat16, 2**-8, 0.0), (torch.float16, 2**-11, 2**-25)):
        if (tensor.to(dtype).double() == tensor).all():
            return Storage(str(dtype).removeprefix("torch."), unit, step)
    return Storage("float32")


def unit(values: np.ndarray) -> np.ndarray:
    """Rows (..., D) scaled to length 1; a row of zeros stays one."""
    return values / np.linalg.norm(values, axis=-1, keepdims=True).clip(1e-30)


def differences(ours: np.ndarray, theirs: np.ndarray, kept: Storage | None = None) -> np.ndarray:
    """The largest difference of each row, (..., D) twice -> (...), relative to the length of ours.

    What ``kept`` allows is subtracted first: 0 says that rounding explains everything.
    """
    gap = np.abs(ours - theirs)
    if kept is not None:
        gap = (gap - kept.allowed(theirs)).clip(0)
    return gap.max(axis=-1) / np.linalg.norm(ours, axis=-1).clip(1e-30)


def cosines(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """The cosine of matching rows (N, D) -> (N,), exact near 1: from the distance of the unit vectors."""
    return 1 - ((unit(ours) - unit(theirs)) ** 2).sum(axis=-1) / 2


# --------------------------------------------------------------------------------------------- codes


def code_of(ours: np.ndarray, theirs: np.ndarray) -> str | None:
    """What int8 or binary code of ours (N, D) theirs is, in words; None if it is none."""
    if (theirs != np.round(theirs)).any():
        return None
    found = set(np.unique(theirs[:, : min(64, theirs.shape[1])]).tolist())
    if theirs.shape == ours.shape:
        signs = {-1.0: "-1 and 1", 0.0: "0 and 1"}
        low = min(found)
        if low in signs and found <= {low, 1.0} and same_bits(ours, theirs > 0):
            return f"binary: the signs of the columns, as {signs[low]}"
        return int8_code(ours, theirs)
    if theirs.shape[1] != -(-ours.shape[1] // 8) or theirs.min() < -128 or theirs.max() > 255:
        return None
    for name, shift in (("ubinary", 0), ("binary", 128)):
        codes = theirs + shift
        if codes.min() >= 0 and codes.max() <= 255:
            bits = np.unpackbits(codes.astype(np.uint8), axis=1, count=ours.shape[1])
            if same_bits(ours, bits):
                return f"binary: one bit for each column ({name} in sentence-transformers)"
    return None


def same_bits(ours: np.ndarray, bits: np.ndarray) -> bool:
    """Are bits (N, D) those of ours? A value close to 0 may have either, except if all are so."""
    expected = np.unpackbits(to_bits(ours), axis=1, count=ours.shape[1])
    clear = np.abs(ours) > 1e-4 * np.linalg.norm(ours, axis=1, keepdims=True)
    return bool(clear.any() and (expected == bits)[clear].all())


def int8_code(ours: np.ndarray, theirs: np.ndarray) -> str | None:
    if theirs.min() < -128 or theirs.max() > 127 or len(ours) < 2:
        return None
    if np.abs(to_int8(ours, calibrate(ours)) - theirs).max() <= CODE:
        return "int8: each column's own range in 255 steps"
    inside = np.abs(theirs) < 127  # what was clipped says nothing about the scale
    if not inside.any() or not (ours[inside] ** 2).sum():
        return None
    scale = (ours[inside] * theirs[inside]).sum() / (ours[inside] ** 2).sum()
    if scale > 0 and np.abs((scale * ours).clip(-128, 127) - theirs).max() <= CODE and np.abs(theirs).max() > 8:
        return f"int8: one scale for all columns, {scale:.4g}"
    return None


# --------------------------------------------------------------------------------------------- order


def partners(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """For each of the first ``MATCHED`` rows of theirs, the row of ours with the highest cosine."""
    return (unit(theirs[:MATCHED]) @ unit(ours).T).argmax(axis=1)


def order_of(found: np.ndarray, lengths: Sequence[Sequence[int]], total: int) -> str:
    """An order of rows in words: row i holds the vector of text ``found[i]``.

    ``lengths`` are the lengths of all texts, measured in one way or several: tokens, characters.
    """
    whole = len(found) == total and sorted(found) == list(range(total))
    if whole and (found == np.arange(total)[::-1]).all():
        return "the rows are in reverse order"
    for steps in (np.diff(np.array(measure)[found]) for measure in lengths if whole):
        if steps.any() and ((steps <= 0).all() or (steps >= 0).all()):
            first = "longest" if steps.min() < 0 else "shortest"
            return f"the rows are sorted by length, {first} first, as batches are; the order was not restored"
    shift = int(found[0])
    if shift and (found == (np.arange(len(found)) + shift) % total).all():
        return f"the rows are shifted by {shift}"
    row = int((found != np.arange(len(found))).argmax())
    return f"the rows are in another order: row {row + 1} is the vector of line {found[row] + 1}"
