"""Encoders and cross-encoders compiled ahead of time (``fast/aot.py``): what one calls, without parameters to train.

    encoder = SentenceEncoder.load("all-MiniLM-L6-v2", compiled=True)  # 30 seconds once, then from the cache folder
    encoder.encode(["A cat sits."])

A package belongs to one model, precision, version of torch and kind of CPU, and is refused by name with any other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from minisbert.core import InputError
from minisbert.core.encoder import normalize as unit
from minisbert.core.tokenizer import Encoded
from minisbert.fast.aot import load_package
from minisbert.fast.batching import ID_BYTES, Batch, packed_batches, same_text, unpack
from minisbert.models.encoding import TextEncoder
from minisbert.models.folders import ModelFolder
from minisbert.models.layout import choose_pooling
from minisbert.models.packages import expectation, find_package, write_package
from minisbert.models.scoring import PairScorer
from minisbert.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from minisbert.models.pair_model import PairModel
    from minisbert.models.sentence_encoder import SentenceEncoder

EXAMPLE = (3, 5, 4, 6, 7)  # lengths of texts in the example batch: its sizes differ from each other, 0 and 1


class VectorGraph(nn.Module):
    """What is compiled of an encoder: a packed batch to vectors (N, W), as the model scales them and before that."""

    def __init__(self, encoder: "SentenceEncoder", precision: str):
        super().__init__()
        self.encoder, self.low = encoder, precision == "bfloat16"

    def forward(self, ids: Tensor, positions: Tensor, owner: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """``Batch.inputs``: (R, T) three times and (N, S)."""
        trace: dict[str, Tensor] | None = {} if "first-last" in self.encoder.pooling.names else None
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            hidden = self.encoder.bert(ids, same_text(owner), None, trace, positions).float()  # (R, T, D)
        first = unpack(trace["layers.0"].float(), places)[0] if trace else None
        vectors = self.encoder.dense(self.encoder.pool(*unpack(hidden, places), first))  # (N, W)
        return unit(vectors) if self.encoder.normalize else vectors, vectors


class ScoreGraph(nn.Module):
    """What is compiled of a cross-encoder: joined pairs to its outputs, (B,) or (B, C)."""

    def __init__(self, model: "PairModel", precision: str):
        super().__init__()
        self.model, self.low = model, precision == "bfloat16"

    def forward(self, ids: Tensor, mask: Tensor, token_types: Tensor) -> Tensor:
        """ids, mask (1 for real tokens) and token types, (B, T) each."""
        bert = self.model.encoder.bert
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            hidden = bert(ids, mask, token_types if bert.config.type_vocab_size > 1 else None).float()
        outputs = self.model.head(hidden)  # (B, C)
        return outputs if self.model.task == "classes" else outputs.squeeze(-1)


class CompiledEncoder(TextEncoder):
    """``encode`` and ``similarity`` of a compiled package; tokenizer and settings are the folder's."""

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(
        self,
        folder: ModelFolder,
        package: str | Path | bool,
        pooling: str | None = None,
        limit: int | None = None,
        precision: str | None = None,
    ):
        self.model, self.chosen, self.limit = folder.path, pooling, limit
        self.pooling_mode, self.normalize = choose_pooling(folder, pooling), folder.normalize
        self.tokenizer, self.settings = Tokenizer.load(folder.encoder, limit), folder.settings
        wanted = expectation(folder.path, "SentenceEncoder", precision or "float32", self.pooling_mode)
        self.run, about = load_package(*find_package(package, wanted, precision, folder.path, pooling))
        self.precision = about["precision"]
        self.width, self.hidden_size = int(about["width"]), int(about["hidden_size"])

    def eager(self) -> "SentenceEncoder":
        """The model that was compiled, with its weights."""
        from minisbert.models.sentence_encoder import SentenceEncoder  # it imports this file

        return SentenceEncoder.load(self.model, self.chosen, limit=self.limit)

    @contextmanager
    def computing(self, precision: str | None) -> Iterator[None]:
        if precision not in (None, "auto", self.precision):
            raise InputError(f"precision {precision}: this encoder was compiled for {self.precision}")
        with torch.inference_mode():
            yield

    def vectors(self, batch: Batch, skip: int = 0) -> Tensor:
        ids, positions, owner, places = batch.inputs(self.device)
        return self.run(ids, positions, owner, places[:, skip:].contiguous())[1]


class CompiledPairModel(PairScorer):
    """``scores`` of a compiled cross-encoder."""

    device, dtype, joint = torch.device("cpu"), torch.float32, True

    def __init__(
        self, folder: ModelFolder, package: str | Path | bool, limit: int | None = None, precision: str | None = None
    ):
        wanted = expectation(folder.path, "PairModel", precision or "float32")
        self.run, about = load_package(*find_package(package, wanted, precision, folder.path))
        self.tokenizer, self.task = Tokenizer.load(folder, limit), about["task"]
        self.labels = tuple(filter(None, about["labels"].split("\n")))
        self.types = about["types"] == "True"
        self.precision = about["precision"]

    def batch_outputs(self, encoded: Encoded, rows: list[int]) -> Tensor:
        ids, mask, types = self.batch(encoded, rows)
        mask = torch.ones_like(ids) if mask is None else mask.long()
        return self.run(ids, mask, torch.zeros_like(ids) if types is None else types)[0]


# ------------------------------------------------------------------------------------ making packages


def compile_encoder(encoder: "SentenceEncoder", folder: Path, precision: str, path: Path | None = None) -> Path:
    """Compile an encoder that was loaded from ``folder``; without a path, to the cache folder. Returns the path."""
    if "pooler" in encoder.pooling.names and not encoder.settings.include_prompt:
        raise InputError("pooler pooling with include_prompt false cannot be compiled")
    wanted = expectation(folder, "SentenceEncoder", precision, encoder.pooling.mode)
    about = {"model": folder.name, "width": str(encoder.width), "hidden_size": str(encoder.hidden_size)}
    batch = next(packed_batches([bytes(ID_BYTES * length) for length in EXAMPLE], sum(EXAMPLE)))
    examples = [x.repeat(2, 1) for x in (batch.ids, batch.positions, batch.owner)] + [batch.places]
    return write_package(encoder, VectorGraph(encoder, precision), examples, wanted, about, path)


def compile_pair_model(model: "PairModel", folder: Path, precision: str, path: Path | None = None) -> Path:
    """Compile a cross-encoder that was loaded from ``folder``; without a path, to the cache folder."""
    if not model.joint:
        raise InputError("only cross-encoders (joint heads) compile; for another head compile its encoder")
    about = {"model": folder.name, "task": model.task, "labels": "\n".join(model.labels), "types": str(model.types)}
    ids = torch.ones(3, 5, dtype=torch.long)
    wanted = expectation(folder, "PairModel", precision)
    return write_package(model, ScoreGraph(model, precision), [ids, ids.clone(), 0 * ids], wanted, about, path)
