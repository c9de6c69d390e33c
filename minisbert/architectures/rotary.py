"""Positions by rotation in place of a table (RoFormer, Su et al. 2021, arXiv 2104.09864): formulas and settings.

Two columns of a query or key are one point of a plane, which is turned by an angle that grows with its token's place in
the text. A score then depends on how far apart two tokens are, and not on where they are.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from minisbert.architectures.base import Architecture, check_only
from minisbert.core import one_line
from minisbert.core.checks import check, check_fields
from minisbert.core.weights import Rate, Size


def rotary(positions: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position's angles: positions (B, T) -> twice (B, 1, T, K), for all heads alike.

    Pair i of K/2 turns by ``base ** (-2i / K)`` a token, the first pair by 1 radian (section 3.4.3 of the paper, whose
    base is 10,000). ``rotary([[2]], 4, 10000, float64)``: angles 2, .02, 2, .02.
    """
    # subtle: at position 8,000 bfloat16 is off by whole turns, so the angles never are in it
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    # subtle: base ** -x rounds otherwise in float32, by up to .002 radians at position 32,768
    rates = 1.0 / base ** (torch.arange(0, width, 2, device=positions.device).to(kind) / width)  # (K/2,)
    angles = (positions.to(kind)[..., None] * rates)[:, None]  # (B, 1, T, K/2)
    angles = torch.cat([angles, angles], dim=-1)  # (B, 1, T, K)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Every pair of columns turned by its angle: x (B, H, T, K), cos and sin (B, 1, T, K) -> (B, H, T, K).

    A quarter turn takes (3, 4) to (-4, 3).
    """
    # subtle: column i is paired with column i + K/2, not with i + 1 as in the paper; weights are made for one of them
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


GLOBAL, LOCAL = "full_attention", "sliding_attention"  # kinds of layers, as files name them
MOST_LAYERS = 1000
Base = Annotated[float, "above 0 and finite"]
Flag = Annotated[bool, "0 or 1"]


@dataclass(frozen=True)
class RotaryConfig:
    """The sizes and constants that encoders with rotated positions share. Raises ``ValueError`` as ``BertConfig``."""

    vocab_size: Size  # V
    hidden_size: Size  # D
    num_hidden_layers: Size  # L
    num_attention_heads: Size  # H
    intermediate_size: Size  # F
    max_position_embeddings: Size = 8192
    layer_types: tuple[str, ...] = ()  # one of ``kinds`` for each layer; empty if all are global
    rope_theta: Base = 10_000.0  # the base of the rotation in global layers
    attention_bias: Flag = False
    hidden_dropout_prob: Rate = 0.0
    attention_probs_dropout_prob: Rate = 0.0
    initializer_range: Rate = 0.02
    type_vocab_size: int = 0
    pad_token_id: int | None = None

    kinds: ClassVar[tuple[str, ...]] = (GLOBAL, LOCAL)

    def __post_init__(self) -> None:
        check_fields(self)
        if not {*self.layer_types} <= {*self.kinds} or len(self.layer_types) not in (0, self.num_hidden_layers):
            known, found = " or ".join(self.kinds), one_line([*self.layer_types])
            raise ValueError(f"layer_types must be {known} for each layer, not {found}")

    @property
    def positions(self) -> int:
        """The largest number of tokens that one text can have."""
        return self.max_position_embeddings


@dataclass(frozen=True, kw_only=True)
class RotaryFamily(Architecture):
    """A family whose files state a base of the rotation, or one for each kind of layer.

    ``bases`` maps kinds of layers, or None for all of them, to our settings. ``spacing`` is for files without
    ``layer_types``: a key of ``config.json``, its default n, and s; layer i is global if n divides i + s.
    """

    bases: dict[str | None, str]
    spacing: tuple[str, int, int] | None = None
    relative: bool = True

    def read(self, raw: dict[str, Any]) -> Any:
        """As ``Architecture.read``. Newer files state the kind of each layer, and bases in ``rope_parameters``."""
        scaling, ropes = (raw.get(key) or {} for key in ("rope_scaling", "rope_parameters"))
        kinds = raw.get("layer_types") or ()
        if self.spacing and not kinds:
            key, usual, shift = self.spacing
            layers, every = raw["num_hidden_layers"], raw.get(key, usual)
            check(f"num_hidden_layers an integer from 1, {key} an integer from 1", layers, every)
            # a damaged number of layers must not fill the memory: with fewer kinds the config refuses it
            kinds = [LOCAL if (i + shift) % every else GLOBAL for i in range(min(layers, MOST_LAYERS))]
        stated = raw | {"layer_types": tuple(kinds)}
        for kind, base in self.bases.items():
            rope = {**ropes, **scaling} if kind is None else ropes.get(kind) or {}
            for each in (scaling, ropes, rope):
                check_only({"rope_type": each.get("rope_type") or each.get("type")}, {"rope_type": "default"})
            if "rope_theta" in rope:
                stated[self.settings.get(base, base)] = rope["rope_theta"]
        return super().read(stated)
