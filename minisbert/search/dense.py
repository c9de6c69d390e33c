"""Search exactly: the k nearest vectors of a corpus for each query, and the closest pairs of a
collection.

Every vector is compared with every other, in float32 and block by block. Only the k best so far
survive a block, so the full score matrix is never in memory. The scores of the results are computed
again in float64 and rounded to float32: they do not depend on the blocks, and equal vectors have a
cosine of exactly 1. The similarity is the cosine, the dot product, or minus a distance; distances
have no fast product and are computed in float64 throughout.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from minisbert.core import InputError
from minisbert.core.checks import check_shape
from minisbert.system.progress import Bar
from minisbert.system.reading import reading
from minisbert.system.torch_internals import laid_out, products

BLOCK = 1024  # vectors at a time; of the corpus of ``top_k`` four times as many: 16 MiB of scores
GROUP = 16  # scores of which at first only the highest is compared
MOST = 2**21  # results of a block of queries
SINGLES = 128  # scores computed one by one, at a time: their vectors stay in the cache
ALONE = 64  # such a score takes as long as about this many in a block
SAME = (
    1 - 2**-20
)  # in float32 a vector and its copy have at least this cosine; higher ones count as ties
LONGEST = 1e18  # the product of two such vectors still fits float32
DISTANCES = {
    "manhattan": 1,
    "euclidean": 2,
}  # the p of the norm: sums of absolute values, roots of sums of squares
SHORTEST = 1e-150  # a vector below this length counts as zero: its squares vanish in float64


class ReadByRows:
    """Vectors (N, D) that are made when they are asked for: a subclass returns rows by slice or by
    their numbers.
    """

    ndim = 2
    shape: tuple[int, int]
    dtype: np.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        raise NotImplementedError


Source = np.ndarray | Tensor | ReadByRows


class Vectors:
    """Vectors (N, D) of any kind, read in blocks: an array on disk is never in memory as a whole.

    ``name`` is for messages; ``similarity`` is how they will be compared. Raises ``InputError`` for
    another similarity, and for anything but a non-empty (N, D) of real numbers.
    """

    def __init__(self, source: Source, name: str, similarity: str = "cosine"):
        names = ("cosine", "dot", *DISTANCES)
        if similarity not in names:
            raise InputError(f"similarity must be one of {', '.join(names)}, got {similarity!r}")
        with reading(f"the {name}"):
            if isinstance(source, Tensor):
                source = source.detach().cpu()
            elif not isinstance(source, ReadByRows):
                source = np.asanyarray(source)
            check_shape("vectors", source, None, None)
        is_real = (
            not source.is_complex()
            if isinstance(source, Tensor)
            else np.can_cast(source.dtype, np.float64)
        )
        if not is_real:
            raise InputError(f"the {name} must be real numbers, got {source.dtype}")
        self.source, self.name, self.similarity = source, name, similarity
        self.width = source.shape[1]

    def __len__(self) -> int:
        return len(self.source)

    def block(self, rows: slice | Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return some rows (R, D), given as a slice or by their numbers; for the cosine scaled to
        length 1.

        Zero vectors stay zero. Raises ``InputError`` for NaN, infinity and numbers too large to
        compare.
        """
        x = self._read(rows)
        computing = torch.float64  # float64 and integers keep their digits until they are scaled
        if x.is_floating_point() and x.dtype != torch.float64:
            computing = dtype
        x = x.to(computing)
        lengths = torch.linalg.vector_norm(x, dim=1, keepdim=True)  # (R, 1)
        if not (
            lengths.min() > 1e-12 and lengths.max() < LONGEST
        ):  # subtle: written so that NaN comes here, too
            x = (
                x.double()
            )  # the squares of large and small float32 numbers overflow or vanish in float32
            lengths = torch.linalg.vector_norm(x, dim=1, keepdim=True)
            usable = lengths.isfinite().flatten()  # (R,)
            if (
                self.similarity != "cosine"
            ):  # nothing is scaled, so the scores must fit as the numbers are
                usable = lengths.flatten() < LONGEST
            if not usable.all():
                place = int(usable.int().argmin())
                row = rows.start + place if isinstance(rows, slice) else int(rows[place])
                raise InputError(
                    f"the {self.name}, row {row}: NaN, infinity or a number too large to square"
                )
            lengths = lengths.clamp_min(SHORTEST)
        # vectors that a model scaled are used as they are: dividing by 1 + 1e-8 costs a copy and
        # only rounds again
        needs_scaling = dtype == torch.float64 or (lengths - 1).abs().max() > 2**-22
        if self.similarity == "cosine" and needs_scaling:
            x = x / lengths
        return x.to(dtype)

    def _read(self, rows: slice | Tensor) -> Tensor:
        if isinstance(self.source, Tensor):
            return self.source[rows]
        if isinstance(rows, Tensor):
            rows = rows.numpy()
        block = self.source[rows]
        block = np.ascontiguousarray(
            block, block.dtype.newbyteorder("=")
        )  # torch reads this machine's byte order
        try:
            return torch.from_dlpack(block)  # no copy, of a read-only array either
        except BufferError:  # NumPy before 2.1 exports no read-only array
            return torch.from_numpy(block.copy())


def check_k(k: int, most: int, what: str) -> None:
    """Raise ``InputError`` unless ``k`` is an integer from 1 to ``most``."""
    is_integer = isinstance(k, int | np.integer) and not isinstance(k, bool)
    if not is_integer or not 1 <= k <= most:
        raise InputError(f"k must be between 1 and {most:,} ({what}), got {k!r}")


def top_k(
    queries: Source, corpus: Source, k: int, progress: bool = False, similarity: str = "cosine"
) -> tuple[np.ndarray, np.ndarray]:
    """Find the k rows of the corpus (N, D) most similar to each query (Q, D): scores and indices,
    (Q, k).

    ``similarity`` is "cosine", "dot", or minus the "euclidean" or "manhattan" distance. Sorted by
    score, ties by index. The k rows are chosen in float32. One exception: at place k, two rows
    whose cosines differ by less than 1e-6, or whose dot products by less than 1e-6 of the lengths'
    product, may swap. A zero vector has cosine 0 with everything. Needs memory for Q x k results
    and one block; an array on disk (``np.load(path, mmap_mode="r")``) stays there. Raises
    ``InputError`` if k exceeds the corpus, if there are no vectors, if the widths differ, and for
    NaN or infinity (naming the row).
    """
    queries, corpus = Vectors(queries, "queries", similarity), Vectors(corpus, "corpus", similarity)
    if queries.width != corpus.width:
        raise InputError(
            f"queries have width {queries.width} and the corpus {corpus.width}: the widths must be "
            f"equal"
        )
    check_k(k, len(corpus), "the corpus size")
    dtype = score_dtype(k, len(corpus), similarity)
    scores = torch.full(
        (len(queries), k), -torch.inf
    )  # (Q, k), the best so far, in descending order
    rows = torch.zeros((len(queries), k), dtype=torch.int64)
    height, width = max(1, min(BLOCK, MOST // k)), 4 * BLOCK
    blocks = -(-len(queries) // height) * -(-len(corpus) // width)
    with Bar(total=blocks, desc="comparing", unit=" blocks", shown=progress) as bar:
        for i in range(0, len(queries), height):
            here = slice(i, i + height)
            block = queries.block(here, dtype)  # (R, D)
            if dtype == torch.float32:
                block = laid_out(block)
            for j in range(0, len(corpus), width):
                part = corpus.block(slice(j, j + width), dtype)  # (C, D)
                update_best(scores[here], rows[here], compare(part, block, similarity), j)
                bar.update()
    if dtype == torch.float32:
        # float32 scores have done their work: the results get exact ones, which may order
        # neighbours differently
        scores = scores_of(queries, torch.arange(len(queries)), corpus, rows)
        scores, rows = by_score(scores, rows)
    return scores.numpy(), rows.numpy()


def update_best(best: Tensor, rows: Tensor, scores: Tensor, start: int) -> None:
    """Update the k best scores and their rows, (R, k) each, in place by scores (C, R) of the rows
    from ``start`` on.

    A plain ``topk`` of C + k scores for each query takes longer than the matrix product that made
    them. Most of them are below the query's k-th best, so first only the highest of each group of
    16 is looked at:

        scores of one query    [.1 .3 ... .2]  [.9 .4 ... .8]  [.2 .1 ... .0]    its k-th best so far: .5
        highest of each group        .3              .9              .2
        groups above .5                        [.9 .4 ... .8]
        scores above .5                         .9        .8                     join its k best; then one stable sort
    """
    k = best.shape[1]
    if len(scores) % GROUP:
        scores = pad(scores, (0, 0, 0, -len(scores) % GROUP), value=-torch.inf)
    groups = scores.view(-1, GROUP, len(best))  # (C / GROUP, GROUP, R)
    highest = groups.amax(dim=1)  # (C / GROUP, R)
    lowest = best[:, -1]  # (R,), what a score must exceed: of equal scores the earlier row wins
    better = highest > lowest
    if k < len(highest) and better.sum(dim=0).max() > k:
        # in the first blocks nearly all are better; but k groups have a maximum of at least this,
        # so k scores do
        bound = highest.topk(k, dim=0).values[-1]  # (R,)
        lowest = lowest.maximum(
            bound.nextafter(torch.tensor(-torch.inf))
        )  # just below it: equal scores stay in
        better = highest > lowest
    queries, which = better.T.nonzero(as_tuple=True)  # (n,) each, by query and then by group
    values = groups[which, :, queries]  # (n, GROUP)
    places, within = (values > lowest[queries, None]).nonzero(as_tuple=True)  # (m,) each
    if len(places) == 0:
        return
    # a row for each of the r queries with new scores: its k best, the new ones, minus infinity up
    # to the longest row
    changed, owners, counts = queries[places].unique_consecutive(
        return_inverse=True, return_counts=True
    )
    columns = (
        k + torch.arange(len(places)) - (counts.cumsum(0) - counts)[owners]
    )  # (m,), from k on for each query
    all_scores = torch.full((len(changed), k + int(counts.max())), -torch.inf)
    all_rows = torch.zeros_like(all_scores, dtype=torch.int64)
    all_scores[:, :k], all_rows[:, :k] = best[changed], rows[changed]
    all_scores[owners, columns] = values[places, within]
    all_rows[owners, columns] = start + GROUP * which[places] + within
    # subtle: not topk, which chooses freely among equal scores. Rows ascend from left to right, and
    # a stable sort leaves equal scores in that order
    all_scores, order = all_scores.sort(dim=1, descending=True, stable=True)
    best[changed], rows[changed] = all_scores[:, :k], all_rows.gather(1, order[:, :k])


def closest_pairs(
    vectors: Source, k: int, progress: bool = False, similarity: str = "cosine"
) -> tuple[np.ndarray, np.ndarray]:
    """Find the k most similar pairs i < j among vectors (N, D): scores (k,) and pairs (k, 2).

    Sorted by score, ties by i, then by j; ``similarity`` and exactness are as in ``top_k``. Needs
    memory for k pairs and one block. Raises ``InputError`` if k exceeds the N (N - 1) / 2 pairs,
    for fewer than two vectors, and for NaN or infinity.
    """
    vectors = Vectors(vectors, "vectors", similarity)
    count = len(vectors)
    most = count * (count - 1) // 2
    check_k(k, most, "the number of pairs")
    dtype = score_dtype(k, most, similarity)
    scores, pairs = (
        torch.empty(0),
        torch.empty(0, dtype=torch.int64),
    )  # the pair (i, j) is the number i * count + j
    lowest, last = -torch.inf, 0  # score and pair at place k, once there are k
    for i, j, block in pair_blocks(vectors, dtype, progress):
        if block.max() < lowest:
            continue
        flat = block.flatten()
        least = lowest
        if least == -torch.inf:  # not yet k pairs: the k best of this block alone will do
            least = flat.topk(min(k, len(flat))).values[-1].item()
        places = ((flat >= least) & (flat > -torch.inf)).nonzero().flatten()
        values = flat[places]
        new = (i + places // block.shape[1]) * count + j + places % block.shape[1]
        # a score that ties with place k wins only by an earlier pair; without this, a million
        # copies sort a million
        wins = (values > lowest) | (new < last)
        scores, pairs = by_score(torch.cat([scores, values[wins]]), torch.cat([pairs, new[wins]]))
        scores, pairs = scores[:k], pairs[:k]
        if len(scores) == k:
            lowest, last = scores[-1].item(), pairs[-1].item()
    if dtype == torch.float32:
        scores = scores_of(vectors, pairs // count, vectors, pairs[:, None] % count).flatten()
        scores, pairs = by_score(scores, pairs)
    return scores.numpy(), torch.stack([pairs // count, pairs % count], dim=1).numpy()


def pair_blocks(
    vectors: Vectors, dtype: torch.dtype, progress: bool
) -> Iterator[tuple[int, int, Tensor]]:
    """Yield blocks of scores (R, C), each with its first row i and column j; minus infinity unless
    row < column.
    """
    starts = range(0, len(vectors), BLOCK)
    blocks = len(starts) * (len(starts) + 1) // 2
    with Bar(total=blocks, desc="comparing", unit=" blocks", shown=progress) as bar:
        for i in starts:
            first = vectors.block(slice(i, i + BLOCK), dtype)  # (R, D)
            within = compare(first, first, vectors.similarity)  # (R, R)
            yield (
                i,
                i,
                within.masked_fill(torch.ones_like(within, dtype=torch.bool).tril(), -torch.inf),
            )
            bar.update()
            for j in range(i + BLOCK, len(vectors), BLOCK):
                yield (
                    i,
                    j,
                    compare(first, vectors.block(slice(j, j + BLOCK), dtype), vectors.similarity),
                )
                bar.update()


def score_dtype(k: int, count: int, similarity: str) -> torch.dtype:
    """Choose how to compute ``count`` scores for k results: float64 if most would be computed again
    anyway.

    Distances too: a float32 difference of two long vectors that are close to each other is mostly
    rounding.
    """
    if k * ALONE >= count or similarity in DISTANCES:
        return torch.float64
    return torch.float32


def compare(a: Tensor, b: Tensor, similarity: str) -> Tensor:
    """Compute the scores (R, C), float32, of blocks (R, D) and (C, D) of ``Vectors``, in the
    blocks' precision.
    """
    if similarity in DISTANCES:
        # subtle: by products of matrices, the default for many rows, a small distance would be
        # rounding error
        return -torch.cdist(
            a, b, DISTANCES[similarity], compute_mode="donot_use_mm_for_euclid_dist"
        ).float()
    if a.dtype == torch.float64:
        return (a @ b.T).float()
    scores = products(a, b)
    if similarity == "cosine":
        # copies have 1 - 6e-8 in one block and 1 + 6e-8 in another: from SAME on, all tie and the
        # index decides
        scores.clamp_(max=SAME)
    return scores


def scores_of(a: Vectors, rows: Tensor, b: Vectors, columns: Tensor) -> Tensor:
    """Compare in float64 each of the rows (n,) of a with the rows ``columns`` (n, k) of b: (n, k)
    float32.
    """
    height = max(1, SINGLES // columns.shape[1])
    scores = torch.empty(columns.shape)
    for start in range(0, len(rows), height):
        some = slice(start, start + height)
        u = a.block(rows[some], torch.float64).unsqueeze(1)  # (R, 1, D)
        v = b.block(columns[some].flatten(), torch.float64).view(len(u), -1, b.width)  # (R, k, D)
        if a.similarity in DISTANCES:
            scores[some] = -torch.linalg.vector_norm(u - v, DISTANCES[a.similarity], dim=2).float()
        else:
            scores[some] = (u * v).sum(dim=2).float()
    return scores


def by_score(scores: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Sort scores (..., n) in descending order and rows (..., n) with them, ties by row.

    ``by_score([0.5, 1, 0.5], [2, 1, 0]) = [1, 0.5, 0.5], [1, 0, 2]``.
    """
    rows, order = rows.sort(
        dim=-1
    )  # by row first: the stable sort leaves equal scores in this order
    scores, best = scores.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return scores, rows.gather(-1, best)
