"""What vectors were made from: hashes of the model and the texts, and the options that changed a vector."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping

import torch

from minisbert.core import one_line
from minisbert.loading import Encoder, uncompiled
from minisbert.models.pooling import Dense

MODEL_OPTIONS = ("pooling", "max_length", "width")  # a model's hash covers them
PROMPTS = ("prompts", "default_prompt_name", "similarity_fn_name")  # settings that change no vector by themselves


def made_from(encoder: Encoder, prompt: str) -> dict[str, str]:
    """What decides an encoder's vectors of texts with this prompt before them."""
    width = min(encoder.settings.truncate_dim or encoder.width, encoder.width)
    return {
        "model": model_hash(encoder),
        "pooling": encoder.pooling_mode,
        "max_length": str(encoder.tokenizer.limit),
        "width": str(width),
        "prompt": prompt,
    }


def differences(made: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """What vectors were made with and not what is wanted: "prompt 'passage: ', not ''"; empty if they fit."""
    names = [name for name in wanted if made.get(name) != wanted[name]]
    said = []
    for name in names:
        if name == "texts":
            said.append("other texts")
        elif name != "model":
            said.append(f"{name} {one_line(made.get(name))}, not {one_line(wanted[name])}")
        elif not set(names) & set(MODEL_OPTIONS):
            said.append("another model")
    return "; ".join(said)


def model_hash(encoder: Encoder) -> str:
    """sha256 of everything that decides vectors but a prompt: configuration, tokenizer, names and bytes of weights."""
    compiled_for = getattr(encoder, "compiled_dtype", "float32")
    encoder = uncompiled(encoder)
    settings = dataclasses.asdict(encoder.settings)  # with a late-interaction model's lengths and skipped words
    bert = getattr(encoder, "bert", None)  # a table of static vectors has none
    about = {
        "classes": [type(encoder).__name__, type(encoder.tokenizer).__name__],
        "bert": bert and dataclasses.asdict(bert.config),
        "pooling": encoder.pooling_mode,
        "dense": [layer.activation for layer in encoder.modules() if isinstance(layer, Dense)],
        "normalize": encoder.normalize,
        "limit": encoder.tokenizer.limit,
        "cut_start": encoder.tokenizer.cut_start,
        "settings": {name: value for name, value in settings.items() if name not in PROMPTS},
        "tokenizer": encoder.tokenizer.backend.to_str(),
        "dtype": compiled_for,
    }
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, parameter in encoder.named_parameters():
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        digest.update(parameter.detach().cpu().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def texts_hash(texts: Iterable[str]) -> str:
    """sha256 of the texts, in order."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text_line(text))
    return digest.hexdigest()


def text_line(text: str) -> bytes:
    """A text as hashes count it: quoted, since ["a", "b"] and ["a\nb"] differ."""
    return json.dumps(text).encode() + b"\n"
