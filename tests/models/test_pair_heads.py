"""``head.json`` and the heads that it describes."""

import pytest
import torch

from minisbert.core.heads import ConcatHead, CrossHead, JointHead, siamese
from minisbert.models.cross_encoder import ClassifierHead
from minisbert.models.pair_heads import ClsCrossHead, head_settings, make_head


@pytest.mark.parametrize(
    ("head", "settings"),
    [
        (
            JointHead(24, hidden=40, outputs=3, dropout=0.25),
            {"width": 24, "hidden": 40, "outputs": 3, "dropout": 0.25},
        ),
        (
            JointHead(24, hidden=0),
            {"width": 24, "hidden": 0, "outputs": 1, "dropout": 0.0},
        ),
        (
            ClassifierHead(24, 0.1, outputs=2),
            {"width": 24, "hidden": 24, "outputs": 2, "dropout": 0.1},
        ),
        (
            ConcatHead(24),
            {"width": 24, "concat": "u,v,|u-v|", "hidden": 0, "outputs": 1, "dropout": 0.0},
        ),
        (
            siamese(24, hidden=40, outputs=2, dropout=0.5),
            {"width": 24, "concat": "|u-v|,u*v,u", "hidden": 40, "outputs": 2, "dropout": 0.5},
        ),
        (
            CrossHead(24, heads=4, hidden=40),
            {
                "width": 24,
                "variant": "compare",
                "heads": 4,
                "hidden": 40,
                "outputs": 1,
                "dropout": 0.0,
            },
        ),
        (
            ClsCrossHead(24, hidden=0, outputs=2),
            {
                "width": 24,
                "variant": "published",
                "heads": 8,
                "hidden": 0,
                "outputs": 2,
                "dropout": 0.0,
            },
        ),
    ],
    ids=["joint", "one layer", "classifier", "concat", "siamese", "cross", "published cross"],
)
def test_settings_have_everything_that_makes_the_head_again(head, settings):
    """The order is that of the file: saved folders stay equal to the byte."""
    assert list(head_settings(head).items()) == list(settings.items())


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("cross-encoder", JointHead(24, hidden=40, outputs=3, dropout=0.25)),
        ("concat", ConcatHead(24, ["v", "u*v"], outputs=2)),
        ("cross-attention", CrossHead(24, heads=4)),
        ("cross-attention", ClsCrossHead(24, heads=2)),
    ],
    ids=["joint", "concat", "cross", "published cross"],
)
def test_a_head_is_made_again_from_its_settings(name, head):
    """The weights of a saved head only fit the same kind and sizes."""
    again = make_head(name, head_settings(head))
    assert type(again) is type(head)
    assert head_settings(again) == head_settings(head)
    again.load_state_dict(head.state_dict())


def test_making_a_head_leaves_the_settings_as_they_are():
    """They are a file's contents, which others may read."""
    settings = head_settings(CrossHead(24))
    before = dict(settings)
    make_head("cross-attention", settings)
    assert settings == before


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bilinear", {}, "head must be one of cross-encoder, concat, cross-attention"),
        ("concat", {"concat": "u,w"}, "each once"),
        ("concat", {"concat": 3}, "concat cannot be 3"),
        ("concat", {"width": "24"}, "width cannot be '24'"),
        ("concat", {"heads": 8}, "must state each of width, concat, hidden, outputs, dropout"),
        ("cross-encoder", {}, "must state each of width, hidden, outputs, dropout"),
    ],
)
def test_settings_that_make_no_head(name, changes, message):
    """A setting that fell back to a default could fit the weights by chance."""
    settings = {"width": 24, "concat": "u,v", "hidden": 0, "outputs": 1, "dropout": 0.0}
    with pytest.raises(ValueError, match=message):
        make_head(name, settings | changes)


def test_an_unknown_variant_of_cross_attention():
    """The two known ones have the same weights, but not the same scores."""
    settings = head_settings(CrossHead(24)) | {"variant": "both"}
    with pytest.raises(ValueError, match="variant must be published or compare, not 'both'"):
        make_head("cross-attention", settings)


def test_the_published_cross_head_reads_cls_and_what_it_found():
    """Its other tokens, and b's pads, change nothing."""
    torch.manual_seed(0)
    head = ClsCrossHead(16).eval()
    a = torch.randn(2, 3, 16)
    b = torch.randn(2, 4, 16)
    mask_b = torch.tensor([[True, True, True, False], [True, False, False, False]])
    scores = head(a, b, None, mask_b)
    others = a.clone()
    others[:, 1:] = 7.0
    padded = b.masked_fill(~mask_b[:, :, None], 9.0)
    torch.testing.assert_close(head(others, padded, None, mask_b), scores)
    assert (head(-a, b, None, mask_b) != scores).all()
