"""Mistakes in training: the learning rate, the optimizer, the loop, and batches in parts."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from lessons.mistakes.calls import calls
from lessons.mistakes.planting import mistake
from minisbert.core import loop
from minisbert.system.devices import random_state
from minisbert.training import gradient_cache

# the right ones, kept from before anything is planted
_linear = loop.linear_schedule
_vectors = gradient_cache.vectors_in_parts
_replay = gradient_cache.replay

Parts = Sequence[list[int]]
States = Sequence[dict[str, Tensor]]


@mistake(
    loop,
    "linear_schedule",
    "warm-up off by one",
    "the first step already has part of the learning rate",
)
def _(step: int, warmup: int, total: int) -> float:
    if step < warmup:
        return (step + 1) / warmup
    return max(0.0, (total - step) / max(1, total - warmup))


@mistake(
    loop,
    "linear_schedule",
    "decay without warm-up's share",
    "the decay counts from step 0, not from the peak",
)
def _(step: int, warmup: int, total: int) -> float:
    return step / warmup if step < warmup else max(0.0, (total - step) / total)


@mistake(
    loop,
    "linear_schedule",
    "schedule cut short",
    "the total leaves out the warm-up: the last steps have rate 0",
)
def _(step: int, warmup: int, total: int) -> float:
    return _linear(step, warmup, total - warmup)


@mistake(
    loop,
    "adamw",
    "weight decay coupled",
    "the decay is added to the gradient (Adam with L2), not to the step",
)
def _(parameters: list[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay)


@mistake(
    loop, "adamw", "no bias correction", "Adam's averages, which start at 0, are not corrected"
)
def _(parameters: list[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    return _UncorrectedAdamW(parameters, lr, weight_decay)


class _UncorrectedAdamW(torch.optim.Optimizer):
    """AdamW with averages that are not divided by 1 - beta^t."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, weight_decay: float):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                m = state.get("m", torch.zeros_like(parameter))
                v = state.get("v", torch.zeros_like(parameter))
                new, state["m"], state["v"] = adamw_with(
                    parameter,
                    parameter.grad,
                    m,
                    v,
                    1,
                    group["lr"],
                    group["weight_decay"],
                    corrected=False,
                )
                parameter.copy_(new)


def adamw_with(
    parameter,
    gradient,
    m,
    v,
    step,
    lr,
    weight_decay=0.01,
    betas=(0.9, 0.999),
    eps=1e-8,
    *,
    decay="step",
    corrected=True,
    overwritten="",
):
    """The decay is of the ``step``, of the "gradient" or without lr ("whole").

    What is ``overwritten`` is returned corrected.
    """
    if decay == "gradient":
        gradient, weight_decay = gradient + weight_decay * parameter, 0.0
    if decay == "whole":
        parameter, weight_decay = parameter * (1 - weight_decay), 0.0
    m = betas[0] * m + (1 - betas[0]) * gradient
    v = betas[1] * v + (1 - betas[1]) * gradient.pow(2)
    unbiased_m = m
    unbiased_v = v
    if corrected:
        unbiased_m = m / (1 - betas[0] ** step)
        unbiased_v = v / (1 - betas[1] ** step)
    parameter = parameter * (1 - lr * weight_decay) - lr * unbiased_m / (unbiased_v.sqrt() + eps)
    if "m" in overwritten:
        m = unbiased_m
    if "v" in overwritten:
        v = unbiased_v
    return parameter, m, v


stepped = calls(loop, "adamw_step", adamw_with)
stepped(
    "decay in the gradient",
    "the decay is added to the gradient: Adam with L2, not AdamW",
    decay="gradient",
)
stepped(
    "decay without lr",
    "shrinks by the decay alone: the paper's rule at a schedule of 1",
    decay="whole",
)
stepped(
    "averages not corrected",
    "the running means are used as if they had not started at 0",
    corrected=False,
)
stepped("m overwritten", "m itself is corrected, and the corrected m is returned", overwritten="m")
stepped(
    "m and v overwritten", "m and v themselves are corrected, and returned so", overwritten="mv"
)
stepped(
    "step counted from 0",
    "the bias correction lags by one step",
    step=lambda step: max(step - 1, 1),
)
BETAS = (0.9, 0.999)
stepped(
    "betas hard-coded", "the running means use 0.9 and 0.999, whatever is asked for", betas=BETAS
)
stepped("eps hard-coded", "eps is 1e-8, whatever is asked for", eps=1e-8)
stepped(
    "betas and eps hard-coded",
    "neither betas nor eps are those that are asked for",
    betas=BETAS,
    eps=1e-8,
)


# ----------------------------------------------------------------------------------------- the loop


def set_rates(groups: list[dict], multiplier: float, rate: str) -> None:
    """Multiply the "first" or the "last" rate of each group; give all the "shared" one; or none."""
    if not rate:
        return
    for group in groups:
        first = group.setdefault("initial_lr", group["lr"])
        group["lr"] = (group["lr"] if rate == "last" else first) * multiplier
    if rate == "shared":
        for group in groups:
            group["lr"] = groups[0]["lr"]


def fit_with(
    model,
    loss,
    batches,
    optimizer,
    schedule,
    start=0,
    clip=math.inf,
    micro_batches=lambda batch: [batch],
    *,
    zeroed="batch",
    weighted="rows",
    stepped="batch",
    rate="first",
    ahead=0,
    clipped="batch",
    checked="before",
) -> Iterator[loop.Step]:
    """``fit`` with wrong choices.

    They are when gradients are ``zeroed`` or ``clipped``, when the optimizer has ``stepped``, how a
    micro-batch is ``weighted``, which ``rate`` is multiplied, and whether NaN is ``checked`` before
    the step.
    """
    groups = optimizer.param_groups
    parameters = [parameter for group in groups for parameter in group["params"]]
    for number, batch in enumerate(batches, start=start):
        multiplier = schedule(number + ahead)
        set_rates(groups, multiplier, rate)
        if zeroed == "batch":
            optimizer.zero_grad()
        total = 0.0
        parts = micro_batches(batch)
        for part in parts:
            if zeroed == "micro-batch":
                optimizer.zero_grad()
            weights = {"rows": len(part) / len(batch), "equal": 1 / len(parts), "not": 1.0}
            scaled = loss(model, part) * weights[weighted]
            scaled.backward()
            if stepped == "micro-batch":
                optimizer.step()
            if clipped == "micro-batch":
                nn.utils.clip_grad_norm_(parameters, clip)
            total += scaled.item()
        longest = math.inf if clipped in ("not", "by number") else clip
        norm = nn.utils.clip_grad_norm_(parameters, longest)
        if clipped == "by number":
            nn.utils.clip_grad_value_(parameters, clip)
        good = math.isfinite(total) and bool(norm.isfinite())
        if stepped == "batch" and (good or checked != "before"):
            optimizer.step()
        if not good and checked != "not":
            raise loop.Diverged("not finite")
        yield loop.Step(number + 1, batch, total, multiplier)


fitted = calls(loop, "fit", fit_with)
fitted(
    "gradients not zeroed",
    "each step's gradient is added to those of all steps before",
    zeroed="never",
)
ZEROED = "gradients zeroed in every micro-batch"
fitted(ZEROED, "only the last micro-batch of a batch counts", zeroed="micro-batch")
UNWEIGHTED = "the means of the micro-batches are added, not averaged"
fitted("micro-batches added up unweighted", UNWEIGHTED, weighted="not")
fitted(
    "micro-batches weighted equally",
    "a micro-batch of one row counts as much as one of ten",
    weighted="equal",
)
STEPPED = "the optimizer steps after each micro-batch, on the gradients so far"
fitted("a step per micro-batch", STEPPED, stepped="micro-batch")
fitted(
    "multipliers that compound",
    "the learning rate of the last step is multiplied, not the first one",
    rate="last",
)
fitted("the schedule one step ahead", "the multiplier is that of the next step", ahead=1)
fitted("the learning rate never set", "the schedule is asked, and the optimizer not told", rate="")
fitted(
    "the first group's rate for all",
    "parameter groups lose their own learning rates",
    rate="shared",
)
fitted("clip forgotten", "gradients of any length reach the optimizer", clipped="not")
TURNED = "each number of the gradient is cut off, not its length: the direction turns"
fitted("clipped number by number", TURNED, clipped="by number")
PARTLY = "the gradients so far are clipped after each micro-batch"
fitted("clipped in every micro-batch", PARTLY, clipped="micro-batch")
fitted(
    "stepped before the check",
    "the step is made first, and then the loss is found to be NaN",
    checked="after",
)
fitted("NaN not noticed", "a loss of NaN reaches the weights, and training goes on", checked="not")


# --------------------------------------------------------------------------------- batches in parts


@mistake(
    gradient_cache,
    "cut",
    "a forgotten last part",
    "the rows after the last part that is full are dropped",
)
def _(rows: Sequence[int], lengths: Sequence[int], tokens: int) -> list[list[int]]:
    parts, part = [], []
    for row in rows:
        if part and (len(part) + 1) * max(lengths[each] for each in [*part, row]) > tokens:
            parts.append(part)
            part = []
        part.append(row)
    return parts


@mistake(
    gradient_cache,
    "cut",
    "pads not counted",
    "a part is measured by the sum of its rows, not by its longest",
)
def _(rows: Sequence[int], lengths: Sequence[int], tokens: int) -> list[list[int]]:
    parts = []
    for row in rows:
        if parts and sum(lengths[each] for each in [*parts[-1], row]) <= tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts


@mistake(
    gradient_cache,
    "cut",
    "the longest of all parts",
    "a part is measured by the longest row up to there",
)
def _(rows: Sequence[int], lengths: Sequence[int], tokens: int) -> list[list[int]]:
    parts, longest = [], 0
    for row in rows:
        longest = max(longest, lengths[row])
        if parts and (len(parts[-1]) + 1) * longest <= tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts


parted = calls(gradient_cache, "cut")
parted(
    "the limit is too much",
    "a part of as many tokens as are allowed is cut",
    tokens=lambda tokens: tokens - 1,
)


@mistake(
    gradient_cache,
    "vectors_in_parts",
    "hard negatives misaligned",
    "texts are joined by column within each part",
)
def _(network: nn.Module, parts: Parts) -> tuple[Tensor, States]:
    vectors, states = _vectors(network, parts)  # (B, n, D)
    columns = []
    for part in vectors.split([len(rows) for rows in parts]):  # (b, n, D)
        columns.append(part.transpose(0, 1).flatten(0, 1))  # (n b, D)
    # as if it were (n, B, D)
    joined = torch.cat(columns).unflatten(0, (-1, len(vectors)))
    return joined.transpose(0, 1), states


@mistake(
    gradient_cache,
    "vectors_in_parts",
    "state after the part",
    "the random state is kept after its masks are drawn",
)
def _(network: nn.Module, parts: Parts) -> tuple[Tensor, States]:
    vectors, states = _vectors(network, parts)
    return vectors, [*states[1:], random_state(vectors.device)]


@mistake(
    gradient_cache, "replay", "replay without the random state", "each part gets new dropout masks"
)
def _(network: nn.Module, parts: Parts, states: States, gradient: Tensor) -> None:
    pulls = gradient.split([len(part) for part in parts])
    with torch.enable_grad():
        for part, pull in zip(parts, pulls, strict=True):
            network(part).backward(pull)


@mistake(
    gradient_cache,
    "replay",
    "one random state for all parts",
    "every part has the first part's dropout masks",
)
def _(network: nn.Module, parts: Parts, states: States, gradient: Tensor) -> None:
    _replay(network, parts, [states[0] for _ in parts], gradient)


@mistake(
    gradient_cache,
    "replay",
    "divided by the number of parts",
    "the parts' gradients are averaged, not added up",
)
def _(network: nn.Module, parts: Parts, states: States, gradient: Tensor) -> None:
    _replay(network, parts, states, gradient / max(1, len(parts)))


@mistake(
    gradient_cache,
    "replay",
    "the last part not replayed",
    "its rows of the gradient never reach the encoder",
)
def _(network: nn.Module, parts: Parts, states: States, gradient: Tensor) -> None:
    if parts:
        gradient = gradient[: len(gradient) - len(parts[-1])]
    _replay(network, parts[:-1], states[:-1], gradient)


@mistake(
    gradient_cache,
    "replay",
    "gradients of one part only",
    "each part's gradients replace those of the part before",
)
def _(network: nn.Module, parts: Parts, states: States, gradient: Tensor) -> None:
    pulls = gradient.split([len(part) for part in parts])
    for part, state, pull in zip(parts, states, pulls, strict=True):
        network.zero_grad()
        _replay(network, [part], [state], pull)
