"""Hand examples and traps of lessons 1 to 3, 13 and 14: vectors, text, names, batches, search."""

import numpy as np
import torch

from lessons.grader.cases import cases, d, example, t, trap
from minisbert.core import data, encoder, tokenizer
from minisbert.core.weights import Family
from minisbert.search import dense as search

# ------------------------------------------------------------------------------------------ vectors


@cases("encoder.cosine_matrix")
def _():
    u, v = t([1.0, 0.0], [0.0, 2.0]), t([3.0, 0.0], [1.0, 1.0], [0.0, -5.0])
    yield example(
        "two rows with three",
        t([1.0, 0.70711, 0.0], [0.0, 0.70711, -1.0]),
        encoder.cosine_matrix,
        u,
        v,
    )
    one, zero = d([3.0, 4.0]), d([0.0, 0.0])
    yield trap(
        "a zero vector: 0, not NaN",
        d([0.0], [0.0]),
        encoder.cosine_matrix,
        torch.cat([zero, zero]),
        one,
    )
    yield trap(
        "vectors of length 2e-4", d([0.8]), encoder.cosine_matrix, 4e-5 * one, 2e-4 * d([0.0, 1.0])
    )


# --------------------------------------------------------------------------------------------- text


@cases("tokenizer.split_words")
def _():
    for text, words in (
        ("Café, it's 5!", ["cafe", ",", "it", "'", "s", "5", "!"]),
        ("A  cat\tsits.\n", ["a", "cat", "sits", "."]),
        ("$1.50 (now)", ["$", "1", ".", "50", "(", "now", ")"]),
        ("中文 text", ["中", "文", "text"]),
    ):
        yield example(f"split_words({text!r})", words, tokenizer.split_words, text)
    for text, words in (
        ("zero\u200bwidth", ["zerowidth"]),  # an invisible space is a control character
        ("ΟΔΟΣ", ["οδοσ"]),  # not the sigma that ends a word
        (
            "\u0915\u093e",
            ["\u0915\u093e"],
        ),  # a vowel sign is a mark, too, but no accent: category Mc, not Mn
    ):
        yield trap(f"split_words({text!r})", words, tokenizer.split_words, text)


@cases("tokenizer.word_pieces")
def _():
    vocabulary = {"play", "p", "##ing", "##i", "##s", "sing"}
    for word, pieces in (
        ("play", ["play"]),
        ("playing", ["play", "##ing"]),
        ("pis", ["p", "##i", "##s"]),
        ("playsing", ["play", "##s", "##ing"]),
        ("ing", ["[UNK]"]),
        ("playx", ["[UNK]"]),
        ("plays", ["play", "##s"]),
    ):
        yield example(f"word_pieces({word!r})", pieces, tokenizer.word_pieces, word, vocabulary)
    letters = {"a", "##a"}
    yield trap("100 letters", ["a"] + ["##a"] * 99, tokenizer.word_pieces, "a" * 100, letters)
    yield trap("101 letters are too many", ["[UNK]"], tokenizer.word_pieces, "a" * 101, letters)
    yield trap(
        "another name for unknown", ["<unk>"], tokenizer.word_pieces, "b", letters, unknown="<unk>"
    )
    yield trap(
        "no way back from a long piece",
        ["[UNK]"],
        tokenizer.word_pieces,
        "abcd",
        {"abc", "ab", "##cd"},
    )


# -------------------------------------------------------------------------------------------- names

SMALL = Family(
    model_type="small",
    architecture="Small",
    tables={"word": "emb.word"},
    norms={"layers.{i}.norm": "enc.{i}.LN"},
    linears={"layers.{i}.up": "enc.{i}.up.dense"},
    pooler={"pooler": "pool.dense"},
    prefix="",
    skipped=frozenset(),
)
ONE_LAYER = {
    "word.weight": "emb.word.weight",
    "layers.0.norm.weight": "enc.0.LN.weight",
    "layers.0.norm.bias": "enc.0.LN.bias",
    "layers.0.up.weight": "enc.0.up.dense.weight",
    "layers.0.up.bias": "enc.0.up.dense.bias",
}
POOLER = {"pooler.weight": "pool.dense.weight", "pooler.bias": "pool.dense.bias"}


@cases("weights.Family.names")
def _():
    yield example("one layer, no pooler", ONE_LAYER, SMALL.names, 1, False)
    yield example("one layer and the pooler", ONE_LAYER | POOLER, SMALL.names, 1, True)
    yield trap("no layer at all", {"word.weight": "emb.word.weight"} | POOLER, SMALL.names, 0, True)


# ------------------------------------------------------------------------------------------ batches


@cases("tokenizer.pad_batch")
def _():
    ids, mask = (
        torch.tensor([[1, 2, 3], [4, 9, 9]]),
        torch.tensor([[True, True, True], [True, False, False]]),
    )
    yield example("[1, 2, 3] and [4], pad 9", (ids, mask), tokenizer.pad_batch, [[1, 2, 3], [4]], 9)
    whole = torch.tensor([[1, 2], [3, 4]])
    yield example("two rows of one length", (whole, None), tokenizer.pad_batch, [[1, 2], [3, 4]], 0)
    ids, mask = torch.tensor([[0, 1], [2, 0]]), torch.tensor([[True, True], [True, False]])
    yield trap("a real token with the pad's id", (ids, mask), tokenizer.pad_batch, [[0, 1], [2]], 0)
    yield trap("rows that are tuples", (ids, mask), tokenizer.pad_batch, [(0, 1), (2,)], 0)


@cases("data.length_grouped_batches")
def _():
    def batches() -> list[list[int]]:
        found = data.length_grouped_batches([9, 1, 5, 2, 8, 6], 2, torch.Generator().manual_seed(0))
        return sorted(sorted(batch) for batch in found)

    yield example("rows of 9, 1, 5, 2, 8, 6 tokens by two", [[0, 4], [1, 3], [2, 5]], batches)
    seeded = torch.Generator().manual_seed

    def drawn_from_the_generator_alone() -> bool:
        found = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            found.append(data.length_grouped_batches([3, 1, 2] * 20, 4, seeded(5), window=3))
        return found[0] == found[1]

    yield trap("the same generator, the same batches", True, drawn_from_the_generator_alone)


# ------------------------------------------------------------------------------------------- search


def best(scores: list, indices: list) -> tuple[np.ndarray, np.ndarray]:
    return np.array(scores, dtype=np.float32), np.array(indices, dtype=np.int64)


@cases("dense.top_k")
def _():
    corpus = t([0.0, 5.0], [1.0, 0.0], [2.0, 2.0])
    yield example(
        "one query, the best two",
        best([[1.0, 0.70711]], [[1, 2]]),
        search.top_k,
        t([3.0, 0.0]),
        corpus,
        2,
    )
    corpus = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [-1.0, 0.0]])
    query = np.array([[1.0, 0.0]])
    yield trap(
        "ties: the lower index first",
        best([[1, 1, 1]], [[1, 2, 3]]),
        search.top_k,
        query,
        corpus,
        3,
    )
    yield trap(
        "a zero query: 0 with everything",
        best([[0, 0]], [[0, 1]]),
        search.top_k,
        0 * query,
        corpus,
        2,
    )
    many = np.tile([0.0, 1.0], (3000, 1))
    many[[2999, 17]] = [2.0, 0.0]
    yield trap(
        "a corpus of 3,000", best([[1, 1, 0]], [[17, 2999, 0]]), search.top_k, query, many, 3
    )
