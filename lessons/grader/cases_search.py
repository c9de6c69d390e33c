"""Hand examples and traps of lessons 18, 20 and 21: BM25, reciprocal ranks, a walk through a graph."""

import math

import numpy as np

from lessons.grader.cases import cases, example, trap
from lessons.search import bm25, fusion, graph

LN2 = math.log(2)


def doubles(*values: list[float]) -> np.ndarray:
    return np.array(values, dtype=np.float64)


@cases("bm25.bm25_scores")
def _():
    scores = bm25.bm25_scores
    one, two = [["cat"]], [["cat"], ["a", "dog"]]
    yield example("cat in [cat] and [a dog]", doubles([0.36481, 0.0]), scores, one, two)
    # equal lengths: k1 = 1.2 alone. The word twice: 2 / 3.2; every document has it: ln(1 + 0.5 / 2.5)
    again = [["a", "a", "b"], ["a", "c", "d"]]
    yield example("a in [a a b] and [a c d]", doubles([0.11395, 0.08287]), scores, [["a"]], again)
    documents = [["a", "b"], ["a", "c"], ["a", "d"]]  # all of average length: only idf / 2.2 is left
    common, rare = math.log(1 + 0.5 / 3.5) / 2.2, math.log(1 + 2.5 / 1.5) / 2.2
    yield trap("a word that every document has", doubles([common] * 3), scores, [["a"]], documents)
    yield trap("a word that no document has", doubles([rare, 0.0, 0.0]), scores, [["b", "unheard"]], documents)
    yield trap("nothing but such words", doubles([0.0] * 3), scores, [["unheard"]], documents)
    yield trap("an empty query", doubles([0.0] * 3, [0.0, rare, 0.0]), scores, [[], ["c"]], documents)
    yield trap("a word twice in the query", doubles([0.0, 0.0, 2 * rare]), scores, [["d", "d"]], documents)
    empty = [["cat", "cat"], []]  # lengths 2 and 0, on average 1
    yield trap("an empty document", doubles([LN2 * 2 / 4.1, 0.0]), scores, [["cat"]], empty)
    yield trap("k1 = 3, b = 0.5", doubles([LN2 / 3.5, 0.0]), scores, [["cat"]], [["cat"], ["a", "dog"]], 3.0, 0.5)
    yield trap(
        "b = 0: length does not count", doubles([LN2 / 2.2, 0.0]), scores, [["cat"]], [["cat"], ["a"] * 9], b=0.0
    )
    yield trap("one document", doubles([math.log(1 + 0.5 / 1.5) / 2.2]), scores, [["a"]], [["a", "b"]])
    yield trap("upper case is another word", doubles([0.0]), scores, [["A"]], [["a", "b"]])


@cases("fusion.reciprocal_ranks")
def _():
    ranks = fusion.reciprocal_ranks
    yield example("9, 5, 1", doubles([1 / 61, 1 / 62, 1 / 63]), ranks, doubles([9.0, 5.0, 1.0]))
    # the best is in column 2, then 0, then 1
    yield example("0.2, 0.1, 0.3", doubles([1 / 62, 1 / 63, 1 / 61]), ranks, doubles([0.2, 0.1, 0.3]))
    yield trap("equal scores, by column", doubles([1 / 63, 1 / 61, 1 / 62]), ranks, doubles([0.0, 4.0, 4.0]))
    yield trap("scores below 0", doubles([1 / 62, 1 / 61, 1 / 63]), ranks, doubles([-2.0, -1.0, -3.0]))
    yield trap("one document", doubles([1 / 61]), ranks, doubles([0.3]))
    yield trap("k = 0", doubles([1 / 2, 1.0]), ranks, doubles([1.0, 2.0]), 0)
    two = doubles([3.0, 1.0], [0.0, 5.0])
    yield trap("each query by itself", doubles([1 / 61, 1 / 62], [1 / 62, 1 / 61]), ranks, two)
    whole = np.array([[7, 9, 8]])
    yield trap("whole numbers", doubles([1 / 63, 1 / 61, 1 / 62]), ranks, whole)


@cases("graph.walk")
def _():
    line, one = doubles([1.0], [2.0], [3.0], [4.0]), np.array([1.0])
    links = [[1], [0, 2], [1, 3], [2]]
    yield example("1 - 2 - 3 - 4, width 2", ([3, 2], 4), graph.walk, line, links, one, 0, 2)
    # from 9 on node 1 only 8 is better than the 7 of node 2: width 1 does not go on to it
    peak = doubles([5.0], [9.0], [7.0], [8.0])
    yield example("5 - 9 - 7 - 8, width 1", ([1], 3), graph.walk, peak, links, one, 0, 1)
    one = np.array([1.0])
    hills = doubles([5.0], [3.0], [1.0], [4.0], [9.0])
    links = [[1], [0, 2], [1, 3], [2, 4], [3]]
    yield trap("width 1 stays on its hill", ([0], 2), graph.walk, hills, links, one, 0, 1)
    yield trap("width 2 ends in the valley", ([0, 1], 3), graph.walk, hills, links, one, 0, 2)
    yield trap("width 3 comes over it", ([4, 0, 3], 5), graph.walk, hills, links, one, 0, 3)
    yield trap("width 9, five nodes", ([4, 0, 3, 1, 2], 5), graph.walk, hills, links, one, 0, 9)
    yield trap("a start in the middle", ([4, 3], 4), graph.walk, hills, links, one, 2, 2)
    ring = [[1, 4], [2, 0], [3, 1], [4, 2], [0, 3]]
    yield trap("a ring, met from both sides", ([4, 0, 3], 5), graph.walk, hills, ring, one, 1, 3)
    yield trap(
        "equal scores, by number",
        ([1, 2, 3], 4),
        graph.walk,
        doubles([0.0], *[[2.0]] * 3),
        [[3, 2, 1]] + [[0]] * 3,
        one,
        0,
        3,
    )
    fork = doubles([5.0], [6.0], [5.5], [9.0], [1.0])
    yield trap("the better way first", ([3, 1], 4), graph.walk, fork, [[1, 2], [3], [4], [], []], one, 0, 2)
    yield trap("no links", ([1], 1), graph.walk, hills, [[]] * 5, one, 1, 4)
    yield trap("what no link leads to", ([0, 1], 2), graph.walk, hills, [[1], [0], [3], [4], [2]], one, 0, 3)
    yield trap(
        "products below 0",
        ([0, 1], 4),
        graph.walk,
        doubles([-1.0], [-2.0], [-3.0], [-4.0]),
        [[1, 2, 3], [], [], []],
        one,
        0,
        2,
    )
    plane = doubles([1.0, 0.0], [0.6, 0.8], [0.0, 1.0])
    by_name = {0: [1], 1: [0, 2], 2: [1]}
    yield trap("two dimensions, links by number", ([1, 2], 3), graph.walk, plane, by_name, np.array([0.5, 0.9]), 0, 2)
