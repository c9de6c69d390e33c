"""Open any model with the class that fits its folder: ``minisbert.load``.

    encoder = minisbert.load("all-MiniLM-L6-v2")
    encoder = minisbert.load("all-MiniLM-L6-v2", compiled=True)  # compiles for 30 seconds once

The file is not called ``load.py``: importing a module of that name would replace the function ``minisbert.load``.
"""

from pathlib import Path

import torch

from minisbert.compiled.runtime import CompiledEncoder, CompiledPairModel
from minisbert.core import InputError
from minisbert.folder.find import find_model
from minisbert.folder.model_folder import ModelFolder
from minisbert.folder.text_settings import MASKED_MODULE
from minisbert.models.multi_vector_encoder import MultiVectorEncoder
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.sparse_encoder import SparseEncoder
from minisbert.models.static_encoder import StaticEncoder
from minisbert.models.tokenizer import Tokenizer

Encoder = SentenceEncoder | StaticEncoder | CompiledEncoder
ENCODERS = {kind.__name__: kind for kind in (SentenceEncoder, SparseEncoder, MultiVectorEncoder, StaticEncoder)}


def load(
    model: str | Path,
    pooling: str | None = None,
    device: str | torch.device = "cpu",
    limit: int | None = None,
    *,
    compiled: bool | str | Path = False,
    dtype: str | None = None,
) -> Encoder | PairModel | CompiledPairModel:
    """A model in eval mode, of the class that fits its folder: an encoder, or a ``PairModel`` if it holds a head.

    ``model``, ``pooling``, ``device`` and ``limit`` as for ``SentenceEncoder.load``. ``compiled`` and ``dtype`` as
    for ``CompiledEncoder.load``: True for the package in the cache folder, or the path of one.
    Raises ``InputError`` for anything missing, damaged or not supported.
    """
    folder = ModelFolder(find_model(model))
    if not folder.holds_pair_model:
        return load_encoder(folder.path, pooling, device, limit, compiled=compiled, dtype=dtype)
    if pooling is not None:
        raise InputError(f"pooling {pooling}: {folder.path} holds a head for pairs, which chooses what it reads")
    if not compiled:
        return PairModel.load(folder.path, device, limit)
    check_cpu(device)
    return CompiledPairModel.load(folder.path, compiled, limit, dtype)


def load_encoder(
    model: str | Path,
    pooling: str | None = None,
    device: str | torch.device = "cpu",
    limit: int | None = None,
    *,
    compiled: bool | str | Path = False,
    dtype: str | None = None,
) -> Encoder:
    """``load``, but of a ``PairModel`` only its encoder."""
    path = find_model(model)
    if compiled:
        check_cpu(device)
        return CompiledEncoder.load(path, compiled, pooling, limit, dtype)
    if dtype is not None:
        raise InputError(f"dtype {dtype} is what a package is compiled for: give it to encode instead")
    return open_kind(path).load(path, pooling, device, limit)


def load_dense(model: str | Path | Encoder, device: str | torch.device = "cpu") -> Encoder:
    """An encoder by name, or as it is, for a library that takes one vector (D,) for each text.

    Raises ``InputError`` for one that gives sparse vectors, or a vector for each token.
    """
    encoder = load_encoder(model, device=device) if isinstance(model, str | Path) else model
    if encoder.search_options:
        name = type(encoder).__name__
        raise InputError(f"a {name} does not give one dense vector for each text: load a SentenceEncoder's model")
    return encoder


def check_cpu(device: str | torch.device) -> None:
    if str(device) != "cpu":
        raise InputError(f"a compiled model runs only on the CPU, not on {device}")


def open_kind(model: str | Path) -> type[SentenceEncoder] | type[StaticEncoder]:
    """The class of encoders that opens a model's folder."""
    return ENCODERS[ModelFolder(find_model(model)).model_class]


def load_tokenizer(model: str | Path, limit: int | None = None) -> Tokenizer:
    """The tokenizer of a model. A static model's depends on its table, so the table is read too."""
    folder = ModelFolder(find_model(model))
    if folder.model_class == "StaticEncoder":
        return StaticEncoder.from_folder(folder, limit=limit).tokenizer
    module = MASKED_MODULE if folder.model_class == "SparseEncoder" else None
    return Tokenizer.load(folder.encoder, limit, module)


def uncompiled(encoder: Encoder) -> Encoder:
    """The encoder itself, or of a compiled one the model that was compiled, loaded again from its folder."""
    if not isinstance(encoder, CompiledEncoder):
        return encoder
    return SentenceEncoder.load(encoder.folder, encoder.pooling_mode, limit=encoder.tokenizer.limit)
