"""What lesson 26 uses without explaining it: a switch, a stopwatch, the compiler's C++."""

import re
import statistics
import tempfile
import textwrap
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minisbert.backends.package import compile_package, load_package
from minisbert.core import InputError, bert
from minisbert.models.batching import Tokens


def fused(choice: bool, function: Callable, *inputs: Any, **named: Any) -> Any:
    """A call with ``bert.FUSED`` True or False."""
    bert.FUSED = choice
    try:
        return function(*inputs, **named)
    finally:
        bert.FUSED = False


def milliseconds(function: Callable, *inputs: Any, **named: Any) -> float:
    """The median of eleven calls, after one to warm up."""
    times = []
    for _ in range(12):
        started = time.perf_counter()
        function(*inputs, **named)
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times[1:])


def packed(model: Any, tokens: Tokens, dtype: str | None = None) -> Tensor:
    """The vectors (N, D) of tokenized texts, several texts in one row.

    ``dtype`` is that of ``encode``, or None for that of the tokens.
    """
    with model.computing(dtype) as products:
        if dtype is not None:
            tokens = replace(tokens, dtype=products)
        return torch.from_numpy(model.encode_tokens(tokens))


def compiled(module: nn.Module, x: Tensor) -> tuple[Callable | None, str]:
    """What the compiler makes of ``module(x)``, and its C++; None and the reason if it cannot."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "module.pt2"
        try:
            compile_package(module, [x], package, {"model": "of a lesson"})
        except InputError as error:
            return None, f"the compiled steps are left out: {error}"
        function, _ = load_package(package, {})
        with zipfile.ZipFile(package) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".kernel.cpp"))
            return function, archive.read(name).decode()


def shortened(source: str) -> str:
    """The loops of a generated C++ file, without casts, guards and lone brackets."""
    lines = [line for line in source.splitlines() if line.strip(" {}") and "C10_LIKELY" not in line]
    ends = []
    for number, line in enumerate(lines):
        if "for(int64_t x0" in line or ".store(" in line:
            ends.append(number)
    text = textwrap.dedent("\n".join(lines[ends[0] : ends[-1] + 1]))
    text = text.replace("at::vec::", "").replace("384L", "384")
    text = re.sub(r"static_cast<\w+>\(([^()]+?)L?\)", r"\1", text)
    text = re.sub(r"vec_reduce_all<.*, (\w+)\);", r"sum(\1);", text)
    text = text.replace("Vectorized<float>::loadu", "load").replace("Vectorized<float>", "Vector")
    return text.replace("    ", "  ")
