"""Top k and closest pairs against slow loops, a stable sort and sentence-transformers."""

import math
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from minisbert.core import InputError
from minisbert.search import dense as search
from minisbert.search import matrices
from minisbert.search.dense import closest_pairs, k_best, kth_best, top_k
from minisbert.search.matrices import Chosen, Matrix, Stacked, error_bound
from minisbert.system.torch_internals import products

# few values, so that ties and zero vectors are frequent
levels = st.sampled_from([-1.0, 0.0, 0.5, 2.0])


def normal(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def assert_same(found: tuple, expected: tuple) -> None:
    for ours, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, wanted)


# ------------------------------------------------------------------------------------------ k_best


@given(arrays(np.float64, (3, 7), elements=levels), st.integers(1, 7))
def test_k_best_equals_a_stable_sort(scores, k):
    values, columns = k_best(torch.from_numpy(scores), k)
    for row in range(3):
        order = sorted(range(7), key=lambda column: (-scores[row, column], column))[:k]
        assert columns[row].tolist() == order
        assert values[row].tolist() == [scores[row, column] for column in order]


@pytest.mark.parametrize("k", [1, 3, 4, 5, 70])
def test_the_rough_kth_best_is_never_above_the_exact_one(k):
    scores = torch.from_numpy(normal(70, 6))
    exact = scores.sort(dim=0, descending=True).values[k - 1]
    assert torch.equal(kth_best(scores, k, rough=False), exact)
    rough = kth_best(scores, k, rough=True)
    assert (rough <= exact).all()
    assert (rough > exact - 2).all()


# ------------------------------------------------------------------------------------------- top_k


def test_cosines_by_hand():
    scores, indices = top_k(np.array([[3.0, 4.0]]), np.array([[1.0, 0.0], [0.0, 2.0], [-3.0, -4.0], [6.0, 8.0]]), 4)
    np.testing.assert_allclose(scores, [[1.0, 0.8, 0.6, -1.0]], atol=1e-7, rtol=0)  # float32
    assert indices.tolist() == [[3, 1, 0, 2]]


@pytest.mark.parametrize("block", [1, 7, 64, 5000])
def test_equal_vectors_tie_in_any_position(monkeypatch, block):
    """In float32 the last digit of a product would depend on its position in the block."""
    monkeypatch.setattr(search, "BLOCK", block)
    vectors = normal(5, 384)
    corpus = np.concatenate([vectors[:1], normal(40, 384, seed=1), vectors[[0] * 37]])
    scores, indices = top_k(vectors, corpus, 38)
    assert indices[0].tolist() == [0, *range(41, 78)]
    assert (scores[0] == 1).all()


# ------------------------------------------------------------------ float32 products, exact scores


@pytest.fixture
def candidates_only(monkeypatch):
    """Small blocks, and never an exact score of every pair because they are few."""
    monkeypatch.setattr(search, "BLOCK", 8)
    monkeypatch.setattr(search, "ALONE", 1e-9)


def exact_scores(queries: np.ndarray, corpus: np.ndarray) -> np.ndarray:
    """All cosines (Q, N) in float64, rounded to float32."""
    u, v = (x.astype(np.float64) for x in (queries, corpus))
    u, v = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (u, v))
    return (u @ v.T).astype(np.float32)


def assert_exact(queries: np.ndarray, corpus: np.ndarray, k: int) -> None:
    """Bit by bit what sorting all exact scores gives, ties by index."""
    expected = exact_scores(queries, corpus)
    order = np.argsort(-expected, axis=1, kind="stable")[:, :k]
    scores, indices = top_k(queries, corpus, k)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(scores, np.take_along_axis(expected, order, axis=1))


def with_near_ties(corpus: np.ndarray, generator: np.random.Generator, step: float) -> np.ndarray:
    """Half of the rows become copies of others: scaled by powers of 2, or turned by about ``step``; one is zero."""
    corpus = corpus.astype(np.float64)
    copies = generator.choice(len(corpus), len(corpus) // 2)
    corpus[copies] = corpus[generator.permutation(copies)] * 2.0 ** generator.integers(-2, 3, (len(copies), 1))
    turned = copies[::2]
    corpus[turned] += step * generator.normal(size=(len(turned), corpus.shape[1]))
    corpus[copies[:1]] = 0
    return corpus


@pytest.mark.usefixtures("candidates_only")
@given(
    st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 90), st.integers(1, 40), st.sampled_from([1e-8, 1e-6]),
    st.sampled_from(["float32", "float64"]), st.data(),
)  # fmt: skip
def test_top_k_is_exact_among_near_ties(seed, count, size, width, step, dtype, data):
    """A float32 product cannot tell vectors apart that are 1e-8 from each other."""
    generator = np.random.default_rng(seed)
    corpus = with_near_ties(generator.normal(size=(size, width)), generator, step).astype(dtype)
    queries = np.concatenate([corpus[:count], generator.normal(size=(count, width)).astype(dtype)])
    assert_exact(queries, corpus, data.draw(st.integers(1, size)))


@pytest.mark.parametrize("kind", ["better and better", "worse and worse", "all equal", "all nearly equal", "few"])
@pytest.mark.parametrize("k", [1, 20])
@pytest.mark.usefixtures("candidates_only")
def test_top_k_is_exact_in_a_corpus_of_any_order(kind, k):
    """Every block has new candidates, or more ties than results."""
    generator = np.random.default_rng(3)
    queries, corpus = generator.normal(size=(7, 33)), generator.normal(size=(300, 33))
    if "better" in kind or "worse" in kind:
        corpus = corpus[np.argsort(exact_scores(queries[:1], corpus)[0])][:: 1 if "better" in kind else -1]
    if "equal" in kind:
        corpus = corpus[:1] + (1e-8 if "nearly" in kind else 0.0) * corpus
    if kind == "few":
        corpus = np.sign(corpus[:, :3]) * [1, 1, 0]
        queries = queries[:, :3]
    assert_exact(queries, corpus, k)


@pytest.mark.parametrize("setting", ["medium", "high", "autocast"])
def test_lower_precision_for_other_products_does_not_matter(monkeypatch, setting):
    monkeypatch.setattr(search, "BLOCK", 64)
    generator = np.random.default_rng(4)
    corpus = with_near_ties(generator.normal(size=(300, 64)), generator, 1e-4).astype(np.float32)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest" if setting == "autocast" else setting)
        with torch.autocast("cpu", torch.bfloat16, enabled=setting == "autocast"):
            assert_exact(corpus[:40], corpus, 3)
            assert closest_pairs(corpus, 40)[1].tolist() == [[i, j] for _, i, j in sorted_pairs(corpus)[:40]]
    finally:
        torch.set_float32_matmul_precision(before)


def sorted_pairs(vectors: np.ndarray) -> list[tuple[float, int, int]]:
    """(-score, i, j) of every pair i < j, best first."""
    scores = exact_scores(vectors, vectors)
    rows, columns = np.triu_indices(len(vectors), 1)
    return sorted(zip((-scores[rows, columns]).tolist(), rows.tolist(), columns.tolist(), strict=True))


@pytest.mark.usefixtures("candidates_only")
@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(2, 30), st.integers(1, 20), st.data())
def test_closest_pairs_are_exact_among_near_ties(seed, count, width, data):
    generator = np.random.default_rng(seed)
    vectors = with_near_ties(generator.normal(size=(count, width)), generator, 1e-8)
    k = data.draw(st.integers(1, count * (count - 1) // 2))
    scores, pairs = closest_pairs(vectors, k)
    # a vector and its double are nearly as long as 1: their cosine may round to 1 or to the number below
    expected = sorted_pairs(vectors)[:k]
    assert list(zip((-scores).tolist(), *pairs.T.tolist(), strict=True)) == expected


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("scale", [1.0, 1e-9, 3e4, 1e25])
@pytest.mark.parametrize("width", [1, 7, 384, 5000])
def test_float32_products_keep_their_bound(width, scale):
    """Vectors without negative numbers have the largest errors: nothing cancels."""
    vectors = scale * abs(normal(40, width))
    matrix = Matrix(vectors, "vectors")
    unit = matrix.unit(slice(0, 40))
    found = products(unit, unit).double().numpy()
    u = vectors.astype(np.float64)
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    assert abs(found - u @ u.T).max() <= error_bound(width)
    assert error_bound(384) < 1e-4  # so that it leaves few candidates


def test_a_read_only_array_is_not_copied(monkeypatch):
    vectors = normal(8, 4)
    vectors.flags.writeable = False
    block = Matrix(vectors, "vectors")[2:5]

    def too_old(array):
        raise BufferError("Cannot export readonly array")

    monkeypatch.setattr(torch, "from_dlpack", too_old)
    copied = Matrix(vectors, "vectors")[2:5]
    assert torch.equal(copied, block)
    assert copied.data_ptr() != vectors[2:].ctypes.data
    new = [tuple(map(int, version.split(".")[:2])) for version in (np.__version__, torch.__version__)]
    if new[0] >= (2, 1) and new[1] >= (2, 13):  # older ones may refuse, as above
        assert block.data_ptr() == vectors[2:].ctypes.data


def test_a_matrix_of_the_corpus_serves_many_calls(monkeypatch):
    queries, corpus = normal(6, 16), normal(300, 16, seed=1)
    expected, ready = top_k(queries, corpus, 4), Matrix(corpus, "corpus")
    names, lengths = [], Matrix._lengths
    monkeypatch.setattr(Matrix, "_lengths", lambda self, start: names.append(self.name) or lengths(self, start))
    for row in range(6):
        found = top_k(queries[row : row + 1], ready, 4)
        assert_same(found, [wanted[row : row + 1] for wanted in expected])
    assert names == ["queries"] * 6


# -------------------------------------------------------------------------------------- stacked parts


SIZES = [[23], [7, 7, 7, 2], [1] * 23, [20, 3], [2, 0, 21, 0]]


def stacked(vectors: np.ndarray, sizes: list[int], folder) -> Stacked:
    """The vectors as memory maps of files with so many rows each."""
    for i, part in enumerate(np.split(vectors, np.cumsum(sizes)[:-1])):
        np.save(folder / f"{i}.npy", part)
    return Stacked(lambda i: np.load(folder / f"{i}.npy", mmap_mode="r"), sizes, *vectors.shape[1:], vectors.dtype)


@pytest.mark.parametrize("sizes", SIZES)
def test_stacked_arrays_have_the_rows_of_one(tmp_path, sizes):
    vectors = normal(23, 3)
    stack = stacked(vectors, sizes, tmp_path)
    assert (stack.shape, len(stack), stack.dtype) == ((23, 3), 23, np.float32)
    for start in range(24):
        for stop in range(start, 30):
            np.testing.assert_array_equal(stack[start:stop], vectors[start:stop])
    for numbers in ([22, 0, 7, 6, 6, 20], [13], range(23), []):
        rows = np.array(numbers, np.int64)
        np.testing.assert_array_equal(stack[rows], vectors[rows])
        np.testing.assert_array_equal(Chosen(stack, rows)[1:3], vectors[rows][1:3])


@pytest.mark.parametrize(("sizes", "kind"), [*zip(SIZES, ["float32", "float64", "float16"] * 2, strict=False)])
def test_a_search_of_stacked_arrays_is_that_of_one(tmp_path, monkeypatch, sizes, kind):
    """Bit by bit, with k larger than a part, blocks that cross their borders, and equal vectors in several."""
    monkeypatch.setattr(search, "BLOCK", 5)
    monkeypatch.setattr(search, "ALONE", 1e-9)  # products in float32 first
    monkeypatch.setattr(matrices, "READ", 6)
    monkeypatch.setattr(matrices, "OPEN", 2)
    vectors = normal(23, 8).astype(kind)
    vectors[[5, 6, 19]] = vectors[14]
    stack = stacked(vectors, sizes, tmp_path)
    for k in (1, 9, 23):
        assert_same(top_k(vectors[:7], stack, k), top_k(vectors[:7], vectors, k))
    for k in (1, 12, 253):
        assert_same(closest_pairs(stack, k), closest_pairs(vectors, k))
    with pytest.raises(InputError, match="the corpus, row 17: NaN or infinity"):
        top_k(np.ones((1, 2)), stacked(bad(17, math.nan, 23), sizes, tmp_path), 1)


def test_many_parts_are_never_in_memory_or_open_all_at_once(tmp_path, monkeypatch):
    """Maps are counted, not bytes: their pages are the system's, which takes them back when it needs them."""
    stacked(normal(200, 16, seed=1), [5] * 40, tmp_path)
    maps, most = [], 0

    def load(i: int) -> np.ndarray:
        nonlocal most
        maps.append(weakref.ref(found := np.load(tmp_path / f"{i}.npy", mmap_mode="r")))
        most = max(most, sum(made() is not None for made in maps))
        return found

    monkeypatch.setattr(matrices, "OPEN", 3)
    monkeypatch.setattr(matrices, "READ", 50)
    monkeypatch.setattr(search, "BLOCK", 20)
    sizes, read = [], Stacked.__getitem__
    monkeypatch.setattr(Stacked, "__getitem__", lambda self, rows: sizes.append(len(y := read(self, rows))) or y)
    stack = Stacked(load, [5] * 40, 16, "float32")
    assert_same(top_k(normal(9, 16), stack, 3), top_k(normal(9, 16), normal(200, 16, seed=1), 3))
    closest_pairs(stack, 3)
    assert 50 <= max(sizes) <= 4 * 20
    assert most <= 3 + 2  # the one that is read, and that of the row before


@pytest.mark.parametrize("scale", [1e30, 1e154, 1e-100, 1e300, 1e-300, 3e-12])
@pytest.mark.parametrize("mixed", [False, True])
def test_cosines_of_numbers_whose_squares_overflow_or_vanish(scale, mixed):
    """[3, 4] and [1, 0] have cosine 0.6 at any scale, and a zero vector keeps cosine 0."""
    vectors = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
    vectors[[0, 1] if mixed else slice(None)] *= scale
    scores, indices = top_k(vectors[:1], vectors, 4)
    np.testing.assert_allclose(scores, [[1.0, 0.8, 0.6, 0.0]], atol=1e-7, rtol=0)  # float32
    assert indices.tolist() == [[0, 3, 1, 2]]
    scores, pairs = closest_pairs(vectors, 2)
    np.testing.assert_allclose(scores, [0.8, 0.6], atol=1e-7, rtol=0)
    assert pairs.tolist() == [[0, 3], [0, 1]]


NUMBERS = np.array([[1.0, 0.5], [-2.0, 1.0], [0.25, 4.0]])
SAME = {
    "list": NUMBERS.tolist(),
    "float64": NUMBERS,
    "int64": (4 * NUMBERS).astype(np.int64),
    "float16": NUMBERS.astype(np.float16),
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
        (ONE, FOUR, 5, "k is 5: it must be 1 to 4, the size of the corpus"),
        (ONE, FOUR, 0, "k is 0: it must be 1 to 4"),
        (ONE, np.ones((4, 3)), 1, "queries of width 2 and a corpus of 3 cannot be compared"),
        (ONE, FOUR[:0], 1, r"the corpus: vectors must be \(N, D\), not \(0, 2\)"),
        (ONE[0], FOUR, 1, r"the queries: vectors must be \(N, D\), not \(2,\)"),
        (ONE[:, :0], FOUR[:, :0], 1, r"the queries: vectors must be \(N, D\), not \(1, 0\)"),
        (ONE, bad(2, math.nan), 1, "the corpus, row 2: NaN or infinity"),
        (ONE, bad(5000, math.nan, 6000), 1, "the corpus, row 5000: NaN"),
        (bad(1, math.inf), FOUR, 1, "the queries, row 1: NaN or infinity"),
        ([["a cat"]], FOUR, 1, "the queries: can't convert"),
        (ONE, [[1, 2], [3]], 1, "the corpus: .*inhomogeneous"),
        (ONE, FOUR * 1j, 1, "the corpus: complex numbers are not supported"),
        (torch.ones(1, 2) * 1j, FOUR, 1, "the queries: complex numbers are not supported"),
        (None, FOUR, 7, "k is 7: it must be 1 to 6, the number of pairs"),
        (None, ONE, 1, "k is 1: it must be 1 to 0, the number of pairs"),
        (None, FOUR[:0], 1, r"the vectors: vectors must be \(N, D\), not \(0, 2\)"),
        (None, bad(3, math.nan), 1, "the vectors, row 3: NaN or infinity"),
    ],
)
def test_invalid_input_is_an_error(queries, corpus, k, message):
    with pytest.raises(InputError, match=message):
        closest_pairs(corpus, k) if queries is None else top_k(queries, corpus, k)


# ----------------------------------------------------------------------------------- closest_pairs


def test_pairs_by_hand():
    scores, pairs = closest_pairs(np.array([[1.0, 0.0], [3.0, 4.0], [2.0, 0.0], [0.0, 1.0]]), 4)
    np.testing.assert_allclose(scores, [1.0, 0.8, 0.6, 0.6], atol=1e-7, rtol=0)  # float32
    assert pairs.tolist() == [[0, 2], [1, 3], [0, 1], [1, 2]]


@pytest.mark.reference
def test_top_k_and_closest_pairs_are_those_of_sentence_transformers():
    from sentence_transformers.util import paraphrase_mining_embeddings, semantic_search

    queries, corpus = normal(70, 48), normal(5000, 48, seed=1)
    scores, indices = top_k(queries, corpus, 25)
    hits = semantic_search(torch.from_numpy(queries), torch.from_numpy(corpus), top_k=25, corpus_chunk_size=900)
    np.testing.assert_array_equal(indices, [[hit["corpus_id"] for hit in row] for row in hits])
    # sentence-transformers computes in float32
    np.testing.assert_allclose(scores, [[hit["score"] for hit in row] for row in hits], atol=1e-6, rtol=0)

    vectors = normal(1500, 24)
    scores, pairs = closest_pairs(vectors, 200)
    mined = paraphrase_mining_embeddings(torch.from_numpy(vectors), query_chunk_size=400, max_pairs=10000)[:200]
    np.testing.assert_array_equal(pairs, [[i, j] for _, i, j in mined])
    np.testing.assert_allclose(scores, [score for score, _, _ in mined], atol=1e-6, rtol=0)


def test_progress_is_shown(monkeypatch):
    seen = []
    monkeypatch.setattr(search, "Bar", lambda blocks, shown, **_: seen.append((len(blocks), shown)) or blocks)
    monkeypatch.setattr(search, "BLOCK", 2)
    closest_pairs(normal(4, 3), 1, progress=True)
    top_k(normal(4, 3), normal(3, 3), 1)
    assert seen == [(3, True), (2, False)]
