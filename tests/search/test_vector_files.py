"""Quantised vectors in files: bytes and scores by hand, recall against the exact search, damaged files."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file

from minisbert.core import InputError
from minisbert.search.dense import top_k
from minisbert.search.vector_files import Bits, Decoded, read_codes, write_codes


def test_int8_by_hand(tmp_path):
    """Columns of ranges 0 to 255 and -10 to 500: steps of 1 and of 2."""
    vectors = np.array([[0, -10], [1.9, 0], [255, 500]], np.float32)
    write_codes(vectors, "int8", tmp_path / "codes.safetensors", {})
    file = load_file(tmp_path / "codes.safetensors")
    assert file["ranges"].tolist() == [[0, -10], [255, 500]]
    assert file["codes"].dtype == np.int8
    assert file["codes"].tolist() == [[-128, -128], [-127, -123], [127, 127]]
    for decoded in (Decoded(**file), read_codes(tmp_path / "codes.safetensors", 3, 2)):
        np.testing.assert_allclose(decoded[np.array([1, 0])], [[1.5, 1], [0.5, -9]], atol=1e-6, rtol=0)  # the middles


def test_bits_by_hand_and_their_scores(tmp_path):
    """Nine columns are two bytes, and a score is a sum of signed columns of the query over the lengths 3 and 3."""
    signs = np.array([[1, 1, 1], [1, 1, -1], [-1, 1, 1], [-1, -1, -1]], np.float32)
    vectors = np.concatenate([signs, np.tile([0.5, -1, -1, -1, 0, 2], (4, 1))], axis=1)
    write_codes(vectors, "binary", tmp_path / "codes.safetensors", {})
    bits = read_codes(tmp_path / "codes.safetensors", 4, 9)
    # 1111 0000 1, 1101 0000 1, 0111 0000 1, 0001 0000 1
    assert bits.bits.tolist() == [[0b11110000, 128], [0b11010000, 128], [0b01110000, 128], [0b00010000, 128]]
    query = np.array([[2, 1, -2, 0, 0, 0, 0, 0, 0]], np.float32)  # bits 1100 0000 0, at distances 3, 2, 4, 4
    scores, indices = bits.top_k(query, 2, times=2)
    assert indices.tolist() == [[1, 0]]
    np.testing.assert_allclose(scores, [[5 / 9, 1 / 9]], atol=1e-7, rtol=0)  # 2 + 1 + 2, 2 + 1 - 2
    scores, indices = bits.top_k(query, 3, times=1)
    assert indices.tolist() == [[1, 0, 2]]  # of two rows as far away the first
    np.testing.assert_allclose(scores, [[5 / 9, 1 / 9, -3 / 9]], atol=1e-7, rtol=0)


def test_rescoring_looks_at_so_many_candidates(monkeypatch):
    """The nearest by bits is the last by the float query, so one candidate is too few. Blocks of queries agree."""
    corpus = np.array([[0, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0]], np.uint8)
    bits = Bits(np.packbits(corpus, axis=1), 4)
    query = np.array([[9, 0.1, 0.1, 0.1]], np.float32)  # bits 1111, at distances 1, 3, 2, 2
    assert [bits.top_k(query, 1, times)[1].item() for times in (1, 2, 3, 4, 9)] == [0, 2, 2, 2, 2]
    np.testing.assert_allclose(bits.top_k(query, 1, 4)[0], 8.9 / 2 / np.sqrt(81.03), atol=1e-7, rtol=0)
    queries = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    alone = [bits.top_k(query[None], 2)[1] for query in queries]
    monkeypatch.setattr("minisbert.search.vector_files.BLOCK_NUMBERS", 50)
    np.testing.assert_array_equal(bits.top_k(queries, 2)[1], np.concatenate(alone))


def test_more_candidates_of_bits_find_more_of_the_exact_neighbours():
    """Of 2,000 vectors in 100 clusters the ten nearest, beside those by float32: chance would find 0.005 of them."""
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(100, 64))
    corpus = (np.repeat(centres, 20, axis=0) + 0.5 * rng.normal(size=(2000, 64))).astype(np.float32)
    queries = (centres[:40] + 0.5 * rng.normal(size=(40, 64))).astype(np.float32)
    exact = top_k(queries, corpus, 10)[1]
    bits = Bits(np.packbits(corpus > 0, axis=1), 64)
    recalls = [
        np.mean([np.isin(*rows) for rows in zip(exact, bits.top_k(queries, 10, k)[1], strict=True)]) for k in (1, 4)
    ]
    assert 0.5 < recalls[0] < recalls[1]


@pytest.mark.parametrize(
    "tensors",
    [
        {}, {"codes": torch.zeros(2, 3)}, {"codes": torch.zeros(2, 3, dtype=torch.int8)}, {"bits": torch.zeros(6)},
        {"codes": torch.zeros(1, 3, dtype=torch.int8), "ranges": torch.zeros(2, 3)}, {"bits": torch.zeros(2, 1)},
        {"codes": torch.zeros(2, 3, dtype=torch.int8), "ranges": torch.zeros(2, 4)},
    ],
)  # fmt: skip
def test_codes_that_do_not_fit_are_one_line(tmp_path, tensors):
    save_file(tensors, tmp_path / "codes.safetensors")
    with pytest.raises(InputError, match=r"codes\.safetensors"):
        read_codes(tmp_path / "codes.safetensors", 2, 3)
