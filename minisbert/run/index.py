"""Vectors of a corpus, kept in a file beside the hashes of the model and of the texts that they were made from.

The file is a safetensors with one tensor, ``vectors`` (N, D), and the hashes in its metadata. It is used as long as
both hashes still fit; a stale one is rebuilt, and a file that is anything else is never touched.
"""

import argparse
import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from minisbert.core import InputError
from minisbert.models.checkpoint import read_metadata, read_safetensors, write_safetensors
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.objectives.corpora import read_sentences
from minisbert.system.console import say
from minisbert.system.devices import choose_device
from minisbert.system.files import atomic_file

MARK = {"minisbert": "index"}  # in the metadata: whatever has it may be rebuilt


def add_corpus_options(parser: argparse.ArgumentParser) -> None:
    """What ``search`` and ``pairs`` have in common."""
    model = parser.add_argument_group("model")
    model.add_argument("--model", default="all-MiniLM-L6-v2", help="name or folder (default: %(default)s)")
    model.add_argument("--pooling", help="override the model's pooling: mean, cls, max, ...")
    model.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (default: auto)")
    kept = parser.add_argument_group("files")
    kept.add_argument(
        "--index",
        type=Path,
        metavar="F",
        help="keep the vectors in F.safetensors: the next command on the same model and texts encodes nothing",
    )
    kept.add_argument(
        "--json", action="store_true", help="one JSON object on stdout, full precision; index counts from 0"
    )


def read_corpus(path: str) -> list[str]:
    """The sentences of a file; a word on lines that hold none."""
    texts, skipped = read_sentences(path)
    if skipped:
        say(f"{path}: {skipped:,} empty lines are skipped")
    return texts


def load_and_encode(texts: Sequence[str], options: argparse.Namespace) -> tuple[SentenceEncoder, np.ndarray]:
    """The model of the options and the texts' vectors (N, D), from the index where there is one."""
    if options.index:
        check_index(options.index)  # before the model is loaded
    encoder = SentenceEncoder.load(options.model, options.pooling, choose_device(options.device))
    if options.index:
        return encoder, indexed_vectors(encoder, texts, options.index)
    return encoder, encode_aloud(encoder, texts)


def indexed_vectors(encoder: SentenceEncoder, texts: Sequence[str], path: str | Path) -> np.ndarray:
    """The vectors (N, D) of the texts: read from the index at ``path``, or encoded and written there.

    An index of another model or of other texts is rebuilt, and that is said. Raises ``InputError`` for a file that
    is no index.
    """
    path = Path(path)
    wanted = {"model": model_hash(encoder), "corpus": corpus_hash(texts)}
    if (found := check_index(path)) is not None:
        stale = [name for name, value in wanted.items() if found[name] != value]
        if not stale:
            return read_safetensors(path)["vectors"].numpy()
        say(f"{path} was made from another {' and another '.join(stale)}: building it anew")
    with atomic_file(path) as partial:
        vectors = encode_aloud(encoder, texts)
        write_safetensors({"vectors": torch.from_numpy(vectors)}, partial, MARK | wanted)
    say(f"kept {len(vectors):,} vectors of width {vectors.shape[1]} in {path}")
    return vectors


def check_index(path: Path) -> dict[str, str] | None:
    """The hashes in an index, None where there is no file; ``InputError`` for a file that is no index."""
    if path.suffix != ".safetensors":
        raise InputError(f"--index {path}: the name must end in .safetensors")
    if not path.exists():
        return None
    try:
        metadata = read_metadata(path)
    except InputError as error:
        raise InputError(f"{error}; an index cannot replace it: remove it or name another file") from error
    if not {*MARK, "model", "corpus"} <= metadata.keys():
        raise InputError(f"{path} is not an index and is not replaced: name another file")
    return metadata


def encode_aloud(encoder: SentenceEncoder, texts: Sequence[str]) -> np.ndarray:
    """``encode`` with progress, and with a word on texts that were cut."""
    vectors = encoder.encode(texts, progress=True)
    if encoder.truncated:
        say(encoder.tokenizer.cut_message(encoder.truncated, len(texts)))
    return vectors


def model_hash(encoder: SentenceEncoder) -> str:
    """sha256 of all that the vectors depend on: tokenizer, configuration, and the name and bytes of each weight."""
    about = {
        "bert": dataclasses.asdict(encoder.bert.config),
        "pooling": encoder.pooling.mode,
        "dense": [layer.activation for layer in encoder.dense],
        "normalize": encoder.normalize,
        "limit": encoder.tokenizer.limit,
        "tokenizer": encoder.tokenizer.backend.to_str(),
    }
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, parameter in encoder.named_parameters():
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        digest.update(parameter.detach().cpu().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def corpus_hash(texts: Sequence[str]) -> str:
    """sha256 of the texts in their order."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(json.dumps(text).encode() + b"\n")  # quoted, so that two texts are never one with a line break
    return digest.hexdigest()
