"""Mistakes in codes of fewer bytes: int8, bits, Hamming distances, rescoring."""

from collections.abc import Callable

import numpy as np
from torch import Tensor

from minisbert.diagnosis.mistakes import mistake
from minisbert.search import quantized
from minisbert.search.quantized import as_floats

# the right versions, kept from before anything is planted: a stand-in may call what it replaces
_int8, _rescore = quantized.to_int8, quantized.rescore

# ---------------------------------------------------------------------------------------------- int8


def _levels(vectors: np.ndarray | Tensor, ranges: np.ndarray, count: int = 255) -> np.ndarray:
    """The level of each value, neither rounded nor clipped: (N, D)."""
    low = ranges[0].astype(np.float32)
    step = (ranges[1].astype(np.float32) - low) / np.float32(count)
    return (as_floats(vectors) - low) / np.where(step == 0, np.float32(1), step)


@mistake(quantized, "to_int8", "ranges of the vectors themselves", "each array is divided by ranges of its own")
def _(vectors, ranges):
    x = as_floats(vectors)
    return _int8(vectors, np.stack([x.min(axis=0), x.max(axis=0)]))


@mistake(quantized, "to_int8", "one range for all columns", "narrow columns use only a few of the 256 codes")
def _(vectors, ranges):
    return _int8(
        vectors, np.stack([np.full_like(ranges[0], ranges[0].min()), np.full_like(ranges[1], ranges[1].max())])
    )


@mistake(quantized, "to_int8", "codes wrap around", "a value outside its range gets the code of the other end")
def _(vectors, ranges):
    return (np.floor(_levels(vectors, ranges)).astype(np.int64) - 128).astype(np.int8)


@mistake(quantized, "to_int8", "rounded to the nearest", "the steps begin half a step too early")
def _(vectors, ranges):
    return (np.rint(_levels(vectors, ranges)).clip(0, 255) - 128).astype(np.int8)


@mistake(quantized, "to_int8", "256 steps", "a range is divided into 256 steps, and the last has no code")
def _(vectors, ranges):
    return (np.floor(_levels(vectors, ranges, 256)).clip(0, 255) - 128).astype(np.int8)


@mistake(quantized, "to_int8", "range around 0", "the lowest value is taken for minus the highest")
def _(vectors, ranges):
    largest = np.abs(ranges).max(axis=0)
    return _int8(vectors, np.stack([-largest, largest]))


@mistake(quantized, "from_int8", "lower end of the step", "each value comes back half a step too low")
def _(codes, ranges):
    step = (ranges[1].astype(np.float32) - ranges[0].astype(np.float32)) / np.float32(255)
    return ranges[0].astype(np.float32) + (codes.astype(np.float32) + np.float32(128)) * step


# ---------------------------------------------------------------------------------------------- bits


@mistake(quantized, "to_bits", "lowest bit first", "the first column is the lowest bit of its byte")
def _(vectors):
    return np.packbits(as_floats(vectors) > 0, axis=-1, bitorder="little")


@mistake(quantized, "to_bits", "0 counts as positive", "the bit of a 0 is set")
def _(vectors):
    return np.packbits(as_floats(vectors) >= 0, axis=-1)


@mistake(quantized, "to_bits", "signs the wrong way round", "the bit of a negative value is set")
def _(vectors):
    return np.packbits(as_floats(vectors) < 0, axis=-1)


@mistake(quantized, "to_bits", "above the mean", "a bit says whether the value is above its row's mean, not above 0")
def _(vectors):
    x = as_floats(vectors)
    return np.packbits(x > x.mean(axis=1, keepdims=True), axis=-1)


@mistake(quantized, "to_bits", "zeros before the row", "missing columns are added in front, so every bit moves")
def _(vectors):
    positive = as_floats(vectors) > 0
    return np.packbits(np.pad(positive, ((0, 0), (-positive.shape[1] % 8, 0))), axis=-1)


def _pairs(a: np.ndarray, b: np.ndarray, compared: Callable) -> np.ndarray:
    """``compared`` of each row of a with each of b, summed over the last axis: (Q, N)."""
    return compared(a[:, None], b[None]).sum(axis=-1).astype(np.int64)


@mistake(quantized, "hamming", "bytes counted, not bits", "a byte counts once, however many of its bits differ")
def _(a, b):
    return _pairs(a, b, lambda x, y: x != y)


@mistake(quantized, "hamming", "common bits counted", "the bits set in both are counted: that is no distance")
def _(a, b):
    return _pairs(a, b, lambda x, y: np.unpackbits(x & y, axis=-1))


@mistake(quantized, "hamming", "equal bits counted", "the bits that agree are counted, so the nearest is the furthest")
def _(a, b):
    return _pairs(a, b, lambda x, y: np.unpackbits(~(x ^ y), axis=-1))


@mistake(quantized, "hamming", "bytes subtracted", "the bytes are compared as numbers")
def _(a, b):
    return _pairs(a, b, lambda x, y: np.abs(x.astype(np.int64) - y))


@mistake(quantized, "hamming_top_k", "most different first", "the rows with the most different bits are found")
def _(queries, bits, k):
    distances = quantized.hamming(quantized.to_bits(queries), bits)
    order = np.argsort(-distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, order, axis=1), order


# ----------------------------------------------------------------------------------------- rescoring


@mistake(quantized, "rescore", "rescored with the binary query", "the query's signs are used, not its numbers")
def _(queries, candidates, vectors, k):
    return _rescore(np.where(as_floats(queries) > 0, 1.0, -1.0), candidates, vectors, k)


@mistake(quantized, "rescore", "places among the candidates", "the indices count the candidates, not the corpus")
def _(queries, candidates, vectors, k):
    return _rescore(queries, np.tile(np.arange(candidates.shape[1]), (len(candidates), 1)), vectors, k)


@mistake(quantized, "rescore", "not sorted again", "the order of the first search is kept, the new scores beside it")
def _(queries, candidates, vectors, k):
    scores, indices = _rescore(queries, candidates, vectors, candidates.shape[1])
    order = np.argsort(np.argsort(candidates, axis=1), axis=1)  # the place of each candidate, sorted by row
    by_row = np.take_along_axis(scores, np.argsort(indices, axis=1), axis=1)
    return np.take_along_axis(by_row, order, axis=1)[:, :k], candidates[:, :k]


@mistake(quantized, "rescore", "rescored by dot product", "candidates that are longer than others win")
def _(queries, candidates, vectors, k):
    return _by_score(
        np.einsum("qd,qcd->qc", as_floats(queries, np.float64), as_floats(vectors, np.float64)), candidates, k
    )


@mistake(quantized, "rescore", "query not scaled", "the scores are cosines times the query's length")
def _(queries, candidates, vectors, k):
    v = as_floats(vectors, np.float64)
    v = v / np.linalg.norm(v, axis=-1, keepdims=True).clip(1e-12)
    return _by_score(np.einsum("qd,qcd->qc", as_floats(queries, np.float64), v), candidates, k)


@mistake(quantized, "rescore", "rescored in float32", "the cosines are computed in float32, so equal ones may differ")
def _(queries, candidates, vectors, k):
    q, v = as_floats(queries, np.float32), as_floats(vectors, np.float32)
    q, v = (x / np.linalg.norm(x, axis=-1, keepdims=True).clip(1e-12) for x in (q, v))
    return _by_score(np.einsum("qd,qcd->qc", q, v), candidates, k)


@mistake(
    quantized,
    "rescore",
    "ties by the first search",
    "equal scores come in the order of the candidates, not of the corpus",
)
def _(queries, candidates, vectors, k):
    scores, places = _rescore(queries, np.tile(np.arange(candidates.shape[1]), (len(candidates), 1)), vectors, k)
    return scores, np.take_along_axis(candidates, places, axis=1)


def _by_score(scores: np.ndarray, candidates: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    scores = scores.astype(np.float32)
    order = np.lexsort((candidates, -scores))[:, :k]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(candidates, order, axis=1)
