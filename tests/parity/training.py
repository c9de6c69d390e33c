"""Training: batches, the student's layers, schedules, the optimizer and the loop.

The references are torch's optimizer and schedulers, a plain loop and plain counting.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lessons.by_hand import patience as by_patience
from minisbert.core import bert, data, loop, losses, tokenizer
from minisbert.training import losses as more_losses
from tests.parity import PIECE, TRACE, Comparison, compare, golden
from tests.parity.comparison import double, fact, normal, randomised, same, same_lists
from tests.parity.encoder import NAMES, tiny
from tests.reference.plain_loop import losses_of_steps

# ------------------------------------------------------------------------------------------ batches


def padded_batches() -> Iterator[Comparison]:
    """Rows of 3, 1 and 4 ids; one real token has the pad's id."""
    ids, mask = tokenizer.pad_batch([[7, 0, 9], [5], [1, 2, 3, 4]], pad_id=0)
    expected = torch.tensor([[7, 0, 9, 0], [5, 0, 0, 0], [1, 2, 3, 4]])
    yield compare("padded ids", ids, expected, PIECE)

    if mask is None:  # of a piece that sees no pads, where there are some
        mask = torch.zeros(3, 4, dtype=torch.bool)
    expected = double([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]])
    yield compare("mask", mask.double(), expected, PIECE)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def spreads(batches: list[list[int]], lengths: list[int]) -> list[int]:
    """The longest minus the shortest row of each batch."""
    return [max(lengths[row] for row in b) - min(lengths[row] for row in b) for b in batches]


def grouped_batches() -> Iterator[Comparison]:
    """Counts that hold for any random numbers."""
    lengths = torch.randperm(103, generator=seeded(1)).tolist()  # all different
    batches = data.length_grouped_batches(lengths, 10, seeded(2))
    again = data.length_grouped_batches(lengths, 10, seeded(2))
    other = data.length_grouped_batches(lengths, 10, seeded(3))
    narrow = data.length_grouped_batches(lengths, 10, seeded(2), window=2)
    for name, found in (("", batches), (", windows of 2", narrow)):
        rows = []
        for batch in found:
            rows += batch
        visits = [rows.count(row) for row in range(103)]
        yield same(f"visits of each row{name}", visits, [1] * 103)
        sizes = sorted(map(len, found), reverse=True)
        yield same_lists(f"batch sizes{name}", sizes, [10] * 10 + [3], 12)

    # If one window holds all rows, the batches are cut from all rows sorted by length (or the other
    # way round), so each holds as many neighbours as it has rows.
    name = "longest minus shortest of each batch"
    yield same_lists(name, sorted(spreads(batches, lengths)), [2] + [9] * 10, 12)

    yield fact("the same seed gives the same batches", batches == again)
    yield fact("another seed gives other batches", batches != other)
    shortest = [min(lengths[row] for row in batch) for batch in batches]
    in_order = shortest in (sorted(shortest), sorted(shortest, reverse=True))
    yield fact("the batches do not come sorted by length", not in_order)
    # in windows of two batches, no batch can consist of ten neighbours
    wide = max(spreads(narrow, lengths)) > 10
    yield fact("a window of 2 batches mixes lengths that one of 50 keeps apart", wide)

    # The two batches of a window never overlap; two batches that come together by chance nearly
    # always do.
    lengths = torch.randperm(400, generator=seeded(4)).tolist()
    ranges = []
    for batch in data.length_grouped_batches(lengths, 10, seeded(5), window=2):
        ranges.append((min(lengths[row] for row in batch), max(lengths[row] for row in batch)))
    apart = []
    for (low, high), (next_low, next_high) in zip(ranges[::2], ranges[1::2], strict=False):
        apart.append(high < next_low or next_high < low)
    yield fact("batches of different windows are mixed", not all(apart))


# ------------------------------------------------------------------------------------------- layers


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
        result = same_lists(f"{keep} layers of {total}", layers, expected, 12)
        yield replace(result, ours=layers, reference=expected)  # for the message


def kept_layers() -> Iterator[Comparison]:
    """The teacher's own layers, one after the other; and the student is a model of its own."""
    config = bert.BertConfig(31, 8, 5, 2, 11, 9, layer_norm_eps=1e-5)
    teacher = randomised(bert.Bert(config, pooler=False))
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    ids = torch.tensor([[3, 7, 1, 30], [5, 2, 9, 0]])
    mask = torch.tensor([[True, True, True, True], [True, True, False, False]])
    for layers in ([0, 2, 4], [1, 2], [3]):
        student = more_losses.keep_layers(teacher, layers)
        x = teacher.embeddings(ids, None)
        for i in layers:
            x, _ = teacher.layers[i](x, mask[:, None, None, :])
        yield compare(f"hidden states of layers {layers}", student(ids, mask), x, PIECE)
        counted = student.config.num_hidden_layers == len(layers)
        yield fact(f"the config counts layers {layers}", counted)

        with torch.no_grad():
            for parameter in student.parameters():
                parameter.zero_()
        same = [value.equal(before[name]) for name, value in teacher.state_dict().items()]
        yield fact(f"teacher unchanged, layers {layers}", all(same) and len(teacher.layers) == 5)


# -------------------------------------------------------------------------------------------- steps


def linear_rates() -> Iterator[Comparison]:
    """Shares of the learning rate, from torch's schedulers: up in 4 steps, down in 6."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    down = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=6)
    expected = [0.0, 0.25, 0.5, 0.75]
    for _ in range(8):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        down.step()

    for step, share in enumerate(expected):
        found = double(float(loop.linear_schedule(step, 4, 10)))
        name = f"step {step} of 10, warm-up 4: share of the rate"
        yield compare(name, found, double(share), PIECE)


def adamw_steps() -> Iterator[Comparison]:
    """The parameter and both running means, with the usual betas and eps, then with others."""
    yield from five_steps("")
    yield from five_steps(", other betas", betas=(0.75, 0.875))
    yield from five_steps(", other eps", eps=0.125)


def five_steps(name: str, **options: Any) -> Iterator[Comparison]:
    """Five steps against ``torch.optim.AdamW``."""
    reference = nn.Parameter(normal(3, 4).detach())
    library = torch.optim.AdamW([reference], lr=0.05, weight_decay=0.3, **options)
    value = normal(3, 4).detach()
    m = torch.zeros(3, 4).double()
    v = torch.zeros(3, 4).double()
    for step in range(1, 6):
        gradient = normal(3, 4, seed=step).detach()
        reference.grad = gradient.clone()
        library.step()
        value, m, v = loop.adamw_step(value, gradient, m, v, step, 0.05, 0.3, **options)
        state = library.state[reference]
        yield compare(f"parameter after step {step}{name}", value, reference.detach(), PIECE)
        yield compare(f"m after step {step}{name}", m, state["exp_avg"], PIECE)
        yield compare(f"v after step {step}{name}", v, state["exp_avg_sq"], PIECE)


def fit_steps() -> Iterator[Comparison]:
    """Five steps of ``fit`` in uneven micro-batches, against torch's tools on whole batches."""
    x = normal(12, 3, seed=1).detach()
    y = normal(12, 1, seed=2).detach()
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

    def micro_batches(rows: Sequence[int]) -> list[Sequence[int]]:
        return [part for part in (rows[:2], rows[2:]) if part]

    # a clipped gradient is 1e-6 / |g| shorter by torch than by the formula: both are right
    for clip, bound in ((np.inf, PIECE), (0.25, 1e-5)):
        model, optimizer = prepared()
        expected = losses_of_steps(model, loss, batches, optimizer, schedule, clip)

        fitted, optimizer = prepared()
        options = {"clip": clip, "micro_batches": micro_batches}
        steps = list(loop.fit(fitted, loss, batches[:3], optimizer, schedule, **options))
        # an implementation that does not keep the first rates in the optimizer reads them here
        for group, rate in zip(optimizer.param_groups, (0.1, 0.3), strict=True):
            group["lr"] = rate
        steps += loop.fit(fitted, loss, batches[3:], optimizer, schedule, start=3, **options)

        name = "" if clip == np.inf else ", clipped"
        values = double([step.loss for step in steps])
        yield compare(f"5 losses{name}", values, expected, bound)
        for (key, ours), theirs in zip(fitted.named_parameters(), model.parameters(), strict=True):
            yield compare(f"{key} after 5 steps{name}", ours, theirs, bound)

    # a loss of NaN ends the training, and leaves the weights as they were
    def broken_loss(model: nn.Module, rows: list[int]) -> Tensor:
        return loss(model, rows) * np.nan

    before = [parameter.detach().clone() for parameter in fitted.parameters()]
    with contextlib.suppress(loop.Diverged):
        list(loop.fit(fitted, broken_loss, batches, optimizer, schedule, start=1))
    for (key, ours), theirs in zip(fitted.named_parameters(), before, strict=True):
        yield compare(f"{key} after a loss of NaN", ours, theirs, PIECE)


def training_trace() -> Iterator[Comparison]:
    """Ten steps of ``fit``: each step's loss and learning rate, and every parameter at the end."""
    encoder = tiny()
    reference = golden("trace")
    parameters = []
    for name, parameter in encoder.named_parameters():
        if "pooler" not in name:
            parameters.append(parameter)
    optimizer = loop.adamw(parameters, lr=1e-2, weight_decay=0.01)

    def loss(encoder: nn.Module, rows: list[int]) -> Tensor:
        u = encoder(reference["first.ids"][rows], reference["first.mask"][rows])
        v = encoder(reference["second.ids"][rows], reference["second.mask"][rows])
        return losses.cosine_mse_loss(u, v, reference["targets"][rows])

    def schedule(step: int) -> float:
        return loop.linear_schedule(step, 3, 12)

    all_rows = list(range(len(reference["targets"])))
    steps = list(loop.fit(encoder, loss, [all_rows] * 10, optimizer, schedule))
    rates = double([1e-2 * step.multiplier for step in steps])
    yield compare("10 learning rates", rates, reference["rates"], TRACE)
    values = double([step.loss for step in steps])
    yield compare("10 losses", values, reference["losses"], TRACE)
    for name, parameter in encoder.bert.named_parameters():
        if "pooler" not in name:
            expected = reference[f"after.{NAMES[name]}"]
            yield compare(f"after 10 steps {name}", parameter, expected, TRACE)


def patience() -> Iterator[Comparison]:
    """Training with patience against models that are trained for so many steps each, from anew."""
    x = normal(40, 3, seed=3).detach()
    y = normal(40, 1, seed=4).detach()

    def loss(model: nn.Module, rows: Sequence[int]) -> Tensor:
        return (model(x[rows]) - y[rows]).pow(2).mean()

    def score(model: nn.Module) -> float:
        """Of rows that it does not learn from."""
        return -loss(model, range(8, 40)).item()

    def trained(steps: int) -> nn.Module:
        model, run = fitting()
        for _ in range(steps):
            next(run)
        return model

    def fitting() -> tuple[nn.Module, Iterator[loop.Step]]:
        model = randomised(nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, loop.fit(model, loss, [range(8)] * 60, optimizer, lambda step: 1.0)

    every = 4
    scores = [score(trained(every * number)) for number in range(16)]
    for waits in (1, 3):
        best = 0
        last = 0
        while last - best < waits and last < 15:
            last += 1
            if scores[last] > scores[best]:
                best = last
        model, run = fitting()
        found = by_patience.train_with_patience(model, run, score, every, waits)
        name = f"patience {waits}"
        yield same_lists(f"{name}: scores", found, scores[: last + 1], 16)
        expected = trained(every * best)
        for (key, ours), theirs in zip(
            model.named_parameters(), expected.parameters(), strict=True
        ):
            yield compare(f"{name}: {key} at the end", ours, theirs, PIECE)
