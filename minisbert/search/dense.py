"""Search dense vectors exactly: the k nearest of a corpus, and the closest pairs of a collection.

Every vector is compared with every other, in float32 and block by block. Only the k best so far
survive a block, so the full score matrix is never in memory. The scores of the results are computed
again in float64 and rounded to float32: they do not depend on the blocks, and equal vectors have a
cosine of exactly 1. The similarity is the cosine, the dot product, or minus a distance; distances
have no fast product and are computed in float64 throughout.
"""

import math
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

BLOCK = 1024  # vectors compared at a time
# ``top_k`` takes the corpus in blocks that are this many times as large: 16 MiB of scores.
CORPUS_FACTOR = 4
# A block of queries has at most so many results in all, because ``add_scores`` copies them into
# tables.
MOST_RESULTS = 2**21
GROUP = 16  # neighbouring rows of the corpus that are skipped at once if their highest score is low

# The scores of the results are computed again in float64, pair by pair. So many pairs are in memory
# at a time: their vectors stay in the cache.
EXACT_PAIRS = 128
# Such a score takes about as long as this many scores of a matrix product.
EXACT_COST = 64

# In float32 a vector and its copy have at least this cosine. It takes the place of all higher ones.
HIGHEST_COSINE = 1 - 2**-20
UNIT_ERROR = 2**-22  # by how much the length of a vector may differ from 1 that a model has scaled

# Between these two lengths a vector's squares neither vanish nor overflow in float32, nor does the
# product of two such vectors.
SAFE_LENGTH = 1e-12
LARGEST_LENGTH = 1e18
ZERO_LENGTH = 1e-150  # a shorter vector counts as zero: its squares vanish in float64, too
# The p of each distance's norm: a sum of absolute values, the root of a sum of squares.
DISTANCES = {"manhattan": 1, "euclidean": 2}


class ReadByRows:
    """Vectors (N, D) that are made when they are asked for.

    A subclass returns the rows of a slice, or those with the numbers of an array.
    """

    ndim = 2
    shape: tuple[int, int]
    dtype: np.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        raise NotImplementedError


VectorSource = np.ndarray | Tensor | ReadByRows


class Vectors:
    """Vectors (N, D) of any kind, read in blocks: an array on disk is never in memory as a whole.

    Messages call them by ``name``; ``similarity`` is how they will be compared. Raises
    ``InputError`` for an unknown similarity, and for anything but a non-empty (N, D) of real
    numbers.
    """

    def __init__(self, source: VectorSource, name: str, similarity: str = "cosine"):
        names = ("cosine", "dot", *DISTANCES)
        if similarity not in names:
            raise InputError(f"similarity must be one of {', '.join(names)}, got {similarity!r}")
        # Errors of the conversion, and of a wrong shape, become an ``InputError`` with the name.
        with reading(f"the {name}"):
            if isinstance(source, Tensor):
                source = source.detach().cpu()
            elif not isinstance(source, ReadByRows):
                source = np.asanyarray(source)
            check_shape("vectors", source, None, None)
        if isinstance(source, Tensor):
            is_real = not source.is_complex()
        else:
            is_real = np.can_cast(source.dtype, np.float64)
        if not is_real:
            raise InputError(f"the {name} must be real numbers, got {source.dtype}")
        self.source = source
        self.name = name
        self.similarity = similarity
        self.width = source.shape[1]

    def __len__(self) -> int:
        return len(self.source)

    def block(self, rows: slice | Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return rows (R, D), a slice or the rows with these numbers.

        For the cosine they are scaled to length 1; zero vectors stay zero. Raises ``InputError``
        for NaN, infinity and numbers too large to compare.
        """
        x = self._read(rows)
        # float64 and integers keep their digits until they are scaled.
        if x.is_floating_point() and x.dtype != torch.float64:
            x = x.to(dtype)
        else:
            x = x.to(torch.float64)

        lengths = torch.linalg.vector_norm(x, dim=1, keepdim=True)  # (R, 1)
        # subtle: comparisons with NaN are false, so that NaN comes into this branch, too
        if not (lengths.min() > SAFE_LENGTH and lengths.max() < LARGEST_LENGTH):
            x = x.double()
            lengths = torch.linalg.vector_norm(x, dim=1, keepdim=True)
            self._check_lengths(lengths.flatten(), rows)
            lengths = lengths.clamp_min(ZERO_LENGTH)

        if self.similarity != "cosine":
            return x.to(dtype)
        # In float32, vectors that a model has scaled are used as they are: dividing by 1 + 1e-8
        # costs a copy and only rounds again.
        if dtype == torch.float64 or (lengths - 1).abs().max() > UNIT_ERROR:
            x = x / lengths
        return x.to(dtype)

    def _check_lengths(self, lengths: Tensor, rows: slice | Tensor) -> None:
        """Raise ``InputError`` for the first of the rows whose length (R,) cannot be used."""
        limit = math.inf
        if self.similarity != "cosine":
            limit = LARGEST_LENGTH  # nothing is scaled, so the scores must fit float32
        usable = lengths < limit  # False for NaN
        if usable.all():
            return

        if isinstance(rows, slice):
            rows = torch.arange(rows.start, rows.start + len(lengths))
        row = int(rows[~usable][0])
        raise InputError(
            f"the {self.name}, row {row}: NaN, infinity or a number too large to square"
        )

    def _read(self, rows: slice | Tensor) -> Tensor:
        """Read rows in the dtype that they have, without a copy if NumPy can do without."""
        if isinstance(self.source, Tensor):
            return self.source[rows]
        if isinstance(rows, Tensor):
            rows = rows.numpy()
        block = self.source[rows]
        # torch reads this machine's byte order only.
        block = np.ascontiguousarray(block, block.dtype.newbyteorder("="))
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
    queries: VectorSource,
    corpus: VectorSource,
    k: int,
    progress: bool = False,
    similarity: str = "cosine",
    *,
    block: int = BLOCK,
    dtype: torch.dtype | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Find the k rows of the corpus (N, D) most similar to each query (Q, D).

    Returns scores and indices, (Q, k) each, sorted by score, ties by index. ``similarity`` is
    "cosine", "dot", or minus the "euclidean" or "manhattan" distance. A zero vector has cosine 0
    with everything.

    The k rows are chosen in float32. One exception: at place k, two rows whose cosines differ by
    less than 1e-6, or whose dot products by less than 1e-6 of the lengths' product, may swap.

    Needs memory for Q x k results and one block, of ``block`` queries; an array on disk
    (``np.load(path, mmap_mode="r")``) stays there. ``dtype`` is that of the comparison, by default
    the faster one that is exact enough. Raises ``InputError`` if k exceeds the corpus, if there are
    no vectors, if the widths differ, and for NaN or infinity (naming the row).
    """
    queries = Vectors(queries, "queries", similarity)
    corpus = Vectors(corpus, "corpus", similarity)
    if queries.width != corpus.width:
        raise InputError(
            f"queries have width {queries.width} and the corpus {corpus.width}: the widths must be "
            f"equal"
        )
    check_k(k, len(corpus), "the corpus size")
    if dtype is None:
        dtype = score_dtype(k, len(corpus), similarity)

    # The best so far of each query, in descending order.
    scores = torch.full((len(queries), k), -torch.inf)
    rows = torch.zeros((len(queries), k), dtype=torch.int64)
    height = max(1, min(block, MOST_RESULTS // k))
    width = CORPUS_FACTOR * block
    query_starts = range(0, len(queries), height)
    corpus_starts = range(0, len(corpus), width)
    blocks = len(query_starts) * len(corpus_starts)
    with Bar(total=blocks, desc="comparing", unit=" blocks", shown=progress) as bar:
        for i in query_starts:
            query_rows = slice(i, i + height)
            query_block = queries.block(query_rows, dtype)  # (R, D)
            if dtype == torch.float32:
                # It is multiplied with every block of the corpus, so the layout pays.
                query_block = laid_out(query_block)
            for j in corpus_starts:
                corpus_block = corpus.block(slice(j, j + width), dtype)  # (C, D)
                block_scores = compare(corpus_block, query_block, similarity)  # (C, R)
                update_best(scores[query_rows], rows[query_rows], block_scores, j)
                bar.update()

    # float32 has chosen the rows. Their scores are computed exactly, which may order neighbours
    # differently.
    if dtype == torch.float32:
        scores = scores_of(queries, torch.arange(len(queries)), corpus, rows)
        scores, rows = by_score(scores, rows)
    return scores.numpy(), rows.numpy()


def update_best(best: Tensor, rows: Tensor, scores: Tensor, start: int) -> None:
    """Update each query's k best with the scores of another block of the corpus, in place.

    best and rows (R, k) are the k best scores and their rows in the corpus; scores (C, R) are those
    of the rows from ``start`` on. A plain ``topk`` of C + k scores for each query takes longer than
    the matrix product that made them. But most of them are below the query's k-th best, and whole
    groups of them at once. With a k-th best of .5:

        scores of one query         [.1 .3 ... .2]  [.9 .4 ... .8]  [.2 .1 ... .0]
        highest of each group             .3              .9              .2
        groups above .5                                   .9
        scores of these above .5                    [.9     ...  .8]      join the k best
    """
    queries, places, values = scores_to_add(best, scores)
    if len(values):
        add_scores(best, rows, queries, start + places, values)


def scores_to_add(best: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find those of the scores (C, R) that may be among the k best.

    Returns the query, the place from 0 to C - 1, and the score of each, (m,); the queries ascend,
    and for each query the places do.
    """
    # The last group of neighbouring rows is filled up, with rows below the others.
    missing = -len(scores) % GROUP
    if missing:
        scores = pad(scores, (0, 0, 0, missing), value=-torch.inf)
    groups = scores.view(-1, GROUP, len(best))  # (G, GROUP, R)
    highest = groups.amax(dim=1)  # (G, R)

    # The n groups that hold such a score: for which query, and the number of the group. ``nonzero``
    # goes row by row, so that of the transposed table the queries ascend.
    limit = score_to_beat(best, highest)  # (R,)
    group_queries, group_numbers = (highest > limit).T.nonzero(as_tuple=True)  # (n,) each

    # The m scores in these groups, by their line and column in ``values``.
    values = groups[group_numbers, :, group_queries]  # (n, GROUP)
    line, column = (values > limit[group_queries, None]).nonzero(as_tuple=True)  # (m,) each
    queries = group_queries[line]
    places = GROUP * group_numbers[line] + column
    return queries, places, values[line, column]


def score_to_beat(best: Tensor, highest: Tensor) -> Tensor:
    """Return what a score must exceed to be among a query's k best, (R,).

    It is the k-th best so far, the last column of ``best`` (R, k). A score that only equals it
    stays out: its row comes later, and of equal scores the earlier row wins.

    In the first blocks nearly all scores exceed the k-th best so far. There a second bound helps:
    if more than k groups have such scores, the k-th of the groups' ``highest`` (G, R), because k
    scores of this block reach it.
    """
    k = best.shape[1]
    limit = best[:, -1]
    if len(highest) <= k:
        return limit  # never more than k groups exceed it
    groups_above = (highest > limit).sum(dim=0)  # (R,)
    if groups_above.max() > k:
        bound = highest.topk(k, dim=0).values[-1]  # (R,)
        # subtle: just below the bound, because scores equal to it stay in
        limit = limit.maximum(bound.nextafter(torch.tensor(-torch.inf)))
    return limit


def add_scores(
    best: Tensor, rows: Tensor, queries: Tensor, new_rows: Tensor, new_scores: Tensor
) -> None:
    """Merge new scores into the k best, (R, k) scores and rows, in place.

    queries (m,) says whose each new score is, ascending; ``new_rows`` are later than those in
    ``rows``, and ascend for each query.
    """
    # A table gets a line for each query that has new scores, L of them. ``changed`` (L,) are these
    # queries, ``line`` (m,) says into which line each new score goes, ``counts`` (L,) how many go
    # into each.
    changed, line, counts = queries.unique_consecutive(return_inverse=True, return_counts=True)
    # In a line the k best come first: its first new score goes into column k, the next into k + 1.
    k = best.shape[1]
    # Where the new scores of each line begin among the m.
    first = counts.cumsum(0) - counts  # (L,)
    column = k + torch.arange(len(queries)) - first[line]  # (m,)

    # Shorter lines are filled up with minus infinity.
    all_scores = torch.full((len(changed), k + int(counts.max())), -torch.inf)
    all_rows = torch.zeros_like(all_scores, dtype=torch.int64)
    all_scores[:, :k] = best[changed]
    all_rows[:, :k] = rows[changed]
    all_scores[line, column] = new_scores
    all_rows[line, column] = new_rows

    # subtle: not topk, which chooses freely among equal scores. Equal scores stand in the order of
    # their rows, and a stable sort leaves them so
    all_scores, order = all_scores.sort(dim=1, descending=True, stable=True)
    best[changed] = all_scores[:, :k]
    rows[changed] = all_rows.gather(1, order[:, :k])


def closest_pairs(
    vectors: VectorSource,
    k: int,
    progress: bool = False,
    similarity: str = "cosine",
    *,
    block: int = BLOCK,
    dtype: torch.dtype | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Find the k most similar pairs i < j among vectors (N, D): scores (k,) and pairs (k, 2).

    Sorted by score, ties by i, then by j; ``similarity``, ``block``, ``dtype`` and exactness are as
    in ``top_k``. Needs memory for k pairs and one block. Raises ``InputError`` if k exceeds the
    N (N - 1) / 2 pairs, for fewer than two vectors, and for NaN or infinity.
    """
    vectors = Vectors(vectors, "vectors", similarity)
    count = len(vectors)
    pair_count = count * (count - 1) // 2
    check_k(k, pair_count, "the number of pairs")
    if dtype is None:
        dtype = score_dtype(k, pair_count, similarity)

    # The pair (i, j) is kept as the number i * count + j, so that to sort by i and then by j is to
    # sort numbers.
    scores = torch.empty(0)
    pairs = torch.empty(0, dtype=torch.int64)
    for i, j, block_scores in pair_blocks(vectors, block, dtype, progress):
        # What a score must reach: place k of all so far, or of this block while there are fewer.
        flat = block_scores.flatten()
        have_k = len(scores) == k
        if have_k:
            limit = scores[-1].item()
            if flat.max() < limit:
                continue
        else:
            limit = flat.topk(min(k, len(flat))).values[-1].item()

        places = ((flat >= limit) & (flat > -torch.inf)).nonzero().flatten()
        new_scores = flat[places]
        width = block_scores.shape[1]
        firsts = i + places // width
        seconds = j + places % width
        new_pairs = firsts * count + seconds
        # A score that ties with place k wins only by an earlier pair. Without this, a million
        # copies would sort a million pairs in every block.
        if have_k:
            wins = (new_scores > limit) | (new_pairs < pairs[-1])
            new_scores = new_scores[wins]
            new_pairs = new_pairs[wins]
        scores, pairs = by_score(torch.cat([scores, new_scores]), torch.cat([pairs, new_pairs]))
        scores = scores[:k]
        pairs = pairs[:k]

    # As in ``top_k``, what float32 has chosen gets its exact scores.
    if dtype == torch.float32:
        firsts = pairs // count
        seconds = pairs % count
        scores = scores_of(vectors, firsts, vectors, seconds[:, None]).flatten()
        scores, pairs = by_score(scores, pairs)
    both_rows = torch.stack([pairs // count, pairs % count], dim=1)  # (k, 2)
    return scores.numpy(), both_rows.numpy()


def pair_blocks(
    vectors: Vectors, block: int, dtype: torch.dtype, progress: bool
) -> Iterator[tuple[int, int, Tensor]]:
    """Yield blocks of scores, (i, j, (R, C)): of the rows from i on with those from j on.

    Together they have every pair once: a score is minus infinity unless its row is before its
    column.
    """
    starts = range(0, len(vectors), block)
    blocks = len(starts) * (len(starts) + 1) // 2
    with Bar(total=blocks, desc="comparing", unit=" blocks", shown=progress) as bar:
        for i in starts:
            first = vectors.block(slice(i, i + block), dtype)  # (R, D)
            scores = compare(first, first, vectors.similarity)  # (R, R)
            not_before = torch.ones_like(scores, dtype=torch.bool).tril()
            yield i, i, scores.masked_fill(not_before, -torch.inf)
            bar.update()
            for j in range(i + block, len(vectors), block):
                second = vectors.block(slice(j, j + block), dtype)  # (C, D)
                yield i, j, compare(first, second, vectors.similarity)
                bar.update()


def score_dtype(k: int, count: int, similarity: str) -> torch.dtype:
    """Choose in which dtype to compute ``count`` scores for k results.

    float32 is faster, but then the k scores are computed again in float64: for many results it does
    not pay. Distances are always float64: a float32 difference of two long vectors that are close
    to each other is mostly rounding.
    """
    if similarity in DISTANCES or k * EXACT_COST >= count:
        return torch.float64
    return torch.float32


def compare(a: Tensor, b: Tensor, similarity: str) -> Tensor:
    """Compute the scores (R, C) of blocks (R, D) and (C, D) of ``Vectors``.

    They are float32, computed in the blocks' own precision.
    """
    if similarity in DISTANCES:
        # subtle: by products of matrices, the default for many rows, a small distance would be
        # rounding error
        by_difference = "donot_use_mm_for_euclid_dist"
        return -torch.cdist(a, b, DISTANCES[similarity], compute_mode=by_difference).float()
    if a.dtype == torch.float64:
        return (a @ b.T).float()
    scores = products(a, b)
    if similarity == "cosine":
        # Copies have 1 - 6e-8 in one block and 1 + 6e-8 in another. Cut off, they tie, and the
        # index decides.
        scores.clamp_(max=HIGHEST_COSINE)
    return scores


def scores_of(a: Vectors, rows: Tensor, b: Vectors, columns: Tensor) -> Tensor:
    """Compare in float64 each row of a with k rows of b.

    ``rows`` (n,) are numbers of rows of a, ``columns`` (n, k) those of b. Returns (n, k), float32.
    """
    height = max(1, EXACT_PAIRS // columns.shape[1])
    scores = torch.empty(columns.shape)
    for start in range(0, len(rows), height):
        part = slice(start, start + height)
        u = a.block(rows[part], torch.float64).unsqueeze(1)  # (R, 1, D)
        v = b.block(columns[part].flatten(), torch.float64).view(len(u), -1, b.width)  # (R, k, D)
        if a.similarity in DISTANCES:
            distances = torch.linalg.vector_norm(u - v, DISTANCES[a.similarity], dim=2)
            scores[part] = -distances.float()
        else:
            scores[part] = (u * v).sum(dim=2).float()
    return scores


def by_score(scores: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Sort scores (..., n) in descending order and rows (..., n) with them, ties by row.

    ``by_score([0.5, 1, 0.5], [2, 1, 0]) = [1, 0.5, 0.5], [1, 0, 2]``.
    """
    # By row first: the stable sort by score leaves equal scores in this order.
    rows, order = rows.sort(dim=-1)
    scores, best = scores.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return scores, rows.gather(-1, best)
