"""The book's poolings against plain loops over each text's real tokens."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from minisbert.core.pooling import POOLINGS, Pooling, attention_pool
from tests.parity import GRADIENT, PIECE, assert_parity

MODES = ["mean", "cls", "max"]
LENGTHS = [5, 2, 1, 4]  # of 5 tokens: one text is full, one has a single token
REAL = torch.arange(5) < torch.tensor(LENGTHS)[:, None]  # (4, 5)


def random_hidden(shape: tuple[int, ...] = (4, 5, 3), shift: float = 0.0, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + shift


def slow_pool(mode: str, hidden: Tensor, mask: Tensor) -> Tensor:
    """Text by text, column by column, real tokens only."""
    rows = []
    for text, real in zip(hidden.tolist(), mask.tolist(), strict=True):
        tokens = [token for token, keep in zip(text, real, strict=True) if keep]
        columns = list(zip(*tokens, strict=True))
        if mode == "mean":
            rows.append([math.fsum(column) / len(tokens) for column in columns])
        else:
            rows.append([column[0] if mode == "cls" else max(column) for column in columns])
    return torch.tensor(rows, dtype=hidden.dtype)


@pytest.mark.parametrize(("mode", "expected"), [("mean", [[2.0, 3.0]]), ("cls", [[1.0, 8.0]]), ("max", [[3.0, 8.0]])])
def test_by_hand(mode, expected):
    hidden = torch.tensor([[[1.0, 8.0], [3.0, -2.0], [99.0, 99.0]]])
    assert Pooling(mode)(hidden, torch.tensor([[True, True, False]])).tolist() == expected


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shift", [0.0, -10.0])  # all negative: the maximum must not be a pad's 0
def test_equals_the_slow_version(mode, shift):
    hidden = random_hidden(shift=shift)
    assert_parity(f"{mode} pooling", Pooling(mode)(hidden, REAL), slow_pool(mode, hidden, REAL), PIECE)


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_any_lengths_equal_the_slow_version(lengths, seed):
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]  # (B, T)
    hidden = random_hidden((*mask.shape, 4), seed=seed)
    for mode in MODES:
        assert_parity(f"{mode} pooling", Pooling(mode)(hidden, mask), slow_pool(mode, hidden, mask), PIECE)


@pytest.mark.parametrize("mode", ["mean", "max"])
def test_pads_may_be_anywhere(mode):
    mask = torch.tensor([[0, 1, 0, 1, 1], [1, 0, 1, 0, 0], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1]], dtype=torch.bool)
    assert_parity(mode, Pooling(mode)(random_hidden(), mask), slow_pool(mode, random_hidden(), mask), PIECE)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("content", [0.0, 1e30, -1e30, math.inf, -math.inf, math.nan])
def test_the_content_of_a_pad_does_not_matter(mode, content):
    expected = Pooling(mode)(random_hidden(), REAL)
    hidden = random_hidden().masked_fill(~REAL[..., None], content).requires_grad_()
    pooled = Pooling(mode)(hidden, REAL)
    assert torch.equal(pooled, expected)
    pooled.sum().backward()
    assert hidden.grad.isfinite().all()


@pytest.mark.parametrize("mode", MODES)
def test_gradients_by_hand_and_none_to_the_pads(mode):
    """Of a weighted sum of the pooled values: mean divides the gradient equally, cls and max give it to one token."""
    hidden = random_hidden().requires_grad_()
    weights = random_hidden((4, 3), seed=1)
    (Pooling(mode)(hidden, REAL) * weights).sum().backward()
    expected = torch.zeros_like(hidden)
    for i, length in enumerate(LENGTHS):
        for j in range(3):
            if mode == "mean":
                expected[i, :length, j] = weights[i, j] / length
            else:
                column = hidden[i, :length, j].tolist()
                expected[i, column.index(max(column)) if mode == "max" else 0, j] = weights[i, j]
    assert_parity(f"gradient of {mode} pooling", hidden.grad, expected, GRADIENT)
    assert (hidden.grad[~REAL] == 0).all()


@pytest.mark.parametrize("mode", MODES)
def test_no_mask_is_the_same_as_all_real(mode):
    hidden = random_hidden()
    everything = torch.ones(4, 5, dtype=torch.bool)
    assert_parity(f"{mode} without mask", Pooling(mode)(hidden), Pooling(mode)(hidden, everything), PIECE)
    assert_parity(f"{mode} without mask", Pooling(mode)(hidden), slow_pool(mode, hidden, everything), PIECE)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32])
def test_masks_of_ones_and_zeros_are_the_same_as_bools(mode, dtype):
    assert torch.equal(Pooling(mode)(random_hidden(), REAL.to(dtype)), Pooling(mode)(random_hidden(), REAL))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_dtype_of_the_hidden_states_stays(mode, dtype):
    assert Pooling(mode)(random_hidden().to(dtype), REAL).dtype == dtype
    assert Pooling(mode)(random_hidden().to(dtype)).dtype == dtype


@pytest.mark.parametrize("mode", MODES)
def test_more_pads_change_nothing(mode):
    wider = torch.cat([random_hidden(), random_hidden((4, 6, 3), seed=2)], dim=1)  # (4, 11, 3)
    mask = torch.cat([REAL, torch.zeros(4, 6, dtype=torch.bool)], dim=1)
    assert_parity(f"{mode} with pads", Pooling(mode)(wider, mask), Pooling(mode)(random_hidden(), REAL), PIECE)


@pytest.mark.parametrize("mode", MODES)
def test_a_row_without_a_real_token(mode):
    mask = REAL.clone()
    mask[2] = False
    for masked in (mask, mask.long()):
        with pytest.raises(ValueError, match="mask must be True in every row"):
            Pooling(mode)(random_hidden(), masked)


@pytest.mark.parametrize("name", ["median", "", "MEAN", "mean_pool"])
def test_unknown_name_lists_the_known_ones(name):
    with pytest.raises(ValueError, match=rf"mode must be mean\|cls\|max\|attention, not '{name}'"):
        Pooling(name)


# ---------------------------------------------------------------------------------------- attention


def scorer(width: int = 3, seed: int = 5) -> tuple[Tensor, Tensor]:
    """A weight (1, D) and a bias (1,)."""
    return random_hidden((1, width), seed=seed), random_hidden((1,), seed=seed + 1)


def attention_pooling(width: int = 3) -> Pooling:
    """A pooling module with these parameters."""
    pooling = Pooling("attention", width).double()
    weight, bias = scorer(width)
    pooling.load_state_dict({"score.weight": weight, "score.bias": bias})
    return pooling


def slow_attention(hidden: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Text by text, token by token."""
    rows = []
    for text, real in zip(hidden.tolist(), mask.tolist(), strict=True):
        tokens = [token for token, keep in zip(text, real, strict=True) if keep]
        products = (zip(weight[0].tolist(), token, strict=True) for token in tokens)
        powers = [math.exp(sum(w * x for w, x in product) + float(bias)) for product in products]
        columns = zip(*tokens, strict=True)
        rows.append([sum(p * x for p, x in zip(powers, column, strict=True)) / sum(powers) for column in columns])
    return torch.tensor(rows, dtype=hidden.dtype)


def test_attention_by_hand():
    """Scores 0 and log 3 give weights of 1/4 and 3/4; the pad would have the highest score."""
    hidden = torch.tensor([[[0.0, 8.0], [1.0, 0.0], [99.0, 99.0]]])
    pooled = attention_pool(hidden, torch.tensor([[1, 1, 0]]), torch.tensor([[math.log(3), 0.0]]), torch.tensor([7.0]))
    torch.testing.assert_close(pooled, torch.tensor([[0.75, 2.0]]))


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_attention_over_any_lengths_equals_the_slow_version(lengths, seed):
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]  # (B, T)
    hidden = random_hidden((*mask.shape, 4), seed=seed)
    parameters = scorer(4, seed)
    slow = slow_attention(hidden, mask, *parameters)
    assert_parity("attention pooling", attention_pool(hidden, mask, *parameters), slow, PIECE)


def test_the_bias_of_attention_pooling_changes_nothing():
    weight, bias = scorer()
    one, other = (attention_pool(random_hidden(), REAL, weight, b) for b in (bias, bias + 3))
    assert_parity("another bias", one, other, PIECE)


def test_untrained_attention_is_the_mean():
    pooled = Pooling("attention", 3).double()(random_hidden(), REAL)
    assert_parity("untrained attention", pooled, slow_pool("mean", random_hidden(), REAL), PIECE)


def test_attention_learns_from_its_start():
    """Zero scores are not a stationary point: the weight has a gradient."""
    pooling = Pooling("attention", 3).double()
    (pooling(random_hidden(), REAL) * random_hidden((4, 3), seed=1)).sum().backward()
    assert pooling.score.weight.grad.abs().max() > 1e-3


def test_attention_without_mask_with_other_masks_and_with_more_pads():
    pooling, hidden = attention_pooling(), random_hidden()
    everything = torch.ones(4, 5, dtype=torch.bool)
    assert_parity("without mask", pooling(hidden), slow_attention(hidden, everything, *scorer()), PIECE)
    assert torch.equal(pooling(hidden, REAL.long()), pooling(hidden, REAL))
    wider = torch.cat([hidden, random_hidden((4, 6, 3), seed=2)], dim=1)  # (4, 11, 3)
    mask = torch.cat([REAL, torch.zeros(4, 6, dtype=torch.bool)], dim=1)
    assert_parity("more pads", pooling(wider, mask), pooling(hidden, REAL), PIECE)


def test_attention_gradients_by_finite_differences_and_none_to_the_pads():
    hidden, (weight, bias) = random_hidden().requires_grad_(), (x.requires_grad_() for x in scorer())

    def pool(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return attention_pool(hidden, REAL, weight, bias)

    assert torch.autograd.gradcheck(pool, (hidden, weight, bias))
    pool(hidden, weight, bias).sum().backward()
    assert (hidden.grad[~REAL] == 0).all()


@pytest.mark.parametrize("content", [0.0, 1e30, -1e30, math.inf, -math.inf, math.nan])
def test_the_content_of_a_pad_does_not_matter_for_attention(content):
    pooling = attention_pooling()
    hidden = random_hidden().masked_fill(~REAL[..., None], content).requires_grad_()
    pooled = pooling(hidden, REAL)
    assert torch.equal(pooled, pooling(random_hidden(), REAL))
    pooled.sum().backward()
    assert hidden.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in pooling.parameters())


def test_only_attention_has_parameters():
    assert [name for name, _ in Pooling("attention", 3).named_parameters()] == ["score.weight", "score.bias"]
    assert not any(parameter.any() for parameter in Pooling("attention", 3).parameters())  # all 0 at the start
    assert not any(list(Pooling(mode).parameters()) for mode in MODES)


def test_every_pooling_is_tested_here():
    assert list(POOLINGS) == MODES
