"""Hand examples and traps: how they are written, and how two results of any kind are compared.

The cases themselves are in ``cases_text.py``, ``cases_encoder.py``, ``cases_scores.py``,
``cases_losses.py``, ``cases_loop.py``, ``cases_small.py``, ``cases_search.py``,
``cases_modern.py``, ``cases_by_hand.py`` and ``cases_sheets.py``. They call the package, in which
the learner's function has replaced the master.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """One call and its expected result, which never comes from the package."""

    rung: str
    name: str
    run: Callable[[], Any]
    expected: Any


def example(name: str, expected: Any, function: Callable, *args: Any, **kwargs: Any) -> Case:
    """Numbers small enough to check by eye, right to the digits written."""
    return Case("example", name, partial(function, *args, **kwargs), expected)


def trap(name: str, expected: Any, function: Callable, *args: Any, **kwargs: Any) -> Case:
    """An input on which code fails that is otherwise right."""
    return Case("traps", name, partial(function, *args, **kwargs), expected)


ORDINALS = ["first", "second", "third", "fourth"]
CASES: dict[str, Callable[[], Iterator[Case]]] = {}  # by master's name

# By master's name: what the lesson does not teach, as a pattern that is searched in the names of
# cases, of checks and of what they find. Whoever types the lesson's formula passes; what fails here
# is named, and costs nothing.
BONUS: dict[str, str] = {
    "encoder.cosine_matrix": "zero",
    "dense.top_k": "zero query",
    "pooling.mean_pool": "NaN",
    "pooling.attention_pool": "NaN",
    "losses.matryoshka_loss": "zeros",
    "tokenizer.split_words": "中|ΟΔΟΣ|x00",
    "tokenizer.word_pieces": "101 letters|another name",
    "loop.linear_schedule": "nothing but warm-up",
}


def cases(master: str) -> Callable:
    """Decorator: a piece's cases are what the function yields, each run before the next."""

    def enter(function: Callable[[], Iterator[Case]]) -> Callable[[], Iterator[Case]]:
        CASES[master] = function
        return function

    return enter


# ------------------------------------------------------------------------------------ small inputs


def t(*values: Any) -> Tensor:
    """``t(1.0, 2.0)`` and ``t([1.0], [2.0])``: a vector, a matrix, float32."""
    return torch.tensor(values)


def d(*values: Any) -> Tensor:
    """The same in float64."""
    return torch.tensor(values, dtype=torch.float64)


def with_weights(module: nn.Module, **weights: Any) -> nn.Module:
    """A module of zeros (LayerNorm's weight 1) except for those given: ``up__bias=[1.0, 2.0]``."""
    for name, parameter in module.named_parameters():
        parameter.data = torch.full_like(parameter, float("norm.weight" in name))
    for name, value in weights.items():
        module.get_parameter(name.replace("__", ".")).data = torch.tensor(value)
    return module.eval()


# ----------------------------------------------------------------------------------- comparing


def equal(ours: Any, expected: Any, tolerance: float) -> bool:
    """Of the same type and shape, every number within ``tolerance``; NaN equals NaN."""
    if isinstance(expected, np.ndarray):
        return isinstance(ours, np.ndarray) and equal(
            as_tensor(ours), as_tensor(expected), tolerance
        )
    if isinstance(expected, Tensor):
        if not isinstance(ours, Tensor) or ours.shape != expected.shape:
            return False
        return right(ours, expected, tolerance).all().item()
    if isinstance(expected, list | tuple):
        same = isinstance(ours, list | tuple) and len(ours) == len(expected)
        return same and all(equal(a, b, tolerance) for a, b in zip(ours, expected, strict=True))
    if isinstance(expected, float):
        return number(ours) and bool(right(d(float(ours)), d(expected), tolerance).all())
    if type(expected) is int:
        return (type(ours) is int or isinstance(ours, np.integer)) and int(ours) == expected
    return type(ours) is type(expected) and ours == expected


def as_tensor(array: np.ndarray) -> Tensor:
    """A copy of an array of any layout: torch has no negative strides."""
    return torch.from_numpy(array.copy(order="C"))


def right(ours: Tensor, expected: Tensor, tolerance: float) -> Tensor:
    """For each number: is it right? Boolean, of the shape of both."""
    ours = ours.detach().double()
    expected = expected.detach().double()
    both = (ours == expected) | (ours.isnan() & expected.isnan())
    return both | ((ours - expected).abs() <= tolerance)


def number(value: Any) -> bool:
    """A plain number."""
    return type(value) in (int, float) or (
        isinstance(value, np.number) and type(value).__module__ == "numpy"
    )


def describe(ours: Any, expected: Any, tolerance: float) -> str:
    """Empty if both are equal, otherwise where and by how much they differ."""
    if equal(ours, expected, tolerance):
        return ""
    if isinstance(expected, tuple) and isinstance(ours, tuple) and len(ours) == len(expected):
        texts = [describe(one, other, tolerance) for one, other in zip(ours, expected, strict=True)]
        at = next(i for i, text in enumerate(texts) if text)
        return f"the {ORDINALS[at]} of its {len(ours)} results: {texts[at]}"
    if isinstance(ours, np.ndarray) and isinstance(expected, np.ndarray):
        ours = as_tensor(ours)
        expected = as_tensor(expected)
    if isinstance(expected, dict) and isinstance(ours, dict):
        return different_entry(ours, expected)
    if isinstance(expected, list) and isinstance(ours, list):
        return different_item(ours, expected)
    if not isinstance(ours, Tensor) or not isinstance(expected, Tensor):
        return "yours {}, expected {}".format(*both(ours, expected)) + float32(ours, expected)
    if expected.dtype == torch.bool and not expected.ndim:
        return "this is not true of your function"  # a fact, which the name of the check states
    if ours.shape != expected.shape:
        return f"yours has the shape {tuple(ours.shape)}, expected {tuple(expected.shape)}"
    difference = (ours.detach().double() - expected.detach().double()).abs()
    difference = difference.masked_fill(right(ours, expected, tolerance), 0.0).nan_to_num(
        nan=math.inf, posinf=math.inf
    )
    at = tuple(int(i) for i in torch.unravel_index(difference.argmax(), difference.shape))
    good = int(right(ours, expected, tolerance).sum())
    place = f" at {named(at)}" if at else ""
    share = (
        f"; {good} of {ours.numel()} numbers right ({100 * good // ours.numel()} %)" if at else ""
    )
    largest = (
        f"largest difference {difference.max().item():.3g}"
        if difference.max() < math.inf
        else "not a number"
    )
    pair = "yours {}, reference {}".format(*both(ours[at].item(), expected[at].item()))
    return f"{largest}{place}: {pair}{float32(ours, expected)}{share}"


def named(at: tuple[int, ...]) -> str:
    """An index in words, as far as the number of axes tells: ``text 1, token 2, column 8``."""
    axes = {
        2: ("row", "column"),
        3: ("text", "token", "column"),
        4: ("text", "head", "token", "column"),
    }
    words = axes.get(len(at), ("index",) * len(at))
    return ", ".join(f"{word} {i}" for word, i in zip(words, at, strict=True)) + " (counted from 0)"


def different_entry(ours: dict, expected: dict) -> str:
    """The first key of two different dicts at which they differ."""
    if missing := [key for key in expected if key not in ours]:
        return f"{missing[0]!r} is missing; {len(ours)} entries, expected {len(expected)}"
    if extra := [key for key in ours if key not in expected]:
        return f"{extra[0]!r} should not be there; {len(ours)} entries, expected {len(expected)}"
    key = next((key for key in expected if not equal(ours[key], expected[key], 0.0)), None)
    return f"{key!r}: " + "yours {}, expected {}".format(*both(ours.get(key), expected.get(key)))


def different_item(ours: list, expected: list) -> str:
    """The first place at which two different lists differ, and the lists if they are short."""
    pairs = enumerate(zip(ours, expected, strict=False))
    at = next((i for i, (a, b) in pairs if not equal(a, b, 0.0)), min(len(ours), len(expected)))
    one = ours[at] if at < len(ours) else ...
    other = expected[at] if at < len(expected) else ...
    texts = both(one, other)
    texts = ["nothing" if one is ... else texts[0], "nothing" if other is ... else texts[1]]
    whole = ""
    if len(str(ours)) + len(str(expected)) < 160:
        whole = f"; {shown(ours)} instead of {shown(expected)}"
    return f"the first difference is at {at}: yours {texts[0]}, expected {texts[1]}{whole}"


def both(ours: Any, expected: Any) -> list[str]:
    """Two different values in words, with as many digits as it takes to tell them apart."""
    texts = [shown(ours), shown(expected)]
    return texts if texts[0] != texts[1] else [repr(ours)[:240], repr(expected)[:240]]


def float32(ours: Any, expected: Any) -> str:
    """A question, if float64 numbers differ as float32 rounds.

    Most differ by about 1e-8 of their size, none by much more.
    """
    if not (is_float64(ours) and is_float64(expected)):
        return ""
    ours = torch.as_tensor(ours).detach()
    expected = torch.as_tensor(expected).detach()
    share = ((ours - expected).abs() / expected.abs().clamp_min(1e-3)).flatten()
    # one number alone may be off by as little for many reasons
    rounded = len(share) > 1 and 1e-9 < share.median() < 1e-7 and share.max() < 1e-6
    return " (is something computed in float32?)" if rounded else ""


def is_float64(x: Any) -> bool:
    return isinstance(x, float) or (isinstance(x, Tensor) and x.dtype == torch.float64)


def shown(value: Any) -> str:
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    return repr(value) if isinstance(value, str) else str(value)[:240]


def form_problem(result: Any, expected: Any) -> str:
    """Empty if a result has the very type and shape that the master returns; no subclasses."""
    if isinstance(expected, tuple):
        if type(result) is not tuple or len(result) != len(expected):
            return f"returns {kind(result)}, not {len(expected)} results"
        for at, (ours, theirs) in enumerate(zip(result, expected, strict=True)):
            if problem := form_problem(ours, theirs):
                return f"the {ORDINALS[at]} of its {len(expected)} results: {problem}"
        return ""
    if isinstance(expected, float):
        return "" if number(result) else f"returns {kind(result)}, not a number (a Python float)"
    if isinstance(expected, Tensor | np.ndarray):
        return array_problem(result, expected)
    return "" if type(result) is type(expected) else f"returns {kind(result)}, not {kind(expected)}"


def array_problem(result: Any, expected: Tensor | np.ndarray) -> str:
    """``form_problem`` of a tensor or an array: its type, shape and dtype."""
    if type(result) not in (type(expected), nn.Parameter):
        return f"returns {kind(result)}, not {kind(expected)}"
    if tuple(result.shape) != tuple(expected.shape):
        return f"returns the shape {tuple(result.shape)}, not {tuple(expected.shape)}"
    if result.dtype == expected.dtype:
        return ""
    problem = f"returns {result.dtype}, not {expected.dtype}"
    if result.dtype == torch.float32:
        problem += " (made by torch.zeros? give it dtype=u.dtype, u being an argument)"
    return problem


def converted(result: Any, expected: Any) -> Any:
    """A result of the right type and shape with the expected dtype, else None."""
    if isinstance(expected, tuple):
        fits = type(result) is tuple and len(result) == len(expected)
        parts = (
            [converted(*pair) for pair in zip(result, expected, strict=True)] if fits else [None]
        )
        return None if any(part is None for part in parts) else tuple(parts)
    if (
        isinstance(expected, Tensor)
        and type(result) in (Tensor, nn.Parameter)
        and result.shape == expected.shape
    ):
        return result.to(expected.dtype)
    if (
        isinstance(expected, np.ndarray)
        and type(result) is np.ndarray
        and result.shape == expected.shape
    ):
        return result.astype(expected.dtype) if result.dtype.kind in "biuf" else None
    return result if not form_problem(result, expected) else None


def kind(value: Any) -> str:
    """``a tensor``, ``an array``, ``nothing``."""
    if value is None:
        return "nothing (None)"
    if type(value) in (Tensor, nn.Parameter, np.ndarray):
        return f"{'a tensor' if isinstance(value, Tensor) else 'an array'} {tuple(value.shape)}"
    return f"a {type(value).__name__}"
