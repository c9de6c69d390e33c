"""A run's state: it is restored as it was saved, and a state that does not fit is refused."""

import errno
import hashlib
import json
import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from minisbert.core import InputError
from minisbert.core.loop import fit
from minisbert.core.tokenizer import Encoded
from minisbert.data.datasets import Row
from minisbert.system.devices import random_state, set_random_state
from minisbert.training import STATE
from minisbert.training import run as state
from minisbert.training.objectives import Objective
from minisbert.training.run import RunState, content_hash, load_state, run_identity, save_state

CPU = torch.device("cpu")
PROGRESS = RunState(
    step=7,
    position=2,
    before={"dev": {"spearman": 0.25}},
    evaluated=5,
    best=0.1 + 0.2,
    waited=1,
    recent=[1 / 3, 2e-17],
)


def made(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    network[0].bias.requires_grad_(False)
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return network, torch.optim.AdamW(
        [{"params": trained[:1]}, {"params": trained[1:], "lr": 0.1}], fused=True
    )


def steps(network: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    def loss(network: nn.Module, _: list[int]) -> torch.Tensor:
        return network(torch.rand(5, 3)).pow(2).sum()  # the state of rand's generator is saved too

    list(fit(network, loss, [[0]] * count, optimizer, lambda step: 1.0))


@pytest.fixture
def saved(tmp_path):
    """A network after three steps, its state saved in ``tmp_path``."""
    network, optimizer = made(seed=1)
    steps(network, optimizer, 3)
    save_state(tmp_path / STATE, network, optimizer, random_state(CPU), PROGRESS, "rows")
    return network, optimizer


def test_training_continues_from_a_state_bit_for_bit(saved, tmp_path):
    network, optimizer = saved
    steps(network, optimizer, 4)
    other, its_optimizer = made(seed=2)
    progress, randomness = load_state(tmp_path / STATE, other, its_optimizer, "rows")
    set_random_state(randomness, CPU)
    steps(other, its_optimizer, 4)
    assert progress == PROGRESS
    assert all(
        torch.equal(a, b) for a, b in zip(network.parameters(), other.parameters(), strict=True)
    )


def test_a_state_before_the_first_step(tmp_path):
    network, optimizer = made(seed=1)
    save_state(tmp_path / STATE, network, optimizer, random_state(CPU), RunState(), "rows")
    other, its_optimizer = made(seed=2)
    progress, _ = load_state(tmp_path / STATE, other, its_optimizer, "rows")
    assert progress == RunState()
    assert torch.equal(network[1].weight, other[1].weight)


def test_a_state_of_other_rows_another_network_or_version_is_refused(saved, tmp_path):
    path = tmp_path / STATE
    with pytest.raises(InputError, match="the training rows, dev, test, the model or"):
        load_state(path, *made(seed=1), "other rows")
    network = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    with pytest.raises(
        InputError, match=r"is the state of another network: Error\(s\) in loading state_dict"
    ):
        load_state(path, network, torch.optim.AdamW(network.parameters()), "rows")
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["run"])
    tensors, progress = load_file(path), about["progress"] | {"phase_of_the_moon": "full"}
    del about["sha256"]
    save_file(tensors, path, {"run": json.dumps(about)})
    with pytest.raises(InputError, match="no key 'sha256'"):
        load_state(path, *made(seed=1), "rows")
    about |= {"progress": progress}
    save_file(tensors, path, {"run": json.dumps(about | {"sha256": content_hash(tensors, about)})})
    with pytest.raises(InputError, match="phase_of_the_moon"):
        load_state(path, *made(seed=1), "rows")


def flipped(tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1).view(torch.uint8)[0] ^= 1


M = "optimizer.1.weight.exp_avg"
DAMAGED_TENSORS = {
    "a frozen weight's last bit": lambda t: flipped(t, "network.0.bias"),
    "no moments": lambda t: [t.pop(name) for name in list(t) if name.startswith("optimizer")],
    "a flat moment": lambda t: t.update({M: t[M].flatten()}),
    "another name": lambda t: t.update({"random.cuda": t.pop("random.cpu")}),
}


@pytest.mark.parametrize("name", [*DAMAGED_TENSORS, "another step"])
def test_a_damaged_state_is_refused(saved, tmp_path, name):
    path = tmp_path / STATE
    with safe_open(path, "pt") as file:
        about = file.metadata()["run"]
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    if name in DAMAGED_TENSORS:
        DAMAGED_TENSORS[name](tensors)
    else:
        about = about.replace('"step": 7', '"step": 8')
    save_file(tensors, path, {"run": about})
    network, optimizer = made(seed=2)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(InputError, match="is damaged or was edited") as refused:
        load_state(tmp_path / STATE, network, optimizer, "rows")
    assert "\n" not in str(refused.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert not optimizer.state


def test_any_flipped_byte_is_refused(saved, tmp_path):
    path = tmp_path / STATE
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")  # of the tensors' bytes
    for place in (*range(start, start + 64), *range(start, len(content), 97), len(content) - 1):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        with pytest.raises(InputError, match="is damaged or was edited"):
            load_state(tmp_path / STATE, *made(seed=1), "rows")


def test_the_hash_by_hand():
    """The same on every machine: a state may move to another one."""
    tensors = {"b": torch.tensor([[1, 2]], dtype=torch.uint8), "a": torch.tensor([0.5])}
    expected = (
        b'{"step": 7}["a", "torch.float32", [1]]\x00\x00\x00?["b", "torch.uint8", [1, 2]]\x01\x02'
    )
    assert content_hash(tensors, {"step": 7}) == hashlib.sha256(expected).hexdigest()


def test_another_torch_is_reported_and_the_number_of_threads_restored(
    saved, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(torch, "__version__", "2.0.1")
    torch.set_num_threads(2)
    save_state(tmp_path / STATE, *saved, random_state(CPU), PROGRESS, "rows")
    monkeypatch.undo()
    torch.set_num_threads(1)
    load_state(tmp_path / STATE, *made(seed=1), "rows")
    assert "the run started with 2.0.1: the last bits may differ" in capsys.readouterr().err
    assert torch.get_num_threads() == 2


def test_a_full_disk_keeps_the_previous_state(saved, tmp_path, monkeypatch):
    before = (tmp_path / STATE).read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(state.files, "flush", full)  # the tensors are written by then
    with pytest.raises(OSError, match="No space left"):
        save_state(tmp_path / STATE, *made(seed=3), random_state(CPU), RunState(step=8), "rows")
    assert (tmp_path / STATE).read_bytes() == before
    assert load_state(tmp_path / STATE, *made(seed=1), "rows")[0] == PROGRESS
    assert [path.name for path in tmp_path.iterdir()] == [STATE]


def objective(
    ids=((1, 2), (3,)), types=None, targets=(0.5, 1.0), dev=(2.0,), **model: Any
) -> Objective:
    model = {
        "dropout": 0.1,
        "pooling": "mean",
        "activation": "tanh",
        "normalize": True,
        "prompts": "",
    } | model
    encoder = SimpleNamespace(
        bert=SimpleNamespace(config=model["dropout"]),
        pooling_mode=model["pooling"],
        dense=[SimpleNamespace(activation=model["activation"])],
        normalize=model["normalize"],
        settings=model["prompts"],
        device=torch.device(model.get("device", "cpu")),
    )
    encoded = Encoded([list(row) for row in ids], types or [[0] * len(row) for row in ids], 0)
    network = SimpleNamespace(model=encoder, encoded=[encoded], lengths=[])
    rows = {"train": [], "dev": [Row(("a", "b"), score) for score in dev], "test": []}
    made = Objective(None, network, rows, {"dev": "a file"})
    made.targets = torch.tensor(targets)
    return made


OTHER_ROWS = [[[1, 2], [3, 4]], [[1], [2, 3]], [[3], [1, 2]], [[1, 2]]]
CHANGES = [{"targets": (0.5, 0.75)}, {"targets": (1.0, 0.5)}, {"dev": (2.5,)}, {"dev": (2.0, 2.0)}]
CHANGES += [
    {"types": [[0, 1], [0]]},
    {"dropout": 0.2},
    {"pooling": "cls"},
    {"activation": "identity"},
]
CHANGES += [{"normalize": False}, {"prompts": "query: "}]


@pytest.mark.parametrize("change", [*({"ids": ids} for ids in OTHER_ROWS), *CHANGES])
def test_the_identity_covers_rows_targets_evaluation_rows_and_model(change):
    options = SimpleNamespace(lr=1e-3)
    assert run_identity(objective(), options) == run_identity(objective(), options)
    assert run_identity(objective(**change), options) != run_identity(objective(), options)


def test_the_identity_of_a_run_has_the_settings_that_may_not_change():
    def of(lr: float = 1e-3, **others) -> str:
        return run_identity(objective(**others), SimpleNamespace(**options | {"lr": lr}))

    options = {"device": "auto", "save_every": 100, "out": None}
    before = of()
    options = {"device": "cpu", "save_every": 7, "out": "run"}
    assert of() == before
    assert of(lr=2e-3) != before
    assert of(dev=(1.0,)) != before
    assert of(device="cuda:0") == of(device="cuda:1") != before
