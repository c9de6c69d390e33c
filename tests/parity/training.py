"""Training: batches, the student's layers, schedules, the optimizer and the loop.

The references are torch's optimizer and schedulers, a plain loop and plain counting.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.core import bert, data, loop, losses, tokenizer
from minisbert.training import losses as more_losses
from tests.parity import PIECE, TRACE, Comparison, compare, golden
from tests.parity.comparison import fact, normal, padded, randomised, same
from tests.parity.encoder import NAMES, tiny
from tests.reference.plain_loop import losses_of_steps

# ----------------------------------------------------------------------------------------- batches


def padded_batches() -> Iterator[Comparison]:
    """Rows of 3, 1 and 4 ids; one real token has the pad's id."""
    ids, mask = tokenizer.pad_batch([[7, 0, 9], [5], [1, 2, 3, 4]], pad_id=0)
    yield compare(
        "padded ids", ids, torch.tensor([[7, 0, 9, 0], [5, 0, 0, 0], [1, 2, 3, 4]]), PIECE
    )
    expected = torch.tensor([[True, True, True, False], [True, False, False, False], [True] * 4])
    mask = torch.zeros(3, 4, dtype=torch.bool) if mask is None else mask
    yield compare("mask", mask.double(), expected.double(), PIECE)


def grouped_batches() -> Iterator[Comparison]:
    """Counts that hold for any random numbers."""
    lengths = torch.randperm(
        103, generator=torch.Generator().manual_seed(1)
    ).tolist()  # all different
    batches = data.length_grouped_batches(lengths, 10, torch.Generator().manual_seed(2))
    again = data.length_grouped_batches(lengths, 10, torch.Generator().manual_seed(2))
    other = data.length_grouped_batches(lengths, 10, torch.Generator().manual_seed(3))
    narrow = data.length_grouped_batches(lengths, 10, torch.Generator().manual_seed(2), window=2)
    for name, found in (("", batches), (", windows of 2", narrow)):
        rows = [row for batch in found for row in batch]
        yield same(f"visits of each row{name}", [*map(rows.count, range(103))], [1] * 103)
        sizes = padded(sorted(map(len, found), reverse=True), 12)
        yield compare(f"batch sizes{name}", sizes, padded([10] * 10 + [3], 12), PIECE)
    # if one window holds all rows, the batches are cut from all rows sorted by length
    # (or the other way round), so each holds as many neighbours as it has rows
    spread = padded(
        sorted(max(lengths[row] for row in b) - min(lengths[row] for row in b) for b in batches), 12
    )
    yield compare("longest minus shortest of each batch", spread, padded([2, *[9] * 10], 12), PIECE)
    spread = [
        max(lengths[row] for row in batch) - min(lengths[row] for row in batch) for batch in narrow
    ]
    first = [min(lengths[row] for row in batch) for batch in batches]
    wide = max(spread) > 10  # in windows of two batches, no batch can consist of ten neighbours
    yield fact("the same seed gives the same batches", batches == again)
    yield fact("another seed gives other batches", batches != other)
    yield fact(
        "the batches do not come sorted by length",
        first not in (sorted(first), sorted(first)[::-1]),
    )
    yield fact("a window of 2 batches mixes lengths that one of 50 keeps apart", wide)
    # the two batches of a window never overlap; two batches that come together by chance nearly
    # always do
    many = torch.randperm(400, generator=torch.Generator().manual_seed(4)).tolist()
    found = data.length_grouped_batches(many, 10, torch.Generator().manual_seed(5), window=2)
    ends = [(min(many[row] for row in batch), max(many[row] for row in batch)) for batch in found]
    apart = [a[1] < b[0] or b[1] < a[0] for a, b in zip(ends[::2], ends[1::2], strict=False)]
    yield fact("batches of different windows are mixed", not all(apart))


# ------------------------------------------------------------------------------------------ layers


def layer_choice() -> Iterator[Comparison]:
    """By hand; 12 to 6 is the list in DistilBERT's extract_distilbert.py."""
    for total, keep, expected in (
        (12, 6, [0, 2, 4, 7, 9, 11]),
        (12, 4, [0, 4, 7, 11]),
        (12, 3, [0, 6, 11]),
        (6, 3, [0, 3, 5]),
        (6, 2, [0, 5]),
        (6, 1, [5]),
        (4, 4, [0, 1, 2, 3]),
    ):
        layers = more_losses.spread_layers(total, keep)
        compared = compare(
            f"{keep} layers of {total}", padded(layers, 12), padded(expected, 12), PIECE
        )
        yield replace(compared, ours=layers, reference=expected)


def kept_layers() -> Iterator[Comparison]:
    """The teacher's own layers, one after the other; and the student is a model of its own."""
    config = bert.BertConfig(31, 8, 5, 2, 11, 9, layer_norm_eps=1e-5)
    teacher = randomised(bert.Bert(config, pooler=False))
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    ids, mask = (
        torch.tensor([[3, 7, 1, 30], [5, 2, 9, 0]]),
        torch.tensor([[True] * 4, [True, True, False, False]]),
    )
    for layers in ([0, 2, 4], [1, 2], [3]):
        student = more_losses.keep_layers(teacher, layers)
        x = teacher.embeddings(ids, None)
        for i in layers:
            x, _ = teacher.layers[i](x, mask[:, None, None, :])
        yield compare(f"hidden states of layers {layers}", student(ids, mask), x, PIECE)
        yield fact(
            f"the config counts layers {layers}", student.config.num_hidden_layers == len(layers)
        )
        with torch.no_grad():
            for parameter in student.parameters():
                parameter.zero_()
        same = [value.equal(before[name]) for name, value in teacher.state_dict().items()]
        yield fact(f"teacher unchanged, layers {layers}", all(same) and len(teacher.layers) == 5)


# ------------------------------------------------------------------------------------------- steps


def linear_rates() -> Iterator[Comparison]:
    """Shares of the learning rate, from torch's schedulers: up in 4 steps, down in 6."""
    shares = torch.tensor(
        [float(loop.linear_schedule(step, 4, 10)) for step in range(12)], dtype=torch.float64
    )
    weight = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    down = torch.optim.lr_scheduler.PolynomialLR(weight, total_iters=6)
    falling = []
    for _ in range(8):
        falling.append(weight.param_groups[0]["lr"])
        weight.step()
        down.step()
    expected = torch.tensor([0, 0.25, 0.5, 0.75, *falling], dtype=torch.float64)
    for step, (found, share) in enumerate(zip(shares, expected, strict=True)):
        yield compare(f"step {step} of 10, warm-up 4: share of the rate", found, share, PIECE)


def adamw_steps() -> Iterator[Comparison]:
    """The parameter and both running means, with the usual betas and eps, then with others."""
    yield from five_steps("")
    yield from five_steps(", other betas", betas=(0.75, 0.875))
    yield from five_steps(", other eps", eps=0.125)


def five_steps(name: str, **others: Any) -> Iterator[Comparison]:
    """Five steps against ``torch.optim.AdamW``."""
    reference = nn.Parameter(normal(3, 4).detach())
    library = torch.optim.AdamW([reference], lr=0.05, weight_decay=0.3, **others)
    value, m, v = normal(3, 4).detach(), torch.zeros(3, 4).double(), torch.zeros(3, 4).double()
    for step in range(1, 6):
        gradient = normal(3, 4, seed=step).detach()
        reference.grad = gradient.clone()
        library.step()
        value, m, v = loop.adamw_step(value, gradient, m, v, step, 0.05, 0.3, **others)
        state = library.state[reference]
        yield compare(f"parameter after step {step}{name}", value, reference.detach(), PIECE)
        yield compare(f"m after step {step}{name}", m, state["exp_avg"], PIECE)
        yield compare(f"v after step {step}{name}", v, state["exp_avg_sq"], PIECE)


def fit_steps() -> Iterator[Comparison]:
    """Five steps of ``fit``, with micro-batches of different sizes, against torch's tools on whole
    batches.
    """
    x, y = normal(12, 3, seed=1).detach(), normal(12, 1, seed=2).detach()
    batches = [[0, 1, 2, 3, 4], [5, 6, 7], [8, 9, 10, 11], [3, 1], [7, 2, 9, 4, 0]]

    def loss(model: nn.Module, rows: list[int]) -> Tensor:
        return (model(x[rows]) - y[rows]).pow(2).mean()

    def prepared() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = randomised(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
        groups = [
            {"params": list(model[0].parameters())},
            {"params": list(model[2].parameters()), "lr": 0.3},
        ]
        return model, torch.optim.SGD(groups, lr=0.1, momentum=0.5)

    def schedule(step: int) -> float:
        return (0.0, 0.5, 1.0, 0.75, 0.5, 0.25)[step]

    # a clipped gradient is 1e-6 / |g| shorter by torch than by the formula: both are right
    for clip, bound in ((np.inf, PIECE), (0.25, 1e-5)):
        model, optimizer = prepared()
        expected = losses_of_steps(model, loss, batches, optimizer, schedule, clip)
        fitted, optimizer = prepared()
        options = {
            "clip": clip,
            "micro_batches": lambda rows: [rows[:2], rows[2:]] if rows[2:] else [rows],
        }
        steps = [*loop.fit(fitted, loss, batches[:3], optimizer, schedule, **options)]
        for group, rate in zip(optimizer.param_groups, (0.1, 0.3), strict=True):
            group["lr"] = (
                rate  # whoever does not keep the first rates in the optimizer reads them here
            )
        steps += loop.fit(fitted, loss, batches[3:], optimizer, schedule, start=3, **options)
        name = "" if clip == np.inf else ", clipped"
        values = torch.tensor([step.loss for step in steps], dtype=torch.float64)
        yield compare(f"5 losses{name}", values, expected, bound)
        for (key, ours), theirs in zip(fitted.named_parameters(), model.parameters(), strict=True):
            yield compare(f"{key} after 5 steps{name}", ours, theirs, bound)
    before = [parameter.detach().clone() for parameter in fitted.parameters()]
    with contextlib.suppress(loop.Diverged):
        list(
            loop.fit(
                fitted,
                lambda model, rows: loss(model, rows) * np.nan,
                batches,
                optimizer,
                schedule,
                start=1,
            )
        )
    for (key, ours), theirs in zip(fitted.named_parameters(), before, strict=True):
        yield compare(f"{key} after a loss of NaN", ours, theirs, PIECE)


def training_trace() -> Iterator[Comparison]:
    """Ten steps of ``fit``: the loss and learning rate of each step, and every parameter after the
    last.
    """
    encoder, reference = tiny(), golden("trace")
    parameters = [
        parameter for name, parameter in encoder.named_parameters() if "pooler" not in name
    ]
    optimizer = loop.adamw(parameters, lr=1e-2, weight_decay=0.01)

    def loss(encoder: nn.Module, rows: list[int]) -> Tensor:
        u, v = (
            encoder(reference[f"{side}.ids"][rows], reference[f"{side}.mask"][rows])
            for side in ("first", "second")
        )
        return losses.cosine_mse_loss(u, v, reference["targets"][rows])

    batches = [list(range(len(reference["targets"])))] * 10
    steps = list(
        loop.fit(encoder, loss, batches, optimizer, lambda step: loop.linear_schedule(step, 3, 12))
    )
    rates = torch.tensor([1e-2 * step.multiplier for step in steps], dtype=torch.float64)
    yield compare("10 learning rates", rates, reference["rates"], TRACE)
    values = torch.tensor([step.loss for step in steps], dtype=torch.float64)
    yield compare("10 losses", values, reference["losses"], TRACE)
    for name, parameter in encoder.bert.named_parameters():
        if "pooler" not in name:
            yield compare(
                f"after 10 steps {name}", parameter, reference[f"after.{NAMES[name]}"], TRACE
            )
