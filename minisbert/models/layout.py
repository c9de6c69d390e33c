"""The folder of a sentence model: an encoder, pooling, optional dense layers, optional normalising.

The layout is that of sentence-transformers, so models can be exchanged in both directions:

    modules.json                         the list of modules, in order
    config.json, model.safetensors, ...  the encoder and its tokenizer (or in a subfolder)
    sentence_bert_config.json            the length limit
    1_Pooling/config.json                which pooling, or several at once
    1_Pooling/model.safetensors          the parameters of a learned pooling; other poolings have no such file
    2_Dense/                             a dense layer on the pooled vector, in some models
    3_Normalize                          the vector scaled to length 1; an empty folder

sentence-transformers does not have the poolings ``attention``, ``first-last`` and ``pooler``. Their names are written
to ``pooling_mode``, where it refuses unknown names, so it cannot load such a model and compute other vectors.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minisbert.core import InputError, one_line, read_json
from minisbert.core.encoder import POOLING_FLAGS, read_modules, read_pooling
from minisbert.core.weights import fill
from minisbert.models.checkpoint import Unfilled, read_safetensors, write_safetensors
from minisbert.models.poolings import ACTIVATIONS, NAMES, Dense, Pooling
from minisbert.models.settings import WIDEST, stated, unsupported
from minisbert.system.files import write_json

ACTIVATION_CLASSES = {
    "identity": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
}


@dataclass(frozen=True)
class SentenceConfig:
    """The steps from hidden states to a sentence vector, as configured in a folder."""

    pooling: str | None  # None: the folder does not specify one
    normalize: bool  # scale each vector to length 1
    dense: tuple[Dense, ...] = ()  # between pooling and normalising
    learned: dict[str, Tensor] = field(default_factory=dict)  # the pooling's parameters, if it has any
    include_prompt: bool = True  # pool over a prompt's tokens too


def read_sentence_config(folder: Path) -> tuple[Path, SentenceConfig]:
    """The folder of the encoder, and the modules after it in ``modules.json``.

    A plain encoder (no ``modules.json``) specifies no pooling. Raises ``InputError`` for an unsupported module, order
    or setting that would change the vectors.
    """
    listing = folder / "modules.json"
    if not listing.is_file():
        return folder, SentenceConfig(pooling=None, normalize=False)
    check_modules(listing)
    encoder, pooling, dense, learned, kinds, include_prompt = folder, None, [], {}, [], True
    for kind, path in read_modules(folder):
        kinds.append(kind)
        if kind == "Transformer":
            encoder = path
        elif kind == "Pooling":
            pooling = pooling_name(path / "config.json")
            include_prompt = stated(read_json(path / "config.json"), "include_prompt", bool, path / "config.json", True)
            learned = read_safetensors(path / "model.safetensors") if "attention" in pooling.split("+") else {}
        elif kind == "Dense":
            dense.append(read_dense(path))
        elif kind == "Normalize":
            names = path / "config.json"
            check_names(read_json(names) if names.is_file() else {}, names)
        else:
            raise InputError(f"{listing}: module {kind!r} is not supported")
    order = ["Transformer", "Pooling"] + ["Dense"] * len(dense) + ["Normalize"] * ("Normalize" in kinds)
    if kinds != order:
        raise InputError(f"{listing}: the order of the modules is {', '.join(kinds)}; supported is {', '.join(order)}")
    return encoder, SentenceConfig(pooling, "Normalize" in kinds, tuple(dense), learned, include_prompt)


def check_modules(listing: Path) -> None:
    """Raise ``InputError`` unless every module has a type and a path inside the model's folder."""
    for module in read_json(listing, kind=list):
        if not isinstance(module, dict) or not {"type", "path"} <= module.keys():
            raise InputError(f"{listing}: each module needs a type and a path")
        for key in ("type", "path"):
            if not isinstance(module[key], str):
                raise InputError(f"{listing}: {key} must be a string, not {one_line(module[key])}")
        if Path(module["path"]).is_absolute() or ".." in Path(module["path"]).parts:
            raise InputError(f"{listing}: path {one_line(module['path'])} leads out of the folder")
        try:
            (listing.parent / module["path"]).exists()
        except OSError as error:  # too long
            raise InputError(f"{listing}: path {one_line(module['path'])}: {error.strerror}") from error


def check_names(raw: dict[str, Any], path: Path) -> None:
    """Raise ``InputError`` for a module that reads or writes anything but the sentence's vector."""
    for key in ("module_input_name", "module_output_name"):
        name = stated(raw, key, str, path, "sentence_embedding")
        if name != "sentence_embedding":
            raise unsupported(path, key, name, "only 'sentence_embedding' is")


def pooling_name(path: Path) -> str:
    """The pooling in ``1_Pooling/config.json``; several are joined by a plus, in the order of their columns."""
    raw = read_json(path)
    for flag in (key for key in raw if key.startswith("pooling_mode_")):
        stated(raw, flag, bool, path)
    mode = raw.get("pooling_mode", "")
    if not all(isinstance(name, str) for name in (mode if isinstance(mode, list) else [mode])):
        raise InputError(f"{path}: pooling_mode must be a name or a list of names, not {one_line(mode)}")
    modes = read_pooling(path)
    if not modes or not {*modes} <= {*NAMES}:
        raise InputError(f"{path}: pooling_mode {one_line(modes)} is not supported; {', '.join(NAMES)} are")
    return "+".join(modes)


def make_pooling(mode: str | None, width: int, learned: dict[str, Tensor], folder: Path) -> Pooling:
    """The pooling named ``mode`` for hidden states of D = ``width``, with the parameters ``learned``, if any.

    Raises ``InputError`` if neither the folder nor the caller names one, for an unknown name, and for parameters that
    do not fit.
    """
    if mode is None:
        advice = "choose a pooling, for a plain BERT mostly 'mean'"
        raise InputError(f"{folder} has no pooling config (1_Pooling/config.json): {advice}")
    try:
        pooling = Pooling(mode, width)
    except ValueError as error:
        raise InputError(str(error)) from error
    if pooling.score is not None and learned:
        fill(pooling, learned, folder / "1_Pooling" / "model.safetensors")
    return pooling


def read_dense(folder: Path) -> Dense:
    """A dense module from its folder: ``config.json`` and ``model.safetensors``."""
    path = folder / "config.json"
    raw = read_json(path)
    activations = {path: name for name, path in ACTIVATION_CLASSES.items()}
    stated_class = raw.get("activation_function", ACTIVATION_CLASSES["tanh"])
    activation = activations.get(stated_class) if isinstance(stated_class, str) else None
    if activation is None:
        raise InputError(
            f"{path}: activation_function {one_line(raw['activation_function'])} is not one of {list(ACTIVATIONS)}"
        )
    if raw.get("use_residual"):
        raise InputError(f"{path}: use_residual is not supported")
    check_names(raw, path)
    sizes = [stated(raw, key, int, path) for key in ("in_features", "out_features")]
    if missing := [key for key, size in zip(("in_features", "out_features"), sizes, strict=True) if size is None]:
        raise InputError(f"{path} does not say {', '.join(missing)}")
    if not all(1 <= size <= WIDEST for size in sizes):
        raise InputError(f"{path}: in_features and out_features must be 1 to {WIDEST}, not {sizes}")
    with torch.device("meta"), Unfilled():  # the weights are replaced at once
        dense = Dense(*sizes, stated(raw, "bias", bool, path, True), activation)
    file = folder / "model.safetensors"
    fill(dense, read_safetensors(file), file)
    return dense


def write_sentence_config(
    config: SentenceConfig, width: int, limit: int, folder: Path, text: dict[str, Any] | None = None
) -> None:
    """Write the files that sentence-transformers needs in addition to an encoder of D = ``width``.

    ``text`` is what its ``sentence_bert_config.json`` says besides the limit.
    """
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
    if modes == [mode for mode in POOLING_FLAGS.values() if mode in modes]:  # every version reads the flags
        about: dict = {flag: mode in modes for flag, mode in POOLING_FLAGS.items()}
    else:
        about = {"pooling_mode": modes}
    about |= {} if config.include_prompt else {"include_prompt": False}
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width} | about)
    if config.learned:
        learned = {name: tensor.float() for name, tensor in config.learned.items()}
        write_safetensors(learned, folder / "1_Pooling" / "model.safetensors")
    for dense, path in zip(config.dense, paths[2 : 2 + len(config.dense)], strict=True):
        linear = dense.linear
        about = {"in_features": linear.in_features, "out_features": linear.out_features}
        about |= {"bias": linear.bias is not None, "activation_function": ACTIVATION_CLASSES[dense.activation]}
        write_json(folder / path / "config.json", about)
        write_safetensors(dense.state_dict(), folder / path / "model.safetensors")
    about = {"max_seq_length": limit, "do_lower_case": False} | (text or {})
    write_json(folder / "sentence_bert_config.json", about)
