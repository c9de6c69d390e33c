"""The losses beyond the book: hand-worked values, gradients, properties, bad input.

Parity with the reference is in ``loss_checks.py``.
"""

import math

import pytest
import torch

from minisbert.training.losses import (
    binary_cross_entropy_loss,
    cosent_loss,
    mlm_loss,
    mlm_losses,
    nt_xent_loss,
    weighted_mse_loss,
)
from tests.core.test_losses import AXES, FLAT, LOG_2, OTHER, ROWS, TARGETS, E, vectors
from tests.parity import PIECE, assert_parity

# ------------------------------------------------------------------------------------------ by hand

BINARY = LOG_2 + math.log1p(E**2) / 2


@pytest.mark.parametrize(
    ("loss", "inputs", "options", "expected", "shown"),
    [
        (weighted_mse_loss, [[0.5, 0.5], [0.1, 0.9]], {}, 0.24, "0.24"),
        (binary_cross_entropy_loss, [[0.0, 2.0], [1.0, 0.0]], {"pos_weight": 2}, BINARY, "1.75661"),
        (cosent_loss, [[[1.0, 0.0]] * 2, AXES, [0.0, 1.0]], {"scale": 1}, math.log(1 + E), "1.31326"),
        (nt_xent_loss, [AXES, AXES], {"temperature": 1}, math.log(E + 2) - 1, "0.55144"),
    ],
)
def test_losses_by_hand_and_their_docstrings(loss, inputs, options, expected, shown):
    value = loss(*(torch.tensor(x, dtype=torch.float64) for x in inputs), **options)
    assert value.shape == ()
    assert value.item() == pytest.approx(expected, abs=1e-14)
    assert f"{expected:.{len(shown.partition('.')[2])}f}" == shown
    assert shown in loss.__doc__


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_score_of_1_of_5_is_not_below_the_threshold(dtype):
    target = torch.tensor([1.0], dtype=dtype) / 5
    assert weighted_mse_loss(target + 1, target, weight=100.0).item() == pytest.approx(1, abs=1e-6)
    below = torch.tensor([0.99], dtype=dtype) / 5
    assert weighted_mse_loss(below + 1, below, weight=100.0).item() == pytest.approx(100, abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_binary_cross_entropy_of_large_logits_is_finite_and_exact(dtype):
    logits = torch.tensor([200.0, -200.0], dtype=dtype, requires_grad=True)
    wrong = binary_cross_entropy_loss(logits, torch.tensor([0, 1]))
    assert wrong.item() == 200.0
    (gradient,) = torch.autograd.grad(wrong, logits)
    assert torch.equal(gradient, torch.tensor([0.5, -0.5], dtype=dtype))
    assert binary_cross_entropy_loss(logits, torch.tensor([1, 0])).item() == pytest.approx(0, abs=1e-30)


def test_masked_words_by_hand():
    """log(1 + 1 + 2) - log 2 and log(1 + 1 + 2) - 0."""
    logits = torch.tensor([[0.0, 0.0, math.log(2)]] * 2, dtype=torch.float64)
    found = mlm_losses(logits, torch.tensor([2, 0]))
    assert found.tolist() == pytest.approx([math.log(2), math.log(4)], abs=1e-14)
    assert mlm_loss(logits, torch.tensor([2, 0])).item() == pytest.approx(1.5 * math.log(2), abs=1e-14)


# ---------------------------------------------------------------------------------------- gradients

ON_VECTORS = {
    "cosent": lambda u, v: cosent_loss(u, v, TARGETS, scale=3.0),
    "nt_xent": lambda u, v: nt_xent_loss(u, v, temperature=0.5),
}


@pytest.mark.parametrize("name", ON_VECTORS)
def test_new_tensors_are_on_the_device_of_the_vectors(name):
    """With another default device than theirs, as when the vectors are on a GPU."""
    inputs = vectors()[:2]
    with torch.device("meta"):
        loss = ON_VECTORS[name](*inputs)
    assert torch.equal(loss, ON_VECTORS[name](*inputs))


@pytest.mark.parametrize("name", ON_VECTORS)
def test_equal_and_zero_vectors_have_finite_gradients(name):
    zeros, ones = torch.zeros(4, 6, requires_grad=True), torch.ones(4, 6, requires_grad=True)
    for inputs in ((zeros, ones), (ones, ones)):
        loss = ON_VECTORS[name](*inputs)
        assert loss.isfinite()
        assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, inputs))


# --------------------------------------------------------------------------------------- properties


def test_order_and_length_of_the_vectors_do_not_matter():
    u, v, _ = vectors()
    order = torch.tensor([2, 0, 3, 1])
    assert nt_xent_loss(u, v) > 0.1
    assert_parity("nt_xent", nt_xent_loss(u[order], v[order]), nt_xent_loss(u, v), PIECE)
    for name, loss in ON_VECTORS.items():
        assert_parity(name, loss(3 * u, 0.01 * v), loss(u, v), PIECE)


def test_perfect_positives_cost_little_and_wrong_ones_much():
    u = torch.eye(4, dtype=torch.float64)
    assert nt_xent_loss(u, u) < 1e-7
    assert nt_xent_loss(u, u.roll(1, dims=0)) > 19  # a right answer at cosine 0, a wrong one at 1: 20 apart
    assert cosent_loss(u, torch.stack([u[0], u[2], u[2], u[0]]), torch.tensor([1, 0, 1, 0])) < 1e-7


def test_cosent_depends_only_on_the_order_of_targets():
    u, v, _ = vectors()
    assert torch.equal(cosent_loss(u, v, TARGETS), cosent_loss(u, v, 5 * TARGETS - 2))
    assert cosent_loss(u, v, torch.ones(4)) == 0


# ---------------------------------------------------------------------------------------- bad input

BAD = [
    *((weighted_mse_loss, (FLAT, bad), {}, r"target must be in 0\.\.1") for bad in (5 * FLAT, -FLAT, FLAT * math.nan)),
    (weighted_mse_loss, (FLAT, FLAT), {"threshold": 1.5}, r"threshold must be in 0\.\.1"),
    (weighted_mse_loss, (FLAT, FLAT), {"weight": 0}, "weight must be above 0 and finite, not 0"),
    (binary_cross_entropy_loss, (FLAT, FLAT + 1), {}, r"must be in 0\.\.1"),
    (binary_cross_entropy_loss, (FLAT, FLAT), {"pos_weight": -1.0}, "pos_weight must be above 0"),
    (cosent_loss, (ROWS, ROWS, torch.ones(3)), {}, r"target must be \(B\)"),
    (cosent_loss, (ROWS, ROWS, FLAT * math.nan), {}, "target must be finite"),
    (cosent_loss, (ROWS, ROWS, FLAT), {"scale": math.inf}, "scale must be above 0 and finite"),
    (nt_xent_loss, (ROWS, OTHER), {}, r"v must be \(B, D\)"),
    (nt_xent_loss, (ROWS, ROWS), {"temperature": -0.05}, "temperature must be above 0"),
    (nt_xent_loss, (ROWS[:1], ROWS[:1]), {}, "a batch of one has no negatives"),
]


@pytest.mark.parametrize(("loss", "inputs", "options", "message"), BAD)
def test_bad_input_says_what_is_wrong(loss, inputs, options, message):
    with pytest.raises(ValueError, match=message):
        loss(*inputs, **options)
