"""How the files of a model family name its tensors and settings: one ``Family`` for each.

Its tables are used in both directions, for reading and for writing. Imports ``core``.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from minisbert.core import one_line


@dataclass(frozen=True, kw_only=True)
class Family:
    """The names of one family.

    ``tables``, ``modules`` and ``pooler`` map the name of our module to the one in the file; a name
    with ``{i}`` is repeated for every layer. An embedding in ``tables`` has a weight, each of
    ``modules`` a weight and a bias. A bias that our module does not have is never looked up.
    """

    model_type: str  # in config.json
    architecture: str  # written to config.json
    config: type  # a frozen dataclass that checks itself
    encoder: Callable[[Any, bool], Any]  # called with the config and whether the file has a pooler
    tables: dict[str, str] = field(default_factory=dict)
    modules: dict[str, str]
    pooler: dict[str, str] = field(default_factory=dict)  # as ``modules``, but not in every file
    prefix: str  # begins every name in files that also hold the heads of pre-training
    skipped: frozenset[str]  # tensors in some files, of no use to an encoder
    # our config field -> the file's key, where they differ
    settings: dict[str, str] = field(default_factory=dict)
    # our config fields that are no keys in the family's files, with their values
    constants: dict[str, Any] = field(default_factory=dict)
    # the supported values of keys in config.json: the first is the default, the last is what the
    # message for any other value names
    accepted: dict[str, tuple] = field(default_factory=dict)
    # The encoder counts only distances between tokens, so padding may also stand before a text.
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
            copies = layers if "{i}" in ours else 1
            for i in range(copies):
                for part in ("weight", "bias"):
                    names[f"{ours.format(i=i)}.{part}"] = f"{theirs.format(i=i)}.{part}"
        return names

    def canonical(self, name: str) -> str:
        """Turn a tensor's name in the file into the one in our tables, without the prefix.

        BERT's files of 2018 call a norm's weight and bias ``gamma`` and ``beta``, as in TensorFlow.
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
            # A key that happens to be our name for a setting which this family calls something else
            # is not that setting.
            if key not in self.settings:
                content[renamed.get(key, key)] = value
        return content | self.constants

    def read(self, raw: dict[str, Any]) -> Any:
        """Turn the contents of ``config.json`` into the config.

        Raises ``ValueError`` for an unsupported setting, ``KeyError`` for a size that is missing.
        """
        self.check(raw)
        content = self.fields(raw)
        arguments = {}
        for setting in dataclasses.fields(self.config):
            # A size without a default must be in the file: a missing one raises KeyError here.
            if setting.name in content or setting.default is dataclasses.MISSING:
                arguments[setting.name] = content[setting.name]
        return self.config(**arguments)

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the contents of ``config.json`` for the fields of a config, less the constants."""
        content = {}
        for name, value in config.items():
            # Empty ``layer_types`` say that the file that was read had none; none are written.
            if name not in self.constants and value != ():
                content[self.settings.get(name, name)] = value
        return content


# Keys in config.json that turn BERT and its relatives into something else than an encoder. Each is
# here with the values that an encoder has.
ENCODER_ONLY: dict[str, tuple] = {
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": (None, {}),
}


def weights_and_biases(*modules: str) -> set[str]:
    """Return the names of the weight and the bias of each of these modules."""
    names = set()
    for module in modules:
        names |= {f"{module}.weight", f"{module}.bias"}
    return names


# Tensors that no encoder needs in files of RoBERTa and MPNet: the head for masked words, and a
# constant (0, 1, 2, ...) that old versions saved.
ROBERTA_SKIPPED = frozenset(
    {"embeddings.position_ids", "lm_head.bias"}
    | weights_and_biases("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder")
)
