"""Encoders and cross-encoders compiled ahead of time (``compiled/package.py``), without parameters to train.

    encoder = SentenceEncoder.load("all-MiniLM-L6-v2", compiled=True)  # 30 seconds once, then from the cache folder
    encoder.encode(["A cat sits."])

A package belongs to one model, precision, version of torch and kind of CPU, and is refused by name with any other.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock
from torch import Tensor, nn

from minisbert.compiled.package import compile_package, load_package, read_about
from minisbert.core import InputError, reading
from minisbert.core.checks import check
from minisbert.core.encoder import normalize as unit
from minisbert.folder.model_folder import ModelFolder
from minisbert.models.batching import ID_BYTES, Batch, packed_batches
from minisbert.models.guards import evaluating
from minisbert.models.layout import choose_pooling
from minisbert.models.pair_scorer import PairScorer
from minisbert.models.text_encoder import TextEncoder
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.assets import home
from minisbert.system.console import say
from minisbert.system.devices import choose_precision, instruction_sets

if TYPE_CHECKING:
    from minisbert.models.pair_model import PairModel
    from minisbert.models.sentence_encoder import SentenceEncoder

EXAMPLE = (3, 5, 4, 6, 7)  # lengths of texts in the example batch: its sizes differ from each other, 0 and 1
GRAPH_FILES = ("config.json", "modules.json", "head.json", "*.safetensors")  # what a compiled model is made from
GRAPH_CODE = (
    *("core/bert", "core/encoder", "core/heads", "core/pooling"),
    *("models/batching", "models/pooling", "models/sentence_encoder", "compiled/package", "compiled/runtime"),
)


class VectorGraph(nn.Module):
    """What is compiled of an encoder: a packed batch to vectors (N, W), as the model scales them and before that."""

    def __init__(self, encoder: "SentenceEncoder", precision: str):
        super().__init__()
        self.encoder, self.low = encoder, precision == "bfloat16"

    def forward(self, ids: Tensor, positions: Tensor, owner: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """``Batch.inputs``: (R, T) three times and (N, S)."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            states = self.encoder.unpacked(ids, positions, owner, places)
        vectors = self.encoder.dense(self.encoder.pool(*states))  # (N, W)
        return unit(vectors) if self.encoder.normalize else vectors, vectors


class ScoreGraph(nn.Module):
    """What is compiled of a cross-encoder: joined pairs to its outputs, (B,) or (B, C)."""

    def __init__(self, model: "PairModel", precision: str):
        super().__init__()
        self.model, self.low = model, precision == "bfloat16"

    def forward(self, ids: Tensor, mask: Tensor, token_types: Tensor) -> Tensor:
        """ids, mask (1 for real tokens) and token types, (B, T) each."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            hidden = self.model.encoder.bert(ids, mask, token_types if self.model.types else None).float()
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
        self.run, about = open_package(package, wanted, precision, folder.path, pooling)
        self.precision, self.width, self.hidden_size = about["precision"], about["width"], about["hidden_size"]

    def eager(self) -> "SentenceEncoder":
        """The model that was compiled, with its weights."""
        from minisbert.models.sentence_encoder import SentenceEncoder  # it imports this file

        return SentenceEncoder.load(self.model, self.chosen, limit=self.limit)

    @contextmanager
    def computing(self, precision: str | None) -> Iterator[None]:
        with reading("a compiled encoder has one precision"):
            check(f"precision {self.precision}|auto", precision or "auto")
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
        self.run, about = open_package(package, wanted, precision, folder.path)
        self.tokenizer, self.task, self.labels = Tokenizer.load(folder, limit), about["task"], tuple(about["labels"])
        self.precision, self.types = about["precision"], about["types"]

    def __call__(self, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        mask = torch.ones_like(ids) if mask is None else mask.long()
        return self.run(ids, mask, torch.zeros_like(ids) if types is None else types)[0]


def open_package(
    package: str | Path | bool, wanted: dict[str, str], precision: str | None, folder: Path, pooling: str | None = None
) -> tuple[Callable, dict[str, Any]]:
    """The package at a path; for True the one in the cache folder, compiled if it is missing; for "auto" if it exists.

    ``wanted`` is what it must say about itself; one at a path may have any precision, unless ``precision`` is given.
    """
    if not isinstance(package, bool) and package != "auto":
        return load_package(Path(package), {k: v for k, v in wanted.items() if precision or k != "precision"})
    with suppress(InputError):
        return load_package(cached(wanted), wanted)
    if package == "auto":
        raise InputError("no package in the cache folder fits: minisbert compile makes one")
    # in another process: the compiler takes memory, and nothing in this process can disturb it there
    command = [sys.executable, "-m", "minisbert", "compile", str(folder.resolve()), "--precision", wanted["precision"]]
    command += ["--pooling", pooling] if pooling else []
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    reason = ""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}) as process:
        for line in map(str.rstrip, process.stderr):
            if line.startswith("error: "):
                reason = line.removeprefix("error: ")
            else:
                say(line)
    if process.returncode:
        raise InputError(reason or f"compiling {folder.name} ended with exit code {process.returncode}")
    return load_package(cached(wanted), wanted)


def cached(wanted: dict[str, str]) -> Path:
    """The place in the cache folder of a package that must say this about itself; torch and CPU are in its name."""
    parts = [*sorted(wanted.items()), torch.__version__, instruction_sets()]
    return home() / "compiled" / f"{wanted['kind']}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}.pt2"


def expectation(folder: Path, kind: str, precision: str, pooling: str | None = None) -> dict[str, str]:
    """What a package of this model must say about itself; its weights are all files that the graph is made from."""
    digest = hashlib.sha256()
    patterns = [part for name in GRAPH_FILES for part in (name, f"[0-9]_*/{name}")]
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        with open(path, "rb") as file:
            digest.update(f"{path.relative_to(folder)} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    about = {"kind": kind, "precision": precision, "minisbert": code_hash(), "weights": digest.hexdigest()}
    return about | ({"pooling": pooling} if pooling else {})


@cache
def code_hash() -> str:
    """The start of the sha256 of the code that is compiled: a package of other code is another model."""
    code = b"".join((Path(__file__).parents[1] / f"{name}.py").read_bytes() for name in GRAPH_CODE)
    return hashlib.sha256(code).hexdigest()[:16]


# ------------------------------------------------------------------------------------ making packages


def compile_encoder(encoder: "SentenceEncoder", folder: Path, precision: str, path: Path | None = None) -> Path:
    """Compile an encoder that was loaded from ``folder``; without a path, to the cache folder. Returns the path."""
    if "pooler" in encoder.pooling.names and not encoder.settings.include_prompt:
        raise InputError("pooler pooling with include_prompt false cannot be compiled")
    wanted = expectation(folder, "SentenceEncoder", precision, encoder.pooling.mode)
    about = {"model": folder.name, "width": encoder.width, "hidden_size": encoder.hidden_size}
    batch = next(packed_batches([bytes(ID_BYTES * length) for length in EXAMPLE], sum(EXAMPLE)))
    examples = [x.repeat(2, 1) for x in (batch.ids, batch.positions, batch.owner)] + [batch.places]
    return write_package(VectorGraph(encoder, precision), examples, wanted, about, path)


def compile_pair_model(model: "PairModel", folder: Path, precision: str, path: Path | None = None) -> Path:
    """Compile a cross-encoder that was loaded from ``folder``; without a path, to the cache folder."""
    if not model.joint:
        raise InputError("only cross-encoders (joint heads) compile; for another head compile its encoder")
    wanted = expectation(folder, "PairModel", precision)
    about = {"model": folder.name, "task": model.task, "labels": model.labels, "types": model.types}
    ids = torch.ones(3, 5, dtype=torch.long)
    return write_package(ScoreGraph(model, precision), [ids, ids.clone(), 0 * ids], wanted, about, path)


def write_package(
    graph: nn.Module, examples: list[Tensor], wanted: dict[str, str], about: dict[str, Any], path: Path | None
) -> Path:
    """Compile to ``path``, or to the cache folder, where a second process waits for the first one's."""
    choose_precision(wanted["precision"], torch.device("cpu"))  # bfloat16 only on a CPU that has it
    target, lock = path or cached(wanted), nullcontext()
    if path is None:
        with reading(f"{target.parent} (set MINISBERT_HOME, or compile with --out FILE.pt2)"):
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = FileLock(f"{target}.lock").acquire()
    with lock, evaluating(graph):
        if path is None:
            with suppress(InputError):
                read_about(target)
                return target  # of the process that held the lock
            say(f"compiling {about['model']} in {wanted['precision']} for this CPU, once, 20 to 60 seconds")
        compile_package(graph, examples, target, wanted | about)
    return target
