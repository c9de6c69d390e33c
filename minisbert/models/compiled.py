"""Encoders and cross-encoders compiled ahead of time (``fast/aot.py``): what one calls, without parameters to train.

    encoder = SentenceEncoder.load("all-MiniLM-L6-v2", compiled=True)  # 30 seconds once, then from the cache folder
    encoder.encode(["A cat sits."])

A package belongs to one model, precision, version of torch and kind of CPU, and is refused by name with any other.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from filelock import FileLock
from torch import Tensor, nn

from minisbert.core import InputError
from minisbert.core.encoder import normalize as unit
from minisbert.core.tokenizer import Encoded
from minisbert.fast.aot import compile_package, load_package, read_about
from minisbert.fast.batching import ID_BYTES, Batch, packed_batches, same_text, unpack
from minisbert.models.encoding import TextEncoder
from minisbert.models.inputs import evaluating
from minisbert.models.layout import read_sentence_config
from minisbert.models.scoring import PairScorer
from minisbert.models.settings import read_settings
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.assets import home
from minisbert.system.console import say
from minisbert.system.devices import choose_precision, instruction_sets

if TYPE_CHECKING:
    from minisbert.models.pair_model import PairModel
    from minisbert.models.sentence_encoder import SentenceEncoder

GRAPH_FILES = ("config.json", "modules.json", "head.json", "*.safetensors")  # what a compiled model is made from
EXAMPLE = (3, 5, 4, 6, 7)  # lengths of texts in the example batch: its sizes differ from each other, 0 and 1


class Vectors(nn.Module):
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


class Scores(nn.Module):
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
        folder: Path,
        package: str | Path | bool,
        pooling: str | None = None,
        limit: int | None = None,
        precision: str = "float32",
    ):
        encoder_folder, config = read_sentence_config(folder)
        self.model, self.chosen, self.limit = folder, pooling, limit
        self.pooling_mode, self.normalize = pooling or config.pooling, config.normalize
        self.tokenizer = Tokenizer.load(encoder_folder, limit)
        self.settings = replace(read_settings(folder), include_prompt=config.include_prompt)
        self.truncated, self.precision = 0, precision
        wanted = expectation(folder, "SentenceEncoder", precision, self.pooling_mode)
        self.run, about = load_package(find_package(package, wanted, folder, pooling), wanted)
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

    def __init__(self, folder: Path, package: str | Path | bool, limit: int | None = None, precision: str = "float32"):
        wanted = expectation(folder, "PairModel", precision)
        self.run, about = load_package(find_package(package, wanted, folder), wanted)
        self.tokenizer, self.task = Tokenizer.load(folder, limit), about["task"]
        self.labels = tuple(filter(None, about["labels"].split("\n")))
        self.types = about["types"] == "True"
        self.truncated, self.precision = 0, precision

    def batch_outputs(self, encoded: Encoded, rows: list[int]) -> Tensor:
        ids, mask, types = self.batch(encoded, rows)
        mask = torch.ones_like(ids) if mask is None else mask.long()
        return self.run(ids, mask, torch.zeros_like(ids) if types is None else types)[0]


# ------------------------------------------------------------------------------------ making packages


def expectation(folder: Path, kind: str, precision: str, pooling: str | None = None) -> dict[str, str]:
    """What a package of this model must say about itself."""
    about = {"kind": kind, "precision": precision, "minisbert": code_hash(), "weights": graph_hash(folder)}
    return about | ({"pooling": pooling} if pooling else {})


@cache
def code_hash() -> str:
    """The start of the sha256 of the code that is compiled: a package of other code is another model."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for name in ("core/bert.py", "core/pooling.py", "core/heads.py", "models/poolings.py", "models/compiled.py"):
        digest.update((package / name).read_bytes())
    return digest.hexdigest()[:16]


def graph_hash(folder: Path) -> str:
    """sha256 of the files that a compiled model is made from: weights, sizes and modules, not the tokenizer's."""
    digest = hashlib.sha256()
    patterns = [part for name in GRAPH_FILES for part in (name, f"[0-9]_*/{name}")]
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        with open(path, "rb") as file:
            digest.update(f"{path.relative_to(folder)} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def cached(wanted: dict[str, str]) -> Path:
    """The place in the cache folder of a package that must say this about itself; torch and CPU are in its name."""
    parts = [*sorted(wanted.items()), torch.__version__, instruction_sets()]
    return home() / "compiled" / f"{wanted['kind']}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}.pt2"


def usable(package: Path) -> bool:
    """Is it there, and whole?"""
    with suppress(InputError):
        return bool(read_about(package))
    return False


def find_package(package: str | Path | bool, wanted: dict[str, str], folder: Path, pooling: str | None = None) -> Path:
    """The package at a path; for True the one in the cache folder, made if it is missing, for "auto" if it is there."""
    if not isinstance(package, bool) and package != "auto":
        return Path(package)
    found = cached(wanted)
    if usable(found):
        return found
    if package == "auto":
        raise InputError("no package in the cache folder fits: python -m minisbert.compile makes one")
    # in a process of its own: the compiler takes memory, and meets nothing of this process that could disturb it
    command = [sys.executable, "-m", "minisbert.compile", str(folder.resolve()), "--precision", wanted["precision"]]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    command += ["--pooling", pooling] if pooling else []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}) as process:
        for line in process.stderr:
            if line.startswith("error: "):
                raise InputError(line.removeprefix("error: ").strip())
            say(line.rstrip())
    if process.returncode:
        raise InputError(f"compiling {folder.name} ended with exit code {process.returncode}")
    return found


def compile_encoder(encoder: "SentenceEncoder", folder: Path, precision: str, path: Path | None = None) -> Path:
    """Compile an encoder that was loaded from ``folder``; without a path, to the cache folder. Returns the path."""
    if "pooler" in encoder.pooling.names and not encoder.settings.include_prompt:
        raise InputError("pooler pooling with include_prompt false cannot be compiled")
    wanted = expectation(folder, "SentenceEncoder", precision, encoder.pooling.mode)
    about = {"model": folder.name, "width": str(encoder.width), "hidden_size": str(encoder.hidden_size)}
    batch = next(packed_batches([bytes(ID_BYTES * length) for length in EXAMPLE], sum(EXAMPLE)))
    examples = [x.repeat(2, 1) for x in (batch.ids, batch.positions, batch.owner)] + [batch.places]
    return write_package(encoder, Vectors(encoder, precision), examples, wanted, about, path)


def compile_pair_model(model: "PairModel", folder: Path, precision: str, path: Path | None = None) -> Path:
    """Compile a cross-encoder that was loaded from ``folder``; without a path, to the cache folder."""
    if not model.joint:
        raise InputError("only cross-encoders (joint heads) compile; for another head compile its encoder")
    about = {"model": folder.name, "task": model.task, "labels": "\n".join(model.labels), "types": str(model.types)}
    ids = torch.ones(3, 5, dtype=torch.long)
    wanted = expectation(folder, "PairModel", precision)
    return write_package(model, Scores(model, precision), [ids, ids.clone(), 0 * ids], wanted, about, path)


def write_package(
    model: nn.Module,
    module: nn.Module,
    examples: list[Tensor],
    wanted: dict[str, str],
    about: dict[str, str],
    path: Path | None,
) -> Path:
    """Compile to ``path``, or to the cache folder, where a second process waits for the first one's."""
    choose_precision(wanted["precision"], torch.device("cpu"))  # bfloat16 only on a CPU that has it
    if path is not None:
        with evaluating(model):
            compile_package(module, examples, path, wanted | about)
        return path
    target = cached(wanted)
    lock = FileLock(f"{target}.lock")
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        held = lock.acquire()
    except OSError as error:
        advice = "python -m minisbert.compile --out FILE.pt2, or set MINISBERT_HOME"
        raise InputError(f"{target.parent} cannot be written: {advice}") from error
    with held:
        if not usable(target):
            say(f"compiling {about['model']} in {wanted['precision']} for this CPU, once, 20 to 60 seconds")
            with evaluating(model):
                compile_package(module, examples, target, wanted | about)
    return target
