"""How the house opens an encoder that is not the book's: a ``Family`` with a config and a module of its own."""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any

from torch import nn

from minisbert.core.weights import Family


@dataclass(frozen=True, kw_only=True)
class Architecture(Family):
    """A family whose encoder is a module in this folder.

    The module has ``Bert``'s interface: ``forward(ids, mask, token_types, trace, positions)`` -> (B, T, D), where
    texts may share a row, ``hidden_states``, ``pool``, ``embeddings.word``, ``layers``, ``pooler``, ``config``.
    Its config is a frozen dataclass that checks itself and has ``vocab_size``, ``hidden_size``, ``num_hidden_layers``,
    ``positions`` (tokens that a text may have), ``type_vocab_size``, ``pad_token_id`` and ``model_type``.
    ``tables`` names what has a weight and no bias: embeddings, RMSNorm, linear layers without a bias.
    """

    config: type
    encoder: Callable[[Any, bool], nn.Module]  # called with the config and whether the file has a pooler
    relative: bool = False  # only distances between tokens count: pads before a text move nothing

    def names(self, layers: int, pooler: bool) -> dict[str, str]:
        """Our name -> the file's name. A name of a tensor that a model does not have does no harm."""
        names = {}
        for ours, theirs in super().names(layers, pooler).items():
            for i in range(layers) if "{i}" in ours else [0]:
                names[ours.format(i=i)] = theirs.format(i=i)
        return names

    def read(self, raw: dict[str, Any]) -> Any:
        """The contents of ``config.json`` as the config. Raises ``ValueError`` for a setting that is not supported."""
        stated = self.fields(raw)
        given = [each.name for each in fields(self.config) if each.default is MISSING or each.name in stated]
        return self.config(**{name: stated[name] for name in given})

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        """The config's fields as ``config.json`` has them, without what the family never states."""
        return {self.settings.get(name, name): value for name, value in config.items() if name not in self.constants}


def initialise(model: nn.Module, std: float) -> None:
    """New weights as in the book: normal numbers, and biases of 0."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
