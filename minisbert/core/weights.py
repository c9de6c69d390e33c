"""A folder on disk to a config and named tensors: ``config.json`` and ``model.safetensors``.

Our modules have other names than those in the files, so this chapter lists both, side by side. All
that a file holds is used or skipped by its name, and every parameter is filled: nothing is guessed.
Only safetensors are opened, never a pickle.

What the library runs: ``BertConfig``. For the rest it has other code:

- ``tensor_names``, ``canonical``, ``is_skipped``, ``read_config``: the tables of ten families in
  ``minisbert/architectures/relatives.py``. Equal by the parity check ``name_tables``.
- ``read_safetensors``, ``read_tensors``, ``fill``: ``minisbert/checkpoints/weights.py``, which also
  reads files in several parts and refuses damaged numbers. Equal by
  ``test_vectors_equal_those_of_the_fast_encoder``.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from .checks import InputError, check_integer, check_number, check_one_of, read_json, reading

# The settings that are whole numbers from 1.
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
    """The sizes and constants of one encoder; its fields are those of Hugging Face's config.json.

    Raises ``ValueError`` for values with which the next chapter cannot compute an encoder.
    """

    vocab_size: int  # V
    hidden_size: int  # D
    num_hidden_layers: int  # L
    num_attention_heads: int  # H
    intermediate_size: int  # F
    max_position_embeddings: int  # rows of the position table
    type_vocab_size: int = 2  # 0 = first sentence, 1 = second
    layer_norm_eps: float = 1e-12  # inside the root of every LayerNorm
    hidden_dropout_prob: float = 0.1  # after the embeddings and after both blocks of a layer
    attention_probs_dropout_prob: float = 0.1  # on the attention probabilities
    hidden_act: str = "gelu"  # the exact GELU
    position_embedding_type: str = "absolute"  # learned, one vector per position
    initializer_range: float = 0.02  # standard deviation of new weights (Google's modeling.py)
    pad_token_id: int = 0
    model_type: str = "bert"  # the family; a model is saved with its family's tensor names

    def __post_init__(self) -> None:
        for name in SIZES:
            check_integer(name, getattr(self, name))
        # 0 is for relatives of BERT that have no token types. The library opens them.
        check_integer("type_vocab_size", self.type_vocab_size, least=0)
        # ``above`` says that 0 itself is refused, too.
        check_number("layer_norm_eps", self.layer_norm_eps, least=0, below=1, above=True)
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"):
            check_number(name, getattr(self, name), least=0, below=1)
        check_one_of("hidden_act", self.hidden_act, ["gelu"])
        check_one_of("position_embedding_type", self.position_embedding_type, ["absolute"])
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads"
            )

    @property
    def positions(self) -> int:
        """The largest number of tokens that one text can have.

        Some relatives of BERT have rows in the position table that no token uses, and so fewer.
        """
        return self.max_position_embeddings


# ------------------------------------------------------------------------------------------- names

# Our module -> the module in the file. An embedding table has a weight and no bias.
TABLES = {
    "embeddings.word": "embeddings.word_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.token_type": "embeddings.token_type_embeddings",
}
# All other modules have a weight and a bias. One of them stands before the layers.
NORMS = {
    "embeddings.norm": "embeddings.LayerNorm",
}
# Each layer has these: ours after ``layers.0.``, the file's after ``encoder.layer.0.``.
IN_LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
# Some files have no pooler.
POOLER = {
    "pooler": "pooler.dense",
}


def tensor_names(layers: int, pooler: bool) -> dict[str, str]:
    """Our name -> the file's name, for every tensor of a BERT with L = ``layers``.

    ``tensor_names(6, True)["layers.0.attention.query.weight"]`` is
    ``encoder.layer.0.attention.self.query.weight``.
    """
    # All modules that have a weight and a bias.
    modules = dict(NORMS)
    for i in range(layers):
        for ours, theirs in IN_LAYER.items():
            modules[f"layers.{i}.{ours}"] = f"encoder.layer.{i}.{theirs}"
    if pooler:
        modules |= POOLER

    names = {}
    for ours, theirs in TABLES.items():
        names[f"{ours}.weight"] = f"{theirs}.weight"
    for ours, theirs in modules.items():
        names[f"{ours}.weight"] = f"{theirs}.weight"
        names[f"{ours}.bias"] = f"{theirs}.bias"
    return names


def canonical(name: str) -> str:
    """The name of a tensor in a file, written as the lists above have it.

    If a file also holds the heads of BERT's pre-training, ``bert.`` stands before the names of the
    encoder. Files that come from TensorFlow, as BERT's of 2018 do, call a LayerNorm's weight gamma
    and its bias beta.
    ``canonical("bert.embeddings.LayerNorm.gamma") = "embeddings.LayerNorm.weight"``.
    """
    name = name.removeprefix("bert.")
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
    return name.replace("LayerNorm.beta", "LayerNorm.bias")


def is_skipped(name: str) -> bool:
    """Whether an encoder has no use for a tensor. Some files hold two kinds of such tensors."""
    is_constant = name == "embeddings.position_ids"  # 0, 1, 2, ..., which old versions saved
    is_head = name.startswith("cls.")  # of pre-training: masked words and next sentence
    return is_constant or is_head


# ------------------------------------------------------------------------------------ from a folder


def read_config(folder: Path) -> BertConfig:
    """The sizes in ``config.json``.

    Raises ``InputError`` for another family, and for what is missing or not supported.
    """
    path = folder / "config.json"
    content = read_json(path)
    model_type = content.get("model_type")
    if model_type != "bert":
        raise InputError(
            f"{path}: model_type {model_type!r} is not supported, only bert is; "
            f"minisbert.SentenceEncoder opens more"
        )
    with reading(path):
        settings: dict[str, Any] = {}
        for field in fields(BertConfig):
            has_default = field.default is not MISSING
            if has_default and field.name not in content:
                continue
            # A size without a default must be there: ``reading`` makes its KeyError a message.
            settings[field.name] = content[field.name]
        return BertConfig(**settings)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file by name; ``InputError`` if it is missing or damaged."""
    with reading(path):
        return load_file(path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of an encoder under its canonical name, without those that are skipped."""
    tensors: dict[str, Tensor] = {}
    for name_in_file, tensor in read_safetensors(path).items():
        name = canonical(name_in_file)
        if name in tensors:
            raise InputError(f"{path} holds {name} twice, under two names")
        if not is_skipped(name):
            tensors[name] = tensor
    return tensors


def fill(
    module: nn.Module, tensors: Mapping[str, Tensor], path: Path, names: Mapping[str, str]
) -> None:
    """Copy tensors of a file into a module; ``names`` maps its parameters to the file's names.

    Every tensor is used and every parameter filled. Raises ``InputError`` with the full list of
    what is missing, unexpected or misshapen, and then fills nothing.
    """
    # The keys are the file's names, because the messages are about the file.
    parameters = {names[ours]: parameter for ours, parameter in module.named_parameters()}

    problems = []
    for name, parameter in parameters.items():
        if name not in tensors:
            problems.append(f"missing {name} {tuple(parameter.shape)}")
    for name, tensor in tensors.items():
        if name not in parameters:
            problems.append(f"unexpected {name} {tuple(tensor.shape)}")
    for name, parameter in parameters.items():
        if name in tensors and tensors[name].shape != parameter.shape:
            shape = tuple(tensors[name].shape)
            problems.append(
                f"misshapen {name}: {shape}, the config asks for {tuple(parameter.shape)}"
            )
    if problems:
        raise InputError(f"{path} does not fit the config beside it:\n  " + "\n  ".join(problems))

    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])  # becomes float32, whatever type the file has
