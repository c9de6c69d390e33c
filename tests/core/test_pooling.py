"""Pads, masks and dtypes of the book's poolings.

Their numbers are in the grader's cases and ``test_parity.py``.
"""

import math

import pytest
import torch

import minisbert.models.pooling
from minisbert.core import InputError
from minisbert.core.pooling import POOLINGS, Pooling
from tests.parity import PIECE, assert_parity
from tests.poolings import MODES, REAL, book_pooling, random_hidden


@pytest.mark.parametrize("mode", ["lasttoken", "weightedmean", "pooler", "cls+max", "sum"])
def test_the_book_knows_four_poolings_whatever_was_imported(mode):
    """A chapter that another module adds to would work or not by who imported what."""
    assert mode not in POOLINGS
    assert minisbert.models.pooling.POOLINGS is not POOLINGS
    with pytest.raises(InputError, match=r"choose from mean, cls, max, attention$"):
        Pooling(mode, 3)


@pytest.mark.parametrize("mode", MODES)
def test_the_librarys_pooling_gives_the_same(mode):
    """The chapter names this test: what runs in place of its class is equal to it."""
    book = book_pooling(mode)
    library = minisbert.models.pooling.ModelPooling(mode, 3).double()
    library.load_state_dict(book.state_dict())
    assert torch.equal(library(random_hidden(), REAL), book(random_hidden(), REAL))
    assert torch.equal(library(random_hidden()), book(random_hidden()))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("content", [0.0, 1e30, -1e30, math.inf, -math.inf, math.nan])
def test_the_content_of_a_pad_does_not_matter(mode, content):
    """Nor to the gradients: a NaN in a pad must not reach a weight."""
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
    """None means all real, ones and zeros are as good as booleans, more pads change nothing."""
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
    """A mask of integers must not turn half precision into float32."""
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
