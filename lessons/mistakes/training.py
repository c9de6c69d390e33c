"""Mistakes in training: the schedule of the learning rate, the optimizer, the loop, and batches computed in parts."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from minisbert.core import loop
from minisbert.diagnosis.mistakes import mistake
from minisbert.system.devices import random_state
from minisbert.training import gradient_cache

# the right ones, kept from before anything is planted
_step, _linear = loop.adamw_step, loop.linear_schedule
_vectors, _replay, _cut = gradient_cache.vectors_in_parts, gradient_cache.replay, gradient_cache.cut

Parts, States = Sequence[list[int]], Sequence[dict[str, Tensor]]


@mistake(loop, "linear_schedule", "warm-up off by one", "the first step already has part of the learning rate")
def _(step: int, warmup: int, total: int) -> float:
    return (step + 1) / warmup if step < warmup else max(0.0, (total - step) / max(1, total - warmup))


@mistake(loop, "linear_schedule", "decay without warm-up's share", "the decay counts from step 0, not from the peak")
def _(step: int, warmup: int, total: int) -> float:
    return step / warmup if step < warmup else max(0.0, (total - step) / total)


@mistake(loop, "linear_schedule", "schedule cut short", "the total leaves out the warm-up: the last steps have rate 0")
def _(step: int, warmup: int, total: int) -> float:
    return _linear(step, warmup, total - warmup)


@mistake(loop, "adamw", "weight decay coupled", "the decay is added to the gradient (Adam with L2), not to the step")
def _(parameters: list[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay)


@mistake(loop, "adamw", "no bias correction", "Adam's averages, which start at 0, are not corrected")
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
                m = state.setdefault("m", torch.zeros_like(parameter))
                v = state.setdefault("v", torch.zeros_like(parameter))
                m.lerp_(parameter.grad, 0.1)
                v.lerp_(parameter.grad.square(), 0.001)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(group["lr"] * m / (v.sqrt() + 1e-8))


@mistake(loop, "adamw_step", "decay in the gradient", "the decay is added to the gradient: Adam with L2, not AdamW")
def _(parameter, gradient, m, v, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    return _step(parameter, gradient + weight_decay * parameter, m, v, step, lr, 0.0, betas, eps)


@mistake(loop, "adamw_step", "decay without lr", "shrinks by the decay alone: the paper's rule at a schedule of 1")
def _(parameter, gradient, m, v, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    return _step(parameter * (1 - weight_decay), gradient, m, v, step, lr, 0.0, betas, eps)


@mistake(loop, "adamw_step", "averages not corrected", "the running means are used as if they had not started at 0")
def _(parameter, gradient, m, v, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    m = betas[0] * m + (1 - betas[0]) * gradient
    v = betas[1] * v + (1 - betas[1]) * gradient.pow(2)
    return parameter * (1 - lr * weight_decay) - lr * m / (v.sqrt() + eps), m, v


@mistake(loop, "adamw_step", "m overwritten", "m itself is corrected, and the corrected m is returned")
def _(parameter, gradient, m, v, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    parameter, m, v = _step(parameter, gradient, m, v, step, lr, weight_decay, betas, eps)
    return parameter, m / (1 - betas[0] ** step), v


@mistake(loop, "adamw_step", "m and v overwritten", "m and v themselves are corrected, and returned so")
def _(parameter, gradient, m, v, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    parameter, m, v = _step(parameter, gradient, m, v, step, lr, weight_decay, betas, eps)
    return parameter, m / (1 - betas[0] ** step), v / (1 - betas[1] ** step)


@mistake(loop, "adamw_step", "step counted from 0", "the bias correction lags by one step")
def _(parameter, gradient, m, v, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    return _step(parameter, gradient, m, v, max(step - 1, 1), lr, weight_decay, betas, eps)


@mistake(loop, "adamw_step", "betas hard-coded", "the running means use 0.9 and 0.999, whatever is asked for")
def _(parameter, gradient, m, v, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    return _step(parameter, gradient, m, v, step, lr, weight_decay, eps=eps)


@mistake(loop, "adamw_step", "eps hard-coded", "eps is 1e-8, whatever is asked for")
def _(parameter, gradient, m, v, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    return _step(parameter, gradient, m, v, step, lr, weight_decay, betas)


@mistake(loop, "adamw_step", "betas and eps hard-coded", "neither betas nor eps are those that are asked for")
def _(parameter, gradient, m, v, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    return _step(parameter, gradient, m, v, step, lr, weight_decay)


# ------------------------------------------------------------------------------------------ the loop


class _Loop:
    """``fit`` in pieces, each of which a mistake can override."""

    def __init__(self, optimizer: torch.optim.Optimizer, schedule: Callable[[int], float], clip: float):
        self.optimizer, self.schedule, self.clip = optimizer, schedule, clip
        self.groups = optimizer.param_groups
        self.parameters = [parameter for group in self.groups for parameter in group["params"]]

    def set_rate(self, number: int) -> float:
        multiplier = self.schedule(number)
        for group in self.groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * multiplier
        return multiplier

    def reset(self) -> None:
        self.optimizer.zero_grad()

    def weight(self, micro_batch: Sequence, batch: Sequence, count: int) -> float:
        return len(micro_batch) / len(batch)

    def after_backward(self) -> None:
        """After each micro-batch."""

    def clipped(self) -> Tensor:
        return nn.utils.clip_grad_norm_(self.parameters, self.clip)

    def finish(self, finite: bool) -> None:
        if not finite:
            raise loop.Diverged("not finite; step skipped")
        self.optimizer.step()


def _fit_with(parts: type[_Loop]) -> Callable:
    """``fit`` with these pieces."""

    def fit(
        model, loss, batches, optimizer, schedule, start=0, clip=math.inf, micro_batches=lambda batch: [batch]
    ) -> Iterator[loop.Step]:
        own = parts(optimizer, schedule, clip)
        for number, batch in enumerate(batches, start=start):
            multiplier = own.set_rate(number)
            own.reset()
            total, cut = 0.0, micro_batches(batch)
            for micro_batch in cut:
                scaled = loss(model, micro_batch) * own.weight(micro_batch, batch, len(cut))
                scaled.backward()
                own.after_backward()
                total += scaled.item()
            norm = own.clipped()
            own.finish(math.isfinite(total) and bool(norm.isfinite()))
            yield loop.Step(number + 1, batch, total, multiplier)

    return fit


def _loop_mistake(name: str, meaning: str) -> Callable[[type[_Loop]], None]:
    return lambda parts: mistake(loop, "fit", name, meaning)(_fit_with(parts)) and None


@_loop_mistake("gradients not zeroed", "each step's gradient is added to those of all steps before")
class _(_Loop):
    def reset(self) -> None:
        pass


@_loop_mistake("gradients zeroed in every micro-batch", "only the last micro-batch of a batch counts")
class _(_Loop):
    def weight(self, micro_batch: Sequence, batch: Sequence, count: int) -> float:
        self.optimizer.zero_grad()
        return super().weight(micro_batch, batch, count)


@_loop_mistake("micro-batches added up unweighted", "the means of the micro-batches are added, not averaged")
class _(_Loop):
    def weight(self, micro_batch: Sequence, batch: Sequence, count: int) -> float:
        return 1.0


@_loop_mistake("micro-batches weighted equally", "a micro-batch of one row counts as much as one of ten")
class _(_Loop):
    def weight(self, micro_batch: Sequence, batch: Sequence, count: int) -> float:
        return 1 / count


@_loop_mistake("a step per micro-batch", "the optimizer steps after each micro-batch, on the gradients so far")
class _(_Loop):
    def after_backward(self) -> None:
        self.optimizer.step()

    def finish(self, finite: bool) -> None:
        if not finite:
            raise loop.Diverged("not finite")


@_loop_mistake("multipliers that compound", "the learning rate of the last step is multiplied, not the first one")
class _(_Loop):
    def set_rate(self, number: int) -> float:
        multiplier = self.schedule(number)
        for group in self.groups:
            group["lr"] *= multiplier
        return multiplier


@_loop_mistake("the schedule one step ahead", "the multiplier is that of the next step")
class _(_Loop):
    def set_rate(self, number: int) -> float:
        return super().set_rate(number + 1)


@_loop_mistake("the learning rate never set", "the schedule is asked, and the optimizer not told")
class _(_Loop):
    def set_rate(self, number: int) -> float:
        return self.schedule(number)


@_loop_mistake("the first group's rate for all", "parameter groups lose their own learning rates")
class _(_Loop):
    def set_rate(self, number: int) -> float:
        multiplier = super().set_rate(number)
        for group in self.groups:
            group["lr"] = self.groups[0]["lr"]
        return multiplier


@_loop_mistake("clip forgotten", "gradients of any length reach the optimizer")
class _(_Loop):
    def clipped(self) -> Tensor:
        return nn.utils.clip_grad_norm_(self.parameters, math.inf)


@_loop_mistake(
    "clipped number by number", "each number of the gradient is cut off, not its length: the direction turns"
)
class _(_Loop):
    def clipped(self) -> Tensor:
        norm = nn.utils.clip_grad_norm_(self.parameters, math.inf)
        nn.utils.clip_grad_value_(self.parameters, self.clip)
        return norm


@_loop_mistake("clipped in every micro-batch", "the gradients so far are clipped after each micro-batch")
class _(_Loop):
    def after_backward(self) -> None:
        self.clipped()


@_loop_mistake("stepped before the check", "the step is made first, and then the loss is found to be NaN")
class _(_Loop):
    def finish(self, finite: bool) -> None:
        self.optimizer.step()
        if not finite:
            raise loop.Diverged("not finite")


@_loop_mistake("NaN not noticed", "a loss of NaN reaches the weights, and training goes on")
class _(_Loop):
    def finish(self, finite: bool) -> None:
        self.optimizer.step()


# -------------------------------------------------------------------------------- batches in parts


@mistake(gradient_cache, "cut", "a forgotten last part", "the rows after the last part that is full are dropped")
def _(rows: Sequence[int], lengths: Sequence[int], tokens: int) -> list[list[int]]:
    parts, part = [], []
    for row in rows:
        if part and (len(part) + 1) * max(lengths[each] for each in [*part, row]) > tokens:
            parts.append(part)
            part = []
        part.append(row)
    return parts


@mistake(gradient_cache, "cut", "pads not counted", "a part is measured by the sum of its rows, not by its longest")
def _(rows: Sequence[int], lengths: Sequence[int], tokens: int) -> list[list[int]]:
    parts = []
    for row in rows:
        if parts and sum(lengths[each] for each in [*parts[-1], row]) <= tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts


@mistake(gradient_cache, "cut", "the longest of all parts", "a part is measured by the longest row up to there")
def _(rows: Sequence[int], lengths: Sequence[int], tokens: int) -> list[list[int]]:
    parts, longest = [], 0
    for row in rows:
        longest = max(longest, lengths[row])
        if parts and (len(parts[-1]) + 1) * longest <= tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts


@mistake(gradient_cache, "cut", "the limit is too much", "a part of as many tokens as are allowed is cut")
def _(rows: Sequence[int], lengths: Sequence[int], tokens: int) -> list[list[int]]:
    return _cut(rows, lengths, tokens - 1)


@mistake(gradient_cache, "vectors_in_parts", "hard negatives misaligned", "texts are joined by column within each part")
def _(network: nn.Module, parts: Parts) -> tuple[Tensor, States]:
    vectors, states = _vectors(network, parts)  # (B, n, D)
    columns = [part.transpose(0, 1).flatten(0, 1) for part in vectors.split([len(part) for part in parts])]  # (n b, D)
    return torch.cat(columns).unflatten(0, (-1, len(vectors))).transpose(0, 1), states  # as if it were (n, B, D)


@mistake(
    gradient_cache, "vectors_in_parts", "state after the part", "the random state is kept after its masks are drawn"
)
def _(network: nn.Module, parts: Parts) -> tuple[Tensor, States]:
    vectors, states = _vectors(network, parts)
    return vectors, [*states[1:], random_state(vectors.device)]


@mistake(gradient_cache, "replay", "replay without the random state", "each part gets new dropout masks")
def _(network: nn.Module, parts: Parts, states: States, gradient: Tensor) -> None:
    with torch.enable_grad():
        for part, pull in zip(parts, gradient.split([len(part) for part in parts]), strict=True):
            network(part).backward(pull)


@mistake(gradient_cache, "replay", "one random state for all parts", "every part has the first part's dropout masks")
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


@mistake(gradient_cache, "replay", "the last part not replayed", "its rows of the gradient never reach the encoder")
def _(network: nn.Module, parts: Parts, states: States, gradient: Tensor) -> None:
    _replay(network, parts[:-1], states[:-1], gradient[: len(gradient) - len(parts[-1])] if parts else gradient)


@mistake(
    gradient_cache, "replay", "gradients of one part only", "each part's gradients replace those of the part before"
)
def _(network: nn.Module, parts: Parts, states: States, gradient: Tensor) -> None:
    for part, state, pull in zip(parts, states, gradient.split([len(part) for part in parts]), strict=True):
        network.zero_grad()
        _replay(network, [part], [state], pull)
