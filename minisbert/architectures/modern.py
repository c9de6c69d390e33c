"""Share one forward among the encoders of this folder, with pre-norm layers, rotations, and the
reading of files.

Imports ``core``.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from minisbert.core import one_line
from minisbert.core.bert import Bert
from minisbert.core.checks import check_integer, check_number, check_one_of
from minisbert.core.weights import SIZES, Family


@dataclass(frozen=True, kw_only=True)
class Architecture(Family):
    """A family whose encoder is a ``ModernEncoder``. ``linears`` names all of its modules, with a
    bias or without.
    """

    tables: dict[str, str] = field(default_factory=dict)
    norms: dict[str, str] = field(default_factory=dict)
    pooler: dict[str, str] = field(default_factory=dict)
    config: type  # a frozen dataclass that checks itself
    encoder: Callable[[Any, bool], Any]  # called with the config and whether the file has a pooler
    relative: bool = False  # only distances between tokens count: pads before a text move nothing
    only: dict[str, Any] = field(
        default_factory=dict
    )  # the only supported value of keys in config.json

    def read(self, raw: dict[str, Any]) -> Any:
        """Turn the contents of ``config.json`` into the config. Raises ``ValueError`` for an
        unsupported setting.
        """
        for key, only in self.only.items():
            if raw.get(key) not in (None, only):
                raise ValueError(
                    f"{key} {one_line(raw[key])} is not supported, only {one_line(only)} is"
                )
        # our name of a setting that the family calls something else is not read
        content = self.fields(
            {key: value for key, value in raw.items() if key not in self.settings}
        )
        read = [
            each.name
            for each in fields(self.config)
            if each.default is MISSING or each.name in content
        ]
        return self.config(
            **{name: content[name] for name in read}
        )  # KeyError: a size that has no default is missing

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the fields for ``config.json``, without those that are empty or that the family
        never states.
        """
        written = {
            name: value
            for name, value in config.items()
            if name not in self.constants and value != ()
        }
        return {self.settings.get(name, name): value for name, value in written.items()}


class WordEmbeddings(nn.Module):
    """The table of tokens alone: positions come in later, by rotations."""

    def __init__(self, config: Any):
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)

    def forward(
        self, ids: Tensor, token_types: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """ids (B, T) -> (B, T, D); the others are not read."""
        return self.word(ids)


class ModernEncoder(Bert):
    """``Bert`` with layers that read more than a mask, and a norm after the last one.

    Subclasses define ``view``: what each layer reads besides x, for a mask (B, 1, T or 1, T) or
    None and positions (B or 1, T).
    """

    view: Callable[[Tensor | None, Tensor, torch.dtype], Sequence[tuple]]
    config: Any  # of the family
    embeddings: Any  # a ``WordEmbeddings``, or the book's

    def __init__(
        self,
        config: Any,
        layers: Iterable[nn.Module],
        norm: nn.Module | None = None,
        embeddings: nn.Module | None = None,
    ):
        # the book's constructor would build its own layers
        nn.Module.__init__(self)
        self.config, self.pooler = config, None
        self.embeddings = WordEmbeddings(config) if embeddings is None else embeddings
        self.layers = nn.ModuleList(layers)
        self.norm = nn.Identity() if norm is None else norm
        self.initialise()

    def initialise(self) -> None:
        """New weights as in the book: normal numbers, and biases of 0."""
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
        """The book's forward pass, and ``norm`` after the last layer. ``token_types`` are not
        read.
        """
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]  # (1, T)
        x = self.norm(super().forward(ids, mask, None, trace, positions))  # (B, T, D)
        if trace is not None:
            trace[f"layers.{len(self.layers) - 1}"] = x
        return x

    def views(
        self, mask: Tensor | None, positions: Tensor | None, dtype: torch.dtype
    ) -> Sequence[tuple]:
        assert positions is not None, "forward has made them"
        (mask,), *_ = super().views(mask, positions, dtype)
        return self.view(mask, positions, dtype)


class PreNormLayer(nn.Module):
    """Attention, then feed-forward; each reads its input normalised and is added to it as it was
    (pre-norm).
    """

    def __init__(
        self,
        attention_norm: nn.Module,
        attention: nn.Module,
        feed_forward_norm: nn.Module,
        feed_forward: nn.Module,
    ):
        super().__init__()
        self.attention_norm, self.attention = attention_norm, attention
        self.feed_forward_norm, self.feed_forward = feed_forward_norm, feed_forward

    def forward(self, x: Tensor, *view: Any) -> tuple[Tensor, Tensor | None]:
        """x (B, T, D), what attention reads in addition -> (B, T, D) and the probabilities (B, H,
        T, T).
        """
        attended, probabilities = self.attention(self.attention_norm(x), *view)
        x = x + attended
        return x + self.feed_forward(self.feed_forward_norm(x)), probabilities


def rotary(positions: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Compute cosine and sine of each position's angles: positions (B, T) -> twice (B, 1, T, K),
    for all heads alike.

    Pair i of K/2 turns by ``base ** (-2i / K)`` a token, the first pair by 1 radian (section 3.4.3
    of the paper, whose base is 10,000). ``rotary([[2]], 4, 10000, float64)``: angles 2, .02, 2,
    .02.
    """
    # subtle: at position 8,000 bfloat16 is off by whole turns, so the angles never are in it
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    # subtle: base ** -x rounds otherwise in float32, by up to .002 radians at position 32,768
    rates = 1.0 / base ** (
        torch.arange(0, width, 2, device=positions.device).to(kind) / width
    )  # (K/2,)
    angles = (positions.to(kind)[..., None] * rates)[:, None]  # (B, 1, T, K/2)
    angles = torch.cat([angles, angles], dim=-1)  # (B, 1, T, K)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn every pair of columns by its angle: x (B, H, T, K), cos and sin (B, 1, T, K) -> (B, H,
    T, K).

    A quarter turn takes (3, 4) to (-4, 3).
    """
    # subtle: column i is paired with column i + K/2, not with i + 1 as in the paper; weights are
    # made for one of them
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


GLOBAL, LOCAL = "full_attention", "sliding_attention"  # kinds of layers, as files name them


@dataclass(frozen=True)
class RotaryConfig:
    """The sizes and constants that encoders with rotated positions share. Raises ``ValueError`` as
    ``BertConfig``.
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
        kinds = self.layer_types
        if not set(kinds).issubset(self.kinds) or len(kinds) not in (0, self.num_hidden_layers):
            allowed = " or ".join(self.kinds)
            raise ValueError(
                f"layer_types must be {allowed} for each layer, not {one_line(list(kinds))}"
            )

    @property
    def positions(self) -> int:
        """The largest number of tokens that one text can have."""
        return self.max_position_embeddings


def stated(raw: dict[str, Any], key: str, kind: type = dict) -> Any:
    """Return an object or a list of a config; an empty one if it is null or missing."""
    value = raw.get(key)
    if value is None:
        return kind()
    if not isinstance(value, kind | tuple):
        raise ValueError(f"{key} must be a JSON {kind.__name__}, not {one_line(value)}")
    return value


def check_default_rope(*ropes: dict[str, Any]) -> None:
    """Raise ``ValueError`` for settings of a rotation that is scaled, as for longer texts than the
    training's.

    Each is an object of ``rope_parameters``, or ``rope_scaling`` in older files.
    """
    for rope in ropes:
        kind = rope.get("rope_type") or rope.get("type")
        if kind not in (None, "default"):
            raise ValueError(f"rope_type {one_line(kind)} is not supported, only 'default' is")
