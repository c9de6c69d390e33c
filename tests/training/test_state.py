"""A training's state: readable files, restored as they were saved, whole after a kill."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from minisbert.core import InputError
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system import files
from minisbert.train import train
from minisbert.training import state
from minisbert.training.state import Progress
from tests import toys

ROWS = toys.scored_rows(40, seed=0)
DEV = toys.scored_rows(20, seed=1)
GIVEN = {"loss": "cosine", "epochs": 2, "batch_size": 8, "lr": 5e-3, "dtype": "float32"}


@pytest.fixture
def stopped(tiny, tmp_path) -> Path:
    """The folder of a training that was stopped after seven steps."""
    folder = tmp_path / "run"
    encoder = SentenceEncoder.load(tiny, device="cpu")
    train(encoder, ROWS, DEV, **GIVEN, out=folder, callback=lambda step, _: step.number == 7)
    return folder


def resume(tiny: Path, folder: Path, **changed) -> SentenceEncoder:
    encoder = SentenceEncoder.load(tiny, device="cpu")
    return train(encoder, ROWS, DEV, **GIVEN | changed, out=folder, resume=True)


def test_the_best_weights_stay_the_former_ones_if_the_new_cannot_be_written(
    tiny, tmp_path, monkeypatch
):
    """A full disk, say: what is restored is a whole file."""
    encoder = SentenceEncoder.load(tiny, device="cpu")
    best = state.BestWeights(tmp_path)
    best.keep(encoder, 3)

    def fail(weights, path):
        raise OSError("no space left")

    monkeypatch.setattr(state, "write_safetensors", fail)
    with pytest.raises(OSError, match="no space"):
        best.keep(encoder, 5)
    assert best.name == "best-3.safetensors"
    best.restore(encoder)


def test_the_state_can_be_read(stopped, tiny):
    """How far the run is, in JSON; the tensors by the names of the network's parameters."""
    about = json.loads((stopped / "state.json").read_text())
    assert about["progress"]["step"] == 7
    assert [entry["step"] for entry in about["progress"]["history"]] == [0, 5]
    tensors = load_file(stopped / about["tensors"])
    groups = {name.split(".")[0] for name in tensors}
    assert groups == {"network", "optimizer", "random"}
    name = "bert.layers.0.attention.query.weight"
    assert f"optimizer.model.{name}.exp_avg" in tensors
    assert name in load_file(stopped / about["best"])
    best = about["progress"]["best_step"]
    assert sorted(path.name for path in stopped.iterdir()) == [
        f"best-{best}.safetensors",
        "metrics.jsonl",
        "state-7.safetensors",
        "state.json",
    ]


def test_other_rows_dev_or_settings_are_refused(stopped, tiny):
    before = {path.name: path.read_bytes() for path in stopped.iterdir()}
    encoder = SentenceEncoder.load(tiny, device="cpu")
    other = [*ROWS[:-1], ("the sun", "the moon", 0.25)]
    for rows, dev, changed in (
        (other, DEV, {}),
        (ROWS, DEV[:-1], {}),
        (ROWS, DEV, {"lr": 1e-3}),
        (ROWS, DEV, {"loss": "cosent"}),
    ):
        with pytest.raises(InputError, match="have changed since it began"):
            train(encoder, rows, dev, **GIVEN | changed, out=stopped, resume=True)
    assert {path.name: path.read_bytes() for path in stopped.iterdir()} == before


def damage(path: Path, **changed) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def test_a_damaged_state_is_an_error_of_one_line(stopped, tiny):
    path = stopped / "state.json"
    whole = path.read_text()
    for change, message in (
        (lambda: path.write_text("{"), r"state\.json"),
        (lambda: path.write_text("[]"), r"state\.json"),
        (lambda: damage(path, progress={"phase_of_the_moon": "full"}), "no key 'step'"),
        (lambda: damage(path, tensors="gone.safetensors"), r"gone\.safetensors"),
        (lambda: (stopped / "state-7.safetensors").write_bytes(b"x"), "state-7"),
    ):
        path.write_text(whole)
        change()
        with pytest.raises(InputError, match=message) as refused:
            resume(tiny, stopped)
        assert "\n" not in str(refused.value)


def test_a_log_that_was_cut_is_refused(stopped, tiny):
    (stopped / "metrics.jsonl").write_text("")
    with pytest.raises(InputError, match="was cut or replaced"):
        resume(tiny, stopped)


def test_the_log_is_on_the_disk_before_the_state_that_counts_its_bytes(tiny, tmp_path, monkeypatch):
    """After a power cut a log that was only written is shorter than its state says: no resume."""
    flushed = []
    flush = files.flush

    def note(path: Path) -> None:
        flushed.append(path.name)
        flush(path)

    monkeypatch.setattr(files, "flush", note)
    train(SentenceEncoder.load(tiny, device="cpu"), ROWS, **GIVEN, out=tmp_path / "run")
    assert flushed.index("metrics.jsonl") < flushed.index("state.json")


def test_what_was_logged_after_the_state_is_logged_again_and_not_twice(stopped, tiny, tmp_path):
    with open(stopped / "metrics.jsonl", "a") as log:
        log.write('{"step": 8, "loss": 1.0}\n{"step": 9, "lo')
    resume(tiny, stopped)
    whole = SentenceEncoder.load(tiny, device="cpu")
    train(whole, ROWS, DEV, **GIVEN, out=tmp_path / "whole")
    assert toys.metrics(stopped) == toys.metrics(tmp_path / "whole")


def test_another_process_is_not_disturbed(stopped, tiny):
    with open(stopped / "metrics.jsonl", "a") as log:
        files.lock(log)
        with pytest.raises(InputError, match="another process is training"):
            resume(tiny, stopped)


@pytest.mark.parametrize(("save_every", "saved"), [(1, [1, 2, 3, 4]), (3, [3, 4]), (100, [4])])
def test_the_state_is_saved_every_few_steps_and_at_the_end(
    tiny, tmp_path, monkeypatch, save_every, saved
):
    steps = []
    write = state.write_safetensors

    def spy(tensors, path):
        steps.append(int(path.name.rpartition("state-")[2].split(".")[0]))
        write(tensors, path)

    monkeypatch.setattr(state, "write_safetensors", spy)
    encoder = SentenceEncoder.load(tiny, device="cpu")
    train(encoder, ROWS, **GIVEN, max_steps=4, save_every=save_every, out=tmp_path / "run")
    assert steps == saved


class Killed(BaseException):
    """As ``kill -9``: nothing is cleaned up after it."""


def test_a_kill_at_any_moment_loses_nothing(tiny, tmp_path, monkeypatch):
    """At each writing, renaming and removal of a state; then the training is resumed."""
    given = {"max_steps": 3, "eval_every": 1, "save_every": 1}
    whole = SentenceEncoder.load(tiny, device="cpu")
    train(whole, ROWS, DEV, **GIVEN, **given, out=tmp_path / "whole")
    moments = 0
    for moment in range(100):
        folder = tmp_path / str(moment)
        made = []

        def killed(call, made=made, moment=moment):
            """Wrap a call, so that it is the end once ``moment`` wrapped calls have been made."""

            def counted(*arguments, **options):
                if len(made) >= moment:
                    raise Killed
                made.append(None)
                return call(*arguments, **options)

            return counted

        encoder = SentenceEncoder.load(tiny, device="cpu")
        with monkeypatch.context() as patch, suppress(Killed):
            for owner, name in (
                (files.os, "replace"),
                (state, "write_safetensors"),
                (Path, "unlink"),
            ):
                patch.setattr(owner, name, killed(getattr(owner, name)))
            train(encoder, ROWS, DEV, **GIVEN, **given, out=folder)
            break
        moments += 1
        encoder = SentenceEncoder.load(tiny, device="cpu")
        train(encoder, ROWS, DEV, **GIVEN, **given, out=folder, resume=True)
        assert toys.metrics(folder) == toys.metrics(tmp_path / "whole")
        for name, value in whole.state_dict().items():
            assert torch.equal(encoder.state_dict()[name], value)
        assert len(list(folder.glob("state*.safetensors"))) == 1
        assert len(list(folder.glob("best*.safetensors"))) == 1
    assert moments > 10


def test_progress_of_a_training_is_told():
    progress = Progress(step=5, history=[{"step": 5, "spearman": 0.5}])
    assert not progress.must_evaluate({5})
    assert Progress(step=5).must_evaluate({5})
    assert not Progress(step=5).must_evaluate({6})
