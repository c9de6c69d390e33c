"""Losses: hand-worked values, and float64 parity of values and gradients with torch's own functions."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minisbert.losses import cosine, cosine_mse_loss, normalize
from tests.parity import GRADIENT, PIECE, assert_parity

BATCH, WIDTH = 5, 7


@pytest.fixture
def batch() -> tuple[Tensor, Tensor, Tensor]:
    """u, v (5, 7) of very different lengths, and targets (5,) that reach both ends of -1..1."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([[0.01], [1.0], [30.0], [2.0], [500.0]], dtype=torch.float64)
    u = torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64) * scale
    v = torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64) * scale.flip(0)
    return u.requires_grad_(), v.requires_grad_(), torch.tensor([-1.0, 0.0, 0.3, 0.84, 1.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("u", "v", "expected"),
    [
        ([1.0, 0.0], [1.0, 1.0], 1 / math.sqrt(2)),
        ([1.0, 0.0], [0.0, 9.0], 0.0),
        ([3.0, 4.0], [-3.0, -4.0], -1.0),
        ([3.0, 4.0], [4.0, 3.0], 24 / 25),
        ([0.0, 0.0], [1.0, 1.0], 0.0),
    ],
)
def test_cosine_by_hand(u, v, expected):
    value = cosine(torch.tensor([u], dtype=torch.float64), torch.tensor([v], dtype=torch.float64))
    assert value.shape == (1,)
    assert value.item() == pytest.approx(expected, abs=1e-15)


def test_normalize_by_hand():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [-5.0, 0.0]], dtype=torch.float64)
    assert torch.equal(normalize(x), torch.tensor([[0.6, 0.8], [0.0, 0.0], [-1.0, 0.0]], dtype=torch.float64))
    assert torch.equal(normalize(x[0]), torch.tensor([0.6, 0.8], dtype=torch.float64))  # a single vector too


@pytest.mark.parametrize("length", [1e-10, 1e-3, 1e6, 1e30])
def test_short_and_long_vectors_get_length_1(length):
    x = torch.tensor([0.6, -0.8], dtype=torch.float64)
    assert_parity(f"vector of length {length:g}", normalize(length * x), x, PIECE)


def test_normalize_equals_torch(batch):
    u, _, _ = batch
    assert_parity("normalize", normalize(u), F.normalize(u, dim=-1), PIECE)
    stacked = torch.stack([u, 2 * u])  # (2, B, D)
    assert_parity("normalize of (2, B, D)", normalize(stacked), F.normalize(stacked, dim=-1), PIECE)


def test_loss_by_hand():
    u, v = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    target = torch.tensor([0.5], dtype=torch.float64)
    loss = cosine_mse_loss(u, v, target)
    assert loss.shape == ()
    assert loss.item() == pytest.approx((math.sqrt(0.5) - 0.5) ** 2, abs=1e-15)  # 0.04289
    two = cosine_mse_loss(torch.cat([u, u]), torch.cat([v, u]), torch.tensor([0.5, 0.0], dtype=torch.float64))
    assert two.item() == pytest.approx(((math.sqrt(0.5) - 0.5) ** 2 + 1.0) / 2, abs=1e-15)  # the mean, not the sum


def test_loss_and_gradients_equal_torch(batch):
    u, v, target = batch
    ours = cosine_mse_loss(u, v, target)
    reference = F.mse_loss(F.cosine_similarity(u, v), target)
    assert_parity("loss", ours, reference, PIECE)
    for name, got, expected in zip(
        "uv", torch.autograd.grad(ours, (u, v)), torch.autograd.grad(reference, (u, v)), strict=True
    ):
        assert expected.abs().max() > 1e-3  # there is something to compare
        assert_parity(f"gradient of {name}", got, expected, GRADIENT)


def test_loss_gradients_are_right_to_second_order():
    generator = torch.Generator().manual_seed(1)
    u, v = (torch.randn(3, 4, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(2))
    target = torch.tensor([0.1, -0.5, 0.9], dtype=torch.float64)
    assert torch.autograd.gradcheck(cosine_mse_loss, (u, v, target))
    assert torch.autograd.gradgradcheck(cosine_mse_loss, (u, v, target))


def test_a_zero_vector_gives_a_finite_loss_and_finite_gradients():
    u = torch.zeros(1, 3, requires_grad=True)
    v = torch.ones(1, 3, requires_grad=True)
    loss = cosine_mse_loss(u, v, torch.tensor([0.5]))
    loss.backward()
    assert loss.item() == 0.25  # the cosine of nothing is 0
    assert u.grad.isfinite().all()
    assert torch.equal(v.grad, torch.zeros(1, 3))


def test_integer_targets_are_allowed():
    u = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    assert cosine_mse_loss(u, u, torch.tensor([1, 0])).item() == 0.5


@pytest.mark.parametrize(
    ("u", "v", "target"),
    [
        ((2, 3), (2, 3), (3,)),
        ((2, 3), (2, 3), (2, 1)),  # would broadcast to (2, 2) in silence
        ((2, 3), (2, 3), ()),
        ((2, 3), (2, 4), (2,)),
        ((2, 3), (1, 3), (2,)),
        ((2, 3), (4, 3), (2,)),
        ((3,), (3,), ()),
        ((2, 2, 3), (2, 2, 3), (2,)),
    ],
)
def test_shapes_that_do_not_fit(u, v, target):
    with pytest.raises(ValueError, match=r"u and v must be \(B, D\) and target \(B,\), not") as caught:
        cosine_mse_loss(torch.ones(u), torch.ones(v), torch.zeros(target))
    assert str(caught.value).endswith(f"{u}, {v}, {target}")


@pytest.mark.parametrize("bad", [5.0, 1.001, -1.001, math.nan, math.inf, -math.inf])
def test_targets_that_no_cosine_reaches(bad):
    with pytest.raises(ValueError, match="divide STS scores of 0 to 5 by 5"):
        cosine_mse_loss(torch.ones(2, 3), torch.ones(2, 3), torch.tensor([0.5, bad]))
