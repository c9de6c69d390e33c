"""Replay a network's forward and backward as CUDA graphs, one for each shape of batch.

A training step of a small model is some thousand short operations, which a GPU finishes sooner than Python can start
them. A graph starts all of them at once. It holds for one shape, so lengths are rounded up: to 16 tokens instead of
13, with three pads that no text sees. ``GraphedNetwork`` is called with row numbers like any network, and the loss of
its result, clipping and optimizer are ``fit``'s, as without graphs.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from minisbert.backends.cuda import LENGTH_STEP
from minisbert.core import one_line
from minisbert.models.guards import check_ids
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import check_usage
from minisbert.system.devices import random_state, set_random_state
from minisbert.training.distributed import say_once
from minisbert.training.objectives.base import Objective, PairNetwork, VectorNetwork
from minisbert.training.settings import RunSettings

OFTEN = 3  # batches of a shape in an epoch: recording one takes as long as a few steps


class Computed(nn.Module):
    """A network's ``compute``, as a module of its own: recording replaces a module's ``forward``."""

    def __init__(self, network: VectorNetwork | PairNetwork):
        super().__init__()
        self.network = network

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.network.compute(*inputs)


def recorded_step(network: VectorNetwork | PairNetwork, inputs: tuple[Tensor, ...]) -> Callable[..., Tensor]:
    """Record ``network.compute`` and its backward for inputs of these shapes; return the function that replays both."""
    device = inputs[0].device
    # subtle: what is computed to warm up draws dropout masks, which a resumed run would draw at another step
    before = random_state(device)
    with torch.cuda.device(device):  # of several GPUs
        graphed = torch.cuda.make_graphed_callables(
            Computed(network), inputs, num_warmup_iters=1, allow_unused_input=True
        )
    set_random_state(before, device)
    return graphed


class GraphedNetwork(nn.Module):
    """Wrap a network: rows to what it computes, by a graph for shapes that occur often in the epoch.

    Which shapes these are follows from the epoch's batches alone, so a resumed run makes the same steps by graphs.
    """

    def __init__(
        self, network: VectorNetwork | PairNetwork, encoder: SentenceEncoder, capture: Callable = recorded_step
    ):
        super().__init__()
        self.network = network
        self.capture: Callable | None = capture
        self.config, self.pad_id = encoder.bert.config, encoder.tokenizer.pad_id
        self.often: set[tuple[int, int]] = set()
        self.graphs: dict[tuple[int, int], Callable[..., Tensor]] = {}

    def plan(self, batches: Sequence[Sequence[int]]) -> None:
        """Choose the shapes of an epoch that get a graph, from its batches of row numbers."""
        counts = Counter(self.shape(self.network.inputs(rows)[0]) for rows in batches)
        self.often = {shape for shape, count in counts.items() if count >= OFTEN}

    def shape(self, ids: Tensor) -> tuple[int, int]:
        """Round up the length of ids (R, T) -> R and the rounded T, at most the encoder's positions."""
        rows, tokens = ids.shape
        return rows, min(tokens + -tokens % LENGTH_STEP, self.config.positions)

    def forward(self, rows: Sequence[int]) -> Tensor:
        inputs = self.network.inputs(rows)
        shape = self.shape(inputs[0])
        if shape not in self.often or self.capture is None or not torch.is_grad_enabled():
            return self.network(rows)
        padded = self.padded(*inputs, tokens=shape[1])
        if shape not in self.graphs:
            try:
                self.graphs[shape] = self.capture(self.network, padded)
            except RuntimeError as error:
                say_once(f"no CUDA graphs, so steps take longer: {one_line(error)}")
                self.capture = None
                return self.network(rows)
        return self.graphs[shape](*padded)

    def padded(
        self, ids: Tensor, mask: Tensor | None, types: Tensor | None = None, *, tokens: int
    ) -> tuple[Tensor, ...]:
        """Pad a batch to ``tokens``, on the model's device: ids, mask and, if there are some, token types."""
        # a graph cannot look at values
        check_ids(self.config, ids, ids.shape[1], types)
        more = tokens - ids.shape[1]
        if mask is None:
            mask = torch.ones_like(ids, dtype=torch.bool)
        inputs = [nn.functional.pad(ids, (0, more), value=self.pad_id), nn.functional.pad(mask, (0, more))]
        if types is not None:
            inputs.append(nn.functional.pad(types, (0, more)))
        return tuple(x.to(self.network.model.device) for x in inputs)


def use_graphs(options: RunSettings, objective: Objective, processes: int) -> bool:
    """Return whether a run has graphs; ``InputError`` with the reason why not, if it asks for them."""
    network, model = objective.network, objective.model
    recordable = type(network) in (VectorNetwork, PairNetwork) and type(model) in (SentenceEncoder, PairModel)
    reasons = (
        (objective.encoder.device.type != "cuda", "--graphs: there is no CUDA GPU"),
        (processes > 1, "--graphs: several processes send each other gradients, which no graph does"),
        (options.micro_tokens is not None, "--graphs and --micro-tokens: give one of them"),
        (not (recordable and objective.by_rows), f"--graphs: objective {options.objective} is not made for them"),
    )
    if options.graphs == "on":
        check_usage(*reasons)
    return options.graphs != "off" and not any(found for found, _ in reasons)
