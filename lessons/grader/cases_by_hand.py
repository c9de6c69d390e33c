"""Hand examples and traps of ``lessons/by_hand``: merges, gradients, costs, a gain in pairs."""

import numpy as np
import torch

from lessons.by_hand import backward, paired, sheet, vocabulary
from lessons.grader.cases import cases, d, example, t, trap
from minisbert.core.weights import BertConfig

LOW = {"low": 5, "lower": 2, "newest": 6, "widest": 3}


@cases("vocabulary.learn_merges")
def _():
    learn = vocabulary.learn_merges
    yield example(
        "low, lower, newest, widest",
        [("e", "s"), ("es", "t"), ("l", "o"), ("lo", "w")],
        learn,
        LOW,
        4,
    )
    yield example(
        "ab twice, bc three times", [("b", "c"), ("a", "b")], learn, {"ab": 2, "bc": 3}, 2
    )
    yield trap("more joins than there are", [("a", "b"), ("ab", "c")], learn, {"abc": 1}, 5)
    # b a is as frequent as a c; b comes after a
    yield trap("equal pairs in alphabetical order", [("a", "c"), ("b", "ac")], learn, {"bac": 1}, 2)


@cases("backward.dense_gelu_backward")
def _():
    inputs = t([1.0, 2.0]), t([2.0, -1.0]), t(0.0), t([4.0])
    expected = t([4.0, -2.0]), t([2.0, 4.0]), t(2.0)
    yield example(
        "z = 0: half of the gradient comes back", expected, backward.dense_gelu_backward, *inputs
    )
    ones = t([1.0]), t([1.0]), t(0.0), t([1.0])
    slope = t([1.08332]), t([1.08332]), t(1.08332)  # 0.84134 + 0.24197
    yield example("z = 1: P(1) + p(1)", slope, backward.dense_gelu_backward, *ones)
    back = backward.dense_gelu_backward
    zero = torch.zeros(1).double()
    yield trap(
        "z = 40: all of it",
        (d([3.0]), d([120.0]), d(3.0)),
        back,
        d([40.0]),
        d([1.0]),
        zero,
        d([3.0]),
    )


def costs(forward: int, weights: int, probabilities: int) -> dict[str, int]:
    """All six, by hand from three."""
    found = {"forward": forward, "backward": 2 * forward, "weights": weights, "gradients": weights}
    return found | {"moments": 2 * weights, "probabilities": probabilities}


@cases("sheet.training_step")
def _():
    step = sheet.training_step
    config = BertConfig(2, 2, 1, 1, 4, 3)
    # 7 rows of tables, two LayerNorms of the layer and one before it, 4 + 2 matrices: 14 + 12 + 32
    # + 14 = 72 numbers
    yield example("one layer of width 2, three tokens", costs(264, 4 * 72, 36), step, config, 1, 3)
    # 54 numbers and 264 operations a layer; the heads share the columns, but each has probabilities
    # of its own
    config = BertConfig(2, 2, 5, 2, 4, 3)
    yield trap(
        "five layers, two heads", costs(5 * 264, 4 * (18 + 5 * 54), 5 * 72), step, config, 1, 3
    )


@cases("paired.paired_gain")
def _():
    a = [70, 74, 72, 76]
    b = [69, 72, 71, 74]  # differences 1, 2, 1, 2
    yield example(
        "four pairs: 1.5, half of sqrt(1/3)",
        (1.5, 0.28868, 0.92265, 2.07735),
        paired.paired_gain,
        a,
        b,
    )
    gain = paired.paired_gain
    a = np.array([5.0, 3.0, 4.0])
    yield trap("every run ahead by 2: no doubt", (2.0, 0.0, 2.0, 2.0), gain, a, a - 2)
    yield trap("two pairs, once ahead, once behind", (0.0, 1.0, -2.0, 2.0), gain, [1, 0], [0, 1])
