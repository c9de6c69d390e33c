"""AdamW by hand equals ``torch.optim.AdamW``; ``fit`` schedules, clips, stops and refuses to diverge.

Micro-batches and the rates of parameter groups are compared with torch's in ``pipeline_checks.fit_steps``.
"""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from lessons.by_hand.adamw import AdamW
from minisbert.core import InputError
from minisbert.core.loop import Diverged, adamw, adamw_step, fit, linear_schedule

# -------------------------------------------------------------------------------------------- AdamW


def test_the_decay_of_each_optimizer_by_default():
    """0.01 in the formula and its class, as in the paper's code and PyTorch; none in the one that runs use."""
    zero = torch.zeros(1)
    assert adamw_step(torch.ones(1), zero, zero, zero, 1, lr=0.5)[0].item() == pytest.approx(0.995)
    for optimizer, left in ((AdamW, 0.995), (adamw, 1.0)):
        parameter = nn.Parameter(torch.ones(1))
        parameter.grad = torch.zeros(1)
        optimizer([parameter], lr=0.5).step()
        assert parameter.item() == pytest.approx(left)
    assert adamw([zero], lr=0.5).defaults["fused"], "all parameters in one kernel"


def test_a_parameter_without_gradient_does_not_change():
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    used.grad = torch.ones(2)
    AdamW([used, unused], lr=0.1).step()
    assert unused.tolist() == [1.0, 1.0]
    assert used.tolist() == pytest.approx([0.899, 0.899])


# ---------------------------------------------------------------------------------------------- fit

ROWS = list(range(8))
X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.randn(8, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
BATCHES = [[0, 1, 2, 3], [4, 5, 6, 7], [7, 0, 5], [2, 6], [1, 3, 4, 5, 6]]


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 1).double()


def two_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()


def two_rates(model: nn.Sequential) -> list[dict]:
    """Parameter groups: the first layer at the optimizer's learning rate, the second at 0.3."""
    return [{"params": list(model[0].parameters())}, {"params": list(model[2].parameters()), "lr": 0.3}]


def squares(model: nn.Module, rows: list[int]) -> Tensor:
    """The mean squared error of some rows."""
    return (model(X[rows]) - Y[rows]).pow(2).mean()


def constant(step: int) -> float:
    return 1.0


def ramp(step: int) -> float:
    return linear_schedule(step, 2, 6)


def largest_difference(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, adamw])
@pytest.mark.parametrize("weight_decay", [0.0, 0.2])
def test_twenty_steps_equal_torchs_optimizer(kind, weight_decay):
    by_hand, reference = two_layers(), two_layers()
    for model, each in ((by_hand, AdamW), (reference, kind)):
        optimizer = each(two_rates(model), lr=0.01, weight_decay=weight_decay)
        list(fit(model, squares, [ROWS] * 20, optimizer, lambda step: 1 - step / 20))
    assert largest_difference(by_hand, reference) <= 1e-12


def test_stopping_after_some_steps_leaves_the_model_as_those_steps_do():
    stopped, short = linear(), linear()
    steps = fit(stopped, squares, BATCHES, adamw(list(stopped.parameters()), lr=0.1), ramp)
    for _ in range(3):
        next(steps)
    steps.close()
    list(fit(short, squares, BATCHES[:3], adamw(list(short.parameters()), lr=0.1), ramp))
    assert largest_difference(stopped, short) == 0


def test_start_continues_the_schedule():
    whole, resumed = linear(), linear().eval()
    expected = list(fit(whole, squares, BATCHES, adamw(list(whole.parameters()), lr=0.1), ramp))
    optimizer = adamw(list(resumed.parameters()), lr=0.1)
    found = list(fit(resumed, squares, BATCHES[:2], optimizer, ramp))
    found += fit(resumed, squares, BATCHES[2:], optimizer, ramp, start=2)
    assert found == expected
    assert [step.multiplier for step in found] == [0, 0.5, 1, 0.75, 0.5]
    assert [step.number for step in found] == [1, 2, 3, 4, 5]
    assert largest_difference(whole, resumed) == 0
    assert (whole.training, resumed.training) == (True, False)  # the mode does not change


def gradient_norm(model: nn.Module) -> float:
    return math.hypot(*(parameter.grad.norm().item() for parameter in model.parameters()))


def test_clip_bounds_the_norm_of_the_whole_gradient():
    free, clipped, loose = linear(), linear(), linear()
    for model, clip in ((free, math.inf), (clipped, 0.125), (loose, 1e6)):
        next(fit(model, squares, BATCHES, torch.optim.SGD(model.parameters(), lr=1.0), constant, clip=clip))
    norm = gradient_norm(free)
    assert norm > 0.25
    assert gradient_norm(clipped) == pytest.approx(0.125, rel=1e-5)  # torch divides by the norm + 1e-6
    assert gradient_norm(loose) == norm
    for one, other in zip(clipped.parameters(), free.parameters(), strict=True):
        assert torch.allclose(one.grad * norm, other.grad * 0.125, rtol=1e-5)  # the direction does not change


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda loss: loss + math.inf, r"step 3: loss inf, gradient norm 1\.358"),  # only the loss is not finite
        (lambda loss: loss * 0 + (loss * 0).sqrt(), "step 3: loss 0, gradient norm nan"),  # the slope of a root at 0
    ],
)
def test_divergence_is_raised_before_the_step(spoil, message):
    model = linear()
    batches = [*BATCHES[:2], "spoiled"]

    def loss(model: nn.Module, batch: list[int]) -> Tensor:
        return spoil(squares(model, ROWS)) if batch == "spoiled" else squares(model, batch)

    steps = fit(model, loss, batches, adamw(list(model.parameters()), lr=0.1), constant)
    next(steps), next(steps)
    before = copy.deepcopy(model)
    with pytest.raises(Diverged, match=message) as error:
        next(steps)
    assert isinstance(error.value, InputError)
    assert largest_difference(model, before) == 0
