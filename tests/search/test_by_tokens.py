"""MaxSim: exact search, matrices on disk."""

import numpy as np
import pytest
import torch

from minisbert.core import InputError
from minisbert.search.by_tokens import Matrices, late_top_k, max_sim


def matrices(lengths: list[int], seed: int = 0) -> Matrices:
    generator = np.random.default_rng(seed)
    return Matrices.of(
        [generator.standard_normal((length, 5)).astype(np.float32) for length in lengths], 5
    )


def test_search_is_exact_with_ties_by_index_and_empty_documents():
    corpus = matrices([3, 0, 5, 1, 4], 7)
    corpus = Matrices.of([corpus[i] for i in (0, 1, 2, 0, 4)], 5)
    queries = matrices([4, 2, 6], 8)
    scores, places = late_top_k(queries, corpus, 5)
    for i, query in enumerate(queries):
        one = [
            float(max_sim(*map(torch.from_numpy, (query, x)))) if len(x) else -np.inf
            for x in corpus
        ]
        assert places[i].tolist() == sorted(range(5), key=lambda j, one=one: (-round(one[j], 4), j))
        assert scores[i] == pytest.approx(
            [one[j] for j in places[i]], rel=2e-6, abs=1e-5
        )  # scores of up to 30
    assert late_top_k(Matrices.of([], 5), corpus, 2)[0].shape == (0, 2)
    with pytest.raises(InputError, match="width 5 and the corpus 4"):
        late_top_k(matrices([2]), Matrices.of([np.zeros((1, 4), np.float32)], 4), 1)


def test_matrices_on_disk():
    corpus = matrices([3, 0, 5])
    again = Matrices.from_tensors(corpus.tensors())
    assert [len(again[i]) for i in range(3)] == [3, 0, 5]
    assert (again[2] == corpus[2]).all()
    assert (len(again), again.shape) == (3, (3, 5))
    for starts in ([0, 4, 3, 8], [1, 3, 8], [0, 3, 9], [[0, 8]]):
        with pytest.raises(ValueError, match="starts do not divide the rows"):
            Matrices.from_tensors(corpus.tensors() | {"starts": torch.tensor(starts)})
