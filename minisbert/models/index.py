"""Vectors of texts in files: streamed to ``.npy``, or kept in an index.

An index is a safetensors file of vectors (N, D) float32, whose metadata say what they were made
from; it is made anew when the model or the texts change. Files of codes (``search/codes.py``) have
the same metadata, but only ``encode --quantize`` writes them, so they are never made anew. A file
that is something else is never replaced.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minisbert.checkpoints.weights import read_metadata, read_safetensors, write_safetensors
from minisbert.core import InputError, one_line
from minisbert.core.checks import check_texts
from minisbert.core.weights import BertConfig
from minisbert.models.pooling import Dense
from minisbert.models.text_encoder import TextEncoder
from minisbert.models.transformer_encoder import TransformerEncoder
from minisbert.search.codes import from_codes
from minisbert.search.kinds import KINDS
from minisbert.system.console import cut_message, say, warn
from minisbert.system.files import atomic_file, check_ending
from minisbert.system.reading import reading

INDEX_MARK = {"minisbert": "vectors"}  # in the metadata of such a file
MODEL_OPTIONS = ("pooling", "max_length", "width")  # a model's hash covers them
# The tensor of floats in an index: of dense, of sparse vectors, of vectors per token.
FLOATS = ("vectors", "values", "rows")
# Settings that change no vector by themselves.
UNHASHED = ("prompts", "default_prompt_name", "similarity_fn_name")


def write_npy(chunks: Iterator[np.ndarray], count: int, path: Path) -> int:
    """Write chunks (n, D) to one ``.npy`` file, (count, D), one at a time; return D.

    The header comes first and contains the shape, so the number of rows must be known.
    """
    # Not np.save, which needs the whole array; nor a memory map, whose full disk is a signal and
    # not an error.
    written = 0
    width = 0
    with open(path, "wb") as file:
        for chunk in chunks:
            if not isinstance(chunk, np.ndarray):
                raise InputError(
                    "this model does not return one (N, D) array; use --out FILE.safetensors"
                )
            if written == 0:
                width = chunk.shape[1]
                header = {
                    "descr": np.lib.format.dtype_to_descr(chunk.dtype),
                    "fortran_order": False,
                    "shape": (count, width),
                }
                np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(chunk).data)
            written += len(chunk)
    if written != count:
        raise InputError(
            f"{count:,} texts were counted, but {written:,} encoded: has the file changed in "
            f"between?"
        )
    return width


def encode_with_progress(
    encoder: TextEncoder, texts: Sequence[str], prompt: str | None = None, query: bool = False
) -> Any:
    """Call ``encode`` or ``encode_query``, with a bar, and report how many texts were cut."""
    encode = encoder.encode
    if query:
        encode = encoder.encode_query  # ColBERT fills queries up, whatever their prompt
    options = KINDS[encoder.vectors_are].encode_options
    vectors = encode(texts, show_progress_bar=True, prompt=prompt, **options)
    if encoder.truncated:
        warn(cut_message(encoder.tokenizer.limit, encoder.truncated, len(texts)))
    return vectors


# -------------------------------------------------------------------- what vectors are made from


def made_from(
    encoder: TextEncoder, texts: Iterable[str], prompt: str, model: TextEncoder | None = None
) -> dict[str, str]:
    """Return what determines the vectors of texts with this prompt, for a file's metadata.

    A compiled encoder has its weights in its program: ``model`` is what it was made from.
    """
    # Each text is quoted, since ["a", "b"] and ["a\nb"] differ.
    digest = hashlib.sha256()
    for text in texts:
        digest.update(json.dumps(text).encode() + b"\n")
    return {
        "model": model_hash(encoder, model),
        "pooling": encoder.pooling_mode,
        "max_length": str(encoder.tokenizer.limit),
        "width": str(encoder.get_embedding_dimension()),
        "prompt": prompt,
        "texts": digest.hexdigest(),
    }


def model_hash(encoder: TextEncoder, model: TextEncoder | None = None) -> str:
    """Hash all that determines vectors, except the prompt.

    That is what the modules are and how they are set, the tokenizer, and the names and bytes of all
    weights.
    """
    if model is None:
        model = encoder
    # A late-interaction model has its lengths and skipped words there.
    settings = dataclasses.asdict(model.settings)
    config = None
    if isinstance(model, TransformerEncoder):  # a table of static vectors has no config
        config = dataclasses.asdict(model.bert.config)
        # Former versions hashed a position offset of BERT, too: with it their indexes stay valid.
        if type(model.bert.config) is BertConfig:
            config["position_offset"] = 0
    description = {
        # Former versions hashed the tokenizer's class, which had this name then.
        "classes": [type(model).__name__, "Tokenizer"],
        "bert": config,
        "pooling": model.pooling_mode,
        "dense": [layer.activation for layer in model.modules() if isinstance(layer, Dense)],
        "normalize": model.normalize,
        "limit": model.tokenizer.limit,
        "cut_start": model.tokenizer.cut_start,
        "settings": {name: value for name, value in settings.items() if name not in UNHASHED},
        "tokenizer": model.tokenizer.backend.to_str(),
        # int8 gives other vectors than float32.
        "dtype": getattr(encoder, "compiled_dtype", "float32"),
    }
    # Sorted, because a dictionary's order may change without a change of meaning.
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        content = parameter.detach().cpu().flatten().view(torch.uint8).numpy()
        digest.update(content.data)
    return digest.hexdigest()


def differences(made: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """Describe how stored settings differ from the wanted ones; empty if they match.

    "prompt 'passage: ', not ''", or "other texts; another model".
    """
    changed = [name for name in wanted if made.get(name) != wanted[name]]
    if set(changed) & set(MODEL_OPTIONS):
        # Such an option changes the model's hash, too: to add "another model" would mislead.
        changed = [name for name in changed if name != "model"]
    changes = []
    for name in changed:
        if name == "texts":
            changes.append("other texts")
        elif name == "model":
            changes.append("another model")
        else:
            changes.append(f"{name} {one_line(made.get(name))}, not {one_line(wanted[name])}")
    return "; ".join(changes)


# -------------------------------------------------------------------------------------- the index


def index_metadata(path: Path | None) -> dict[str, str] | None:
    """Read the metadata of an index or of codes; None if there is no file.

    ``InputError`` if the file is something else.
    """
    check_ending("--index", path, ".safetensors")
    if path is None or not path.is_file():
        return None
    metadata: dict[str, str] = {}
    with suppress(InputError):  # a text file or a damaged one is no index either
        metadata = read_metadata(path)
    if not INDEX_MARK.items() <= metadata.items():
        raise InputError(
            f"{path} is not an index, or is damaged, and is not replaced: remove it or name "
            f"another file"
        )
    return metadata


def indexed_vectors(
    encoder: TextEncoder,
    texts: Sequence[str],
    path: str | Path,
    prompt: str = "",
    model: TextEncoder | None = None,
) -> Any:
    """Return the vectors of the texts: from the index at ``path``, or encoded and written there.

    An array (N, D), or what the encoder makes instead; from codes, ``Decoded`` or ``Bits``.
    ``model`` as for ``made_from``. Rebuilds an index of another model or other texts, and says so.
    Raises ``InputError`` for codes of another model or other texts, for a file that is not an
    index, and for one that holds other vectors than its header says.
    """
    texts = check_texts(texts)
    path = Path(path)

    # What is there is used if it was made from the same.
    wanted = made_from(encoder, texts, prompt, model)
    made = index_metadata(path)
    if made is not None:
        # Paths and dates do not count: an encoder that was saved elsewhere has the same vectors.
        changed = differences(made, wanted)
        if not changed:
            return read_vectors(encoder, path, len(texts), int(wanted["width"]))
        if "quantized" in made:
            raise InputError(
                f"{path} was made with {changed}: give what it was made with, or write it again "
                f"with encode --quantize {made['quantized']}"
            )
        say(f"{path} was made with {changed}: rebuilding it")

    # Opened before the work, so that a path that cannot be written is found at once; the old index
    # stays until the end.
    with atomic_file(path) as partial:
        vectors = encode_with_progress(encoder, texts, prompt)
        tensors = KINDS[encoder.vectors_are].to_tensors(vectors)
        write_safetensors(tensors, partial, INDEX_MARK | wanted)
    say(f"wrote {len(vectors):,} vectors of width {vectors.shape[1]} to {path}")
    return vectors


def read_vectors(encoder: TextEncoder, path: Path, count: int, width: int) -> Any:
    """Read ``count`` vectors of a width, or codes.

    ``InputError`` for another shape or dtype, NaN and infinity.
    """
    tensors = read_safetensors(path)
    with reading(path):
        if "bits" in tensors or "codes" in tensors:
            return from_codes(tensors, count, width)
        vectors = KINDS[encoder.vectors_are].from_tensors(tensors)
        if not are_finite_floats(tensors) or tuple(vectors.shape) != (count, width):
            needed = f"{count:,} vectors of width {width}, finite and in float32"
            raise ValueError(f"the file does not hold {needed}: remove it, and it is made anew")
    return vectors


def are_finite_floats(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Return whether those of the tensors that hold numbers of vectors can be compared."""
    for name in FLOATS:
        if name not in tensors:
            continue
        x = tensors[name]
        if x.dtype not in (torch.float32, torch.float64) or not x.isfinite().all():
            return False
    return True
