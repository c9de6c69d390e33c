"""Several processes: the gradients are those of one process, only rank 0 writes, a lost process
ends all.
"""

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


# ------------------------------------------------------------------------------------------- shares


def test_every_row_has_one_owner_and_none_is_idle():
    rows = [7, 3, 9, 1, 5]
    for size, expected in {
        1: [[7, 3, 9, 1, 5]],
        2: [[7, 3, 9], [1, 5]],
        3: [[7, 3], [9, 1], [5]],
        7: [
            [7],
            [3],
            [9],
            [1],
            [5],
            [7],
            [7],
        ],  # two have nothing to do and take a spare row, which gather drops
    }.items():
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


# -------------------------------------------------------------------------------------- environment


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


# -------------------------------------------------------------------------------------- two
# processes


def test_two_processes_have_the_gradients_of_one(still, files, tmp_path):
    """Loss and every gradient: means, in-batch negatives, heads; uneven shares, and a process
    without a row.

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
        # float32: a logit of ranking is 20 cosines, so that a cosine's 1e-6 is 2e-5 of the loss and
        # of what follows.
        for dtype, bound in ((torch.float64, 1e-9), (torch.float32, 5e-5)):
            found = read_safetensors(
                tmp_path / f"{name}-{str(dtype).removeprefix('torch.')}.safetensors"
            )
            expected = gradients(case, ALONE, dtype)
            sent[name, dtype] = {
                key: found.pop(key).item() for key in list(found) if key.endswith("buckets")
            }
            expected = {
                key: value for key, value in expected.items() if not key.endswith("buckets")
            }
            assert found.keys() == expected.keys()
            assert len(expected) > 20
            for key, value in expected.items():
                torch.testing.assert_close(
                    found[key], value, rtol=0, atol=bound, msg=lambda m, k=key: f"{k}: {m}"
                )
            assert (
                max(
                    value.abs().max()
                    for key, value in expected.items()
                    if key.startswith("0.model")
                )
                > 1e-4
            )
            assert sent[name, dtype] == sent[name.split()[0], dtype], (
                "gradients are sent once a step"
            )


@pytest.fixture(scope="module")
def flags(files) -> list[str]:
    flags = [
        *toys.flags(files, "cosine"),
        "--batch-size",
        "8",
        "--lr",
        "1e-3",
        "--log-every",
        "1",
        "--epochs",
        "2",
    ]
    return [*flags, "--dtype", "float32"]


def test_a_run_of_two_learns_as_one_and_writes_once(still, flags, tmp_path):
    flags = [*flags, "--model", str(still)]
    code, out, err = torchrun("train", *flags, "--out", str(tmp_path / "two"))
    assert code == 0, err
    assert out.count("trained 10 steps") == 1
    main([*flags, "--out", str(tmp_path / "one")])
    # float32, ten steps: a gradient that was only half the batch's would show from the second step
    # on
    assert toys.losses(tmp_path / "two") == pytest.approx(toys.losses(tmp_path / "one"), abs=1e-5)
    one, two = (
        toys.results(tmp_path / name)["after"]["test"]["spearman"] for name in ("one", "two")
    )
    assert two == pytest.approx(one, abs=0.02)


@pytest.mark.slow
def test_when_one_process_dies_the_other_says_so_and_keeps_its_state(tiny, flags, tmp_path):
    """With dropout: the masks of both go on too, and the resumed run has the bits of one that
    nothing stopped.
    """
    flags, run, whole = [*flags, "--model", str(tiny)], tmp_path / "run", tmp_path / "whole"
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
    one, other = (
        read_safetensors(folder / "model" / "model.safetensors") for folder in (run, whole)
    )
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
    assert err.count("error: missing.tsv does not exist") in (
        1,
        2,
    )  # torchrun may stop one before it has said so
    assert "InputError" not in err
