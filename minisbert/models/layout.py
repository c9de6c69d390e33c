"""The modules after the encoder, as ``ModelFolder`` describes their files: learned pooling and dense layers, both ways.

sentence-transformers does not have the poolings ``attention``, ``first-last`` and ``pooler``. Their names are written
to ``pooling_mode``, where it refuses unknown names, so it cannot load such a model and compute other vectors.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from minisbert.core import reading
from minisbert.core.encoder import POOLING_FLAGS
from minisbert.core.weights import fill
from minisbert.folder.model_folder import ModelFolder
from minisbert.folder.settings import CONFIG, MODULES_FILE, SENTENCE, TEXT_FILES, WEIGHTS, DenseSettings, unsupported
from minisbert.folder.weights import Unfilled, read_weights, write_safetensors
from minisbert.models.pooling import ACTIVATIONS, Dense, Pooling
from minisbert.system.console import say
from minisbert.system.files import write_json

if TYPE_CHECKING:
    from minisbert.models.sentence_encoder import SentenceEncoder

# the activations of dense layers -> their names in files
ACTIVATION_CLASSES = {name: f"{type(layer).__module__}.{type(layer).__name__}" for name, layer in ACTIVATIONS.items()}
HOMES = {"MultiVectorMask": "multi_vector_encoder.modules"}  # of classes that have one place in sentence-transformers


def load_pooling(folder: ModelFolder, mode: str | None, width: int) -> Pooling:
    """The pooling ``mode``, the folder's own for None, for hidden states of D = ``width``.

    A learned pooling has the folder's parameters if it has some. Raises ``InputError`` for an unknown name, and for
    parameters that do not fit.
    """
    with reading(folder.path):
        pooling = Pooling(choose_pooling(folder, mode), width)
    if pooling.score is not None and "attention" in (folder.pooling or "").split("+"):
        path = folder.path / folder.places("Pooling")[0] / WEIGHTS
        fill(pooling, read_weights(path), path)
    return pooling


def choose_pooling(folder: ModelFolder, mode: str | None) -> str:
    """``mode``, the folder's own pooling, or of a folder that states none the mean, as in sentence-transformers."""
    mode = folder.pooling if mode is None else mode
    if mode is None:
        say(f"{folder.path} states no pooling (1_Pooling/config.json): the mean is taken, unless you choose another")
        return "mean"
    return mode


def load_dense(folder: ModelFolder, place: str, kind: type[DenseSettings] = DenseSettings) -> Dense:
    """A dense layer from a subfolder: ``config.json`` and ``model.safetensors``."""
    settings = folder.parse(f"{place}/{CONFIG}", kind, needed=True)
    named = {path: name for name, path in ACTIVATION_CLASSES.items()}
    path, activation = folder.path / place / WEIGHTS, named.get(settings.activation_function)
    if activation is None:
        reason = f"{', '.join(ACTIVATIONS)} are"
        raise unsupported(folder.path / place / CONFIG, "activation_function", settings.activation_function, reason)
    with reading(folder.path / place / CONFIG), torch.device("meta"), Unfilled():  # the weights are replaced at once
        dense = Dense(settings.in_features, settings.out_features, settings.bias, activation)
    fill(dense, read_weights(path), path)
    return dense


def dense_settings(dense: Dense) -> dict[str, Any]:
    """The ``config.json`` of a dense layer."""
    linear = dense.linear
    about = {"in_features": linear.in_features, "out_features": linear.out_features}
    return about | {"bias": linear.bias is not None, "activation_function": ACTIVATION_CLASSES[dense.activation]}


def write_layout(encoder: "SentenceEncoder", folder: Path) -> None:
    """Write the files that sentence-transformers needs in addition to the encoder and its tokenizer."""
    kinds = ["Transformer", "Pooling"] + ["Dense"] * len(encoder.dense) + ["Normalize"] * encoder.normalize
    places = write_modules(folder, kinds)
    write_pooling(encoder, folder / places[1])
    for dense, place in zip(encoder.dense, places[2:], strict=False):
        write_json(folder / place / CONFIG, dense_settings(dense))
        write_safetensors(dense.state_dict(), folder / place / WEIGHTS)
    write_settings(encoder, folder)


def write_modules(folder: Path, kinds: list[str], package: str = "models") -> list[str]:
    """Write ``modules.json`` and make the subfolders that it names, which are returned: the first one is ``folder``."""
    places = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
    modules = [
        {"idx": i, "name": str(i), "path": place, "type": f"sentence_transformers.{HOMES.get(kind, package)}.{kind}"}
        for i, (place, kind) in enumerate(zip(places, kinds, strict=True))
    ]
    write_json(folder / MODULES_FILE, modules)
    for place in places[1:]:
        (folder / place).mkdir()
    return places


def write_settings(encoder: "SentenceEncoder", folder: Path, **more: str) -> None:
    """Write the token limit, and prompts, similarity and ``more``."""
    limit = {"max_seq_length": encoder.tokenizer.limit, "do_lower_case": False}
    write_json(folder / TEXT_FILES[0], limit | encoder.tokenizer.kept)
    settings = encoder.settings
    content = {"prompts": settings.prompts, "default_prompt_name": settings.default_prompt_name}
    content |= {"similarity_fn_name": settings.similarity}
    content |= {} if settings.truncate_dim is None else {"truncate_dim": settings.truncate_dim}
    write_json(folder / SENTENCE, settings.others | content | more)


def write_pooling(encoder: "SentenceEncoder", folder: Path) -> None:
    """Write the pooling's settings, and its parameters if it has some, as float32."""
    modes = encoder.pooling.names
    if modes == [mode for mode in POOLING_FLAGS.values() if mode in modes]:  # every version reads the flags
        about: dict = {flag: mode in modes for flag, mode in POOLING_FLAGS.items()}
    else:
        about = {"pooling_mode": modes}
    about |= {} if encoder.settings.include_prompt else {"include_prompt": False}
    write_json(folder / CONFIG, {"word_embedding_dimension": encoder.hidden_size} | about)
    if learned := {name: tensor.float() for name, tensor in encoder.pooling.state_dict().items()}:
        write_safetensors(learned, folder / WEIGHTS)
