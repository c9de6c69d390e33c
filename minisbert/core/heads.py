"""Two encoded sentences to one score: the heads::

    cross-encoder    [CLS] of "[CLS] a [SEP] b [SEP]": the sentences meet in every layer
    siamese          two vectors, compared: (|u - v|, u * v, u)
    concat           the same with any choice of u, v, |u - v|, u * v
                     (SBERT, Reimers & Gurevych 2019, table 6)
    cross-attention  a's tokens attend to b's, after each sentence has been encoded by itself

What the library runs: all of this chapter, in ``minisbert.PairModel``. Published cross-encoders do
not have ``JointHead`` but the classifier of transformers, which is in ``models/cross_encoder.py``.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .bert import attend
from .checks import check_integer, check_number, check_one_of, one_line
from .pooling import cls_pool, mean_pool

__all__ = [
    "ConcatHead",
    "CrossAttention",
    "CrossHead",
    "JointHead",
    "combine",
    "difference",
    "mlp",
    "siamese",
]

FEATURES = ("u", "v", "|u-v|", "u*v")  # what a head may read of two vectors


def difference(u: Tensor, v: Tensor) -> Tensor:
    """|u - v| column by column, the same in both directions. Any shape."""
    return (u - v).abs()


def combine(u: Tensor, v: Tensor, features: Sequence[str]) -> Tensor:
    """The named ``FEATURES`` side by side, in that order: u and v, (B, D) each -> (B, n D).

    For ``["|u-v|", "u*v"]`` the vectors ``[1, 2]`` and ``[3, 1]`` give ``[2, 1, 3, 2]``.
    """
    values = {"u": u, "v": v, "|u-v|": difference(u, v), "u*v": u * v}
    return torch.cat([values[name] for name in features], dim=-1)


def mlp(width: int, hidden: int, outputs: int, dropout: float) -> nn.Sequential:
    """Linear, ReLU, dropout, Linear: (B, width) -> (B, outputs).

    ``hidden=0`` leaves one Linear and nothing else.
    """
    check_integer("width", width)
    check_integer("hidden", hidden, least=0)
    check_integer("outputs", outputs)
    check_number("dropout", dropout, least=0, below=1)
    if hidden == 0:
        # Dropout stands behind the hidden layer: without one, any rate but 0 is a mistake.
        check_one_of("dropout without a hidden layer", dropout, [0])
        return nn.Sequential(nn.Linear(width, outputs))
    return nn.Sequential(
        nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, outputs)
    )


class JointHead(nn.Module):
    """The cross-encoder's head over [CLS] (BERT, figure 4a).

    The encoder has already compared the two sentences, and [CLS] holds the result.
    """

    def __init__(self, width: int, hidden: int = 256, outputs: int = 1, dropout: float = 0.0):
        super().__init__()
        self.mlp = mlp(width, hidden, outputs, dropout)

    def forward(self, states: Tensor) -> Tensor:
        """Hidden states of the joined pairs (B, T, D) -> (B, outputs)."""
        return self.mlp(cls_pool(states))


class ConcatHead(nn.Module):
    """SBERT's classifier over features of two vectors, by default u, v and |u - v| (table 6).

    By default it is one Linear (the paper's has no bias). ``ValueError`` for a feature that is not
    in ``FEATURES``, or is there twice.
    """

    def __init__(
        self,
        width: int,
        features: Sequence[str] = ("u", "v", "|u-v|"),
        hidden: int = 0,
        outputs: int = 1,
        dropout: float = 0.0,
    ):
        super().__init__()
        unknown = [name for name in features if name not in FEATURES]
        repeated = len(set(features)) < len(features)
        if not features or unknown or repeated:
            choice = ", ".join(FEATURES)
            raise ValueError(f"features {one_line(features)}: name some of {choice}, each once")
        self.features = tuple(features)
        self.mlp = mlp(len(self.features) * width, hidden, outputs, dropout)

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        """Vectors u and v, (B, D) each -> (B, outputs)."""
        return self.mlp(combine(u, v, self.features))


def siamese(width: int, hidden: int = 256, outputs: int = 1, dropout: float = 0.0) -> ConcatHead:
    """The siamese regression head: (|u - v|, u * v, u), then 3D columns to 256, ReLU, and to 1."""
    return ConcatHead(width, ("|u-v|", "u*v", "u"), hidden, outputs, dropout)


class CrossAttention(nn.Module):
    """Multi-head attention between two sentences, as in ``torch.nn.MultiheadAttention``.

    The weights, ``split`` and ``merge`` are those of ``bert.Attention``, line by line. There the
    queries, keys and values come from one sentence; here the queries come from a, the keys and
    values from b.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        check_integer("heads", heads)
        if width % heads:
            raise ValueError(f"a width of {width} cannot be divided among {heads} attention heads")
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, H, T, K): head h takes columns h * K to (h + 1) * K."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, T, H, K) -> (B, H, T, K)

    def merge(self, x: Tensor) -> Tensor:
        """(B, H, T, K) -> (B, T, D), the inverse of ``split``."""
        return x.transpose(1, 2).flatten(-2)  # (B, T, H, K) -> (B, T, D)

    def forward(self, a: Tensor, b: Tensor, mask: Tensor | None = None) -> Tensor:
        """What a's tokens find in b: a (B, T, D), b (B, S, D) -> (B, T, D).

        ``mask`` (B, S) is True for b's real tokens; None if all are real.
        """
        visible = None
        if mask is not None:
            visible = mask.bool()[:, None, None, :]  # (B, 1, 1, S)

        query = self.split(self.query(a))  # (B, H, T, K)
        key = self.split(self.key(b))  # (B, H, S, K)
        value = self.split(self.value(b))  # (B, H, S, K)
        context, _ = attend(query, key, value, visible)  # (B, H, T, K)
        return self.output(self.merge(context))  # (B, T, D)


class CrossHead(nn.Module):
    """Two encoded sentences attend to each other before they are compared.

    Each token of a is compared with what it found in b: (|a - found|, a * found), averaged over a's
    real tokens.
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

        # With identity matrices each token of a finds, before any training, what resembles it in b,
        # so |a - found| is a distance from the first step on. STS-B dev Pearson after one epoch:
        # 86.9; from random matrices 64.4.
        layer = self.attention
        for linear in (layer.query, layer.key, layer.value, layer.output):
            nn.init.eye_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(
        self, a: Tensor, b: Tensor, mask_a: Tensor | None = None, mask_b: Tensor | None = None
    ) -> Tensor:
        """Hidden states a (B, T, D) and b (B, S, D) -> (B, outputs).

        The masks, (B, T) and (B, S), are True for real tokens.
        """
        found = self.attention(a, b, mask_b)  # (B, T, D)
        compared = torch.cat([difference(a, found), a * found], dim=-1)  # (B, T, 2D)
        return self.mlp(mean_pool(compared, mask_a))  # (B, 2D) -> (B, outputs)
