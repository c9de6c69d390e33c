"""Keep the vectors of a corpus in an index: a safetensors file with hashes of the model and the texts.

An index is reused while the hashes match and rebuilt when they do not; a file that is not an index is never replaced.
Codes of ``encode --quantize`` are such a file, too, but are never rebuilt.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from minisbert.checkpoints.weights import read_metadata, write_safetensors
from minisbert.core import InputError, one_line, reading
from minisbert.core.checks import check_texts
from minisbert.core.weights import read_safetensors
from minisbert.loading import Encoder, uncompiled
from minisbert.models.pooling import Dense
from minisbert.models.prompts import choose_prompt
from minisbert.search.dense import Stacked
from minisbert.search.vector_files import Bits, read_codes
from minisbert.system.console import say
from minisbert.system.files import atomic_file, check_ending

INDEX_MARK = {"minisbert": "vectors"}  # in the metadata of such a file
MODEL_OPTIONS = ("pooling", "max_length", "width")  # a model's hash covers them
NUMBERS = ("vectors", "values", "rows")  # the tensor of floats in an index of dense, sparse or many vectors
UNHASHED = ("prompts", "default_prompt_name", "similarity_fn_name")  # settings that change no vector by themselves


def made_from(encoder: Encoder, prompt: str) -> dict[str, str]:
    """Return the settings that determine the vectors of texts with this prompt, as stored in the index."""
    width = min(encoder.settings.truncate_dim or encoder.width, encoder.width)
    return {
        "model": model_hash(encoder),
        "pooling": encoder.pooling_mode,
        "max_length": str(encoder.tokenizer.limit),
        "width": str(width),
        "prompt": prompt,
    }


def differences(made: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """Describe how stored settings differ from the wanted ones: "prompt 'passage: ', not ''"; empty if they match."""
    names = [name for name in wanted if made.get(name) != wanted[name]]
    changes = []
    for name in names:
        if name == "texts":
            changes.append("other texts")
        elif name != "model":
            changes.append(f"{name} {one_line(made.get(name))}, not {one_line(wanted[name])}")
        # another pooling changes the model's hash, too; to add "another model" would mislead
        elif not set(names) & set(MODEL_OPTIONS):
            changes.append("another model")
    return "; ".join(changes)


def model_hash(encoder: Encoder) -> str:
    """Hash all that determines vectors except the prompt: configuration, tokenizer, names and bytes of weights."""
    # int8 gives other vectors than float32
    compiled_for = getattr(encoder, "compiled_dtype", "float32")
    encoder = uncompiled(encoder)
    # with a late-interaction model's lengths and skipped words
    settings = dataclasses.asdict(encoder.settings)
    bert = getattr(encoder, "bert", None)  # a table of static vectors has none
    # what the modules are and how they are set, then the bytes of all weights
    about = {
        "classes": [type(encoder).__name__, type(encoder.tokenizer).__name__],
        "bert": bert and dataclasses.asdict(bert.config),
        "pooling": encoder.pooling_mode,
        "dense": [layer.activation for layer in encoder.modules() if isinstance(layer, Dense)],
        "normalize": encoder.normalize,
        "limit": encoder.tokenizer.limit,
        "cut_start": encoder.tokenizer.cut_start,
        "settings": {name: value for name, value in settings.items() if name not in UNHASHED},
        "tokenizer": encoder.tokenizer.backend.to_str(),
        "dtype": compiled_for,
    }
    # sorted, because a dictionary's order may change without a change of meaning
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, parameter in encoder.named_parameters():
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        digest.update(parameter.detach().cpu().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def texts_hash(texts: Iterable[str]) -> str:
    """Hash the texts, in order."""
    digest = hashlib.sha256()
    for text in texts:
        # quoted, since ["a", "b"] and ["a\nb"] differ
        digest.update(json.dumps(text).encode() + b"\n")
    return digest.hexdigest()


def indexed_vectors(encoder: Encoder, texts: Sequence[str], path: str | Path, prompt: str | None = None) -> np.ndarray:
    """Return the vectors (N, D) of the texts, read from the index at ``path`` or encoded and written there.

    Rebuilds an index of another model or other texts, and says so. Raises ``InputError`` if the file is not an index,
    or holds other vectors than its header says.
    """
    texts = check_texts(texts)
    path, prompt = Path(path), choose_prompt(encoder.settings, prompt)
    wanted = made_from(encoder, prompt) | {"texts": texts_hash(texts)}
    made = index_metadata(path)
    if made is not None:
        changed = differences(made, wanted)
        # also of an encoder that was saved elsewhere: paths and dates do not count
        if not changed:
            tensors = read_safetensors(path)
            with reading(path):
                vectors = encoder.from_tensors(tensors)
                check_vectors(tensors, vectors.shape, (len(texts), int(wanted["width"])))
                return vectors
        say(f"{path} was made with {changed}: rebuilding it")
    # opened before the work: a path that cannot be written is found at once, and the old index stays until the end
    with atomic_file(path) as partial:
        vectors = encode_with_progress(encoder, texts, prompt)
        write_safetensors(encoder.to_tensors(vectors), partial, INDEX_MARK | wanted)
    say(f"wrote {len(vectors):,} vectors of width {vectors.shape[1]} to {path}")
    return vectors


def check_vectors(tensors: Mapping[str, torch.Tensor], shape: Sequence[int], needed: tuple[int, int]) -> None:
    """Raise ``ValueError`` unless the vectors of an index have the ``needed`` shape and are finite floats."""
    problem = ""
    if tuple(shape) != needed:
        problem = f"the vectors have shape {tuple(shape)}, not {needed}"
    for name in tensors.keys() & set(NUMBERS):
        if tensors[name].dtype not in (torch.float32, torch.float64):
            problem = f"{name} has dtype {tensors[name].dtype}, not float32"
        elif not tensors[name].isfinite().all():
            problem = f"{name} holds NaN or infinity"
    if problem:
        raise ValueError(f"{problem}: remove the file, and it is made anew")


def coded_vectors(encoder: Encoder, texts: Sequence[str], path: Path, prompt: str) -> Stacked | Bits:
    """Open the vectors of the texts in a file of ``encode --quantize``; ``InputError`` if they are of other texts."""
    made = index_metadata(path) or {}
    wanted = made_from(encoder, prompt) | {"texts": texts_hash(texts)}
    changed = differences(made, wanted)
    if changed:
        remedy = f"give what it was made with, or write it again with encode --quantize {made['quantized']}"
        raise InputError(f"{path} was made with {changed}: {remedy}")
    return read_codes(path, len(texts), int(wanted["width"]))


def index_metadata(path: Path) -> dict[str, str] | None:
    """Read the settings of an index or codes; None without a file, ``InputError`` if the file is something else."""
    check_ending("--index", path, ".safetensors")
    if not path.is_file():
        return None
    metadata: dict[str, str] = {}
    with suppress(InputError):  # a text file, a damaged one: not an index either
        metadata = read_metadata(path)
    if not INDEX_MARK.items() <= metadata.items():
        raise InputError(f"{path} is not an index, or is damaged, and is not replaced: remove it or name another file")
    return metadata


def encode_with_progress(encoder: Encoder, texts: Sequence[str], prompt: str | None = None) -> np.ndarray:
    """Call ``encode`` with a progress line, and report how many texts were truncated."""
    vectors = encoder.encode(texts, show_progress_bar=True, prompt=prompt, **encoder.search_options)
    if encoder.truncated:
        say(encoder.tokenizer.cut_message(encoder.truncated, len(texts)))
    return vectors
