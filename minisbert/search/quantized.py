"""Vectors in fewer bytes: int8 and single bits, Hamming distances, rescoring with float queries.

    ranges = calibrate(corpus)  # (2, D), of the documents; keep them with the codes
    codes = to_int8(corpus, ranges)  # (N, D) int8
    bits = to_bits(corpus)  # (N, D / 8) uint8
    _, candidates = hamming_top_k(queries, bits, 40)  # (Q, 40)
    vectors = from_int8(codes[candidates], ranges)  # (Q, 40, D)
    scores, indices = rescore(queries, candidates, vectors, 10)  # (Q, 10) each

A float32 vector has 4 D bytes, its int8 code D, its bits D / 8. Codes and bits are byte for byte
those of sentence-transformers' ``quantize_embeddings``. Vectors may be arrays, tensors or lists.
Other shapes, NaN and infinity raise ``ValueError``, complex numbers and strings ``TypeError``.
"""

import math

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from minisbert.core import one_line
from minisbert.core.checks import check_shape
from minisbert.search.dense import check_k
from minisbert.system.console import warn

INT8_STEPS = 255  # between the lowest and the highest of 256 codes
PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")  # sentence-transformers' names
CALIBRATED = 100  # vectors that ranges need: the ranges of fewer are a matter of chance
# How many bits are set in each of the 256 bytes.
BITS_SET = np.array([byte.bit_count() for byte in range(256)], dtype=np.uint8)


def check_dtype(name: str, codes: np.ndarray, dtype: type) -> None:
    """Raise ``ValueError`` unless codes have this dtype; messages call them by ``name``."""
    if getattr(codes, "dtype", None) != dtype:
        raise ValueError(f"{name} must be {np.dtype(dtype)}, not {one_line(codes)}")


def calibrate(vectors: ArrayLike) -> np.ndarray:
    """Return the ranges that ``to_int8`` divides: each column's lowest and highest value.

    (N, D) -> (2, D) float32. Calibrate on the corpus, or a few thousand vectors like it; never on
    the queries. Warns of fewer than 100. ``[[0, 5], [2, 1]] -> [[0, 1], [2, 5]]``.
    """
    x = as_floats(vectors)
    check_shape("vectors", x, None, None)
    if len(x) < 2:
        raise ValueError("one vector has no ranges: calibrate on the corpus or a sample of it")
    if len(x) < CALIBRATED:
        warn(
            f"int8 ranges from only {len(x)} vectors: codes of other texts will not fit them; "
            f"calibrate on more"
        )
    return np.stack([x.min(axis=0), x.max(axis=0)]).astype(np.float32)


def to_int8(vectors: ArrayLike, ranges: np.ndarray) -> np.ndarray:
    """Divide each column's range into 255 equal steps: vectors (N, D) -> (N, D) int8.

    ``ranges`` (2, D) are those of ``calibrate``. The lowest value becomes -128, the highest 127;
    values outside the range count as its end. A column whose range is empty has steps of 1. With
    the range 0 to 255, ``[0, 1.9, 300] -> [-128, -127, 127]``.
    """
    x = as_floats(vectors)
    check_shape("vectors", x, None, None)
    # The codes equal sentence-transformers' byte for byte because all of this is in float32, and
    # in this order.
    low, step = lows_and_steps(ranges, x.shape[-1])
    step = np.where(step == 0, np.float32(1), step)
    levels = np.floor((x - low) / step).clip(0, INT8_STEPS)  # (N, D), whole numbers from 0 to 255
    return (levels - 128).astype(np.int8)


def from_int8(codes: np.ndarray, ranges: np.ndarray) -> np.ndarray:
    """Return the middle of each code's step: codes (..., D) int8 -> (..., D) float32.

    ``ranges`` (2, D) are those of ``to_int8``. A value inside its range comes back with an error of
    at most half a step. (sentence-transformers takes the step's lower end.) With the range 0 to
    255, ``[-128, -127] -> [0.5, 1.5]``.
    """
    check_dtype("codes", codes, np.int8)
    low, step = lows_and_steps(ranges, codes.shape[-1])
    return low + (codes.astype(np.float32) + np.float32(128.5)) * step


def to_bits(vectors: ArrayLike) -> np.ndarray:
    """Take one bit per column, 1 if the value is above 0: vectors (N, D) -> (N, ceil(D / 8)) uint8.

    The first column is the highest bit of the first byte; missing columns at the end count as 0.
    ``[1, -1, -1, -1, -1, -1, 0, 2]`` gives 128 + 1 = 129. These are sentence-transformers'
    "ubinary" codes; "binary" is the same number less 128, as int8.
    """
    positive = as_floats(vectors) > 0  # (N, D)
    check_shape("vectors", positive, None, None)
    # subtle: the first of eight is worth 128; many libraries begin with the lowest bit,
    # bitorder="little" here
    return np.packbits(positive, axis=1)  # (N, W)


def from_bits(bits: np.ndarray, width: int) -> np.ndarray:
    """Return 1 for each set bit, -1 for the others.

    bits (..., ceil(D / 8)) uint8 -> (..., D) float32, D being ``width``.
    """
    check_dtype("bits", bits, np.uint8)
    needed = math.ceil(width / 8)
    if bits.shape[-1] != needed:
        raise ValueError(f"{width} columns need {needed} bytes, got {bits.shape[-1]}")
    return 2 * np.unpackbits(bits, axis=-1, count=width).astype(np.float32) - 1


def quantize(vectors: ArrayLike, precision: str) -> np.ndarray:
    """Convert vectors (N, D) to one of ``PRECISIONS``.

    Like sentence-transformers' ``quantize_embeddings`` without ranges: "int8" and "uint8" divide
    the ranges of these very vectors, at least two, so that codes of two calls cannot be compared.
    "binary" is "ubinary" less 128. The caller checks that ``precision`` is one of them.
    """
    if precision == "float32":
        return as_floats(vectors)
    # Below, ``^ 128`` flips the highest bit. In two's complement that is to add 128 to an int8 and
    # read it as uint8, and to take 128 off a uint8 and read it as int8.
    if precision in ("int8", "uint8"):
        codes = to_int8(vectors, calibrate(vectors))
        if precision == "uint8":
            codes = codes.view(np.uint8) ^ 128
        return codes
    bits = to_bits(vectors)
    if precision == "binary":
        bits = (bits ^ 128).view(np.int8)
    return bits


def hamming(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Count the bits that differ, for each row of a with each of b.

    (Q, W) and (N, W) uint8 -> (Q, N) int64.
    ``[[129]]`` and ``[[128], [127]]``, in bits 10000001, 10000000 and 01111111, gives ``[[1, 7]]``.
    """
    check_shape("a", a, None, None)
    check_shape("b", b, None, a.shape[1])
    check_dtype("a", a, np.uint8)
    check_dtype("b", b, np.uint8)
    # Eight bytes are compared at once, as a word of 64 bits. Rows are filled up to whole words with
    # bytes that are 0 in both.
    missing = -a.shape[1] % 8
    words_a = np.pad(a, ((0, 0), (0, missing))).view(np.uint64)  # (Q, ceil(W / 8))
    words_b = np.pad(b, ((0, 0), (0, missing))).view(np.uint64)  # (N, ceil(W / 8))
    distances = np.zeros((len(a), len(b)), dtype=np.int64)
    for word in range(words_a.shape[1]):
        distances += bit_count(words_a[:, word, None] ^ words_b[None, :, word])  # (Q, N)
    return distances


def hamming_top_k(queries: ArrayLike, bits: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the k rows of a corpus of bits (N, W) that differ least from those of each query.

    queries (Q, D) are vectors; their bits are taken here. Returns distances and indices, (Q, k)
    int64 each, sorted by distance, ties by index.
    """
    query_bits = to_bits(queries)  # (Q, W)
    check_k(k, len(bits), "the corpus size")
    count = len(bits)
    best = np.empty((len(query_bits), k), dtype=np.int64)
    # One query at a time: N distances are in memory, not Q x N.
    for row in range(len(query_bits)):
        distances = hamming(query_bits[row : row + 1], bits)[0]  # (N,)
        # Distance and index make one number: no two are equal, so that a partition, which leaves
        # the order of equal ones open, may choose.
        numbers = distances * count + np.arange(count)
        best[row] = np.sort(np.partition(numbers, k - 1)[:k])
    return best // count, best % count


def rescore(
    queries: ArrayLike, candidates: np.ndarray, vectors: ArrayLike, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k candidates with the highest cosine to each query.

    queries (Q, D) are floats, not quantised: they cost nothing beside the corpus (as in Yamada et
    al. 2021, *Efficient Passage Retrieval with Hashing for Open-domain Question Answering*).
    candidates (Q, C) are rows of the corpus, vectors (Q, C, D) theirs:
    ``from_int8(codes[candidates], ranges)``, ``from_bits(bits[candidates], D)``, or floats.

    Returns scores, float32, and rows, int64, (Q, k) each, sorted by score, ties by row. Computed in
    float64 and rounded to float32.
    """
    q = as_floats(queries, np.float64)
    v = as_floats(vectors, np.float64)
    check_shape("queries", q, None, None)
    check_shape("candidates", candidates, len(q), None)
    check_shape("vectors", v, *candidates.shape, q.shape[1])
    check_k(k, v.shape[1], "the number of candidates")
    q = q / np.linalg.norm(q, axis=-1, keepdims=True).clip(1e-12)
    v = v / np.linalg.norm(v, axis=-1, keepdims=True).clip(1e-12)
    # Not a matrix product, because each query has candidates of its own.
    scores = np.einsum("qd,qcd->qc", q, v).astype(np.float32)  # (Q, C)
    order = np.lexsort((candidates, -scores))[:, :k]  # (Q, k): by score, then by row
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(candidates, order, axis=1)


def bit_count(words: np.ndarray) -> np.ndarray:
    """Count the bits that are set in each number of 64 bits."""
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(words)
    # NumPy 1 has no such operation: look up each of a number's eight bytes.
    counts = BITS_SET[words.view(np.uint8)].reshape(*words.shape, 8)
    return counts.sum(axis=-1, dtype=np.int64)


def as_floats(vectors: ArrayLike, dtype: type | None = None) -> np.ndarray:
    """Return a finite array of ``dtype``, or by default float64 if it was, else float32."""
    if isinstance(vectors, Tensor):
        vectors = vectors.detach().cpu()
        if vectors.dtype == torch.bfloat16:
            vectors = vectors.float()  # NumPy has no bfloat16
    if dtype is None:
        dtype = np.float32
        if getattr(vectors, "dtype", None) in (np.float64, torch.float64):
            dtype = np.float64
    # "same_kind" refuses complex numbers, whose imaginary parts would be lost.
    x: np.ndarray = np.asarray(vectors).astype(dtype, casting="same_kind", copy=False)
    if not np.isfinite(x).all():
        raise ValueError("vectors must be finite")
    return x


def lows_and_steps(ranges: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest value of each column and the size of its steps, (D,) each.

    ``ValueError`` unless ``ranges`` are (2, D), the lowest and the highest values.
    """
    has_shape = np.shape(ranges) == (2, width)
    if not has_shape or not np.isfinite(ranges).all() or (ranges[0] > ranges[1]).any():
        raise ValueError(
            f"the ranges must be (2, {width}), lowest and highest of each column, from calibrate"
        )
    low, high = ranges.astype(np.float32)
    return low, (high - low) / np.float32(INT8_STEPS)
