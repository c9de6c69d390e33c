"""The losses beyond the book: gradients, properties, bad input.

Worked values are the grader's cases; parity with the reference is in ``parity/losses.py``.
"""

import math

import pytest
import torch

from lessons.by_hand.losses import nt_xent_loss, weighted_mse_loss
from minisbert.training.losses import binary_cross_entropy_loss, cosent_loss

TARGETS = torch.tensor([0.0, 1.0, 0.5, 0.5], dtype=torch.float64)
ROWS, FLAT = torch.ones(4, 3), torch.tensor([0.5, 0.5, 0.5, 0.5])
ON_VECTORS = {
    "cosent": lambda u, v: cosent_loss(u, v, TARGETS, scale=3.0),
    "nt_xent": lambda u, v: nt_xent_loss(u, v, temperature=0.5),
}


@pytest.fixture
def sides() -> torch.Tensor:
    """u and v, (4, 6) each."""
    return torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("name", ON_VECTORS)
def test_new_tensors_are_on_the_device_of_the_vectors(sides, name):
    """With another default device than theirs, as when the vectors are on a GPU."""
    with torch.device("meta"):
        loss = ON_VECTORS[name](*sides)
    assert torch.equal(loss, ON_VECTORS[name](*sides))


@pytest.mark.parametrize("name", ON_VECTORS)
def test_equal_and_zero_vectors_have_finite_gradients(name):
    zeros, ones = torch.zeros(4, 6, requires_grad=True), torch.ones(4, 6, requires_grad=True)
    for inputs in ((zeros, ones), (ones, ones)):
        loss = ON_VECTORS[name](*inputs)
        assert loss.isfinite()
        assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, inputs))


@pytest.mark.parametrize(
    ("loss", "inputs", "options", "message"),
    [
        *(
            (weighted_mse_loss, (FLAT, bad), {}, "target")
            for bad in (5 * FLAT, -FLAT, FLAT * math.nan)
        ),
        (weighted_mse_loss, (FLAT, FLAT), {"threshold": 1.5}, "threshold"),
        (weighted_mse_loss, (FLAT, FLAT), {"weight": 0}, "weight"),
        (binary_cross_entropy_loss, (FLAT, FLAT + 1), {}, "target"),
        (binary_cross_entropy_loss, (FLAT, FLAT), {"pos_weight": -1.0}, "pos_weight"),
        (cosent_loss, (ROWS, ROWS, torch.ones(3)), {}, "target"),
        (cosent_loss, (ROWS, ROWS, FLAT), {"scale": math.inf}, "scale"),
        (nt_xent_loss, (ROWS, ROWS[:2]), {}, "must have shape"),
        (nt_xent_loss, (ROWS[:1], ROWS[:1]), {}, "negatives"),
    ],
)
def test_bad_input_names_the_argument(loss, inputs, options, message):
    with pytest.raises(ValueError, match=message):
        loss(*inputs, **options)
