"""AdamW by hand equals ``torch.optim.AdamW``."""

import copy

import pytest
import torch
from torch import nn

from minisbert.core.loop import AdamW, adamw_step


def test_the_example():
    one, gradient, zero = (torch.tensor(x, dtype=torch.float64) for x in (1.0, 4.0, 0.0))
    found = adamw_step(one, gradient, zero, zero, step=1, lr=0.1, weight_decay=0.0)
    assert torch.stack(found).tolist() == pytest.approx([0.9, 0.4, 0.016], abs=1e-9)


def test_the_second_step_by_hand():
    found = adamw_step(*map(torch.tensor, (1.0, 0.0, 0.4, 0.016)), step=2, lr=0.1, weight_decay=0.5)
    # mean 0.36 / 0.19, square 0.015984 / 0.001999, parameter 1 - 0.05 and then less 0.1 * 1.8947 / 2.8277
    assert torch.stack(found).tolist() == pytest.approx([0.882996, 0.36, 0.015984], abs=1e-5)


def test_the_inputs_stay_as_they_are():
    given = [torch.full((2, 3), x) for x in (1.0, 2.0, 3.0, 4.0)]
    before = [x.clone() for x in given]
    adamw_step(*given, step=3, lr=0.1)
    assert all(torch.equal(x, y) for x, y in zip(given, before, strict=True))


def test_a_gradient_of_zero_leaves_only_the_decay():
    zero = torch.zeros(1)
    assert adamw_step(torch.ones(1), zero, zero, zero, 1, lr=0.1, weight_decay=0.5)[0].item() == pytest.approx(0.95)


@pytest.mark.parametrize("weight_decay", [0.0, 0.2])
def test_twenty_steps_beside_torch(weight_decay):
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    theirs = copy.deepcopy(ours)
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.randn(8, 1, dtype=torch.float64)
    for model, kind in ((ours, AdamW), (theirs, torch.optim.AdamW)):
        optimizer = kind(
            [{"params": list(model[0].parameters())}, {"params": list(model[2].parameters()), "lr": 0.3}],
            lr=0.01,
            weight_decay=weight_decay,
        )
        for step in range(20):
            optimizer.param_groups[0]["lr"] = 0.01 * (1 - step / 20)  # a schedule
            optimizer.zero_grad()
            (model(x) - y).pow(2).mean().backward()
            optimizer.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert (a - b).abs().max().item() <= 1e-12


def test_a_parameter_without_gradient_is_left_alone():
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = AdamW([used, unused], lr=0.1)
    used.sum().backward()
    optimizer.step()
    assert unused.tolist() == [1.0, 1.0]
    assert used.tolist() == pytest.approx([0.899, 0.899])
