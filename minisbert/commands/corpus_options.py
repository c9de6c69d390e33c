"""The options of the commands that search a corpus, and the corpus as they name it: its texts, its vectors."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from minisbert.commands.model_options import ROLES, add_model_options, add_prompt_option, load_encoder, prompt_of
from minisbert.core import InputError
from minisbert.corpus.codes import CODES, Bits, read_codes
from minisbert.corpus.hashes import model_hash
from minisbert.corpus.index import encode_with_progress, index_metadata, indexed_vectors
from minisbert.corpus.shard_vectors import find_shards, open_shards
from minisbert.data.texts import read_texts
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search.vectors import Stacked
from minisbert.system.assets import local_path
from minisbert.system.console import check_usage, say
from minisbert.system.files import check_output


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
    texts, skipped = read_texts(path)
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
    check_output(options.index, local_path(options.model), file)
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
