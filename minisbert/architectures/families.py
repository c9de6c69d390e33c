"""What the checkpoints of one model family call our tensors and settings: a ``Family``, one table.

It is used in both directions, for reading and for writing. Imports ``core``.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from minisbert.core import one_line


@dataclass(frozen=True, kw_only=True)
class Family:
    """The names of one family.

    A table maps the name of our module to the one in the file; a name with ``{i}`` is repeated for
    every layer. ``tables`` (embeddings) have a weight each, ``modules`` a weight and a bias.
    """

    model_type: str  # in config.json
    architecture: str  # written to config.json
    config: type  # a frozen dataclass that checks itself
    encoder: Callable[[Any, bool], Any]  # called with the config and whether the file has a pooler
    tables: dict[str, str] = field(default_factory=dict)
    modules: dict[str, str]
    pooler: dict[str, str] = field(default_factory=dict)  # as ``modules``, but not in every file
    prefix: str  # of every name, in files that also hold pre-training heads
    skipped: frozenset[str]  # tensors in some files, of no use to an encoder
    # our config field -> the file's key, where they differ
    settings: dict[str, str] = field(default_factory=dict)
    # our config fields that the family never states
    constants: dict[str, Any] = field(default_factory=dict)
    # the only supported values of keys in config.json, of which the first is the default
    accepted: dict[str, tuple] = field(default_factory=dict)
    # only distances between tokens count: pads before a text move nothing
    relative: bool = False

    def names(self, layers: int, pooler: bool) -> dict[str, str]:
        """Map our name to the file's name, for every tensor of a model with L = ``layers``."""
        modules = dict(self.modules)
        if pooler:
            modules |= self.pooler

        names = {}
        for ours, theirs in self.tables.items():
            names[f"{ours}.weight"] = f"{theirs}.weight"
        for ours, theirs in modules.items():
            copies = range(layers) if "{i}" in ours else range(1)
            for i in copies:
                for part in ("weight", "bias"):
                    names[f"{ours.format(i=i)}.{part}"] = f"{theirs.format(i=i)}.{part}"
        return names

    def canonical(self, name: str) -> str:
        """Turn a name as the file has it into the table's: no prefix, and no gamma and beta.

        These two are TensorFlow's names, in BERT of 2018.
        """
        name = name.removeprefix(self.prefix)
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        return name.replace("LayerNorm.beta", "LayerNorm.bias")

    def check(self, raw: dict[str, Any]) -> None:
        """Raise ``ValueError`` for a setting in ``config.json`` that no encoder here computes."""
        for key, accepted in self.accepted.items():
            value = raw.get(key, accepted[0])
            if value not in accepted:
                raise ValueError(
                    f"{key} {one_line(value)} is not supported, only {one_line(accepted[-1])} is"
                )

    def fields(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Return the contents of ``config.json`` under our names, the constants filled in."""
        renamed = {theirs: ours for ours, theirs in self.settings.items()}
        content = {}
        for key, value in raw.items():
            # our name of a setting that the family calls something else is not read
            if key not in self.settings:
                content[renamed.get(key, key)] = value
        return content | self.constants

    def read(self, raw: dict[str, Any]) -> Any:
        """Turn the contents of ``config.json`` into the config.

        Raises ``ValueError`` for an unsupported setting, ``KeyError`` for a size that is missing.
        """
        self.check(raw)
        content = self.fields(raw)
        stated = {}
        for each in fields(self.config):
            if each.name in content or each.default is MISSING:
                stated[each.name] = content[each.name]
        return self.config(**stated)

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the fields for ``config.json``, without those that the family never states."""
        content = {}
        for name, value in config.items():
            # an empty tuple is a list of layers' kinds that was not stated either
            if name not in self.constants and value != ():
                content[self.settings.get(name, name)] = value
        return content


# of BERT and its relatives: what config.json may say that would make another model of them
ENCODER_ONLY: dict[str, tuple] = {
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": (None, {}),
}


def dense(*modules: str) -> set[str]:
    """The names of weight and bias of each of these modules."""
    names = set()
    for module in modules:
        names |= {f"{module}.weight", f"{module}.bias"}
    return names
