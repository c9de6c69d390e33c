"""Exact search by cosine: the k nearest vectors of a corpus for each query, and the closest pairs of a collection.

Every vector is compared with every other, in float32 and block by block; of each block only what is among the k best so
far is kept, so the full score matrix is never in memory. The scores of the results are computed again in float64 and
rounded to float32: they do not depend on the blocks, and equal vectors have a cosine of exactly 1.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from minisbert.core import InputError, reading
from minisbert.core.checks import check
from minisbert.system.progress import Bar
from minisbert.system.torch_internals import laid_out, products

OPEN = 64  # arrays of a stack that are held open: a memory map takes a file descriptor


class Stacked:
    """Arrays (n, D), one below the other, as one (N, D): files on disk that are never in memory as a whole.

    ``load(i)`` returns array i, which has ``counts[i]`` rows; ``chosen`` are the rows to take of all these, in order.
    """

    ndim = 2

    def __init__(
        self,
        load: Callable[[int], np.ndarray],
        counts: Sequence[int],
        width: int,
        dtype: str | np.dtype = "float32",
        chosen: np.ndarray | None = None,
    ):
        self.load, self.dtype, self.chosen = lru_cache(OPEN)(load), np.dtype(dtype), chosen
        self.ends = np.cumsum(counts)  # (arrays,)
        self.starts = self.ends - counts
        self.shape = sum(counts) if chosen is None else len(chosen), width

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """A copy of some rows (R, D), by a slice or by their numbers (R,)."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        if self.chosen is not None:
            rows = self.chosen[rows]
        result = np.empty((len(rows), self.shape[1]), self.dtype)
        arrays = self.ends.searchsorted(rows, side="right")  # (R,), the array of each row
        for i in np.unique(arrays):
            here = arrays == i
            result[here] = self.load(i)[rows[here] - self.starts[i]]
        return result


Source = np.ndarray | Tensor | Stacked


class Vectors:
    """Vectors (N, D) of any kind, read in blocks: an array on disk is never in memory as a whole.

    ``name`` is for messages. Raises ``InputError`` for anything but a non-empty (N, D) of real numbers.
    """

    def __init__(self, source: Source, name: str):
        with reading(f"the {name}"):
            if isinstance(source, Tensor):
                source = source.detach().cpu()
            elif not isinstance(source, Stacked):
                source = np.asanyarray(source)
            check("vectors (N, D)", source)
        is_real = not source.is_complex() if isinstance(source, Tensor) else np.can_cast(source.dtype, np.float64)
        if not is_real:
            raise InputError(f"the {name}: real numbers are needed, not {source.dtype}")
        self.source, self.name = source, name
        self.width = source.shape[1]

    def __len__(self) -> int:
        return len(self.source)

    def unit(self, rows: slice | Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Some rows (R, D), by a slice or by their numbers, scaled to length 1. A zero vector stays zero.

        Raises ``InputError`` for NaN and infinity.
        """
        x = self._read(rows)
        is_small = x.is_floating_point() and x.dtype != torch.float64
        x = x.to(dtype) if is_small else x.double()
        lengths = torch.linalg.vector_norm(x, dim=1, keepdim=True)  # (R, 1)
        if lengths.min() > 1e-12 and lengths.max() < 1e18:  # false for NaN, too
            if dtype == torch.float64 or (lengths - 1).abs().max() > 2**-22:
                x = x / lengths
            return x.to(dtype)
        x = x.double()
        finite = x.isfinite().all(dim=1)  # (R,)
        if not finite.all():
            place = int(finite.int().argmin())
            row = rows.start + place if isinstance(rows, slice) else int(rows[place])
            raise InputError(f"the {self.name}, row {row}: NaN or infinity has no cosine with anything")
        largest = x.abs().amax(dim=1, keepdim=True)  # (R, 1)
        x = x / torch.where(largest > 0, largest, 1)  # now no square overflows or vanishes
        return (x / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min(1)).to(dtype)

    def _read(self, rows: slice | Tensor) -> Tensor:
        if isinstance(self.source, Tensor):
            return self.source[rows]
        block = self.source[rows if isinstance(rows, slice) else rows.numpy()]
        block = np.ascontiguousarray(block, block.dtype.newbyteorder("="))
        try:
            return torch.from_dlpack(block)  # no copy, of a read-only array either
        except BufferError:  # NumPy before 2.1 exports no read-only array
            return torch.from_numpy(block.copy())


def check_k(k: int, most: int, what: str) -> None:
    """Raise ``InputError`` unless ``k`` is an integer from 1 to ``most``."""
    is_integer = isinstance(k, int | np.integer) and not isinstance(k, bool)
    if not is_integer or not 1 <= k <= most:
        raise InputError(f"k is {k!r}: it must be 1 to {most:,}, {what}")


BLOCK = 1024  # vectors at a time; of the corpus of ``top_k`` four times as many: 16 MiB of scores
GROUP = 16  # scores of which at first only the highest is compared
MOST = 2**21  # results of a block of queries
SINGLES = 128  # scores computed one by one, at a time: their vectors stay in the cache
ALONE = 64  # such a score takes as long as about this many in a block
SAME = 1 - 2**-20  # in float32 a vector and its copy have at least this cosine; higher ones count as ties


def top_k(queries: Source, corpus: Source, k: int, progress: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The k rows of the corpus (N, D) with the highest cosine to each query (Q, D): scores and indices, (Q, k) each.

    Sorted by score, ties by index. Which rows are among the k best is decided in float32: two whose cosines differ by
    less than 1e-6 may be exchanged at the last place. A zero vector has cosine 0 with everything. Needs memory for
    Q x k results and one block; an array on disk (``np.load(path, mmap_mode="r")``) stays there. Raises ``InputError``
    if k exceeds the corpus, if there are no vectors, if the widths differ, and for NaN or infinity (naming the row).
    """
    queries, corpus = Vectors(queries, "queries"), Vectors(corpus, "corpus")
    if queries.width != corpus.width:
        raise InputError(f"queries of width {queries.width} and a corpus of {corpus.width} cannot be compared")
    check_k(k, len(corpus), "the size of the corpus")
    dtype = choose_dtype(k, len(corpus))
    best = order_keys(torch.full((len(queries), k), -torch.inf), torch.zeros(k, dtype=torch.int64))  # (Q, k)
    height, width = max(1, min(BLOCK, MOST // k)), 4 * BLOCK
    blocks = -(-len(queries) // height) * -(-len(corpus) // width)
    with Bar(total=blocks, desc="comparing", unit=" blocks", shown=progress) as bar:
        for i in range(0, len(queries), height):
            block = queries.unit(slice(i, i + height), dtype)  # (R, D)
            if dtype == torch.float32:
                block = laid_out(block)
            for j in range(0, len(corpus), width):
                part = corpus.unit(slice(j, j + width), dtype)  # (C, D)
                merge(best[i : i + height], compare(part, block), j)
                bar.update()
    scores, indices = from_keys(best)
    if dtype == torch.float32:
        scores = cosines_of(queries, torch.arange(len(queries)), corpus, indices)
        scores, indices = from_keys(order_keys(scores, indices).sort(dim=1, descending=True).values)
    return scores.numpy(), indices.numpy()


def merge(best: Tensor, scores: Tensor, start: int) -> None:
    """Update the k best keys of each query (R, k), sorted, by scores (C, R) of the rows from ``start`` on."""
    missing = -len(scores) % GROUP
    if missing:
        scores = pad(scores, (0, 0, 0, missing), value=-torch.inf)
    scores = scores.view(-1, GROUP, len(best))  # (C / GROUP, GROUP, R)
    highest = scores.amax(dim=1)  # (C / GROUP, R)
    lowest, k = from_keys(best[:, -1])[0], best.shape[1]  # (R,), what a score must exceed
    better = highest > lowest  # most groups are not: to compare only the highest of each takes a fifth of the time
    if k < len(highest) and better.sum(dim=0).max() > k:
        # k groups have a maximum of at least this, so k scores are at least as high
        bound = highest.topk(k, dim=0).values[-1]  # (R,)
        lowest = lowest.maximum(bound.nextafter(torch.tensor(-torch.inf)))
        better = highest > lowest
    queries, groups = better.T.nonzero(as_tuple=True)  # (n,) each, by query
    values = scores[groups, :, queries]  # (n, GROUP)
    places, within = (values > lowest[queries, None]).nonzero(as_tuple=True)  # (m,) each
    if len(places) == 0:
        return
    keys = order_keys(values[places, within], start + GROUP * groups[places] + within)  # (m,)
    queries, which, counts = queries[places].unique_consecutive(return_inverse=True, return_counts=True)
    columns = torch.arange(len(keys)) - (counts.cumsum(0) - counts)[which]  # (m,), 0 for the first of each query
    more = best[queries, -1:].repeat(1, int(counts.max()))  # (r, most)
    more[which, columns] = keys
    best[queries] = torch.cat([best[queries], more], dim=1).topk(k).values


def closest_pairs(vectors: Source, k: int, progress: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The k pairs i < j with the highest cosine among vectors (N, D), each pair once: scores (k,) and pairs (k, 2).

    Sorted by score, ties by i, then by j; exact as ``top_k`` is. Needs memory for k pairs and one block. Raises
    ``InputError`` if k exceeds the N (N - 1) / 2 pairs, for fewer than two vectors, and for NaN or infinity.
    """
    vectors = Vectors(vectors, "vectors")
    count = len(vectors)
    most = count * (count - 1) // 2
    check_k(k, most, "the number of pairs")
    dtype = choose_dtype(k, most)
    scores, keys = torch.empty(0), torch.empty(0, dtype=torch.int64)  # a pair's key is i * count + j
    lowest, last = -torch.inf, 0  # of the k best so far, once there are k
    for i, j, block in pair_blocks(vectors, dtype, progress):
        if block.max() < lowest:
            continue
        values, places = at_least(block, lowest, k)
        more = (i + places // block.shape[1]) * count + j + places % block.shape[1]
        wanted = (values > lowest) | (more < last)
        scores, keys = by_score(torch.cat([scores, values[wanted]]), torch.cat([keys, more[wanted]]))
        scores, keys = scores[:k], keys[:k]
        if len(scores) == k:
            lowest, last = scores[-1].item(), keys[-1].item()
    if dtype == torch.float32:
        scores = cosines_of(vectors, keys // count, vectors, keys[:, None] % count).flatten()
        scores, keys = by_score(scores, keys)
    return scores.numpy(), torch.stack([keys // count, keys % count], dim=1).numpy()


def pair_blocks(vectors: Vectors, dtype: torch.dtype, progress: bool) -> Iterator[tuple[int, int, Tensor]]:
    """Blocks of cosines (R, C), each with its first row i and column j; minus infinity unless row < column."""
    starts = range(0, len(vectors), BLOCK)
    blocks = len(starts) * (len(starts) + 1) // 2
    with Bar(total=blocks, desc="comparing", unit=" blocks", shown=progress) as bar:
        for i in starts:
            first = vectors.unit(slice(i, i + BLOCK), dtype)  # (R, D)
            within = compare(first, first)  # (R, R)
            yield i, i, within.masked_fill(torch.ones_like(within, dtype=torch.bool).tril(), -torch.inf)
            bar.update()
            for j in range(i + BLOCK, len(vectors), BLOCK):
                yield i, j, compare(first, vectors.unit(slice(j, j + BLOCK), dtype))
                bar.update()


def at_least(scores: Tensor, lowest: float, k: int) -> tuple[Tensor, Tensor]:
    """The values (n,) in a block (R, C) that reach ``lowest`` or else its k-th best, and their places, flattened."""
    flat = scores.flatten()
    if lowest == -torch.inf:
        lowest = flat.topk(min(k, len(flat))).values[-1].item()
    places = ((flat >= lowest) & (flat > -torch.inf)).nonzero().flatten()
    return flat[places], places


def choose_dtype(k: int, count: int) -> torch.dtype:
    """How to compute ``count`` scores for k results: in float64 if k is so large that most would be computed again."""
    if k * ALONE >= count:
        return torch.float64
    return torch.float32


def compare(a: Tensor, b: Tensor) -> Tensor:
    """Cosines (R, C), float32, of unit vectors (R, D) and (C, D), computed in their own precision."""
    if a.dtype == torch.float32:
        return products(a, b).clamp_(max=SAME)
    return (a @ b.T).float()


def cosines_of(a: Vectors, rows: Tensor, b: Vectors, columns: Tensor) -> Tensor:
    """The cosine of each of the rows (n,) of a with the rows ``columns`` (n, k) of b: (n, k), from float64."""
    height = max(1, SINGLES // columns.shape[1])
    cosines = torch.empty(columns.shape)
    for start in range(0, len(rows), height):
        some = slice(start, start + height)
        u = a.unit(rows[some], torch.float64)  # (R, D)
        v = b.unit(columns[some].flatten(), torch.float64).view(len(u), -1, b.width)  # (R, k, D)
        cosines[some] = (u.unsqueeze(1) * v).sum(dim=2)
    return cosines


def order_keys(scores: Tensor, rows: Tensor) -> Tensor:
    """Scores (float32) and rows below 2^32 as int64: higher if the score is, or with equal scores if the row is lower.

    ``order_keys([0.5, 1, 0.5], [0, 1, 2])``, sorted from the highest on, are those of rows 1, 0, 2.
    """
    bits = scores.view(torch.int32).long()  # the first bit is the sign, the others are the size
    ordered = torch.where(bits < 0, -(2**31) - bits, bits)  # also for -0.0, which is 0 as 0.0 is
    return ordered * 2**32 - rows


def from_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and rows of ``order_keys``."""
    rows = -keys % 2**32
    ordered = (keys + rows) // 2**32
    bits = torch.where(ordered < 0, -(2**31) - ordered, ordered)
    return bits.int().view(torch.float32), rows


def by_score(scores: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (n,) and indices (n,) sorted by score from the highest on, ties by index."""
    indices, order = indices.sort()
    scores, best = scores[order].sort(descending=True, stable=True)
    return scores, indices[best]
