"""Mistakes in search: the nearest vectors, BM25, ranks, MaxSim, the walk through an index."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import numpy as np
import torch
from torch import Tensor

from lessons.mistakes.calls import calls
from lessons.mistakes.planting import mistake
from lessons.search import bm25, fusion, graph
from lessons.search.graph import Links
from minisbert.search import by_tokens, dense

Words = Sequence[Sequence[str]]

# -------------------------------------------------------------------------------------------- top_k


def top_k_with(
    queries,
    corpus,
    k,
    progress=False,
    *,
    unit="both",
    dtype=torch.float64,
    sign=1,
    last_first=False,
    stable=True,
) -> tuple[np.ndarray, np.ndarray]:
    """The k highest scores of each row, (Q, k), and their columns; of equal scores the first, or
    the last.
    """
    q, c = (torch.as_tensor(x).to(dtype) for x in (queries, corpus))
    if unit in ("both", "queries"):
        q = q / q.norm(dim=1, keepdim=True).clamp_min(1e-12)
    if unit == "both":
        c = c / c.norm(dim=1, keepdim=True).clamp_min(1e-12)
    scores = sign * (q @ c.T).float()
    if not stable:
        return tuple(x.numpy() for x in scores.topk(k))
    values, columns = (scores.flip(1) if last_first else scores).sort(
        dim=1, descending=True, stable=True
    )
    columns = scores.shape[1] - 1 - columns if last_first else columns
    return sign * values[:, :k].numpy(), columns[:, :k].numpy()


nearest = calls(dense, "top_k", top_k_with)
nearest(
    "search by dot product", "long vectors of the corpus win, whatever they mean", unit="queries"
)
nearest("nothing is scaled", "these are dot products: neither side is scaled to length 1", unit="")
nearest(
    "ties in any order",
    "torch.topk promises no order of equal scores: sort with stable=True",
    stable=False,
)
ROUNDING = "rounding, not the cosine, decides the order of close vectors"
nearest("search in float32", ROUNDING, dtype=torch.float32)
nearest(
    "of ties the last first",
    "equal scores come in the reverse order of the corpus",
    last_first=True,
)
nearest("worst first", "the k lowest scores are returned", sign=-1)

# --------------------------------------------------------------------------------------------- BM25

IDF: dict[str, Callable[[int, float], float]] = {
    "right": lambda total, n: math.log(1 + (total - n + 0.5) / (n + 0.5)),
    "without 1 +": lambda total, n: math.log((total - n + 0.5) / (n + 0.5)),
    "without halves": lambda total, n: math.log(total / max(n, 1)),
    "none": lambda total, n: 1.0,
    "base 10": lambda total, n: math.log10(1 + (total - n + 0.5) / (n + 0.5)),
    # with more occurrences than documents the logarithm would fall below 0: as students write it,
    # it may
    "any n": lambda total, n: math.log(max(1 + (total - n + 0.5) / (n + 0.5), 1e-12)),
}


def bm25_with(
    queries: Words,
    documents: Words,
    k1: float = 1.2,
    b: float = 0.75,
    *,
    idf: str = "right",
    occurrences: bool = False,
    plus: float = 0.0,
    saturated: bool = True,
    once: bool = False,
) -> np.ndarray:
    """n counts ``occurrences`` instead of documents; ``plus`` k1 in the numerator; query words
    count ``once``.
    """
    counts = [Counter(document) for document in documents]
    lengths = np.array([len(document) for document in documents], dtype=np.float64)
    norms = k1 * (1 - b + b * lengths / lengths.mean())
    scores = np.zeros((len(queries), len(documents)))
    for row, query in enumerate(queries):
        for word in dict.fromkeys(query) if once else query:
            tf = np.array([count[word] for count in counts], dtype=np.float64)
            n = float(tf.sum()) if occurrences else int((tf > 0).sum())
            scores[row] += (
                IDF[idf](len(documents), n) * (1 + plus * k1) * tf / (tf * saturated + norms)
            )
    return scores


scored = calls(bm25, "bm25_scores", bm25_with)
scored(
    "idf without the 1 +",
    "a word that most documents have counts against a document",
    idf="without 1 +",
)
scored("ln(N / n)", "the idf is the plain ln(N / n), without the halves", idf="without halves")
scored("no idf", "a rare word counts no more than a common one", idf="none")
scored("logarithm of base 10", "the idf is in base 10", idf="base 10")
COUNTED = "n counts how often the word occurs, not in how many"
scored("occurrences counted as documents", COUNTED, idf="any n", occurrences=True)
scored("length ignored", "the length of a document plays no part", b=0.0)
scored("length in full", "the document's length counts in full: b is not used", b=1.0)
scored(
    "(k1 + 1) in the numerator",
    "every score is k1 + 1 times as large: the order is the same",
    plus=1.0,
)
scored(
    "tf not saturated",
    "tf is not divided by tf + ...: a word that is repeated counts in full",
    saturated=False,
)
scored("query words once", "a word that the query has twice counts once", once=True)


@mistake(bm25, "bm25_scores", "k1 and b swapped", "k1 and b have changed places")
def _(queries: Words, documents: Words, k1: float = 1.2, b: float = 0.75) -> np.ndarray:
    return bm25_with(queries, documents, b, k1)


# --------------------------------------------------------------------------------- reciprocal ranks


def ranks_with(
    scores: np.ndarray,
    k: int = 60,
    *,
    first: int = 1,
    sign: int = -1,
    inverse: bool = True,
    together: bool = False,
    shared: bool = False,
    last: bool = False,
) -> np.ndarray:
    """Of equal scores the ``last`` column comes first, or all have a ``shared`` rank, the best of
    theirs.
    """
    scores = sign * np.asarray(scores)
    rows = scores.reshape(1, -1) if together else scores[:, ::-1] if last else scores
    places = np.argsort(rows, axis=1, kind="stable")
    if inverse:
        places = places.argsort(axis=1)  # the place of each column from 0 on
    if shared:
        places = (scores[:, None, :] < scores[:, :, None]).sum(axis=2)
    places = places[:, ::-1] if last else places.reshape(scores.shape)
    return 1 / np.maximum(k + first + places, 1e-3)


ranked = calls(fusion, "reciprocal_ranks", ranks_with)
ranked(
    "order taken for ranks",
    "the columns from the best on are not the columns' ranks",
    inverse=False,
)
ranked("reciprocal ranks from 0", "the best document has rank 0 in place of 1", first=0)
ranked("lowest score ranked first", "the lowest score has rank 1", sign=1)
ranked("ranked over all queries", "the documents of all queries are in one ranking", together=True)
ranked("k fixed at 60", "the k that was given is not used", k=60)
ranked("equal scores share a rank", "equal scores have one rank, the best of them", shared=True)
ranked("ties by the last column", "of equal scores the last column is first", last=True)

# ------------------------------------------------------------------------------------------- MaxSim


def max_sim_with(
    query: Tensor,
    document: Tensor,
    *,
    axis: int | None = 1,
    least: float = -math.inf,
    mean: bool = False,
) -> Tensor:
    """``axis`` is the one along which the best is sought, None for no maximum."""
    found = query @ document.T
    best = (found if axis is None else found.amax(axis)).clamp_min(least)
    return best.mean() if mean else best.sum()


matched = calls(by_tokens, "max_sim", max_sim_with)
matched("sides exchanged", "each token of the document seeks its best in the query", axis=0)
matched("best matches averaged", "the mean of the best matches, not their sum", mean=True)
matched("no maximum over tokens", "all pairs of tokens are summed up", axis=None)
matched("best matches below 0 dropped", "a token without a partner adds nothing", least=0.0)

# ----------------------------------------------------------------------------------------- the walk


def walk_with(
    vectors: np.ndarray,
    links: Links,
    query: np.ndarray,
    start: int,
    width: int,
    *,
    ends: bool = True,
    patient: bool = True,
    again: bool = False,
    ahead_sign: int = -1,
    sign: int = 1,
) -> tuple[list[int], int]:
    """``ends`` when the best ahead is worse than the worst found, or if not ``patient`` than the
    best one. ``again`` counts a node each time that it is met; ``ahead_sign`` 1 visits the worst
    one first; ``sign`` is that of the scores.
    """
    first = sign * float(vectors[start] @ query)
    seen, count = {start}, 1
    ahead, found = [(ahead_sign * first, start)], [(first, start)]
    while ahead:
        score, node = heappop(ahead)
        bar = found[0][0] if patient else max(found)[0]
        if ends and ahead_sign * score < bar and (len(found) == width or not patient):
            break
        for other in links[node]:
            count += again and other in seen
            if other in seen:
                continue
            seen.add(other)
            score = sign * float(vectors[other] @ query)
            if len(found) < width or score > found[0][0]:
                heappush(ahead, (ahead_sign * score, other))
                heappush(found, (score, other))
            if len(found) > width:
                heappop(found)
    best = sorted(found, key=lambda pair: (-pair[0], pair[1]))
    return [node for _, node in best], len(seen) + count - 1


walked = calls(graph, "walk", walk_with)
walked(
    "the walk ends on the first hill",
    "it ends when the best ahead is worse than the best found",
    patient=False,
)
walked(
    "nodes counted again", "a neighbour that was read before is read and counted again", again=True
)
walked("worst node ahead first", "the worst node ahead is visited next", ends=False, ahead_sign=1)
walked("the walk goes downhill", "the nodes with the lowest products are found", sign=-1)


@mistake(graph, "walk", "walk without an end", "nothing ends the walk while there is a node ahead")
def _(
    vectors: np.ndarray, links: Links, query: np.ndarray, start: int, width: int
) -> tuple[list[int], int]:
    """Every node that can be reached is visited: nodes that are not kept are visited too."""
    nodes, read = walk_with(vectors, links, query, start, len(vectors), ends=False)
    return nodes[:width], read


@mistake(graph, "walk", "nodes worst first", "the nodes come with the worst one first")
def _(
    vectors: np.ndarray, links: Links, query: np.ndarray, start: int, width: int
) -> tuple[list[int], int]:
    nodes, read = walk_with(vectors, links, query, start, width)
    return nodes[::-1], read


@mistake(
    graph,
    "walk",
    "the start is not found",
    "the node where the walk begins is not among the results",
)
def _(
    vectors: np.ndarray, links: Links, query: np.ndarray, start: int, width: int
) -> tuple[list[int], int]:
    nodes, read = walk_with(vectors, links, query, start, width)
    return [node for node in nodes if node != start], read
