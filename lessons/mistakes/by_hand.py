"""Mistakes in what the lessons write out by hand: merges, gradients, costs, a gain in pairs."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lessons.by_hand import backward, paired, sheet, vocabulary
from lessons.mistakes.calls import calls
from lessons.mistakes.planting import mistake
from minisbert.core import bert
from minisbert.core.weights import BertConfig

Join = tuple[str, str]
Gradients = tuple[Tensor, Tensor, Tensor]
# the right ones, kept from before anything is planted
_backward = backward.dense_gelu_backward
_step = sheet.training_step
_paired_gain = paired.paired_gain

# ----------------------------------------------------------------------------------- the vocabulary


def left_to_right(old: list[str], best: Join) -> list[str]:
    new: list[str] = []
    for piece in old:
        if new and (new[-1], piece) == best:
            new[-1] += piece
        else:
            new.append(piece)
    return new


def first_only(old: list[str], best: Join) -> list[str]:
    for i, pair in enumerate(pairwise(old)):
        if pair == best:
            return [*old[:i], "".join(best), *old[i + 2 :]]
    return old


def right_to_left(old: list[str], best: Join) -> list[str]:
    turned = left_to_right([piece[::-1] for piece in old[::-1]], (best[1][::-1], best[0][::-1]))
    return [piece[::-1] for piece in turned[::-1]]


def merges_with(
    words: Mapping[str, int],
    most: int,
    *,
    sign: int = -1,
    spelling: bool = False,
    joined: Callable[[list[str], Join], list[str]] = left_to_right,
    anew: bool = True,
) -> list[Join]:
    """The pair with the lowest ``sign`` times count is joined; ``anew`` counts before each join.

    Of equal pairs the first by number, or by ``spelling``.
    """
    pieces = {word: list(word) for word in words}
    numbers = {letter: number for number, letter in enumerate(sorted(set("".join(words))))}
    joins: list[Join] = []
    counts: Counter[Join] = Counter()
    while len(joins) < most:
        if anew or not joins:
            counts = Counter()
            for word, times in words.items():
                counts.update(dict.fromkeys(pairwise(pieces[word]), 0))
                for pair in pairwise(pieces[word]):
                    counts[pair] += times
        if not counts:
            break
        ranks = {}
        for left, right in counts:
            ranks[left, right] = (left, right) if spelling else (numbers[left], numbers[right])
        best = min(counts, key=lambda pair: (sign * counts[pair], ranks[pair]))
        if not anew:
            del counts[best]
        joins.append(best)
        numbers.setdefault("".join(best), len(numbers))
        pieces = {word: joined(old, best) for word, old in pieces.items()}
        if joined(list(best), best) == list(best):
            break
    return joins


learned = calls(vocabulary, "learn_merges", merges_with)
ONCE = "a word that occurs often counts like a rare one"
learned("each word counted once", ONCE, words=lambda words: dict.fromkeys(words, 1))
learned("pairs not counted anew", "the counts of the beginning decide about all joins", anew=False)
learned("rarest pair joined", "the pair that occurs least often is joined", sign=1)
learned(
    "equal pairs by their spelling", "a joined piece comes where its letters stand", spelling=True
)
learned("one join a word", "a pair is joined at its first place in a word alone", joined=first_only)
learned(
    "joined from the right", "of three equal letters the last two are joined", joined=right_to_left
)


# ----------------------------------------------------------------------------- back through a layer


def backward_with(
    x: Tensor, weight: Tensor, bias: Tensor, gradient: Tensor, *, slope: str = ""
) -> Gradients:
    z = x @ weight.T + bias
    at = bert.gelu(z) if slope == "at the output" else z
    below = (1 + torch.erf(at / math.sqrt(2.0))) / 2
    density = torch.exp(-at.pow(2) / 2) / math.sqrt(2 * math.pi)
    wrong = {"P": below, "none": torch.ones_like(z), "ReLU": (z > 0).to(z.dtype)}
    dz = gradient * wrong.get(slope, below + at * density)
    return dz @ weight, dz.T @ x, dz.sum(0)


back = calls(backward, "dense_gelu_backward", backward_with)
back("GELU's density left out", "the slope of z P(z) is taken to be P(z)", slope="P")
back("back without GELU", "the gradient goes back as if there were no GELU", slope="none")
back("ReLU's slope", "the slope is 1 above 0 and 0 below it", slope="ReLU")
back("slope at the output", "the slope is taken at y = gelu(z), not at z", slope="at the output")
back(
    "slope without the bias", "z is x weight^T alone when the slope is taken", bias=torch.zeros_like
)


@mistake(
    backward,
    "dense_gelu_backward",
    "mean over the rows",
    "the gradients of weight and bias are divided by N",
)
def _(x: Tensor, weight: Tensor, bias: Tensor, gradient: Tensor) -> Gradients:
    dx, dweight, dbias = _backward(x, weight, bias, gradient)
    return dx, dweight / len(x), dbias / len(x)


# ------------------------------------------------------------------------------ the costs of a step


def step_with(
    config: BertConfig, B: int, T: int, *, weights="all", between=1, shared=False, **factors: float
) -> dict:
    """The costs with some of them multiplied.

    ``weights`` are the "matrices" alone, or "all", or those and the "pooler".
    """
    costs = _step(config, B, T)
    D, F, L = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    costs["forward"] -= (1 - between) * 4 * L * B * T * T * D
    costs["backward"] = 2 * costs["forward"]
    if weights == "matrices":
        costs["weights"] -= 4 * (2 * D + L * (9 * D + F))
    if weights == "pooler":
        costs["weights"] += 4 * (D * D + D)
    costs |= {"gradients": costs["weights"], "moments": 2 * costs["weights"]}
    if shared:
        costs["probabilities"] //= config.num_attention_heads
    return costs | {name: int(costs[name] * factor) for name, factor in factors.items()}


billed = calls(sheet, "training_step", step_with)
billed(
    "multiplications alone",
    "the additions are not counted as operations",
    forward=0.5,
    backward=0.5,
)
billed(
    "backward counted like forward",
    "one product backward for each product forward, not two",
    backward=0.5,
)
billed("one moment", "AdamW keeps two numbers for each parameter, and one is counted", moments=0.5)
billed(
    "heads share their probabilities",
    "each head has T x T of its own, and one is counted",
    shared=True,
)
billed("tokens do not meet", "the products of queries, keys and values are left out", between=0)
MATRICES = "of the weights only tables and matrices are counted"
billed("biases and LayerNorms left out", MATRICES, weights="matrices")
billed(
    "pooler counted",
    "the pooler's weights and biases count, and no vector needs it",
    weights="pooler",
)

# ---------------------------------------------------------------------------------- a gain in pairs


def gain_with(
    a: Any, b: Any, *, together: bool = True, ddof: int = 1, power: float = 0.5, width: float = 2.0
) -> tuple:
    """The spread is that of the differences if ``together``, else of each side.

    It is divided by n to the ``power``.
    """
    a = np.asarray(a, dtype=np.float64)
    b = np.asarray(b, dtype=np.float64)
    spread = np.std(a - b, ddof=ddof)
    if not together:
        spread = math.hypot(np.std(a, ddof=ddof), np.std(b, ddof=ddof))
    gain = float((a - b).mean())
    error = float(spread / len(a) ** power)
    return gain, error, gain - width * error, gain + width * error


gained = calls(paired, "paired_gain", gain_with)
gained(
    "error not in pairs",
    "each side has an error of its own: what both share stays in",
    together=False,
)
gained("deviation by n", "the deviation divides by n: NumPy does, unless it is told ddof=1", ddof=0)
gained("error by n", "the spread is divided by n, not by its root", power=1.0)
gained(
    "spread for the error",
    "that is how far one run is from the mean, not the mean's error",
    power=0.0,
)
gained(
    "interval of one error", "one error to each side holds the gain two times in three", width=1.0
)


@mistake(paired, "paired_gain", "b minus a", "the sides are exchanged: a gain is a loss")
def _(a: Any, b: Any) -> tuple[float, float, float, float]:
    return _paired_gain(b, a)
