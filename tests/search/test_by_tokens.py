"""MaxSim: exact search, matrices on disk."""

import numpy as np
import pytest
import torch

from minisbert.core import InputError
from minisbert.search.by_tokens import Matrices, late_top_k, max_sim


def matrices(lengths: list[int], seed: int = 0) -> Matrices:
    """Random matrices of texts that have these numbers of tokens."""
    generator = np.random.default_rng(seed)
    rows = [generator.standard_normal((length, 5)).astype(np.float32) for length in lengths]
    return Matrices.of(rows, 5)


@pytest.fixture
def corpus() -> Matrices:
    """Five texts: one without tokens, and one that is there twice."""
    texts = matrices([3, 0, 5, 1, 4], 7)
    return Matrices.of([texts[0], texts[1], texts[2], texts[0], texts[4]], 5)


def test_search_is_exact_with_ties_by_index_and_empty_texts(corpus):
    """One product of all texts must give what the formula gives for each of them."""
    queries = matrices([4, 2, 6], 8)
    scores, places = late_top_k(queries, corpus, 5)
    for i in range(3):
        expected = []
        for text in corpus:
            score = -np.inf
            if len(text):
                score = float(max_sim(torch.from_numpy(queries[i]), torch.from_numpy(text)))
            expected.append(score)
        order = sorted(range(5), key=lambda j: (-round(expected[j], 4), j))
        assert places[i].tolist() == order
        # Scores are up to 30.
        assert scores[i] == pytest.approx([expected[j] for j in order], rel=2e-6, abs=1e-5)


def test_no_queries_have_no_results(corpus):
    scores, places = late_top_k(Matrices.of([], 5), corpus, 2)
    assert scores.shape == places.shape == (0, 2)


def test_other_widths_are_refused():
    """Those of queries and of a corpus by another model."""
    narrow = Matrices.of([np.zeros((1, 4), np.float32)], 4)
    with pytest.raises(InputError, match="width 5 and the corpus 4"):
        late_top_k(matrices([2]), narrow, 1)


def test_matrices_come_back_from_disk():
    """A text without tokens keeps its place."""
    corpus = matrices([3, 0, 5])
    read = Matrices.from_tensors(corpus.tensors())
    assert read.shape == (3, 5)
    assert [len(text) for text in read] == [3, 0, 5]
    assert (read[2] == corpus[2]).all()


@pytest.mark.parametrize("starts", [[0, 4, 3, 8], [1, 3, 8], [0, 3, 9], [[0, 8]], []])
def test_starts_that_do_not_divide_the_rows(starts):
    """A damaged file would give texts each other's tokens."""
    tensors = matrices([3, 0, 5]).tensors()
    tensors["starts"] = torch.tensor(starts)
    with pytest.raises(ValueError, match="starts do not divide the rows"):
        Matrices.from_tensors(tensors)
