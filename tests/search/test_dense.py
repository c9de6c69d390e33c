"""Top k and closest pairs against sorted float64 cosines, for every kind of vectors."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from minisbert.core import InputError
from minisbert.search.dense import ReadByRows, by_score, closest_pairs, score_dtype, top_k

# Many blocks, and float32 products however many results are asked for.
SMALL = {"block": 8, "dtype": torch.float32}


def normal(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def cosines(queries: np.ndarray, corpus: np.ndarray) -> np.ndarray:
    """All cosines (Q, N), from float64 rounded to float32."""
    u = queries.astype(np.float64)
    v = corpus.astype(np.float64)
    u = u / np.maximum(np.linalg.norm(u, axis=1, keepdims=True), 1e-12)
    v = v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-12)
    return (u @ v.T).astype(np.float32)


def assert_nearest(queries: np.ndarray, corpus: np.ndarray, k: int) -> None:
    """Scores are those of a full sort, and so are the rows where float32 can tell them apart."""
    expected = cosines(queries, corpus)
    ranked = -np.sort(-expected, axis=1)
    scores, indices = top_k(queries, corpus, k, **SMALL)
    bound = np.full(scores.shape, 1.2e-7)
    # The exception that top_k documents: a row beyond place k that is nearer than 1e-6 may swap.
    if k < len(corpus):
        bound[ranked[:, :k] - ranked[:, k : k + 1] < 1e-6] = 1e-6
    assert (abs(scores - ranked[:, :k]) <= bound).all()
    of_indices = np.take_along_axis(expected, indices, axis=1)
    np.testing.assert_allclose(scores, of_indices, atol=1.2e-7, rtol=0)
    assert all(len(set(row)) == k for row in indices.tolist())


# ------------------------------------------------------------------------------------------- top_k


@given(
    arrays(np.float32, (3, 7), elements=st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0])),
    st.permutations(range(7)),
)
def test_sorted_by_score_then_by_row(scores, rows):
    """Ties would otherwise depend on blocks and on the CPU."""
    best, order = by_score(torch.from_numpy(scores), torch.tensor(rows).expand(3, 7))
    for row in range(3):
        pairs = list(zip(scores[row].tolist(), rows, strict=True))
        expected = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))
        assert list(zip(best[row].tolist(), order[row].tolist(), strict=True)) == expected


def test_float64_compares_if_most_scores_would_be_computed_again():
    """One alone costs as much as 64 in a block; distances are never compared in float32."""
    assert score_dtype(10, 641, "cosine") == torch.float32
    assert score_dtype(10, 640, "cosine") == torch.float64
    assert score_dtype(10, 10**6, "dot") == torch.float32
    assert score_dtype(10, 10**6, "euclidean") == torch.float64


@pytest.fixture(scope="module")
def of_all_lengths() -> np.ndarray:
    """70 vectors, from short to long."""
    generator = np.random.default_rng(5)
    return generator.normal(size=(70, 9)) * generator.uniform(0.1, 20, size=(70, 1))


def all_scores(x: np.ndarray, similarity: str) -> np.ndarray:
    """Every score of every vector with every other, (N, N), in float64."""
    x = x.astype(np.float64)
    if similarity == "dot":
        return x @ x.T
    norm = {"euclidean": 2, "manhattan": 1}[similarity]
    return -np.linalg.norm(x[:, None] - x[None], axis=2, ord=norm)


SIMILARITIES = [
    ("dot", None),  # float64, for so many results of so few vectors
    ("dot", torch.float32),
    ("euclidean", None),
    ("manhattan", None),
]


@pytest.mark.parametrize(("similarity", "dtype"), SIMILARITIES)
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
def test_top_k_by_other_similarities_is_a_full_sort(of_all_lengths, similarity, dtype, kind):
    vectors = of_all_lengths.astype(kind)
    every = all_scores(vectors, similarity)
    order = np.argsort(-every, axis=1, kind="stable")[:, :12]
    scores, indices = top_k(vectors, vectors, 12, similarity=similarity, block=8, dtype=dtype)
    assert indices.tolist() == order.tolist()
    expected = np.take_along_axis(every, order, axis=1)
    np.testing.assert_allclose(scores, expected, rtol=2e-7, atol=1e-12)


@pytest.mark.parametrize(("similarity", "dtype"), SIMILARITIES)
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
def test_closest_pairs_by_other_similarities_are_a_full_sort(
    of_all_lengths, similarity, dtype, kind
):
    vectors = of_all_lengths.astype(kind)
    every = all_scores(vectors, similarity)
    expected = []
    for i in range(70):
        expected += [(-every[i, j], i, j) for j in range(i + 1, 70)]
    expected = sorted(expected)[:40]
    scores, pairs = closest_pairs(vectors, 40, similarity=similarity, block=8, dtype=dtype)
    assert pairs.tolist() == [[i, j] for _, i, j in expected]
    np.testing.assert_allclose(scores, [-score for score, _, _ in expected], rtol=2e-7, atol=1e-12)


def test_an_unknown_similarity_is_refused():
    with pytest.raises(InputError, match="similarity"):
        top_k(normal(2, 3), normal(2, 3), 1, similarity="maxsim")


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
def test_numbers_too_large_for_scores_that_are_not_scaled(similarity):
    """Squares that fit float64, and products that do not fit float32."""
    too_large = np.array([[1.0, 0, 0], [1e30, 0, 0]])
    with pytest.raises(InputError, match="row 1"):
        top_k(normal(2, 3), too_large, 1, similarity=similarity)


@pytest.fixture(scope="module")
def copies() -> np.ndarray:
    """78 vectors: row 0, 40 others, and 37 copies of row 0."""
    first = normal(5, 384)[:1]
    return np.concatenate([first, normal(40, 384, seed=1), np.repeat(first, 37, axis=0)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("block", [1, 7, 64, 5000])
@pytest.mark.parametrize("k", [3, 38])
def test_copies_tie_by_row_in_any_position(copies, block, dtype, k):
    """A product of float32 gives copies other last bits in other blocks."""
    scores, indices = top_k(normal(5, 384), copies, k, block=block, dtype=dtype)
    assert indices[0].tolist() == [0, *range(41, 78)][:k]
    assert (scores[0] == 1).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("block", [1, 7, 64, 5000])
def test_pairs_of_copies_tie_by_their_rows(copies, block, dtype):
    scores, pairs = closest_pairs(copies, 60, block=block, dtype=dtype)
    assert pairs[:37].tolist() == [[0, j] for j in range(41, 78)]
    assert pairs[37:].tolist() == [[41, j] for j in range(42, 65)]
    assert (scores == 1).all()


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 90), st.integers(2, 40), st.data())
def test_top_k_is_a_full_sort(seed, count, size, width, data):
    """Some rows are multiples of others, and one is zero."""
    generator = np.random.default_rng(seed)
    corpus = generator.normal(size=(size, width))
    corpus[size // 2 :] = corpus[generator.integers(0, size, size - size // 2)] * 4
    corpus[0] = 0
    queries = np.concatenate([corpus[:count], generator.normal(size=(count, width))])
    assert_nearest(queries, corpus, data.draw(st.integers(1, size)))


@pytest.mark.parametrize("k", [1, 20])
@pytest.mark.parametrize("step", [1, -1], ids=["better and better", "worse and worse"])
def test_a_corpus_in_the_order_of_its_scores(k, step):
    """Every block has new results, or none after the first."""
    generator = np.random.default_rng(3)
    queries = generator.normal(size=(7, 33))
    corpus = generator.normal(size=(300, 33))
    order = np.argsort(cosines(queries[:1], corpus)[0])
    assert_nearest(queries, corpus[order][::step], k)


@pytest.mark.parametrize("k", [1, 20])
def test_a_corpus_of_one_vector(k):
    """Every block has more ties than results."""
    generator = np.random.default_rng(3)
    queries = generator.normal(size=(7, 33))
    corpus = np.repeat(generator.normal(size=(1, 33)), 300, axis=0)
    _, indices = top_k(queries, corpus, k, **SMALL)
    assert indices.tolist() == [list(range(k))] * 7
    assert_nearest(queries, corpus, k)


@pytest.mark.parametrize("k", [1, 20])
def test_a_corpus_of_few_different_scores(k):
    generator = np.random.default_rng(3)
    queries = generator.normal(size=(7, 3))
    corpus = np.sign(generator.normal(size=(300, 3))) * [1, 1, 0]
    assert_nearest(queries, corpus, k)


@pytest.fixture(params=["float32", "float16"])
def stored(request, tmp_path) -> np.ndarray:
    """23 vectors on disk, four of them equal."""
    vectors = normal(23, 8).astype(request.param)
    vectors[[5, 6, 19]] = vectors[14]
    np.save(tmp_path / "vectors.npy", vectors)
    return np.load(tmp_path / "vectors.npy", mmap_mode="r")


class Counted(ReadByRows):
    """Counts the rows of every read."""

    def __init__(self, vectors: np.ndarray):
        self.vectors = vectors
        self.shape = vectors.shape
        self.dtype = vectors.dtype
        self.counts: list[int] = []

    def __getitem__(self, rows):
        block = self.vectors[rows]
        self.counts.append(len(block))
        return block


@pytest.mark.parametrize("k", [1, 9, 23])
def test_vectors_on_disk_are_searched_as_those_in_memory(stored, k):
    in_memory = np.array(stored)
    scores, indices = top_k(in_memory[:2], in_memory, k, block=2)
    for source in (stored, Counted(stored)):
        stored_scores, stored_indices = top_k(in_memory[:2], source, k, block=2)
        np.testing.assert_array_equal(stored_scores, scores)
        np.testing.assert_array_equal(stored_indices, indices)


def test_pairs_of_vectors_on_disk_are_those_in_memory(stored):
    scores, pairs = closest_pairs(np.array(stored), 253, block=2)
    stored_scores, stored_pairs = closest_pairs(Counted(stored), 253, block=2)
    np.testing.assert_array_equal(stored_scores, scores)
    np.testing.assert_array_equal(stored_pairs, pairs)


def test_vectors_on_disk_are_never_read_as_a_whole(stored):
    """They may be larger than the memory."""
    source = Counted(stored)
    top_k(np.array(stored[:2]), source, 1, block=2)
    assert max(source.counts) <= 4 * 2


@pytest.mark.parametrize(
    ("scale", "kind"),
    [
        (1e150, np.float64),
        (1e-100, np.float64),
        (1e30, np.float64),
        (1e30, np.float32),
        (3e-12, np.float64),
        (3e-12, np.float32),
    ],
)
@pytest.mark.parametrize("scaled", [[0, 1], [0, 1, 2, 3]])
def test_cosines_of_numbers_whose_squares_overflow_or_vanish_in_float32(scale, kind, scaled):
    """[3, 4] and [1, 0] have cosine 0.6 at any scale, and a zero vector keeps cosine 0."""
    vectors = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
    vectors[scaled] *= scale
    vectors = vectors.astype(kind)
    scores, indices = top_k(vectors[:1], vectors, 4)
    np.testing.assert_allclose(scores, [[1.0, 0.8, 0.6, 0.0]], atol=1e-7, rtol=0)  # float32
    assert indices.tolist() == [[0, 3, 1, 2]]
    scores, pairs = closest_pairs(vectors, 2)
    np.testing.assert_allclose(scores, [0.8, 0.6], atol=1e-7, rtol=0)
    assert pairs.tolist() == [[0, 3], [0, 1]]


NUMBERS = np.array([[1.0, 0.5], [-2.0, 1.0], [0.25, 4.0]])
KINDS = {
    "list": NUMBERS.tolist(),
    "float64": NUMBERS,
    "int64": (4 * NUMBERS).astype(np.int64),
    "float16": NUMBERS.astype(np.float16),
    "big-endian": NUMBERS.astype(">f4"),
    "read-only": np.frombuffer(NUMBERS.tobytes()).reshape(3, 2),
    "tensor": torch.tensor(NUMBERS),
    "bfloat16": torch.tensor(NUMBERS, dtype=torch.bfloat16),
    "reversed": NUMBERS[::-1].copy()[::-1],
    "with gradient": torch.tensor(NUMBERS, requires_grad=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_of_every_kind(kind):
    scores, indices = top_k(KINDS[kind], KINDS[kind], 3)
    assert indices.tolist() == [[0, 2, 1], [1, 2, 0], [2, 0, 1]]
    assert type(scores) is np.ndarray
    assert scores.dtype == np.float32


def with_number(row: int, value: float, rows: int = 4) -> np.ndarray:
    """Vectors of ones, but for one number."""
    vectors = np.ones((rows, 2))
    vectors[row, 1] = value
    return vectors


ONE = np.ones((1, 2))
FOUR = np.ones((4, 2))


@pytest.mark.parametrize(
    ("queries", "corpus", "k", "message"),
    [
        (ONE, FOUR, 5, r"between 1 and 4 \(the corpus size\), got 5"),
        (ONE, FOUR, 0, "got 0"),
        (ONE, FOUR, 2.5, "got 2.5"),
        (ONE, np.ones((4, 3)), 1, "queries have width 2 and the corpus 3"),
        (ONE, FOUR[:0], 1, r"the corpus: .* \(0, 2\)"),
        (ONE[0], FOUR, 1, r"the queries: .* \(2,\)"),
        (ONE, with_number(5000, math.nan, 6000), 1, "the corpus, row 5000"),
        (with_number(1, math.inf), FOUR, 1, "the queries, row 1"),
        ([["a cat"]], FOUR, 1, "the queries .* <U5"),
        (ONE, [[1, 2], [3]], 1, "the corpus: .*inhomogeneous"),
        (ONE, FOUR * 1j, 1, "the corpus .* complex128"),
    ],
)
def test_what_cannot_be_searched_is_refused_by_name(queries, corpus, k, message):
    with pytest.raises(InputError, match=message):
        top_k(queries, corpus, k)


# ----------------------------------------------------------------------------------- closest_pairs


def test_more_pairs_than_there_are_are_refused():
    with pytest.raises(InputError, match=r"between 1 and 6 \(the number of pairs\)"):
        closest_pairs(FOUR, 7)


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(2, 40), st.data())
def test_closest_pairs_are_a_full_sort(seed, count, data):
    vectors = np.random.default_rng(seed).normal(size=(count, 12))
    k = data.draw(st.integers(1, count * (count - 1) // 2))
    every = cosines(vectors, vectors)
    expected = np.sort(every[np.triu_indices(count, 1)])[::-1][:k]
    scores, pairs = closest_pairs(vectors, k, **SMALL)
    np.testing.assert_allclose(scores, expected, atol=1.2e-7, rtol=0)
    np.testing.assert_allclose(scores, every[pairs[:, 0], pairs[:, 1]], atol=1.2e-7, rtol=0)
    assert (pairs[:, 0] < pairs[:, 1]).all()
    assert len({(i, j) for i, j in pairs.tolist()}) == k
