"""Codes in files: written by ``encode --quantize``, searched by ``search --index``.

    int8      codes (N, D) int8 and ranges (2, D) float32: a quarter of the vectors' bytes
    binary    bits (N, ceil(D / 8)) uint8, one bit per column: a 32nd

The files are safetensors. ``quantized.py`` turns vectors into codes and back; queries stay float32.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from minisbert.checkpoints.weights import write_safetensors
from minisbert.core import InputError
from minisbert.search.dense import ReadByRows
from minisbert.search.quantized import (
    calibrate,
    from_bits,
    from_int8,
    hamming_top_k,
    lows_and_steps,
    rescore,
    to_bits,
    to_int8,
)

RESCORE = 4  # this many times k candidates are chosen by bits, and k of them by their scores
BLOCK_NUMBERS = 2**22  # signs that are decoded at a time: 16 MiB of float32


def write_codes(vectors: np.ndarray, kind: str, path: Path, metadata: Mapping[str, str]) -> None:
    """Quantise vectors (N, D) to "int8" or "binary" and write them."""
    if kind == "binary":
        arrays = {"bits": to_bits(vectors)}
    else:
        if len(vectors) < 2:
            raise InputError("--quantize int8: one vector has no ranges; give more texts")
        ranges = calibrate(vectors)
        arrays = {"codes": to_int8(vectors, ranges), "ranges": ranges}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    write_safetensors(tensors, path, {**metadata, "quantized": kind})


def from_codes(tensors: Mapping[str, Tensor], count: int, width: int) -> "Decoded | Bits":
    """Open ``count`` vectors of a width from the tensors of a file.

    ``ValueError`` if they have another shape or dtype, ``KeyError`` if one is missing.
    """
    if "bits" in tensors:
        bits = tensors["bits"]
        check_codes(bits, (count, math.ceil(width / 8)), torch.uint8)
        return Bits(bits.numpy(), width)
    codes = tensors["codes"]
    check_codes(codes, (count, width), torch.int8)
    ranges = tensors["ranges"].float().numpy()
    lows_and_steps(ranges, width)  # raises ValueError for ranges of another width
    # Vectors stay codes in memory: a block becomes float32 when the search reads it.
    return Decoded(codes.numpy(), ranges)


def check_codes(codes: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Raise ``ValueError`` for codes of another shape or dtype."""
    if tuple(codes.shape) != shape or codes.dtype != dtype:
        what = f"{codes.dtype} of shape {tuple(codes.shape)}"
        raise ValueError(f"the codes are {what}, not {dtype} of {shape}")


class Decoded(ReadByRows):
    """int8 codes (N, D), decoded to float32 vectors as they are read."""

    dtype = np.dtype(np.float32)

    def __init__(self, codes: np.ndarray, ranges: np.ndarray):
        self.codes = codes
        self.ranges = ranges
        self.shape = codes.shape

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        return from_int8(self.codes[rows], self.ranges)


@dataclass
class Bits:
    """The signs of N vectors of a width, in bits (N, ceil(width / 8))."""

    bits: np.ndarray
    width: int

    def top_k(
        self, queries: np.ndarray, k: int, times: int = RESCORE, *, numbers: int = BLOCK_NUMBERS
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compare float32 queries (Q, D) with the signs: scores and indices, (Q, k) each.

        Best first. Bits choose the candidates, ``times`` times k rows that differ least from the
        query's bits, and the float query sorts them: a Hamming distance has few values and many
        ties. A score is the cosine of the query and a vector of -1 and 1, so it is lower than that
        of the vectors themselves: 0.8 where that is 1. Queries are taken in blocks whose candidates
        have up to ``numbers`` signs.
        """
        candidates_each = min(times * k, len(self.bits))
        height = max(1, numbers // (candidates_each * self.width))
        scores = np.empty((len(queries), k), np.float32)
        indices = np.empty((len(queries), k), np.int64)
        for start in range(0, len(queries), height):
            block = slice(start, start + height)
            _, candidates = hamming_top_k(queries[block], self.bits, candidates_each)
            signs = from_bits(self.bits[candidates], self.width)
            scores[block], indices[block] = rescore(queries[block], candidates, signs, k)
        return scores, indices
