"""The options of the commands that search a corpus, and the corpus as they name it: its texts, its vectors."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from minisbert.commands.model_options import add_model_options, add_prompt_option, load_encoder, prompt_of
from minisbert.core import InputError, one_line
from minisbert.corpus.index import coded_vectors, encode_with_progress, index_metadata, indexed_vectors
from minisbert.corpus.manifest import existing_manifest, shard_vectors
from minisbert.data.texts import read_texts
from minisbert.loading import Encoder
from minisbert.search.vector_files import Bits
from minisbert.search.vectors import Stacked
from minisbert.system.assets import local_path
from minisbert.system.console import say
from minisbert.system.files import check_output

TEXT_FILES = "one text per line (.txt, .txt.gz), or .jsonl, .csv or .tsv with a column called text"


def add_corpus_options(parser: argparse.ArgumentParser, roles: Sequence[str] = ("",)) -> None:
    """The options shared by ``search``, ``pairs`` and ``mine``; with a prompt for each of the roles."""
    add_model_options(parser.add_argument_group("model"))
    prompts = parser.add_argument_group("prompts")
    for role in roles:
        add_prompt_option(prompts, role)
    files = parser.add_argument_group("files")
    files.add_argument(
        "--index",
        type=Path,
        metavar="F",
        help="keep the vectors in F.safetensors, to be reused with the same model and texts; or read those of the same "
        "texts that encode --quantize or --shard-rows has written",
    )
    files.add_argument(
        "--json", action="store_true", help="print one JSON object at full precision; indices start at 0"
    )


def read_corpus(path: str) -> list[str]:
    """The texts of a file; reports how many empty lines were skipped."""
    texts = [text for _, text in read_texts(path)]
    kept = [text for text in texts if text]
    if len(kept) < len(texts):
        say(f"{path}: {len(texts) - len(kept):,} empty lines were skipped")
    return kept


def encoded_metadata(options: argparse.Namespace) -> dict[str, str] | None:
    """What ``encode`` made the vectors from that ``--index`` names; None for an index, which is rebuilt if need be."""
    path = options.index
    if path is None:
        return None
    if path.is_dir():
        return existing_manifest(path).made
    made = index_metadata(path)
    if made is None or "quantized" not in made:
        return None
    if made["quantized"] == "binary" and not hasattr(options, "rescore"):
        raise InputError(f"{path} holds bits, which only search reads: encode with --quantize int8")
    return made


def load_and_encode(
    texts: Sequence[str], options: argparse.Namespace
) -> tuple[Encoder, np.ndarray | Stacked | Bits, str]:
    """The model, the vectors (N, D) of the texts, from ``--index`` if it is given, and the prompt before each text."""
    check_output(options.index, local_path(options.model))
    made = encoded_metadata(options)
    encoder = load_encoder(options)
    if encoder.vectors_are != "dense" and (made or not hasattr(options, "rescore")):
        kind = type(encoder).__name__
        raise InputError(f"{options.model} is a {kind}: mine, pairs, shards, codes and bits are for dense vectors")
    if hasattr(options, "query_prompt"):
        prompt_of(encoder, options, "query")  # an unknown name ends the work here
    prompt = corpus_prompt(encoder, options, made)
    if options.index is None:
        vectors = encode_with_progress(encoder, texts, prompt)
    elif made is None:
        vectors = indexed_vectors(encoder, texts, options.index, prompt)
    elif "quantized" in made:
        vectors = coded_vectors(encoder, texts, options.index, prompt)
    else:
        vectors = shard_vectors(encoder, texts, options.index, prompt)
    return encoder, vectors, prompt


def corpus_prompt(encoder: Encoder, options: argparse.Namespace, made: dict[str, str] | None) -> str:
    """The prompt before each text of the corpus: from the options, else that of the encoded file, else the model's."""
    prefix, role = "", ""
    if hasattr(options, "corpus_prompt"):
        prefix, role = "corpus_", "corpus"
    prompt = prompt_of(encoder, options, role)
    is_given = any(getattr(options, f"{prefix}{name}") is not None for name in ("prompt", "prompt_name"))
    if made is None or is_given or made["prompt"] == prompt:
        return prompt
    say(f"{options.index}: the texts have the prompt {one_line(made['prompt'])}, not {one_line(prompt)}")
    return made["prompt"]
