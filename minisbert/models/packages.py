"""Packages of compiled models: what they must say about themselves, the cache folder they are in, and making them."""

import hashlib
import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from filelock import FileLock
from torch import Tensor, nn

from minisbert.core import InputError
from minisbert.fast.aot import compile_package, read_about
from minisbert.models.inputs import evaluating
from minisbert.system.assets import home
from minisbert.system.console import say
from minisbert.system.devices import choose_precision, instruction_sets

GRAPH_FILES = ("config.json", "modules.json", "head.json", "*.safetensors")  # what a compiled model is made from


def expectation(folder: Path, kind: str, precision: str, pooling: str | None = None) -> dict[str, str]:
    """What a package of this model must say about itself."""
    about = {"kind": kind, "precision": precision, "minisbert": code_hash(), "weights": graph_hash(folder)}
    return about | ({"pooling": pooling} if pooling else {})


@cache
def code_hash() -> str:
    """The start of the sha256 of the code that is compiled: a package of other code is another model."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for name in ("bert", "encoder", "heads", "pooling"):
        digest.update((package / "core" / f"{name}.py").read_bytes())
    for name in ("fast/aot", "fast/batching", "models/poolings", "models/sentence_encoder", "models/compiled"):
        digest.update((package / f"{name}.py").read_bytes())
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


def find_package(
    package: str | Path | bool, wanted: dict[str, str], precision: str | None, folder: Path, pooling: str | None = None
) -> tuple[Path, dict[str, str]]:
    """The package at a path; for True the one in the cache folder, made if it is missing, for "auto" if it is there.

    And what it must say about itself: at a path, without a ``precision``, it may have any.
    """
    if not isinstance(package, bool) and package != "auto":
        return Path(package), wanted if precision else {k: v for k, v in wanted.items() if k != "precision"}
    found = cached(wanted)
    if usable(found):
        return found, wanted
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
    return found, wanted


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
