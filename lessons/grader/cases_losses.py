"""Hand examples and traps of lessons 10, 11, 24 and 28: losses, schedule, optimizer, parts."""

import math
import weakref
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from lessons.by_hand import geometry
from lessons.by_hand import losses as by_hand
from lessons.grader.cases import cases, d, example, t, trap
from minisbert.core import loop, losses
from minisbert.training import gradient_cache, masked
from minisbert.training import losses as more_losses

EYE = [[1.0, 0.0], [0.0, 1.0]]
ACROSS = [[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]  # two pairs with cosines 1 and 0


def s(value: float) -> Tensor:
    """A scalar of float64."""
    return torch.tensor(value, dtype=torch.float64)


def f(value: float) -> Tensor:
    """A scalar of float32."""
    return torch.tensor(value)


# ------------------------------------------------------------------------------- pairs and triplets


@cases("losses.softmax_cross_entropy_loss")
def _():
    loss = losses.softmax_cross_entropy_loss
    logits = t([0.0, 0.0, math.log(2.0)])
    yield example("logits 0, 0, log 2, label 2", f(0.69315), loss, logits, torch.tensor([2]))
    yield trap("logits of 1e4", s(1e4), loss, d([1e4, 0.0], [0.0, 1e4]), torch.tensor([1, 0]))
    yield trap(
        "rows of 0 and of 2000",
        s(math.log(2)),
        loss,
        d([0.0, 0.0], [2000.0, 2000.0]),
        torch.tensor([0, 1]),
    )


@cases("losses.contrastive_loss")
def _():
    for label, expected in ((1, 0.04289), (0, 0.02145)):
        pair = t([1.0, 0.0]), t([1.0, 1.0]), torch.tensor([label])
        yield example(
            f"45 degrees apart, label {label}", f(expected), losses.contrastive_loss, *pair
        )
    u = d([3.0, 4.0])
    v = d([-3.0, -4.0])
    yield trap("beyond the margin: 0", s(0.0), losses.contrastive_loss, u, v, torch.tensor([0]))


@cases("losses.triplet_loss")
def _():
    rows = t([0.0, 0.0]), t([3.0, 4.0]), t([0.0, 4.5])
    yield example("distances 5 and 4.5", f(1.5), losses.triplet_loss, *rows)
    a = d([0.0, 0.0])
    n = d([0.0, 4.5])

    def slope() -> Tensor:
        anchor = a.clone().requires_grad_()
        return torch.autograd.grad(losses.triplet_loss(anchor, a, n, margin=9.0), anchor)[0]

    yield trap("the gradient where anchor equals positive", d([0.0, 1.0]), slope)
    yield trap("a distance of 0 is 0", s(4.5), losses.triplet_loss, a, a, n, margin=9.0)
    # 5 - 4.5 + 1 = 1.5, and 3 - 9 + 1 = -5, which counts as 0
    pair = d([0.0, 0.0], [0.0, 0.0]), d([3.0, 4.0], [0.0, 3.0]), d([0.0, 4.5], [0.0, 9.0])
    yield trap("one breaks the margin, one keeps it by far", s(0.75), losses.triplet_loss, *pair)


@cases("losses.cosent_loss")
def _():
    u, v = map(torch.tensor, ACROSS)
    name = "cosines 1 and 0 for targets 0 and 1"
    yield example(name, f(1.31326), more_losses.cosent_loss, u, v, t(0.0, 1.0), scale=1.0)
    u, v = (torch.tensor(x).double() for x in ACROSS)
    yield trap("equal targets set no order: 0", s(0.0), more_losses.cosent_loss, u, v, d(0.5, 0.5))
    yield trap(
        "scale 5000, all wrong", s(5000.0), more_losses.cosent_loss, u, v, d(0.0, 1.0), scale=5000.0
    )


# ------------------------------------------------------------------------------- in-batch negatives


@cases("losses.multiple_negatives_ranking_loss")
def _():
    loss = losses.multiple_negatives_ranking_loss
    anchors = torch.tensor(EYE)
    positives = t([1.0, 0.0], [1.0, 1.0])
    yield example("scale 1", f(0.47911), loss, anchors, positives, scale=1.0)
    hard = t([0.0, 3.0])
    yield example("a hard negative", f(0.89502), loss, anchors, positives, hard, scale=1.0)
    u = torch.tensor(EYE).double()
    yield trap("scale 1e4, all wrong", s(1e4), loss, u, u.flip(0), scale=1e4)


@cases("losses.simcse_loss")
def _():
    loss = losses.simcse_loss
    u = torch.tensor(EYE)
    hard = t([0.0, 1.0], [1.0, 0.0])
    yield example("u = v", f(0.31326), loss, u, u, temperature=1.0)
    yield example(
        "cosines 1, 0.8 and 0, 0.6 at temperature 0.05",
        f(0.00908),
        loss,
        u,
        t([1.0, 0.0], [0.8, 0.6]),
    )
    yield example("with hard negatives", f(1.00641), loss, u, u, hard, 1.0)
    u = torch.tensor(EYE).double()
    yield trap("temperature 2^-13, all wrong", s(8192.0), loss, u, u.flip(0), temperature=2.0**-13)


@cases("losses.nt_xent_loss")
def _():
    yield example(
        "u = v",
        f(0.55144),
        by_hand.nt_xent_loss,
        torch.tensor(EYE),
        torch.tensor(EYE),
        temperature=1.0,
    )
    u = torch.tensor(EYE).double()
    # the right one has cosine 0, one of the wrong ones 1
    yield trap(
        "temperature 2^-13, all wrong",
        s(8192.0),
        by_hand.nt_xent_loss,
        u,
        u.flip(0),
        temperature=2.0**-13,
    )


# ----------------------------------------------------------------------------------------- geometry


@cases("geometry.alignment")
def _():
    rows = np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[1.0, 0.0], [1.0, 1.0]])
    yield example("equal, and 45 degrees apart", 0.29289, geometry.alignment, *rows)
    u = np.array([[3.0, 4.0]])
    yield trap("one way, other lengths: 0", 0.0, geometry.alignment, u, 2 * u)


@cases("geometry.uniformity")
def _():
    three = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    yield example("right, up, left", -4.39635, geometry.uniformity, three)
    opposite = np.array([[1.0, 0.0], [-5.0, 0.0]])
    yield trap("two opposite rows", -8.0, geometry.uniformity, opposite)


# ----------------------------------------------------------------------------------------- training


@cases("losses.mse_loss")
def _():
    yield example("0.5 for 0.1, 0 for 0", f(0.08), losses.mse_loss, t(0.5, 0.0), t(0.1, 0.0))
    yield trap("a batch of one", s(9.0), losses.mse_loss, d(1.0), d(4.0))


@cases("losses.cosine_mse_loss")
def _():
    pair = t([1.0, 0.0]), t([1.0, 1.0]), t(0.5)
    yield example("45 degrees apart, target 0.5", f(0.04289), losses.cosine_mse_loss, *pair)
    u = d([3.0, 4.0])
    yield trap("opposite, target 1", s(4.0), losses.cosine_mse_loss, u, -u, d(1.0))


@cases("loop.linear_schedule")
def _():
    for step, share in enumerate((0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0)):
        yield example(f"step {step} of 6, warm-up 2", share, loop.linear_schedule, step, 2, 6)
    yield trap("no warm-up, first step", 1.0, loop.linear_schedule, 0, 0, 4)
    yield trap("nothing but warm-up, the end", 0.0, loop.linear_schedule, 4, 4, 4)
    yield trap("one step after the warm-up", 1.0, loop.linear_schedule, 3, 3, 4)


@cases("loop.adamw_step")
def _():
    one = t(1.0)
    four = t(4.0)
    zero = t(0.0)
    expected = t(0.9), t(0.4), t(0.016)
    yield example(
        "parameter 1, gradient 4, lr 0.1",
        expected,
        loop.adamw_step,
        one,
        four,
        zero,
        zero,
        1,
        0.1,
        0.0,
    )
    expected = t(0.95), zero, zero
    yield example(
        "gradient 0, lr 0.1, decay 0.5",
        expected,
        loop.adamw_step,
        one,
        zero,
        zero,
        zero,
        1,
        0.1,
        0.5,
    )
    yield example(
        "the same, decay not given",
        (t(0.999), zero, zero),
        loop.adamw_step,
        one,
        zero,
        zero,
        zero,
        1,
        0.1,
    )
    zero = d([0.0])
    step = loop.adamw_step
    # mean and corrected root are 1e-12, far below eps: 0.1 * 1e-12 / (1e-12 + 1e-8)
    small = (d([-1e-13 / 1.0001e-8]), d([1e-13]), d([1e-27]))
    yield trap(
        "a tiny gradient: eps outside the root",
        small,
        step,
        zero,
        d([1e-12]),
        zero,
        zero,
        1,
        0.1,
        0.0,
    )


# --------------------------------------------------------------------------------- batches in parts


class Times(nn.Module):
    """Row i -> (1, 1): 3 times 1, 2 or 4; ``noise`` multiplies at random, as dropout does.

    ``kept`` counts the parts that found the graph of an earlier one still in memory.
    """

    def __init__(self, noise: bool = False):
        super().__init__()
        self.weight = nn.Parameter(s(3.0))
        self.noise = noise
        self.earlier: list[weakref.ref] = []
        self.kept = 0

    def forward(self, rows: list[int]) -> Tensor:
        self.kept += any(graph() is not None for graph in self.earlier)
        x = d(1.0, 2.0, 4.0)[rows] * (
            torch.rand(len(rows), dtype=torch.float64) if self.noise else 1
        )
        vectors = (self.weight * x * self.training)[:, None, None]  # (b, 1, 1)
        self.earlier += [weakref.ref(vectors)] if vectors.requires_grad else []
        return vectors


def noises(*parts: int) -> list[Tensor]:
    """The random numbers that ``Times`` draws from seed 0 for parts of these sizes."""
    torch.manual_seed(0)
    return [torch.rand(size, dtype=torch.float64) for size in parts]


@cases("gradient_cache.cut")
def _():
    parts = [[0, 1], [2, 3]]
    yield example(
        "2 * 50 and 2 * 40 of 100 tokens",
        parts,
        gradient_cache.cut,
        [0, 1, 2, 3],
        [30, 50, 20, 40],
        100,
    )
    parts = [[2, 0], [1], [3]]
    yield example(
        "2 * 30, 50 and 40 of 60 tokens",
        parts,
        gradient_cache.cut,
        [2, 0, 1, 3],
        [30, 50, 20, 40],
        60,
    )
    name = "a row longer than a part may be, in front, between and at the end"
    yield trap(
        name, [[1], [0, 0], [1], [0], [1]], gradient_cache.cut, [1, 0, 0, 1, 0, 1], [4, 9], 8
    )
    yield trap("rows stay in order", [[0], [1], [2]], gradient_cache.cut, [0, 1, 2], [3, 9, 3], 9)


@cases("gradient_cache.vectors_in_parts")
def _():
    run = lambda: gradient_cache.vectors_in_parts(Times(), [[2, 0], [1]])[0]  # noqa: E731
    yield example("3 times 4, 1 and 2", d([[12.0]], [[3.0]], [[6.0]]), run)

    def left(answer: Callable[[Times], object]) -> object:
        network = Times()
        gradient_cache.vectors_in_parts(network, [[2, 0], [1], [0]])
        return answer(network)

    yield trap("no part's graph is kept for the next", 0, left, lambda network: network.kept)
    yield trap("still in training mode", True, left, lambda network: network.training)


def replayed(parts: list[list[int]], gradient: Tensor, noise: bool = False) -> Tensor:
    """The weight's gradient after ``replay`` from the states of seed 0."""
    network = Times(noise)
    states = []
    torch.manual_seed(0)
    for part in parts:
        states.append({"cpu": torch.get_rng_state()})
        # One more: the next state does not follow from this one.
        torch.rand(len(part) + 1, dtype=torch.float64)
    with torch.no_grad():  # as in the middle of a backward
        gradient_cache.replay(network, parts, states, gradient)
    return network.weight.grad if network.training else s(math.nan)


@cases("gradient_cache.replay")
def _():
    yield example(
        "rows 1 and 2, pulled by 6 and 3", s(12.0), replayed, [[0], [1]], d([[6.0]], [[3.0]])
    )
    yield example("in one part", s(12.0), replayed, [[0, 1]], d([[6.0]], [[3.0]]))
    first, _, second = noises(1, 1, 2)
    gradient = d([[6.0]], [[3.0]], [[5.0]])
    expected = 6 * 4 * first[0] + 3 * 1 * second[0] + 5 * 2 * second[1]
    yield trap(
        "the random numbers of the first forward",
        expected,
        replayed,
        [[2], [0, 1]],
        gradient,
        noise=True,
    )


# ------------------------------------------------------------------------------------ masked words

MASK = 4


@cases("masked.mask_tokens")
def _():
    hide = masked.mask_tokens
    ids = torch.tensor([[5, 6, 7, 8]])
    other = torch.tensor([[50, 60, 70, 80]])
    chance = torch.tensor([[0.11, 0.13, 0.14, 0.5]])
    expected = torch.tensor([[MASK, 60, 7, 8]]), torch.tensor([[True, True, True, False]])
    yield example("one of each", expected, hide, ids, torch.ones_like(ids), MASK, chance, other)
    chance = torch.tensor([[0.125, 0.15, 0.14, 0.99]])
    expected = torch.tensor([[15, 6, 7, 8]]), torch.tensor([[True, False, True, False]])
    ids = torch.tensor([[5, 6, 7, 8]])
    yield trap(
        "a draw of exactly .15",
        expected,
        hide,
        ids,
        torch.ones_like(ids),
        MASK,
        chance.double(),
        ids + 10,
    )


@cases("losses.mlm_loss")
def _():
    loss = by_hand.mlm_loss
    logits = t([0.0, 0.0, math.log(2.0)])
    yield example("logits 0, 0, log 2, word 2", f(0.69315), loss, logits, torch.tensor([2]))
    yield trap(
        "logits of 1000 do not overflow", s(1000.0), loss, d([1000.0, 0.0]), torch.tensor([1])
    )
