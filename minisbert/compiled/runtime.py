"""Compiled encoders and cross-encoders: a package that computes, a folder for tokenizer and settings, no parameters.

encoder = CompiledEncoder.load("all-MiniLM-L6-v2")  # 30 seconds once, then from the cache folder
encoder.encode(["A cat sits."])
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Self

import torch
from filelock import FileLock
from torch import Tensor

from minisbert.compiled.package import PACKAGE, About, cache_path, identity, load_package, read_about
from minisbert.core import InputError, reading
from minisbert.folder.find import find_model
from minisbert.folder.model_folder import ModelFolder
from minisbert.models.batching import Batch
from minisbert.models.pair_scorer import PairScorer
from minisbert.models.text_encoder import TextEncoder
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.console import say


class CompiledEncoder(TextEncoder):
    """``encode`` and ``similarity`` of a compiled ``SentenceEncoder``."""

    dtype, device = torch.float32, torch.device("cpu")
    scales_itself = True

    def __init__(self, folder: ModelFolder, run: Callable, about: About, limit: int | None = None):
        self.folder, self.run, self.compiled_dtype = folder.path, run, about.dtype
        self.pooling_mode, self.width, self.hidden_size = about.pooling, about.width, about.hidden_size
        self.tokenizer, self.settings = Tokenizer.load(folder.encoder, limit), folder.settings
        self.normalize, self.most_tokens = folder.normalize, folder.config[1].positions

    @classmethod
    def load(
        cls,
        model: str | Path,
        package: str | Path | bool = True,
        *,
        pooling: str | None = None,
        dtype: str | None = None,
        max_seq_length: int | None = None,
        truncate_dim: int | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: str | None = None,
    ) -> Self:
        """The model ``model``, a name or a folder, as a package that was compiled from it.

        ``package`` is its path; True for the one in the cache folder, which is compiled first if it is missing; "auto"
        for that one only if it is there. ``pooling`` and ``dtype`` are those that it was compiled for; one at a
        path may have any dtype, unless ``dtype`` says which. The other options are those of ``SentenceEncoder.load``.
        A package is a program: load only those that you trust. Raises ``InputError`` for anything missing, damaged or
        made from another model.
        """
        folder = ModelFolder(find_model(model))
        if folder.model_class != "SentenceEncoder" or folder.holds_pair_model:
            kind = "PairModel" if folder.holds_pair_model else folder.model_class
            raise InputError(f"{folder.path} holds a {kind}: only a SentenceEncoder is compiled for encoding")
        encoder = cls(folder, *open_package(package, folder, dtype, pooling), max_seq_length)
        return encoder.configured(truncate_dim, prompts, default_prompt_name, similarity_fn_name)

    def computing(self, dtype: str | None) -> AbstractContextManager:
        if dtype not in (None, "auto", self.compiled_dtype):
            raise InputError(f"this encoder was compiled for dtype {self.compiled_dtype}, not {dtype}")
        return torch.inference_mode()

    def vectors(self, batch: Batch, skip: int = 0) -> Tensor:
        ids, positions, text_index, places = batch.inputs(self.device)
        return self.run(ids, positions, text_index, places[:, skip:].contiguous())[0]


class CompiledPairModel(PairScorer):
    """``scores`` of a compiled cross-encoder."""

    device, dtype, joint = torch.device("cpu"), torch.float32, True

    def __init__(self, folder: ModelFolder, run: Callable, about: About, limit: int | None = None):
        self.run, self.compiled_dtype, self.types = run, about.dtype, about.types
        self.tokenizer, self.task, self.labels = Tokenizer.load(folder, limit), about.task, tuple(about.labels)

    @classmethod
    def load(
        cls,
        model: str | Path,
        package: str | Path | bool = True,
        *,
        dtype: str | None = None,
        max_length: int | None = None,
    ) -> Self:
        """As ``CompiledEncoder.load``, of a ``PairModel`` with a joint head or a CrossEncoder."""
        folder = ModelFolder(find_model(model))
        if not folder.holds_pair_model:
            raise InputError(f"{folder.path} holds an encoder, but no head that was trained on pairs")
        return cls(folder, *open_package(package, folder, dtype), max_length)

    def __call__(self, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        mask = torch.ones_like(ids) if mask is None else mask.long()
        types = torch.zeros_like(ids) if types is None else types
        return self.run(ids, mask, types)[0]


def open_package(
    package: str | Path | bool, folder: ModelFolder, dtype: str | None, pooling: str | None = None
) -> tuple[Callable, About]:
    """Load the package at a path; for True the one in the cache folder, compiled first if it is missing."""
    expected = identity(folder, dtype or "float32", pooling)
    if not isinstance(package, bool) and package != "auto":
        if dtype is None:
            del expected["dtype"]
        return load_package(Path(package), expected)
    with suppress(InputError):
        return load_package(cache_path(expected), expected)
    if package == "auto":
        raise InputError("no package in the cache folder fits: minisbert compile makes one")
    return load_package(compile_to_cache(folder.path, expected), expected)


def compile_to_cache(folder: Path, expected: dict[str, str]) -> Path:
    """Compile a model to the cache folder, unless its package is there. A second process waits for the first one's.

    The compiler runs in a process of its own: it takes memory, and nothing in this process can disturb it there.
    """
    path = cache_path(expected)
    with reading(f"{path.parent} (set MINISBERT_HOME, or compile with --out FILE.pt2)"):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    arguments = [str(folder.resolve()), expected["dtype"], expected.get("pooling", ""), str(path)]
    paths = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
    with FileLock(f"{path}.lock"):
        with suppress(InputError):
            read_about(path)
            return path  # of the process that held the lock
        say(f"compiling {folder.name} in {expected['dtype']} for this CPU, once, 20 to 90 seconds")
        command = [sys.executable, "-m", "minisbert.compiled.graphs", *arguments]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": paths})
    if done.returncode:
        reason = done.stderr.rpartition("error: ")[2].strip()
        raise InputError(reason or f"compiling {folder.name} ended with exit code {done.returncode}")
    return path
