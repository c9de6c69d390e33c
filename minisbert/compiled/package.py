"""Compiled ahead of time: a module exported by ``torch.export`` and compiled by AOTInductor to one ``.pt2`` file.

PyTorch's compiler fuses the operations between two matrix products, and lays the weights out for the CPU once. The file
holds native code, weights included, and loading it runs that code: load only files that you, or somebody you trust,
compiled. It runs with the version of torch and the CPU instructions that it was compiled for; ``about`` says which.
"""

import json
import os
import re
import shutil
import stat
import sys
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minisbert.core import InputError, one_line, reading
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


def compile_package(module: nn.Module, examples: Sequence[Tensor], path: Path, about: dict[str, Any]) -> None:
    """Compile ``module`` for inputs like ``examples`` with any sizes, and write it to ``path`` atomically.

    The sizes of the examples, (n, m) each, must differ from 0 and 1, which would be compiled as constants. The file
    keeps ``about``, with torch's version and the CPU. Takes 20 to 60 seconds. Raises ``InputError`` without a C++
    compiler or torch 2.9, or if it fails.
    """
    lacking = not any(map(shutil.which, filter(None, [os.environ.get("CXX"), *COMPILERS])))
    check_usage(
        (torch.__version__ < OLDEST, f"compiling needs torch {OLDEST} or newer, this is {torch.__version__}"),
        (lacking, f"compiling needs a C++ compiler, and none was found ({ADVICE}); loading a package needs none"),
    )
    about = {"torch": torch.__version__, "cpu": instruction_sets()} | about
    auto = torch.export.Dim.AUTO
    cache = os.environ.get(CACHE)
    with atomic_file(path) as partial, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        os.environ[CACHE] = str(partial.with_name("inductor"))  # removed with the partial file
        try:
            exported = torch.export.export(module, tuple(examples), dynamic_shapes=[{0: auto, 1: auto}] * len(examples))
            made = torch._inductor.aoti_compile_and_package(
                exported,
                package_path=str(partial.with_name("package.pt2")),
                inductor_configs=INDUCTOR | {"aot_inductor.metadata": {"minisbert": json.dumps(about)}},
            )
        except (RuntimeError, OSError) as error:
            said = [line for line in str(error).splitlines() if "error" in line.lower()] or [type(error).__name__]
            raise InputError(f"compiling {path.name} failed: {one_line(said[0].strip())}") from error
        finally:
            os.environ.pop(CACHE)
            os.environ |= {} if cache is None else {CACHE: cache}
        os.replace(made, partial)


def read_about(path: Path) -> dict[str, Any]:
    """What a package says about itself, without running it. Raises ``InputError`` for another or a damaged file."""
    with reading(path), zipfile.ZipFile(path) as package:
        if (damaged := package.testzip()) is not None:
            raise zipfile.BadZipFile(f"{damaged} is damaged")
        names = [name for name in package.namelist() if re.search(r"/data/.*wrapper_metadata\.json$", name)]
        if not names:
            raise ValueError("not a package of minisbert compile")
        return json.loads(json.loads(package.read(names[0]))["minisbert"])


def load_package(path: Path, expected: dict[str, Any]) -> tuple[Callable, dict[str, Any]]:
    """The compiled module and what it says about itself. This runs the code in the file.

    Raises ``InputError`` for a file that another user can write, and, by name, for another model, version of torch or
    CPU than ``expected`` and this process have.
    """
    about = read_about(path)
    with reading(path):
        if missing := sorted({*about["cpu"]} - {*instruction_sets()}):
            raise InputError(f"{path} was compiled for a CPU with {', '.join(missing)}, which this one lacks: {AGAIN}")
        for key, value in ({"torch": torch.__version__} | expected).items():
            if about.get(key) != value:
                other = {"weights": "other weights", "minisbert": "another version of minisbert"}
                other = other.get(key, f"{key} {about.get(key)}, not {value}")
                raise InputError(f"{path} was compiled from {about.get('model')} with {other}: {AGAIN}")
        status, others = path.stat(), stat.S_IWGRP | stat.S_IWOTH
        if hasattr(os, "getuid") and (status.st_uid not in (0, os.getuid()) or status.st_mode & others):
            raise InputError(f"{path} is a program, and other users can change it: chown it, chmod go-w")
        return package_runner(path), about
