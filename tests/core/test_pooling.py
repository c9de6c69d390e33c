"""Pads, masks and dtypes of the book's poolings; their numbers are in the grader's cases and
``test_parity.py``.
"""

import math

import pytest
import torch
from torch import Tensor

from minisbert.core.pooling import Pooling
from tests.parity import PIECE, assert_parity

MODES = ["mean", "cls", "max", "attention"]
LENGTHS = [5, 2, 1, 4]  # of 5 tokens: one text is full, one has a single token
REAL = torch.arange(5) < torch.tensor(LENGTHS)[:, None]  # (4, 5)


def random_hidden(shape: tuple[int, ...] = (4, 5, 3), seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def book_pooling(mode: str) -> Pooling:
    """In float64; attention with random parameters."""
    module = Pooling(mode, 3).double()
    for seed, parameter in enumerate(module.parameters(), start=5):
        parameter.data = random_hidden(parameter.shape, seed)
    return module


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("content", [0.0, 1e30, -1e30, math.inf, -math.inf, math.nan])
def test_the_content_of_a_pad_does_not_matter(mode, content):
    module = book_pooling(mode)
    expected = module(random_hidden(), REAL)
    hidden = random_hidden().masked_fill(~REAL[..., None], content).requires_grad_()
    pooled = module(hidden, REAL)
    assert torch.equal(pooled, expected)
    pooled.sum().backward()
    assert (hidden.grad[~REAL] == 0).all()
    assert all(x.grad.isfinite().all() for x in (hidden, *module.parameters()))


@pytest.mark.parametrize("mode", MODES)
def test_masks_of_every_kind(mode):
    """None is the same as all real, ones and zeros are the same as booleans, and more pads change
    nothing.
    """
    module, hidden = book_pooling(mode), random_hidden()
    everything = torch.ones(4, 5, dtype=torch.bool)
    assert_parity(f"{mode} without mask", module(hidden), module(hidden, everything), PIECE)
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.float32):
        assert torch.equal(module(hidden, REAL.to(dtype)), module(hidden, REAL))
    wider = torch.cat([hidden, random_hidden((4, 6, 3), seed=2)], dim=1)  # (4, 11, 3)
    mask = torch.cat([REAL, torch.zeros(4, 6, dtype=torch.bool)], dim=1)
    assert_parity(f"{mode} with pads", module(wider, mask), module(hidden, REAL), PIECE)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_dtype_of_the_hidden_states_stays(mode, dtype):
    for mask in (REAL, None):
        assert book_pooling(mode).to(dtype)(random_hidden().to(dtype), mask).dtype == dtype


def test_untrained_attention_is_the_mean_and_learns():
    """Zero scores are not a stationary point: the weight has a gradient."""
    module = Pooling("attention", 3).double()
    pooled = module(random_hidden(), REAL)
    assert_parity("untrained attention", pooled, Pooling("mean")(random_hidden(), REAL), PIECE)
    (pooled * random_hidden((4, 3), seed=1)).sum().backward()
    assert module.score.weight.grad.abs().max() > 1e-3
    assert [name for name, _ in module.named_parameters()] == ["score.weight", "score.bias"]
    assert not any(list(Pooling(mode).parameters()) for mode in MODES[:3])
