"""Byte pair encoding: a vocabulary learned from text by joining the most frequent pair."""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise


def learn_merges(words: Mapping[str, int], most: int) -> list[tuple[str, str]]:
    """Join pieces of words until ``most`` joins are made or every word is one piece; return the
    joins in order.

    ``words`` has each word and how often it occurs. A word begins as its letters; each join
    replaces the pair of neighbours that occurs most often, wherever it stands, from left to right
    (Sennrich et al. 2016, algorithm 1). A pair that a word has twice counts twice. Of equally
    frequent pairs the one with the lower numbers is joined: letters are numbered in alphabetical
    order, joined pieces after them, in the order in which they come up.
    ``{"low": 5, "lower": 2, "newest": 6, "widest": 3}`` joins e s, then es t (both 9 times), then
    l o and lo w (7 times).
    """
    pieces = {word: list(word) for word in words}
    numbers = {letter: number for number, letter in enumerate(sorted(set("".join(words))))}
    joins: list[tuple[str, str]] = []
    while len(joins) < most:
        # count anew each time: a join takes pairs away and makes others
        counts: Counter[tuple[str, str]] = Counter()
        for word, times in words.items():
            for pair in pairwise(pieces[word]):
                counts[pair] += times
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], numbers[pair[0]], numbers[pair[1]]))
        joins.append(best)
        # two ways may lead to the same piece: it keeps its first number
        numbers.setdefault("".join(best), len(numbers))
        for word, old in pieces.items():
            new: list[str] = []
            for piece in old:
                if new and (new[-1], piece) == best:
                    new[-1] += piece
                else:
                    new.append(piece)
            pieces[word] = new
    return joins
