"""Vectors in fewer bytes on disk: what ``encode --quantize`` writes and ``search --index`` reads.

    int8      codes (N, D) int8 and ranges (2, D) float32: a quarter of the bytes of float32
    binary    bits (N, ceil(D / 8)) uint8, one bit per column: a 32nd

The metadata has the kind, the width D, and hashes of the model, the texts and the tensors. ``search/quantized.py``
turns vectors to codes and back. Queries stay float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from minisbert.core import InputError, reading
from minisbert.corpus.hashes import corpus_hash, read_hashed, write_hashed
from minisbert.search.quantized import calibrate, from_bits, from_int8, hamming_top_k, rescore, to_bits, to_int8
from minisbert.search.vectors import Stacked

QUANTIZATIONS = ("int8", "binary")
CODES = "codes"  # what the metadata of such a file says that it is
RESCORE = 4  # candidates by bits for each result
BLOCK_NUMBERS = 2**22  # to rescore at once


def write_codes(vectors: np.ndarray, texts: Sequence[str], kind: str, model: str, path: Path) -> None:
    """Quantise vectors (N, D) of the texts and write them; ``model`` is the model's hash."""
    with reading(f"--quantize {kind}"):
        ranges = calibrate(vectors) if kind == "int8" else None
        arrays = {"bits": to_bits(vectors)} if ranges is None else {"codes": to_int8(vectors, ranges), "ranges": ranges}
    texts = [text.strip() for text in texts]  # as some readers of corpora strip them
    about = {"minisbert": CODES, "kind": kind, "width": str(vectors.shape[1])}
    about |= {"model": model, "corpus": corpus_hash(texts)}
    write_hashed({name: torch.from_numpy(array) for name, array in arrays.items()}, path, about)


def read_codes(path: Path, about: dict[str, str], texts: Sequence[str], model: str, width: int) -> "Stacked | Bits":
    """The vectors of a file with this metadata: int8 codes as float32 (N, D), decoded as they are read, or bits.

    Raises ``InputError`` for another model, other texts, another width, and a damaged file: nothing is rebuilt here.
    """
    texts = [text.strip() for text in texts]
    tensors, wrong = read_hashed(path, about, {"model": model, "corpus": corpus_hash(texts), "width": str(width)})
    kind, bits = about.get("kind"), about.get("kind") == "binary"
    codes, shape = tensors.get("bits" if bits else "codes"), (len(texts), -(-width // 8) if bits else width)
    if wrong or codes is None or codes.shape != shape:
        wrong = wrong or "is damaged"
        raise InputError(f"{path} {wrong}: give what it was made with, or write it again with encode --quantize {kind}")
    with reading(path):
        found = Bits(codes.numpy(), width) if bits else Decoded(codes.numpy(), tensors["ranges"].numpy())
        found[:1]  # raises an error for another type
    return found if bits else Stacked([found].__getitem__, [len(codes)], width, "float32")


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
        """Scores and indices, (Q, k) each, best first: float32 queries (Q, D), as they are, with the signs.

        Candidates are the ``times`` k rows whose bits differ least from those of the query. A score is the cosine of
        the query and a vector of -1 and 1, so it is lower than that of the vectors themselves: 0.8 where that is 1.
        """
        most = min(times * k, len(self.bits))
        height = max(1, BLOCK_NUMBERS // (most * self.width))  # queries at a time
        found = []
        for some in (queries[start : start + height] for start in range(0, len(queries), height)):
            candidates = hamming_top_k(some, self.bits, most)[1]
            found.append(rescore(some, candidates, self[candidates], k))
        return tuple(np.concatenate(blocks) for blocks in zip(*found, strict=True))
