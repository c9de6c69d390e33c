"""AdamW by hand equals ``torch.optim.AdamW``; ``fit`` continues.

The grader has the other cases of both.
"""

import pytest
import torch
from torch import Tensor, nn

from lessons.by_hand.adamw import AdamW
from minisbert.core.loop import adamw, adamw_step, fit, linear_schedule

# -------------------------------------------------------------------------------------------- AdamW


def test_the_formula_decays_by_default():
    """By 0.01, as in the paper's code and PyTorch."""
    zero = torch.zeros(1)
    parameter, _, _ = adamw_step(torch.ones(1), zero, zero, zero, 1, lr=0.5)
    assert parameter.item() == pytest.approx(0.995)


@pytest.mark.parametrize(("optimizer", "left"), [(AdamW, 0.995), (adamw, 1.0)])
def test_the_decay_of_each_optimizer_by_default(optimizer, left):
    """The class by hand has the formula's; the one that runs use has none."""
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.zeros(1)
    optimizer([parameter], lr=0.5).step()
    assert parameter.item() == pytest.approx(left)


def test_the_optimizer_of_runs_is_one_kernel():
    """All parameters together, not a kernel for each."""
    assert adamw([torch.zeros(1)], lr=0.5).defaults["fused"]


def test_a_parameter_without_gradient_does_not_change():
    """Not even by the decay, as in PyTorch: no vector needs the pooler."""
    used = nn.Parameter(torch.ones(2))
    unused = nn.Parameter(torch.ones(2))
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


def squares(model: nn.Module, rows: list[int]) -> Tensor:
    """The mean squared error of some rows."""
    return (model(X[rows]) - Y[rows]).pow(2).mean()


def ramp(step: int) -> float:
    return linear_schedule(step, 2, 6)


def largest_difference(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, adamw])
@pytest.mark.parametrize("weight_decay", [0.0, 0.2])
def test_twenty_steps_equal_torchs_optimizer(kind, weight_decay):
    """A small error in a running mean grows from step to step; the groups have their own rates."""
    by_hand = two_layers()
    reference = two_layers()
    for model, optimizer_class in ((by_hand, AdamW), (reference, kind)):
        groups = [
            {"params": list(model[0].parameters())},
            {"params": list(model[2].parameters()), "lr": 0.3},
        ]
        optimizer = optimizer_class(groups, lr=0.01, weight_decay=weight_decay)
        for _ in fit(model, squares, [ROWS] * 20, optimizer, lambda step: 1 - step / 20):
            pass
    assert largest_difference(by_hand, reference) <= 1e-12


def test_start_continues_the_schedule():
    """A resumed run makes the same steps, in the mode that the model is in."""
    whole = linear()
    resumed = linear().eval()
    expected = list(fit(whole, squares, BATCHES, adamw(list(whole.parameters()), lr=0.1), ramp))
    optimizer = adamw(list(resumed.parameters()), lr=0.1)
    found = list(fit(resumed, squares, BATCHES[:2], optimizer, ramp))
    found += fit(resumed, squares, BATCHES[2:], optimizer, ramp, start=2)
    assert found == expected
    assert [step.multiplier for step in found] == [0, 0.5, 1, 0.75, 0.5]
    assert [step.number for step in found] == [1, 2, 3, 4, 5]
    assert largest_difference(whole, resumed) == 0
    assert whole.training
    assert not resumed.training
