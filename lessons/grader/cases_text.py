"""Hand examples and traps of lessons 1 to 3, 8, 16, 25: vectors, text, names, batches, search."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lessons.grader.cases import cases, d, example, t, trap
from lessons.grader.pieces import ROOT
from minisbert.core import bert, data, encoder, pooling, tokenizer, weights
from minisbert.search import dense as search

TINY = ROOT / "weights" / "tiny"

# ------------------------------------------------------------------------------------------ vectors


@cases("encoder.cosine_matrix")
def _():
    u = t([1.0, 0.0], [0.0, 2.0])
    v = t([3.0, 0.0], [1.0, 1.0], [0.0, -5.0])
    yield example(
        "two rows with three",
        t([1.0, 0.70711, 0.0], [0.0, 0.70711, -1.0]),
        encoder.cosine_matrix,
        u,
        v,
    )
    one = d([3.0, 4.0])
    zero = d([0.0, 0.0])
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


# --------------------------------------------------------------------------------- texts to vectors


class Letters(nn.Module):
    """An encoder of letters: a is 1, b is 2; a text's vector is the sum and the number of letters.

    The pads are 50, and ``batches`` keeps the shape of each batch and its number of pads.
    """

    width = 2

    def __init__(self):
        super().__init__()
        self.tokenizer = self
        self.pad_id = 50
        self.embeddings = nn.Module()
        self.embeddings.word = nn.Embedding(1, 1)  # its dtype is that of the vectors
        self.bert = nn.Module()
        self.bert.embeddings = self.embeddings
        self.batches: list[tuple[int, int, int]] = []

    def encode(self, texts: Sequence[str]) -> tokenizer.Encoded:
        ids = []
        token_types = []
        cut = []
        for text in texts:
            ids.append([ord(letter) - 96 for letter in text])
            token_types.append([0] * len(text))
            cut.append(False)
        return tokenizer.Encoded(ids, token_types, cut)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        real = torch.ones_like(ids) if mask is None else mask.long()
        self.batches.append((*ids.shape, int((real == 0).sum())))
        vectors = torch.stack([(ids * real).sum(1), real.sum(1)], dim=1)
        return vectors.float()


@cases("encoder.SentenceEncoder.encode")
def _():
    def encode(texts: list[str], batch_size: int) -> np.ndarray:
        return encoder.SentenceEncoder.encode(Letters(), texts, batch_size)

    expected = np.array([[6, 3], [1, 1], [3, 2]], dtype=np.float32)
    yield example("abc, a, ab; two in a batch", expected, encode, ["abc", "a", "ab"], 2)
    expected = np.array([[4, 2], [4, 2], [10, 4], [2, 1]], dtype=np.float32)
    yield example("bb, bb, abcd, b; one batch", expected, encode, ["bb", "bb", "abcd", "b"], 32)

    def batches() -> list[tuple[int, int, int]]:
        letters = Letters()
        texts = ["aaaa", "a", "aaaa", "a", "aaaa"]
        encoder.SentenceEncoder.encode(letters, texts, 2)
        return sorted(letters.batches)

    expected = [(1, 4, 0), (2, 1, 0), (2, 4, 0)]
    name = "lengths 4, 1, 4, 1, 4 by two: rows, tokens and pads of each batch, shortest first"
    yield trap(name, expected, batches)

    def gradient() -> bool:
        model = encoder.SentenceEncoder.load(TINY)
        before = torch.is_grad_enabled()
        vectors = model.encode(["a cat"])
        return isinstance(vectors, np.ndarray) and torch.is_grad_enabled() == before

    yield trap("a real model: an array, and gradients are as before", True, gradient)

    def double() -> str:
        return str(encoder.SentenceEncoder.load(TINY).double().encode(["a cat"]).dtype)

    yield trap("after double(): the type of the vectors", "float64", double)
    yield trap("no texts: the shape", (0, 2), lambda: encode([], 2).shape)


@cases("encoder.SentenceEncoder.forward")
def _():
    def model(mode: str, normalize: bool) -> encoder.SentenceEncoder:
        """Its encoder is the word table: id i has the state [i, 2 i]."""
        config = weights.BertConfig(6, 2, 1, 1, 2, 4)
        network = bert.Bert(config, pooler=False)
        made = encoder.SentenceEncoder(None, network, pooling.Pooling(mode), normalize)
        table = torch.arange(6.0)[:, None] * t(1.0, 2.0)

        def states(ids: Tensor, mask: Tensor | None = None) -> Tensor:
            return table[ids]

        network.forward = states
        return made.eval()

    ids = torch.tensor([[1, 3, 5]])
    mask = torch.tensor([[True, True, False]])
    yield example("the mean of [1, 2] and [3, 6]", t([2.0, 4.0]), model("mean", False), ids, mask)
    unit = t([0.44721, 0.89443])
    yield example("scaled to length 1", unit, model("mean", True), ids, mask)
    yield trap("no mask: all three are real", t([3.0, 6.0]), model("mean", False), ids)
    yield trap("another pooling: max", t([3.0, 6.0]), model("max", False), ids, mask)


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

BEFORE_LAYERS = {
    "embeddings.word.weight": "embeddings.word_embeddings.weight",
    "embeddings.position.weight": "embeddings.position_embeddings.weight",
    "embeddings.token_type.weight": "embeddings.token_type_embeddings.weight",
    "embeddings.norm.weight": "embeddings.LayerNorm.weight",
    "embeddings.norm.bias": "embeddings.LayerNorm.bias",
}
LAYER_0 = {
    "layers.0.attention.query.weight": "encoder.layer.0.attention.self.query.weight",
    "layers.0.attention.query.bias": "encoder.layer.0.attention.self.query.bias",
    "layers.0.attention.key.weight": "encoder.layer.0.attention.self.key.weight",
    "layers.0.attention.key.bias": "encoder.layer.0.attention.self.key.bias",
    "layers.0.attention.value.weight": "encoder.layer.0.attention.self.value.weight",
    "layers.0.attention.value.bias": "encoder.layer.0.attention.self.value.bias",
    "layers.0.attention.output.weight": "encoder.layer.0.attention.output.dense.weight",
    "layers.0.attention.output.bias": "encoder.layer.0.attention.output.dense.bias",
    "layers.0.attention_norm.weight": "encoder.layer.0.attention.output.LayerNorm.weight",
    "layers.0.attention_norm.bias": "encoder.layer.0.attention.output.LayerNorm.bias",
    "layers.0.feed_forward.up.weight": "encoder.layer.0.intermediate.dense.weight",
    "layers.0.feed_forward.up.bias": "encoder.layer.0.intermediate.dense.bias",
    "layers.0.feed_forward.down.weight": "encoder.layer.0.output.dense.weight",
    "layers.0.feed_forward.down.bias": "encoder.layer.0.output.dense.bias",
    "layers.0.feed_forward_norm.weight": "encoder.layer.0.output.LayerNorm.weight",
    "layers.0.feed_forward_norm.bias": "encoder.layer.0.output.LayerNorm.bias",
}
POOLER = {"pooler.weight": "pooler.dense.weight", "pooler.bias": "pooler.dense.bias"}


@cases("weights.tensor_names")
def _():
    one_layer = BEFORE_LAYERS | LAYER_0
    yield example("one layer, no pooler", one_layer, weights.tensor_names, 1, False)
    yield example("one layer and the pooler", one_layer | POOLER, weights.tensor_names, 1, True)
    yield trap("no layer at all", BEFORE_LAYERS | POOLER, weights.tensor_names, 0, True)

    # layer 1 must not be mistaken for layer 11
    eleventh = {}
    for ours, theirs in LAYER_0.items():
        eleventh[ours.replace(".0.", ".11.")] = theirs.replace(".0.", ".11.")

    def last_layer() -> dict[str, str]:
        names = weights.tensor_names(12, False)
        return {ours: theirs for ours, theirs in names.items() if ours.startswith("layers.11.")}

    yield trap("the last of twelve layers", eleventh, last_layer)


# ------------------------------------------------------------------------------------------ batches


@cases("tokenizer.pad_batch")
def _():
    ids = torch.tensor([[1, 2, 3], [4, 9, 9]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    yield example("[1, 2, 3] and [4], pad 9", (ids, mask), tokenizer.pad_batch, [[1, 2, 3], [4]], 9)
    whole = torch.tensor([[1, 2], [3, 4]])
    yield example("two rows of one length", (whole, None), tokenizer.pad_batch, [[1, 2], [3, 4]], 0)
    ids = torch.tensor([[0, 1], [2, 0]])
    mask = torch.tensor([[True, True], [True, False]])
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

    def other_rows_meet() -> bool:
        met = []
        for seed in (0, 1):
            found = data.length_grouped_batches([3, 1, 2] * 20, 4, seeded(seed), window=3)
            met.append({frozenset(batch) for batch in found})
        return met[0] != met[1]

    yield trap("another seed, and other rows meet", True, other_rows_meet)


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
    # Cosines 1 and 1 - 5e-11: in float64 the second row is the better one.
    close = np.array([[1.0, 1e-5], [1.0, 0.0]])
    yield trap(
        "equal once rounded to float32: the lower index first",
        best([[1, 1]], [[0, 1]]),
        search.top_k,
        np.array([[1.0, 0.0]]),
        close,
        2,
    )
    many = np.tile([0.0, 1.0], (3000, 1))
    many[[2999, 17]] = [2.0, 0.0]
    yield trap(
        "a corpus of 3,000", best([[1, 1, 0]], [[17, 2999, 0]]), search.top_k, query, many, 3
    )
