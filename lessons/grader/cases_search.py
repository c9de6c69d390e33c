"""Hand examples and traps of lesson 19: BM25."""

import math

import numpy as np

from lessons.grader.cases import case, example, trap
from lessons.search import bm25, fusion

LN2 = math.log(2)


def doubles(*values: list[float]) -> np.ndarray:
    return np.array(values, dtype=np.float64)


@example("bm25.bm25_scores")
def _():
    # lengths 1 and 2, so k1 (1 - b + b length / 1.5) is 0.9 and 1.5; one of two documents has the word: ln(1 + 1)
    one, two = [["cat"]], [["cat"], ["a", "dog"]]
    yield case("cat in [cat] and [a dog]", doubles([0.36481, 0.0]), bm25.bm25_scores, one, two)
    # equal lengths: k1 = 1.2 alone. The word twice: 2 / 3.2; every document has it: ln(1 + 0.5 / 2.5)
    again = [["a", "a", "b"], ["a", "c", "d"]]
    yield case("a in [a a b] and [a c d]", doubles([0.11395, 0.08287]), bm25.bm25_scores, [["a"]], again)


@trap("bm25.bm25_scores")
def _():
    documents = [["a", "b"], ["a", "c"], ["a", "d"]]  # all of average length: only idf / 2.2 is left
    common, rare = math.log(1 + 0.5 / 3.5) / 2.2, math.log(1 + 2.5 / 1.5) / 2.2
    scores = bm25.bm25_scores
    yield case("a word that every document has", doubles([common] * 3), scores, [["a"]], documents)
    yield case("a word that no document has", doubles([rare, 0.0, 0.0]), scores, [["b", "unheard"]], documents)
    yield case("nothing but such words", doubles([0.0] * 3), scores, [["unheard"]], documents)
    yield case("an empty query", doubles([0.0] * 3, [0.0, rare, 0.0]), scores, [[], ["c"]], documents)
    yield case("a word twice in the query", doubles([0.0, 0.0, 2 * rare]), scores, [["d", "d"]], documents)
    empty = [["cat", "cat"], []]  # lengths 2 and 0, on average 1
    yield case("an empty document", doubles([LN2 * 2 / 4.1, 0.0]), scores, [["cat"]], empty)
    yield case("k1 = 3, b = 0.5", doubles([LN2 / 3.5, 0.0]), scores, [["cat"]], [["cat"], ["a", "dog"]], 3.0, 0.5)
    yield case(
        "b = 0: length does not count", doubles([LN2 / 2.2, 0.0]), scores, [["cat"]], [["cat"], ["a"] * 9], b=0.0
    )
    yield case("one document", doubles([math.log(1 + 0.5 / 1.5) / 2.2]), scores, [["a"]], [["a", "b"]])
    yield case("upper case is another word", doubles([0.0]), scores, [["A"]], [["a", "b"]])


@example("fusion.reciprocal_ranks")
def _():
    ranks = fusion.reciprocal_ranks
    yield case("9, 5, 1", doubles([1 / 61, 1 / 62, 1 / 63]), ranks, doubles([9.0, 5.0, 1.0]))
    # the best is in column 2, then 0, then 1
    yield case("0.2, 0.1, 0.3", doubles([1 / 62, 1 / 63, 1 / 61]), ranks, doubles([0.2, 0.1, 0.3]))


@trap("fusion.reciprocal_ranks")
def _():
    ranks = fusion.reciprocal_ranks
    yield case("equal scores, by column", doubles([1 / 63, 1 / 61, 1 / 62]), ranks, doubles([0.0, 4.0, 4.0]))
    yield case("scores below 0", doubles([1 / 62, 1 / 61, 1 / 63]), ranks, doubles([-2.0, -1.0, -3.0]))
    yield case("one document", doubles([1 / 61]), ranks, doubles([0.3]))
    yield case("k = 0", doubles([1 / 2, 1.0]), ranks, doubles([1.0, 2.0]), 0)
    two = doubles([3.0, 1.0], [0.0, 5.0])
    yield case("each query by itself", doubles([1 / 61, 1 / 62], [1 / 62, 1 / 61]), ranks, two)
    whole = np.array([[7, 9, 8]])
    yield case("whole numbers", doubles([1 / 63, 1 / 61, 1 / 62]), ranks, whole)
