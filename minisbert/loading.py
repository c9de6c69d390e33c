"""Open any model with the class that fits its folder: ``minisbert.load``.

    encoder = minisbert.load("all-MiniLM-L6-v2")
    encoder = minisbert.load("all-MiniLM-L6-v2", compiled=True)  # compiles for 30 seconds once

The folder is found and read once, and what was read is handed to the class. The file is not called
``load``: importing a module of that name would replace the function ``minisbert.load``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from minisbert.backends.cuda import CudaEncoder, choose_gpu_dtype, has_graph
from minisbert.backends.package import CompiledEncoder, CompiledPairModel
from minisbert.checkpoints.layout import ModelFolder, find_model, read_folder
from minisbert.checkpoints.model_tokenizer import ModelTokenizer
from minisbert.checkpoints.tokenizer_files import read_tokenizer
from minisbert.core import InputError, one_line
from minisbert.models.encode_types import LoadDtype
from minisbert.models.multi_vector_encoder import MultiVectorEncoder
from minisbert.models.pair_model import TASKS_WITH_LABELS, PairModel, PairScorer
from minisbert.models.properties import SimilarityName
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.sparse_encoder import SparseEncoder
from minisbert.models.static_encoder import StaticEncoder
from minisbert.models.stored_encoder import StoredEncoder
from minisbert.models.text_encoder import DenseEncoder, TextEncoder
from minisbert.replacements import LOAD, check_keywords, explained, keywords_of
from minisbert.system.console import warn
from minisbert.system.devices import choose_device, move_to

# The classes by their names in ``ModelFolder.model_class``.
ENCODER_CLASSES: dict[str, type[StoredEncoder]] = {
    "SentenceEncoder": SentenceEncoder,
    "SparseEncoder": SparseEncoder,
    "MultiVectorEncoder": MultiVectorEncoder,
    "StaticEncoder": StaticEncoder,
}


@explained(LOAD)
def load(
    model: str | Path,
    *,
    compiled: bool | str | Path = False,
    dtype: LoadDtype | None = None,
    pooling: str | None = None,
    device: str | torch.device | None = "auto",
    max_seq_length: int | None = None,
    truncate_dim: int | None = None,
    prompts: Mapping[str, str] | None = None,
    default_prompt_name: str | None = None,
    similarity_fn_name: SimilarityName | None = None,
) -> Any:
    """Open a model in eval mode with the class that fits its folder.

    Returns an encoder, or a ``PairModel`` if the folder holds a head for pairs. The type is
    ``Any``: where types matter, call ``load`` of the class. An argument that is None leaves the
    folder's setting as it is. Raises ``InputError`` for anything missing, damaged or not supported,
    and for an argument that the model does not have.

    model                a name that ``minisbert assets list`` shows, "owner/name" on the Hub, with
                         "@revision" if you like, or a folder; downloaded if it is missing
    compiled             True for the model as native code, which is compiled once into the cache
                         folder; "auto" for that only if it is there; or the path of a compiled
                         model. On a GPU, True and "auto" use CUDA graphs if the model is a BERT
    dtype                of the compiled model's products: "float32", "bfloat16", "int8" or "auto",
                         on a GPU "float16" too; other models take ``dtype`` in ``encode``
    pooling              "mean", "cls", "max" or another of docs/models.md, in place of the folder's
    device               "auto" or None (CUDA, else Apple's GPU, else the CPU), "cpu", "cuda",
                         "cuda:1", "mps" or a ``torch.device``; a compiled model runs on the CPU
    max_seq_length       cut texts at this many tokens, special ones included
    truncate_dim         keep the first dimensions of each vector (Matryoshka embeddings)
    prompts              texts by name, such as {"query": "query: "}, added to the folder's;
                         ``encode_query`` uses "query", ``encode_document`` "document" or "passage"
    default_prompt_name  the prompt of ``encode`` if a call names none
    similarity_fn_name   what ``similarity`` and every search compute: "cosine", "dot", "euclidean"
                         or "manhattan"
    """
    folder = read_folder(find_model(model))
    encoder_options: dict[str, Any] = {
        "pooling": pooling,
        "truncate_dim": truncate_dim,
        "prompts": prompts,
        "default_prompt_name": default_prompt_name,
        "similarity_fn_name": similarity_fn_name,
    }
    if folder.holds_pair_model:
        for name, value in encoder_options.items():
            if value is not None:
                raise InputError(
                    f"{name} {one_line(value)}: {folder.path} holds a head for pairs, which has "
                    f"no {name}"
                )
        return open_pair_model(
            folder, compiled=compiled, dtype=dtype, device=device, max_length=max_seq_length
        )
    return open_encoder(
        folder,
        compiled=compiled,
        dtype=dtype,
        device=device,
        max_seq_length=max_seq_length,
        **encoder_options,
    )


def open_pair_model(
    folder: ModelFolder,
    *,
    compiled: bool | str | Path,
    dtype: str | None,
    device: str | torch.device | None,
    max_length: int | None,
) -> PairModel | CompiledPairModel:
    """Open the head for pairs in a folder that has been read, with options of ``load``."""
    if compiled == "auto" and choose_device(device).type == "cuda":
        compiled = False  # a package would compute on the CPU
    check_compiled(compiled, dtype, device)
    if compiled:
        return CompiledPairModel.from_package(folder, compiled, dtype=dtype, max_length=max_length)
    return PairModel.load_folder(folder, device=device, max_length=max_length)


def load_encoder(model: str | Path, **options: Any) -> TextEncoder:
    """Open a model as ``load`` does, with its options, but of a ``PairModel`` only the encoder."""
    check_keywords("load", options, keywords_of(load), LOAD)
    return open_encoder(read_folder(find_model(model)), **options)


def open_encoder(
    folder: ModelFolder,
    *,
    compiled: bool | str | Path = False,
    dtype: str | None = None,
    device: str | torch.device | None = "auto",
    **options: Any,
) -> TextEncoder:
    """Open the encoder in a folder that has been read. ``options`` are others of ``load``."""
    encoder_class = ENCODER_CLASSES[folder.model_class]

    # A package computes on the CPU; a GPU has graphs instead.
    if compiled in (True, "auto") and choose_device(device).type == "cuda":
        if has_graph(folder):
            gpu_dtype = choose_gpu_dtype(dtype, choose_device(device))
            encoder = SentenceEncoder.load_folder(folder, device=device, **options)
            return CudaEncoder(encoder, folder.path, gpu_dtype)
        if dtype is not None:
            raise InputError(
                f"dtype {one_line(dtype)} is for compiled models, and {folder.path} is no BERT or "
                f"relative of it: only those are compiled for a GPU; pass dtype to encode"
            )
        warn(
            f"not compiled: {folder.path} is no BERT or relative of it, and only those are "
            f"compiled for a GPU"
        )
        return encoder_class.load_folder(folder, device=device, **options)

    check_compiled(compiled, dtype, device)
    if compiled:
        return CompiledEncoder.from_package(folder, compiled, dtype=dtype, **options)
    return encoder_class.load_folder(folder, device=device, **options)


def check_compiled(
    compiled: bool | str | Path, dtype: str | None, device: str | torch.device | None
) -> None:
    """Raise ``InputError`` for an option that does not go with ``compiled``.

    A model that is not compiled has no ``dtype``, and a compiled one no ``device`` but the CPU.
    """
    if dtype is not None and not compiled:
        raise InputError(
            f"dtype {one_line(dtype)} is for compiled models: add compiled=True, or pass it to "
            f"encode"
        )
    if compiled and device is not None and str(device) not in ("auto", "cpu"):
        raise InputError(f"a compiled model runs only on the CPU, not on {device}")


def load_dense(model: str | Path | TextEncoder, **options: Any) -> DenseEncoder:
    """Open an encoder by name, or return it as it is, for a library that takes dense vectors.

    Such a library takes one vector (D,) for each text. ``options`` are those of ``load``, for a
    name. Raises ``InputError`` for an encoder that gives sparse vectors, or a vector for each
    token.
    """
    if isinstance(model, str | Path):
        model = load_encoder(model, **options)
    if not isinstance(model, DenseEncoder):
        name = type(model).__name__
        raise InputError(
            f"a {name} does not give one dense vector for each text: load a SentenceEncoder's model"
        )
    return model


def load_ranker(model: str | Path | PairScorer, **options: Any) -> PairScorer:
    """Open a cross-encoder by name, or return it as it is, for a library that sorts documents.

    ``options`` are those of ``load``, for a name. Raises ``InputError`` for an encoder, and for a
    model that gives classes in place of a score for a query and a document.
    """
    if isinstance(model, str | Path):
        model = load(model, **options)
    if not isinstance(model, PairScorer) or model.task in TASKS_WITH_LABELS:
        name = type(model).__name__
        raise InputError(f"a {name} has no score for a query and a document: load a cross-encoder")
    return model


def load_tokenizer(model: str | Path, limit: int | None = None) -> ModelTokenizer:
    """Open the tokenizer of a model.

    A static model's tokenizer must fit its table of vectors, so the table is read too.
    """
    folder = read_folder(find_model(model))
    if folder.model_class == "StaticEncoder":
        return StaticEncoder.from_folder(folder, limit=limit).tokenizer
    return read_tokenizer(folder.encoder, limit)


def uncompiled(encoder: TextEncoder) -> TextEncoder:
    """Return the encoder itself; of a compiled one, load the model that it was made from."""
    if not isinstance(encoder, CompiledEncoder | CudaEncoder):
        return encoder
    folder = read_folder(encoder.folder)
    original = SentenceEncoder.from_folder(folder, encoder.pooling_mode, encoder.max_seq_length)
    return move_to(original, original.bert, encoder.device)
