"""Exact search by cosine: the k nearest vectors of a corpus for each query, and the closest pairs of a collection.

Scores are computed block by block, so the full score matrix is never in memory. They are computed in float64 and
rounded to float32, so that equal vectors get equal scores, and exactly 1 with each other, in any block. In float32
alone the last digit depends on the block, and with it the order of ties.
"""

import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError
from minisbert.core.encoder import normalize
from minisbert.system.console import LiveLine, duration

BLOCK = 1024  # rows and columns of scores at a time: 8 MiB in float64
Vectors = np.ndarray | Tensor


def k_best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and columns of the k highest scores of each row, sorted: (R, C) -> (R, k), (R, k).

    Ties are sorted by column. ``[[1, 3, 2, 3]], k = 3`` gives ``[[3, 3, 2]]`` and ``[[1, 3, 2]]``.
    """
    lowest = scores.topk(k).values[:, -1:]  # (R, 1)
    above, level = scores > lowest, scores == lowest  # (R, C)
    # subtle: among columns tied with the lowest value topk takes any; we take the first that fit
    room = k - above.sum(dim=1, keepdim=True)  # (R, 1)
    chosen = above | (level & (level.cumsum(dim=1) <= room))  # (R, C), k True in each row
    columns = chosen.nonzero()[:, 1].view(-1, k)  # (R, k), ascending
    values, order = scores.gather(1, columns).sort(dim=1, descending=True, stable=True)
    return values, columns.gather(1, order)


def top_k(queries: Vectors, corpus: Vectors, k: int, progress: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The k rows of the corpus (N, D) with the highest cosine to each query (Q, D): scores and indices, (Q, k) each.

    Sorted by score, ties by index. A zero vector has cosine 0 with everything. Needs memory for Q x k results and one
    block. Raises ``InputError`` if k exceeds the corpus, if there are no vectors, if the widths differ, and for NaN
    or infinity (naming the row).
    """
    queries, corpus = as_vectors(queries, "queries"), as_vectors(corpus, "corpus")
    if queries.shape[1] != corpus.shape[1]:
        raise InputError(f"queries of width {queries.shape[1]} and a corpus of {corpus.shape[1]} cannot be compared")
    if not 1 <= k <= len(corpus):
        raise InputError(f"k is {k}: it must be 1 to {len(corpus):,}, the size of the corpus")
    scores = torch.full((len(queries), k), -torch.inf)
    indices = torch.zeros(len(queries), k, dtype=torch.int64)
    blocks = [(i, j) for j in range(0, len(corpus), BLOCK) for i in range(0, len(queries), BLOCK)]
    for i, j in with_progress(blocks, progress):
        block = cosines(queries, i, corpus, j)  # (R, C)
        values, columns = k_best(block, min(k, block.shape[1]))
        # earlier results come first: their indices are lower, which keeps ties in order
        values = torch.cat([scores[i : i + BLOCK], values], dim=1)
        found = torch.cat([indices[i : i + BLOCK], j + columns], dim=1)
        scores[i : i + BLOCK], order = k_best(values, k)
        indices[i : i + BLOCK] = found.gather(1, order)
    return scores.numpy(), indices.numpy()


def closest_pairs(vectors: Vectors, k: int, progress: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The k pairs i < j with the highest cosine among vectors (N, D), each pair once: scores (k,) and pairs (k, 2).

    Sorted by score, ties by i, then by j. Needs memory for k pairs and one block. Raises ``InputError`` if k exceeds
    the N (N - 1) / 2 pairs, for fewer than two vectors, and for NaN or infinity.
    """
    vectors = as_vectors(vectors, "vectors")
    count = len(vectors)
    if count < 2:
        raise InputError("one vector makes no pair: at least two are needed")
    if not 1 <= k <= count * (count - 1) // 2:
        raise InputError(f"k is {k}: it must be 1 to {count * (count - 1) // 2:,}, the number of pairs")
    scores, keys = torch.empty(0), torch.empty(0, dtype=torch.int64)  # a pair's key is i * count + j
    lowest = -torch.inf  # of the k best so far; -inf until there are k
    blocks = [(i, j) for i in range(0, count, BLOCK) for j in range(i, count, BLOCK)]
    for i, j in with_progress(blocks, progress):
        block = cosines(vectors, i, vectors, j)  # (R, C)
        candidates = block >= lowest
        if i == j:
            candidates = candidates.triu(diagonal=1)  # no vector with itself, no pair twice
        rows, columns = candidates.nonzero(as_tuple=True)
        if len(rows) == 0:
            continue
        keys, order = torch.cat([keys, (i + rows) * count + j + columns]).sort()
        scores = torch.cat([scores, block[rows, columns]])[order]
        best, order = k_best(scores[None], min(k, len(scores)))
        scores, keys = best[0], keys[order[0]]
        if len(scores) == k:
            lowest = scores[-1].item()
    return scores.numpy(), torch.stack([keys // count, keys % count], dim=1).numpy()


def as_vectors(vectors: Vectors, name: str) -> Tensor:
    """A finite, non-empty (N, D) tensor on the CPU, or ``InputError``."""
    try:
        if not isinstance(vectors, Tensor):
            vectors = torch.from_numpy(np.require(vectors, requirements="CW"))  # a layout that torch accepts
        matrix = vectors.detach().cpu()
    except (TypeError, ValueError) as error:
        raise InputError(f"the {name} are not an array of numbers: {error}") from error
    if matrix.ndim != 2 or matrix.numel() == 0:
        raise InputError(f"the {name} have shape {tuple(matrix.shape)}: (N, D) is needed, at least (1, 1)")
    for start in range(0, len(matrix), BLOCK):
        finite = matrix[start : start + BLOCK].isfinite().all(dim=1)  # (R,)
        if not finite.all():
            row = start + int(finite.int().argmin())
            raise InputError(f"the {name}, row {row}: NaN or infinity has no cosine with anything")
    return matrix


def cosines(a: Tensor, i: int, b: Tensor, j: int) -> Tensor:
    """Cosines (R, C), float32, of a block of rows of a (N, D) from row i with one of b (M, D) from row j."""
    a, b = (normalize(rows.double()) for rows in (a[i : i + BLOCK], b[j : j + BLOCK]))
    return (a @ b.T).float()


def with_progress(blocks: list[tuple[int, int]], progress: bool) -> Iterator[tuple[int, int]]:
    """Yield the blocks; with ``progress``, show the share done and the time left."""
    with LiveLine() as line:
        started = time.monotonic()
        for done, block in enumerate(blocks, start=1):
            yield block
            if progress:
                left = (time.monotonic() - started) / done * (len(blocks) - done)
                line.show(f"compared {done / len(blocks):.0%}, {duration(left)} left")
