"""What the encoders of this folder share: one forward pass, layers, and rotated positions.

Imports ``core``.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from minisbert.core import one_line
from minisbert.core.bert import Bert
from minisbert.core.checks import check_integer, check_number, check_one_of
from minisbert.core.weights import SIZES


def attention_mask(mask: Tensor | None) -> Tensor | None:
    """Make a mask as ``attention`` reads it: (B, T) or (B, 1, T, T) -> boolean (B, 1, 1 or T, T).

    Raises ``ValueError`` for a mask of floats, which may be an additive one.
    """
    if mask is None:
        return None
    if mask.is_floating_point():
        raise ValueError(
            "mask must be boolean or 0 and 1 as integers, not floats (no additive masks here)"
        )
    mask = mask.bool()
    if mask.ndim == 2:
        mask = mask[:, None, None, :]  # (B, 1, 1, T)
    return mask


class WordEmbeddings(nn.Module):
    """The table of tokens alone: positions come in later, by rotations."""

    def __init__(self, config: Any):
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)

    def forward(self, ids: Tensor, token_types: Tensor | None, positions: Tensor) -> Tensor:
        """ids (B, T) -> (B, T, D); token types and positions are not read."""
        return self.word(ids)


class ModernEncoder(nn.Module):
    """Embeddings, layers that may read more than a mask, and perhaps a norm after the last one.

    A subclass defines ``view``: what each layer reads besides x.
    """

    def __init__(
        self,
        config: Any,
        embeddings: nn.Module,
        layers: Iterable[nn.Module],
        norm: nn.Module | None = None,
        pooler: bool = False,
    ):
        super().__init__()
        self.config = config
        self.embeddings: Any = embeddings  # called with ids, token types and positions
        self.layers = nn.ModuleList(layers)
        if norm is None:
            norm = nn.Identity()
        self.norm = norm
        self.pooler = None
        if pooler:
            self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.initialise()

    def initialise(self) -> None:
        """Fill new weights as the book does: with normal numbers, and biases of 0."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.initializer_range)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        token_types: Tensor | None = None,
        trace: dict[str, Tensor] | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """ids (B, T), mask and token types (B, T) -> hidden states (B, T, D), as ``Bert.forward``.

        Several texts may share a row: ``positions`` (B, T) then start again with each of them, and
        a mask (B, 1, T, T) is True where query and key belong to the same text.
        """
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]  # (1, T)
        x = self.embeddings(ids, token_types, positions)  # (B, T, D)
        if trace is not None:
            trace["embeddings"] = x

        views = self.view(attention_mask(mask), positions, x.dtype)
        for i, (layer, view) in enumerate(zip(self.layers, views, strict=True)):
            x, probabilities = layer(x, view)  # (B, T, D), (B, H, T, T)
            if trace is not None:
                trace[f"layers.{i}.attention"] = probabilities
                trace[f"layers.{i}"] = x

        # As in transformers, the last layer's hidden states are those after the norm.
        x = self.norm(x)
        if trace is not None:
            trace[f"layers.{len(self.layers) - 1}"] = x
        return x

    def view(
        self, mask: Tensor | None, positions: Tensor, dtype: torch.dtype
    ) -> Sequence[Tensor | tuple | None]:
        """Return what each layer reads besides x.

        It is computed once for a batch: from the mask (B, 1, 1 or T, T), None if there is no
        padding, and the positions (B or 1, T). ``dtype`` is that of x.
        """
        raise NotImplementedError

    def hidden_states(
        self, ids: Tensor, mask: Tensor | None = None, token_types: Tensor | None = None
    ) -> list[Tensor]:
        """Return the embeddings' output and every layer's: L + 1 tensors (B, T, D), in order."""
        trace: dict[str, Tensor] = {}
        self(ids, mask, token_types, trace)
        outputs = [trace[f"layers.{i}"] for i in range(len(self.layers))]
        return [trace["embeddings"], *outputs]

    def pool(self, hidden: Tensor) -> Tensor:
        """Apply pre-training's pooler, tanh of a dense layer over [CLS]: (B, T, D) -> (B, D)."""
        if self.pooler is None:
            raise ValueError("this checkpoint has no pooler weights")
        return torch.tanh(self.pooler(hidden[:, 0]))  # (B, D)


Encoder = Bert | ModernEncoder  # what a family's ``encoder`` makes


class PreNormLayer(nn.Module):
    """Attention, then feed-forward. Each reads x normalised, and its output is added to x itself.

    That order is called pre-norm.
    """

    def __init__(
        self,
        attention_norm: nn.Module,
        attention: nn.Module,
        feed_forward_norm: nn.Module,
        feed_forward: nn.Module,
    ):
        super().__init__()
        self.attention_norm = attention_norm
        self.attention = attention
        self.feed_forward_norm = feed_forward_norm
        self.feed_forward = feed_forward

    def forward(self, x: Tensor, view: tuple) -> tuple[Tensor, Tensor | None]:
        """x (B, T, D), view: what attention reads besides -> (B, T, D), the probabilities."""
        attended, probabilities = self.attention(self.attention_norm(x), view)
        x = x + attended
        x = x + self.feed_forward(self.feed_forward_norm(x))
        return x, probabilities


class AttentionHeads(nn.Module):
    """What the attentions of this folder share: splitting into heads of K columns, and dropout."""

    def __init__(self, head_dim: int, dropout: float):
        super().__init__()
        self.head_dim = head_dim  # K
        self.dropout = dropout  # of the probabilities, in training

    def split(self, x: Tensor) -> Tensor:
        """(B, T, H * K) -> (B, H, T, K), as the book's; H may differ for queries and keys."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        """(B, H, T, K) -> (B, T, H * K), the inverse of ``split``."""
        return x.transpose(1, 2).flatten(-2)


def rotary(positions: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Compute cosine and sine of each position's angles: (B, T) -> twice (B, 1, T, K).

    ``rotate`` turns pairs of columns, K/2 of them in a head of K = ``width``, in all heads alike.
    From a token to the next one pair i turns by ``base ** (-2i / K)``, the first pair by 1 radian
    (RoFormer, Su et al. 2021, section 3.4.3, whose base is 10,000).
    ``rotary([[2]], 4, 10000, float64)``: angles 2, .02, 2, .02.
    """
    # subtle: bfloat16 would be off by whole turns at position 8,000, so angles are computed in
    # float32 at least
    precise = torch.float64 if dtype == torch.float64 else torch.float32
    # subtle: the formula base ** -x rounds differently from 1 / base ** x in float32, by up to .002
    # radians at position 32,768; transformers computes the latter
    columns = torch.arange(0, width, 2, device=positions.device).to(precise)  # (K/2,)
    rates = 1.0 / base ** (columns / width)  # (K/2,)
    angles = (positions.to(precise)[..., None] * rates)[:, None]  # (B, 1, T, K/2)
    angles = torch.cat([angles, angles], dim=-1)  # (B, 1, T, K)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn every pair of columns by its angle.

    x (B, H, T, K), cos and sin (B, 1, T, K) -> (B, H, T, K). A quarter turn takes (3, 4) to
    (-4, 3).
    """
    # subtle: column i is paired with column i + K/2, not with i + 1 as in the paper; a model's
    # weights are made for one of the two
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


# kinds of layers, as files name them
GLOBAL = "full_attention"
LOCAL = "sliding_attention"


@dataclass(frozen=True)
class RotaryConfig:
    """The sizes and constants that encoders with rotated positions share.

    Raises ``ValueError`` for values that no encoder can have, as ``BertConfig`` does.
    """

    vocab_size: int  # V
    hidden_size: int  # D
    num_hidden_layers: int  # L
    num_attention_heads: int  # H
    intermediate_size: int  # F
    max_position_embeddings: int = 8192
    layer_types: tuple[str, ...] = ()  # one of ``kinds`` for each layer; empty if all are global
    rope_theta: float = 10_000.0  # the base of the rotation in global layers
    attention_bias: bool = False
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    initializer_range: float = 0.02
    type_vocab_size: int = 0
    pad_token_id: int | None = None

    kinds: ClassVar[tuple[str, ...]] = (GLOBAL, LOCAL)

    def __post_init__(self) -> None:
        for name in SIZES:
            check_integer(name, getattr(self, name))
        check_number("rope_theta", self.rope_theta, 0, math.inf, above=True)
        check_one_of("attention_bias", self.attention_bias, [False, True])
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"):
            check_number(name, getattr(self, name), 0, 1)

        known = set(self.layer_types).issubset(self.kinds)
        if not known or len(self.layer_types) not in (0, self.num_hidden_layers):
            allowed = " or ".join(self.kinds)
            received = one_line(list(self.layer_types))
            raise ValueError(f"layer_types must be {allowed} for each layer, not {received}")

    @property
    def positions(self) -> int:
        """The largest number of tokens that one text can have."""
        return self.max_position_embeddings


def read_optional(raw: dict[str, Any], key: str, kind: type = dict) -> Any:
    """Return the value of a key in a config: an object or, if ``kind`` says so, a list.

    It is empty if the value is null or missing.
    """
    value = raw.get(key)
    if value is None:
        return kind()
    # ``Family.write`` returns lists as tuples, which JSON would turn into lists.
    if isinstance(value, tuple):
        value = list(value)
    if not isinstance(value, kind):
        raise ValueError(f"{key} must be a JSON {kind.__name__}, not {one_line(value)}")
    return value


def check_default_rope(*ropes: dict[str, Any]) -> None:
    """Raise ``ValueError`` for a scaled rotation, which extends a model to longer texts.

    Each of ``ropes`` is an object from ``rope_parameters``, or ``rope_scaling`` in older files.
    """
    for rope in ropes:
        kind = rope.get("rope_type") or rope.get("type")
        if kind not in (None, "default"):
            raise ValueError(f"rope_type {one_line(kind)} is not supported, only 'default' is")
