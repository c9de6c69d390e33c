"""Hand examples and traps of lessons 18, 20 and 21: BM25, reciprocal ranks, a graph's walk."""

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
    one = [["cat"]]
    two = [["cat"], ["a", "dog"]]
    yield example("cat in [cat] and [a dog]", doubles([0.36481, 0.0]), scores, one, two)
    # equal lengths: k1 = 1.2 alone. The word twice: 2 / 3.2; every document has it: ln(1 + 0.5 /
    # 2.5)
    again = [["a", "a", "b"], ["a", "c", "d"]]
    yield example("a in [a a b] and [a c d]", doubles([0.11395, 0.08287]), scores, [["a"]], again)
    # All documents have the average length: only idf / 2.2 is left.
    documents = [["a", "b"], ["a", "c"], ["a", "d"]]
    rare = math.log(1 + 2.5 / 1.5) / 2.2
    yield trap(
        "an empty query", doubles([0.0] * 3, [0.0, rare, 0.0]), scores, [[], ["c"]], documents
    )
    empty = [["cat", "cat"], []]  # lengths 2 and 0, on average 1
    yield trap("an empty document", doubles([LN2 * 2 / 4.1, 0.0]), scores, [["cat"]], empty)


@cases("fusion.reciprocal_ranks")
def _():
    ranks = fusion.reciprocal_ranks
    yield example("9, 5, 1", doubles([1 / 61, 1 / 62, 1 / 63]), ranks, doubles([9.0, 5.0, 1.0]))
    # the best is in column 2, then 0, then 1
    yield example(
        "0.2, 0.1, 0.3", doubles([1 / 62, 1 / 63, 1 / 61]), ranks, doubles([0.2, 0.1, 0.3])
    )
    yield trap(
        "equal scores, by column",
        doubles([1 / 63, 1 / 61, 1 / 62]),
        ranks,
        doubles([0.0, 4.0, 4.0]),
    )


@cases("graph.walk")
def _():
    line = doubles([1.0], [2.0], [3.0], [4.0])
    one = np.array([1.0])
    links = [[1], [0, 2], [1, 3], [2]]
    yield example("1 - 2 - 3 - 4, width 2", ([3, 2], 4), graph.walk, line, links, one, 0, 2)
    # from 9 on node 1 only 8 is better than the 7 of node 2: width 1 does not go on to it
    peak = doubles([5.0], [9.0], [7.0], [8.0])
    yield example("5 - 9 - 7 - 8, width 1", ([1], 3), graph.walk, peak, links, one, 0, 1)
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
    yield trap(
        "the better way first", ([3, 1], 4), graph.walk, fork, [[1, 2], [3], [4], [], []], one, 0, 2
    )
    plane = doubles([1.0, 0.0], [0.6, 0.8], [0.0, 1.0])
    by_name = {0: [1], 1: [0, 2], 2: [1]}
    yield trap(
        "two dimensions, links by number",
        ([1, 2], 3),
        graph.walk,
        plane,
        by_name,
        np.array([0.5, 0.9]),
        0,
        2,
    )
