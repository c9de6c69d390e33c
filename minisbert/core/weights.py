"""A folder on disk to a config and named tensors: ``config.json`` and ``model.safetensors``, strict
in both.

Each model family names its tensors differently: a ``Family`` is one table of names. No pickle is
ever opened.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor, nn

from .checks import InputError, check_integer, check_number, check_one_of, read_json, reading

SIZES = [
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
]


@dataclass(frozen=True)
class BertConfig:
    """The sizes and constants of one encoder; field names are those of Hugging Face's
    ``config.json``.
    """

    vocab_size: int  # V
    hidden_size: int  # D
    num_hidden_layers: int  # L
    num_attention_heads: int  # H
    intermediate_size: int  # F
    max_position_embeddings: int  # rows of the position table
    type_vocab_size: int = 2  # 0 = first sentence, 1 = second; DistilBERT has none
    position_offset: int = 0  # RoBERTa starts after its padding index
    layer_norm_eps: float = 1e-12  # inside the root of every LayerNorm
    hidden_dropout_prob: float = 0.1  # after the embeddings and after both blocks of a layer
    attention_probs_dropout_prob: float = 0.1  # on the attention probabilities
    hidden_act: str = "gelu"  # the exact GELU
    position_embedding_type: str = "absolute"  # learned, one vector per position
    initializer_range: float = 0.02  # standard deviation of new weights (Google's modeling.py)
    pad_token_id: int = 0
    model_type: str = "bert"  # the ``Family`` whose names a saved checkpoint uses

    def __post_init__(self) -> None:
        for name in SIZES:
            check_integer(name, getattr(self, name))
        check_integer("type_vocab_size", self.type_vocab_size, least=0)
        check_integer("position_offset", self.position_offset, least=0)
        check_number("layer_norm_eps", self.layer_norm_eps, 0, 1, above=True)
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"):
            check_number(name, getattr(self, name), 0, 1)
        check_one_of("hidden_act", self.hidden_act, ["gelu"])
        check_one_of("position_embedding_type", self.position_embedding_type, ["absolute"])
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads"
            )
        if self.positions < 1:
            raise ValueError(
                f"max_position_embeddings {self.max_position_embeddings} leaves no position for a "
                f"token"
            )

    @property
    def positions(self) -> int:
        """The largest number of tokens that one text can have."""
        return self.max_position_embeddings - self.position_offset


@dataclass(frozen=True)
class Family:
    """What the checkpoints of one model family call our tensors and settings."""

    model_type: str  # in config.json
    architecture: str  # written to config.json
    tables: dict[str, str]  # embeddings, a weight each: our module -> the file's
    norms: dict[str, str]  # a weight and a bias each; a name with {i} is repeated for every layer
    linears: dict[str, str]  # the same
    pooler: dict[str, str]  # the same, but optional: in the file or not
    prefix: str  # of every name, in files that also hold pre-training heads
    skipped: frozenset[str]  # in some files, of no use to an encoder
    settings: dict[str, str] = field(
        default_factory=dict
    )  # our config field -> the file's key, where they differ
    constants: dict[str, Any] = field(
        default_factory=dict
    )  # our config fields that the family never states

    def names(self, layers: int, pooler: bool) -> dict[str, str]:
        """Our name -> the file's name, for every tensor of a model with L = ``layers``."""
        modules = self.norms | self.linears | (self.pooler if pooler else {})
        names = {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in self.tables.items()}
        for ours, theirs in modules.items():
            for i in range(layers) if "{i}" in ours else [0]:
                for part in ("weight", "bias"):
                    names[f"{ours.format(i=i)}.{part}"] = f"{theirs.format(i=i)}.{part}"
        return names

    def canonical(self, name: str) -> str:
        """A name as the file has it -> as the table has it: without the prefix, gamma and beta
        renamed.
        """
        name = name.removeprefix(
            self.prefix
        )  # gamma and beta are TensorFlow's names, in BERT of 2018
        return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
            "LayerNorm.beta", "LayerNorm.bias"
        )

    def fields(self, raw: dict[str, Any]) -> dict[str, Any]:
        """The contents of ``config.json`` under our field names, the family's constants filled
        in.
        """
        renamed = {theirs: ours for ours, theirs in self.settings.items()}
        return (
            {renamed.get(key, key): value for key, value in raw.items()}
            | {"position_offset": 0}
            | self.constants
        )


def dense(*modules: str) -> set[str]:
    return {f"{module}.{part}" for module in modules for part in ("weight", "bias")}


BERT = Family(
    model_type="bert",
    architecture="BertModel",
    tables={
        "embeddings.word": "embeddings.word_embeddings",
        "embeddings.position": "embeddings.position_embeddings",
        "embeddings.token_type": "embeddings.token_type_embeddings",
    },
    norms={
        "embeddings.norm": "embeddings.LayerNorm",
        "layers.{i}.attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
        "layers.{i}.feed_forward_norm": "encoder.layer.{i}.output.LayerNorm",
    },
    linears={
        "layers.{i}.attention.query": "encoder.layer.{i}.attention.self.query",
        "layers.{i}.attention.key": "encoder.layer.{i}.attention.self.key",
        "layers.{i}.attention.value": "encoder.layer.{i}.attention.self.value",
        "layers.{i}.attention.output": "encoder.layer.{i}.attention.output.dense",
        "layers.{i}.feed_forward.up": "encoder.layer.{i}.intermediate.dense",
        "layers.{i}.feed_forward.down": "encoder.layer.{i}.output.dense",
    },
    pooler={"pooler": "pooler.dense"},
    prefix="bert.",
    skipped=frozenset(
        {"embeddings.position_ids"}  # 0, 1, 2, ...: a constant that old versions saved
        | {"cls.predictions.bias"}  # the heads of pre-training: masked words and next sentence
        | dense("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm")
        | dense("cls.predictions.decoder", "cls.seq_relationship")
    ),
)
FAMILIES = {"bert": BERT}

# what config.json may say about a model that this encoder does not compute, and the only values
# accepted
ACCEPTED: dict[str, tuple] = {
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": (None, {}),
}


def read_config(
    folder: Path, families: Mapping[str, Family] = FAMILIES, raw: dict[str, Any] | None = None
) -> tuple[Family, BertConfig]:
    """The family and the sizes in ``config.json`` (``raw``: its contents); ``InputError`` for what
    is not supported.
    """
    path = folder / "config.json"
    raw = read_json(path) if raw is None else raw
    family = families.get(str(raw.get("model_type")))
    if family is None:
        raise InputError(
            f"{path}: model_type {raw.get('model_type')!r} is not supported; {', '.join(families)} "
            f"are"
        )
    for key, accepted in ACCEPTED.items():
        if raw.get(key, accepted[0]) not in accepted:
            raise InputError(
                f"{path}: {key} {raw[key]!r} is not supported, only {accepted[-1]!r} is"
            )
    with reading(path):
        stated = family.fields(raw)
        given = [
            setting.name
            for setting in fields(BertConfig)
            if setting.default is MISSING or setting.name in stated
        ]
        return family, BertConfig(**{name: stated[name] for name in given})


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file by name; ``InputError`` if it is missing or damaged."""
    with reading(path):
        return load_file(path)


def read_tensors(path: Path, family: Family) -> dict[str, Tensor]:
    """Every tensor of a checkpoint under its canonical name, without those that the family
    skips.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in read_safetensors(path).items():
        canonical = family.canonical(name)
        if canonical in found:
            raise InputError(f"{path} holds {canonical} twice, under two names")
        if canonical not in family.skipped:
            found[canonical] = tensor
    return found


def fill(
    module: nn.Module,
    found: Mapping[str, Tensor],
    path: Path,
    names: Mapping[str, str] | None = None,
) -> None:
    """Give a module the tensors found in a file, as float32; ``names`` maps its parameters to the
    file's names.

    Every tensor is used and every parameter filled, or ``InputError`` lists what is missing,
    unexpected or misshapen.
    """
    names = names or {name: name for name, _ in module.named_parameters()}
    wanted = {names[ours]: tuple(parameter.shape) for ours, parameter in module.named_parameters()}
    problems = [f"missing {name} {shape}" for name, shape in wanted.items() if name not in found]
    problems += [
        f"unexpected {name} {tuple(found[name].shape)}" for name in found if name not in wanted
    ]
    for name, shape in wanted.items():
        if name in found and tuple(found[name].shape) != shape:
            problems.append(
                f"misshapen {name}: {tuple(found[name].shape)}, the config asks for {shape}"
            )
        elif name in found and (
            found[name].itemsize < 2 or not found[name].is_floating_point()
        ):  # float8 has scales
            problems.append(
                f"{name} holds {found[name].dtype}, not floating point numbers of 16 bits or more"
            )
        elif name in found and not all(
            bound.isfinite() for bound in found[name].aminmax()
        ):  # NaN if any number is
            problems.append(f"{name} holds NaN or infinity")
    if problems:
        raise InputError(f"{path} does not fit the config beside it:\n  " + "\n  ".join(problems))
    state = {
        ours: found[names[ours]].clone().float() for ours, _ in module.named_parameters()
    }  # not the file's bytes
    module.load_state_dict(state, assign=True)
