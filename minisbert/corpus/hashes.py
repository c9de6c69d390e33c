"""Hashes of what vectors are made from: the model and the texts; and files of vectors with such hashes."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from minisbert.core.weights import read_safetensors
from minisbert.folder.weights import write_safetensors
from minisbert.loading import uncompiled
from minisbert.models.pooling import Dense
from minisbert.models.prompts import choose_prompt
from minisbert.models.sentence_encoder import SentenceEncoder


def model_hash(encoder: SentenceEncoder, prompt: str | None = None) -> str:
    """sha256 of everything the vectors depend on: tokenizer, configuration, prompt, names and bytes of all weights."""
    compiled_for = getattr(encoder, "precision", "float32")
    encoder = uncompiled(encoder)
    bert = getattr(encoder, "bert", None)  # a table of static vectors has none
    settings = {
        "classes": [type(encoder).__name__, type(encoder.tokenizer).__name__],
        "bert": bert and dataclasses.asdict(bert.config),
        "pooling": encoder.pooling_mode,
        "dense": [layer.activation for layer in encoder.modules() if isinstance(layer, Dense)],
        "normalize": encoder.normalize,
        "limit": encoder.tokenizer.limit,
        "cut_start": encoder.tokenizer.cut_start,
        "settings": dataclasses.asdict(encoder.settings),  # with a late-interaction model's lengths and skipped words
        "prompt": choose_prompt(encoder.settings, prompt),
        "tokenizer": encoder.tokenizer.backend.to_str(),
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name, parameter in encoder.named_parameters():
        add_tensor(digest, name, parameter)
    if compiled_for != "float32":
        digest.update(compiled_for.encode())
    return digest.hexdigest()


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """sha256 of the name, dtype, shape and bytes of each."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        add_tensor(digest, name, tensors[name])
    return digest.hexdigest()


def write_hashed(tensors: dict[str, Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """Write tensors to a safetensors file, with their hash in its metadata."""
    write_safetensors(tensors, path, {**metadata, "vectors": tensors_hash(tensors)})


def read_hashed(path: Path, metadata: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[dict[str, Tensor], str]:
    """The tensors of a file with this metadata, and what is wrong with it: other hashes than wanted, or other bytes."""
    if stale := [name for name, value in wanted.items() if metadata.get(name) != value]:
        return {}, f"was made with another {' and another '.join(stale)}"
    tensors = read_safetensors(path)
    return tensors, "" if metadata.get("vectors") == tensors_hash(tensors) else "is damaged or has no hash"


def add_tensor(digest: "hashlib._Hash", name: str, tensor: Tensor) -> None:
    """Add a tensor to a hash: its name, dtype, shape and bytes."""
    digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
    digest.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy())


def corpus_hash(texts: Sequence[str]) -> str:
    """sha256 of the texts, in order."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(json.dumps(text).encode() + b"\n")  # quoted: ["a", "b"] and ["a\nb"] differ
    return digest.hexdigest()
