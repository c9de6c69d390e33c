"""Hand examples and traps: how they are written, and how two results of any kind are compared.

The cases themselves are in ``cases_text.py``, ``cases_encoder.py``, ``cases_scores.py``,
``cases_losses.py``, ``cases_loop.py``, ``cases_small.py``, ``cases_search.py``,
``cases_modern.py``, ``cases_by_hand.py`` and ``cases_sheets.py``. They call the package, in which
the learner's function has replaced the master.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
    results: tuple[str, ...] = ()  # what the parts of its result are, if it has several


def example(name: str, expected: Any, function: Callable, *args: Any, **kwargs: Any) -> Case:
    """Numbers small enough to check by eye, right to the digits written."""
    return Case("example", name, partial(function, *args, **kwargs), expected)


def trap(name: str, expected: Any, function: Callable, *args: Any, **kwargs: Any) -> Case:
    """An input on which code fails that is otherwise right."""
    return Case("traps", name, partial(function, *args, **kwargs), expected)


def with_results(case: Case, *names: str) -> Case:
    """The case, with names for the parts of its result."""
    return replace(case, results=names)


ORDINALS = ["first", "second", "third", "fourth"]
# What a piece returns, by master's name, if it returns several things.
RESULTS: dict[str, tuple[str, ...]] = {
    "tokenizer.pad_batch": ("the ids", "the mask"),
    "bert.attention": ("the context", "the probabilities"),
    "bert.Attention.forward": ("attention's output", "the probabilities"),
    "bert.Layer.forward": ("the layer's output", "the probabilities"),
    "backward.dense_gelu_backward": (
        "the gradient of x",
        "the gradient of the weight",
        "the gradient of the bias",
    ),
    "loop.adamw_step": ("the parameter", "m", "v"),
    "paired.paired_gain": (
        "the gain",
        "its error",
        "the interval's lower end",
        "the interval's upper end",
    ),
    "dense.top_k": ("the scores", "the indices"),
    "quantized.rescore": ("the scores", "the rows"),
    "masked.mask_tokens": ("the inputs", "the words to be guessed"),
    "graph.walk": ("the nodes", "the number of nodes that were read"),
    "gradient_cache.vectors_in_parts": ("the vectors", "the random states"),
}
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
    "encoder.SentenceEncoder.encode": "no texts",
    "weights.tensor_names": "no layer",
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


def describe(ours: Any, expected: Any, tolerance: float, results: tuple[str, ...] = ()) -> str:
    """Empty if both are equal, otherwise where and by how much they differ.

    ``results`` are the names of the parts, if both are tuples.
    """
    if equal(ours, expected, tolerance):
        return ""
    if isinstance(expected, tuple) and isinstance(ours, tuple) and len(ours) == len(expected):
        texts = [describe(one, other, tolerance) for one, other in zip(ours, expected, strict=True)]
        at = next(i for i, text in enumerate(texts) if text)
        return f"{part_name(at, len(ours), results)}: {texts[at]}"
    if isinstance(ours, np.ndarray) and isinstance(expected, np.ndarray):
        ours = as_tensor(ours)
        expected = as_tensor(expected)
    if isinstance(expected, dict) and isinstance(ours, dict):
        return different_entry(ours, expected)
    if isinstance(expected, list) and isinstance(ours, list):
        return different_item(ours, expected)
    if not isinstance(ours, Tensor) or not isinstance(expected, Tensor):
        texts = "yours {}, expected {}".format(*both(ours, expected))
        return texts + pattern(ours, expected, tolerance)
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
    return f"{largest}{place}: {pair}{share}{pattern(ours, expected, tolerance)}"


def part_name(at: int, count: int, results: tuple[str, ...]) -> str:
    """What a part of a result is called: ``the mask``."""
    if len(results) == count:
        return results[at]
    return f"the {ORDINALS[at]} of its {count} results"


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
    missing = [key for key in expected if key not in ours]
    extra = [key for key in ours if key not in expected]
    if missing and extra:
        return f"{missing[0]!r} is missing, and {extra[0]!r} should not be there"
    if missing:
        return f"{missing[0]!r} is missing; {len(ours)} entries, expected {len(expected)}"
    if extra:
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


# ------------------------------------------------------------------- what the difference looks like


def pattern(ours: Any, expected: Any, tolerance: float) -> str:
    """What the whole difference looks like, after a semicolon; empty if it looks like nothing.

    Three patterns need no list of mistakes: a constant ratio, the size of float32's rounding, and
    exchanged axes.
    """
    if isinstance(ours, Tensor) and isinstance(expected, Tensor):
        if not (ours.is_floating_point() and expected.is_floating_point()):
            return ""
        ours = ours.detach().double()
        expected = expected.detach().double()
    elif number(ours) and number(expected):
        ours = torch.tensor(float(ours), dtype=torch.float64)
        expected = torch.tensor(float(expected), dtype=torch.float64)
    else:
        return ""
    if not (ours.isfinite().all() and expected.isfinite().all()):
        return ""
    for look in (constant_ratio, exchanged_axes, float32):
        if text := look(ours, expected, tolerance):
            return f"; {text}"
    return ""


def constant_ratio(ours: Tensor, expected: Tensor, tolerance: float) -> str:
    """``yours is twice the reference everywhere``.

    One number alone has a ratio whatever is wrong with it: then only a simple one says anything.
    """
    share = 1e-4 if tolerance > 1e-6 else 1e-9  # hand examples have five digits
    zero = expected.abs() <= tolerance
    if zero.all() or (ours[zero].abs() > tolerance).any():
        return ""
    ratios = ours[~zero] / expected[~zero]
    ratio = ratios.median().item()
    if abs(ratio - 1) < 1e-6 or abs(ratio) < 1e-6:  # equal, or no ratio that one could divide by
        return ""
    if ((ratios - ratio).abs() > 4 * share * abs(ratio)).any():
        return ""
    words = in_words(ratio, share)
    if len(ratios) == 1:
        simple = words and (share < 1e-6 or words in ("twice", "half", "minus"))
        return f"yours is {words} the reference" if simple else ""
    return f"yours is {words or f'{ratio:.6g} times'} the reference everywhere"


def in_words(ratio: float, share: float) -> str:
    """``twice``, ``half``, ``minus``, ``1/3 of``, ``sqrt(3) times``; empty for any other ratio."""

    def is_about(value: float) -> bool:
        return abs(ratio - value) <= 4 * share * abs(value)

    for value, words in ((2.0, "twice"), (0.5, "half"), (-1.0, "minus")):
        if is_about(value):
            return words
    for n in range(2, 65):
        for value, words in (
            (float(n), f"{n} times"),
            (1 / n, f"1/{n} of"),
            (math.sqrt(n), f"{math.sqrt(n):.4g} = sqrt({n}) times"),
            (1 / math.sqrt(n), f"{1 / math.sqrt(n):.4g} = 1/sqrt({n}) times"),
        ):
            if is_about(value):
                return words
    return ""


def exchanged_axes(ours: Tensor, expected: Tensor, tolerance: float) -> str:
    """Is it the reference with two axes exchanged?"""
    for first in range(ours.ndim):
        for second in range(first + 1, ours.ndim):
            turned = ours.transpose(first, second)
            if turned.shape == expected.shape and right(turned, expected, tolerance).all():
                return f"equal once axes {first} and {second} are exchanged"
    return ""


def float32(ours: Tensor, expected: Tensor, tolerance: float) -> str:
    """Do the numbers differ as float32 rounds, by about 1e-8 of their size, and none by more?"""
    if tolerance > 1e-6:  # hand examples are in float32 themselves
        return ""
    share = ((ours - expected).abs() / expected.abs().clamp_min(1e-3)).flatten()
    if len(share) > 1 and 1e-9 < share.median() < 1e-7 and share.max() < 1e-6:
        return "is something computed in float32?"
    # One number alone may be off by as little for other reasons.
    if len(share) == 1 and 1e-9 < share.item() < 1e-7:
        return "that is about what rounding to float32 does; is something computed in float32?"
    return ""


def shown(value: Any) -> str:
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    return repr(value) if isinstance(value, str) else str(value)[:240]


def form_problem(result: Any, expected: Any, results: tuple[str, ...] = ()) -> str:
    """Empty if a result has the very type and shape that the master returns; no subclasses.

    ``results`` are the names of its parts, if there are several.
    """
    if isinstance(expected, tuple):
        if type(result) is not tuple or len(result) != len(expected):
            return f"returns {kind(result)}, not {len(expected)} results"
        for at, (ours, theirs) in enumerate(zip(result, expected, strict=True)):
            if problem := form_problem(ours, theirs):
                return f"{part_name(at, len(expected), results)}: {problem}"
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
        problem = f"returns the shape {tuple(result.shape)}, not {tuple(expected.shape)}"
        if result.dtype == expected.dtype:
            if isinstance(result, np.ndarray):
                result = as_tensor(result)
                expected = as_tensor(expected)
            turned = exchanged_axes(result.detach(), expected.detach(), 1e-6)
            if turned:
                problem += f"; {turned}"
        return problem
    if result.dtype == expected.dtype:
        return ""
    problem = f"returns {result.dtype}, not {expected.dtype}"
    if result.dtype == torch.float32:
        problem += " (by torch.zeros or .float()? give it dtype=u.dtype, u being an argument)"
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
