"""Gradient caching: a batch in parts has the gradients of one graph, at the memory of one part."""

import pytest
import torch
from torch import Tensor, nn

from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.train import train
from minisbert.training.distributed import ProcessGroup
from minisbert.training.encoder_losses import CoSENT, Ranking, SimCSE
from minisbert.training.gradient_cache import (
    CACHED_TOKENS,
    GradientCache,
    batch_divider,
    cut,
    whole_batch,
)
from tests import toys

CPU = torch.device("cpu")
ALONE = ProcessGroup(0, 1, CPU)
COMPARING = {
    "ranking": Ranking(symmetric=True, projection=True),
    "simcse": SimCSE(),
    "simcse with a projection": SimCSE(projection=True),
    "cosent": CoSENT(),
}


def gradients(network: nn.Module) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    network.zero_grad()
    return found


# -----------------------------------------------------------------------------
# exactness


@pytest.mark.exact(
    "the same parts twice; the mode is off within backward, where the second time is"
)
@pytest.mark.parametrize("name", COMPARING)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_batch_in_parts_has_the_gradients_of_one_graph(prepare, name, dtype):
    """With dropout: the one graph draws its masks part by part as well.

    In bfloat16 the sum over the parts is rounded in float32.
    """
    tokens = 48
    if name.startswith("simcse"):
        tokens = 24
    task = prepare(COMPARING[name])
    rows = [7, 0, 3, 12, 5, 1, 9]
    network = task.network.train()
    if dtype == torch.bfloat16:
        network.float()
        network.dtype = dtype  # of the encoder's products
        if task.loss.targets is not None:
            task.loss.targets = task.loss.targets.float()
    parts = cut(rows, network.lengths, tokens)
    assert len(parts) > 2

    torch.manual_seed(5)
    vectors = torch.cat([network(part) for part in parts])
    expected = task.loss.batch_loss(lambda rows: vectors, rows)
    expected.backward()
    theirs = gradients(network)
    after = torch.rand(1)

    torch.manual_seed(5)
    divide = batch_divider(network.lengths, CPU, tokens, compares_rows=True)
    found = task.loss.batch_loss(ALONE.wrap(network, divide), rows)
    found.backward()
    ours = gradients(network)
    assert torch.equal(torch.rand(1), after)
    assert torch.equal(found, expected)
    assert ours.keys() == theirs.keys()
    scale = max(largest(gradient) for gradient in theirs.values())
    assert scale > 1e-3
    bound = 1e-9
    if dtype == torch.bfloat16:
        bound = 1e-6 * scale
    assert max(largest(ours[name] - theirs[name]) for name in ours) < bound


def largest(x: Tensor) -> float:
    return x.abs().max().item()


class Texts(nn.Module):
    """Turn row numbers into vectors (B, 3, D), with dropout."""

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


# -----------------------------------------------------------------------------
# memory


def kept_for_backward(network: nn.Module, rows: int) -> int:
    """The most bytes that graphs of the network keep at any time of a forward and backward."""
    alive = 0
    most = 0

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
    one_part = kept_for_backward(network, 32)
    assert kept_for_backward(cached, 64) == one_part
    assert kept_for_backward(cached, 256) == one_part
    assert kept_for_backward(network, 256) > 7 * one_part


# -----------------------------------------------------------------------------
# parts


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
    rows = [11, 4, 7, 0, 9, 2]
    divide = batch_divider([length] * 12, device, micro_tokens, not separable, processes)
    found = divide(rows)
    assert [len(part) for part in found] == expected
    assert [row for part in found for row in part] == rows


def test_one_part_is_one_graph():
    network = nn.Linear(1, 1)
    network.forward = lambda rows: torch.ones(len(rows), 2, 3) * network.weight
    assert whole_batch((4, 2)) == [[4, 2]]
    assert not GradientCache(network, whole_batch)([1, 2]).is_leaf
    assert GradientCache(network, lambda rows: [[1], [2]])([1, 2]).is_leaf
    assert ALONE.wrap(network) is network


# -----------------------------------------------------------------------------
# runs


@pytest.mark.exact("the same training twice in a process")
def test_a_run_in_parts_resumes_to_the_same_bits(tiny, tmp_path):
    """With dropout: a resumed run draws the masks of an uninterrupted one."""
    given = {"batch_size": 8, "lr": 1e-3, "micro_tokens": 72, "dtype": "float32", "log_every": 1}
    rows = toys.rows("triplets")
    for name, stop in (("straight", None), ("stopped", 2)):
        for last in (stop, None):
            model = SentenceEncoder.load(tiny, device="cpu")
            train(
                model, rows, out=tmp_path / name, resume=True, **given,
                callback=lambda step, _, last=last: step.number == last,
            )  # fmt: skip
    assert toys.losses(tmp_path / "stopped") == toys.losses(tmp_path / "straight")
    assert len(toys.losses(tmp_path / "stopped")) == 3
