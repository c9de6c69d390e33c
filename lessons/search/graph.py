"""HNSW, an index for approximate search: a graph in which a walk leads to the best vectors."""

import math
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

import numpy as np

Links = Mapping[int, Sequence[int]] | Sequence[Sequence[int]]


def walk(
    vectors: np.ndarray, links: Links, query: np.ndarray, start: int, width: int
) -> tuple[list[int], int]:
    """The nodes that fit a query best, found by walking from ``start`` along ``links[node]``, and
    how many were read.

    vectors (N, D), query (D,). The best node ahead is visited next, and its neighbours that are new
    are read. The walk keeps the best ``width`` nodes that it has read, and ends when the best node
    ahead fits worse than all of them (Malkov and Yashunin 2016, algorithm 2). Nodes come best
    first, equal ones by their number. On a line of nodes with vectors 1, 2, 3, 4, ``links = [[1],
    [0, 2], [1, 3], [2]]``, the walk from node 0 with query 1 and width 2 finds [3, 2].
    """
    score = float(vectors[start] @ query)
    read = {start}
    ahead = [(-score, start)]  # a heap, best first
    found = [(score, start)]  # a heap, worst first
    while ahead:
        score, node = heappop(ahead)
        if len(found) == width and -score < found[0][0]:
            break
        new = [other for other in links[node] if other not in read]
        read.update(new)
        for score, other in zip((vectors[new] @ query).tolist(), new, strict=True):
            if len(found) < width or score > found[0][0]:
                heappush(ahead, (-score, other))
                heappush(found, (score, other))
            if len(found) > width:
                heappop(found)
    best = sorted(found, key=lambda pair: (-pair[0], pair[1]))
    return [node for _, node in best], len(read)


class Graph:
    """An index over vectors (N, D) of length 1 (Malkov and Yashunin 2016, algorithms 1, 4 and 5).

    All nodes are on level 0; on each level above there are 1 / ``links`` of those below, for long
    steps. A node has at most ``links`` neighbours, on level 0 twice as many; ``width`` is that of
    the walks that find them. What ``diverse`` means, ``choose`` says.
    """

    def __init__(
        self,
        vectors: np.ndarray,
        links: int = 12,
        width: int = 60,
        diverse: bool = True,
        seed: int = 0,
    ):
        self.vectors = vectors
        self.links = links
        self.width = width
        self.diverse = diverse

        # The highest level of each node is random: each level has 1 / links of those below.
        chance = np.random.default_rng(seed).random(len(vectors))
        heights = (-np.log(1 - chance) / math.log(links)).astype(int)  # (N,)
        self.start = int(heights.argmax())
        self.levels: list[dict[int, list[int]]] = []
        for _ in range(heights.max() + 1):
            self.levels.append({self.start: []})
        for node, height in enumerate(heights):
            if node != self.start:
                self.insert(node, height)

    def insert(self, node: int, height: int) -> None:
        """Link a node on its levels to the nodes that a walk finds for it, and them to it."""
        start = self.start
        for level, links in reversed([*enumerate(self.levels)]):
            width = self.width if level <= height else 1
            found, _ = walk(self.vectors, links, self.vectors[node], start, width)
            if level <= height:
                most = self.links if level else 2 * self.links
                links[node] = self.choose(node, found, self.links)
                for other in links[node]:
                    links[other].append(node)
                    if len(links[other]) > most:
                        links[other] = self.choose(other, links[other], most)
            start = found[0]

    def choose(self, node: int, candidates: list[int], most: int) -> list[int]:
        """The neighbours of a node, closest first. If ``diverse``, none that is closer to another
        one than to it.
        """
        scores = self.vectors[candidates] @ self.vectors[node]  # (C,)
        between = self.vectors[candidates] @ self.vectors[candidates].T  # (C, C)
        kept: list[int] = []
        for i in np.argsort(-scores, kind="stable").tolist():
            if not self.diverse or not (between[i, kept] > scores[i]).any():
                kept.append(i)
            if len(kept) == most:
                break
        return [candidates[i] for i in kept]

    def search(self, query: np.ndarray, k: int, width: int) -> tuple[list[int], int]:
        """The k nodes that fit best, of the ``width`` that a walk finds, and how many vectors were
        read.
        """
        start = self.start
        total = 0
        for links in reversed(self.levels[1:]):
            found, read = walk(self.vectors, links, query, start, 1)
            start = found[0]
            total += read
        found, read = walk(self.vectors, self.levels[0], query, start, max(k, width))
        return found[:k], total + read
