"""The options of the commands that search a corpus, and the corpus as they name it: its texts, its vectors."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minisbert import loading
from minisbert.backends.graphs import package_dtype
from minisbert.checkpoints.layout import find_model
from minisbert.core import InputError, one_line
from minisbert.corpus.index import coded_vectors, encode_with_progress, index_metadata, indexed_vectors
from minisbert.corpus.shards import existing_manifest, shard_vectors
from minisbert.data.lines import read_texts
from minisbert.loading import Encoder
from minisbert.models.prompts import PROMPT_NAMES, choose_prompt, role_prompt_name
from minisbert.search.dense import Stacked
from minisbert.search.vector_files import Bits
from minisbert.system.assets import local_path
from minisbert.system.command_line import add_threads_option
from minisbert.system.console import bounded, say
from minisbert.system.devices import keep_freed_memory, use_threads
from minisbert.system.files import check_ending, check_output

ROLES = {"query": "query", "corpus": "document"}  # in the names of options -> of texts


def add_model_options(group: argparse._ActionsContainer, device: str = "auto", name: str = "--model") -> None:
    """The options that ``load_encoder`` reads. With the name "model" the model is an argument, which must be given."""
    add_compiled_option(group)
    about = "name, folder, or owner/name on the Hub"
    if name == "model":
        group.add_argument(name, metavar="MODEL", help=about)
    else:
        group.add_argument(name, default="all-MiniLM-L6-v2", help=f"{about} (default: %(default)s)")
    group.add_argument("--pooling", help="override the model's pooling: mean, cls, max, ...")
    group.add_argument("--max-length", type=int, metavar="N", help="cut texts to N tokens (default: the model's)")
    group.add_argument(
        "--truncate-dim", type=bounded(int, 1), metavar="N", help="keep the first N columns of a vector (Matryoshka)"
    )
    group.add_argument("--device", default=device, help="auto, cpu, cuda or mps (default: %(default)s)")
    add_threads_option(group)


def add_compiled_option(group: argparse._ActionsContainer) -> None:
    """``--compiled``, which ``if_compiled`` reads."""
    group.add_argument(
        "--compiled",
        nargs="?",
        const="yes",
        metavar="F.pt2",
        help="run the model compiled for this CPU (minisbert compile): F.pt2, or the one in the cache, compiled now if "
        "it is missing; with auto, uncompiled if it is missing or does not fit",
    )


def load_encoder(options: argparse.Namespace) -> loading.Encoder:
    """The model; sets the process's threads, and has it keep the memory that it frees."""
    keep_freed_memory()
    use_threads(options.threads)
    dtype = getattr(options, "dtype", None)
    if dtype == "auto" and options.compiled:
        dtype = package_dtype("auto")
    model = find_model(options.model)

    chosen = {"pooling": options.pooling, "max_seq_length": options.max_length}

    def compiled(package: str | bool) -> loading.Encoder:
        return loading.load_encoder(model, compiled=package, dtype=dtype, **chosen)

    encoder = if_compiled(options, compiled) or loading.load_encoder(model, device=options.device, **chosen)
    if options.truncate_dim is not None:
        if encoder.vectors_are != "dense":
            name = type(encoder).__name__
            raise InputError(f"--truncate-dim: a {name} has no columns that matter less than others")
        encoder.truncate_dim = options.truncate_dim
    return encoder


def load_pooled(options: argparse.Namespace, instead: str) -> loading.Encoder:
    """``load_encoder``; for a model with a vector per token an ``InputError`` that says what to do ``instead``."""
    encoder = load_encoder(options)
    if encoder.vectors_are == "per token":
        raise InputError(f"{options.model} has a vector per token: {instead}")
    return encoder


def check_written(option: str, out: Path | None, endings: Sequence[str], model: str, *inputs: str | None) -> None:
    """Raise ``InputError`` if ``out`` has another ending, or is, contains or lies in the model or another input."""
    check_ending(option, out, *endings)
    check_output(out, local_path(model), *inputs)


def if_compiled(options: argparse.Namespace, load: Callable[[str | bool], Any]) -> Any:
    """The result of ``load`` for the package that ``--compiled`` names; None to run the model uncompiled."""
    if not options.compiled:
        return None
    if options.device not in ("auto", "cpu"):
        raise InputError(f"--compiled is for the CPU, not for --device {options.device}")
    if options.compiled not in ("yes", "auto"):
        check_ending("--compiled", Path(options.compiled), ".pt2")
    try:
        return load({"yes": True, "auto": "auto"}.get(options.compiled, options.compiled))
    except InputError as error:
        if options.compiled != "auto":
            raise
        say(f"not compiled: {error}")
        return None


def add_prompt_option(group: argparse._ActionsContainer, role: str = "") -> None:
    """The options that ``prompt_of`` reads: the prompt of all texts, or of the role "query" or "corpus"."""
    flag, default = "--prompt", "the model's choice"
    if role:
        names = " or ".join(PROMPT_NAMES[ROLES[role]])
        flag, default = f"--{role}-prompt", f"the model's {names} prompt, else its own choice"
    one = group.add_mutually_exclusive_group()
    one.add_argument(flag, metavar="TEXT", help=f'put this before each text, "" for nothing (default: {default})')
    one.add_argument(f"{flag}-name", metavar="NAME", help="one of the model's prompts")


def prompt_of(encoder: loading.Encoder, options: argparse.Namespace, role: str = "") -> str:
    """The prompt from the options, else the model's own for this role, else its default."""
    prefix = f"{role}_" if role else ""
    prompt, name = getattr(options, f"{prefix}prompt"), getattr(options, f"{prefix}prompt_name")
    if role and prompt is None and name is None:
        name = role_prompt_name(encoder.settings, ROLES[role])
    return choose_prompt(encoder.settings, prompt, name)


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
