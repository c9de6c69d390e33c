"""Vectors in files: streamed to ``.npy``, kept in an index, or quantised to codes.

    index     vectors (N, D) float32, rebuilt when the model or the texts change
    int8      codes (N, D) int8 and ranges (2, D) float32: a quarter of the bytes
    binary    bits (N, ceil(D / 8)) uint8, one bit per column: a 32nd

All but ``.npy`` are safetensors files whose metadata say what the vectors were made from. A file
that is something else is never replaced, and codes, which ``encode --quantize`` writes, are never
rebuilt. ``search/quantized.py`` turns vectors to codes and back; queries stay float32. An encoder
is an argument here, of any class: models are above this room.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minisbert.checkpoints.weights import read_metadata, write_safetensors
from minisbert.core import InputError, one_line, reading
from minisbert.core.checks import check_texts
from minisbert.core.weights import read_safetensors
from minisbert.search.dense import ReadByRows
from minisbert.search.kinds import KINDS
from minisbert.search.quantized import (
    calibrate,
    from_bits,
    from_int8,
    hamming_top_k,
    rescore,
    to_bits,
    to_int8,
)
from minisbert.system.console import cut_message, say
from minisbert.system.files import atomic_file, check_ending

INDEX_MARK = {"minisbert": "vectors"}  # in the metadata of such a file
MODEL_OPTIONS = ("pooling", "max_length", "width")  # a model's hash covers them
FLOATS = (
    "vectors",
    "values",
    "rows",
)  # the tensor of floats in an index of dense, sparse or many vectors
UNHASHED = (
    "prompts",
    "default_prompt_name",
    "similarity_fn_name",
)  # settings that change no vector by themselves
RESCORE = 4  # candidates by bits for each result
BLOCK_NUMBERS = 2**22  # to rescore at once


def write_npy(chunks: Iterator[np.ndarray], count: int, path: Path) -> int:
    """Write chunks (n, D) to one ``.npy`` file, (count, D), with one of them in memory at a time;
    return D.

    The header comes first and contains the shape, so the number of rows must be known.
    """
    with open(path, "wb") as file:
        # not np.save, which needs the whole array; nor a memory map, whose full disk is a signal
        # and not an error
        written = width = 0
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
                }
                np.lib.format.write_array_header_1_0(file, header | {"shape": (count, width)})
            file.write(np.ascontiguousarray(chunk).data)
            written += len(chunk)
    if written != count:
        raise InputError(
            f"{count:,} texts were counted, but {written:,} encoded: has the file changed in "
            f"between?"
        )
    return width


def encode_with_progress(
    encoder: Any, texts: Sequence[str], prompt: str | None = None, query: bool = False
) -> Any:
    """Call ``encode``, or ``encode_query``, with a progress line, and report how many texts were
    truncated.
    """
    encode = (
        encoder.encode_query if query else encoder.encode
    )  # ColBERT fills queries up, whatever their prompt
    options = KINDS[encoder.vectors_are].encode_options
    vectors = encode(texts, show_progress_bar=True, prompt=prompt, **options)
    if encoder.truncated:
        say(cut_message(encoder.tokenizer.limit, encoder.truncated, len(texts)))
    return vectors


# ------------------------------------------------------------------------------------------ what
# vectors are made from


def made_from(encoder: Any, texts: Iterable[str], prompt: str, model: Any = None) -> dict[str, str]:
    """Return what determines the vectors of texts with this prompt, as stored in a file's metadata.

    Of a compiled encoder, whose weights are in its program, ``model`` is the model that it was made
    from.
    """
    # quoted, since ["a", "b"] and ["a\nb"] differ
    digest = hashlib.sha256()
    for text in texts:
        digest.update(json.dumps(text).encode() + b"\n")
    return {
        "model": model_hash(encoder, model),
        "pooling": encoder.pooling_mode,
        "max_length": str(encoder.tokenizer.limit),
        "width": str(min(encoder.settings.truncate_dim or encoder.width, encoder.width)),
        "prompt": prompt,
        "texts": digest.hexdigest(),
    }


def model_hash(encoder: Any, model: Any = None) -> str:
    """Hash all that determines vectors except the prompt: configuration, tokenizer, names and bytes
    of weights.
    """
    model = model or encoder
    # with a late-interaction model's lengths and skipped words
    settings = dataclasses.asdict(model.settings)
    bert = getattr(model, "bert", None)  # a table of static vectors has none
    # what the modules are and how they are set, then the bytes of all weights
    about = {
        "classes": [type(model).__name__, type(model.tokenizer).__name__],
        "bert": bert and dataclasses.asdict(bert.config),
        "pooling": model.pooling_mode,
        "dense": [layer.activation for layer in model.modules() if type(layer).__name__ == "Dense"],
        "normalize": model.normalize,
        "limit": model.tokenizer.limit,
        "cut_start": model.tokenizer.cut_start,
        "settings": {name: value for name, value in settings.items() if name not in UNHASHED},
        "tokenizer": model.tokenizer.backend.to_str(),
        "dtype": getattr(
            encoder, "compiled_dtype", "float32"
        ),  # int8 gives other vectors than float32
    }
    # sorted, because a dictionary's order may change without a change of meaning
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        digest.update(parameter.detach().cpu().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def differences(made: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """Describe how stored settings differ from the wanted ones: "prompt 'passage: ', not ''"; empty
    if they match.
    """
    changed = [name for name in wanted if made.get(name) != wanted[name]]
    if set(changed) & set(MODEL_OPTIONS):
        # such an option changes the model's hash, too: to add "another model" would mislead
        changed = [name for name in changed if name != "model"]
    others = {"texts": "other texts", "model": "another model"}
    changes = []
    for name in changed:
        changes.append(
            others.get(name) or f"{name} {one_line(made.get(name))}, not {one_line(wanted[name])}"
        )
    return "; ".join(changes)


# ------------------------------------------------------------------------------------------ the
# index


def index_metadata(path: Path | None) -> dict[str, str] | None:
    """Read the metadata of an index or codes; None without a file, ``InputError`` if the file is
    something else.
    """
    check_ending("--index", path, ".safetensors")
    if path is None or not path.is_file():
        return None
    metadata: dict[str, str] = {}
    with suppress(InputError):  # a text file, a damaged one: not an index either
        metadata = read_metadata(path)
    if not INDEX_MARK.items() <= metadata.items():
        raise InputError(
            f"{path} is not an index, or is damaged, and is not replaced: remove it or name "
            f"another file"
        )
    return metadata


def indexed_vectors(
    encoder: Any, texts: Sequence[str], path: str | Path, prompt: str = "", model: Any = None
) -> Any:
    """Return the vectors of the texts, read from the index at ``path`` or encoded and written
    there.

    An array (N, D), or what the encoder makes instead; from codes, ``Decoded`` or ``Bits``.
    ``model`` as for ``made_from``. Rebuilds an index of another model or other texts, and says so.
    Raises ``InputError`` for such codes, if the file is not an index, and if it holds other vectors
    than its header says.
    """
    texts, path = check_texts(texts), Path(path)
    wanted = made_from(encoder, texts, prompt, model)
    made = index_metadata(path)
    if made is not None:
        changed = differences(made, wanted)
        # also of an encoder that was saved elsewhere: paths and dates do not count
        if not changed:
            return read_vectors(encoder, path, len(texts), int(wanted["width"]))
        if "quantized" in made:
            remedy = f"give what it was made with, or write it again with encode --quantize {made['quantized']}"
            raise InputError(f"{path} was made with {changed}: {remedy}")
        say(f"{path} was made with {changed}: rebuilding it")
    # opened before the work: a path that cannot be written is found at once, and the old index
    # stays until the end
    with atomic_file(path) as partial:
        vectors = encode_with_progress(encoder, texts, prompt)
        tensors = KINDS[encoder.vectors_are].to_tensors(vectors)
        write_safetensors(tensors, partial, INDEX_MARK | wanted)
    say(f"wrote {len(vectors):,} vectors of width {vectors.shape[1]} to {path}")
    return vectors


def read_vectors(encoder: Any, path: Path, count: int, width: int) -> Any:
    """Read ``count`` vectors of a width; ``InputError`` for another shape or dtype, NaN and
    infinity.
    """
    tensors = read_safetensors(path)
    with reading(path):
        if "bits" in tensors or "codes" in tensors:
            return from_codes(tensors, count, width)
        floats = [tensors[name] for name in FLOATS if name in tensors]
        usable = all(
            x.dtype in (torch.float32, torch.float64) and x.isfinite().all() for x in floats
        )
        vectors = KINDS[encoder.vectors_are].from_tensors(tensors)
        if not usable or tuple(vectors.shape) != (count, width):
            needed = f"{count:,} vectors of width {width}, finite and in float32"
            raise ValueError(f"the file does not hold {needed}: remove it, and it is made anew")
    return vectors


# ------------------------------------------------------------------------------------------ codes


def write_codes(vectors: np.ndarray, kind: str, path: Path, metadata: Mapping[str, str]) -> None:
    """Quantise vectors (N, D) to "int8" or "binary" and write them."""
    if kind == "binary":
        arrays = {"bits": to_bits(vectors)}
    else:
        if len(vectors) < 2:
            raise InputError("--quantize int8: one vector has no ranges; give more texts")
        ranges = calibrate(vectors)
        arrays = {"codes": to_int8(vectors, ranges), "ranges": ranges}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    write_safetensors(tensors, path, {**metadata, "quantized": kind})


def from_codes(tensors: Mapping[str, torch.Tensor], count: int, width: int) -> "Decoded | Bits":
    """Open ``count`` vectors of a width from the tensors of a file; ``ValueError`` if they do not
    fit.
    """
    if "bits" in tensors:
        codes, shape, dtype = tensors["bits"], (count, -(-width // 8)), torch.uint8
    else:
        codes, shape, dtype = tensors["codes"], (count, width), torch.int8
    if tuple(codes.shape) != shape or codes.dtype != dtype:
        raise ValueError(
            f"the codes are {codes.dtype} of shape {tuple(codes.shape)}, not {dtype} of {shape}"
        )
    if "bits" in tensors:
        return Bits(codes.numpy(), width)
    # stay codes in memory: a block becomes float32 when the search reads it
    vectors = Decoded(codes.numpy(), tensors["ranges"].float().numpy())
    vectors[:1]  # raises for ranges of another width
    return vectors


class Decoded(ReadByRows):
    """int8 codes (N, D), decoded to float32 vectors as they are read."""

    dtype = np.dtype(np.float32)

    def __init__(self, codes: np.ndarray, ranges: np.ndarray):
        self.codes, self.ranges, self.shape = codes, ranges, codes.shape

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        return from_int8(self.codes[rows], self.ranges)


@dataclass
class Bits:
    """The signs of N vectors of a width, in bits (N, ceil(width / 8))."""

    bits: np.ndarray
    width: int

    def top_k(
        self, queries: np.ndarray, k: int, times: int = RESCORE
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and indices, (Q, k) each, best first, of float32 queries (Q, D) with the
        signs.

        Candidates are the ``times`` k rows whose bits differ least from those of the query. A score
        is the cosine of the query and a vector of -1 and 1, so it is lower than that of the vectors
        themselves: 0.8 where that is 1.
        """
        # bits choose candidates, the float query sorts them: a Hamming distance has few values and
        # many ties
        most = min(times * k, len(self.bits))
        height = max(1, BLOCK_NUMBERS // (most * self.width))  # queries at a time
        scores = np.empty((len(queries), k), np.float32)
        indices = np.empty((len(queries), k), np.int64)
        for start in range(0, len(queries), height):
            some = slice(start, start + height)
            candidates = hamming_top_k(queries[some], self.bits, most)[1]
            signs = from_bits(self.bits[candidates], self.width)
            scores[some], indices[some] = rescore(queries[some], candidates, signs, k)
        return scores, indices
