"""An index: the vectors of a corpus in a file, with hashes of the model and the texts that they come from.

It is a safetensors file, reused while the hashes match and rebuilt when they do not; a file that is not an index is
never overwritten. Codes of ``encode --quantize`` are such a file, too, but are never rebuilt.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from minisbert.core import InputError, reading
from minisbert.core.weights import read_safetensors
from minisbert.corpus.hashes import differences, made_from, texts_hash
from minisbert.folder.weights import read_metadata, write_safetensors
from minisbert.loading import Encoder
from minisbert.models.prompts import choose_prompt
from minisbert.search.vector_files import Bits, read_codes
from minisbert.search.vectors import Stacked
from minisbert.system.console import say
from minisbert.system.files import atomic_file, check_ending

MARK = {"minisbert": "vectors"}  # in the metadata of such a file


def indexed_vectors(encoder: Encoder, texts: Sequence[str], path: str | Path, prompt: str | None = None) -> np.ndarray:
    """The vectors (N, D) of the texts, read from the index at ``path`` or encoded and written there.

    Rebuilds an index of another model or other texts, and says so. Raises ``InputError`` if the file is not an index.
    """
    path, prompt = Path(path), choose_prompt(encoder.settings, prompt)
    wanted = made_from(encoder, prompt) | {"texts": texts_hash(texts)}
    made = index_metadata(path)
    if made is not None:
        changed = differences(made, wanted)
        if not changed:
            tensors = read_safetensors(path)
            with reading(path):
                return encoder.from_tensors(tensors)
        say(f"{path} was made with {changed}: rebuilding it")
    with atomic_file(path) as partial:
        vectors = encode_with_progress(encoder, texts, prompt)
        write_safetensors(encoder.to_tensors(vectors), partial, MARK | wanted)
    say(f"kept {len(vectors):,} vectors of width {vectors.shape[1]} in {path}")
    return vectors


def coded_vectors(encoder: Encoder, texts: Sequence[str], path: Path, prompt: str) -> Stacked | Bits:
    """The vectors of the texts in a file of ``encode --quantize``; ``InputError`` if they are others."""
    made = index_metadata(path) or {}
    wanted = made_from(encoder, prompt) | {"texts": texts_hash(texts)}
    changed = differences(made, wanted)
    if changed:
        remedy = f"give what it was made with, or write it again with encode --quantize {made['quantized']}"
        raise InputError(f"{path} was made with {changed}: {remedy}")
    return read_codes(path, len(texts), int(wanted["width"]))


def index_metadata(path: Path) -> dict[str, str] | None:
    """What an index or codes were made from; None without a file, ``InputError`` if the file is something else."""
    check_ending("--index", path, ".safetensors")
    if not path.is_file():
        return None
    metadata: dict[str, str] = {}
    with suppress(InputError):
        metadata = read_metadata(path)
    if not MARK.items() <= metadata.items():
        raise InputError(f"{path} is not an index, or is damaged, and is not replaced: remove it or name another file")
    return metadata


def encode_with_progress(encoder: Encoder, texts: Sequence[str], prompt: str | None = None) -> np.ndarray:
    """``encode`` with a progress line; reports how many texts were truncated."""
    vectors = encoder.encode(texts, show_progress_bar=True, prompt=prompt, **encoder.search_options)
    if encoder.truncated:
        say(encoder.tokenizer.cut_message(encoder.truncated, len(texts)))
    return vectors
