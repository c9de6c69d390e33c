"""Hand examples and traps of lessons 11 and 13: the training loop, and when to end it.

The model is one weight w that should be 1: its row x is mapped to w x, which should be x. The loss
of a batch is the mean of (w x - x)^2, and its gradient the mean of 2 (w - 1) x^2. For w = 3 and the
rows 1 and 2 both are 10.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lessons.by_hand import patience
from lessons.grader.cases import Case, cases, d, example, trap, with_results
from minisbert.core import loop

PAIR = [1.0, 2.0]


class Weight(nn.Module):
    """w, and whatever happened: ``log`` is shared with the optimizer."""

    def __init__(self, start: float = 3.0):
        super().__init__()
        self.w = nn.Parameter(d(start)[0])
        self.log: list[str] = []


class Logged(torch.optim.SGD):
    """Plain gradient descent that writes its steps into the model's log."""

    def __init__(self, model: Weight, lr: float = 0.1):
        super().__init__(model.parameters(), lr)
        self.log = model.log

    def step(self, closure: None = None) -> None:
        self.log.append(f"step at {self.param_groups[0]['lr']:g}")
        super().step()


def squares(model: Weight, rows: Sequence[float]) -> Tensor:
    """The mean of (w x - x)^2 over the rows x."""
    model.log.append(f"loss of {len(rows)}")
    x = d(*rows)
    return (model.w * x - x).pow(2).mean()


def constant(step: int) -> float:
    return 1.0


def up(step: int) -> float:
    """0, .5, 1."""
    return step / 2


def steps(
    batches: Iterable, schedule: Callable = constant, **options: Any
) -> tuple[list, list, list]:
    """The numbers of the steps, their losses, and the weight after each."""
    model = Weight()
    found = []
    for step in loop.fit(model, squares, batches, Logged(model), schedule, **options):
        found.append((step.number, step.loss, model.w.item()))
    return tuple(map(list, zip(*found, strict=True)))


def by_steps(case: Case) -> Case:
    """A case of ``steps``, whose result has three parts."""
    return with_results(case, "Step.number", "Step.loss", "the weight after each step")


@cases("loop.fit")
def _():
    expected = ([1, 2], [10.0, 2.5], [2.0, 1.5])
    yield by_steps(example("w = 3: two steps at lr 0.1", expected, steps, [PAIR, PAIR]))
    expected = ([1, 2, 3], [10.0, 10.0, 5.625], [3.0, 2.5, 1.75])
    yield by_steps(example("the multipliers 0, 0.5, 1", expected, steps, [PAIR] * 3, up))
    expected = ([1, 2], [10.0, 5.625], [2.5, 2.0])
    yield by_steps(example("clipped to 5", expected, steps, [PAIR, PAIR], clip=5.0))
    cut = {"micro_batches": lambda rows: [rows[:2], rows[2:]]}
    # (4 + 16 + 36) / 3; the gradient is 2 * 2 * (1 + 4 + 9) / 3
    expected = ([1], [56 / 3], [3 - 0.1 * 56 / 3])
    name = "rows 1, 2 and 3 as 1, 2 and then 3"
    yield by_steps(example(name, expected, steps, [[1.0, 2.0, 3.0]], **cut))

    def once(log: Callable[[Weight], object]) -> object:
        def batches() -> Iterator[list[float]]:
            for i in range(1, 4):
                model.log.append(f"batch {i}")
                yield PAIR

        model = Weight()
        next(loop.fit(model, squares, batches(), Logged(model), constant))
        return log(model)

    yield trap("the first step, and no more", 2.0, once, lambda model: model.w.item())
    yield trap(
        "one batch, one loss, one step",
        ["batch 1", "loss of 2", "step at 0.1"],
        once,
        lambda model: model.log,
    )

    def leftover() -> float:
        model = Weight()
        model.w.grad = d(100.0)[0]
        list(loop.fit(model, squares, [PAIR], Logged(model), constant))
        return model.w.item()

    yield trap("a gradient that was there before", 2.0, leftover)

    def outside() -> float:
        """A parameter of the optimizer that the model lacks, as a learned temperature would be."""
        model = Weight()
        other = nn.Parameter(d(3.0)[0])
        optimizer = Logged(model)
        optimizer.add_param_group({"params": [other], "lr": 0.1})

        def loss(_: Weight, rows: Sequence[float]) -> Tensor:
            x = d(*rows)
            return (other * x - x).pow(2).mean()

        list(loop.fit(model, loss, [PAIR, PAIR], optimizer, constant))
        return other.item()

    yield trap("a parameter of the optimizer outside the model, two steps", 1.5, outside)

    def reported() -> tuple[bool, list, list]:
        model = Weight()
        batches = [PAIR, [2.0]]
        found = list(loop.fit(model, squares, batches, Logged(model), up, start=1))
        same = all(step.batch is batch for step, batch in zip(found, batches, strict=True))
        return same, [step.number for step in found], [step.multiplier for step in found]

    yield with_results(
        trap("start=1: batches, numbers, multipliers", (True, [2, 3], [0.5, 1.0]), reported),
        "whether Step.batch is the batch",
        "Step.number",
        "Step.multiplier",
    )

    def mode() -> bool:
        model = Weight().eval()
        list(loop.fit(model, squares, [PAIR], Logged(model), constant))
        return model.training

    yield trap("eval mode stays", False, mode)
    yield from rates_of_groups()
    yield from spoiled_batches()


def rates_of_groups() -> Iterator[Case]:
    """Each group has its own rate, and keeps it from one call to the next."""

    def rates() -> list:
        model = Weight()
        other = nn.Parameter(d(0.0))
        optimizer = Logged(model)
        optimizer.add_param_group({"params": [other], "lr": 0.8})
        run = loop.fit(model, squares, [PAIR] * 3, optimizer, lambda step: 0.5)
        return [[group["lr"] for group in optimizer.param_groups] for _ in run]

    yield trap("half of each group's rate, three times", [[0.05, 0.4]] * 3, rates)

    def called_again() -> tuple[list, list]:
        """As a script does that calls ``fit`` once an epoch: the optimizer stays the same."""
        model = Weight()
        optimizer = Logged(model)
        used = []
        weights = []
        for _ in range(3):
            for _ in loop.fit(model, squares, [PAIR] * 2, optimizer, lambda step: 0.5):
                used.append(optimizer.param_groups[0]["lr"])
            weights.append(model.w.item())
        return used, weights

    # Each step is one at rate 0.05, which takes w a quarter of its way to 1.
    expected = ([0.05] * 6, [1 + 2 * 0.75**2, 1 + 2 * 0.75**4, 1 + 2 * 0.75**6])
    yield with_results(
        trap("called three times with one optimizer, half the rate", expected, called_again),
        "the rate in each step",
        "the weight after each call",
    )


def spoiled_batches() -> Iterator[Case]:
    """A loss or a gradient that is not finite, in the second step."""
    # after the first, good step w is 2, and there it must stay
    for name, spoil, micro_batches in (
        ("a loss of NaN", lambda loss: loss * math.nan, 1),
        ("an infinite loss with a finite gradient", lambda loss: loss + math.inf, 1),
        ("a gradient of NaN", lambda loss: loss + (loss * 0).sqrt(), 1),
        ("a loss of NaN in one of two", lambda loss: loss * math.nan, 2),
    ):
        yield with_results(
            trap(name, ("Diverged", 2.0), ended, spoil, micro_batches),
            "what the second step raises",
            "the weight then",
        )


def ended(loss: Callable, micro_batches: int = 1) -> tuple[str, float]:
    """What the second step raises, and the weight then; ``loss`` of its batch is spoiled."""
    model = Weight()

    def spoiled(model: Weight, rows: Sequence[float]) -> Tensor:
        return loss(squares(model, rows)) if rows[-1] == 4.0 else squares(model, rows)

    cut = lambda rows: [rows[:1], rows[1:]] if micro_batches == 2 else [rows]  # noqa: E731
    run = loop.fit(model, spoiled, [PAIR, [3.0, 4.0]], Logged(model), constant, micro_batches=cut)
    next(run)
    try:
        step = next(run, None)
    except loop.Diverged:
        return "Diverged", model.w.item()
    if step is None:
        return "nothing: the batch is passed over", model.w.item()
    return "nothing", model.w.item()


# ------------------------------------------------------------------------------- when to end it


def counted(scores: Sequence[float], every: int, patience_: int) -> tuple[list, float, int, bool]:
    """A model whose weight is the number of its steps, judged by these scores, one after another.

    Returns the scores, the weight at the end, the steps that were made, and the mode at the end.
    """
    model = Weight(start=0.0)
    made = []

    def steps() -> Iterator[int]:
        for number in range(1, 101):
            with torch.no_grad():
                model.w += 1
            made.append(number)
            yield number

    values = iter(scores)

    def score(_: nn.Module) -> float:
        return next(values, -1.0)  # where the stop is missed there are more looks than scores

    found = patience.train_with_patience(model, steps(), score, every, patience_)
    return found, model.w.item(), len(made), model.training


def by_counts(case: Case) -> Case:
    return with_results(
        case,
        "the scores (-1: score is asked although patience is used up)",
        "the weight at the end (step n makes it n)",
        "the steps that were made",
        "whether it ends in train mode",
    )


@cases("patience.train_with_patience")
def _():
    scores = [1.0, 5.0, 4.0, 3.0]
    expected = (scores, 1.0, 3, False)
    yield by_counts(example("1, then 5, 4, 3; patience 2", expected, counted, scores, 1, 2))
    scores = [0.0, 1.0, 0.5, 2.0, 1.0, 1.0]
    expected = (scores, 6.0, 10, False)
    yield by_counts(example("0 1 .5 2 1 1; every 2 steps", expected, counted, scores, 2, 2))
    scores = [9.0, 1.0, 2.0]
    expected = (scores, 0.0, 2, False)
    yield by_counts(trap("training only hurts", expected, counted, scores, 1, 2))
    scores = [1.0, 2.0, 2.0, 2.0]
    expected = (scores, 1.0, 3, False)
    yield by_counts(trap("as good as the best is not better", expected, counted, scores, 1, 2))

    def modes() -> list[bool]:
        model = Weight().eval()
        found = []

        def steps() -> Iterator[int]:
            for number in range(2):
                found.append(model.training)
                yield number

        def score(model: nn.Module) -> float:
            found.append(model.training)
            return float(len(found))

        patience.train_with_patience(model, steps(), score, 1, 1)
        return found

    expected = [False, True, False, True, False]
    yield trap("train mode at score, step, score, step, score", expected, modes)

    def short() -> tuple[list, float]:
        """The steps end before patience does."""
        model = Weight(start=0.0)
        seen = iter([1.0, 3.0, 2.0])

        def steps() -> Iterator[int]:
            for number in range(1, 3):
                with torch.no_grad():
                    model.w += 1
                yield number

        found = patience.train_with_patience(model, steps(), lambda _: next(seen, -1.0), 1, 5)
        return found, model.w.item()

    yield with_results(
        trap("the steps end first", ([1.0, 3.0, 2.0], 1.0), short),
        "the scores (-1: score is asked once more after the last step)",
        "the weight at the end",
    )
