"""``minisbert.util``: by hand, and beside sentence-transformers."""

import tracemalloc

import numpy as np
import pytest
import torch

from minisbert import util
from minisbert.core import InputError
from minisbert.models.sentence_encoder import SentenceEncoder

QUERIES = np.array([[1.0, 0], [0, 2]])
CORPUS = np.array([[3.0, 4], [0, 1], [-1, 0]])  # cosines with the queries: .6, 0, -1 and .8, 1, 0
TEXTS = ["the cat sits", "a cat sits", "a dog", "the dog sits", "moon"]


@pytest.fixture
def encoder(tiny) -> SentenceEncoder:
    return SentenceEncoder.load(tiny)


def rows_of(hits: list[dict]) -> list[int]:
    return [hit["corpus_id"] for hit in hits]


def scores_of(hits: list[dict]) -> list[float]:
    return [hit["score"] for hit in hits]


# ------------------------------------------------------------------------------------------ search


def test_semantic_search_by_hand():
    first, second = util.semantic_search(QUERIES, torch.tensor(CORPUS), top_k=2)
    assert rows_of(first) == [0, 1]
    assert scores_of(first) == pytest.approx([0.6, 0], abs=1e-6)
    assert rows_of(second) == [1, 0]
    assert scores_of(second) == pytest.approx([1, 0.8], abs=1e-6)


def products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A caller's own function of vectors."""
    return a @ b.T


@pytest.mark.parametrize("score_function", ["dot", util.dot_score, products])
def test_semantic_search_by_dot_products(score_function):
    """By name, by the function of that name, and by any function."""
    first, second = util.semantic_search(QUERIES, CORPUS, score_function=score_function)
    assert rows_of(first) == [0, 1, 2]
    assert scores_of(first) == pytest.approx([3, 0, -1])
    assert rows_of(second) == [0, 1, 2]
    assert scores_of(second) == pytest.approx([8, 2, 0])


def test_semantic_search_by_the_function_of_the_cosine():
    """It takes the fast way, whose results are those of the name."""
    by_name = util.semantic_search(QUERIES, CORPUS)
    assert util.semantic_search(QUERIES, CORPUS, score_function=util.cos_sim) == by_name


def test_one_query_and_fewer_rows_than_asked_for():
    (hits,) = util.semantic_search(QUERIES[0], CORPUS)
    assert len(hits) == 3


def test_semantic_search_in_nothing():
    assert util.semantic_search(QUERIES, CORPUS[:0]) == [[], []]


# ------------------------------------------------------------------------------------- communities


def test_communities_by_hand():
    """Angles 0, 10, 20, 90, 100: within 15 degrees of 10 lie three rows, of 90 two."""
    angles = np.deg2rad([0, 10, 20, 90, 100])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    near = float(np.cos(np.deg2rad(15)))
    groups = util.community_detection(vectors, threshold=near, min_community_size=2)
    assert [group[0] for group in groups] == [1, 3], "the centre comes first"
    assert [sorted(group) for group in groups] == [[0, 1, 2], [3, 4]]


def test_many_equal_rows_are_one_community_in_little_memory():
    """2,500 numbers, not 2,500 lists of them, which would be 200 MB."""
    tracemalloc.start()
    groups = util.community_detection(np.ones((2500, 8)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert groups == [list(range(2500))]
    assert peak < 5e6


def test_a_row_without_a_direction_is_nobodys_neighbour():
    rows = np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    assert util.community_detection(rows, min_community_size=2) == [[3, 4]]


# --------------------------------------------------------------------------------------- bad input


def test_options_that_semantic_search_refuses():
    with pytest.raises(InputError, match="top_k"):
        util.semantic_search(QUERIES, CORPUS, top_k=0)
    with pytest.raises(InputError):
        util.semantic_search("text", CORPUS)
    with pytest.raises(InputError, match="similarity"):
        util.semantic_search(QUERIES, CORPUS, score_function=["dot"])


def test_options_that_community_detection_refuses():
    with pytest.raises(InputError, match="threshold"):
        util.community_detection(CORPUS, threshold="high")
    with pytest.raises(InputError, match="min_community_size"):
        util.community_detection(CORPUS, min_community_size=2.5)


def test_what_paraphrase_mining_refuses(encoder):
    with pytest.raises(InputError, match="text 1"):
        util.paraphrase_mining(encoder, ["a", None])
    with pytest.raises(InputError, match="max_pairs"):
        util.paraphrase_mining(encoder, ["a"], max_pairs=0)
    with pytest.raises(InputError, match="must be an encoder"):
        util.paraphrase_mining("all-MiniLM-L6-v2", ["a", "b"])


def test_one_sentence_has_no_pairs(encoder):
    assert util.paraphrase_mining(encoder, ["a"]) == []


@pytest.mark.parametrize("pairs", [5, [("a",)], [7]])
def test_what_is_no_pair_of_anchor_and_positive(encoder, pairs):
    with pytest.raises(InputError, match=r"pairs(\[0\])?: "):
        util.mine_hard_negatives(pairs, encoder)


def test_pairs_to_mine_are_rows_as_training_reads_them(encoder, capsys):
    """By the names of their columns, and what is left out is said."""
    pairs = [(text, other) for text in TEXTS for other in TEXTS if text != other]
    rows = [{"id": 1, "positive": positive, "anchor": anchor} for anchor, positive in pairs[::3]]
    expected = util.mine_hard_negatives(pairs[::3], encoder)
    assert capsys.readouterr().err == ""
    assert util.mine_hard_negatives(rows, encoder) == expected
    assert "not read: id" in capsys.readouterr().err


@pytest.mark.parametrize("pairs", [[], None, [("a", 5)], [("a", "")]])
def test_no_pairs_to_mine(encoder, pairs):
    with pytest.raises(InputError, match="pairs"):
        util.mine_hard_negatives(pairs, encoder)


def test_pairs_without_a_negative_are_counted(encoder, capsys):
    assert util.mine_hard_negatives([("a cat", "the cat")], encoder) == []
    assert "1 of 1 pairs have no negative" in capsys.readouterr().err


def test_mining_needs_an_encoder():
    with pytest.raises(InputError, match="must be an encoder"):
        util.mine_hard_negatives([("a", "b")], None)


# -------------------------------------------------------------------------- sentence-transformers


@pytest.fixture
def reference():
    return pytest.importorskip("sentence_transformers", reason="needs the reference extra")


@pytest.mark.reference
def test_hits_are_those_of_sentence_transformers(encoder, reference):
    vectors = encoder.encode(TEXTS)
    tensors = torch.from_numpy(vectors)
    expected = reference.util.semantic_search(tensors[:2], tensors, top_k=3)
    results = util.semantic_search(vectors[:2], vectors, top_k=3)
    for hits, others in zip(results, expected, strict=True):
        assert rows_of(hits) == rows_of(others)
        assert scores_of(hits) == pytest.approx(scores_of(others), abs=2e-6)


@pytest.mark.reference
def test_paraphrases_are_those_of_sentence_transformers(tiny, encoder, reference):
    theirs = reference.SentenceTransformer(str(tiny), device="cpu")
    expected = reference.util.paraphrase_mining(theirs, TEXTS)
    pairs = util.paraphrase_mining(encoder, TEXTS)
    assert [pair[1:] for pair in pairs] == [pair[1:] for pair in expected]
    assert [pair[0] for pair in pairs] == pytest.approx([pair[0] for pair in expected], abs=2e-6)


@pytest.mark.reference
@pytest.mark.parametrize("size", [1, 3, 5])
def test_communities_are_those_of_sentence_transformers(reference, size):
    rows = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    rows = torch.nn.functional.normalize(rows)
    expected = reference.util.community_detection(rows, min_community_size=size)
    assert util.community_detection(rows, min_community_size=size) == expected


@pytest.mark.reference
def test_mined_triplets_are_those_of_sentence_transformers(tiny, encoder, reference):
    """No two candidates' scores, and none and the limit, are nearer than 1e-3."""
    datasets = pytest.importorskip("datasets")
    anchors = ["a cat?", "rain?", "who reads?"]
    positives = ["A cat sits.", "It rains.", "A man reads a book."]
    corpus = [
        "The dog sleeps.",
        "Shares fell.",
        "Snow falls on the roof.",
        "A woman plays the guitar.",
    ]
    rules = {"num_negatives": 2, "range_min": 1, "max_score": 0.9}
    theirs = reference.util.mine_hard_negatives(
        datasets.Dataset.from_dict({"anchor": anchors, "positive": positives}),
        reference.SentenceTransformer(str(tiny), device="cpu"),
        corpus=corpus,
        verbose=False,
        **rules,
    )
    expected = list(zip(theirs["anchor"], theirs["positive"], theirs["negative"], strict=True))
    assert expected
    pairs = list(zip(anchors, positives, strict=True))
    assert util.mine_hard_negatives(pairs, encoder, corpus, **rules) == expected
