"""Open the model of an adapter: its options are those of ``load`` and ``encode``, or an error.

    encoder, encode_options = open_dense("MinisbertEmbeddings", model, options, EMBEDDER_OPTIONS)
    encoder.encode_query([text], **encode_options)

An adapter takes only options that it obeys: who gives one that changes nothing has been mistaken.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from minisbert.core import InputError, one_line
from minisbert.loading import load_dense, load_ranker
from minisbert.models.pair_model import PairScorer
from minisbert.models.text_encoder import DenseEncoder, TextEncoder
from minisbert.replacements import LOAD, MISSPELT, check_keywords

# The options that ``encode`` gets at each call. Every other one goes to ``load``, once. ``dtype``
# is an option of both, and ``load`` has it for a compiled model.
ENCODE_OPTIONS = (
    "batch_size",
    "normalize_embeddings",
    "show_progress_bar",
    "prompt",
    "prompt_name",
)
# The options of an adapter that embeds queries and documents, each with the model's own prompt. So
# it has no prompt for all texts, and the default one is never used.
EMBEDDER_OPTIONS = (
    "device",
    "truncate_dim",
    "prompts",
    "max_seq_length",
    "pooling",
    "compiled",
    "dtype",
    "batch_size",
    "normalize_embeddings",
    "show_progress_bar",
)
# The options of an adapter that sorts documents by a cross-encoder.
RANKER_OPTIONS = (
    "device",
    "max_seq_length",
    "compiled",
    "dtype",
    "batch_size",
    "show_progress_bar",
)

# What other libraries' classes for embeddings and rerankers call these options. The names of
# sentence-transformers are in ``LOAD``.
NAMES_ELSEWHERE = {
    "model": "model_name",
    "model_name": "model",
    "model_id": "model",
    "model_name_or_path": "model",
    "model_path": "model",
    "model_kwargs": "the options themselves, such as device=... and truncate_dim=...",
    "encode_kwargs": "the options themselves, such as batch_size=... and normalize_embeddings=...",
    "query_encode_kwargs": 'prompts={"query": "..."}',
    "query_instruction": 'prompts={"query": "..."}',
    "text_instruction": 'prompts={"document": "..."}',
    "embed_instruction": 'prompts={"document": "..."}',
    "prefix": 'prompts={"query": "...", "document": "..."}',
    "prompt": 'prompts={"query": "...", "document": "..."}',
    "prompt_name": 'prompts={"query": "...", "document": "..."}',
    "default_prompt_name": 'prompts={"query": "...", "document": "..."}',
    "normalize": "normalize_embeddings",
    "progress_bar": "show_progress_bar",
    "show_progress": "show_progress_bar",
    "max_length": "max_seq_length",
    "dimensions": "truncate_dim",
    "embed_dim": "truncate_dim",
    "revision": 'the model "owner/name@revision"',
    "cache_dir": "the environment variable HF_HOME for models of the Hub, MINISBERT_HOME for the "
    "project's own",
    "backend": "compiled=True",
}


def check_names(adapter: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise ``TypeError`` with advice for an argument that an adapter does not have."""
    check_keywords(adapter, names, known, LOAD | NAMES_ELSEWHERE)


def check_fields(
    adapter: str, fields: Iterable[str], known: Collection[str], options: Collection[str]
) -> None:
    """Raise ``TypeError`` for a field that a pydantic class does not have.

    Such a class takes its options in one field, ``options``. pydantic's own error would not say so.
    """
    for name in fields:
        if name in known:
            continue
        alike = get_close_matches(name, options, n=1, cutoff=MISSPELT)
        if alike:
            raise TypeError(f"{adapter} has no argument {name}: use options={{{alike[0]!r}: ...}}")
    check_names(adapter, fields, known)


def split_options(
    adapter: str,
    model: object,
    options: Mapping[str, Any],
    known: Collection[str],
    arguments: Collection[str] = (),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide the options of an adapter into those of ``load`` and those of ``encode``.

    ``arguments`` are the adapter's own, of which an option may be a misspelt one. Raises
    ``TypeError`` for an option that is not ``known``, and ``InputError`` for one of ``load`` if the
    model is open already.
    """
    if not isinstance(options, Mapping):
        raise TypeError(f"{adapter}: options is a dictionary, such as {{'device': 'cpu'}}")
    check_names(adapter, options, (*arguments, *known))
    if options.get("prompts") is not None:
        # An adapter without a default prompt uses only those for queries and for documents.
        by_role = "default_prompt_name" not in known
        check_prompts(adapter, options["prompts"], by_role)

    names_of_encode = set(ENCODE_OPTIONS)
    if not options.get("compiled"):
        names_of_encode.add("dtype")
    load_options = {}
    encode_options = {}
    for name, value in options.items():
        if name in names_of_encode:
            encode_options[name] = value
        else:
            load_options[name] = value
    if load_options and not isinstance(model, str | Path):
        names = ", ".join(load_options)
        raise InputError(f"{adapter}: the model is open already, so give {names} where you load it")
    return load_options, encode_options


def check_prompts(adapter: str, prompts: object, by_role: bool) -> None:
    """Raise ``InputError`` for prompts that are no dictionary, or that an adapter would not use.

    ``by_role`` says that it uses only those for queries and for documents.
    """
    if not isinstance(prompts, Mapping):
        raise InputError(
            f"{adapter}: prompts is a dictionary, such as {{'query': '...'}}, not "
            f"{one_line(prompts)}"
        )
    for name in prompts:
        if by_role and name not in ("query", "document"):
            raise InputError(
                f"{adapter} has no use for a prompt called {one_line(name)}: call it query or "
                f"document"
            )


def check_named(adapter: str, model: object) -> None:
    """Raise ``InputError`` for an open model, where the adapter is stored with the model's name."""
    if not isinstance(model, str | Path):
        raise InputError(
            f"{adapter} takes the name or the folder of a model, not a {type(model).__name__}: "
            f"save the model and give its folder"
        )


def open_dense(
    adapter: str,
    model: str | Path | TextEncoder,
    options: Mapping[str, Any],
    known: Collection[str],
) -> tuple[DenseEncoder, dict[str, Any]]:
    """Open an encoder with the options of an adapter, and return those that ``encode`` takes."""
    load_options, encode_options = split_options(adapter, model, options, known)
    return load_dense(model, **load_options), encode_options


def open_ranker(
    adapter: str, model: str | Path | PairScorer, options: Mapping[str, Any]
) -> tuple[PairScorer, dict[str, Any]]:
    """Open a cross-encoder with the options of an adapter, and return those of ``rank``."""
    load_options, rank_options = split_options(adapter, model, options, RANKER_OPTIONS)
    # ``rank`` has no dtype: only a compiled cross-encoder has one, which ``load`` chooses.
    if rank_options.pop("dtype", None) is not None:
        raise InputError(f"{adapter}: dtype is for a compiled cross-encoder: add compiled=True")
    return load_ranker(model, **load_options), rank_options


# ------------------------------------------------------------------------- one model for a process

# The path, the size and the time of change of each file in a model's folder. They change when
# another model is saved there.
FileStamps = tuple[tuple[str, int, int], ...]
# Options of ``load`` as a part of a cache's key, which must not change.
FrozenOptions = tuple[tuple[str, Any], ...]


def file_stamps(model: str | Path) -> FileStamps:
    """List path, size and time of change of each file below a folder; none for a name."""
    stamps = []
    if os.path.isdir(model):
        for path in sorted(Path(model).rglob("*")):
            if path.is_file():
                status = path.stat()
                stamps.append((str(path), status.st_size, status.st_mtime_ns))
    return tuple(stamps)


def freeze(options: Mapping[str, Any]) -> FrozenOptions:
    """Options of ``load`` as a key of a cache. Prompts are the only ones that are a dictionary."""
    frozen = []
    for name, value in sorted(options.items()):
        if isinstance(value, Mapping):
            value = tuple(value.items())
        if value is not None:  # None is every option's default
            frozen.append((name, value))
    return tuple(frozen)


def thaw(frozen: FrozenOptions) -> dict[str, Any]:
    """Options of ``load`` from the key of a cache."""
    options = dict(frozen)
    if "prompts" in options:
        options["prompts"] = dict(options["prompts"])
    return options


def open_once(model: str | Path, load_options: Mapping[str, Any]) -> DenseEncoder:
    """Open an encoder, or return the one that this process has opened with the same options.

    A model that was saved anew into the same folder is opened again.
    """
    return open_cached(model, freeze(load_options), file_stamps(model))


@lru_cache(maxsize=2)
def open_cached(model: str | Path, options: FrozenOptions, stamps: FileStamps) -> DenseEncoder:
    """Open an encoder; ``stamps`` are only a part of the cache's key."""
    return load_dense(model, **thaw(options))
