"""Top k and closest pairs against sorted float64 cosines, for every kind of vectors."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from minisbert.core import InputError
from minisbert.search import dense as search
from minisbert.search.dense import ReadByRows, by_score, closest_pairs, top_k


def normal(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


@pytest.fixture
def small_blocks(monkeypatch):
    """Many blocks, and float32 products however many results are asked for."""
    monkeypatch.setattr(search, "BLOCK", 8)
    monkeypatch.setattr(search, "ALONE", 1e-9)


def cosines(queries: np.ndarray, corpus: np.ndarray) -> np.ndarray:
    """All cosines (Q, N), from float64 rounded to float32."""
    u, v = (x.astype(np.float64) for x in (queries, corpus))
    u, v = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (u, v))
    return (u @ v.T).astype(np.float32)


def assert_nearest(queries: np.ndarray, corpus: np.ndarray, k: int) -> None:
    """The scores of a full sort, and of vectors that float32 can tell apart the same rows."""
    expected = cosines(queries, corpus)
    ranked = -np.sort(-expected, axis=1)
    scores, indices = top_k(queries, corpus, k)
    bound = np.full(scores.shape, 1.2e-7)
    if k < len(
        corpus
    ):  # the exception that top_k documents: a row beyond place k that is nearer than 1e-6 may swap
        bound[ranked[:, :k] - ranked[:, k : k + 1] < 1e-6] = 1e-6
    assert (abs(scores - ranked[:, :k]) <= bound).all()
    np.testing.assert_allclose(
        scores, np.take_along_axis(expected, indices, axis=1), atol=1.2e-7, rtol=0
    )
    assert all(len({*row}) == k for row in indices.tolist())


# ------------------------------------------------------------------------------------------- top_k


@given(
    arrays(np.float32, (3, 7), elements=st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0])),
    st.permutations(range(7)),
)
def test_sorted_by_score_then_by_row(scores, rows):
    found = by_score(torch.from_numpy(scores), torch.tensor(rows).expand(3, 7))
    for row in range(3):
        order = sorted(
            zip(scores[row].tolist(), rows, strict=True), key=lambda pair: (-pair[0], pair[1])
        )
        assert [*zip(found[0][row].tolist(), found[1][row].tolist(), strict=True)] == order


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("alone", [64, 1e-9])  # float64 for so many results, or float32
@pytest.mark.parametrize("name", ["dot", "euclidean", "manhattan"])
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
def test_other_similarities_are_a_full_sort(monkeypatch, name, kind, alone):
    """Vectors of very different lengths, against float64."""
    monkeypatch.setattr(search, "ALONE", alone)
    generator = np.random.default_rng(5)
    vectors = (generator.normal(size=(70, 9)) * generator.uniform(0.1, 20, size=(70, 1))).astype(
        kind
    )
    x = vectors.astype(np.float64)
    every = x @ x.T
    if name != "dot":
        every = -np.linalg.norm(
            x[:, None] - x[None], axis=2, ord={"euclidean": 2, "manhattan": 1}[name]
        )
    order = np.argsort(-every, axis=1, kind="stable")[:, :12]
    scores, indices = top_k(vectors, vectors, 12, similarity=name)
    assert indices.tolist() == order.tolist()
    np.testing.assert_allclose(
        scores, np.take_along_axis(every, order, axis=1), rtol=2e-7, atol=1e-12
    )
    scores, pairs = closest_pairs(vectors, 40, similarity=name)
    expected = sorted((-every[i, j], i, j) for i in range(70) for j in range(i + 1, 70))[:40]
    assert pairs.tolist() == [[i, j] for _, i, j in expected]
    np.testing.assert_allclose(scores, [-score for score, _, _ in expected], rtol=2e-7, atol=1e-12)


def test_what_no_similarity_can_compare_is_refused():
    with pytest.raises(InputError, match="similarity"):
        top_k(normal(2, 3), normal(2, 3), 1, similarity="maxsim")
    for name in (
        "dot",
        "euclidean",
    ):  # squares that fit float64, and products that do not fit float32
        with pytest.raises(InputError, match="row 1"):
            top_k(normal(2, 3), np.array([[1.0, 0, 0], [1e30, 0, 0]]), 1, similarity=name)


@pytest.mark.parametrize("alone", [64, 1e-9])  # float64 for so many results, or float32
@pytest.mark.parametrize("block", [1, 7, 64, 5000])
def test_copies_tie_by_row_in_any_position(monkeypatch, block, alone):
    monkeypatch.setattr(search, "BLOCK", block)
    monkeypatch.setattr(search, "ALONE", alone)
    vectors = normal(5, 384)
    corpus = np.concatenate([vectors[:1], normal(40, 384, seed=1), vectors[[0] * 37]])
    for k in (3, 38):
        scores, indices = top_k(vectors, corpus, k)
        assert indices[0].tolist() == [0, *range(41, 78)][:k]
        assert (scores[0] == 1).all()
    scores, pairs = closest_pairs(corpus, 60)
    assert pairs.tolist() == [[0, j] for j in range(41, 78)] + [[41, j] for j in range(42, 65)]
    assert (scores == 1).all()


@pytest.mark.usefixtures("small_blocks")
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 90), st.integers(2, 40), st.data())
def test_top_k_is_a_full_sort(seed, count, size, width, data):
    """Some rows are multiples of others, and one is zero."""
    generator = np.random.default_rng(seed)
    corpus = generator.normal(size=(size, width))
    corpus[size // 2 :] = corpus[generator.integers(0, size, size - size // 2)] * 4
    corpus[0] = 0
    queries = np.concatenate([corpus[:count], generator.normal(size=(count, width))])
    assert_nearest(queries, corpus, data.draw(st.integers(1, size)))


@pytest.mark.parametrize("kind", ["better and better", "worse and worse", "all equal", "few"])
@pytest.mark.parametrize("k", [1, 20])
@pytest.mark.usefixtures("small_blocks")
def test_a_corpus_of_any_order(kind, k):
    """Every block has new results, or more ties than results."""
    generator = np.random.default_rng(3)
    queries, corpus = generator.normal(size=(7, 33)), generator.normal(size=(300, 33))
    if "better" in kind or "worse" in kind:
        corpus = corpus[np.argsort(cosines(queries[:1], corpus)[0])][
            :: 1 if "better" in kind else -1
        ]
    if kind == "all equal":
        corpus = np.repeat(corpus[:1], 300, axis=0)
        assert top_k(queries, corpus, k)[1].tolist() == [[*range(k)]] * 7
    if kind == "few":
        corpus, queries = np.sign(corpus[:, :3]) * [1, 1, 0], queries[:, :3]
    assert_nearest(queries, corpus, k)


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_vectors_on_disk_are_never_read_as_a_whole(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(search, "BLOCK", 2)
    vectors = normal(23, 8).astype(kind)
    vectors[[5, 6, 19]] = vectors[14]
    np.save(tmp_path / "vectors.npy", vectors)
    stored, sizes = np.load(tmp_path / "vectors.npy", mmap_mode="r"), []

    class Counted(ReadByRows):
        shape, dtype = stored.shape, stored.dtype

        def __getitem__(self, rows):
            sizes.append(len(stored[rows]))
            return stored[rows]

    for k in (1, 9, 23):
        for source in (stored, Counted()):
            for ours, expected in zip(
                top_k(vectors[:2], source, k), top_k(vectors[:2], vectors, k), strict=True
            ):
                np.testing.assert_array_equal(ours, expected)
        if k == 1:
            assert max(sizes) <= 4 * 2
    for ours, expected in zip(
        closest_pairs(Counted(), 253), closest_pairs(vectors, 253), strict=True
    ):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("scale", [1e30, 1e150, 1e-100, 3e-12])
@pytest.mark.parametrize("mixed", [False, True])
def test_cosines_of_numbers_whose_squares_overflow_or_vanish_in_float32(scale, mixed):
    """[3, 4] and [1, 0] have cosine 0.6 at any scale, and a zero vector keeps cosine 0."""
    vectors = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
    vectors[[0, 1] if mixed else slice(None)] *= scale
    for same in (
        [vectors] if scale > 1e38 or scale < 1e-37 else [vectors, vectors.astype(np.float32)]
    ):
        scores, indices = top_k(same[:1], same, 4)
        np.testing.assert_allclose(scores, [[1.0, 0.8, 0.6, 0.0]], atol=1e-7, rtol=0)  # float32
        assert indices.tolist() == [[0, 3, 1, 2]]
        scores, pairs = closest_pairs(same, 2)
        np.testing.assert_allclose(scores, [0.8, 0.6], atol=1e-7, rtol=0)
        assert pairs.tolist() == [[0, 3], [0, 1]]


NUMBERS = np.array([[1.0, 0.5], [-2.0, 1.0], [0.25, 4.0]])
SAME = {
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


@pytest.mark.parametrize("kind", SAME)
def test_vectors_of_every_kind(kind):
    scores, indices = top_k(SAME[kind], SAME[kind], 3)
    assert indices.tolist() == [[0, 2, 1], [1, 2, 0], [2, 0, 1]]
    assert (type(scores), scores.dtype) == (np.ndarray, np.float32)


def bad(row: int, value: float, rows: int = 4) -> np.ndarray:
    vectors = np.ones((rows, 2))
    vectors[row, 1] = value
    return vectors


ONE, FOUR = np.ones((1, 2)), np.ones((4, 2))


@pytest.mark.parametrize(
    ("queries", "corpus", "k", "message"),
    [
        (ONE, FOUR, 5, r"between 1 and 4 \(the corpus size\), got 5"),
        (ONE, FOUR, 0, "got 0"),
        (ONE, FOUR, 2.5, "got 2.5"),
        (ONE, np.ones((4, 3)), 1, "queries have width 2 and the corpus 3"),
        (ONE, FOUR[:0], 1, r"the corpus: .* \(0, 2\)"),
        (ONE[0], FOUR, 1, r"the queries: .* \(2,\)"),
        (ONE, bad(5000, math.nan, 6000), 1, "the corpus, row 5000"),
        (bad(1, math.inf), FOUR, 1, "the queries, row 1"),
        ([["a cat"]], FOUR, 1, "the queries .* <U5"),
        (ONE, [[1, 2], [3]], 1, "the corpus: .*inhomogeneous"),
        (ONE, FOUR * 1j, 1, "the corpus .* complex128"),
        (None, FOUR, 7, r"between 1 and 6 \(the number of pairs\)"),
    ],
)
def test_invalid_input_is_an_error(queries, corpus, k, message):
    with pytest.raises(InputError, match=message):
        closest_pairs(corpus, k) if queries is None else top_k(queries, corpus, k)


# ----------------------------------------------------------------------------------- closest_pairs


@pytest.mark.usefixtures("small_blocks")
@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(2, 40), st.data())
def test_closest_pairs_are_a_full_sort(seed, count, data):
    vectors = np.random.default_rng(seed).normal(size=(count, 12))
    k = data.draw(st.integers(1, count * (count - 1) // 2))
    expected, (rows, columns) = cosines(vectors, vectors), np.triu_indices(count, 1)
    scores, pairs = closest_pairs(vectors, k)
    np.testing.assert_allclose(
        scores, np.sort(expected[rows, columns])[::-1][:k], atol=1.2e-7, rtol=0
    )
    np.testing.assert_allclose(scores, expected[tuple(pairs.T)], atol=1.2e-7, rtol=0)
    assert (pairs[:, 0] < pairs[:, 1]).all()
    assert len({*map(tuple, pairs.tolist())}) == k
