"""Heads beside torch's own layers, and their settings; their worked values are in the grader's cases."""

import pytest
import torch
from torch import Tensor

from minisbert.core.heads import CONCATS, ConcatHead, CrossAttention, CrossHead, JointHead, combine, parse_concat
from tests.checks import normal
from tests.formula_checks import randomised, torch_attention, whole
from tests.parity import PIECE, assert_parity

LENGTHS_A, LENGTHS_B = [5, 2, 4], [3, 7, 1]


def real(lengths: list[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


# -------------------------------------------------------------------------------------- two vectors


def test_the_parts_of_a_combination_stand_in_the_order_stated():
    u, v = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 1.0]])
    assert combine(u, v, parse_concat("u, v, u-v")).tolist() == [[1, 2, 3, 1, 2, 1]]
    assert ConcatHead(2, "|u-v|,u*v,u").mlp[0].in_features == 6


def test_the_table_of_sbert_is_complete():
    assert len(CONCATS) == len({*CONCATS}) == 7
    assert all(",".join(parse_concat(concat)) == concat for concat in CONCATS)


def test_the_joint_head_reads_the_first_token_only():
    head, states = JointHead(6, hidden=4).double(), normal(3, 5, 6)
    gradient = torch.autograd.grad(head(states).sum(), states)[0]
    assert gradient[:, 0].abs().sum() > 0
    assert (gradient[:, 1:] == 0).all()


@pytest.mark.parametrize("concat", ["", "u,u", "u,w", "u v", "u,|v-u|", "u,,v", "u-v,|u-v|", "(u,v)"])
def test_an_unknown_combination_lists_the_known_ones(concat):
    with pytest.raises(ValueError, match="each once"):
        ConcatHead(4, concat)


def test_dropout_of_a_head_is_alive_in_training_only():
    head = ConcatHead(6, "u,v", hidden=50, dropout=0.5)
    u, v = torch.randn(2, 6), torch.randn(2, 6)
    assert (head(u, v) != head(u, v)).any()
    head.eval()
    assert torch.equal(head(u, v), head(u, v))


@pytest.mark.parametrize(
    "settings",
    [{"hidden": -1}, {"hidden": 2.0}, {"outputs": 0}, {"width": 0}]
    + [{"dropout": rate} for rate in (1.0, "much", True)]
    + [{"dropout": 0.1, "hidden": 0}],
)
@pytest.mark.parametrize("kind", [JointHead, ConcatHead, CrossHead])
def test_a_setting_out_of_range(kind, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        kind(**({"width": 8, "hidden": 4} | settings))


# ------------------------------------------------------------------------------------ cross-attention


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heads", [1, 3, 8])
def test_cross_attention_equals_torchs_in_value_and_gradient(masked, heads):
    module, mask = randomised(CrossAttention(24, heads)), real(LENGTHS_B) if masked else None
    ours, reference = lambda a, b: module(a, b, mask), lambda a, b: torch_attention(module, a, b, mask)[0]
    for result in whole("cross-attention", module, ours, reference, normal(3, 5, 24), normal(3, 7, 24, seed=1)):
        assert result.largest <= result.tolerance, str(result)


@pytest.mark.parametrize("variant", ["published", "compare"])
def test_pads_on_either_side_never_count(variant):
    head = CrossHead(16, variant, hidden=9).double()
    a, b = normal(3, 5, 16).detach(), normal(3, 7, 16, seed=1).detach()
    mask_a, mask_b = real(LENGTHS_A), real(LENGTHS_B)
    expected = head(a, b, mask_a, mask_b)
    sizes = enumerate(zip(LENGTHS_A, LENGTHS_B, strict=True))
    alone = torch.cat([head(a[i : i + 1, :n], b[i : i + 1, :m]) for i, (n, m) in sizes])
    assert_parity(f"{variant}, pair by pair", alone, expected, PIECE)
    a, b = a + 1e6 * ~mask_a[..., None], b - 1e6 * ~mask_b[..., None]
    assert_parity(f"{variant}, other pads", head(a, b, mask_a, mask_b), expected, PIECE)


def test_the_widths_by_default():
    assert JointHead(16).mlp[0].out_features == CrossHead(16).mlp[0].out_features == 256
    assert (CrossHead(16).variant, CrossHead(16).attention.heads) == ("published", 8)


@pytest.mark.parametrize("heads", [0, 5, 2.0, True])
def test_a_width_that_heads_cannot_share(heads):
    with pytest.raises(ValueError, match=r"attention heads|heads must be"):
        CrossHead(16, heads=heads)


def test_comparing_starts_with_tokens_that_find_their_like():
    """Before training, what a's token finds in b is a token of b as the encoder made it: of one, that one itself."""
    torch.manual_seed(0)
    a, b = torch.randn(2, 3, 16), torch.randn(2, 1, 16)
    attention = CrossHead(16, "compare", heads=4).attention
    assert torch.allclose(attention(a, b), b.expand(2, 3, 16), atol=1e-6)
    far = torch.cat([100 * a[:, :1], -100 * a[:, :1]], dim=1)  # its like, and its opposite
    assert torch.allclose(attention(a[:, :1], far), far[:, :1], atol=1e-3)
    published = CrossHead(16, "published", heads=4).attention
    assert not torch.allclose(published(a, b), b.expand(2, 3, 16), atol=1e-2)
