"""What stands behind the encoder in a sentence model: pooling, then perhaps dense layers, then perhaps normalising.

A folder is laid out as sentence-transformers lays it out, so that models move both ways:

    modules.json                         the list of modules, in order
    config.json, model.safetensors, ...  the encoder and its tokenizer (or in a folder of their own)
    sentence_bert_config.json            the length limit
    1_Pooling/config.json                which pooling, or several at once
    1_Pooling/model.safetensors          the parameters of a learned pooling; no such file for the others
    2_Dense/                             a dense layer on the pooled vector, in some models
    3_Normalize                          the vector scaled to length 1; nothing stands in it

``attention``, ``first-last`` and ``pooler`` are poolings that sentence-transformers has not. Their names stand in
``pooling_mode``, where it refuses what it does not know: it opens no such model, rather than give other vectors.
"""

from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from minisbert.core import InputError, one_line, read_json
from minisbert.core.pooling import ACTIVATIONS, NAMES, Dense, Pooling
from minisbert.models.checkpoint import read_safetensors, write_safetensors
from minisbert.system.files import write_json

# our names of the poolings and sentence-transformers' flags for them, in the order in which it concatenates them
POOLING_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
}
ACTIVATION_CLASSES = {
    "identity": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
}


@dataclass(frozen=True)
class SentenceConfig:
    """What a folder says about the way from hidden states to a sentence vector."""

    pooling: str | None  # None: the folder does not say
    normalize: bool  # scale each vector to length 1
    dense: tuple[Dense, ...] = ()  # between pooling and normalising
    learned: dict[str, Tensor] = field(default_factory=dict)  # the pooling's parameters, where it has some


def read_sentence_config(folder: Path) -> tuple[Path, SentenceConfig]:
    """The folder of the encoder, and what ``modules.json`` lists behind it.

    A plain encoder (no ``modules.json``) says nothing about pooling. Raises ``InputError`` for a module, an order
    or a setting that would change the vectors and that is not supported.
    """
    listing = folder / "modules.json"
    if not listing.is_file():
        return folder, SentenceConfig(pooling=None, normalize=False)
    encoder, pooling, dense, learned, kinds = folder, None, [], {}, []
    for module in read_modules(listing):
        kind = module["type"].rpartition(".")[2]  # old and new files name other packages, but the same class
        path = folder / module["path"]
        kinds.append(kind)
        if kind == "Transformer":
            encoder = path
        elif kind == "Pooling":
            pooling = read_pooling(path / "config.json")
            learned = read_safetensors(path / "model.safetensors") if "attention" in pooling.split("+") else {}
        elif kind == "Dense":
            dense.append(read_dense(path))
        elif kind != "Normalize":
            raise InputError(f"{listing}: module {module['type']!r} is not supported")
    order = ["Transformer", "Pooling"] + ["Dense"] * len(dense) + ["Normalize"] * ("Normalize" in kinds)
    if kinds != order:
        raise InputError(f"{listing}: the modules stand as {', '.join(kinds)}; supported is {', '.join(order)}")
    for path, key in (
        (encoder / "sentence_bert_config.json", "do_lower_case"),
        (folder / "config_sentence_transformers.json", "default_prompt_name"),
    ):
        if path.is_file() and read_json(path).get(key):
            raise InputError(f"{path}: {key} changes what is encoded and is not supported")
    return encoder, SentenceConfig(pooling, "Normalize" in kinds, tuple(dense), learned)


def read_modules(path: Path) -> list[dict]:
    """The list in ``modules.json``, in order."""
    content = read_json(path, kind=list)
    for module in content:
        if not isinstance(module, dict) or not {"type", "path"} <= module.keys():
            raise InputError(f"{path}: each module needs a type and a path")
    return content


def read_pooling(path: Path) -> str:
    """The pooling in ``1_Pooling/config.json``: ``pooling_mode`` (new files) or one flag per mode (old files).

    Several at once are joined by a plus, in the order in which their results are concatenated: ``cls+mean``.
    """
    raw = read_json(path)
    if "pooling_mode" in raw:
        stated = raw["pooling_mode"]
        modes = [stated] if isinstance(stated, str) else list(stated)
    else:
        modes = [mode for mode, flag in POOLING_FLAGS.items() if raw.get(flag)]
        known = {*POOLING_FLAGS.values()}
        modes += [flag for flag, on in raw.items() if flag.startswith("pooling_mode_") and on and flag not in known]
    if not modes or not {*modes} <= {*NAMES}:
        raise InputError(f"{path}: pooling {modes} is not supported; {', '.join(NAMES)} are")
    return "+".join(modes)


def make_pooling(mode: str, width: int, learned: dict[str, Tensor]) -> Pooling:
    """The pooling of that name for hidden states of so many columns, with a folder's parameters where it has some.

    Raises ``InputError`` for an unknown name, and for parameters that do not fit.
    """
    try:
        pooling = Pooling(mode, width)
    except ValueError as error:
        raise InputError(str(error)) from error
    if pooling.score is not None and learned:
        fill(pooling, learned, f"the parameters of {mode} pooling", f"an encoder of width {width}")
    return pooling


def fill(module: nn.Module, found: dict[str, Tensor], source: object, asker: object) -> None:
    """A file's tensors to a module's parameters, float32; ``InputError`` unless names and shapes are the module's."""
    wanted = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
    if shapes != wanted:
        raise InputError(f"{source}: found {shapes}, but {asker} asks for {wanted}")
    for name, tensor in found.items():
        if not tensor.is_floating_point():
            raise InputError(f"{source}: {name} holds {tensor.dtype}, not floating point numbers")
    module.load_state_dict({name: tensor.float() for name, tensor in found.items()}, assign=True)


def read_dense(folder: Path) -> Dense:
    """A dense module from its folder: ``config.json`` and ``model.safetensors``."""
    path = folder / "config.json"
    raw = read_json(path)
    activations = {name: ours for ours, name in ACTIVATION_CLASSES.items()}
    activation = activations.get(raw.get("activation_function", ACTIVATION_CLASSES["tanh"]))
    if activation is None:
        raise InputError(f"{path}: activation {one_line(raw['activation_function'])} is not one of {list(ACTIVATIONS)}")
    if raw.get("use_residual"):
        raise InputError(f"{path}: use_residual is not supported")
    missing = [key for key in ("in_features", "out_features") if not isinstance(raw.get(key), int)]
    if missing:
        raise InputError(f"{path} does not say {', '.join(missing)}")
    dense = Dense(raw["in_features"], raw["out_features"], raw.get("bias", True), activation)
    file = folder / "model.safetensors"
    fill(dense, read_safetensors(file), file, "config.json")
    return dense


def write_sentence_config(config: SentenceConfig, width: int, limit: int, folder: Path) -> None:
    """Write what sentence-transformers needs beside the encoder of so many columns (``width``)."""
    kinds = ["Transformer", "Pooling"] + ["Dense"] * len(config.dense) + ["Normalize"] * config.normalize
    paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
    write_json(
        folder / "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(zip(paths, kinds, strict=True))
        ],
    )
    for path in paths[1:]:
        (folder / path).mkdir()
    modes = (config.pooling or "").split("+")
    if modes == [mode for mode in POOLING_FLAGS if mode in modes]:  # flags, which every version reads, have one order
        stated: dict = {flag: mode in modes for mode, flag in POOLING_FLAGS.items()}
    else:
        stated = {"pooling_mode": modes}
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width} | stated)
    if config.learned:
        learned = {name: tensor.float() for name, tensor in config.learned.items()}
        write_safetensors(learned, folder / "1_Pooling" / "model.safetensors")
    for dense, path in zip(config.dense, paths[2 : 2 + len(config.dense)], strict=True):
        linear = dense.linear
        about = {"in_features": linear.in_features, "out_features": linear.out_features}
        about |= {"bias": linear.bias is not None, "activation_function": ACTIVATION_CLASSES[dense.activation]}
        write_json(folder / path / "config.json", about)
        write_safetensors(dense.state_dict(), folder / path / "model.safetensors")
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": limit, "do_lower_case": False})
    write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    )
