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


def test_semantic_search_by_hand():
    found = util.semantic_search(QUERIES, torch.tensor(CORPUS), top_k=2)
    assert [[hit["corpus_id"] for hit in hits] for hits in found] == [[0, 1], [1, 0]]
    assert [hit["score"] for hits in found for hit in hits] == pytest.approx(
        [0.6, 0, 1, 0.8], abs=1e-6
    )
    for dot in ("dot", lambda a, b: a @ b.T):
        hits = util.semantic_search(QUERIES, CORPUS, top_k=3, score_function=dot)
        products = np.asarray(QUERIES, np.float32) @ np.asarray(CORPUS, np.float32).T
        for row, found_row in zip(products, hits, strict=True):
            order = np.argsort(-row, kind="stable")
            assert [hit["corpus_id"] for hit in found_row] == order.tolist()
            assert [hit["score"] for hit in found_row] == pytest.approx(row[order].tolist())
    assert len(util.semantic_search(QUERIES[0], CORPUS)[0]) == 3, "of fewer rows than top_k all"


def test_communities_by_hand():
    """Angles 0, 10, 20, 90, 100: within 15 degrees of 10 lie three rows, of 90 two."""
    angles = np.deg2rad([0, 10, 20, 90, 100])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    found = util.community_detection(
        vectors, threshold=float(np.cos(np.deg2rad(15))), min_community_size=2
    )
    assert [(group[0], sorted(group)) for group in found] == [(1, [0, 1, 2]), (3, [3, 4])]


def test_many_equal_rows_are_one_community_in_little_memory():
    tracemalloc.start()
    assert util.community_detection(np.ones((2500, 8))) == [list(range(2500))]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5e6, "2,500 numbers, not 2,500 lists of them: 200 MB"
    rows = np.concatenate(
        [np.zeros((3, 2)), np.ones((2, 2))]
    )  # a row without a direction is nobody's neighbour
    assert util.community_detection(rows, min_community_size=2) == [[3, 4]]


def test_bad_input(tiny):
    for call in (
        lambda: util.semantic_search(QUERIES, CORPUS, top_k=0),
        lambda: util.semantic_search("text", CORPUS),
        lambda: util.community_detection(CORPUS, threshold="high"),
        lambda: util.community_detection(CORPUS, min_community_size=2.5),
        lambda: util.paraphrase_mining(SentenceEncoder.load(tiny), ["a", None]),
        lambda: util.paraphrase_mining(SentenceEncoder.load(tiny), ["a"], max_pairs=0),
        lambda: util.semantic_search(QUERIES, CORPUS, score_function=["dot"]),
        lambda: util.paraphrase_mining("all-MiniLM-L6-v2", ["a", "b"]),
        lambda: util.mine_hard_negatives([("a", "b")], None),
        *(
            lambda pairs=pairs: util.mine_hard_negatives(pairs, SentenceEncoder.load(tiny))
            for pairs in (5, [("a",)], [7])
        ),
        lambda: SentenceEncoder.load(tiny).save(None),
    ):
        with pytest.raises(InputError):
            call()
    assert util.paraphrase_mining(SentenceEncoder.load(tiny), ["a"]) == []


@pytest.mark.reference
def test_results_are_those_of_sentence_transformers(tiny):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers import util as reference

    ours, theirs = SentenceEncoder.load(tiny), SentenceTransformer(str(tiny), device="cpu")
    vectors = theirs.encode(TEXTS)
    expected = reference.semantic_search(
        torch.from_numpy(vectors[:2]), torch.from_numpy(vectors), top_k=3
    )
    found = util.semantic_search(vectors[:2], vectors, top_k=3)
    for hits, others in zip(found, expected, strict=True):
        assert [hit["corpus_id"] for hit in hits] == [hit["corpus_id"] for hit in others]
        assert [hit["score"] for hit in hits] == pytest.approx(
            [hit["score"] for hit in others], abs=2e-6
        )
    pairs, others = util.paraphrase_mining(ours, TEXTS), reference.paraphrase_mining(theirs, TEXTS)
    assert [pair[1:] for pair in pairs] == [pair[1:] for pair in others]
    assert [pair[0] for pair in pairs] == pytest.approx([pair[0] for pair in others], abs=2e-6)
    rows = torch.nn.functional.normalize(
        torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    )
    for size in (1, 3, 5):
        assert util.community_detection(
            rows, min_community_size=size
        ) == reference.community_detection(rows, min_community_size=size)


@pytest.mark.reference
def test_mined_triplets_are_those_of_sentence_transformers(tiny):
    """Texts that either library encodes; no two candidates' scores, and none and the limit, are
    nearer than 1e-3.
    """
    reference = pytest.importorskip("sentence_transformers", reason="needs the reference extra")
    datasets = pytest.importorskip("datasets")
    pairs = [
        ("a cat?", "A cat sits."),
        ("rain?", "It rains."),
        ("who reads?", "A man reads a book."),
    ]
    corpus = [
        "The dog sleeps.",
        "Shares fell.",
        "Snow falls on the roof.",
        "A woman plays the guitar.",
    ]
    rules = {"num_negatives": 2, "range_min": 1, "max_score": 0.9}
    data = datasets.Dataset.from_dict(
        {"anchor": [a for a, _ in pairs], "positive": [p for _, p in pairs]}
    )
    theirs = reference.util.mine_hard_negatives(
        data,
        reference.SentenceTransformer(str(tiny), device="cpu"),
        corpus=corpus,
        verbose=False,
        **rules,
    )
    expected = [*zip(theirs["anchor"], theirs["positive"], theirs["negative"], strict=True)]
    assert util.mine_hard_negatives(pairs, SentenceEncoder.load(tiny), corpus, **rules) == expected
    assert expected
