"""Mistakes in codes of fewer bytes: int8, bits, Hamming distances, rescoring."""

import numpy as np

from lessons.mistakes.calls import calls
from lessons.mistakes.planting import mistake
from minisbert.search import quantized
from minisbert.search.quantized import as_floats

_rescore = quantized.rescore  # the right one, kept from before anything is planted

# --------------------------------------------------------------------------------------------- int8


def int8_with(vectors, ranges, *, steps=255, rounded=np.floor, wrapped=False):
    """A range is divided into so many ``steps``.

    What is outside gets the nearest code, or is ``wrapped`` around.
    """
    low = ranges[0].astype(np.float32)
    step = (ranges[1].astype(np.float32) - low) / np.float32(steps)
    step = np.where(step == 0, np.float32(1), step)
    levels = rounded((as_floats(vectors) - low) / step)  # (N, D)
    return ((levels if wrapped else levels.clip(0, 255)).astype(np.int64) - 128).astype(np.int8)


def one_range(ranges: np.ndarray) -> np.ndarray:
    low = np.full_like(ranges[0], ranges[0].min())
    high = np.full_like(ranges[1], ranges[1].max())
    return np.stack([low, high])


def around_0(ranges: np.ndarray) -> np.ndarray:
    furthest = np.abs(ranges).max(axis=0)
    return np.stack([-furthest, furthest])


coded = calls(quantized, "to_int8", int8_with)
coded(
    "one range for all columns", "narrow columns use only a few of the 256 codes", ranges=one_range
)
coded("codes wrap around", "a value outside its range gets the code of the other end", wrapped=True)
coded("rounded to the nearest", "the steps begin half a step too early", rounded=np.rint)
coded("256 steps", "a range is divided into 256 steps, and the last has no code", steps=256)
coded("range around 0", "the lowest value is taken for minus the highest", ranges=around_0)


@mistake(
    quantized,
    "to_int8",
    "ranges of the vectors themselves",
    "each array is divided by ranges of its own",
)
def _(vectors, ranges):
    x = as_floats(vectors)
    return int8_with(x, np.stack([x.min(axis=0), x.max(axis=0)]))


@mistake(
    quantized, "from_int8", "lower end of the step", "each value comes back half a step too low"
)
def _(codes, ranges):
    step = (ranges[1].astype(np.float32) - ranges[0].astype(np.float32)) / np.float32(255)
    return ranges[0].astype(np.float32) + (codes.astype(np.float32) + np.float32(128)) * step


# --------------------------------------------------------------------------------------------- bits


def bits_with(vectors, *, order="big", bar=0.0, sign=1, zero=False, front=0):
    """The bit of a number above the ``bar`` is set, and with ``zero`` that of a 0 as well.

    A bar of None is the row's mean.
    """
    x = as_floats(vectors)
    if bar is None:
        bar = x.mean(axis=1, keepdims=True)
    positive = sign * x >= bar if zero else sign * x > bar
    before = front * (-x.shape[1] % 8)  # columns that fill up the last byte
    return np.packbits(np.pad(positive, ((0, 0), (before, 0))), axis=-1, bitorder=order)


packed = calls(quantized, "to_bits", bits_with)
packed("lowest bit first", "the first column is the lowest bit of its byte", order="little")
packed("0 counts as positive", "the bit of a 0 is set", zero=True)
packed("signs the wrong way round", "the bit of a negative value is set", sign=-1)
packed(
    "above the mean", "a bit says whether the value is above its row's mean, not above 0", bar=None
)
packed("zeros before the row", "missing columns are added in front, so every bit moves", front=1)


def hamming_with(a, b, *, compared):
    """``compared`` of each row of a with each of b, summed over the last axis: (Q, N)."""
    return compared(a[:, None], b[None]).sum(axis=-1).astype(np.int64)


def common(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.unpackbits(x & y, axis=-1)


def equal(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.unpackbits(~(x ^ y), axis=-1)


def apart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.abs(x.astype(np.int64) - y)


counted = calls(quantized, "hamming", hamming_with)
counted(
    "bytes counted, not bits",
    "a byte counts once, however many of its bits differ",
    compared=np.not_equal,
)
counted(
    "common bits counted", "the bits set in both are counted: that is no distance", compared=common
)
counted(
    "equal bits counted",
    "the bits that agree are counted, so the nearest is the furthest",
    compared=equal,
)
counted("bytes subtracted", "the bytes are compared as numbers", compared=apart)


@mistake(
    quantized,
    "hamming_top_k",
    "most different first",
    "the rows with the most different bits are found",
)
def _(queries, bits, k):
    distances = quantized.hamming(quantized.to_bits(queries), bits)
    order = np.argsort(-distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, order, axis=1), order


# ---------------------------------------------------------------------------------------- rescoring


@mistake(
    quantized,
    "rescore",
    "places among the candidates",
    "the indices count the candidates, not the corpus",
)
def _(queries, candidates, vectors, k):
    places = np.tile(np.arange(candidates.shape[1]), (len(candidates), 1))
    return _rescore(queries, places, vectors, k)


@mistake(
    quantized,
    "rescore",
    "not sorted again",
    "the order of the first search is kept, the new scores beside it",
)
def _(queries, candidates, vectors, k):
    scores, indices = _rescore(queries, candidates, vectors, candidates.shape[1])
    # the place of each candidate, sorted by row
    order = np.argsort(np.argsort(candidates, axis=1), axis=1)
    by_row = np.take_along_axis(scores, np.argsort(indices, axis=1), axis=1)
    return np.take_along_axis(by_row, order, axis=1)[:, :k], candidates[:, :k]


def rescored_with(queries, candidates, vectors, k, *, dtype=np.float64, unit="both"):
    q, v = as_floats(queries, dtype), as_floats(vectors, dtype)
    if unit == "both":
        q = q / np.linalg.norm(q, axis=-1, keepdims=True).clip(1e-12)
    if unit in ("both", "vectors"):
        v = v / np.linalg.norm(v, axis=-1, keepdims=True).clip(1e-12)
    scores = np.einsum("qd,qcd->qc", q, v).astype(np.float32)
    order = np.lexsort((candidates, -scores))[:, :k]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(candidates, order, axis=1)


rescored = calls(quantized, "rescore", rescored_with)
SIGNS = "the query's signs are used, not its numbers"
rescored(
    "rescored with the binary query", SIGNS, queries=lambda x: np.where(as_floats(x) > 0, 1.0, -1.0)
)
rescored("rescored by dot product", "candidates that are longer than others win", unit="")
rescored("query not scaled", "the scores are cosines times the query's length", unit="vectors")
IN_FLOAT32 = "the cosines are computed in float32, so equal ones may differ"
rescored("rescored in float32", IN_FLOAT32, dtype=np.float32)


@mistake(
    quantized,
    "rescore",
    "ties by the first search",
    "equal scores come as the candidates do, not by row",
)
def _(queries, candidates, vectors, k):
    scores, places = _rescore(
        queries, np.tile(np.arange(candidates.shape[1]), (len(candidates), 1)), vectors, k
    )
    return scores, np.take_along_axis(candidates, places, axis=1)
