"""int8, bits and rescoring: what comes back of codes, any layout, bad input.

Parity by counting is in ``parity/search.py``.
"""

import re

import numpy as np
import pytest
import torch

from minisbert.search.quantized import (
    calibrate,
    from_bits,
    from_int8,
    hamming,
    hamming_top_k,
    rescore,
    to_bits,
    to_int8,
)


def random(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Vectors without a zero."""
    return np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32)


def test_bits_come_back_as_signs():
    corpus = random(300, 24)
    assert from_bits(to_bits(corpus), 24).tolist() == np.sign(corpus).tolist()


def test_columns_need_not_fill_their_bytes():
    corpus = random(300, 21)
    assert from_bits(to_bits(corpus), 21).tolist() == np.sign(corpus).tolist()


CORPUS = random(40, 24)
LAYOUTS = {
    "tensor": torch.tensor(CORPUS),
    "by columns": np.asfortranarray(CORPUS),
    "reversed twice": CORPUS[::-1][::-1],
    "list": CORPUS.tolist(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_vectors_of_any_layout_have_the_same_codes(layout):
    vectors = LAYOUTS[layout]
    ranges = calibrate(CORPUS)
    assert calibrate(vectors).tolist() == ranges.tolist()
    assert to_int8(vectors, ranges).tolist() == to_int8(CORPUS, ranges).tolist()
    assert to_bits(vectors).tolist() == to_bits(CORPUS).tolist()


def test_bfloat16_has_the_same_signs():
    """NumPy has no such type."""
    assert to_bits(torch.tensor(CORPUS).bfloat16()).tolist() == to_bits(CORPUS).tolist()


def test_without_numpys_bit_count_the_distances_are_the_same(monkeypatch):
    """NumPy 1 lacks it."""
    a = to_bits(random(5, 100))
    b = to_bits(random(9, 100, seed=1))
    expected = hamming(a, b)
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    assert hamming(a, b).tolist() == expected.tolist()


X = random(3, 16)
BYTES = to_bits(X)
RANGES = calibrate(X)
ROWS = np.arange(6).reshape(3, 2)
CANDIDATES = X[ROWS % 3]


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (to_int8, (X, RANGES[:, :8]), "ranges must be (2, 16)"),
        (to_int8, (X, RANGES[::-1]), "ranges"),
        (to_int8, (X[0], RANGES), "(16,)"),
        (from_int8, (BYTES, RANGES), "codes must be int8"),
        (from_bits, ([[1]], 8), "bits must be uint8"),
        (from_bits, (BYTES, 17), "17 columns need 3 bytes, got 2"),
        (to_bits, (np.full((3, 16), np.inf),), "vectors must be finite"),
        (to_bits, (X * 1j,), "complex"),
        (hamming, (BYTES, X[:, :2]), "b must be uint8"),
        (hamming_top_k, (X, BYTES, 4), "1 and 3 (the corpus size), got 4"),
        (rescore, (X, ROWS, CANDIDATES, 3), "1 and 2 (the number of candidates), got 3"),
        (rescore, (X, ROWS, CANDIDATES[..., :8], 1), "vectors must"),
    ],
)
def test_bad_input_is_refused(function, arguments, message):
    """Codes of another shape or type would give distances all the same."""
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        function(*arguments)
