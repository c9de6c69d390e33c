"""A run's state: it is restored as it was saved, and a state that does not fit is refused."""

import dataclasses
import errno
import json
import os

import pytest
import torch
from torch import nn

from minisbert.core import InputError
from minisbert.core.loop import fit
from minisbert.core.tokenizer import Encoded
from minisbert.run import state
from minisbert.run.state import (
    RunState,
    fingerprint,
    load_state,
    random_state,
    save_state,
    set_random_state,
)

CPU = torch.device("cpu")
PROGRESS = RunState(
    step=7, position=2, before={"dev": {"spearman": 0.25}}, evaluated=5, best=0.1 + 0.2, waited=1, recent=[1 / 3, 2e-17]
)


def made(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    network[0].bias.requires_grad_(False)
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return network, torch.optim.AdamW([{"params": trained[:1]}, {"params": trained[1:], "lr": 0.1}], fused=True)


def steps(network: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    def loss(network: nn.Module, _: list[int]) -> torch.Tensor:
        return network(torch.rand(5, 3)).pow(2).sum()  # the state of rand's generator is saved too

    list(fit(network, loss, [[0]] * count, optimizer, lambda step: 1.0))


@pytest.fixture
def saved(tmp_path):
    """A network after three steps, its state saved at ``tmp_path/state``."""
    network, optimizer = made(seed=1)
    steps(network, optimizer, 3)
    save_state(tmp_path / "state", network, optimizer, random_state(CPU), PROGRESS, "rows")
    return network, optimizer


def test_training_continues_from_a_state_bit_for_bit(saved, tmp_path):
    network, optimizer = saved
    steps(network, optimizer, 4)
    other, its_optimizer = made(seed=2)
    progress, randomness = load_state(tmp_path / "state", other, its_optimizer, "rows")
    set_random_state(randomness, CPU)
    steps(other, its_optimizer, 4)
    assert progress == PROGRESS
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), other.parameters(), strict=True))


def test_a_state_before_the_first_step(tmp_path):
    network, optimizer = made(seed=1)
    save_state(tmp_path / "state", network, optimizer, random_state(CPU), RunState(), "rows")
    other, its_optimizer = made(seed=2)
    progress, _ = load_state(tmp_path / "state", other, its_optimizer, "rows")
    assert progress == RunState()
    assert torch.equal(network[1].weight, other[1].weight)


def test_other_rows_are_refused(saved, tmp_path):
    with pytest.raises(InputError, match="the training rows are not those of the run"):
        load_state(tmp_path / "state", *made(seed=1), "other rows")


def test_another_network_is_refused(saved, tmp_path):
    network = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    with pytest.raises(InputError, match="holds another network than this run's"):
        load_state(tmp_path / "state", network, torch.optim.AdamW(network.parameters()), "rows")


def test_a_state_of_another_version_is_refused(saved, tmp_path):
    path = tmp_path / "state" / "state.json"
    about = json.loads(path.read_text())
    about["progress"]["phase_of_the_moon"] = "full"
    path.write_text(json.dumps(about))
    with pytest.raises(InputError, match=r"written by another version.*phase_of_the_moon"):
        load_state(tmp_path / "state", *made(seed=1), "rows")


def test_another_torch_is_reported_and_the_number_of_threads_restored(saved, tmp_path, capsys):
    path = tmp_path / "state" / "state.json"
    about = json.loads(path.read_text())
    assert about["threads"] == torch.get_num_threads()
    path.write_text(json.dumps(about | {"torch": "2.0.1", "threads": 2}))
    load_state(tmp_path / "state", *made(seed=1), "rows")
    assert "the run began with 2.0.1: the last bits may differ" in capsys.readouterr().err
    assert torch.get_num_threads() == 2


def test_a_full_disk_keeps_the_previous_state(saved, tmp_path, monkeypatch):
    before = (tmp_path / "state" / "state.safetensors").read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(state, "write_json", full)  # the tensors are written by then
    with pytest.raises(OSError, match="No space left"):
        save_state(tmp_path / "state", *made(seed=3), random_state(CPU), RunState(step=8), "rows")
    assert (tmp_path / "state" / "state.safetensors").read_bytes() == before
    assert load_state(tmp_path / "state", *made(seed=1), "rows")[0] == PROGRESS
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_progress_survives_json_to_the_last_bit():
    assert RunState(**json.loads(json.dumps(dataclasses.asdict(PROGRESS)))) == PROGRESS


@pytest.mark.parametrize("other", [[[1, 2], [3, 4]], [[1, 2, 3]], [[1], [2, 3]], [[3], [1, 2]], [[1, 2]]])
def test_the_fingerprint_tells_rows_apart(other):
    def encoded(ids):
        return Encoded(ids, [[0] * len(row) for row in ids], 0)

    assert fingerprint([encoded([[1, 2], [3]])]) != fingerprint([encoded(other)])
    assert fingerprint([encoded([[1, 2], [3]])]) == fingerprint([encoded([[1, 2], [3]])])
