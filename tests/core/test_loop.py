"""AdamW by hand equals ``torch.optim.AdamW``; ``fit`` continues. The grader has the other cases of
both.
"""

import pytest
import torch
from torch import Tensor, nn

from lessons.by_hand.adamw import AdamW
from minisbert.core.loop import adamw, adamw_step, fit, linear_schedule

# -------------------------------------------------------------------------------------------- AdamW


def test_the_decay_of_each_optimizer_by_default():
    """0.01 in the formula and its class, as in the paper's code and PyTorch; none in the one that
    runs use.
    """
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
    by_hand, reference = two_layers(), two_layers()
    for model, each in ((by_hand, AdamW), (reference, kind)):
        groups = [
            {"params": list(model[0].parameters())},
            {"params": list(model[2].parameters()), "lr": 0.3},
        ]
        optimizer = each(groups, lr=0.01, weight_decay=weight_decay)
        list(fit(model, squares, [ROWS] * 20, optimizer, lambda step: 1 - step / 20))
    assert largest_difference(by_hand, reference) <= 1e-12


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
