"""The losses beyond the book: gradients, properties, bad input.

Worked values are the grader's cases; parity with the reference is in ``parity/losses.py``.
"""

import math

import pytest
import torch

from lessons.by_hand.losses import (
    cosine_triplet_loss,
    nt_xent_loss,
    ranking_among_duplicates_loss,
    weighted_mse_loss,
    weighted_simcse_loss,
)
from minisbert.core.losses import multiple_negatives_ranking_loss, simcse_loss
from minisbert.training.losses import (
    binary_cross_entropy_loss,
    cosent_loss,
    symmetric_ranking_loss,
)

TARGETS = torch.tensor([0.0, 1.0, 0.5, 0.5], dtype=torch.float64)
TWINS = torch.eye(4, dtype=torch.bool)[[0, 3, 2, 1]]  # 1 and 3 are the same text
ROWS = torch.ones(4, 3)
FLAT = torch.tensor([0.5, 0.5, 0.5, 0.5])
ON_VECTORS = {
    "cosent": lambda u, v: cosent_loss(u, v, TARGETS, scale=3.0),
    "nt_xent": lambda u, v: nt_xent_loss(u, v, temperature=0.5),
    "triplet, cosine": lambda u, v: cosine_triplet_loss(u, v, v.flip(0)),
    "symmetric ranking": lambda u, v: symmetric_ranking_loss(u, v, v.flip(0), 3.0),
    "ranking among duplicates": lambda u, v: ranking_among_duplicates_loss(u, v, u, TWINS, 3.0),
    "weighted simcse": lambda u, v: weighted_simcse_loss(u, v, v.flip(0), 0.5, 0.3),
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
@pytest.mark.parametrize("first", [0.0, 1.0])
def test_equal_and_zero_vectors_have_finite_gradients(name, first):
    """A vector of zeros has no direction, and 0/0 would reach every weight."""
    u = torch.full((4, 6), first, requires_grad=True)
    v = torch.ones(4, 6, requires_grad=True)
    loss = ON_VECTORS[name](u, v)
    loss.backward()
    assert loss.isfinite()
    assert u.grad.isfinite().all()
    assert v.grad.isfinite().all()


def test_both_directions_are_the_mean_of_two_losses(sides):
    """Without hard negatives each direction is the loss of the book."""
    u, v = sides
    one_way = multiple_negatives_ranking_loss(u, v, scale=3.0)
    other_way = multiple_negatives_ranking_loss(v, u, scale=3.0)
    found = symmetric_ranking_loss(u, v, scale=3.0)
    torch.testing.assert_close(found, (one_way + other_way) / 2, rtol=0, atol=1e-12)


def test_without_duplicates_nothing_is_left_out(sides):
    """An empty mask changes nothing, and neither does the diagonal."""
    u, v = sides
    expected = symmetric_ranking_loss(u, v, u, 3.0)
    own = torch.eye(4, dtype=torch.bool)
    assert torch.equal(ranking_among_duplicates_loss(u, v, u, own & False, 3.0), expected)
    assert torch.equal(ranking_among_duplicates_loss(u, v, u, own, 3.0), expected)


def test_duplicates_count_in_both_directions(sides):
    """Positive 3 is right for anchor 1: anchor 1 is right for positive 3 as well."""
    u, v = sides
    far = torch.zeros(1, 6, dtype=torch.float64)  # the same hard negative from either side
    one_way = torch.zeros(4, 4, dtype=torch.bool)
    one_way[1, 3] = True
    without = ranking_among_duplicates_loss(u, v, far, one_way & False, 3.0)
    assert ranking_among_duplicates_loss(u, v, far, one_way, 3.0) < without
    assert ranking_among_duplicates_loss(u, v, far, one_way.T, 3.0) < without


def test_a_weight_of_0_changes_nothing(sides):
    """The paper's ablation begins with the loss that is trained."""
    u, v = sides
    assert torch.equal(
        weighted_simcse_loss(u, v, v.flip(0), 0.5), simcse_loss(u, v, v.flip(0), 0.5)
    )


@pytest.mark.parametrize(
    ("loss", "inputs", "options", "message"),
    [
        (weighted_mse_loss, (FLAT, 5 * FLAT), {}, "target"),
        (weighted_mse_loss, (FLAT, -FLAT), {}, "target"),
        (weighted_mse_loss, (FLAT, math.nan * FLAT), {}, "target"),
        (weighted_mse_loss, (FLAT, FLAT), {"threshold": 1.5}, "threshold"),
        (weighted_mse_loss, (FLAT, FLAT), {"weight": 0}, "weight"),
        (binary_cross_entropy_loss, (FLAT, FLAT + 1), {}, "target"),
        (binary_cross_entropy_loss, (FLAT, FLAT), {"pos_weight": -1.0}, "pos_weight"),
        (cosent_loss, (ROWS, ROWS, torch.ones(3)), {}, "target"),
        (cosent_loss, (ROWS, ROWS, FLAT), {"scale": math.inf}, "scale"),
        (nt_xent_loss, (ROWS, ROWS[:2]), {}, "must have shape"),
        (nt_xent_loss, (ROWS[:1], ROWS[:1]), {}, "negatives"),
        (cosine_triplet_loss, (ROWS, ROWS, ROWS), {"margin": 5.0}, "margin"),
        (symmetric_ranking_loss, (ROWS[:1], ROWS[:1]), {}, "negatives"),
        (symmetric_ranking_loss, (ROWS, ROWS), {"scale": 0}, "scale"),
        (ranking_among_duplicates_loss, (ROWS, ROWS, ROWS, torch.eye(3).bool()), {}, "duplicates"),
        (weighted_simcse_loss, (ROWS, ROWS, ROWS[:1]), {}, "hard_negatives"),
        (
            weighted_simcse_loss,
            (ROWS, ROWS, ROWS),
            {"hard_negative_weight": math.inf},
            "hard_negative_weight",
        ),
    ],
)
def test_bad_input_names_the_argument(loss, inputs, options, message):
    with pytest.raises(ValueError, match=message):
        loss(*inputs, **options)
