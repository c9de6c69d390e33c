"""Replay a network's forward and backward as CUDA graphs, a pair for each shape of batch.

A training step of a small model is some thousand short operations, which a GPU finishes sooner than
Python can start them. A graph starts all of them at once. It holds for one shape, so lengths are
rounded up: to 16 tokens instead of 13, with three pads that no text sees. ``GraphedNetwork`` is
called with row numbers like any network, and the loss of its result, clipping and optimizer are
``fit``'s, as without graphs; but with ``FlatAdamW`` they see a parameter or two in place of a
hundred.
"""

from collections import Counter
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from minisbert.backends.cuda import LENGTH_STEP, warming_up
from minisbert.core import one_line
from minisbert.models.batching import check_ids
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import check_usage
from minisbert.system.devices import random_state, set_random_state
from minisbert.system.torch_internals import add_each
from minisbert.training.distributed import say_once
from minisbert.training.objectives import Objective, PairNetwork, VectorNetwork
from minisbert.training.settings import RunSettings

OFTEN = 3  # batches of a shape in an epoch: recording one takes as long as a few steps
ALIGNED = 64  # numbers: where a parameter may begin, for the fastest kernels


class FlatAdamW(AdamW):
    """Do another AdamW's steps, with the parameters of each of its groups one after the other in
    one tensor.

    The parameters, their gradients and the other optimizer's state become views of the new tensors,
    so a run is saved and resumed by the other one. Gradients are never None: graphs add to them in
    their place.
    """

    def __init__(self, optimizer: Optimizer):
        groups = []
        flat = [in_one_tensor(group["params"], optimizer.state) for group in optimizer.param_groups]
        for group, (parameter, _) in zip(optimizer.param_groups, flat, strict=True):
            groups.append(
                {"params": [parameter], "lr": group["lr"], "weight_decay": group["weight_decay"]}
            )
        super().__init__(groups, fused=True)
        self.state.update(flat)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Set the gradients to 0 where they are."""
        super().zero_grad(set_to_none=False)


def in_one_tensor(
    parameters: list[nn.Parameter], states: MutableMapping[Any, Any]
) -> tuple[nn.Parameter, dict[str, Tensor]]:
    """Move parameters, gradients and AdamW's states to tensors (L,); return the parameter of all,
    and its state.
    """
    room = [parameter.numel() + -parameter.numel() % ALIGNED for parameter in parameters]
    data, gradients, means, squares = (
        parameters[0].detach().new_zeros(sum(room)) for _ in range(4)
    )
    step = torch.zeros((), device=data.device)
    for parameter, *places in zip(
        parameters, *(x.split(room) for x in (data, gradients, means, squares)), strict=True
    ):
        value, gradient, mean, square = (
            place[: parameter.numel()].view_as(parameter) for place in places
        )
        value.copy_(parameter.detach())
        parameter.data, parameter.grad = value, gradient
        if states[parameter]:  # of a resumed run
            step.copy_(states[parameter]["step"])
            mean.copy_(states[parameter]["exp_avg"])
            square.copy_(states[parameter]["exp_avg_sq"])
        states[parameter] = {"step": step, "exp_avg": mean, "exp_avg_sq": square}
    flat = nn.Parameter(data)
    flat.grad = gradients
    return flat, {"step": step, "exp_avg": means, "exp_avg_sq": squares}


class RecordedStep:
    """Two CUDA graphs for inputs of one shape: of ``network.compute``, and of its backward, which
    adds to gradients.

    All parameters must have gradients that stay where they are (``FlatAdamW``).
    """

    def __init__(self, network: VectorNetwork | PairNetwork, inputs: tuple[Tensor, ...], pool: Any):
        device = inputs[0].device
        self.inputs = [x.clone() for x in inputs]
        # subtle: what is computed to warm up draws dropout masks, which a resumed run would draw at
        # another step
        before = random_state(device)
        with torch.cuda.device(device):  # of several GPUs
            self.record(network, pool)
        set_random_state(before, device)

    def record(self, network: VectorNetwork | PairNetwork, pool: Any) -> None:
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        with warming_up():
            output = network.compute(*self.inputs)
            torch.autograd.grad(output, trained, torch.ones_like(output), allow_unused=True)
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.forward, pool=pool):
            output = network.compute(*self.inputs)
        self.output, self.gradient = output.detach(), torch.zeros_like(output)
        with torch.cuda.graph(self.backward, pool=pool):
            added = torch.autograd.grad(output, trained, self.gradient, allow_unused=True)
            reached = [
                (x, gradient)
                for x, gradient in zip(trained, added, strict=True)
                if gradient is not None
            ]
            add_each([(cast(Tensor, x.grad), gradient) for x, gradient in reached])
        for parameter, gradient in zip(trained, added, strict=True):
            if gradient is None:  # which ``Objective.check_gradients`` will see
                parameter.grad = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Copy the inputs to the graph's own and replay it; the backward of what it returns replays
        the other graph.
        """
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given)
        self.forward.replay()
        output = self.output.detach().requires_grad_()
        output.register_hook(self.replay_backward)
        return output

    def replay_backward(self, gradient: Tensor) -> None:
        self.gradient.copy_(gradient)
        self.backward.replay()


class GraphedNetwork(nn.Module):
    """Wrap a network: rows to what it computes, by a graph for shapes that occur often in the
    epoch.

    Which shapes these are follows from the epoch's batches alone, so a resumed run makes the same
    steps by graphs.
    """

    def __init__(
        self,
        network: VectorNetwork | PairNetwork,
        encoder: SentenceEncoder,
        capture: Callable = RecordedStep,
    ):
        super().__init__()
        self.network = network
        self.capture: Callable | None = capture
        self.config, self.pad_id = encoder.bert.config, encoder.tokenizer.pad_id
        cuda = next(network.parameters()).device.type == "cuda"
        # of all graphs: no two run at once, and what one leaves for its backward is read before the
        # next
        self.pool = torch.cuda.graph_pool_handle() if cuda else None
        self.often: set[tuple[int, int]] = set()
        self.graphs: dict[tuple[int, int], Callable[..., Tensor]] = {}
        self.next: dict[tuple[int, ...], Sequence[int]] = {}  # the batch after each
        self.ready: dict[tuple[int, ...], tuple[tuple[int, int], tuple[Tensor, ...]]] = {}

    def plan(self, batches: Sequence[Sequence[int]]) -> None:
        """Choose the shapes of an epoch that get a graph, from its batches of row numbers."""
        counts = Counter(self.shape(self.network.inputs(rows)[0]) for rows in batches)
        self.often = {shape for shape, count in counts.items() if count >= OFTEN}
        self.next = dict(zip(map(tuple, batches), batches[1:], strict=False))

    def shape(self, ids: Tensor) -> tuple[int, int]:
        """Round up the length of ids (R, T) -> R and the rounded T, at most the encoder's
        positions.
        """
        rows, tokens = ids.shape
        return rows, min(tokens + -tokens % LENGTH_STEP, self.config.positions)

    def forward(self, rows: Sequence[int]) -> Tensor:
        ready = self.ready.pop(tuple(rows), None)
        shape, padded = ready or self.prepared(rows)
        if shape not in self.often or self.capture is None or not torch.is_grad_enabled():
            return self.network(rows)
        if shape not in self.graphs:
            try:
                self.graphs[shape] = self.capture(self.network, padded, self.pool)
            except RuntimeError as error:
                say_once(f"no CUDA graphs, so steps take longer: {one_line(error)}")
                self.capture = None
                return self.network(rows)
        output = self.graphs[shape](*padded)
        output.register_hook(lambda gradient: self.prepare(self.next.get(tuple(rows))))
        return output

    def prepare(self, rows: Sequence[int] | None) -> None:
        """Prepare the next batch while the GPU computes this one's backward."""
        self.ready = {tuple(rows): self.prepared(rows)} if rows else {}

    def prepared(self, rows: Sequence[int]) -> tuple[tuple[int, int], tuple[Tensor, ...]]:
        """Return the rounded shape of a batch, and its inputs of that shape on the model's device.

        These are ids, mask and, if there are some, token types.
        """
        ids, mask, *types = self.network.inputs(rows)
        shape = self.shape(ids)
        check_ids(self.config, ids, ids.shape[1], *types)  # a graph cannot look at values
        if mask is None:
            mask = torch.ones_like(ids, dtype=torch.bool)
        more = 0, shape[1] - ids.shape[1]
        inputs = [nn.functional.pad(ids, more, value=self.pad_id)]
        inputs += [nn.functional.pad(x, more) for x in (mask, *types) if x is not None]
        return shape, tuple(x.to(self.network.model.device) for x in inputs)


def use_graphs(options: RunSettings, objective: Objective, processes: int) -> bool:
    """Return whether a run has graphs; ``InputError`` with the reason why not, if it asks for
    them.
    """
    network, model = objective.network, objective.model
    recordable = type(network) in (VectorNetwork, PairNetwork) and type(model) in (
        SentenceEncoder,
        PairModel,
    )
    reasons = (
        (
            objective.encoder.device.type != "cuda",
            "--graphs are CUDA's, and the run is not on a CUDA GPU",
        ),
        (
            processes > 1,
            "--graphs: several processes send each other gradients, which no graph does",
        ),
        (options.micro_tokens is not None, "--graphs and --micro-tokens: give one of them"),
        (
            not (recordable and objective.by_rows),
            f"--graphs: objective {options.objective} is not made for them",
        ),
    )
    if options.graphs == "on":
        check_usage(*reasons)
    return options.graphs != "off" and not any(found for found, _ in reasons)
