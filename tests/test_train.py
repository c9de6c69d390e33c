"""Fine-tuning: the schedule, the loop, what a run writes, and what stops it."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import minisbert
from minisbert.core import InputError
from minisbert.core import losses as formulas
from minisbert.data.rows import load_scored_pairs
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system import devices
from minisbert.system.console import run_command
from minisbert.training import objectives as model_scores
from minisbert.training.objectives import Objective, PairNetwork, VectorNetwork
from minisbert.training.objectives.masked import MaskedNetwork
from minisbert.training.train import SCHEDULES, main
from tests import toys
from tests.conftest import ROOT
from tests.reference.plain_loop import independent_losses
from tests.toys import TIMELESS, dev_scores, losses, metrics, results, stop_at


@pytest.fixture(scope="module")
def flags(tiny: Path, files: dict[str, str]) -> list[str]:
    """A run of the tiny model on toy pairs, in the dtype whose bits are promised."""
    return [
        "--model",
        str(tiny),
        *toys.flags(files, "cosine"),
        "--batch-size",
        "8",
        "--dtype",
        "float32",
    ]


@pytest.fixture
def run(flags: list[str], tmp_path: Path):
    """``run("name", "--epochs", "2")`` trains the tiny model on the toy pairs -> the folder of the
    run.
    """

    def start(name: str, *arguments: str) -> Path:
        main([*flags, "--out", str(tmp_path / name), *arguments])
        return tmp_path / name

    return start


LEARNS = [
    "--epochs",
    "12",
    "--lr",
    "1e-2",
    "--dropout",
    "0",
]  # dropout differs between versions of torch


def rates(folder: Path) -> list[float]:
    return [line["lr"] for line in metrics(folder) if "loss" in line]


def same_weights(one: Path, other: Path) -> bool:
    """Are all weights of two folders the same, bit for bit?"""
    first, second = SentenceEncoder.load(one).state_dict(), SentenceEncoder.load(other).state_dict()
    return first.keys() == second.keys() and all(
        torch.equal(value, second[name]) for name, value in first.items()
    )


# ------------------------------------------------------------------------------------- learning
# rate


def test_the_chosen_schedule_is_followed(run, capsys):
    folder = run(
        "run", "--schedule", "cosine", "--warmup", "0.2", "--lr", "2e-3", "--log-every", "1"
    )
    assert rates(folder) == pytest.approx(
        [0, 2e-3, 1e-3 + 5e-4 * 2**0.5, 1e-3, 1e-3 - 5e-4 * 2**0.5], abs=1e-15
    )
    folder = run("long", "--warmup", "100", "--lr", "1e-3", "--log-every", "1", "--max-steps", "3")
    assert rates(folder) == pytest.approx([0, 1e-5, 2e-5], abs=1e-15)
    assert (
        "--warmup 100: the run has 3 steps, so the learning rate never reaches its peak"
        in capsys.readouterr().err
    )


# ----------------------------------------------------------------------------- the arithmetic of
# training


@pytest.fixture
def without_dropout(tiny: Path, tmp_path: Path) -> Path:
    return toys.without_dropout(tiny, tmp_path / "without-dropout")


@pytest.mark.parametrize(
    ("clip", "warmup"), [(0.05, "0.34"), (0.0, "3")]
)  # a fraction of the steps, rounded up; steps
def test_the_loop_computes_what_the_recipe_says(run, without_dropout, tmp_path, clip, warmup):
    """Labels, batches, loss, schedule, clipping (0 is none), decay: six steps against torch's
    ready-made pieces.
    """
    path = tmp_path / "twelve.tsv"
    path.write_text(toys.SCORED_HEADER + "".join(toys.scored(12, seed=5)))
    options = [
        "--data",
        str(path),
        "--model",
        str(without_dropout),
        "--lr",
        "1e-3",
        "--weight-decay",
        "0.1",
    ]
    options += [
        "--warmup",
        warmup,
        "--clip",
        str(clip),
        "--batch-size",
        "12",
        "--epochs",
        "6",
        "--log-every",
        "1",
    ]
    folder = run("run", *options)
    expected = independent_losses(without_dropout, path, epochs=6, lr=1e-3, warmup=3, clip=clip)
    # float32 sums in another order: 1e-6 of a loss of .2, where a forgotten clip or decay shows
    # from 1e-4 on
    np.testing.assert_allclose(losses(folder), expected, atol=1e-6, rtol=0)
    np.testing.assert_allclose(
        rates(folder), np.array([0, 1, 2, 3, 2, 1]) * 1e-3 / 3, atol=1e-12, rtol=0
    )


def test_every_epoch_has_dropout(run, without_dropout):
    """Nothing is learned at rate 0: what moves the loss of the whole file from step to step is
    dropout alone.
    """
    still = ["--lr", "0", "--batch-size", "40", "--epochs", "3", "--log-every", "1"]
    without = losses(run("without", *still, "--model", str(without_dropout)))
    assert max(without) - min(without) < 1e-6  # the order of the rows, in float32
    first, second, third = losses(run("with", *still))
    assert min(abs(first - second), abs(first - third), abs(second - third)) > 1e-4


# ---------------------------------------------------------------------------------------- a whole
# run


def test_a_run_learns_and_writes_all_it_promises(run, tiny, capsys):
    folder = run("run", *LEARNS, "--log-every", "5")
    written = {path.name for path in folder.iterdir()} - {"last"}
    assert written == {"config.json", "metrics.jsonl", "model", "results.json"}

    config = json.loads((folder / "config.json").read_text())
    assert (config["model"], config["lr"], config["epochs"], config["seed"]) == (
        str(tiny),
        1e-2,
        12,
        42,
    )
    sizes = {"train": ("data", 40), "dev": ("dev", 20), "test": ("test", 20)}
    assert config["rows"] == {
        split: f"{config[name]} ({count} pairs)" for split, (name, count) in sizes.items()
    }
    assert config["torch"] == torch.__version__

    lines = metrics(folder)
    assert [line["step"] for line in lines if "dev" in line] == list(
        range(0, 61, 5)
    )  # before, then after each epoch
    assert [line["step"] for line in lines if "loss" in line] == list(range(5, 61, 5))
    assert [line["epoch"] for line in lines if "dev" in line] == list(range(13))
    assert set(lines[0]["dev"]) == {"pearson", "spearman", "loss"}
    assert losses(folder)[-1] < losses(folder)[0] / 2

    found = results(folder)
    assert set(found) == {"before", "after", "training_seconds", "steps"}
    assert found["steps"] == 60
    for split in ("dev", "test"):
        before, after = (found[when][split]["spearman"] for when in ("before", "after"))
        assert after > before + 0.2
    assert found["after"]["dev"]["spearman"] == pytest.approx(max(dev_scores(folder)), abs=1e-9)

    card = (folder / "model" / "README.md").read_text()
    assert f"minisbert train --model={tiny}" in card
    assert "--epochs=12" in card
    assert "--seed" not in card  # the default
    scores = " | ".join(f"{found[when]['test']['spearman']:.4f}" for when in ("before", "after"))
    assert f"| test spearman | {scores} |" in card

    captured = capsys.readouterr()
    assert "60 steps of 8 rows" in captured.err
    shown = [f"{100 * found[when]['test']['spearman']:.2f}" for when in ("before", "after")]
    assert " -> ".join(shown) in captured.out


def test_model_is_the_best_by_dev_even_if_that_is_the_untrained(run, files, tmp_path):
    """A good model, then labels turned upside down: every step makes it worse on dev, so what it
    was is kept.
    """
    good = run("good", *LEARNS) / "model"
    path = tmp_path / "upside-down.tsv"
    rows = [
        row.split("\t", 1)
        for row in Path(files["scored"]).read_text().splitlines(keepends=True)[1:]
    ]
    path.write_text(
        toys.SCORED_HEADER + "".join(f"{5 - int(score)}\t{rest}" for score, rest in rows)
    )
    folder = run("run", "--model", str(good), "--data", str(path), *LEARNS, "--epochs", "3")
    curve = dev_scores(folder)
    assert max(curve) == curve[0] > curve[-1]
    assert same_weights(folder / "model", good)
    assert results(folder)["after"] == results(folder)["before"]
    assert results(folder)["after"]["dev"]["spearman"] == curve[0]


def test_another_seed_is_another_run(run):
    """That one seed is one result, to the last bit, is what a resumed run shows."""
    first, other = (
        losses(run(seed, "--seed", seed, "--log-every", "1")) for seed in ("7", f"{2**64 - 1}")
    )
    assert first[0] != other[0]


@pytest.mark.parametrize(("most", "steps"), [(3, 3), (7, 7), (1000, 10)])
def test_max_steps_ends_a_run_early_with_the_rate_at_its_end(run, most, steps):
    """Two epochs of five batches; the schedule is planned for the steps that are made."""
    folder = run(
        "run",
        "--epochs",
        "2",
        "--max-steps",
        str(most),
        "--log-every",
        "1",
        "--lr",
        "1",
        "--warmup",
        "0",
    )
    assert [line["step"] for line in metrics(folder) if "loss" in line] == list(range(1, steps + 1))
    assert metrics(folder)[-1]["step"] == results(folder)["steps"] == steps
    assert "dev" in metrics(folder)[-1]
    assert rates(folder) == pytest.approx([1 - step / steps for step in range(steps)], abs=1e-12)


def test_each_line_of_metrics_is_the_mean_loss_since_the_line_before(run):
    each, grouped = (
        run(name, "--log-every", every) for name, every in (("each", "1"), ("grouped", "2"))
    )
    one, two, three, four, five = losses(each)
    expected = [
        (one + two) / 2,
        (three + four) / 2,
        five,
    ]  # the last line, at the end of the run, has one step
    assert losses(grouped) == pytest.approx(expected, abs=1e-12)


def test_cut_texts_and_another_pooling_are_reported_and_saved(run, tmp_path, capsys):
    path = tmp_path / "long.tsv"
    path.write_text(f"{toys.SCORED_HEADER}1\t{'cat ' * 20}\ta dog\n2\ta cat\ta dog\n")
    folder = run("run", "--data", str(path), "--pooling", "cls")
    assert "1 of 4 texts were longer than 16 tokens and were cut" in capsys.readouterr().err
    assert SentenceEncoder.load(folder / "model").pooling.mode == "cls"


def test_a_head_is_trained_saved_and_reported(run, files):
    """What results.json says of the best model is what the model in its folder does."""
    folder = run("run", "--objective", "cross-encoder", *LEARNS)
    found = results(folder)["after"]["dev"]["pearson"]
    pairs = load_scored_pairs(files["dev"])
    scores = PairModel.load(folder / "model").predict([(p.sentence1, p.sentence2) for p in pairs])
    assert found == pytest.approx(
        np.corrcoef(scores, [pair.score for pair in pairs])[0, 1], abs=1e-6
    )  # float32
    assert found == max(dev_scores(folder, "pearson")) > dev_scores(folder, "pearson")[0]


# --------------------------------------------------------------------------------- what is not
# trained


def test_frozen_weights_stay_the_same_to_the_last_bit(run, tiny, capsys):
    folder = run("run", *LEARNS, "--freeze-embeddings", "--weight-decay", "0.1")
    before, after = (
        SentenceEncoder.load(tiny).state_dict(),
        SentenceEncoder.load(folder / "model").state_dict(),
    )
    frozen = {name for name in before if name.startswith("bert.embeddings.")}
    trained = {name for name in before if name.startswith("bert.layers.")}
    assert (len(frozen), len(trained)) == (5, 2 * 16)
    assert all(torch.equal(before[name], after[name]) for name in frozen)
    assert not any(torch.equal(before[name], after[name]) for name in trained)
    shown = re.search(
        r"([\d,]+) parameters \(([\d,]+) trainable\), ([\d,]+) of them not used",
        capsys.readouterr().err,
    )
    everything, trainable, unused = (int(count.replace(",", "")) for count in shown.groups())
    assert unused == 24 * 24 + 24  # the pooler
    assert everything - trainable == sum(before[name].numel() for name in frozen)


def test_the_rate_of_the_head_is_not_that_of_the_encoder(run, tiny, tmp_path):
    """Stopped in the third step: at rate 0 the head stays as it was drawn, the encoder learns."""
    flags = [
        "--objective",
        "siamese",
        "--lr",
        "5e-3",
        "--head-lr",
        "0",
        "--weight-decay",
        "0.1",
        "--log-every",
        "1",
    ]
    calls = 2 + 3  # of dev and test before training, then of the steps
    stop_at(calls, (formulas, "mse_loss"), run, "run", *flags)
    untrained, last = (PairModel.load(tmp_path / "run" / name) for name in ("model", "last"))
    assert same_weights(tmp_path / "run" / "model", tiny)
    assert not same_weights(tmp_path / "run" / "last", tiny)
    before, after = untrained.head.state_dict(), last.head.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


# ---------------------------------------------------------------------------------- the run's
# folder


def test_a_run_is_named_after_its_data_objective_and_model(flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main([*flags, "--max-steps", "1"])
    assert (tmp_path / "runs" / "scored-cosine-tiny" / "results.json").is_file()


# ------------------------------------------------------------------------------------------- Ctrl-C

LOSS, EVALUATION = (formulas, "cosine_mse_loss"), (model_scores, "correlate")


def test_ctrl_c_keeps_the_weights_of_the_last_step(run, tiny, tmp_path, monkeypatch, capsys):
    """Interrupted within the third step, and after two steps of two: both have the same weights in
    last/.
    """
    monkeypatch.setitem(SCHEDULES, "linear", lambda *_, **__: 1.0)  # whatever the length of the run
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(*LOSS, toys.interrupt_at(3, formulas.cosine_mse_loss))
        with pytest.raises(SystemExit, match="130"):
            run_command(lambda: run("run", "--lr", "5e-3", "--log-every", "1"))
    message = (
        f"stopped at step 2: the last weights are in {folder / 'last'}, the best model by dev in "
    )
    assert message + str(folder / "model") in capsys.readouterr().err
    assert len(losses(folder)) == 2
    assert not (folder / "results.json").exists()
    assert same_weights(folder / "model", tiny)  # the untrained one, the best so far
    assert not same_weights(folder / "last", tiny)
    stop_at(3, EVALUATION, run, "short", "--lr", "5e-3", "--max-steps", "2")
    assert same_weights(folder / "last", tmp_path / "short" / "last")
    run("run", "--overwrite", "--max-steps", "1")
    assert not (folder / "last").exists()


def test_ctrl_c_before_the_first_checkpoint_promises_no_best(run, tmp_path, capsys):
    stop_at(1, EVALUATION, run, "run")
    err = capsys.readouterr().err
    assert "stopped at step 0" in err
    assert "best model" not in err
    left = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert left == ["config.json", "last", "metrics.jsonl", "state.safetensors"]


# ------------------------------------------------------------------------------------------- resume

DROPOUT = ["--lr", "5e-3", "--epochs", "3", "--log-every", "3"]  # 15 steps in 3 epochs of 5


@pytest.fixture(scope="module")
def whole(flags, tmp_path_factory) -> Path:
    """A run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    main([*flags, *DROPOUT, "--out", str(folder)])
    return folder


def resume(folder: Path, *arguments: str) -> None:
    torch.manual_seed(0)  # whatever has drawn random numbers since
    main(["--resume", str(folder), *arguments])


def assert_same_run(one: Path, other: Path) -> None:
    """Every logged loss, rate and score, the kept model and the results: the same to the last
    bit.
    """
    assert metrics(one) == metrics(other)
    assert same_weights(one / "model", other / "model")
    assert results(one) | TIMELESS == results(other) | TIMELESS
    assert not (one / "state.safetensors").exists()
    assert (one / "last").exists() == (other / "last").exists()


# In the first step, within an epoch, at the ends of epochs and in the last step; in the evaluations
# of dev and test before training, and of dev after an epoch.
@pytest.mark.exact("one side is computed in a fixture, before the mode begins")
@pytest.mark.parametrize(
    ("call", "target"),
    [*((step, LOSS) for step in (1, 5, 6, 15)), *((i, EVALUATION) for i in (1, 2, 3))],
)
def test_a_resumed_run_is_the_run_that_was_never_stopped(run, whole, tmp_path, call, target):
    """With dropout."""
    stop_at(call, target, run, "run", *DROPOUT)
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.exact("one side is computed in a fixture, before the mode begins")
def test_a_run_can_be_stopped_again_and_again(run, whole, tmp_path):
    stop_at(4, LOSS, run, "run", *DROPOUT)
    for call in (3, 1, 6):
        stop_at(call, LOSS, resume, tmp_path / "run")
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)


def test_a_resumed_run_keeps_its_number_of_threads_unless_another_is_given(
    run, monkeypatch, tmp_path, capsys
):
    threads, torch_set = [], torch.set_num_threads
    monkeypatch.setattr(
        torch, "set_num_threads", lambda count: threads.append(count) or torch_set(count)
    )
    stop_at(3, LOSS, run, "run", *DROPOUT, "--threads", "2")
    for given, used in ([], 2), (["--threads", "1"], 1), ([], 1):
        threads.clear()
        stop_at(3, LOSS, resume, tmp_path / "run", *given)
        assert threads[-1] == torch.get_num_threads() == used
        assert ("threads: 1, before 2: the last bits may differ" in capsys.readouterr().err) == (
            given != []
        )


@pytest.mark.parametrize(
    ("objective", "more"),
    [
        ("cross-encoder", ["--head-lr", "1e-2"]),
        ("softmax", ["--freeze-embeddings"]),
        ("mnr", ["--projection", "--eval-every", "2"]),
        ("mnr", ["--matryoshka", "16,8"]),
        ("simcse", ["--patience", "2", "--eval-every", "1"]),
        ("mlm", ["--from-nothing", "1x64x200"]),
    ],
)
def test_heads_projections_early_stops_and_new_models_resume_too(
    tiny, files, tmp_path, objective, more
):
    options = [
        "--model",
        str(tiny),
        "--batch-size",
        "6",
        "--dtype",
        "float32",
        "--epochs",
        "2",
        "--lr",
        "1e-3",
    ]
    options += toys.flags(files, objective, *more, "--log-every", "1")
    main([*options, "--out", str(tmp_path / "whole")])
    networks = {"cross-encoder": PairNetwork, "softmax": PairNetwork, "mlm": MaskedNetwork}
    target = networks.get(objective, VectorNetwork), "forward"
    stop_at(2, target, main, [*options, "--out", str(tmp_path / "run")])
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.exact("the same steps of one process and of two")
def test_a_killed_process_resumes_to_the_same_bits(flags, tmp_path):
    """kill -9: nothing is said, nothing is tidied, and the last saved state is what there is."""
    flags = [
        *flags,
        "--batch-size",
        "4",
        "--lr",
        "1e-3",
        "--epochs",
        "12",
        "--save-every",
        "20",
        "--log-every",
        "1",
    ]
    folder = tmp_path / "killed"
    environment = os.environ | {
        "OMP_NUM_THREADS": str(torch.get_num_threads())
    }  # as this test: see conftest.py
    command = [sys.executable, "-m", "minisbert", "train", *flags, "--out", str(folder)]
    process = subprocess.Popen(
        command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=ROOT, env=environment
    )
    while process.poll() is None and not (
        (folder / "state.safetensors").is_file() and len(losses(folder)) > 25
    ):
        time.sleep(0.02)
    process.kill()
    process.wait()
    step = len(losses(folder))
    assert 25 < step < 120
    resume(folder)
    main([*flags, "--out", str(tmp_path / "whole")])
    assert_same_run(folder, tmp_path / "whole")


def test_only_how_often_to_log_and_save_may_change(run, tmp_path):
    stop_at(3, LOSS, run, "run", *DROPOUT)
    for changed in (
        ["--lr", "0.0001"],
        ["--objective", "cosent"],
        ["--freeze-embeddings"],
        ["--patience", "3"],
    ):
        with pytest.raises(InputError, match=changed[0]):
            resume(tmp_path / "run", *changed)
    resume(tmp_path / "run", "--save-every", "2", "--log-every", "1")
    assert len(losses(tmp_path / "run")) == 13


def test_a_run_that_cannot_be_resumed_says_why(run, tmp_path):
    with pytest.raises(InputError, match=r"config\.json"):
        resume(tmp_path / "none")
    with pytest.raises(InputError, match="finished"):
        resume(run("whole", "--max-steps", "1"))
    with pytest.raises(InputError, match="folder of a run"):
        resume(tmp_path / "whole" / "model")
    with pytest.raises(InputError, match=r"whole/model$"):
        minisbert.load(tmp_path / "whole")
    stop_at(3, LOSS, run, "run", *DROPOUT)
    with pytest.raises(InputError, match="--resume"):
        run("run")
    with pytest.raises(InputError, match="--overwrite"):
        resume(tmp_path / "run", "--overwrite")
    (tmp_path / "run" / "state.safetensors").unlink()
    with pytest.raises(InputError, match="state"):
        resume(tmp_path / "run")


# ------------------------------------------------------------------------------- evaluation and its
# end


def test_evaluation_every_few_steps(run):
    folder = run("run", "--epochs", "2", "--eval-every", "3")
    assert [line["step"] for line in metrics(folder) if "dev" in line] == [0, 3, 6, 9, 10]


def test_patience_ends_a_run_that_no_longer_gets_better(run, monkeypatch):
    scores = iter([0.5, 0.9, 0.6, 0.7, 0.95, 0.8, 0.9, 0.99])  # of dev and test before, then of dev
    found = lambda *_, **__: {"spearman": next(scores, 0.0), "pearson": 0.0}  # noqa: E731
    monkeypatch.setattr("minisbert.training.objectives.vector_scores", found)
    folder = run("run", "--epochs", "20", "--patience", "2")
    assert dev_scores(folder) == [0.5, 0.6, 0.7, 0.95, 0.8, 0.9]
    assert results(folder)["steps"] == 25


# --------------------------------------------------------------------------------- dtype, safety


def test_bfloat16_reaches_the_encoder_and_nothing_else(run, monkeypatch, capsys):
    """Matrix products in bfloat16, weights, vectors, losses and what is saved in float32."""
    monkeypatch.setattr(devices, "cpu_flags", lambda: {"amx_bf16"})
    seen = {"linear": set(), "loss": set()}
    linear, loss = torch.nn.functional.linear, formulas.cosine_mse_loss

    def spy_linear(*inputs):
        found = linear(*inputs)
        if torch.is_grad_enabled():  # evaluation is in float32
            seen["linear"].add(found.dtype)
        return found

    def spy_loss(u, v, target):
        seen["loss"].add((u.dtype, torch.is_autocast_enabled("cpu")))
        return loss(u, v, target)

    monkeypatch.setattr(torch.nn.functional, "linear", spy_linear)
    monkeypatch.setattr(*LOSS, spy_loss)
    folder = run("run", "--dtype", "auto", "--max-steps", "2", "--log-every", "1")
    assert seen == {"linear": {torch.bfloat16}, "loss": {(torch.float32, False)}}
    assert "bfloat16 (the CPU has amx_bf16)" in capsys.readouterr().err
    assert {
        parameter.dtype for parameter in SentenceEncoder.load(folder / "model").parameters()
    } == {torch.float32}


def test_a_loss_of_nan_stops_the_run_and_keeps_the_last_good_weights(
    run, tmp_path, monkeypatch, capsys
):
    calls = iter(range(1, 100))

    def sometimes(u, v, target, loss=formulas.cosine_mse_loss):
        return loss(u, v, target) * (float("nan") if next(calls) == 3 else 1)

    monkeypatch.setattr(*LOSS, sometimes)
    with pytest.raises(InputError, match=r"step 3: .*rows \d+, "):
        run("run", "--lr", "5e-3", "--warmup", "0")
    last = SentenceEncoder.load(tmp_path / "run" / "last")
    assert all(parameter.isfinite().all() for parameter in last.parameters())
    said = capsys.readouterr().err
    assert "stopped at step 2" in said
    assert "begin anew with --overwrite" in said
    assert "--resume" not in said  # it would come to the same step
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"step 2: .*--lr"):
        run("large", "--lr", "1e30", "--max-steps", "2")


def test_a_gradient_that_is_missing_stops_the_run_at_its_first_step(run, monkeypatch):
    monkeypatch.setattr(
        Objective, "unused_parameters", lambda _: []
    )  # mean pooling has no use for BERT's pooler
    with pytest.raises(InputError, match=r"model\.bert\.pooler"):
        run("missed")
