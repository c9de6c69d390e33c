"""Several processes: the gradients are those of one process, only rank 0 writes, a lost process ends all."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from minisbert.core import InputError
from minisbert.folder.weights import read_safetensors
from minisbert.training.distributed import ProcessGroup, process_group, run_distributed_command, say_once
from minisbert.training.train import main
from tests import toys
from tests.conftest import ROOT
from tests.distributed_step import gradients

CPU = torch.device("cpu")
ALONE = ProcessGroup(0, 1, CPU)


def agent(*arguments: str, options: tuple[str, ...] = ("--standalone", "--nproc_per_node=2")) -> subprocess.Popen:
    command = [sys.executable, "-m", "torch.distributed.run", *options, "-m", "tests.distributed_step", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1" if "--max-restarts=1" in options else "0"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)


def finished(*processes: subprocess.Popen) -> list[tuple[int, str, str]]:
    """The exit code, stdout and stderr of each."""
    try:
        said = [process.communicate(timeout=100) for process in processes]
    finally:
        for process in processes:
            process.terminate()
    return [(process.returncode, *texts) for process, texts in zip(processes, said, strict=True)]


@pytest.fixture(scope="module")
def still(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.without_dropout(tiny, tmp_path_factory.mktemp("still") / "model")


# ------------------------------------------------------------------------------------------- shares


def test_every_row_has_one_owner_and_none_is_idle():
    shares = [ProcessGroup(0, size, CPU).shares(count) for size, count in ((1, 5), (2, 5), (3, 8), (4, 2))]
    assert shares == [[5], [3, 2], [3, 3, 2], [1, 1, 0, 0]]
    rows = [7, 3, 9, 1, 5]
    for size in range(1, 8):
        groups = [ProcessGroup(rank, size, CPU) for rank in range(size)]
        owned = [group.share(rows) for group in groups]
        assert all(owned)
        assert [row for own, share in zip(owned, groups[0].shares(5), strict=True) for row in own[:share]] == rows


def test_a_single_process_sends_nothing():
    network = nn.Linear(2, 1)
    assert ALONE.wrap(network) is network
    assert ALONE.broadcast(0.25) == 0.25


def test_dropout_masks_differ_by_seed_rank_and_step_and_rank_0_keeps_its_generator():
    before = torch.get_rng_state()
    ProcessGroup(0, 3, CPU).reseed(42, 7)
    assert torch.equal(torch.get_rng_state(), before)
    drawn = set()
    for seed, rank, step in [(42, 1, 7), (43, 1, 7), (42, 2, 7), (42, 1, 8), (43, 1, 6), (2**64 - 1, 1, 7), (42, 1, 7)]:
        ProcessGroup(rank, 3, CPU).reseed(seed, step)
        drawn.add(torch.rand(1).item())
    assert len(drawn) == 6
    torch.set_rng_state(before)


# -------------------------------------------------------------------------------------- environment

TWO = {"WORLD_SIZE": "2", "RANK": "0"}


@pytest.fixture
def environment(monkeypatch):
    """``environment(RANK="0")`` sets variables of torchrun, of which there are none."""
    for name in (*TWO, "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    return lambda **variables: [monkeypatch.setenv(name, value) for name, value in variables.items()]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        *(({"WORLD_SIZE": bad}, f"WORLD_SIZE is '{bad}', not a whole number from 1 to") for bad in ("", "abc", "0")),
        *(({"WORLD_SIZE": bad}, f"WORLD_SIZE is '{bad}', not a whole number from 1 to") for bad in ("-1", "2.0", "²")),
        ({"WORLD_SIZE": "9" * 5000}, "WORLD_SIZE is '9{80}'[.]{3}, not"),
        ({"RANK": "5"}, "WORLD_SIZE is not set, not a whole number"),
        ({"WORLD_SIZE": "2"}, "RANK is not set, not a whole number from 0 to 1"),
        (TWO | {"RANK": "2"}, r"RANK is '2', not a whole number from 0 to 1 \(WORLD_SIZE is 2\)"),
        (TWO | {"LOCAL_RANK": "2"}, r"LOCAL_RANK is '2', not a whole number from 0 to 1 \(2 CUDA devices here\)"),
        (TWO, "LOCAL_RANK is not set, not"),
    ],
)
def test_what_torchrun_would_not_set_is_named(environment, monkeypatch, variables, message):
    environment(**variables)
    monkeypatch.setattr("minisbert.training.distributed.choose_device", lambda name: torch.device(name))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match=f"{message}.*: started with torchrun[?]$"), process_group("cuda"):
        pass


def test_without_an_address_the_processes_cannot_connect(environment):
    environment(**TWO, MASTER_PORT="29500")
    with pytest.raises(InputError, match=r"process 0 of 2 cannot connect .*MASTER_ADDR"), process_group("cpu"):
        pass


def test_one_process_of_torchrun_is_alone(environment):
    environment(WORLD_SIZE="1", RANK="0")
    with process_group("cpu") as group:
        assert group == ALONE


@pytest.mark.parametrize(("started", "rank", "said"), [(False, 1, "hello\n"), (True, 0, "hello\n"), (True, 1, "")])
def test_only_rank_0_prints_a_message(monkeypatch, capsys, started, rank, said):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: started)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    say_once("hello")
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, 0, ""),
        (InputError("no model 'x'"), 2, "error: no model 'x'\n"),
        (OSError(28, "No space left on device", "x"), 2, "error: [Errno 28] No space left on device: 'x'\n"),
        (KeyboardInterrupt(), 130, "stopped\n"),
        (ZeroDivisionError("a bug"), 1, "Traceback"),
        (SystemExit(3), 3, ""),
        (SystemExit(), 0, ""),
    ],
    ids=repr,
)
def test_the_first_process_to_fail_says_why_and_all_end_at_once(
    environment, monkeypatch, tmp_path, capsys, error, code, said
):
    class Ended(BaseException):
        pass

    def end(code: int) -> None:
        raise Ended(code)

    def main() -> None:
        if error is not None:
            raise error

    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    environment(**TWO, MASTER_ADDR="localhost", MASTER_PORT=str(store.port), TORCHELASTIC_USE_AGENT_STORE="True")
    environment(TORCHELASTIC_ERROR_FILE=str(tmp_path / "error.json"))
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr("minisbert.training.distributed.GRACE", 0)
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Ended, match=f"^{code}$"):
        run_distributed_command(main)
    signal.signal(signal.SIGTERM, handler)
    assert capsys.readouterr().err.startswith(said)
    if isinstance(error, Exception | KeyboardInterrupt):
        details = json.loads((tmp_path / "error.json").read_text())["message"]
        assert details["message"] == f"{type(error).__name__}: {error}"
        with pytest.raises(Ended, match=r"^2$"):
            run_distributed_command(main)
        assert capsys.readouterr() == ("", "")


# -------------------------------------------------------------------------------------- two processes


def test_two_processes_have_the_gradients_of_one(still, files, tmp_path):
    """Loss and every gradient: means, in-batch negatives, heads; uneven shares, and a process without a row.

    Gradient caching with parts for both processes, and for one of them alone, sends what is sent without it.
    """
    names = ("cosine", "cosent", "cross-attention")
    runs = {name: [*toys.flags(files, name), "--model", str(still)] for name in names}
    runs["mnr"] = [*toys.flags(files, "mnr", "--symmetric", "--projection"), "--model", str(still)]
    for tokens in ("60", "72"):  # a row has 24 tokens, the processes have four and three rows
        runs[f"mnr {tokens}"] = [*runs["mnr"], "--micro-tokens", tokens]
    ((code, _, err),) = finished(agent("gradients", str(tmp_path), json.dumps(runs)))
    assert code == 0, err
    sent = {}
    for name, flags in runs.items():
        for dtype, bound in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
            found = read_safetensors(tmp_path / f"{name}-{str(dtype).removeprefix('torch.')}.safetensors")
            expected = gradients(flags, ALONE, dtype)
            sent[name, dtype] = {key: found.pop(key).item() for key in list(found) if key.endswith("buckets")}
            expected = {key: value for key, value in expected.items() if not key.endswith("buckets")}
            assert found.keys() == expected.keys()
            assert len(expected) > 20
            for key, value in expected.items():
                torch.testing.assert_close(found[key], value, rtol=0, atol=bound, msg=lambda m, k=key: f"{k}: {m}")
            assert max(value.abs().max() for key, value in expected.items() if key.startswith("0.model")) > 1e-4
            assert sent[name, dtype] == sent[name.split()[0], dtype], "gradients are sent once a step"


@pytest.fixture(scope="module")
def flags(files) -> list[str]:
    flags = [*toys.flags(files, "cosine"), "--batch-size", "8", "--lr", "1e-3", "--log-every", "1", "--epochs", "2"]
    return [*flags, "--precision", "float32"]


def test_a_run_of_two_learns_as_one_and_writes_once(still, flags, tmp_path):
    flags = [*flags, "--model", str(still)]
    ((code, out, err),) = finished(agent("train", *flags, "--out", str(tmp_path / "two")))
    assert code == 0, err
    assert out.count("trained 10 steps") == 1
    main([*flags, "--out", str(tmp_path / "one")])
    # float32, ten steps: a gradient that was only half the batch's would show from the second step on
    assert toys.losses(tmp_path / "two") == pytest.approx(toys.losses(tmp_path / "one"), abs=1e-5)
    one, two = (toys.results(tmp_path / name)["after"]["test"]["spearman"] for name in ("one", "two"))
    assert two == pytest.approx(one, abs=0.02)


@pytest.mark.slow
def test_when_one_process_dies_the_other_says_so_and_keeps_its_state(still, flags, tmp_path, capsys):
    run = tmp_path / "run"
    ((code, _, err),) = finished(agent("die", *flags, "--model", str(still), "--out", str(run)))
    assert code != 0
    # torchrun stops the others too: whichever comes first, the lost connection or its signal
    assert err.count("stopped at step 7") == 1, err
    said = re.findall("^error: process 0 of 2 has lost its connection to another one|^stopped$", err, re.MULTILINE)
    assert len(said) == 1, err
    assert "terminate called" not in err
    assert json.loads((run / "state" / "state.json").read_text())["progress"]["step"] == 7
    main(["--resume", str(run)])
    assert "processes: 1, before 2: the dropout masks will differ" in capsys.readouterr().err
    assert len(toys.losses(run)) == 10


@pytest.mark.slow
def test_a_run_restarted_by_torchrun_has_the_bits_of_one_that_nothing_stopped(tiny, flags, tmp_path):
    """With dropout: the generators of the processes whose state is not saved continue too.

    The run that nothing stopped has two agents, as on two machines.
    """
    flags, run, whole = [*flags, "--model", str(tiny)], tmp_path / "run", tmp_path / "whole"
    with socket.socket() as free:
        free.bind(("localhost", 0))
        meeting = f"--rdzv-endpoint=localhost:{free.getsockname()[1]}"
    options = ("--nnodes=2", "--nproc_per_node=1", "--rdzv-backend=c10d", "--rdzv-id=two", meeting)
    ends = finished(*(agent("train", *flags, "--out", str(whole), options=options) for _ in range(2)))
    assert [code for code, *_ in ends] == [0, 0], ends
    assert "".join(out for _, out, _ in ends).count("trained 10 steps") == 1
    restarted = ("--standalone", "--nproc_per_node=2", "--max-restarts=1")
    ((code, _, err),) = finished(agent("die", *flags, "--out", str(run), options=restarted))
    assert code == 0, err
    assert "stopped at step 7" in err
    assert toys.losses(run) == toys.losses(whole)
    assert len(toys.losses(whole)) == 10
    one, other = (read_safetensors(folder / "model" / "model.safetensors") for folder in (run, whole))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
