"""Compiled packages: a module exported by ``torch.export`` and compiled by AOTInductor to one ``.pt2`` file.

PyTorch's compiler fuses the operations between two matrix products, and lays the weights out for the CPU once. The file
holds native code, weights included, and loading it runs that code: load only files that you, or somebody you trust,
compiled. A package belongs to one model, dtype, version of torch and kind of CPU; ``About`` says which.
"""

import hashlib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minisbert.core import InputError, one_line, reading
from minisbert.folder.model_folder import ModelFolder
from minisbert.folder.settings import parse_settings
from minisbert.models.pooling import choose_pooling
from minisbert.system.assets import file_hash, home
from minisbert.system.console import check_usage
from minisbert.system.devices import instruction_sets
from minisbert.system.files import atomic_file
from minisbert.system.torch_internals import package_runner

OLDEST = "2.9"  # the oldest torch known to compile our models; 2.6 fails, 2.7 and 2.8 are untested
AGAIN = "compile the model again: minisbert compile"
COMPILERS = ("g++", "clang++", "cl" if sys.platform == "win32" else "c++")
ADVICE = "Debian and Ubuntu: apt install g++; macOS: xcode-select --install; Windows: Visual Studio's build tools"
# weights are constants, query, key and value one product, and the number of threads is that of the process that runs it
INDUCTOR = {"freezing": True, "cpp.enable_concat_linear": True, "cpp.dynamic_threads": True}
CACHE = "TORCHINDUCTOR_CACHE_DIR"
GRAPH_FILES = ("config.json", "modules.json", "head.json", "*.safetensors*")  # of each module: what makes its graph
IMPORT = r"^\s*from (?:(\.)|(?=minisbert\b))([\w.]*) import (\([^)]*\)|.*)"  # of our own files
PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class About:
    """What a package says about itself: first what ``identity`` gives of its model."""

    kind: str = ""  # SentenceEncoder or PairModel
    dtype: str = ""
    weights: str = ""
    minisbert: str = ""
    pooling: str = ""
    model: str = "another model"  # the folder's name
    torch: str = ""
    cpu: list[str] = field(default_factory=list)
    width: int = 0  # of an encoder: columns of a vector, and of a token's hidden state
    hidden_size: int = 0
    task: str = ""  # of a PairModel, with ``labels`` and ``types``
    labels: list[str] = field(default_factory=list)
    types: bool = False


def identity(folder: ModelFolder, dtype: str, pooling: str | None = None) -> dict[str, str]:
    """What tells the package of this model from all others: hashes of the files and the code that its graph is made of.

    ``kind`` is PairModel for a folder with a head for pairs, which has no ``pooling``.
    """
    digest, paths = hashlib.sha256(), set()
    for _, place in [("", "."), *folder.modules]:
        for name in GRAPH_FILES:
            paths.update((folder.path / place).glob(name))
    for path in sorted(paths):
        digest.update(f"{path.relative_to(folder.path)} {file_hash(path)}\n".encode())
    about = {"dtype": dtype, "weights": digest.hexdigest(), "minisbert": code_hash()}
    if not folder.holds_pair_model:
        return about | {"kind": "SentenceEncoder", "pooling": choose_pooling(folder, pooling)}
    if pooling:
        raise InputError(f"pooling {pooling}: {folder.path} holds a head for pairs, which chooses what it reads")
    return about | {"kind": "PairModel"}


def cache_path(expected: dict[str, str]) -> Path:
    """The place of a package in the cache folder, for this version of torch and this CPU."""
    parts = [*sorted(expected.items()), torch.__version__, instruction_sets()]
    return home() / "compiled" / f"{expected['kind']}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}.pt2"


@cache
def code_hash() -> str:
    """sha256 of all code of this package that a graph imports, directly or through other files."""
    sources: dict[Path, str] = {}
    pending = [PACKAGE / "compiled" / "graphs.py"]
    while pending:
        path = pending.pop()
        if path in sources or not path.is_file():
            continue
        sources[path] = path.read_text(encoding="utf-8")
        for dots, module, names in re.findall(IMPORT, sources[path], re.MULTILINE):
            home = path.parent if dots else PACKAGE.parent
            target = home / module.replace(".", "/")
            pending += [target.with_suffix(".py"), target / "__init__.py"]
            pending += [target / f"{name}.py" for name in re.findall(r"\w+", names)]
    return hashlib.sha256("".join(sources[path] for path in sorted(sources)).encode()).hexdigest()


def compile_package(
    module: nn.Module, examples: Sequence[Tensor], path: Path, about: dict[str, Any], prepack: bool = True
) -> None:
    """Compile ``module`` for inputs like ``examples`` with any sizes, and write it to ``path`` atomically.

    The sizes of the examples, (n, m) each, must differ from 0 and 1, which would be compiled as constants. The file
    keeps ``about``, with torch's version and the CPU. ``prepack`` lets oneDNN multiply, with weights laid out for it;
    without, MKL does in float32. Only the first call of a process can choose. Takes 20 to 90 seconds. Raises
    ``InputError`` without a C++ compiler or torch 2.9, or if it fails.
    """
    lacking = not any(map(shutil.which, filter(None, [os.environ.get("CXX"), *COMPILERS])))
    check_usage(
        (torch.__version__ < OLDEST, f"compiling needs torch {OLDEST} or newer, this is {torch.__version__}"),
        (lacking, f"compiling needs a C++ compiler, and none was found ({ADVICE}); loading a package needs none"),
    )
    about = about | {"torch": torch.__version__, "cpu": instruction_sets()}
    metadata = {"minisbert": json.dumps(about)}
    settings = INDUCTOR | {"cpp.weight_prepack": prepack, "aot_inductor.metadata": metadata}
    auto = torch.export.Dim.AUTO
    with atomic_file(path) as partial, compiler_cache() as folder:
        try:
            exported = torch.export.export(module, tuple(examples), dynamic_shapes=[{0: auto, 1: auto}] * len(examples))
            made = torch._inductor.aoti_compile_and_package(
                exported,
                package_path=str(folder / "package.pt2"),
                inductor_configs=settings,
            )
        except (RuntimeError, OSError) as error:
            lines = [line for line in str(error).splitlines() if "error" in line.lower()]
            reason = one_line(lines[0].strip()) if lines else type(error).__name__
            raise InputError(f"compiling {path.name} failed: {reason}") from error
        shutil.copyfile(made, partial)


@contextmanager
def compiler_cache() -> Iterator[Path]:
    """Let the compiler keep its files in a temporary folder; without its warnings.

    Not beside the package: the compiler fails at a path with a space.
    """
    before = os.environ.get(CACHE)
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), torch.no_grad():
            os.environ[CACHE] = folder
            warnings.simplefilter("ignore")
            yield Path(folder)
    finally:
        os.environ.pop(CACHE, None)
        if before is not None:
            os.environ[CACHE] = before


def read_about(path: Path) -> About:
    """What a package says about itself, without running it. Raises ``InputError`` for another or a damaged file."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is a folder, a pipe or a device, not a package of minisbert compile")
    with reading(path), zipfile.ZipFile(path) as package:
        if (damaged := package.testzip()) is not None:
            raise zipfile.BadZipFile(f"{damaged} is damaged")
        names = [name for name in package.namelist() if re.search(r"/data/.*wrapper_metadata\.json$", name)]
        content = json.loads(json.loads(package.read(names[0]))["minisbert"]) if names else None
        if not isinstance(content, dict):
            raise ValueError("not a package of minisbert compile")
    return parse_settings(About, (path, content))


def load_package(path: Path, expected: dict[str, str]) -> tuple[Callable, About]:
    """The compiled module and what it says about itself. This runs the code in the file.

    Raises ``InputError`` for a file that another user can write, and, by name, for another model, version of torch or
    CPU than ``expected`` and this process have.
    """
    about = read_about(path)
    if missing := sorted({*about.cpu} - {*instruction_sets()}):
        raise InputError(f"{path} was compiled for a CPU with {', '.join(missing)}, which this one lacks: {AGAIN}")
    for key, value in (expected | {"torch": torch.__version__}).items():
        if getattr(about, key) != value:
            others = {"weights": "other weights", "minisbert": "another version of minisbert"}
            other = others.get(key, f"{key} {getattr(about, key)}, not {value}")
            raise InputError(f"{path} was compiled from {about.model} with {other}: {AGAIN}")
    status, writable = path.stat(), stat.S_IWGRP | stat.S_IWOTH
    if hasattr(os, "getuid") and (status.st_uid not in (0, os.getuid()) or status.st_mode & writable):
        raise InputError(f"{path} is a program, and other users can change it: chown it, chmod go-w")
    with reading(path):
        return package_runner(path), about
