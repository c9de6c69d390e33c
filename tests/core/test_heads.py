"""Settings of heads; their values are in the grader's cases and ``parity/heads.py``."""

import pytest
import torch

from minisbert.core.heads import (
    ConcatHead,
    CrossAttention,
    CrossHead,
    JointHead,
    combine,
    siamese,
)


def test_features_are_in_the_order_of_their_names():
    """A saved head's weights know which column is which."""
    u = torch.tensor([[1.0, 2.0]])
    v = torch.tensor([[3.0, 1.0]])
    assert combine(u, v, ["u", "v", "|u-v|"]).tolist() == [[1, 2, 3, 1, 2, 1]]
    assert combine(u, v, ["u*v", "u"]).tolist() == [[3, 2, 1, 2]]


def test_a_head_is_as_wide_as_its_features():
    assert ConcatHead(2).mlp[0].in_features == 6
    assert ConcatHead(2, ["u*v"]).mlp[0].in_features == 2
    assert siamese(2).features == ("|u-v|", "u*v", "u")


@pytest.mark.parametrize(
    "features", [[], ["u", "u"], ["u", "w"], ["u v"], ["u", "|v-u|"], ["u-v"], ["(u", "v)"], "u,v"]
)
def test_unknown_or_repeated_features_name_the_known_ones(features):
    """The message is all that somebody who mistypes a feature has."""
    with pytest.raises(ValueError, match=r"u, v, \|u-v\|, u\*v, each once"):
        ConcatHead(4, features)


def test_dropout_of_a_head_is_alive_in_training_only():
    """Scores must not depend on chance, and dropout that never acts regularises nothing."""
    head = ConcatHead(6, ["u", "v"], hidden=50, dropout=0.5)
    u = torch.randn(2, 6)
    v = torch.randn(2, 6)
    assert (head(u, v) != head(u, v)).any()
    head.eval()
    assert torch.equal(head(u, v), head(u, v))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden", -1),
        ("hidden", 2.0),
        ("outputs", 0),
        ("width", 0),
        ("dropout", 1.0),
        ("dropout", "much"),
        ("dropout", True),
    ],
)
@pytest.mark.parametrize("kind", [JointHead, ConcatHead, CrossHead])
def test_a_setting_out_of_range(kind, name, value):
    """torch would take some of them, and fail later or not at all."""
    settings = {"width": 8, "hidden": 4, name: value}
    with pytest.raises(ValueError, match=name):
        kind(**settings)


@pytest.mark.parametrize("kind", [JointHead, ConcatHead, CrossHead])
def test_dropout_needs_a_hidden_layer(kind):
    """It would be ignored without a word."""
    with pytest.raises(ValueError, match="dropout without a hidden layer"):
        kind(8, hidden=0, dropout=0.1)


def test_the_sizes_by_default():
    """Recipes and lesson 15 rely on them."""
    assert JointHead(16).mlp[0].out_features == 256
    assert CrossHead(16).mlp[0].out_features == 256
    assert CrossHead(16).attention.heads == 8


@pytest.mark.parametrize("heads", [0, 5, 2.0, True])
def test_a_width_that_heads_cannot_share(heads):
    """Heads of unequal width do not exist; torch would only fail in ``split``."""
    with pytest.raises(ValueError, match=r"attention heads|heads must be"):
        CrossHead(16, heads=heads)


def test_cross_attention_begins_with_tokens_that_find_their_like():
    """So the head's |a - found| is a distance before anything is trained."""
    torch.manual_seed(0)
    attention = CrossHead(16, heads=4).attention
    a = torch.randn(2, 3, 16)
    only = torch.randn(2, 1, 16)
    assert torch.allclose(attention(a, only), only.expand(2, 3, 16), atol=1e-6)
    first = a[:, :1]
    like_and_opposite = torch.cat([100 * first, -100 * first], dim=1)
    assert torch.allclose(attention(first, like_and_opposite), 100 * first, atol=1e-3)


def test_cross_attention_by_itself_begins_with_random_weights():
    """Only ``CrossHead`` sets them to the identity."""
    torch.manual_seed(0)
    a = torch.randn(2, 3, 16)
    only = torch.randn(2, 1, 16)
    found = CrossAttention(16, 4)(a, only)
    assert not torch.allclose(found, only.expand(2, 3, 16), atol=1e-2)
