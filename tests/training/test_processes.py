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
from minisbert.models.checkpoint import read_safetensors
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.processes import ProcessGroup, process_group, run_distributed_command, say_once
from minisbert.training.training import main
from tests import toys
from tests.conftest import ROOT
from tests.distributed_step import gradients

ALONE = ProcessGroup(0, 1, torch.device("cpu"))


def agent(*arguments: str, options: tuple[str, ...] = ("--standalone", "--nproc_per_node=2")) -> subprocess.Popen:
    command = [sys.executable, "-m", "torch.distributed.run", *options, "-m", "tests.distributed_step", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1" if "--max-restarts=1" in options else "0"
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def torchrun(*arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    with agent(*arguments, options=("--standalone", "--nproc_per_node=2", *options)) as process:
        try:
            out, err = process.communicate(timeout=100)
        finally:
            process.terminate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture(scope="module")
def still(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """The tiny model without dropout, and toy files of every form."""
    folder = tmp_path_factory.mktemp("still")
    SentenceEncoder.load(tiny).save(folder / "model")
    path = folder / "model" / "config.json"
    config = json.loads(path.read_text()) | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    path.write_text(json.dumps(config))
    return str(folder / "model"), toys.write_all(folder)


# ------------------------------------------------------------------------------------------- shares


@pytest.mark.parametrize(
    ("size", "count", "shares"), [(1, 5, [5]), (2, 5, [3, 2]), (3, 8, [3, 3, 2]), (4, 2, [1, 1, 0, 0])]
)
def test_shares_by_hand(size, count, shares):
    assert ProcessGroup(0, size, torch.device("cpu")).shares(count) == shares


def test_every_row_has_one_owner_and_none_is_idle():
    rows = [7, 3, 9, 1, 5]
    for size in range(1, 8):
        groups = [ProcessGroup(rank, size, torch.device("cpu")) for rank in range(size)]
        owned = [group.share(rows) for group in groups]
        assert all(owned)
        assert [row for own, share in zip(owned, groups[0].shares(5), strict=True) for row in own[:share]] == rows


def test_a_single_process_sends_nothing():
    network = nn.Linear(2, 1)
    assert ALONE.wrap(network) is network
    assert ALONE.broadcast(0.25) == 0.25


def test_dropout_masks_differ_by_seed_rank_and_step_and_rank_0_keeps_its_generator():
    before = torch.get_rng_state()
    ProcessGroup(0, 3, torch.device("cpu")).reseed(42, 7)
    assert torch.equal(torch.get_rng_state(), before)
    drawn = set()
    for seed, rank, step in [(42, 1, 7), (43, 1, 7), (42, 2, 7), (42, 1, 8), (43, 1, 6), (2**64 - 1, 1, 7), (42, 1, 7)]:
        ProcessGroup(rank, 3, torch.device("cpu")).reseed(seed, step)
        drawn.add(torch.rand(1).item())
    assert len(drawn) == 6
    torch.set_rng_state(before)


# -------------------------------------------------------------------------------------- environment

MASTER = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
TWO = MASTER | {"WORLD_SIZE": "2", "RANK": "0"}


@pytest.fixture
def environment(monkeypatch):
    for name in (*TWO, "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE"):
        monkeypatch.delenv(name, raising=False)

    def change(**variables: str | None) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value) if value is not None else monkeypatch.delenv(name)

    return change


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": ""}, "WORLD_SIZE is '', not a whole number from 1 to"),
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE is 'abc', not"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0', not"),
        ({"WORLD_SIZE": "-1"}, "WORLD_SIZE is '-1', not"),
        ({"WORLD_SIZE": "2.0"}, "WORLD_SIZE is '2.0', not"),
        ({"WORLD_SIZE": "²"}, "WORLD_SIZE is '²', not"),
        ({"WORLD_SIZE": "9" * 5000}, "WORLD_SIZE is '9{80}'[.]{3}, not"),
        ({"RANK": "5"}, "WORLD_SIZE is not set, not a whole number"),
        ({"WORLD_SIZE": "2"}, "RANK is not set, not a whole number from 0 to 1"),
        (TWO | {"RANK": "2"}, r"RANK is '2', not a whole number from 0 to 1 \(WORLD_SIZE is 2\)"),
        (TWO | {"RANK": "one"}, "RANK is 'one', not"),
        (TWO | {"LOCAL_RANK": "2"}, r"LOCAL_RANK is '2', not a whole number from 0 to 1 \(2 CUDA devices here\)"),
        (TWO, "LOCAL_RANK is not set, not"),
    ],
)
def test_what_torchrun_would_not_set_is_named(environment, monkeypatch, variables, message):
    environment(**{name: value for name, value in variables.items() if value is not None})
    monkeypatch.setattr("minisbert.training.processes.choose_device", lambda name: torch.device(name))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match=f"{message}.*: started with torchrun[?]$"), process_group("cuda"):
        pass


def test_without_an_address_the_processes_cannot_connect(environment):
    environment(WORLD_SIZE="2", RANK="0", MASTER_PORT="29500")
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
    environment(**TWO | {"MASTER_PORT": str(store.port)}, TORCHELASTIC_USE_AGENT_STORE="True")
    environment(TORCHELASTIC_ERROR_FILE=str(tmp_path / "error.json"))
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr("minisbert.training.processes.GRACE", 0)
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


def test_two_processes_have_the_gradients_of_one(still, tmp_path):
    """Loss and every gradient: means, in-batch negatives, heads; uneven shares, and a process without a row.

    Gradient caching with parts for both processes, and for one of them alone, sends what is sent without it.
    """
    model, files = still
    stsb = ["--dev", files["dev"], "--test", files["test"], "--model", model]
    runs = {
        "cosine": ["--objective", "cosine", "--data", files["scored"], *stsb],
        "cosent": ["--objective", "cosent", "--data", files["scored"], *stsb],
        "cross-attention": ["--objective", "cross-attention", "--data", files["scored"], *stsb],
        "mnr": ["--objective", "mnr", "--symmetric", "--projection", "--data", files["triplets"], *stsb],
    }
    for tokens in ("60", "72"):  # a row has 24 tokens, the processes have four and three rows
        runs[f"mnr {tokens}"] = [*runs["mnr"], "--micro-tokens", tokens]
    done = torchrun("gradients", str(tmp_path), json.dumps(runs))
    assert done.returncode == 0, done.stderr
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


def run_flags(still: tuple[str, dict[str, str]]) -> list[str]:
    model, files = still
    data = ["--data", files["scored"], "--dev", files["dev"], "--test", files["test"]]
    return ["--model", model, *data, "--batch-size", "8", "--lr", "1e-3", "--log-every", "1", "--precision", "float32"]


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def test_a_run_of_two_learns_as_one_and_writes_once(still, tmp_path):
    flags = [*run_flags(still), "--epochs", "2"]
    done = torchrun("train", *flags, "--out", str(tmp_path / "two"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained 10 steps") == 1
    main([*flags, "--out", str(tmp_path / "one")])
    # float32, ten steps: a gradient that was only half the batch's would show from the second step on
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)
    one, two = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "two"))
    assert two["after"]["test"]["spearman"] == pytest.approx(one["after"]["test"]["spearman"], abs=0.02)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()].count("two") == 1


@pytest.mark.slow
def test_when_one_process_dies_the_other_says_so_and_keeps_its_state(still, tmp_path, capsys):
    done = torchrun("die", *run_flags(still), "--epochs", "2", "--out", str(tmp_path / "run"))
    assert done.returncode != 0
    # torchrun stops the others too: whichever comes first, the lost connection or its signal
    assert done.stderr.count("stopped at step 7") == 1, done.stderr
    said = re.findall(
        "^error: process 0 of 2 has lost its connection to another one|^stopped$", done.stderr, re.MULTILINE
    )
    assert len(said) == 1, done.stderr
    assert "terminate called" not in done.stderr
    assert json.loads((tmp_path / "run" / "state" / "state.json").read_text())["progress"]["step"] == 7
    main(["--resume", str(tmp_path / "run")])
    assert "processes: 1, before 2: the dropout masks will differ" in capsys.readouterr().err
    assert len(losses(tmp_path / "run")) == 10


@pytest.fixture(scope="module")
def whole(tiny, still, tmp_path_factory) -> Path:
    """A run of two processes with dropout that nothing stopped, by two agents as on two machines."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    flags = ["train", *run_flags((str(tiny), still[1])), "--epochs", "2", "--out", str(folder)]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        meeting = f"--rdzv-endpoint=localhost:{free.getsockname()[1]}"
    options = ("--nnodes=2", "--nproc_per_node=1", "--rdzv-backend=c10d", "--rdzv-id=two", meeting)
    with agent(*flags, options=options) as one, agent(*flags, options=options) as other:
        try:
            said = [process.communicate(timeout=100) for process in (one, other)]
        finally:
            for process in (one, other):
                process.terminate()
    assert (one.returncode, other.returncode) == (0, 0), said
    assert "".join(out for out, _ in said).count("trained 10 steps") == 1
    return folder


@pytest.mark.slow
def test_a_run_restarted_by_torchrun_has_the_bits_of_one_that_nothing_stopped(tiny, still, whole, tmp_path):
    """With dropout: the generators of the processes whose state is not saved continue too."""
    flags = [*run_flags((str(tiny), still[1])), "--epochs", "2", "--out", str(tmp_path / "run")]
    done = torchrun("die", *flags, options=("--max-restarts=1",))
    assert done.returncode == 0, done.stderr
    assert "stopped at step 7" in done.stderr
    assert losses(tmp_path / "run") == losses(whole)
    assert len(losses(whole)) == 10
    one, other = (read_safetensors(folder / "model" / "model.safetensors") for folder in (tmp_path / "run", whole))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
