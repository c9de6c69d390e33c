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
from minisbert.core import bert
from minisbert.core.weights import BertConfig
from minisbert.diagnosis.mistakes import mistake

Joins = list[tuple[str, str]]
Gradients = tuple[Tensor, Tensor, Tensor]
_learn, _backward, _step = vocabulary.learn_merges, backward.dense_gelu_backward, sheet.training_step
_paired_gain = paired.paired_gain

# ---------------------------------------------------------------------------------- the vocabulary


def _merges(
    words: Mapping[str, int],
    most: int,
    order: Callable[[tuple[str, str], int, dict[str, int]], tuple],
    joined: Callable[[list[str], tuple[str, str]], list[str]],
    anew: bool = True,
) -> Joins:
    """``order`` of a pair, its count and the numbers: the lowest is joined; ``anew`` counts before each join."""
    pieces = {word: list(word) for word in words}
    numbers = {letter: number for number, letter in enumerate(sorted(set("".join(words))))}
    joins: Joins = []
    counts: Counter[tuple[str, str]] = Counter()
    while len(joins) < most:
        if anew or not joins:
            counts = Counter()
            for word, times in words.items():
                counts.update(dict.fromkeys(pairwise(pieces[word]), 0))
                for pair in pairwise(pieces[word]):
                    counts[pair] += times
        if not counts:
            break
        best = min(counts, key=lambda pair: order(pair, counts[pair], numbers))
        if not anew:
            del counts[best]
        joins.append(best)
        numbers.setdefault("".join(best), len(numbers))
        pieces = {word: joined(old, best) for word, old in pieces.items()}
        if joined(list(best), best) == list(best):
            break
    return joins


def _frequent(pair: tuple[str, str], count: int, numbers: dict[str, int]) -> tuple:
    return -count, numbers[pair[0]], numbers[pair[1]]


def _left_to_right(old: list[str], best: tuple[str, str]) -> list[str]:
    new: list[str] = []
    for piece in old:
        if new and (new[-1], piece) == best:
            new[-1] += piece
        else:
            new.append(piece)
    return new


@mistake(vocabulary, "learn_merges", "each word counted once", "a word that occurs often counts like a rare one")
def _(words: Mapping[str, int], most: int) -> Joins:
    return _learn(dict.fromkeys(words, 1), most)


@mistake(vocabulary, "learn_merges", "pairs not counted anew", "the counts of the beginning decide about all joins")
def _(words: Mapping[str, int], most: int) -> Joins:
    return _merges(words, most, _frequent, _left_to_right, anew=False)


@mistake(vocabulary, "learn_merges", "rarest pair joined", "the pair that occurs least often is joined")
def _(words: Mapping[str, int], most: int) -> Joins:
    return _merges(words, most, lambda pair, count, n: (count, n[pair[0]], n[pair[1]]), _left_to_right)


@mistake(vocabulary, "learn_merges", "equal pairs by their spelling", "a joined piece comes where its letters stand")
def _(words: Mapping[str, int], most: int) -> Joins:
    return _merges(words, most, lambda pair, count, _: (-count, *pair), _left_to_right)


@mistake(vocabulary, "learn_merges", "one join a word", "a pair is joined at its first place in a word alone")
def _(words: Mapping[str, int], most: int) -> Joins:
    def first_only(old: list[str], best: tuple[str, str]) -> list[str]:
        at = next((i for i, pair in enumerate(pairwise(old)) if pair == best), None)
        return old if at is None else [*old[:at], "".join(best), *old[at + 2 :]]

    return _merges(words, most, _frequent, first_only)


@mistake(vocabulary, "learn_merges", "joined from the right", "of three equal letters the last two are joined")
def _(words: Mapping[str, int], most: int) -> Joins:
    def right_to_left(old: list[str], best: tuple[str, str]) -> list[str]:
        turned = _left_to_right([piece[::-1] for piece in old[::-1]], (best[1][::-1], best[0][::-1]))
        return [piece[::-1] for piece in turned[::-1]]

    return _merges(words, most, _frequent, right_to_left)


# ------------------------------------------------------------------------------ back through a layer


def _slope(z: Tensor) -> Tensor:
    return (1 + torch.erf(z / math.sqrt(2.0))) / 2 + z * torch.exp(-z.pow(2) / 2) / math.sqrt(2 * math.pi)


@mistake(backward, "dense_gelu_backward", "GELU's density left out", "the slope of z P(z) is taken to be P(z)")
def _(x: Tensor, weight: Tensor, bias: Tensor, gradient: Tensor) -> Gradients:
    dz = gradient * (1 + torch.erf((x @ weight.T + bias) / math.sqrt(2.0))) / 2
    return dz @ weight, dz.T @ x, dz.sum(0)


@mistake(backward, "dense_gelu_backward", "back without GELU", "the gradient goes back as if there were no GELU")
def _(x: Tensor, weight: Tensor, bias: Tensor, gradient: Tensor) -> Gradients:
    return gradient @ weight, gradient.T @ x, gradient.sum(0)


@mistake(backward, "dense_gelu_backward", "ReLU's slope", "the slope is 1 above 0 and 0 below it")
def _(x: Tensor, weight: Tensor, bias: Tensor, gradient: Tensor) -> Gradients:
    dz = gradient * (x @ weight.T + bias > 0)
    return dz @ weight, dz.T @ x, dz.sum(0)


@mistake(backward, "dense_gelu_backward", "slope at the output", "the slope is taken at y = gelu(z), not at z")
def _(x: Tensor, weight: Tensor, bias: Tensor, gradient: Tensor) -> Gradients:
    dz = gradient * _slope(bert.gelu(x @ weight.T + bias))
    return dz @ weight, dz.T @ x, dz.sum(0)


@mistake(backward, "dense_gelu_backward", "slope without the bias", "z is x weight^T alone when the slope is taken")
def _(x: Tensor, weight: Tensor, bias: Tensor, gradient: Tensor) -> Gradients:
    return _backward(x, weight, torch.zeros_like(bias), gradient)


@mistake(backward, "dense_gelu_backward", "mean over the rows", "the gradients of weight and bias are divided by N")
def _(x: Tensor, weight: Tensor, bias: Tensor, gradient: Tensor) -> Gradients:
    dx, dweight, dbias = _backward(x, weight, bias, gradient)
    return dx, dweight / len(x), dbias / len(x)


# -------------------------------------------------------------------------------- the costs of a step


def _changed(config: BertConfig, B: int, T: int, **factors: float) -> dict[str, int]:
    """The costs, with some of them multiplied."""
    return {name: int(value * factors.get(name, 1)) for name, value in _step(config, B, T).items()}


@mistake(sheet, "training_step", "multiplications alone", "the additions are not counted as operations")
def _(config: BertConfig, B: int, T: int) -> dict[str, int]:
    return _changed(config, B, T, forward=0.5, backward=0.5)


@mistake(sheet, "training_step", "back as dear as forth", "one product backward for each product forward, not two")
def _(config: BertConfig, B: int, T: int) -> dict[str, int]:
    return _changed(config, B, T, backward=0.5)


@mistake(sheet, "training_step", "one moment", "AdamW keeps two numbers for each parameter, and one is counted")
def _(config: BertConfig, B: int, T: int) -> dict[str, int]:
    return _changed(config, B, T, moments=0.5)


@mistake(
    sheet, "training_step", "heads share their probabilities", "each head has T x T of its own, and one is counted"
)
def _(config: BertConfig, B: int, T: int) -> dict[str, int]:
    return _changed(config, B, T, probabilities=1 / config.num_attention_heads)


@mistake(sheet, "training_step", "tokens do not meet", "the products of queries, keys and values are left out")
def _(config: BertConfig, B: int, T: int) -> dict[str, int]:
    costs = _step(config, B, T)
    between = 4 * config.num_hidden_layers * B * T * T * config.hidden_size
    forward = costs["forward"] - between
    return costs | {"forward": forward, "backward": 2 * forward}


@mistake(
    sheet, "training_step", "biases and LayerNorms left out", "of the weights only tables and matrices are counted"
)
def _(config: BertConfig, B: int, T: int) -> dict[str, int]:
    costs = _step(config, B, T)
    D, F = config.hidden_size, config.intermediate_size
    small = 4 * (2 * D + config.num_hidden_layers * (9 * D + F))
    weights = costs["weights"] - small
    return costs | {"weights": weights, "gradients": weights, "moments": 2 * weights}


@mistake(sheet, "training_step", "pooler counted", "the pooler's weights and biases count, and no vector needs it")
def _(config: BertConfig, B: int, T: int) -> dict[str, int]:
    costs = _step(config, B, T)
    weights = costs["weights"] + 4 * (config.hidden_size**2 + config.hidden_size)
    return costs | {"weights": weights, "gradients": weights, "moments": 2 * weights}


# ------------------------------------------------------------------------------------- a gain in pairs


def _interval(a: Any, b: Any, error: float, width: float = 2.0) -> tuple[float, float, float, float]:
    gain = float(np.mean(_differences(a, b)))
    return gain, error, gain - width * error, gain + width * error


def _differences(a: Any, b: Any) -> np.ndarray:
    return np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)


def _error(values: Any, ddof: int = 1, power: float = 0.5) -> float:
    return float(np.std(np.asarray(values, dtype=np.float64), ddof=ddof) / len(values) ** power)


@mistake(paired, "paired_gain", "error not in pairs", "each side has an error of its own: what both share stays in")
def _(a: Any, b: Any) -> tuple[float, float, float, float]:
    return _interval(a, b, math.hypot(_error(a), _error(b)))


@mistake(paired, "paired_gain", "deviation by n", "the deviation divides by n: NumPy does, unless it is told ddof=1")
def _(a: Any, b: Any) -> tuple[float, float, float, float]:
    return _interval(a, b, _error(_differences(a, b), ddof=0))


@mistake(paired, "paired_gain", "error by n", "the spread is divided by n, not by its root")
def _(a: Any, b: Any) -> tuple[float, float, float, float]:
    return _interval(a, b, _error(_differences(a, b), power=1.0))


@mistake(
    paired, "paired_gain", "spread for the error", "that is how far one run is from the mean, not the mean's error"
)
def _(a: Any, b: Any) -> tuple[float, float, float, float]:
    return _interval(a, b, _error(_differences(a, b), power=0.0))


@mistake(paired, "paired_gain", "interval of one error", "one error to each side holds the gain two times in three")
def _(a: Any, b: Any) -> tuple[float, float, float, float]:
    return _interval(a, b, _error(_differences(a, b)), width=1.0)


@mistake(paired, "paired_gain", "b minus a", "the sides are exchanged: a gain is a loss")
def _(a: Any, b: Any) -> tuple[float, float, float, float]:
    return _paired_gain(b, a)
