"""Hand examples and traps: how they are written, and how two results of any kind are compared.

The cases themselves are in ``cases_text.py``, ``cases_encoder.py``, ``cases_scores.py`` and ``cases_losses.py``. They
call the package, in which the learner's function has replaced the master.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.core import one_line


@dataclass(frozen=True)
class Case:
    """One call and its expected result, which never comes from the package."""

    name: str
    run: Callable[[], Any]
    expected: Any


def case(name: str, expected: Any, function: Callable, *args: Any, **kwargs: Any) -> Case:
    return Case(name, partial(function, *args, **kwargs), expected)


Cases = Callable[[], Iterator[Case]]
EXAMPLES: dict[str, Cases] = {}  # by master's name: numbers small enough to check by eye, right to the digits written
TRAPS: dict[str, Cases] = {}  # by master's name: inputs on which code fails that is otherwise right


def example(master: str) -> Callable[[Cases], Cases]:
    return partial(_enter, EXAMPLES, master)


def trap(master: str) -> Callable[[Cases], Cases]:
    return partial(_enter, TRAPS, master)


def _enter(table: dict[str, Cases], master: str, cases: Cases) -> Cases:
    table[master] = cases
    return cases


# ------------------------------------------------------------------------------------ small inputs


def t(*values: Any) -> Tensor:
    """``t(1.0, 2.0)`` and ``t([1.0], [2.0])``: a vector, a matrix, float32."""
    return torch.tensor(values)


def d(*values: Any) -> Tensor:
    """The same in float64."""
    return torch.tensor(values, dtype=torch.float64)


def with_weights(module: nn.Module, **weights: Any) -> nn.Module:
    """A module whose parameters are 0 (LayerNorm's weight 1) except for those given: ``up__bias=[1.0, 2.0]``."""
    for name, parameter in module.named_parameters():
        parameter.data = torch.full_like(parameter, float("norm.weight" in name))
    for name, value in weights.items():
        module.get_parameter(name.replace("__", ".")).data = torch.tensor(value)
    return module.eval()


# ----------------------------------------------------------------------------------- comparing


def equal(ours: Any, expected: Any, tolerance: float) -> bool:
    """Of the same type and shape, and every number within ``tolerance``; NaN equals NaN, and infinity itself."""
    if isinstance(expected, np.ndarray):
        return isinstance(ours, np.ndarray) and equal(torch.from_numpy(ours), torch.from_numpy(expected), tolerance)
    if isinstance(expected, Tensor):
        if not isinstance(ours, Tensor) or ours.shape != expected.shape:
            return False
        return right(ours, expected, tolerance).all().item()
    if isinstance(expected, list | tuple):
        same = isinstance(ours, list | tuple) and len(ours) == len(expected)
        return same and all(equal(a, b, tolerance) for a, b in zip(ours, expected, strict=True))
    if isinstance(expected, float):
        return number(ours) and equal(torch.tensor(float(ours)).double(), torch.tensor(expected).double(), tolerance)
    return type(ours) is type(expected) and ours == expected


def right(ours: Tensor, expected: Tensor, tolerance: float) -> Tensor:
    """For each number: is it right? Boolean, of the shape of both."""
    ours, expected = ours.detach().double(), expected.detach().double()
    both = (ours == expected) | (ours.isnan() & expected.isnan())
    return both | ((ours - expected).abs() <= tolerance)


def number(value: Any) -> bool:
    """A plain number: a class that the learner defines could claim to equal everything."""
    return type(value) in (int, float) or (isinstance(value, np.number) and type(value).__module__ == "numpy")


def describe(ours: Any, expected: Any, tolerance: float) -> str:
    """Empty if both are equal, otherwise where and by how much they differ."""
    if equal(ours, expected, tolerance):
        return ""
    if isinstance(expected, tuple) and isinstance(ours, tuple) and len(ours) == len(expected):
        texts = [describe(one, other, tolerance) for one, other in zip(ours, expected, strict=True)]
        at = next(i for i, text in enumerate(texts) if text)
        return f"result {at + 1} of {len(ours)}: {texts[at]}"
    if isinstance(ours, np.ndarray) and isinstance(expected, np.ndarray):
        ours, expected = torch.from_numpy(ours), torch.from_numpy(expected)
    if not isinstance(ours, Tensor) or not isinstance(expected, Tensor):
        return f"yours {shown(ours)}, expected {shown(expected)}"
    if ours.shape != expected.shape:
        return f"yours has the shape {tuple(ours.shape)}, expected {tuple(expected.shape)}"
    difference = (ours.detach().double() - expected.detach().double()).abs()
    difference = difference.masked_fill(right(ours, expected, tolerance), 0.0).nan_to_num(nan=math.inf, posinf=math.inf)
    at = tuple(int(i) for i in torch.unravel_index(difference.argmax(), difference.shape))
    good = int(right(ours, expected, tolerance).sum())
    place = f" at {at}" if at else ""
    share = f"; {good} of {ours.numel()} numbers right ({100 * good // ours.numel()} %)" if at else ""
    largest = f"largest difference {difference.max().item():.3g}" if difference.max() < math.inf else "not a number"
    return f"{largest}{place}: yours {shown(ours[at].item())}, reference {shown(expected[at].item())}{share}"


def shown(value: Any) -> str:
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    return one_line(value, 120) if isinstance(value, str) else str(value)[:240]


def form_problem(result: Any, expected: Any) -> str:
    """Empty if a result has the very type and shape that the master returns for the same inputs; no subclasses."""
    if isinstance(expected, tuple):
        if type(result) is not tuple or len(result) != len(expected):
            return f"returns {kind(result)}, not {len(expected)} results"
        for at, (ours, theirs) in enumerate(zip(result, expected, strict=True), start=1):
            if problem := form_problem(ours, theirs):
                return f"result {at} of {len(expected)}: {problem}"
        return ""
    if isinstance(expected, float):
        return "" if number(result) else f"returns {kind(result)}, not a number (a Python float)"
    if isinstance(expected, Tensor | np.ndarray):
        if type(result) not in (type(expected), nn.Parameter):
            return f"returns {kind(result)}, not {kind(expected)}"
        if tuple(result.shape) != tuple(expected.shape):
            return f"returns the shape {tuple(result.shape)}, not {tuple(expected.shape)}"
        return "" if result.dtype == expected.dtype else f"returns {result.dtype}, not {expected.dtype}"
    return "" if type(result) is type(expected) else f"returns {kind(result)}, not {kind(expected)}"


def kind(value: Any) -> str:
    """``a tensor``, ``an array``, ``nothing``."""
    if value is None:
        return "nothing (None)"
    if type(value) in (Tensor, nn.Parameter, np.ndarray):
        return f"{'a tensor' if isinstance(value, Tensor) else 'an array'} {tuple(value.shape)}"
    return f"a {type(value).__name__}"
