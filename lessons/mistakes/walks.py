"""Mistakes in the walk of lesson 21."""

from heapq import heappop, heappush

import numpy as np

from lessons.search import graph
from lessons.search.graph import Links
from minisbert.diagnosis.mistakes import mistake

Found = tuple[list[int], int]


def _walk(
    vectors: np.ndarray,
    links: Links,
    query: np.ndarray,
    start: int,
    width: int,
    ends: bool = True,
    patient: bool = True,
    again: bool = False,
    ahead_sign: int = -1,
    sign: int = 1,
) -> Found:
    """``ends`` when the best ahead is worse than the worst found, or if not ``patient`` than the best one. ``again``
    counts a node each time that it is met; ``ahead_sign`` 1 visits the worst one first; ``sign`` is that of the scores.
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


@mistake(graph, "walk", "walk without an end", "nothing ends the walk while there is a node ahead")
def _(vectors: np.ndarray, links: Links, query: np.ndarray, start: int, width: int) -> Found:
    """Every node that can be reached is visited: nodes that are not kept are visited too."""
    nodes, reached = [start], {start}
    for node in nodes:
        for other in links[node]:
            if other not in reached:
                reached.add(other)
                nodes.append(other)
    scores = vectors[nodes] @ query
    best = sorted(zip((-scores).tolist(), nodes, strict=True))[:width]
    return [node for _, node in best], len(nodes)


@mistake(graph, "walk", "the walk ends on the first hill", "it ends when the best ahead is worse than the best found")
def _(vectors: np.ndarray, links: Links, query: np.ndarray, start: int, width: int) -> Found:
    return _walk(vectors, links, query, start, width, patient=False)


@mistake(graph, "walk", "nodes counted again", "a neighbour that was read before is read and counted again")
def _(vectors: np.ndarray, links: Links, query: np.ndarray, start: int, width: int) -> Found:
    return _walk(vectors, links, query, start, width, again=True)


@mistake(graph, "walk", "worst node ahead first", "the worst node ahead is visited next")
def _(vectors: np.ndarray, links: Links, query: np.ndarray, start: int, width: int) -> Found:
    return _walk(vectors, links, query, start, width, ends=False, ahead_sign=1)


@mistake(graph, "walk", "the walk goes downhill", "the nodes with the lowest products are found")
def _(vectors: np.ndarray, links: Links, query: np.ndarray, start: int, width: int) -> Found:
    return _walk(vectors, links, query, start, width, sign=-1)


@mistake(graph, "walk", "nodes worst first", "the nodes come with the worst one first")
def _(vectors: np.ndarray, links: Links, query: np.ndarray, start: int, width: int) -> Found:
    nodes, read = _walk(vectors, links, query, start, width)
    return nodes[::-1], read


@mistake(graph, "walk", "the start is not found", "the node where the walk begins is not among the results")
def _(vectors: np.ndarray, links: Links, query: np.ndarray, start: int, width: int) -> Found:
    nodes, read = _walk(vectors, links, query, start, width)
    return [node for node in nodes if node != start], read
