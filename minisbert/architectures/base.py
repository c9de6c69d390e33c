"""What the encoders in this folder share: one forward, the layer with its norms in front, and how files are read."""

from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from minisbert.core import one_line
from minisbert.core.bert import Bert
from minisbert.core.checks import check
from minisbert.core.weights import Family


@dataclass(frozen=True, kw_only=True)
class Architecture(Family):
    """A family whose encoder is a ``ModernEncoder``. ``linears`` names all of its modules, with a bias or without."""

    tables: dict[str, str] = field(default_factory=dict)
    norms: dict[str, str] = field(default_factory=dict)
    pooler: dict[str, str] = field(default_factory=dict)
    config: type  # a frozen dataclass that checks itself
    encoder: Callable[[Any, bool], nn.Module]  # called with the config and whether the file has a pooler
    relative: bool = False  # only distances between tokens count: pads before a text move nothing
    only: dict[str, Any] = field(default_factory=dict)  # the only supported value of keys in config.json

    def read(self, raw: dict[str, Any]) -> Any:
        """The contents of ``config.json`` as the config. Raises ``ValueError`` for a setting that is not supported."""
        check_only(raw, self.only)
        # our name of a setting that the family calls something else is not read
        stated = self.fields({key: value for key, value in raw.items() if key not in self.settings})
        given = [each.name for each in fields(self.config) if each.default is MISSING or each.name in stated]
        return self.config(**{name: stated[name] for name in given})

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        """The config's fields as ``config.json`` has them, without what is empty or the family never states."""
        kept = {name: value for name, value in config.items() if name not in self.constants and value != ()}
        return {self.settings.get(name, name): value for name, value in kept.items()}


def check_only(stated: dict[str, Any], accepted: dict[str, Any]) -> None:
    """Raise ``ValueError`` for a key that is stated with another value than the only one accepted."""
    for key, only in accepted.items():
        if stated.get(key) not in (None, only):
            raise ValueError(f"{key} {one_line(stated[key])} is not supported, only {one_line(only)} is")


class ModernEncoder(Bert):
    """``Bert`` with layers that read more than a mask, and a norm after the last one."""

    def __init__(self, config: Any, layers: Iterable[nn.Module], norm: nn.Module):
        nn.Module.__init__(self)
        self.config, self.pooler = config, None
        self.embeddings = nn.ModuleDict({"word": nn.Embedding(config.vocab_size, config.hidden_size)})
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.initialise()

    def initialise(self) -> None:
        """New weights as in the book: normal numbers, and biases of 0."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.initializer_range)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """ids (B, T), positions (B or 1, T) -> the input of the first layer, (B, T, D)."""
        return self.embeddings.word(ids)

    def views(self, mask: Tensor | None, positions: Tensor, dtype: torch.dtype) -> list[tuple]:
        """What each layer reads in addition to x, for a mask (B, 1, T or 1, T) and positions (B or 1, T)."""
        raise NotImplementedError

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        token_types: Tensor | None = None,
        trace: dict[str, Tensor] | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """As ``Bert.forward``: ids (B, T) -> hidden states (B, T, D), after ``norm``. ``token_types`` are not read."""
        if mask is not None:
            check("mask whole", mask)
            mask = mask.bool() if mask.ndim == 4 else mask.bool()[:, None, None, :]  # (B, 1, T or 1, T)
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]  # (1, T)
        x = self.embed(ids, positions)  # (B, T, D)
        views = self.views(mask, positions, x.dtype)
        if trace is not None:
            trace["embeddings"] = x
        for i, layer in enumerate(self.layers):
            x, probabilities = layer(x, *views[i])  # (B, T, D), (B, H, T, T)
            if i == len(self.layers) - 1:
                x = self.norm(x)
            if trace is not None:
                trace[f"layers.{i}.attention"], trace[f"layers.{i}"] = probabilities, x
        return x


class PreNormLayer(nn.Module):
    """Attention, then feed-forward; each reads its input normalised and is added to it as it was (pre-norm)."""

    def __init__(
        self, attention_norm: nn.Module, attention: nn.Module, feed_forward_norm: nn.Module, feed_forward: nn.Module
    ):
        super().__init__()
        self.attention_norm, self.attention = attention_norm, attention
        self.feed_forward_norm, self.feed_forward = feed_forward_norm, feed_forward

    def forward(self, x: Tensor, *view: Any) -> tuple[Tensor, Tensor | None]:
        """x (B, T, D), what attention reads in addition -> (B, T, D) and the probabilities (B, H, T, T)."""
        attended, probabilities = self.attention(self.attention_norm(x), *view)
        x = x + attended
        return x + self.feed_forward(self.feed_forward_norm(x)), probabilities
