"""Two encoded sentences to one score: the heads.

cross-encoder    [CLS] of "[CLS] a [SEP] b [SEP]": the sentences meet in every layer of the encoder
siamese          two vectors, compared: (|u - v|, u * v, u)
concat           the same with any choice of u, v, |u - v|, u * v (SBERT, Reimers & Gurevych 2019, table 6)
cross-attention  a's tokens attend to b's, after the two sentences have been encoded separately
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .bert import Attention, attention
from .checks import check_integer, check_number, check_one_of
from .pooling import cls_pool, mean_pool


def difference(u: Tensor, v: Tensor) -> Tensor:
    """|u - v| column by column, the same in both directions. Any shape."""
    return (u - v).abs()


FEATURES: dict[str, Callable] = {
    "u": lambda u, v: u,
    "v": lambda u, v: v,
    "|u-v|": difference,
    "u*v": torch.mul,
}
CONCATS = (
    "u,v",
    "|u-v|",
    "u*v",
    "|u-v|,u*v",
    "u,v,u*v",
    "u,v,|u-v|",
    "u,v,|u-v|,u*v",
)  # SBERT, table 6


def parse_concat(text: str) -> tuple[str, ...]:
    """``"u,v,|u-v|"`` to its features, in order; ``u-v`` means ``|u-v|``. ``ValueError`` for any
    other feature.
    """
    features = tuple("|u-v|" if name.strip() == "u-v" else name.strip() for name in text.split(","))
    if len({*features}) != len(features) or not {*features} <= {*FEATURES}:
        known = f"{', '.join(FEATURES)}, each once; SBERT's table has {'; '.join(CONCATS)}"
        raise ValueError(f"concat {text!r}: name some of {known}")
    return features


def combine(u: Tensor, v: Tensor, features: Sequence[str]) -> Tensor:
    """Features in that order: u, v (B, D) -> (B, n D). ``[1, 2], [3, 1]`` give ``[2, 1, 3, 2]`` for
    |u-v| and u*v.
    """
    return torch.cat([FEATURES[name](u, v) for name in features], dim=-1)


def mlp(width: int, hidden: int, outputs: int, dropout: float) -> nn.Sequential:
    """Linear, ReLU, dropout, Linear: (B, width) -> (B, outputs). ``hidden=0`` leaves one Linear and
    nothing else.
    """
    check_integer("width", width)
    check_integer("hidden", hidden, least=0)
    check_integer("outputs", outputs)
    check_number("dropout", dropout, 0, 1)
    if not hidden:
        check_one_of("dropout without a hidden layer", dropout, [0])
        return nn.Sequential(nn.Linear(width, outputs))
    return nn.Sequential(
        nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, outputs)
    )


class JointHead(nn.Module):
    """The cross-encoder's: the encoder has already compared the pair, and [CLS] holds the result
    (BERT, figure 4a).
    """

    def __init__(self, width: int, hidden: int = 256, outputs: int = 1, dropout: float = 0.0):
        super().__init__()
        self.settings = {"width": width, "hidden": hidden, "outputs": outputs, "dropout": dropout}
        self.mlp = mlp(width, hidden, outputs, dropout)

    def forward(self, states: Tensor) -> Tensor:
        """Hidden states of the joined pairs (B, T, D) -> (B, outputs)."""
        return self.mlp(cls_pool(states))


class ConcatHead(nn.Module):
    """SBERT's classifier over features of (u, v, |u - v|, u * v); by default one Linear (the
    paper's has no bias).
    """

    def __init__(
        self,
        width: int,
        concat: str = "u,v,|u-v|",
        hidden: int = 0,
        outputs: int = 1,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.features = parse_concat(concat)
        self.settings = {"width": width, "concat": ",".join(self.features)}
        self.settings |= {"hidden": hidden, "outputs": outputs, "dropout": dropout}
        self.mlp = mlp(len(self.features) * width, hidden, outputs, dropout)

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        """Vectors u and v, (B, D) each -> (B, outputs)."""
        return self.mlp(combine(u, v, self.features))


def siamese(width: int, hidden: int = 256, outputs: int = 1, dropout: float = 0.0) -> ConcatHead:
    """The siamese regression head: (|u - v|, u * v, u), then 3D-256-ReLU-1."""
    return ConcatHead(width, "|u-v|,u*v,u", hidden, outputs, dropout)


class CrossAttention(Attention):
    """Attention between two sentences: queries from a, keys and values from b
    (``torch.nn.MultiheadAttention``).
    """

    def forward(self, a: Tensor, b: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """a (B, T, D), b (B, S, D), mask (B, S) True for b's real tokens -> what a's tokens found
        in b, (B, T, D).
        """
        visible = None if mask is None else mask.bool()[:, None, None, :]  # (B, 1, 1, S)
        query, key, value = (
            self.split(self.query(a)),
            self.split(self.key(b)),
            self.split(self.value(b)),
        )
        context, _ = attention(query, key, value, visible)  # (B, H, T, K)
        return self.output(self.merge(context))  # (B, T, D)


class CrossHead(nn.Module):
    """Two encoded sentences attend to each other before they are compared.

    ``published`` concatenates [CLS] of a with what it found in b; how to compare the two has to be
    learned, slowly. ``compare`` averages (|a - found|, a * found) over a's real tokens: the
    comparison is built in.
    """

    def __init__(
        self,
        width: int,
        variant: str = "published",
        heads: int = 8,
        hidden: int = 256,
        outputs: int = 1,
        dropout: float = 0.0,
    ):
        super().__init__()
        check_one_of("variant", variant, ["published", "compare"])
        self.settings = {"width": width, "variant": variant, "heads": heads}
        self.settings |= {"hidden": hidden, "outputs": outputs, "dropout": dropout}
        self.variant = variant
        self.mlp = mlp(2 * width, hidden, outputs, dropout)
        self.attention = CrossAttention(width, heads)
        if variant == "compare":
            # At the start each token of a finds what resembles it in b, in the encoder's space, so
            # |a - found| is a distance from the first step on. STS-B dev Pearson after one epoch:
            # 86.9, from random weights 64.4.
            for linear in (
                self.attention.query,
                self.attention.key,
                self.attention.value,
                self.attention.output,
            ):
                nn.init.eye_(linear.weight)
                nn.init.zeros_(linear.bias)

    def forward(
        self, a: Tensor, b: Tensor, mask_a: Tensor | None = None, mask_b: Tensor | None = None
    ) -> Tensor:
        """a (B, T, D) and b (B, S, D), masks (B, T) and (B, S) True for real tokens -> (B,
        outputs).
        """
        if self.variant == "published":
            found = self.attention(a[:, :1], b, mask_b)  # (B, 1, D): the other rows are not read
            return self.mlp(torch.cat([cls_pool(a), cls_pool(found)], dim=-1))
        found = self.attention(a, b, mask_b)  # (B, T, D)
        compared = torch.cat([difference(a, found), a * found], dim=-1)  # (B, T, 2D)
        return self.mlp(mean_pool(compared, mask_a))


Head = JointHead | ConcatHead | CrossHead
