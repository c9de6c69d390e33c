"""An index: the vectors of a corpus in a file, with hashes of them and of the model and texts they come from.

The file is a safetensors with one tensor, ``vectors`` (N, D), and the hashes in its metadata. It is reused while all
hashes match and rebuilt when stale or damaged; a file that is not an index is never overwritten.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from minisbert.commands.model_options import ROLES, add_model_options, add_prompt_option, load_encoder, prompt_of
from minisbert.core import InputError, reading
from minisbert.corpus.codes import CODES, Bits, read_codes
from minisbert.corpus.hashes import corpus_hash, model_hash, read_hashed, write_hashed
from minisbert.corpus.shard_vectors import find_shards, open_shards
from minisbert.data.corpora import read_sentences
from minisbert.folder.weights import read_metadata
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search.matrices import Stacked
from minisbert.system.console import check_usage, say
from minisbert.system.files import atomic_file, check_ending


def add_corpus_options(parser: argparse.ArgumentParser, roles: Sequence[str] = ("",)) -> None:
    """The options shared by ``search``, ``pairs`` and ``mine``; with a prompt for each of the roles."""
    add_model_options(parser.add_argument_group("model"))
    prompts = parser.add_argument_group("prompts")
    for role in roles:
        add_prompt_option(prompts, role)
    kept = parser.add_argument_group("files")
    kept.add_argument(
        "--index",
        type=Path,
        metavar="F",
        help="keep the vectors in F.safetensors, to be reused with the same model and texts; or read them from a "
        "folder of shards of the same file, written by encode --shard-rows",
    )
    kept.add_argument("--json", action="store_true", help="print one JSON object at full precision; indices start at 0")


def read_corpus(path: str) -> list[str]:
    """The sentences of a file; reports how many empty lines were skipped."""
    texts, skipped = read_sentences(path)
    if skipped:
        say(f"{path}: {skipped:,} empty lines were skipped")
    return texts


@contextmanager
def load_and_encode(
    texts: Sequence[str], options: argparse.Namespace, file: str = ""
) -> Iterator[tuple[SentenceEncoder, np.ndarray | Stacked | Bits]]:
    """The model and the vectors (N, D) of the texts, from the index or the folder of shards if one is given.

    Shards must have been written from ``file``, and must still be the same at the end of the block.
    """
    manifest = find_shards(options.index, file, len(texts)) if in_shards(options) else None
    about = index_metadata(options.index) if options.index and not manifest else None
    quantized, searching = about is not None and about["minisbert"] == CODES, hasattr(options, "rescore")
    bits = quantized and about.get("kind") == "binary"
    check_usage(
        (searching and options.rescore and not quantized, "--rescore is for an --index that encode --quantize wrote"),
        (bits and not searching, f"{options.index} holds bits, which only search reads: encode with --quantize int8"),
    )
    encoder = load_encoder(options)
    if encoder.searched and (quantized or manifest or not searching):
        kind = type(encoder).__name__
        raise InputError(f"{options.model} is a {kind}: mine, pairs, shards, codes and bits are for dense vectors")
    roles = ROLES if hasattr(options, "corpus_prompt") else ("",)
    *_, prompt = [prompt_of(encoder, options, role) for role in roles]  # an unknown name ends the work here
    if manifest:
        with open_shards(manifest, file, encoder, prompt) as vectors:
            yield encoder, vectors
    elif quantized:
        width = min(encoder.settings.truncate_dim or encoder.width, encoder.width)
        yield encoder, read_codes(options.index, about, texts, model_hash(encoder, prompt), width)
    elif options.index:
        yield encoder, indexed_vectors(encoder, texts, options.index, prompt)
    else:
        yield encoder, encode_with_progress(encoder, texts, prompt)


def in_shards(options: argparse.Namespace) -> bool:
    """Is ``--index`` a folder? An index is a file."""
    return options.index is not None and options.index.is_dir()


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
