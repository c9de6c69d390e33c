"""Settings of heads; their values are in the grader's cases and ``parity/heads.py``."""

import pytest
import torch

from minisbert.core.heads import CONCATS, ConcatHead, CrossHead, JointHead, combine, parse_concat


def test_the_parts_of_a_combination_stand_in_the_order_stated():
    u, v = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 1.0]])
    assert combine(u, v, parse_concat("u, v, u-v")).tolist() == [[1, 2, 3, 1, 2, 1]]
    assert ConcatHead(2, "|u-v|,u*v,u").mlp[0].in_features == 6


def test_the_table_of_sbert_is_complete():
    assert len(CONCATS) == len({*CONCATS}) == 7
    assert all(",".join(parse_concat(concat)) == concat for concat in CONCATS)


@pytest.mark.parametrize(
    "concat", ["", "u,u", "u,w", "u v", "u,|v-u|", "u,,v", "u-v,|u-v|", "(u,v)"]
)
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


def test_the_widths_by_default():
    assert JointHead(16).mlp[0].out_features == CrossHead(16).mlp[0].out_features == 256
    assert (CrossHead(16).variant, CrossHead(16).attention.heads) == ("published", 8)


@pytest.mark.parametrize("heads", [0, 5, 2.0, True])
def test_a_width_that_heads_cannot_share(heads):
    with pytest.raises(ValueError, match=r"attention heads|heads must be"):
        CrossHead(16, heads=heads)


def test_comparing_starts_with_tokens_that_find_their_like():
    """Before training, what a's token finds in b is a token of b as the encoder made it: of one,
    that one itself.
    """
    torch.manual_seed(0)
    a, b = torch.randn(2, 3, 16), torch.randn(2, 1, 16)
    attention = CrossHead(16, "compare", heads=4).attention
    assert torch.allclose(attention(a, b), b.expand(2, 3, 16), atol=1e-6)
    far = torch.cat([100 * a[:, :1], -100 * a[:, :1]], dim=1)  # its like, and its opposite
    assert torch.allclose(attention(a[:, :1], far), far[:, :1], atol=1e-3)
    published = CrossHead(16, "published", heads=4).attention
    assert not torch.allclose(published(a, b), b.expand(2, 3, 16), atol=1e-2)
