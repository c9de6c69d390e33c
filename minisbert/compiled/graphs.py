"""What is compiled of a model, and compiling it: ``python -m minisbert.compiled.graphs FOLDER DTYPE POOLING OUT``.

A graph is the model's own forward pass without Python around it. torch exports it with example inputs.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from minisbert.compiled.attention import attend_by_length
from minisbert.compiled.int8 import package_dtype, quantize, replace_linear, stored
from minisbert.compiled.package import compile_package, identity
from minisbert.core import InputError
from minisbert.core.bert import Bert
from minisbert.core.encoder import normalize
from minisbert.folder.model_folder import ModelFolder
from minisbert.models.batching import ID_BYTES, packed_batches, same_text
from minisbert.models.guards import evaluating
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import run_command
from minisbert.system.devices import bfloat16_hardware
from minisbert.system.torch_internals import onednn_gain

EXAMPLE = (3, 5, 4, 6, 7)  # lengths of texts in the example batch: its sizes differ from each other, 0 and 1


class TransposedLinear(nn.Module):
    """``nn.Linear`` for MKL: the weight as it multiplies few rows fastest, the bias added by the loop that follows."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().mT.contiguous())  # (D, C)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        x = x @ self.weight  # (..., D) -> (..., C)
        if self.bias is not None:
            x = x + self.bias
        return x


class BFloat16Linear(nn.Module):
    """``nn.Linear`` in bfloat16."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.linear = linear.bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.bfloat16())


class VectorGraph(nn.Module):
    """An encoder's graph: a packed batch to vectors (N, W), scaled to length 1 if the model scales its vectors."""

    def __init__(self, encoder: SentenceEncoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: Tensor, positions: Tensor, text_index: Tensor, places: Tensor) -> Tensor:
        """``Batch.inputs``: (R, T) three times and (N, S)."""
        hidden, mask, first = self.encoder.unpacked(ids, positions, same_text(text_index), places)
        vectors = self.encoder.dense(self.encoder.pool(stored(hidden), mask, first))
        if self.encoder.normalize:
            vectors = normalize(vectors)
        return vectors


class ScoreGraph(nn.Module):
    """A cross-encoder's graph: joined pairs to its outputs, (B,) or (B, C)."""

    def __init__(self, model: PairModel):
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, token_types: Tensor) -> Tensor:
        """ids, mask (1 for real tokens) and token types, (B, T) each."""
        types = token_types if self.model.types else None
        hidden = self.model.encoder.bert(ids, mask, types).float()  # (B, T, D)
        return self.model.squeezed(self.model.head(hidden))


def compile_model(folder: Path, dtype: str, pooling: str | None, path: Path) -> None:
    """Compile the encoder or the cross-encoder in a folder to the package ``path``."""
    package_dtype(dtype)  # raises for what the CPU has no hardware for
    if ModelFolder(folder).holds_pair_model:
        compile_pair_model(PairModel.load(folder, device="cpu"), folder, dtype, path)
    else:
        compile_encoder(SentenceEncoder.load(folder, pooling=pooling, device="cpu"), folder, dtype, path)


def by_blas(dtype: str) -> bool:
    """Whether MKL is to multiply in a package, not oneDNN: in float32, on a CPU on which it is the faster one."""
    return dtype == "float32" and torch.backends.mkl.is_available() and onednn_gain() < 1


def prepare(bert: Bert, dtype: str) -> None:
    """Replace in place the parts of an encoder that a package of this dtype computes in another way."""
    low = dtype != "float32" and bfloat16_hardware(torch.device("cpu"))[0]
    by_length = low and attend_by_length(bert)
    if dtype == "int8":
        quantize(bert)
    elif by_length:  # not autocast: torch cannot export a choice within a choice under it
        replace_linear(bert, BFloat16Linear)
    elif dtype == "bfloat16":
        bert.forward = torch.autocast("cpu", torch.bfloat16)(bert.forward)  # type: ignore[method-assign]
    elif by_blas(dtype):
        replace_linear(bert, TransposedLinear)


def compile_encoder(encoder: SentenceEncoder, folder: Path, dtype: str, path: Path) -> None:
    """Compile an encoder that was loaded from ``folder``."""
    if "pooler" in encoder.pooling.names and not encoder.settings.include_prompt:
        raise InputError("pooler pooling with include_prompt false cannot be compiled")
    about = identity(ModelFolder(folder), dtype, encoder.pooling.mode)
    about |= {"model": folder.name, "width": encoder.width, "hidden_size": encoder.hidden_size}
    batch = next(packed_batches([bytes(ID_BYTES * length) for length in EXAMPLE], sum(EXAMPLE)))
    rows = [x.repeat(2, 1) for x in (batch.ids, batch.positions, batch.text_index)]  # (2, T) each
    prepare(encoder.bert, dtype)
    graph = VectorGraph(encoder)
    with evaluating(graph):
        compile_package(graph, [*rows, batch.places], path, about, prepack=not by_blas(dtype))


def compile_pair_model(model: PairModel, folder: Path, dtype: str, path: Path) -> None:
    """Compile a cross-encoder that was loaded from ``folder``."""
    if not model.joint:
        raise InputError("only cross-encoders (joint heads) compile; for another head compile its encoder")
    about = identity(ModelFolder(folder), dtype)
    about |= {"model": folder.name, "task": model.task, "labels": model.labels, "types": model.types}
    ids = torch.ones(3, 5, dtype=torch.long)
    prepare(model.encoder.bert, dtype)
    graph = ScoreGraph(model)
    with evaluating(graph):
        compile_package(graph, [ids, ids.clone(), 0 * ids], path, about, prepack=not by_blas(dtype))


def main() -> None:
    folder, dtype, pooling, path = sys.argv[1:]
    compile_model(Path(folder), dtype, pooling or None, Path(path))


if __name__ == "__main__":
    run_command(main)
