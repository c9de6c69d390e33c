"""Several processes: the gradients are those of one process, only the leader writes, a lost process ends all."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from minisbert.models.checkpoint import read_safetensors
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.run.distributed import ProcessGroup
from minisbert.run.training import main
from tests import toys
from tests.conftest import ROOT
from tests.distributed_step import gradients

ALONE = ProcessGroup(0, 1, torch.device("cpu"))


def torchrun(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [*command, "-m", "tests.distributed_step", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )


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


# -------------------------------------------------------------------------------------- two processes


def test_two_processes_have_the_gradients_of_one(still, tmp_path):
    """Loss and every gradient: means, in-batch negatives, heads; uneven shares, and a process without a row."""
    model, files = still
    stsb = ["--dev", files["dev"], "--test", files["test"], "--model", model]
    runs = {
        "cosine": ["--objective", "cosine", "--data", files["scored"], *stsb],
        "cosent": ["--objective", "cosent", "--data", files["scored"], *stsb],
        "cross": ["--objective", "cross", "--data", files["scored"], *stsb],
        "mnr": ["--objective", "mnr", "--symmetric", "--projection", "--data", files["triplets"], *stsb],
    }
    done = torchrun("gradients", str(tmp_path), json.dumps(runs))
    assert done.returncode == 0, done.stderr
    for name, flags in runs.items():
        for dtype, bound in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
            found = read_safetensors(tmp_path / f"{name}-{str(dtype).removeprefix('torch.')}.safetensors")
            expected = gradients(flags, ALONE, dtype)
            assert found.keys() == expected.keys()
            assert len(expected) > 20
            for key, value in expected.items():
                torch.testing.assert_close(found[key], value, rtol=0, atol=bound, msg=lambda m, k=key: f"{k}: {m}")
            assert max(value.abs().max() for key, value in expected.items() if key.startswith("0.model")) > 1e-4


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


def test_when_one_process_dies_the_other_says_so_and_keeps_its_state(still, tmp_path):
    done = torchrun("die", *run_flags(still), "--epochs", "1000", "--out", str(tmp_path / "run"))
    assert done.returncode != 0
    # torchrun stops the others too: whichever comes first, the lost connection or its signal
    assert "stopped at step" in done.stderr, done.stderr
    assert re.search("process 0 of 2 has lost contact with another one|\nstopped\n", done.stderr), done.stderr
    assert (tmp_path / "run" / "state" / "state.json").is_file()
