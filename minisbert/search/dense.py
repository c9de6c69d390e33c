"""Exact search by cosine: the k nearest vectors of a corpus for each query, and the closest pairs of a collection.

A score is the float64 cosine rounded to float32, so that equal vectors get equal scores, and exactly 1 with each other,
in any block. In float32 alone the last digit depends on the block, and with it the order of ties.

Float32 is twice as fast, though, and its error has a bound: a vector whose float32 product is further than that below
the k-th best is not among the k best. So the products of a block are computed in float32, and exact scores only for
the remaining vectors. The full score matrix is never in memory.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from minisbert.core import InputError
from minisbert.core.encoder import cosine_matrix, normalize
from minisbert.search.matrices import Matrix, Source, check_k, error_bound
from minisbert.system.console import Bar
from minisbert.system.torch_internals import laid_out, products

BLOCK = 1024  # vectors at a time; of the corpus of ``top_k`` four times as many: 16 MiB of scores
GROUP = 16  # scores of which at first only the highest is compared
MOST = 2**21  # results of a block of queries
EXACT_PAIRS = 128  # exact scores of single pairs at a time
ALONE = 64  # such a score takes as long as about this many in a block


def top_k(queries: Source, corpus: Source | Matrix, k: int, progress: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The k rows of the corpus (N, D) with the highest cosine to each query (Q, D): scores and indices, (Q, k) each.

    Sorted by score, ties by index. A zero vector has cosine 0 with everything. Needs memory for Q x k results and one
    block; an array on disk (``np.load(path, mmap_mode="r")``) stays there. For many calls of few queries, make a
    ``Matrix`` of the corpus once: checking it takes longer than one query. Raises ``InputError`` if k exceeds the
    corpus, if there are no vectors, if the widths differ, and for NaN or infinity (naming the row).
    """
    queries = Matrix(queries, "queries")
    corpus = corpus if isinstance(corpus, Matrix) else Matrix(corpus, "corpus")
    if queries.width != corpus.width:
        raise InputError(f"queries of width {queries.width} and a corpus of {corpus.width} cannot be compared")
    check_k(k, len(corpus), "the size of the corpus")
    scores = torch.empty(len(queries), k)
    indices = torch.empty(len(queries), k, dtype=torch.int64)
    height = max(1, min(BLOCK, MOST // k))  # queries at a time
    blocks = [(i, j) for i in range(0, len(queries), height) for j in range(0, len(corpus), 4 * BLOCK)]
    for i, j in Bar(blocks, desc="comparing", unit=" blocks", shown=progress):
        rows = slice(i, i + height)
        if j == 0:
            nearest = Nearest(queries, rows, corpus, k)
        nearest.compare(slice(j, j + 4 * BLOCK))
        if j + 4 * BLOCK >= len(corpus):
            nearest.prune(exact=True)
            scores[rows], indices[rows] = nearest.scores.view(-1, k), nearest.columns.view(-1, k)
    return scores.numpy(), indices.numpy()


class Nearest:
    """The candidates for the k nearest of a block of queries (R, D), as the blocks of the corpus go by in order.

    A candidate is a row (of the queries), a column (a row of the corpus) and a score, a float32 product or exact.
    """

    def __init__(self, queries: Matrix, block: slice, corpus: Matrix, k: int):
        self.queries, self.unit, self.corpus, self.k = queries[block], laid_out(queries.unit(block)), corpus, k
        # with many results, exact scores of everything take less time than those of candidates one by one
        self.bound = 0.0 if k * ALONE >= len(corpus) else error_bound(corpus.width)
        self.low = torch.full((len(self.queries),), -torch.inf)  # a lower score is not among the k best of its row
        self.most = 2 * len(self.queries) * k + BLOCK
        self.rows = self.columns = torch.empty(0, dtype=torch.int64)
        self.scores = torch.empty(0)

    def compare(self, block: slice) -> None:
        """Add what may be among the k best from a block (C, D) of the corpus."""
        if self.bound:
            scores = products(self.corpus.unit(block), self.unit)  # (C, R)
        else:
            scores = exact_scores(self.corpus[block], self.queries)
        found = at_least(scores, self.low, self.most)
        for rough in (True, False):
            if found is None:  # as in the first block
                self.raise_low(kth_best(scores, self.k, rough))
                found = at_least(scores, self.low, self.most)
        if found is None:  # ties, or nearly
            best, columns = k_best(exact_scores(self.queries, self.corpus[block]), self.k)  # (R, k)
            rows = torch.arange(len(best)).repeat_interleave(self.k)
            best, columns = best.flatten(), columns.flatten()
        else:
            columns, rows, best = found
        self.rows, self.columns = torch.cat([self.rows, rows]), torch.cat([self.columns, block.start + columns])
        self.scores = torch.cat([self.scores, best])
        if len(self.rows) > self.most:
            self.prune()
            if len(self.rows) > 0.75 * self.most:
                self.prune(exact=True)

    def prune(self, exact: bool = False) -> None:
        """Drop candidates that are not among the k best; if ``exact``, all but the k best, which are then sorted."""
        if exact and self.bound:
            self.prune()  # exact scores are only of those that remain
            self.keep(self.columns.argsort(stable=True))  # the sort by score keeps this order for ties
            self.scores = cosines_of(self.queries, self.rows, self.corpus, self.columns)
        self.keep((self.rows * 2**32 - as_integers(self.scores)).argsort(stable=True))
        rank = torch.arange(len(self.rows)) - torch.searchsorted(self.rows, self.rows)  # 0 for the best of each row
        last = rank == self.k - 1
        low = torch.full_like(self.low, -torch.inf)
        low[self.rows[last]] = self.scores[last]
        self.raise_low(low)
        self.keep(rank < self.k if exact else self.scores >= self.low[self.rows])

    def keep(self, chosen: Tensor) -> None:
        """Keep some candidates, given by a mask or by their places in the order wanted."""
        self.rows, self.columns, self.scores = self.rows[chosen], self.columns[chosen], self.scores[chosen]

    def raise_low(self, scores: Tensor) -> None:
        """Each row has k candidates of at least this score (R,): lower ones are no longer candidates."""
        # subtle: twice the bound, since the k-th best may be worse than its score, and what is below it better
        self.low = torch.maximum(self.low, scores - 2 * self.bound)


def closest_pairs(vectors: Source, k: int, progress: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The k pairs i < j with the highest cosine among vectors (N, D), each pair once: scores (k,) and pairs (k, 2).

    Sorted by score, ties by i, then by j. Needs memory for k pairs and one block. Raises ``InputError`` if k exceeds
    the N (N - 1) / 2 pairs, for fewer than two vectors, and for NaN or infinity.
    """
    vectors = Matrix(vectors, "vectors")
    count = len(vectors)
    check_k(k, count * (count - 1) // 2, "the number of pairs")
    scores, keys = torch.empty(0), torch.empty(0, dtype=torch.int64)  # a pair's key is i * count + j
    lowest = -torch.inf  # of the k best so far; -inf until there are k
    blocks = [(i, j) for i in range(0, count, BLOCK) for j in range(i, count, BLOCK)]
    for i, j in Bar(blocks, desc="comparing", unit=" blocks", shown=progress):
        rows, columns, found = pairs_above(vectors, i, j, lowest)
        if len(rows) == 0:
            continue
        keys, order = torch.cat([keys, rows * count + columns]).sort()
        scores = torch.cat([scores, found])[order]
        best, order = k_best(scores[None], min(k, len(scores)))
        scores, keys = best[0], keys[order[0]]
        if len(scores) == k:
            lowest = scores[-1].item()
    return scores.numpy(), torch.stack([keys // count, keys % count], dim=1).numpy()


def pairs_above(vectors: Matrix, i: int, j: int, lowest: float) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns and scores, (n,) each, of the pairs in the block from row i and column j that reach ``lowest``."""
    first, second = slice(i, i + BLOCK), slice(j, j + BLOCK)
    if lowest > -torch.inf:
        scores = products(vectors.unit(first), vectors.unit(second))  # (R, C)
        low = torch.full((scores.shape[1],), lowest - error_bound(vectors.width))
        found = at_least(scores, low, scores.numel() // ALONE)
    if lowest == -torch.inf or found is None:
        exact = exact_scores(vectors[first], vectors[second])  # (R, C)
        rows, columns = (exact >= lowest).nonzero(as_tuple=True)
        scores = exact[rows, columns]
    else:
        rows, columns, _ = found
        scores = cosines_of(vectors[first], rows, vectors, j + columns)
    rows, columns = i + rows, j + columns
    kept = (rows < columns) & (scores >= lowest)  # no vector with itself, no pair twice
    return rows[kept], columns[kept], scores[kept]


def exact_scores(a: Tensor, b: Tensor) -> Tensor:
    """Exact cosines (R, C), float32, of the rows of a (R, D) with those of b (C, D)."""
    return cosine_matrix(a.double(), b.double()).float()


def cosines_of(a: Tensor, rows: Tensor, b: Matrix, columns: Tensor) -> Tensor:
    """Exact cosines (n,), float32, of the rows (n,) of a (R, D) with the rows ``columns`` (n,) of b (C, D)."""
    a = normalize(a.double())
    parts = zip(rows.split(EXACT_PAIRS), columns.split(EXACT_PAIRS), strict=True)
    return torch.cat([(a[i] * normalize(b[j].double())).sum(dim=1) for i, j in parts]).float()


def at_least(scores: Tensor, low: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor] | None:
    """Rows, columns and values, (n,) each, of the scores (R, C) that reach ``low`` (C,); None if n exceeds ``most``.

    Rows ascend within each column.
    """
    if missing := -len(scores) % GROUP:
        scores = pad(scores, (0, 0, 0, missing), value=-torch.inf)
    scores = scores.view(-1, GROUP, len(low))  # (R / GROUP, GROUP, C)
    # most groups have none: to compare only the highest of each takes a fifth of the time
    groups, columns = (scores.amax(dim=1) >= low).nonzero(as_tuple=True)
    if len(groups) > most:
        return None
    members = scores[groups, :, columns]  # (groups, GROUP)
    which, within = ((members >= low[columns, None]) & (members > -torch.inf)).nonzero(as_tuple=True)
    if len(which) > most:
        return None
    return groups[which] * GROUP + within, columns[which], members[which, within]


def kth_best(scores: Tensor, k: int, rough: bool) -> Tensor:
    """The k-th highest score (C,) of each column of (R, C); if ``rough``, that or a lower one, ten times as fast."""
    whole = len(scores) // GROUP
    if rough and k <= whole:  # k groups with a maximum of at least x have k scores of at least x
        scores = scores[: whole * GROUP].view(whole, GROUP, -1).amax(dim=1)  # (R / GROUP, C)
    return scores.topk(k, dim=0).values[-1]


def as_integers(scores: Tensor) -> Tensor:
    """Float32 scores to int64 in the same order, of less than 2^31."""
    bits = scores.view(torch.int32).long()  # the first is the sign, the others are the size
    return torch.where(bits < 0, -(2**31) - bits, bits)  # also of -0.0, which is 0 as 0.0 is


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
