"""An index: the vectors of a corpus in a file, with hashes of them and of the model and texts they come from.

The file is a safetensors with one tensor, ``vectors`` (N, D), and the hashes in its metadata. It is reused while all
hashes match and rebuilt when stale or damaged; a file that is not an index is never overwritten.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from minisbert.core import InputError, reading
from minisbert.corpus.hashes import corpus_hash, model_hash, read_hashed, write_hashed
from minisbert.folder.weights import read_metadata
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import say
from minisbert.system.files import atomic_file, check_ending


def indexed_vectors(
    encoder: SentenceEncoder, texts: Sequence[str], path: str | Path, prompt: str | None = None
) -> np.ndarray:
    """The vectors (N, D) of the texts, read from the index at ``path`` or encoded and written there.

    Rebuilds an index of another model or other texts, or one with other bytes than were written, and says so. Raises
    ``InputError`` if the file is not an index.
    """
    path = Path(path)
    wanted = {"model": model_hash(encoder, prompt), "corpus": corpus_hash(texts)}
    if (found := index_metadata(path)) is not None:
        tensors, wrong = read_hashed(path, found, wanted)
        if not wrong:
            with reading(path):
                return encoder.from_tensors(tensors)
        say(f"{path} {wrong}: rebuilding it")
    with atomic_file(path) as partial:
        vectors = encode_with_progress(encoder, texts, prompt)
        write_hashed(encoder.to_tensors(vectors), partial, {"minisbert": "index"} | wanted)
    say(f"kept {len(vectors):,} vectors of width {vectors.shape[1]} in {path}")
    return vectors


def index_metadata(path: Path) -> dict[str, str] | None:
    """The metadata of an index or of codes, None if there is no file; ``InputError`` if the file is something else."""
    check_ending("--index", path, ".safetensors")
    if not path.is_file():
        return None
    metadata: dict[str, str] = {}
    with suppress(InputError):
        metadata = read_metadata(path)
    if not {"minisbert", "model", "corpus"} <= metadata.keys():
        raise InputError(f"{path} is not an index, or is damaged, and is not replaced: remove it or name another file")
    return metadata


def encode_with_progress(encoder: SentenceEncoder, texts: Sequence[str], prompt: str | None = None) -> np.ndarray:
    """``encode`` with a progress line; reports how many texts were truncated."""
    vectors = encoder.encode(texts, progress=True, prompt=prompt, **encoder.searched)
    if encoder.truncated:
        say(encoder.tokenizer.cut_message(encoder.truncated, len(texts)))
    return vectors
