"""Write vectors to ``.npy`` chunk by chunk, and quantised vectors to ``.safetensors`` and back.

    int8      codes (N, D) int8 and ranges (2, D) float32: a quarter of the bytes of float32
    binary    bits (N, ceil(D / 8)) uint8, one bit per column: a 32nd

``search/quantized.py`` turns vectors to codes and back. Queries stay float32.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from minisbert.checkpoints.weights import write_safetensors
from minisbert.core import InputError, reading
from minisbert.core.weights import read_safetensors
from minisbert.search.dense import Stacked
from minisbert.search.quantized import calibrate, from_bits, from_int8, hamming_top_k, rescore, to_bits, to_int8

QUANTIZATIONS = ("int8", "binary")
RESCORE = 4  # candidates by bits for each result
BLOCK_NUMBERS = 2**22  # to rescore at once


def write_npy(chunks: Iterator[np.ndarray], count: int, path: Path) -> tuple[int, int]:
    """Write chunks (n, D) to one ``.npy`` file, with one of them in memory at a time; return the shape, (count, D).

    The header comes first and contains the shape, so the number of rows must be known.
    """
    with open(path, "wb") as file:
        # not np.save, which needs the whole array; nor a memory map, whose full disk is a signal and not an error
        written = 0
        for chunk in chunks:
            if not isinstance(chunk, np.ndarray):
                raise InputError("this model does not return one (N, D) array; use --out FILE.safetensors")
            if written == 0:
                header = {"descr": np.lib.format.dtype_to_descr(chunk.dtype), "fortran_order": False}
                np.lib.format.write_array_header_1_0(file, header | {"shape": (count, chunk.shape[1])})
            file.write(np.ascontiguousarray(chunk).data)
            written += len(chunk)
    if written != count:
        raise InputError(f"{count:,} texts were counted, but {written:,} encoded: has the file changed in between?")
    return count, chunk.shape[1]


def write_codes(vectors: np.ndarray, kind: str, path: Path, metadata: Mapping[str, str]) -> None:
    """Quantise vectors (N, D) to one of ``QUANTIZATIONS`` and write them."""
    if kind == "binary":
        arrays = {"bits": to_bits(vectors)}
    else:
        if len(vectors) < 2:
            raise InputError("--quantize int8: one vector has no ranges; give more texts")
        ranges = calibrate(vectors)
        arrays = {"codes": to_int8(vectors, ranges), "ranges": ranges}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    write_safetensors(tensors, path, {**metadata, "quantized": kind})


def read_codes(path: Path, count: int, width: int) -> "Stacked | Bits":
    """Open ``count`` vectors of a width: bits, or int8 codes that become float32 (N, D) as they are read.

    Raises ``InputError`` if the file is damaged or has another shape.
    """
    tensors = read_safetensors(path)
    with reading(path):
        if "bits" in tensors:
            vectors = Bits(tensors["bits"].numpy(), width)
            shape, needed = vectors.bits.shape, (count, -(-width // 8))
        else:
            # stay codes in memory: a block becomes float32 when the search reads it
            codes, ranges = tensors["codes"].numpy(), tensors["ranges"].numpy()
            vectors = Stacked([Decoded(codes, ranges)].__getitem__, [len(codes)], width, "float32")
            shape, needed = codes.shape, (count, width)
        if shape != needed:
            raise ValueError(f"the codes have shape {shape}, not {needed}")
        vectors[:1]  # raises for another dtype, or ranges of another width
        return vectors


@dataclass
class Decoded:
    """int8 codes (N, D), decoded to float32 vectors as they are read."""

    codes: np.ndarray
    ranges: np.ndarray

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        return from_int8(self.codes[rows], self.ranges)


@dataclass
class Bits:
    """The signs of N vectors of a width, in bits (N, ceil(width / 8))."""

    bits: np.ndarray
    width: int

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        return from_bits(self.bits[rows], self.width)

    def top_k(self, queries: np.ndarray, k: int, times: int = RESCORE) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and indices, (Q, k) each, best first, of float32 queries (Q, D) with the signs.

        Candidates are the ``times`` k rows whose bits differ least from those of the query. A score is the cosine of
        the query and a vector of -1 and 1, so it is lower than that of the vectors themselves: 0.8 where that is 1.
        """
        # bits choose candidates, the float query sorts them: a Hamming distance has few values and many ties
        most = min(times * k, len(self.bits))
        height = max(1, BLOCK_NUMBERS // (most * self.width))  # queries at a time
        scores = np.empty((len(queries), k), np.float32)
        indices = np.empty((len(queries), k), np.int64)
        for start in range(0, len(queries), height):
            some = slice(start, start + height)
            candidates = hamming_top_k(queries[some], self.bits, most)[1]
            scores[some], indices[some] = rescore(queries[some], candidates, self[candidates], k)
        return scores, indices
