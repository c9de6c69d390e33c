"""Hand examples and traps of ``lessons/by_hand``: merges, gradients, costs, a gain in pairs, and
where two models part.
"""

import numpy as np
import torch

from lessons.by_hand import backward, divergence, paired, sheet, vocabulary
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
    # a n stands twice in banana, so it is as frequent as b a, which stands in both words
    twice = {"banana": 1, "bar": 1}
    yield trap("a pair twice in one word", [("a", "n")], learn, twice, 1)
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


@cases("backward.measured_gradient")
def _():
    measure = backward.measured_gradient

    def squares(x: torch.Tensor) -> torch.Tensor:
        return (x * x).sum()

    def products(x: torch.Tensor) -> torch.Tensor:
        """x0^2 + 3 x0 x1: the slopes are 2 x0 + 3 x1 and 3 x0."""
        return x[0] * x[0] + 3 * x[0] * x[1]

    # with any h: the difference of a square to both sides is exact
    yield example(
        "the sum of squares at [1, 3], h = 1/2", t(2.0, 6.0), measure, squares, t(1.0, 3.0), 0.5
    )
    yield example(
        "x0^2 + 3 x0 x1 at [1, 2], h = 1/4", t(8.0, 3.0), measure, products, t(1.0, 2.0), 0.25
    )
    matrix = d([1.0, -2.0], [0.5, 4.0])
    yield trap("a matrix", 2 * matrix, measure, squares, matrix, 0.5)
    yield trap("a single number", d(6.0)[0], measure, squares, d(3.0)[0], 0.5)


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


@cases("divergence.first_divergence")
def _():
    def found(*theirs: tuple[str, list], tolerance: float = 0.1) -> str:
        """Two texts of two tokens, of which the last is a pad, against ours: first 1, then 2."""
        mask = torch.tensor([[True, True], [True, False]])
        ours = {"embeddings": torch.ones(2, 2, 1), "layers.0": torch.full((2, 2, 1), 2.0)}
        tensors = {name: torch.tensor(values).reshape(2, 2, 1) for name, values in theirs}
        return divergence.first_divergence(ours, tensors, mask, tolerance)

    first = ("embeddings", [1.0, 1.0, 1.0, 1.0])
    second = ("layers.0", [2.0, 2.0, 2.0, 2.0])
    yield example("both equal", "", found, first, second)
    yield example("by .05, tolerance .1", "", found, first, ("layers.0", [2.0, 2.05, 2.0, 2.0]))
    wrong = ("layers.0", [2.0, 2.5, 2.0, 2.0])
    yield example("the second by .5", "layers.0", found, first, wrong)
    both = ("embeddings", [1.0, 1.0, 0.5, 1.0])
    yield example("both by .5", "embeddings", found, both, wrong)
    yield trap("ours decides the order", "embeddings", found, wrong, both)
    yield trap("a pad of 100", "", found, ("embeddings", [1.0, 1.0, 1.0, 100.0]), second)
    nan = float("nan")
    yield trap("NaN at a token", "layers.0", found, first, ("layers.0", [2.0, nan, 2.0, 2.0]))
    yield trap("NaN at a pad", "", found, first, ("layers.0", [2.0, 2.0, 2.0, nan]))
    yield trap("theirs has no embeddings", "layers.0", found, wrong)
