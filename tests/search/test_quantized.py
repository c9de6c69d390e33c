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
    return np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32)


def test_bits_come_back_as_signs():
    corpus = random(300, 24)
    assert from_bits(to_bits(corpus), 24).tolist() == np.sign(corpus).tolist()
    assert from_bits(to_bits(corpus[:, :21]), 21).shape == (300, 21)


def test_tensors_and_arrays_of_any_layout_have_the_same_codes():
    corpus = random(40, 24)
    ranges, codes, bits = calibrate(corpus), to_int8(corpus, calibrate(corpus)), to_bits(corpus)
    for same in (
        torch.tensor(corpus),
        np.asfortranarray(corpus),
        corpus[::-1][::-1],
        corpus.tolist(),
    ):
        assert calibrate(same).tolist() == ranges.tolist()
        assert to_int8(same, ranges).tolist() == codes.tolist()
        assert to_bits(same).tolist() == bits.tolist()
    assert to_bits(torch.tensor(corpus).bfloat16()).tolist() == bits.tolist()


def test_without_numpys_bit_count_the_distances_are_the_same(monkeypatch):
    a, b = to_bits(random(5, 100)), to_bits(random(9, 100, 1))
    expected = hamming(a, b)
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    assert hamming(a, b).tolist() == expected.tolist()
    assert not hasattr(np, "bitwise_count")


X, BYTES = random(3, 16), to_bits(random(3, 16))
RANGES = calibrate(X)
ROWS = np.arange(6).reshape(3, 2)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: to_int8(X, RANGES[:, :8]), "ranges must be (2, 16)"),
        (lambda: to_int8(X, RANGES[::-1]), "ranges"),
        (lambda: from_int8(BYTES, RANGES), "codes must be int8"),
        (lambda: from_bits([[1]], 8), "bits must be uint8"),
        (lambda: from_bits(BYTES, 17), "17 columns need 3 bytes, got 2"),
        (lambda: to_int8(X[0], RANGES), "(16,)"),
        (lambda: to_bits(X / 0), "vectors must be finite"),
        (lambda: to_bits(X * 1j), "complex"),
        (lambda: hamming(BYTES, X[:, :2]), "b must be uint8"),
        (lambda: hamming_top_k(X, BYTES, 4), "1 and 3 (the corpus size), got 4"),
        (lambda: rescore(X, ROWS, X[ROWS % 3], 3), "1 and 2 (the number of candidates), got 3"),
        (lambda: rescore(X, ROWS, X[ROWS % 3][..., :8], 1), "vectors must"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_bad_input_is_refused(call, says):
    with pytest.raises((ValueError, TypeError), match=re.escape(says)):
        call()
