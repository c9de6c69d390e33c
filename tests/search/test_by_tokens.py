"""MaxSim: worked numbers, the reference's scores and loss, exact search, matrices on disk."""

import numpy as np
import pytest
import torch

from minisbert.core import InputError
from minisbert.search.by_tokens import Matrices, late_top_k, max_sim, max_sim_matrix
from minisbert.training.losses import late_ranking_loss
from tests.parity import GRADIENT, PIECE, assert_parity


def matrices(lengths: list[int], seed: int = 0) -> Matrices:
    generator = np.random.default_rng(seed)
    return Matrices.of([generator.standard_normal((length, 5)).astype(np.float32) for length in lengths], 5)


def padded(lengths: list[int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random matrices (N, T, 5) in float64, and which of their tokens are real."""
    rows = [torch.from_numpy(matrix).double() for matrix in matrices(lengths, seed)]
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), real


def test_all_with_all_is_one_with_one():
    (a, _), (b, real) = padded([3, 3], 1), padded([4, 2, 7], 2)
    found, documents = max_sim_matrix(a, b, real), matrices([4, 2, 7], 2)
    for i, query in enumerate(a):
        for j in range(3):
            assert_parity("one", found[i, j], max_sim(query, b[j][real[j]]), PIECE)
        assert documents.scores(query.float().numpy()) == pytest.approx(found[i].numpy(), rel=2e-6, abs=1e-5)


@pytest.mark.reference
def test_loss_and_gradients_equal_the_references():
    from sentence_transformers.multi_vector_encoder.scoring import colbert_scores

    (a, _), (b, real) = padded([4, 4, 4], 3), padded([6, 2, 5], 4)
    ours = [x.clone().requires_grad_() for x in (a, b)]
    theirs = [x.clone().float().requires_grad_() for x in (a, b)]
    loss = late_ranking_loss(*ours, real)
    scores = colbert_scores(theirs[0], theirs[1][:, None], documents_mask=real[:, None])
    expected = torch.nn.functional.cross_entropy(scores, torch.arange(3))
    # the reference computes in float32: a score of 25 is off by 2.5e-5 where products are by 1e-6, as on other CPUs,
    # and a gradient by up to a quarter of that times a number of the vectors
    assert_parity("loss", loss, expected.double(), 2e-5)
    for x in (loss, expected):
        x.backward()
    for x, y in zip(ours, theirs, strict=True):
        assert_parity("gradient", x.grad, y.grad.double(), 2e-5)


def test_the_gradient_of_the_loss_is_its_slope():
    (a, _), (b, real) = padded([2, 2], 5), padded([3, 2], 6)
    inputs = a.requires_grad_(), b.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, y: late_ranking_loss(x, y, real), inputs)
    late_ranking_loss(a, b, real).backward()
    assert_parity("pads", b.grad[~real], torch.zeros_like(b.grad[~real]), GRADIENT)


def test_search_is_exact_with_ties_by_index_and_empty_documents():
    corpus = matrices([3, 0, 5, 1, 4], 7)
    corpus = Matrices.of([corpus[i] for i in (0, 1, 2, 0, 4)], 5)
    queries = matrices([4, 2, 6], 8)
    scores, places = late_top_k(queries, corpus, 5)
    for i, query in enumerate(queries):
        one = [float(max_sim(*map(torch.from_numpy, (query, x)))) if len(x) else -np.inf for x in corpus]
        assert places[i].tolist() == sorted(range(5), key=lambda j, one=one: (-round(one[j], 4), j))
        assert scores[i] == pytest.approx([one[j] for j in places[i]], rel=2e-6, abs=1e-5)  # scores of up to 30
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
