"""Fine-tuning: the schedule, the loop, what a run writes, and what stops it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from minisbert.core import InputError
from minisbert.core import losses as loss_functions
from minisbert.data.scored_pairs import read_scored_pairs
from minisbert.evaluation import scoring
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system import devices as device
from minisbert.system.console import run_command
from minisbert.training.objective import Objective, PairNetwork, VectorNetwork
from minisbert.training.options import parse
from minisbert.training.processes import ProcessGroup
from minisbert.training.schedules import SCHEDULES
from minisbert.training.training import main, micro_batches
from tests import toys
from tests.conftest import ROOT
from tests.reference.plain_loop import independent_losses


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three files of toy pairs, as the options that name them."""
    folder = tmp_path_factory.mktemp("pairs")
    arguments = []
    for seed, (option, count) in enumerate({"--data": 40, "--dev": 20, "--test": 20}.items()):
        path = folder / f"{option[2:]}.tsv"
        path.write_text("".join(toys.scored(count, seed)))
        arguments += [option, str(path)]
    return arguments


@pytest.fixture
def run(tiny: Path, data: list[str], tmp_path: Path):
    """``run("name", "--epochs", "2")`` trains the tiny model on the toy pairs -> the folder of the run."""

    def start(name: str, *arguments: str) -> Path:
        main(
            [
                "--model",
                str(tiny),
                *data,
                "--batch-size",
                "8",
                "--precision",
                "float32",
                "--out",
                str(tmp_path / name),
                *arguments,
            ]
        )
        return tmp_path / name

    return start


EXACT = ["--precision", "float32"]  # what is promised to the last bit
LEARNS = ["--epochs", "12", "--lr", "1e-2", "--dropout", "0"]  # dropout differs between versions of torch


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without what the clock had a say in."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "tokens_per_second"} for line in lines]


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in metrics(folder) if "loss" in line]


def same_weights(one: Path, other: Path) -> bool:
    """Are all weights of two folders the same, bit for bit?"""
    first, second = SentenceEncoder.load(one).state_dict(), SentenceEncoder.load(other).state_dict()
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


# ------------------------------------------------------------------------------------- learning rate


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        ("linear", [0, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0, 1, (2 + 2**0.5) / 4, 0.5, (2 - 2**0.5) / 4]),
        ("constant", [0, 1, 1, 1, 1]),
    ],
)
def test_the_chosen_schedule_is_followed(run, schedule, shares):
    folder = run("run", "--schedule", schedule, "--warmup", "0.2", "--lr", "2e-3", "--log-every", "1")
    rates = [line["lr"] for line in metrics(folder) if "loss" in line]
    assert rates == pytest.approx([2e-3 * share for share in shares], abs=1e-15)


def test_a_warmup_longer_than_the_run_is_said(run, capsys):
    folder = run("run", "--warmup", "100", "--lr", "1e-3", "--log-every", "1", "--max-steps", "3")
    assert [line["lr"] for line in metrics(folder) if "loss" in line] == pytest.approx([0, 1e-5, 2e-5], abs=1e-15)
    assert "--warmup 100: the run has 3 steps, so the learning rate never reaches its peak" in capsys.readouterr().err


# ----------------------------------------------------------------------------- the arithmetic of training


@pytest.fixture
def without_dropout(tiny: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "without-dropout"
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("clip", "warmup"), [(0.05, "0.34"), (0.0, "3")])  # a fraction of the steps, rounded up; steps
def test_the_loop_computes_what_the_recipe_says(run, without_dropout, tmp_path, clip, warmup):
    """Labels, batches, loss, schedule, clipping (0 is none), decay: six steps against torch's ready-made pieces."""
    path = tmp_path / "twelve.tsv"
    path.write_text("".join(toys.scored(12, seed=5)))
    options = ["--data", str(path), "--model", str(without_dropout), "--lr", "1e-3", "--weight-decay", "0.1"]
    options += ["--warmup", warmup, "--clip", str(clip), "--batch-size", "12", "--epochs", "6", "--log-every", "1"]
    folder = run("run", *options)
    expected = independent_losses(without_dropout, path, epochs=6, lr=1e-3, warmup=3, clip=clip)
    # float32 sums in another order: 1e-6 of a loss of .2, where a forgotten clip or decay shows from 1e-4 on
    np.testing.assert_allclose(losses(folder), expected, atol=1e-6, rtol=0)
    rates = [line["lr"] for line in metrics(folder) if "loss" in line]
    np.testing.assert_allclose(rates, [0, 1e-3 / 3, 2e-3 / 3, 1e-3, 2e-3 / 3, 1e-3 / 3], atol=1e-12, rtol=0)


def test_every_epoch_has_dropout(run, without_dropout):
    """Nothing is learned at rate 0: what moves the loss of the whole file from step to step is dropout alone."""
    still = ["--lr", "0", "--batch-size", "40", "--epochs", "3", "--log-every", "1"]
    without = losses(run("without", *still, "--model", str(without_dropout)))
    assert max(without) - min(without) < 1e-6  # the order of the rows, in float32
    first, second, third = losses(run("with", *still))
    assert min(abs(first - second), abs(first - third), abs(second - third)) > 1e-4


# ---------------------------------------------------------------------------------------- a whole run


def test_the_defaults_are_the_recipe():
    options = parse([])
    assert (options.recipe, options.objective, options.model) == (None, "cosine", "all-MiniLM-L6-v2")
    assert (options.data, options.dev, options.test, options.limit) == (None, None, None, None)  # stsb's
    assert (options.lr, options.batch_size, options.warmup, options.epochs, options.seed) == (2e-5, 32, 0.1, 1, 42)
    assert (options.weight_decay, options.clip, options.max_steps, options.pooling) == (0.0, 1.0, None, None)
    assert (options.head_lr, options.schedule, options.freeze_layers) == (None, "linear", 0)
    assert (options.freeze_embeddings, options.projection, options.dropout) == (False, False, None)
    assert (options.nt_xent, options.same_mask) == (False, False)


def test_a_run_learns_and_writes_all_it_promises(run, tiny, capsys):
    folder = run("run", *LEARNS, "--log-every", "5")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "metrics.jsonl", "model", "results.json"]

    config = json.loads((folder / "config.json").read_text())
    assert (config["model"], config["lr"], config["epochs"], config["seed"]) == (str(tiny), 1e-2, 12, 42)
    assert config["rows"] == {
        "train": f"{config['data']} (40 pairs)",
        "dev": f"{config['dev']} (20 pairs)",
        "test": f"{config['test']} (20 pairs)",
    }
    assert config["torch"] == torch.__version__

    lines = metrics(folder)
    assert [line["step"] for line in lines if "dev" in line] == list(range(0, 61, 5))  # before, then after each epoch
    assert [line["step"] for line in lines if "loss" in line] == list(range(5, 61, 5))
    assert [line["epoch"] for line in lines if "dev" in line] == list(range(13))
    assert lines[0]["step"] == 0
    assert set(lines[0]["dev"]) == {"pearson", "spearman", "loss"}
    assert losses(folder)[-1] < losses(folder)[0] / 2

    results = json.loads((folder / "results.json").read_text())
    assert set(results) == {"before", "after", "training_seconds", "steps"}
    assert results["steps"] == 60
    for part in ("dev", "test"):
        before, after = (results[when][part]["spearman"] for when in ("before", "after"))
        assert after > before + 0.2
    best = max(line["dev"]["spearman"] for line in lines if "dev" in line)
    assert results["after"]["dev"]["spearman"] == pytest.approx(best, abs=1e-9)

    vectors = SentenceEncoder.load(folder / "model").encode(["the cat", "a small dog", "the piano"])
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]

    captured = capsys.readouterr()
    assert "60 steps of 8 rows" in captured.err
    shown = [f"{100 * results[when]['test']['spearman']:.2f}" for when in ("before", "after")]
    assert " -> ".join(shown) in captured.out


def test_model_is_the_best_by_dev_even_if_that_is_the_untrained(run, data):
    """A good model, then labels turned upside down: every step makes it worse on dev, so what it was is kept."""
    good = run("good", *LEARNS) / "model"
    path = Path(data[1]).with_name("upside-down.tsv")
    rows = [row.split("\t", 1) for row in Path(data[1]).read_text().splitlines(keepends=True)]
    path.write_text("".join(f"{5 - int(score)}\t{rest}" for score, rest in rows))
    folder = run("run", "--model", str(good), "--data", str(path), *LEARNS)
    curve = [line["dev"]["spearman"] for line in metrics(folder) if "dev" in line]
    assert max(curve) == curve[0] > curve[-1]
    assert same_weights(folder / "model", good)
    results = json.loads((folder / "results.json").read_text())
    assert results["after"] == results["before"]
    assert results["after"]["dev"]["spearman"] == curve[0]


def test_one_seed_one_result(run, tiny):
    """The same seed gives the same numbers and weights to the last bit, another seed does not."""
    first, again, other = (
        run(name, *LEARNS, "--log-every", "1", "--seed", seed)
        for name, seed in (("first", "7"), ("again", "7"), ("other", "8"))
    )
    assert metrics(first) == metrics(again)
    assert losses(first)[0] != losses(other)[0]
    assert same_weights(first / "model", again / "model")
    assert not same_weights(first / "model", other / "model")
    assert not same_weights(first / "model", tiny)  # it is a trained one that was compared


@pytest.mark.parametrize(("most", "steps"), [(3, 3), (7, 7), (1000, 10)])
def test_max_steps_ends_a_run_early_with_the_rate_at_its_end(run, most, steps):
    """Two epochs of five batches; the schedule is planned for the steps that are made."""
    folder = run("run", "--epochs", "2", "--max-steps", str(most), "--log-every", "1", "--lr", "1", "--warmup", "0")
    assert [line["step"] for line in metrics(folder) if "loss" in line] == list(range(1, steps + 1))
    assert metrics(folder)[-1]["step"] == steps
    assert "dev" in metrics(folder)[-1]
    assert json.loads((folder / "results.json").read_text())["steps"] == steps
    rates = [line["lr"] for line in metrics(folder) if "loss" in line]
    assert rates == pytest.approx([1 - step / steps for step in range(steps)], abs=1e-12)


def test_each_line_of_metrics_is_the_mean_loss_since_the_line_before(run):
    each, grouped = (run(name, "--log-every", every) for name, every in (("each", "1"), ("grouped", "2")))
    one, two, three, four, five = losses(each)
    expected = [(one + two) / 2, (three + four) / 2, five]  # the last line, at the end of the run, has one step
    assert losses(grouped) == pytest.approx(expected, abs=1e-12)


def test_long_sentences_are_reported(run, tmp_path, capsys):
    path = tmp_path / "long.tsv"
    path.write_text(f"1\t{'cat ' * 20}\ta dog\n2\ta cat\ta dog\n")
    run("run", "--data", str(path))
    assert "1 of 4 texts were longer than 16 tokens and were cut" in capsys.readouterr().err


def test_a_pooling_of_ones_own_is_trained_and_saved(run):
    folder = run("run", "--pooling", "cls", "--max-steps", "1")
    assert SentenceEncoder.load(folder / "model").pooling.mode == "cls"


def test_a_head_is_trained_saved_and_reported(run, data):
    """What results.json says of the best model is what the model in its folder does."""
    folder = run("run", "--objective", "cross-encoder", *LEARNS)
    results = json.loads((folder / "results.json").read_text())
    pairs = read_scored_pairs(data[3])
    scores = PairModel.load(folder / "model").scores([p.sentence1 for p in pairs], [p.sentence2 for p in pairs])
    expected = np.corrcoef(scores, [pair.score for pair in pairs])[0, 1]
    assert results["after"]["dev"]["pearson"] == pytest.approx(expected, abs=1e-6)  # float32 scores
    curve = [line["dev"]["pearson"] for line in metrics(folder) if "dev" in line]
    assert results["after"]["dev"]["pearson"] == max(curve) > curve[0]


# --------------------------------------------------------------------------------- what is not trained


def test_frozen_weights_stay_the_same_to_the_last_bit(run, tiny):
    folder = run("run", *LEARNS, "--freeze-layers", "1", "--freeze-embeddings", "--weight-decay", "0.1")
    before, after = SentenceEncoder.load(tiny).state_dict(), SentenceEncoder.load(folder / "model").state_dict()
    frozen = {name for name in before if name.startswith(("bert.embeddings.", "bert.layers.0."))}
    trained = {name for name in before if name.startswith("bert.layers.1.")}
    assert len(frozen) == 5 + 16
    assert all(torch.equal(before[name], after[name]) for name in frozen)
    assert len(trained) == 16
    assert not any(torch.equal(before[name], after[name]) for name in trained)


def test_freezing_is_announced(run, capsys):
    run("run", "--freeze-layers", "1", "--max-steps", "1")
    shown = re.search(r"([\d,]+) parameters \(([\d,]+) trainable\), ([\d,]+) of them not used", capsys.readouterr().err)
    everything, trained, unused = (int(count.replace(",", "")) for count in shown.groups())
    assert unused == 24 * 24 + 24  # the pooler
    # a layer of width 24 and feed-forward width 40: four projections, two dense layers, two layer norms
    assert everything - trained == 4 * (24 * 24 + 24) + (24 * 40 + 40) + (40 * 24 + 24) + 2 * (24 + 24)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--freeze-layers", "3"], "--freeze-layers: 3 layers cannot be frozen: this encoder has 2"),
        (["--freeze-layers", "2", "--freeze-embeddings"], "nothing is left to train: freeze fewer layers"),
    ],
)
def test_too_much_frozen_exits_2_with_one_line(run, tmp_path, capsys, flags, message):
    with pytest.raises(SystemExit, match="2"):
        run_command(lambda: run("run", *flags))
    assert capsys.readouterr().err == f"error: {message}\n"
    assert not (tmp_path / "run").exists()


def test_a_head_can_be_trained_alone(run, tiny):
    """On an encoder that is all frozen; and at rate 0 for the encoder, which does the same."""
    head = ["--objective", "siamese", "--head-lr", "1e-2", "--epochs", "3"]
    for name, flags in {"frozen": ["--freeze-layers", "2", "--freeze-embeddings"], "still": ["--lr", "0"]}.items():
        folder = run(name, *head, *flags, "--log-every", "5")
        assert same_weights(folder / "model", tiny)
        assert losses(folder)[-1] < losses(folder)[0] / 2


def test_the_rate_of_the_head_is_not_that_of_the_encoder(run, tiny, monkeypatch, tmp_path):
    """The other way round, stopped in the third step: at rate 0 the head stays as it was drawn, the encoder learns."""
    flags = ["--objective", "siamese", "--lr", "5e-3", "--head-lr", "0", "--weight-decay", "0.1", "--log-every", "1"]
    calls = 2 + 3  # of dev and test before training, then of the steps
    monkeypatch.setattr(loss_functions, "mse_loss", interrupt_at(calls, loss_functions.mse_loss))
    with pytest.raises(KeyboardInterrupt):
        run("run", *flags)
    untrained, last = (PairModel.load(tmp_path / "run" / name) for name in ("model", "last"))
    assert same_weights(tmp_path / "run" / "model", tiny)
    assert not same_weights(tmp_path / "run" / "last", tiny)
    before, after = untrained.head.state_dict(), last.head.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


# ---------------------------------------------------------------------------------- the run's folder


def test_an_existing_run_is_replaced_only_when_asked(run):
    folder = run("run", "--max-steps", "1")
    before = (folder / "metrics.jsonl").read_text()
    (folder / "last").mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"run exists: choose another --out, or --overwrite"):
        run("run", "--max-steps", "2")
    assert (folder / "metrics.jsonl").read_text() == before
    run("run", "--max-steps", "2", "--overwrite")
    assert metrics(folder)[-1]["step"] == 2
    assert not (folder / "last").exists()
    assert (folder / "notes.txt").read_text() == "mine"


def test_what_is_no_run_is_never_overwritten(run, tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "model")
    with pytest.raises(InputError, match="is not the folder of a run"):
        run("model", "--overwrite")
    SentenceEncoder.load(tmp_path / "model")


def test_an_empty_folder_is_welcome(run, tmp_path):
    (tmp_path / "run").mkdir()
    assert (run("run", "--max-steps", "1") / "results.json").is_file()


def test_a_run_has_a_name_of_its_own(tiny, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["--model", str(tiny), *data, "--max-steps", "1"])
    assert (tmp_path / "runs" / "data-cosine-tiny" / "results.json").is_file()


# ------------------------------------------------------------------------------------------- Ctrl-C


def interrupt_at(call: int, function):
    """``function``, but Ctrl-C comes at its so manieth call."""
    calls = 0

    def interrupted(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return function(*arguments, **options)

    return interrupted


def test_ctrl_c_keeps_the_weights_of_the_last_step(run, tiny, tmp_path, monkeypatch, capsys):
    """Interrupted within the third step, and after two steps of two: both have the same weights in last/."""
    monkeypatch.setitem(SCHEDULES, "linear", lambda *_: 1.0)  # whatever the length of the run
    run_folder, short_folder = tmp_path / "run", tmp_path / "short"
    monkeypatch.setattr(loss_functions, "cosine_mse_loss", interrupt_at(3, loss_functions.cosine_mse_loss))
    with pytest.raises(SystemExit, match="130"):
        run_command(lambda: run("run", "--lr", "5e-3", "--log-every", "1"))
    message = f"stopped at step 2: the last weights are in {run_folder / 'last'}, the best model by dev in "
    message += str(run_folder / "model")
    assert message in capsys.readouterr().err
    assert len(losses(run_folder)) == 2
    assert not (run_folder / "results.json").exists()
    assert same_weights(run_folder / "model", tiny)  # the untrained one, the best so far
    assert not same_weights(run_folder / "last", tiny)

    monkeypatch.setattr(scoring, "correlations", interrupt_at(3, scoring.correlations))
    with pytest.raises(KeyboardInterrupt):
        run("short", "--lr", "5e-3", "--max-steps", "2")
    assert same_weights(run_folder / "last", short_folder / "last")


def test_ctrl_c_in_the_last_evaluation_loses_nothing(run, tmp_path, monkeypatch):
    """Training is over, the table is not: a resumed run writes it, without another step."""
    whole = run("whole")
    with monkeypatch.context() as patch:
        patch.setattr(scoring, "correlations", interrupt_at(4, scoring.correlations))  # dev, test, dev; then dev again
        with pytest.raises(KeyboardInterrupt):
            run("run")
    assert not (tmp_path / "run" / "results.json").exists()
    resume(tmp_path / "run")
    assert metrics(tmp_path / "run") == metrics(whole)
    one, other = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("whole", "run"))
    assert (one["after"], one["steps"]) == (other["after"], other["steps"])


def test_a_run_goes_on_if_the_reader_closes_the_pipe(tiny, data, tmp_path):
    """``train ... 2>&1 | head -5``: later lines are dropped."""
    flags = ["--model", str(tiny), *data, *"--batch-size 4 --epochs 5 --eval-every 7 --save-every 1000".split()]
    command = [sys.executable, "-m", "minisbert.train", *flags, "--out", str(tmp_path / "run")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=ROOT, env=environment)
    for _ in range(5):  # the model, the data, the plan, the scores after 0 and 7 steps
        process.stderr.readline()
    process.stderr.close()
    assert process.wait(timeout=100) == 0
    assert json.loads((tmp_path / "run" / "results.json").read_text())["steps"] == 50


def test_ctrl_c_before_the_first_checkpoint_promises_no_best(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scoring, "correlations", interrupt_at(1, scoring.correlations))
    with pytest.raises(KeyboardInterrupt):
        run("run")
    err = capsys.readouterr().err
    assert "stopped at step 0" in err
    assert "best model" not in err
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        *("config.json", "last", "metrics.jsonl", "state")
    ]


def test_an_interrupted_run_can_be_overwritten(run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(loss_functions, "cosine_mse_loss", interrupt_at(2, loss_functions.cosine_mse_loss))
        with pytest.raises(KeyboardInterrupt):
            run("run")
    folder = run("run", "--overwrite", "--max-steps", "1")
    assert not (folder / "last").exists()


def started(arguments: list[str], ready) -> subprocess.Popen:
    """``python -m minisbert.train`` in a process of its own, once ``ready`` says so."""
    # with Ctrl-C switched on: a shell's background jobs, and all they start, ignore it
    start = (
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "runpy.run_module('minisbert.train', run_name='__main__')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", start, *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())},  # as this test: see conftest.py
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline and not ready():
        time.sleep(0.02)
    return process


@pytest.mark.skipif(sys.platform == "win32", reason="no signals for another process")
def test_a_real_signal_ends_with_exit_code_130(tiny, data, tmp_path):
    """Ctrl-C; SIGTERM ends in the same handler (``test_interrupts.py``)."""
    folder = tmp_path / "run"
    process = started(
        ["--model", str(tiny), *data, "--out", str(folder), "--epochs", "100000"],
        lambda: (folder / "metrics.jsonl").is_file() and losses(folder),
    )
    try:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    assert int(re.search(r"stopped at step (\d+)", err)[1]) >= 1
    assert err.splitlines()[-1] == "stopped"
    SentenceEncoder.load(folder / "last")
    SentenceEncoder.load(folder / "model")


# ------------------------------------------------------------------------------------------- resume

DROPOUT = ["--lr", "5e-3", "--epochs", "3", "--log-every", "3"]  # 15 steps in 3 epochs of 5


@pytest.fixture
def whole(run) -> Path:
    """A run that nothing interrupted."""
    return run("whole", *DROPOUT)


def stop_at(call: int, start, monkeypatch, *arguments: str, target=(loss_functions, "cosine_mse_loss")) -> None:
    """Start and press Ctrl-C at the so manieth call of ``target``, mostly where the loss is computed."""
    with monkeypatch.context() as patch:
        patch.setattr(*target, interrupt_at(call, getattr(*target)))
        with pytest.raises(KeyboardInterrupt):
            start(*arguments)


def resume(folder: Path, *arguments: str) -> None:
    torch.manual_seed(0)  # whatever has drawn random numbers since
    main(["--resume", str(folder), *arguments])


def assert_same_run(one: Path, other: Path) -> None:
    """Every logged loss, rate and score, the kept model and the results: the same to the last bit."""
    assert metrics(one) == metrics(other)
    assert same_weights(one / "model", other / "model")
    results = [json.loads((folder / "results.json").read_text()) for folder in (one, other)]
    assert [{**result, "training_seconds": 0} for result in results[:1]] == [{**results[1], "training_seconds": 0}]


@pytest.mark.parametrize("step", [1, 2, 5, 6, 11, 15])
def test_a_resumed_run_is_the_run_that_was_never_stopped(run, whole, monkeypatch, tmp_path, step):
    """Stopped in the first step, within an epoch, at the ends of epochs and in the last step; with dropout."""
    stop_at(step, run, monkeypatch, "run", *DROPOUT)
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)
    assert not (tmp_path / "run" / "state").exists()
    assert not (tmp_path / "run" / "last").exists()


def test_a_run_can_be_stopped_again_and_again(run, whole, monkeypatch, tmp_path):
    stop_at(4, run, monkeypatch, "run", *DROPOUT)
    for call in (3, 1, 6):
        stop_at(call, resume, monkeypatch, tmp_path / "run")
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)


def test_a_resumed_run_keeps_its_number_of_threads_unless_another_is_given(run, monkeypatch, tmp_path, capsys):
    threads, torch_set = [], torch.set_num_threads
    monkeypatch.setattr(torch, "set_num_threads", lambda count: threads.append(count) or torch_set(count))
    stop_at(3, run, monkeypatch, "run", *DROPOUT, "--threads", "2")
    for given, used in ([], 2), (["--threads", "1"], 1), ([], 1):
        threads.clear()
        stop_at(3, resume, monkeypatch, tmp_path / "run", *given)
        assert threads[-1] == torch.get_num_threads() == used
        assert ("threads: 1, before 2: the last bits may differ" in capsys.readouterr().err) == (given != [])


@pytest.mark.parametrize("evaluation", [1, 2, 3, 5])
def test_an_evaluation_that_was_stopped_is_made_again(run, whole, monkeypatch, tmp_path, evaluation):
    """The first and second are of dev and test before training, the others of dev after an epoch."""
    stop_at(evaluation, run, monkeypatch, "run", *DROPOUT, target=(scoring, "correlations"))
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)


def test_what_was_done_since_the_last_save_is_done_again(run, whole, monkeypatch, tmp_path):
    """As after a kill: the state is of step 8, but there are lines and a better model of later steps."""
    state = tmp_path / "state-of-step-8"
    stop_at(9, run, monkeypatch, "run", *DROPOUT)
    shutil.copytree(tmp_path / "run" / "state", state)
    stop_at(5, resume, monkeypatch, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "state")
    shutil.copytree(state, tmp_path / "run" / "state")
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.parametrize(
    ("objective", "form", "flags"),
    [
        ("cross-encoder", "scored", ["--head-lr", "1e-2"]),
        ("softmax", "nli", ["--freeze-layers", "1"]),
        ("mnr", "triplets", ["--projection", "--eval-every", "2"]),
        ("mnr", "triplets", ["--matryoshka", "16,8"]),
        ("simcse", "sentences", ["--patience", "2", "--eval-every", "1"]),
    ],
)
def test_heads_projections_and_early_stops_resume_too(tiny, tmp_path, monkeypatch, objective, form, flags):
    files = toys.write_all(tmp_path)
    data = ["--model", str(tiny), "--data", files[form], "--batch-size", "6", "--precision", "float32"]
    if form != "nli":
        data += ["--dev", files["dev"], "--test", files["test"]]
    flags = [*flags, *data, "--objective", objective, "--epochs", "2", "--lr", "1e-3", "--log-every", "1"]
    main([*flags, "--out", str(tmp_path / "whole")])
    target = (PairNetwork if objective in ("cross-encoder", "softmax") else VectorNetwork, "forward")
    stop_at(2, main, monkeypatch, [*flags, "--out", str(tmp_path / "run")], target=target)
    resume(tmp_path / "run")
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    assert same_weights(tmp_path / "run" / "model", tmp_path / "whole" / "model")


def test_a_killed_process_resumes_to_the_same_bits(tiny, data, tmp_path):
    """kill -9: nothing is said, nothing is tidied, and the last saved state is what there is."""
    flags = ["--model", str(tiny), *data, "--batch-size", "4", "--precision", "float32", "--lr", "1e-3"]
    flags += ["--epochs", "12", "--save-every", "20", "--log-every", "1"]
    folder = tmp_path / "killed"
    process = started([*flags, "--out", str(folder)], lambda: (folder / "state").is_dir() and len(losses(folder)) > 25)
    process.kill()
    process.communicate()
    step = len(losses(folder))
    assert 25 < step < 120
    resume(folder)
    main([*flags, "--out", str(tmp_path / "whole")])
    assert_same_run(folder, tmp_path / "whole")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lr", "1e-4"], "--lr 0.0001: .*run was started with 0.005 and continues with it"),
        (["--epochs", "9"], "--epochs 9: .* was started with 3"),
        (["--objective", "cosent"], "--objective cosent: .* was started with cosine"),
        (["--precision", "bfloat16"], "--precision bfloat16: .* was started with float32"),
        (["--freeze-embeddings"], "--freeze-embeddings True: .* was started with False"),
    ],
)
def test_a_changed_setting_is_refused_by_name(run, monkeypatch, tmp_path, flags, message):
    stop_at(3, run, monkeypatch, "run", *DROPOUT)
    with pytest.raises(InputError, match=message):
        resume(tmp_path / "run", *flags)


def test_how_often_to_log_and_save_may_change(run, monkeypatch, tmp_path):
    stop_at(3, run, monkeypatch, "run", *DROPOUT)
    resume(tmp_path / "run", "--save-every", "2", "--log-every", "1")
    assert len(losses(tmp_path / "run")) == 13


def test_what_cannot_be_resumed_says_why(run, monkeypatch, tmp_path):
    with pytest.raises(InputError, match=r"is not the folder of a run: it has no config\.json"):
        resume(tmp_path / "none")
    folder = run("whole", "--max-steps", "1")
    with pytest.raises(InputError, match="is finished: its model is in"):
        resume(folder)
    stop_at(3, run, monkeypatch, "run", *DROPOUT)
    with pytest.raises(InputError, match=r"--resume .* to continue it"):
        run("run")
    shutil.rmtree(tmp_path / "run" / "state")
    with pytest.raises(InputError, match="was stopped before its state was saved"):
        resume(tmp_path / "run")


def test_changed_rows_are_refused(run, data, monkeypatch, tmp_path):
    path = tmp_path / "rows.tsv"
    path.write_text(Path(data[1]).read_text())
    stop_at(3, run, monkeypatch, "run", *DROPOUT, "--data", str(path))
    path.write_text("5\ta dog\ta cat\n" + Path(data[1]).read_text())
    with pytest.raises(InputError, match="the training rows, dev, test,"):
        resume(tmp_path / "run")


# ------------------------------------------------------------------------------- evaluation and its end


def test_evaluation_every_so_many_steps(run):
    folder = run("run", "--epochs", "2", "--eval-every", "3")
    assert [line["step"] for line in metrics(folder) if "dev" in line] == [0, 3, 6, 9, 10]


def test_patience_ends_a_run_that_no_longer_gets_better(run, monkeypatch):
    scores = iter([0.5, 0.9, 0.6, 0.7, 0.95, 0.8, 0.9, 0.99])  # of dev and test before, then of dev
    found = lambda *_, **__: {"spearman": next(scores, 0.0), "pearson": 0.0}  # noqa: E731
    monkeypatch.setattr("minisbert.training.encoder_objectives.vector_scores", found)
    folder = run("run", "--epochs", "20", "--patience", "2")
    dev = [line["dev"]["spearman"] for line in metrics(folder) if "dev" in line]
    assert dev == [0.5, 0.6, 0.7, 0.95, 0.8, 0.9]
    assert json.loads((folder / "results.json").read_text())["steps"] == 25


# -------------------------------------------------------------------------- parts, precision, safety


def test_a_batch_in_parts_is_the_batch(run, without_dropout):
    """The mean of rows is a sum of parts: same losses, same weights, up to float32's order of sums."""
    flags = ["--model", str(without_dropout), "--lr", "1e-3", "--log-every", "1", "--epochs", "2"]
    whole, thirds = run("one", *flags), run("parts", *flags, "--accumulate", "3")
    assert losses(thirds) == pytest.approx(losses(whole), abs=2e-6)
    ours, theirs = (SentenceEncoder.load(f / "model").encode(["a small cat", "music"]) for f in (whole, thirds))
    np.testing.assert_allclose(ours, theirs, atol=2e-5)


ALONE, ON_GPU = ProcessGroup(0, 1, torch.device("cpu")), ProcessGroup(0, 1, torch.device("cuda"))


@pytest.mark.parametrize(
    ("accumulate", "group", "expected"),
    [
        (1, ALONE, [6]),
        (2, ALONE, [3, 3]),
        (4, ON_GPU, [2, 2, 2]),
        (9, ALONE, [1] * 6),
        (None, ProcessGroup(0, 2, torch.device("cpu")), [3, 3]),
        (None, ALONE, [2, 2, 2]),  # 6 rows of 300 tokens: 1,800 are three parts of at most 768
        (None, ON_GPU, [6]),
    ],
)
def test_micro_batches_by_hand(accumulate, group, expected):
    rows = [11, 4, 7, 0, 9, 2]
    objective = SimpleNamespace(lengths=[300] * 12, separable=True)
    options = SimpleNamespace(accumulate=accumulate, micro_tokens=None)
    found = micro_batches(rows, objective, options, group.device, group.size)
    assert [len(part) for part in found] == expected
    assert [row for part in found for row in part] == rows


def test_bfloat16_reaches_the_encoder_and_nothing_else(run, monkeypatch, capsys):
    """Matrix products in bfloat16, weights, vectors, losses and what is saved in float32."""
    monkeypatch.setattr(device, "bfloat16_hardware", lambda _: (True, "the CPU has it"))
    seen = {"linear": set(), "loss": set()}
    linear, loss = torch.nn.functional.linear, loss_functions.cosine_mse_loss

    def spy_linear(*inputs):
        found = linear(*inputs)
        if torch.is_grad_enabled():  # evaluation is in float32
            seen["linear"].add(found.dtype)
        return found

    def spy_loss(u, v, target):
        seen["loss"].add((u.dtype, torch.is_autocast_enabled("cpu")))
        return loss(u, v, target)

    monkeypatch.setattr(torch.nn.functional, "linear", spy_linear)
    monkeypatch.setattr(loss_functions, "cosine_mse_loss", spy_loss)
    folder = run("run", "--precision", "auto", "--max-steps", "2", "--log-every", "1")
    assert seen["linear"] == {torch.bfloat16}
    assert seen["loss"] == {(torch.float32, False)}
    assert "bfloat16 (the CPU has it)" in capsys.readouterr().err
    assert {parameter.dtype for parameter in SentenceEncoder.load(folder / "model").parameters()} == {torch.float32}
    monkeypatch.undo()
    exact = run("exact", "--max-steps", "2", "--log-every", "1")
    difference = abs(losses(folder)[0] - losses(exact)[0])
    assert 0 < difference < 0.01 * losses(exact)[0]


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_good_weights(run, tmp_path, monkeypatch, capsys):
    calls = iter(range(1, 100))

    def sometimes(u, v, target):
        found = cosine_mse(u, v, target)
        return found * float("nan") if next(calls) == 3 else found

    cosine_mse = loss_functions.cosine_mse_loss
    monkeypatch.setattr(loss_functions, "cosine_mse_loss", sometimes)
    with pytest.raises(InputError, match=r"step 3: loss nan, gradient norm nan.* \(training rows \d+, .*a lower --lr"):
        run("run", "--lr", "5e-3", "--warmup", "0")
    last = SentenceEncoder.load(tmp_path / "run" / "last")
    assert all(parameter.isfinite().all() for parameter in last.parameters())
    assert "stopped at step 2" in capsys.readouterr().err


def test_an_infinite_gradient_stops_the_run_too(run, tmp_path, monkeypatch):
    cosine_mse = loss_functions.cosine_mse_loss

    def steep(u, v, target):
        return cosine_mse(u, v, target) + (u - u.detach()).sum() * float("inf") * 0 + (u * 0).sum().abs().sqrt()

    monkeypatch.setattr(loss_functions, "cosine_mse_loss", steep)
    with pytest.raises(InputError, match=r"step 1: loss .*, gradient norm (nan|inf)"):
        run("run")


def test_a_parameter_that_the_loss_cannot_reach_is_an_error_at_the_first_step(run, monkeypatch):
    monkeypatch.setattr(Objective, "unused_parameters", lambda _: [])  # mean pooling has no use for BERT's pooler
    with pytest.raises(
        InputError, match=r"no gradient reaches 2 of the trainable parameters, such as model\.bert\.pooler"
    ):
        run("run")


# ----------------------------------------------------------------------------------- what cannot be used


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--batch-size", ["0", "-1", "2.5", "many"]),
        ("--lr", ["nan", "-1e-5", "inf", "fast"]),
        ("--warmup", ["1.5", "-1", "-0.1", "nan", "inf"]),
        ("--epochs", ["0", "-1"]),
        ("--max-steps", ["0"]),
        ("--log-every", ["0"]),
        ("--weight-decay", ["-1", "nan"]),
        ("--clip", ["-1", "nan", "inf"]),
        ("--seed", ["-1", str(2**64), "now"]),
    ],
)
def test_a_number_out_of_range_exits_2_and_names_the_option(option, values, capsys):
    for value in values:
        with pytest.raises(SystemExit, match="2"):
            parse([f"{option}={value}"])
        assert f"argument {option}: invalid" in capsys.readouterr().err


def test_the_largest_seed_is_a_seed(run):
    run("run", "--seed", str(2**64 - 1), "--max-steps", "1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "no-model"], "no model 'no-model': neither a folder nor one of all-MiniLM-L6-v2"),
        (["--device", "tpu"], "device 'tpu' cannot be used"),
        (["--pooling", "sum"], "unknown pooling 'sum'"),
        (["--data", "no.tsv"], "no.tsv does not exist"),
    ],
)
def test_what_cannot_be_used_leaves_no_folder(run, tmp_path, arguments, message):
    with pytest.raises(InputError, match=message):
        run("run", *arguments)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", ["--dev", "--test"])
def test_scores_without_a_correlation_are_told_before_anything_is_written(run, tmp_path, option):
    path = tmp_path / "constant.tsv"
    path.write_text("3\ta cat\ta dog\n3\tsun\tmoon\n")
    with pytest.raises(InputError, match=r"constant\.tsv: a correlation needs at least two pairs"):
        run("run", option, str(path))
    assert not (tmp_path / "run").exists()


def test_bad_input_is_one_line_and_exit_code_2(tiny, data, tmp_path):
    path = tmp_path / "scores.tsv"
    path.write_text("5\ta cat\ta dog\n80\tsun\tmoon\n")
    command = [sys.executable, "-m", "minisbert.train", "--model", str(tiny), *data, "--data", str(path)]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "run")], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"error: {path}, line 2: the score 80 is not on the scale of 0 to 5; give its --scale\n"
    assert not (tmp_path / "run").exists()
