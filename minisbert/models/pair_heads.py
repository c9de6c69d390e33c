"""Heads of saved pair models: what ``head.json`` says of a head, and the head that it describes.

"settings": {"width": 384, "concat": "u,v,|u-v|", "hidden": 0, "outputs": 3, "dropout": 0.0}
"""

from typing import Any

import torch
from torch import Tensor, nn

from minisbert.core import one_line
from minisbert.core.checks import check_one_of
from minisbert.core.heads import ConcatHead, CrossAttention, CrossHead, JointHead, mlp
from minisbert.core.pooling import cls_pool


class ClsCrossHead(nn.Module):
    """Cross-attention as a notebook published it: [CLS] of a beside what it found in b.

    The head has to learn how to compare the two, and does so slowly: on STS-B it reached a Pearson
    of 48 where ``CrossHead``, whose comparison is built in, reached 84 (docs/results.md).
    """

    def __init__(
        self,
        width: int,
        heads: int = 8,
        hidden: int = 256,
        outputs: int = 1,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.mlp = mlp(2 * width, hidden, outputs, dropout)
        self.attention = CrossAttention(width, heads)

    def forward(
        self, a: Tensor, b: Tensor, mask_a: Tensor | None = None, mask_b: Tensor | None = None
    ) -> Tensor:
        """Hidden states and masks as ``CrossHead`` takes them -> (B, outputs)."""
        context = self.attention(a[:, :1], b, mask_b)  # (B, 1, D): only [CLS] of a asks
        features = torch.cat([cls_pool(a), cls_pool(context)], dim=-1)  # (B, 2D)
        return self.mlp(features)  # (B, outputs)


Head = JointHead | ConcatHead | CrossHead | ClsCrossHead

# The names of the heads in ``head.json``. The siamese head is a ``ConcatHead`` of other features.
HEAD_NAMES: dict[type[nn.Module], str] = {
    JointHead: "cross-encoder",
    ConcatHead: "concat",
    CrossHead: "cross-attention",
    ClsCrossHead: "cross-attention",
}
CROSS_HEADS: dict[str, type[CrossHead] | type[ClsCrossHead]] = {
    "published": ClsCrossHead,
    "compare": CrossHead,
}
SETTINGS = {
    "cross-encoder": ("width", "hidden", "outputs", "dropout"),
    "concat": ("width", "concat", "hidden", "outputs", "dropout"),
    "cross-attention": ("width", "variant", "heads", "hidden", "outputs", "dropout"),
}


def head_settings(head: Head) -> dict[str, Any]:
    """Return the kind and the sizes of a head as ``head.json`` states them, to make it again."""
    layers: Any = head.mlp  # one Linear; or Linear, activation, dropout, Linear
    settings: dict[str, Any]
    if isinstance(head, JointHead):
        settings = {"width": layers[0].in_features}
    elif isinstance(head, ConcatHead):
        width = layers[0].in_features // len(head.features)
        settings = {"width": width, "concat": ",".join(head.features)}
    else:
        variant = "compare" if isinstance(head, CrossHead) else "published"
        attention = head.attention
        settings = {
            "width": attention.query.in_features,
            "variant": variant,
            "heads": attention.heads,
        }

    settings["hidden"] = 0
    settings["outputs"] = layers[-1].out_features
    settings["dropout"] = 0.0
    if len(layers) > 1:
        settings["hidden"] = layers[0].out_features
        settings["dropout"] = layers[2].p
    return settings


def make_head(name: str, settings: dict[str, Any]) -> Head:
    """Make the head that ``head.json`` describes; its weights are new.

    ``ValueError`` for an unknown name, and for settings that are missing, unknown or out of range.
    """
    if name not in SETTINGS:
        raise ValueError(f"head must be one of {', '.join(SETTINGS)}, not {one_line(name)}")
    # A setting that is left out must not fall back to a default: the weights would not fit, or fit
    # by chance.
    if settings.keys() != set(SETTINGS[name]):
        needed = ", ".join(SETTINGS[name])
        raise ValueError(f"settings {one_line(settings)} must state each of {needed}")
    for key, value in settings.items():
        if key in ("concat", "variant"):
            fits = isinstance(value, str)
        else:
            fits = isinstance(value, int | float)
        if not fits:
            raise ValueError(f"settings: {key} cannot be {one_line(value)}")

    sizes = dict(settings)
    if name == "cross-encoder":
        return JointHead(**sizes)
    if name == "concat":
        features = sizes.pop("concat").split(",")
        return ConcatHead(features=features, **sizes)
    variant = sizes.pop("variant")
    check_one_of("variant", variant, list(CROSS_HEADS))
    return CROSS_HEADS[variant](**sizes)
