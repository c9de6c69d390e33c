"""Several processes: the gradients of one, one writer, and an end for all if one is lost."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from minisbert.checkpoints.weights import read_safetensors
from minisbert.core import InputError
from minisbert.train import main
from minisbert.training.distributed import ProcessGroup, process_group, say_once
from tests import toys
from tests.conftest import ROOT
from tests.distributed_step import gradients

CPU = torch.device("cpu")
ALONE = ProcessGroup(0, 1, CPU)


def torchrun(*arguments: str) -> tuple[int, str, str]:
    """Two processes of ``tests/distributed_step.py``: the exit code, stdout and stderr of both."""
    options = ("--standalone", "--nproc_per_node=2", "-m", "tests.distributed_step")
    command = [sys.executable, "-m", "torch.distributed.run", *options, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def still(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.without_dropout(tiny, tmp_path_factory.mktemp("still") / "model")


# -----------------------------------------------------------------------------
# shares


def test_every_row_has_one_owner_and_none_is_idle():
    rows = [7, 3, 9, 1, 5]
    # Of seven processes two have nothing to do. They take a spare row, which ``gather`` drops.
    shares_of = {
        1: [[7, 3, 9, 1, 5]],
        2: [[7, 3, 9], [1, 5]],
        3: [[7, 3], [9, 1], [5]],
        7: [[7], [3], [9], [1], [5], [7], [7]],
    }
    for size, expected in shares_of.items():
        assert [ProcessGroup(0, size, CPU).share(rows, rank) for rank in range(size)] == expected


def test_a_single_process_sends_nothing():
    network = nn.Linear(2, 1)
    assert ALONE.wrap(network) is network
    assert ALONE.broadcast(0.25) == 0.25


def test_dropout_masks_differ_by_seed_rank_and_step_and_rank_0_keeps_its_generator():
    before = torch.get_rng_state()
    ProcessGroup(0, 3, CPU).reseed(42, 7)
    assert torch.equal(torch.get_rng_state(), before)
    drawn = set()
    for rank, seed, step in (
        (1, 42, 7),
        (2, 42, 7),
        (1, 43, 7),
        (1, 42, 8),
        (1, 7, 42),
        (2, 43, 8),
        (1, 42, 7),
    ):
        ProcessGroup(rank, 3, CPU).reseed(seed, step)
        drawn.add(torch.rand(1).item())
    assert len(drawn) == 6
    torch.set_rng_state(before)


# -----------------------------------------------------------------------------
# environment


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"WORLD_SIZE": "two", "RANK": "0"},
            "RANK and WORLD_SIZE in the environment.*: invalid literal for int",
        ),
        (
            {"WORLD_SIZE": "2"},
            "RANK and WORLD_SIZE in the environment, which torchrun sets: no key 'RANK'",
        ),
        (
            {"WORLD_SIZE": "2", "RANK": "2"},
            "RANK is 2 and WORLD_SIZE 2: was this process started by torchrun",
        ),
        (
            {"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "29500"},
            "process 0 of 2 cannot connect .*MASTER_ADDR",
        ),
    ],
)
def test_what_torchrun_would_not_set_is_named(monkeypatch, variables, message):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message), process_group("cpu"):
        pass


@pytest.mark.parametrize(
    ("started", "rank", "said"), [(False, 1, "hello\n"), (True, 0, "hello\n"), (True, 1, "")]
)
def test_only_rank_0_prints_a_message(monkeypatch, capsys, started, rank, said):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: started)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    say_once("hello")
    assert capsys.readouterr().err == said


# -----------------------------------------------------------------------------
# two processes


def test_two_processes_have_the_gradients_of_one(still, files, tmp_path):
    """Loss and every gradient: of means, in-batch negatives and a head, with uneven shares.

    Gradient caching with parts for both processes, and for one of them alone, sends what is sent
    without it.
    """
    model = {"model": str(still)}
    cases = {name: {"loss": name} | model for name in ("cosine", "cosent", "ranking")}
    cases["cross-attention"] = {"loss": "mse", "head": "cross-attention"} | model
    # a row has 24 tokens, the processes have four and three rows
    cases["ranking 60"] = {"loss": "ranking", "micro_tokens": 60} | model
    cases["ranking 72"] = {"loss": "ranking", "micro_tokens": 72} | model
    code, _, err = torchrun("gradients", str(tmp_path), json.dumps(cases))
    assert code == 0, err
    sent = {}
    for name, case in cases.items():
        # In float32, a logit of ranking is 20 cosines, so that a cosine's 1e-6 is 2e-5 of the loss
        # and of what follows.
        for dtype, bound in ((torch.float64, 1e-9), (torch.float32, 5e-5)):
            kind = str(dtype).removeprefix("torch.")
            found = read_safetensors(tmp_path / f"{name}-{kind}.safetensors")
            expected = gradients(case, ALONE, dtype)
            assert found.keys() == expected.keys()
            assert len(expected) > 20

            sent[name, dtype] = []
            largest = 0.0
            for key, value in expected.items():
                # How often gradients were sent in a step; a single process sends none.
                if key.endswith("buckets"):
                    sent[name, dtype].append(found[key].item())
                    continue
                assert found[key].dtype == value.dtype, key
                difference = (found[key] - value).abs().max()
                assert difference <= bound, key
                if key.startswith("0.model"):
                    largest = max(largest, value.abs().max().item())
            assert largest > 1e-4

            # Gradient caching sends as often as the loss without it.
            assert sent[name, dtype] == sent[name.split()[0], dtype]


@pytest.fixture(scope="module")
def flags(files) -> list[str]:
    flags = [*toys.flags(files, "cosine"), "--batch-size", "8", "--lr", "1e-3"]
    flags += ["--log-every", "1", "--epochs", "2", "--dtype", "float32"]
    return flags


def test_a_run_of_two_learns_as_one_and_writes_once(still, flags, tmp_path):
    flags = [*flags, "--model", str(still)]
    code, out, err = torchrun("train", *flags, "--out", str(tmp_path / "two"))
    assert code == 0, err
    assert out.count("trained 10 steps") == 1
    main([*flags, "--out", str(tmp_path / "one")])
    # float32, ten steps: a gradient of only half the batch would show from the second step on
    assert toys.losses(tmp_path / "two") == pytest.approx(toys.losses(tmp_path / "one"), abs=1e-5)
    one = toys.results(tmp_path / "one")["after"]["test"]["spearman"]
    two = toys.results(tmp_path / "two")["after"]["test"]["spearman"]
    assert two == pytest.approx(one, abs=0.02)


@pytest.mark.slow
def test_when_one_process_dies_the_other_says_so_and_keeps_its_state(tiny, flags, tmp_path):
    """With dropout, whose masks go on too: the resumed run has the bits of a whole one."""
    flags = [*flags, "--model", str(tiny)]
    run = tmp_path / "run"
    whole = tmp_path / "whole"
    code, _, err = torchrun("die", *flags, "--out", str(run))
    assert code != 0
    # torchrun stops the others too: whichever comes first, the lost connection or its signal
    assert err.count("stopped at step 7") == 1, err
    said = re.findall(
        "^error: process 0 of 2 has lost its connection to another one|^stopped$", err, re.MULTILINE
    )
    assert len(said) == 1, err
    assert "terminate called" not in err
    assert json.loads((run / "state.json").read_text())["progress"]["step"] == 7
    for arguments in (["--resume", str(run)], [*flags, "--out", str(whole)]):
        code, _, err = torchrun("train", *arguments)
        assert code == 0, err
    assert toys.losses(run) == toys.losses(whole)
    assert len(toys.losses(whole)) == 10
    one = read_safetensors(run / "model" / "model.safetensors")
    other = read_safetensors(whole / "model" / "model.safetensors")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_another_number_of_processes_resumes_with_other_masks(still, flags, tmp_path, capsys):
    torchrun("die", *flags, "--model", str(still), "--out", str(tmp_path / "run"))
    main(["--resume", str(tmp_path / "run")])
    assert "processes: 1, before 2: the dropout masks will differ" in capsys.readouterr().err
    assert len(toys.losses(tmp_path / "run")) == 10


@pytest.mark.slow
def test_bad_input_of_several_processes_is_an_error_without_a_traceback(tiny, files):
    code, out, err = torchrun("train", "--data", "missing.tsv", "--model", str(tiny))
    assert code != 0
    assert out == ""
    # torchrun may stop one of the two before it has said so.
    assert err.count("error: missing.tsv does not exist") in (1, 2)
    assert "InputError" not in err
