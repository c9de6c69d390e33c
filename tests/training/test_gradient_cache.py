"""Gradient caching: a batch in parts has the gradients of one graph, with dropout, at the memory of
one part.
"""

from types import SimpleNamespace

import pytest
import torch
from minisbert.training.settings import parse
from minisbert.training.train import (
    CACHED_TOKENS,
    divide,
    load_trainable,
    main,
    make_objective,
    micro_batches,
)
from torch import Tensor, nn

from minisbert.system.progress import Bar
from minisbert.training.distributed import ProcessGroup
from minisbert.training.gradient_cache import GradientCache, cut, whole
from tests import toys

CPU = torch.device("cpu")
ALONE = ProcessGroup(0, 1, CPU)
COMPARING = [
    ("mnr", ["--symmetric", "--projection"]),
    ("simcse", []),
    ("simcse", ["--projection"]),
    ("simcse-supervised", []),
    ("cosent", []),
]


@pytest.fixture
def flags(tiny, files):
    """``flags("mnr", "--symmetric")``: a run of the tiny model on toy rows."""
    return lambda objective, *more: ["--model", str(tiny), *toys.flags(files, objective, *more)]


def gradients(network: nn.Module) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    network.zero_grad()
    return found


# -------------------------------------------------------------------------------------- exactness


@pytest.mark.exact(
    "the same parts twice; the mode is off within backward, where the second time is"
)
@pytest.mark.parametrize(("objective", "more"), COMPARING)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_batch_in_parts_has_the_gradients_of_one_graph(flags, objective, more, dtype):
    """Dropout on: the one graph draws its masks part by part as well. bfloat16 rounds the sum over
    parts in float32.
    """
    tokens = 24 if objective == "simcse" else 48
    options = parse(flags(objective, *more, "--micro-tokens", str(tokens)))
    torch.manual_seed(3)
    task = make_objective(options, load_trainable(options, CPU), dtype)
    rows, network = [7, 0, 3, 12, 5, 1, 9], task.network.train()
    if dtype == torch.float64:
        network.double()
        network.dtype = torch.float32  # of the encoder: no autocast
    parts = cut(rows, task.lengths, tokens)
    assert len(parts) > 2

    torch.manual_seed(5)
    vectors = torch.cat([network(part) for part in parts])
    expected = task.loss(lambda rows: vectors, rows)
    expected.backward()
    theirs, after = gradients(network), torch.rand(1)

    torch.manual_seed(5)
    found = task.loss(divide(task, options, ALONE)[1], rows)
    found.backward()
    ours = gradients(network)
    assert torch.equal(torch.rand(1), after)
    assert torch.equal(found, expected)
    assert ours.keys() == theirs.keys()
    bound = 1e-9 if dtype == torch.float64 else 1e-6 * max(map(largest, theirs.values()))
    assert max(largest(ours[name] - theirs[name]) for name in ours) < bound
    assert max(map(largest, theirs.values())) > 1e-3


def largest(x: Tensor) -> float:
    return x.abs().max().item()


class Texts(nn.Module):
    """Row numbers -> vectors (B, 3, D), with dropout; ``alive`` counts the numbers that graphs keep
    for backward.
    """

    def __init__(self, rows: int):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer(
            "table", torch.randn(3 * rows, 32, generator=generator, dtype=torch.float64)
        )
        self.layers = nn.Sequential(
            nn.Linear(32, 64),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(64, 8),
            nn.Tanh(),
            nn.Dropout(0.1),
        ).double()

    def forward(self, rows: list[int]) -> Tensor:
        ids = 3 * torch.tensor(rows)[:, None] + torch.arange(3)  # (B, 3)
        return self.layers(self.table[ids])


# ------------------------------------------------------------------------------------------ memory


def kept_for_backward(network: nn.Module, rows: int) -> int:
    """The most bytes that graphs of the network keep at any time of a forward and backward."""
    alive = most = 0

    class Kept:
        def __init__(self, tensor: Tensor):
            nonlocal alive, most
            self.tensor = tensor
            alive += tensor.nbytes
            most = max(most, alive)

        def __del__(self):
            nonlocal alive
            alive -= self.tensor.nbytes

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        vectors = network(list(range(rows)))
        gradient = torch.ones_like(vectors)
        vectors.backward(gradient)
    assert alive == 0
    return most


def test_what_graphs_keep_does_not_grow_with_the_batch():
    network = Texts(256)
    cached = GradientCache(network, lambda rows: cut(rows, [24] * 256, 768))  # 32 rows a part
    assert (
        kept_for_backward(cached, 256)
        == kept_for_backward(cached, 64)
        == kept_for_backward(network, 32)
    )
    assert kept_for_backward(network, 256) > 7 * kept_for_backward(cached, 256)


# ------------------------------------------------------------------------------------------- parts


GPU = torch.device("cuda")


@pytest.mark.parametrize(
    ("separable", "length", "micro_tokens", "device", "processes", "expected"),
    [
        (False, 300, None, CPU, 1, [6]),  # 1,800 tokens: below the limit, one graph is faster
        (False, 300, 600, GPU, 1, [2, 2, 2]),
        (False, 300, 900, CPU, 1, [3, 3]),
        (False, CACHED_TOKENS // 6, None, CPU, 1, [6]),
        (False, CACHED_TOKENS // 6 + 1, None, CPU, 1, [1] * 6),
        (False, CACHED_TOKENS, None, GPU, 1, [6]),
        (True, 300, None, CPU, 1, [2, 2, 2]),  # 1,800 tokens are three parts of at most 768
        (True, 300, None, CPU, 2, [3, 3]),
        (True, 300, None, GPU, 1, [6]),
        (True, 300, 900, CPU, 1, [3, 3]),
        (True, 300, 900, CPU, 2, [6]),  # two processes share each part
    ],
)
def test_when_a_batch_is_cut(separable, length, micro_tokens, device, processes, expected):
    rows, objective = (
        [11, 4, 7, 0, 9, 2],
        SimpleNamespace(lengths=[length] * 12, separable=separable),
    )
    found = micro_batches(
        rows, objective, SimpleNamespace(micro_tokens=micro_tokens), device, processes
    )
    assert [len(part) for part in found] == expected
    assert [row for part in found for row in part] == rows


def test_one_part_is_one_graph():
    network = nn.Linear(1, 1)
    network.forward = lambda rows: torch.ones(len(rows), 2, 3) * network.weight
    assert whole((4, 2)) == [[4, 2]]
    assert not GradientCache(network, whole)([1, 2]).is_leaf
    assert GradientCache(network, lambda rows: [[1], [2]])([1, 2]).is_leaf
    assert ALONE.wrap(network) is network


# -------------------------------------------------------------------------------------------- runs


def test_a_run_in_parts_resumes_to_the_same_bits(flags, tmp_path):
    """With dropout: a resumed run draws the masks of an uninterrupted one."""
    given = flags(
        "mnr", "--batch-size", "8", "--log-every", "1", "--lr", "1e-3", "--micro-tokens", "72"
    )
    main([*given, "--out", str(tmp_path / "straight")])
    toys.stop_at(2, (Bar, "set_postfix_str"), main, [*given, "--out", str(tmp_path / "stopped")])
    main(["--resume", str(tmp_path / "stopped")])
    assert toys.losses(tmp_path / "stopped") == toys.losses(tmp_path / "straight")
    assert len(toys.losses(tmp_path / "stopped")) == 3
