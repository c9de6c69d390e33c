"""Hand examples and traps of lessons 8, 9 and 15: poolings, correlations, heads, their losses."""

import math

import numpy as np
import torch

from lessons.by_hand import losses as by_hand
from lessons.grader.cases import cases, d, example, t, trap, with_weights
from minisbert.core import heads, metrics, pooling
from minisbert.training import losses as more_losses
from tests.parity.comparison import normal, randomised
from tests.parity.encoder import torch_attention

EYE = [[1.0, 0.0], [0.0, 1.0]]
REAL = torch.tensor([[True, True, False]])  # two tokens and a pad

# ------------------------------------------------------------------------------------------ pooling


@cases("pooling.mean_pool")
def _():
    hidden = t([[1.0, -1.0], [3.0, -5.0], [100.0, 0.0]])
    yield example("[1, -1], [3, -5] and a pad", t([2.0, -3.0]), pooling.mean_pool, hidden, REAL)
    yield from pool_traps(pooling.mean_pool, d([-2.0, -1.0]))
    yield trap(
        "a token of zeros counts",
        d([1.0, 2.0]),
        pooling.mean_pool,
        d([[0.0, 0.0], [2.0, 4.0]]),
        REAL[:, :2],
    )


@cases("pooling.max_pool")
def _():
    hidden = t([[-1.0, 2.0], [-3.0, 4.0], [100.0, 0.0]])
    yield example("[-1, 2], [-3, 4] and a pad", t([-1.0, 4.0]), pooling.max_pool, hidden, REAL)
    yield from pool_traps(pooling.max_pool, d([-1.0, 2.0]))

    def slope() -> torch.Tensor:
        hidden = d([[3.0], [3.0], [9.0]]).requires_grad_()
        return torch.autograd.grad(pooling.max_pool(hidden, REAL).sum(), hidden)[0].sum()

    yield trap("equal tokens: all of the gradient is theirs", d(1.0)[0], slope)


def pool_traps(pool, both):
    """Of mean and max alike; ``both`` is what the tokens [-1, 2] and [-3, -4] give."""
    hidden = d([[-1.0, 2.0], [-3.0, -4.0], [-1e30, 1e30]])
    yield trap("1e30 at a pad", both, pool, hidden, REAL)
    yield trap(
        "NaN at a pad", both, pool, hidden * d([[1.0, 1.0], [1.0, 1.0], [math.nan, 1.0]]), REAL
    )
    yield trap("a mask of 0 and 1", both, pool, hidden, REAL.long())
    yield trap("no mask", both, pool, hidden[:, :2], None)


@cases("pooling.attention_pool")
def _():
    hidden = t([[0.0], [1.0], [7.0]])
    weight = t([math.log(3.0)])
    bias = t(2.0)
    yield example(
        "shares 1/4 and 3/4, and a pad",
        t([0.75]),
        pooling.attention_pool,
        hidden,
        REAL,
        weight,
        bias,
    )
    hidden = d([[1.0, 2.0], [3.0, -4.0], [9.0, 9.0]])
    zero = d(0.0)
    pool = pooling.attention_pool
    broken = hidden.where(hidden < 9, math.nan)
    yield trap(
        "NaN at a pad, weight 0: the mean", d([2.0, -1.0]), pool, broken, REAL, d([0.0, 0.0]), zero
    )
    yield trap(
        "large scores: one token takes all", d([3.0, -4.0]), pool, hidden, REAL, d([1e4, 0.0]), zero
    )
    yield trap(
        "a mask of 0 and 1",
        d([1.0, 2.0]),
        pool,
        hidden,
        torch.tensor([[1, 0, 0]]),
        d([1.0, 1.0]),
        zero,
    )


# ------------------------------------------------------------------------------------- correlations


@cases("metrics.pearson")
def _():
    yield example("pearson([1, 2, 3], [1, 2, 4])", 0.98198, metrics.pearson, [1, 2, 3], [1, 2, 4])
    yield example("pearson([1, 2, 3], [6, 4, 2])", -1.0, metrics.pearson, [1, 2, 3], [6, 4, 2])
    x = np.array([1.0, 2.0, 3.0, 5.0])
    y = np.array([2.0, 1.0, 4.0, 6.0])
    plain = float(np.corrcoef(x, y)[0, 1])
    yield trap("numbers around 1e9", plain, metrics.pearson, x + 1e9, y + 1e9)


@cases("metrics.ranks")
def _():
    yield example(
        "ranks([30, 10, 10, 20])", np.array([4.0, 1.5, 1.5, 3.0]), metrics.ranks, [30, 10, 10, 20]
    )
    yield trap(
        "nearly equal is not equal",
        np.array([1.0, 2.0]),
        metrics.ranks,
        np.array([1.0, 1.0 + 1e-15]),
    )


@cases("metrics.spearman")
def _():
    yield example("spearman([1, 2, 3], [1, 2, 400])", 1.0, metrics.spearman, [1, 2, 3], [1, 2, 400])
    yield example("spearman([1, 1, 2], [1, 2, 3])", 0.86603, metrics.spearman, [1, 1, 2], [1, 2, 3])
    x = np.arange(6.0)
    yield trap("any growing curve", 1.0, metrics.spearman, x, np.exp(50 * x))


# -------------------------------------------------------------------------------------------- heads


@cases("heads.combine")
def _():
    u = t([1.0, 2.0])
    v = t([3.0, 1.0])
    for parts, expected in (
        (("|u-v|", "u*v"), [2.0, 1.0, 3.0, 2.0]),
        (("v", "u"), [3.0, 1.0, 1.0, 2.0]),
    ):
        yield example(
            f"[1, 2] and [3, 1], {', '.join(parts)}", t(expected), heads.combine, u, v, parts
        )
    yield trap("one part alone", v, heads.combine, u, v, ["v"])


@cases("heads.JointHead.forward")
def _():
    head = with_weights(
        heads.JointHead(2, hidden=0), mlp__0__weight=[[1.0, 10.0]], mlp__0__bias=[0.5]
    )
    yield example("weights 1 and 10, bias 0.5", t([21.5]), head, t([[1.0, 2.0], [7.0, 7.0]]))
    head = randomised(heads.JointHead(6, hidden=4, outputs=3))
    x = normal(1, 1, 6).detach()
    yield trap("one pair of one token, three outputs", head.mlp(x[0]), head, x)


@cases("heads.CrossAttention.forward")
def _():
    module = with_weights(
        heads.CrossAttention(2, 1), value__weight=EYE, output__weight=EYE, output__bias=[0.0, 1.0]
    )
    b = t([[1.0, 2.0], [3.0, 4.0], [90.0, 90.0]])
    yield example(
        "equal shares of b's two real tokens, + [0, 1]",
        t([[2.0, 4.0]]),
        module,
        t([[5.0, 5.0]]),
        b,
        REAL,
    )
    module = randomised(heads.CrossAttention(6, 2))
    a = normal(2, 3, 6).detach()
    b = normal(2, 4, 6, seed=1).detach()
    mask = torch.tensor([[True] * 4, [True, False, False, False]])
    theirs = lambda *x: torch_attention(module, *x)[0]  # noqa: E731
    yield trap("no mask, other lengths", theirs(a, b, None), module, a, b)
    yield trap("a mask of 0 and 1, nearly all pads", theirs(a, b, mask), module, a, b, mask.long())


@cases("heads.CrossHead.forward")
def _():
    a = t([[5.0, 1.0], [9.0, 9.0]])
    b = t([[1.0, 2.0], [3.0, 4.0], [90.0, 90.0]])
    first = torch.tensor([[True, False]])
    weights = {"attention__value__weight": EYE, "attention__output__weight": EYE}
    # every token of a finds [2, 3]: |a - found| = [3, 2] and a * found = [10, 3]
    head = heads.CrossHead(2, heads=1, hidden=0)
    with_weights(head, **weights, mlp__0__weight=[[1.0, 10.0, 100.0, 1000.0]])
    yield example("[5, 1] finds [2, 3]", t([4023.0]), head, a, b, first, REAL)
    head = randomised(heads.CrossHead(8, heads=2, hidden=0))
    a = normal(1, 3, 8).detach()
    b = normal(1, 3, 8, seed=1).detach()
    mask_a = torch.tensor([[True, True, False]])
    mask_b = torch.tensor([[True, False, False]])
    found = torch_attention(head.attention, a, b, mask_b)[0]
    # The third token of a is a pad.
    compared = torch.cat([(a - found).abs(), a * found], -1)[:, :2].mean(1)
    expected = compared @ head.mlp[0].weight.T
    yield trap(
        "other masks of one length",
        expected + head.mlp[0].bias,
        head,
        a,
        b,
        mask_a,
        mask_b,
    )


# ------------------------------------------------------------------------------------------- losses


@cases("losses.weighted_mse_loss")
def _():
    loss = by_hand.weighted_mse_loss
    scores = t(0.5, 0.5)
    target = t(0.1, 0.9)
    yield example("0.5 for 0.1 and for 0.9", torch.tensor(0.24), loss, scores, target)
    yield trap("at the threshold the weight is 1", d(0.09)[0], loss, d(0.5), d(0.2))


@cases("losses.binary_cross_entropy_loss")
def _():
    loss = more_losses.binary_cross_entropy_loss
    name = "logits 0 and 2, labels 1 and 0, pos_weight 2"
    labels = torch.tensor([1, 0])
    yield example(name, torch.tensor(1.75661), loss, t(0.0, 2.0), labels, pos_weight=2.0)
    yield trap(
        "logits of 800, both wrong", d(800.0)[0], loss, d(800.0, -800.0), torch.tensor([0, 1])
    )
    soft = 0.25 * math.log1p(math.exp(-2)) + 0.75 * (2 + math.log1p(math.exp(-2)))
    yield trap("logit 2, a label of 0.25", d(soft)[0], loss, d(2.0), d(0.25))
